"""TAP takeover: a vbucket is given away whole, by one node at a time, whatever breaks off."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headrace.ids import Seqno, VBucketId
from headrace.node import NodeLimits
from headrace.testing import LiveNode
from headrace.wire.catalogue import CompactDb, Delete, GetVBucket, Set, TapMutation, TapVBucketSet, VBucketStateReply
from headrace.wire.codes import Status, TapConnectFlag
from tests.node.talk import Talk
from tests.tap.tap_reader import ITEMS, TapReader, keys, shapes
from tests.tap.test_producer_connect import put, state

if TYPE_CHECKING:
    from tests.tap.tap_reader import TapMessage

F = TapConnectFlag
TAKEOVER = F.TAKEOVER_VBUCKETS | F.SUPPORT_ACK
ACTIVE, REPLICA, PENDING, DEAD = 1, 2, 3, 4


def state_of(node: LiveNode, vbucket: int) -> int:
    """The state of a vbucket."""
    with Talk(node) as talk:
        return talk.get(GetVBucket(vbucket=VBucketId(vbucket)), VBucketStateReply).state


def is_active(message: TapMessage) -> bool:
    """Whether the client is told to serve a vbucket."""
    return isinstance(message, TapVBucketSet) and message.state == ACTIVE


def test_a_takeover_in_its_order(node: LiveNode):
    """Pending, old items, active; then the vbucket is dead here, and the connection ends."""
    put(node, "a", vbucket=3)
    with TapReader(node, flags=TAKEOVER, vbuckets=[3], date=0) as tap:
        got = tap.read_all()
    assert shapes(got) == [
        ("opaque", 0, 0),
        ("state", PENDING, 3),
        ("opaque", 1, 3),
        ("set", b"a", b"v"),
        ("opaque", 8, 3),
        ("state", ACTIVE, 3),
    ]
    assert state_of(node, 3) == DEAD
    with Talk(node) as talk:
        assert talk.status(Set(vbucket=VBucketId(3), key=b"b", value=b"v")) == Status.NOT_MY_VBUCKET


def test_several_vbuckets_at_once(node: LiveNode):
    """Each is told to be active when all of it is there."""
    for vb in (1, 2, 5):
        put(node, f"vb-{vb}", vbucket=vb)
    with TapReader(node, flags=TAKEOVER, vbuckets=[1, 2, 5]) as tap:
        got = tap.read_all()
    assert set(keys(got)) == {b"vb-1", b"vb-2", b"vb-5"}
    assert sorted(one.vbucket for one in got if is_active(one)) == [1, 2, 5]
    assert {state_of(node, vb) for vb in (1, 2, 5)} == {DEAD}
    assert state_of(node, 0) == ACTIVE


def test_while_writers_write(node: LiveNode):
    """What a writer was told is written is at the client: its last version of each key."""
    written: dict[bytes, bytes] = {}
    stop = threading.Event()

    def write() -> None:
        with Talk(node) as talk:
            number = 0
            while not stop.is_set():
                number += 1
                key, value = f"key-{number % 50}".encode(), str(number).encode()
                if talk.status(Set(vbucket=VBucketId(2), key=key, value=value)) != 0:
                    return
                written[key] = value

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copy: dict[bytes, bytes] = {}
        with TapReader(node, flags=TAKEOVER, vbuckets=[2]) as tap:
            for one in tap.read_all():
                if isinstance(one, TapMutation):
                    copy[one.key] = one.value
        writer.join(20)
        assert not writer.is_alive()
    finally:
        stop.set()
        writer.join()
    assert written
    assert copy == written


def test_without_acks_it_ends_when_all_was_sent(node: LiveNode):
    """Nobody answers; the client is taken at no word."""
    put(node, "a")
    with TapReader(node, flags=F.TAKEOVER_VBUCKETS, vbuckets=[0]) as tap:
        assert shapes(tap.read_all())[-1] == ("state", ACTIVE, 0)
    assert state_of(node, 0) == DEAD


@pytest.mark.parametrize("last", ["state", "opaque", "set"])
def test_broken_off_before_active_was_told(node: LiveNode, last: str):
    """The vbucket is served here as before."""
    put(node, "a")
    with TapReader(node, flags=TAKEOVER, vbuckets=[0]) as tap:
        tap.acks = False
        got = tap.read(lambda one: shapes([one])[0][0] == last)
        assert not any(is_active(one) for one in got)
    put_when_served(node)


def test_broken_off_when_the_vbucket_is_dead_and_nobody_was_told(node: LiveNode):
    """It is served here again."""
    put(node, "a")
    node.flush()
    node.chaos.pause()  # the disk does not get to know that it is dead
    with TapReader(node, flags=TAKEOVER, vbuckets=[0]) as tap:
        tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
        with Talk(node) as talk:
            while talk.status(Set(key=b"c", value=b"v")) != Status.NOT_MY_VBUCKET:
                pass
    put_when_served(node)
    node.chaos.resume()


def put_when_served(node: LiveNode) -> None:
    """Write, as soon as the node has noticed that its client is gone."""
    with Talk(node) as talk:
        while talk.stats(b"tap")["ep_tap_count"] != "0":
            pass
        assert talk.status(Set(key=b"b", value=b"v")) == 0


def test_broken_off_after_active_was_told(node: LiveNode):
    """The client may be active: the vbucket stays dead here."""
    put(node, "a")
    with TapReader(node, flags=TAKEOVER, vbuckets=[0]) as tap:
        tap.acks = False
        got = tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
        tap.ack(got[-1])
        assert is_active(tap.next())
    with Talk(node) as talk:
        while talk.stats(b"tap")["ep_tap_count"] != "0":
            pass
    assert state_of(node, 0) == DEAD


@pytest.mark.parametrize("status", [Status.TEMPORARY_FAILURE, Status.INVALID])
def test_a_client_that_refuses_to_be_active(node: LiveNode, status: int):
    """For now: it is told again. For good: the vbucket is served here again."""
    put(node, "a")
    with TapReader(node, flags=TAKEOVER, vbuckets=[0]) as tap:
        told = tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
        told.append(tap.next())
        assert is_active(told[-1])
        tap.ack(told[-1], status)
        if status == Status.TEMPORARY_FAILURE:
            assert shapes(tap.read_all()) == [("state", ACTIVE, 0)]
            assert state_of(node, 0) == DEAD
        else:
            assert tap.ends()
            put_when_served(node)


def test_it_is_not_stopped_before_the_client_has_its_old_items(node: LiveNode):
    """That it is pending is acknowledged long before that."""
    put(node, "a")
    with TapReader(node, flags=TAKEOVER, vbuckets=[0]) as tap:
        tap.acks = False
        got = tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
        pending = next(one for one in got if isinstance(one, TapVBucketSet))
        tap.ack(pending)
        with Talk(node) as talk:
            while talk.stats(b"tapagg")["_total:ack_log_size"] != str(len(got) - 2):
                pass
        put(node, "b")
        assert keys([tap.next()]) == [b"b"]


def test_deletions_that_are_purged_while_the_vbucket_is_stopped():
    """The client cannot get them any more: the connection ends, and the vbucket is served here again."""
    with LiveNode(vbuckets=1, limits=NodeLimits(tap_pause_s=0.5)) as node:
        put(node, "gone")
        with TapReader(node, flags=TAKEOVER, vbuckets=[0]) as tap:
            tap.acks = False
            old = tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
            with Talk(node) as talk:
                assert talk.status(Delete(key=b"gone")) == 0
            put(node, "last")
            deletion, _ = tap.next(), tap.next()
            tap.ack(old[-1])
            while state_of(node, 0) != DEAD:
                pass
            node.flush()
            tap.ack(deletion, Status.TEMPORARY_FAILURE)  # it comes again after a while
            with Talk(node) as talk:
                assert talk.status(CompactDb(drop_deletes=1, purge_before_time=0, purge_before_seqno=Seqno(0))) == 0
            tap.read_all()
        put_when_served(node)


def test_only_what_is_served_here_can_be_given_away(node: LiveNode):
    """A copy is not."""
    state(node, 1, REPLICA)
    with TapReader(node, flags=TAKEOVER, vbuckets=[1]) as tap:
        assert tap.ends()


def test_a_vbucket_that_is_taken_meanwhile(node: LiveNode):
    """A manager that changes its state ends the takeover, and has the last word."""
    put(node, "a")
    with TapReader(node, flags=TAKEOVER, vbuckets=[0]) as tap:
        tap.acks = False
        tap.next()
        state(node, 0, REPLICA)
        tap.read_all()
    assert state_of(node, 0) == REPLICA


def test_other_tap_streams_of_the_vbucket_end_with_it(node: LiveNode):
    """They see what was changed before, and nothing of it after that."""
    put(node, "a")
    with TapReader(node, vbuckets=[0, 1]) as other:
        other.read(lambda one: shapes([one]) == [("opaque", 8, 1)])
        with TapReader(node, flags=TAKEOVER, vbuckets=[0]) as tap:
            tap.read_all()
        put(node, "b", vbucket=1)
        assert keys(other.read(lambda one: isinstance(one, ITEMS))) == [b"b"]
        with Talk(node) as talk:
            assert talk.status(Delete(key=b"a")) == Status.NOT_MY_VBUCKET
