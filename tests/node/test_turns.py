"""Whose turn it is among the streams of a connection."""

from array import array
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.node.dcp.turns import ServedStream, Turns

STREAMS = 8


def stream(vbucket: int, *, reads_disk: bool = False) -> ServedStream:
    """All that a queue looks at of a stream."""
    feed = SimpleNamespace(reads_disk=reads_disk)
    return cast("ServedStream", SimpleNamespace(vbucket=vbucket, cursor=0, in_snapshot=reads_disk, feed=feed))


@pytest.fixture
def turns() -> Turns[ServedStream]:
    """A queue with nobody in it."""
    return Turns(array("q", [0] * STREAMS))


def taken(turns: Turns[ServedStream], *, disk_has_room: bool) -> int | None:
    """The vbucket whose turn it is."""
    found = turns.take(disk_has_room=disk_has_room)
    return None if found is None else found.vbucket


def test_those_that_wait_for_the_disk_are_left_alone_until_it_has_room(turns: Turns[ServedStream]):
    """Nobody looks at them before; then it is their turn in the order in which they came."""
    for vbucket in (3, 1, 2):
        turns.wait_for_disk(stream(vbucket))
    assert taken(turns, disk_has_room=False) is None
    assert turns
    assert [taken(turns, disk_has_room=True) for _ in range(4)] == [3, 1, 2, None]
    assert not turns


def test_many_that_wait_do_not_keep_others_from_their_turn(turns: Turns[ServedStream]):
    """While the disk always has room, every second one is one that is ready."""
    for vbucket in range(4):
        turns.wait_for_disk(stream(vbucket))
    live = stream(7)
    turns.put(live)
    order = []
    for _ in range(6):
        order.append(taken(turns, disk_has_room=True))
        if order[-1] == live.vbucket:
            turns.put(live)
    assert order == [0, 7, 1, 7, 2, 7]


def test_one_that_is_made_ready_or_forgotten_waits_no_more(turns: Turns[ServedStream]):
    """It is in one place at a time."""
    first, second = stream(1), stream(2)
    turns.wait_for_disk(first)
    turns.wait_for_disk(second)
    turns.put(first)
    turns.forget(second)
    assert [taken(turns, disk_has_room=True) for _ in range(2)] == [1, None]


def test_those_that_read_from_disk_are_known_while_they_are_ready(turns: Turns[ServedStream]):
    """They count from when they are put back until they are taken, forgotten, or have read all."""
    reading = [stream(vbucket, reads_disk=True) for vbucket in range(3)]
    for each in (*reading, stream(3)):
        turns.put(each)
    assert turns.disk_readers == 3
    assert list(turns.begun()) == reading
    assert turns.take(disk_has_room=True) is reading[0]
    assert turns.disk_readers == 2
    turns.forget(reading[1])
    assert list(turns.begun()) == [reading[2]]
    reading[2].feed.reads_disk = False  # type: ignore[misc]
    assert turns.disk_readers == 0
