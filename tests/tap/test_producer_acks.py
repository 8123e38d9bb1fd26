"""Acks, refusals, checkpoints and registered clients: what is sent again, what is not, and where a client goes on."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from headrace.ids import Seqno, VBucketId
from headrace.node import Node, NodeLimits
from headrace.testing import LiveNode
from headrace.wire.catalogue import (
    CheckpointId,
    CheckpointIds,
    CompactDb,
    CreateCheckpoint,
    Delete,
    DeregisterTapClient,
    Done,
    Flush,
    LastClosedCheckpoint,
    Set,
    TapDelete,
    TapFlush,
    TapMutation,
)
from headrace.wire.codes import Status, TapConnectFlag
from tests.node.talk import Talk
from tests.tap.tap_reader import FOREVER, ITEMS, TapReader, asks, keys, shapes
from tests.tap.test_producer_connect import put, wait_for_tap

if TYPE_CHECKING:
    from tests.tap.tap_reader import TapMessage

F = TapConnectFlag
ACK = F.SUPPORT_ACK
INTERVAL, WINDOW = 5, 3
"""Of the node in conftest."""
CLOSED = ("opaque", 8, 0)
TEMPORARY, INVALID = Status.TEMPORARY_FAILURE, Status.INVALID


def is_closed(message: TapMessage) -> bool:
    """Whether the old items of vbucket 0 are over."""
    return shapes([message]) == [CLOSED]


def fill(node: Node, count: int, prefix: str = "k") -> None:
    """Set items in vbucket 0."""
    with Talk(node) as talk:
        talk.send(*(Set(key=f"{prefix}{number:03}".encode(), value=b"v") for number in range(count)))
        for _ in range(count):
            assert talk.receive().status == 0


def test_controls_ask_for_an_ack_and_items_now_and_then(node: LiveNode):
    """Every fifth message, the last of a queue, and all that is no item."""
    fill(node, 12)
    with TapReader(node, flags=ACK, vbuckets=[0]) as tap:
        got = tap.read(is_closed)
    assert shapes(got)[:2] == [("opaque", 0, 0), ("opaque", 1, 0)]
    asked = [one.opaque for one in got if asks(one)]
    assert asked == [1, 2, 5, 10, 14, 15]


def test_a_client_that_does_not_acknowledge_is_sent_no_more_than_a_window(node: LiveNode):
    """An ack makes room for as many as it is for."""
    fill(node, 100)
    with TapReader(node, flags=ACK, vbuckets=[0]) as tap:
        tap.acks = False
        first = [tap.next() for _ in range(INTERVAL * WINDOW)]
        with Talk(node) as talk:
            told = talk.stats(b"tap")
        assert [value for name, value in told.items() if name.endswith("ack_window_full")] == ["true"]
        tap.ack(first[6])
        more = [tap.next() for _ in range(7)]
        assert keys(first + more) == [f"k{number:03}".encode() for number in range(20)]
        tap.ack(more[-1])
        tap.acks = True
        assert len(keys(tap.read(is_closed))) == 80


def test_what_was_refused_for_now_is_sent_again(node: LiveNode):
    """From the refused message on, with new numbers; what came before it is not."""
    fill(node, 8)
    with TapReader(node, flags=ACK, vbuckets=[0]) as tap:
        tap.acks = False
        got = tap.read(is_closed)
        third = next(one for one in got if keys([one]) == [b"k003"])
        tap.ack(third, TEMPORARY)
        tap.acks = True
        again = tap.read(is_closed)
        assert keys(again) == [f"k{number:03}".encode() for number in range(3, 8)]
        assert min(one.opaque for one in again) > max(one.opaque for one in got)
        put(node, "later")
        assert keys([tap.next()]) == [b"later"]


@pytest.mark.parametrize("place", range(14))
def test_wherever_it_is_refused_everything_comes(node: LiveNode, place: int):
    """Controls and items behind the refused message come once more, in their order."""
    fill(node, 3)
    put(node, "other", vbucket=1)
    flags = ACK | F.CHECKPOINT
    with TapReader(node, flags=flags, vbuckets=[0, 1]) as tap:
        tap.acks = False
        got = tap.read(lambda one: shapes([one])[0][::2] == ("start", 1))
        # Checkpoint starts follow the script; live vbuckets take turns, so the first of them may be either.
        tap.ack(got[min(place, len(got) - 1)], TEMPORARY)
        tap.acks = True
        again = [tap.next() for _ in range(len(got) - min(place, len(got) - 1))]
        assert sorted(map(repr, shapes(again))) == sorted(map(repr, shapes(got[min(place, len(got) - 1) :])))
        put(node, "last")
        assert keys(tap.read(lambda one: isinstance(one, ITEMS))) == [b"last"]


def test_a_refusal_for_good_ends_the_connection(node: LiveNode):
    """Whatever the status is that is not temporary."""
    fill(node, 3)
    with TapReader(node, flags=ACK, vbuckets=[0]) as tap:
        tap.acks = False
        tap.ack(tap.read(is_closed)[3], INVALID)
        assert tap.ends()


def test_acks_that_nobody_asked_for_do_no_harm(node: LiveNode):
    """Numbers that were never sent, or long ago, and odd keys."""
    fill(node, 10)
    with TapReader(node, flags=ACK, vbuckets=[0]) as tap:
        got = tap.read(is_closed)
        for status in (0, TEMPORARY, INVALID):
            tap.ack(got[2], status, key=b"x" * 36)
        put(node, "last")
        assert keys([tap.next()]) == [b"last"]
    with TapReader(node, vbuckets=[0]) as tap:
        got = tap.read(is_closed)
        tap.ack(got[2], INVALID)
        put(node, "last")
        assert keys([tap.next()]) == [b"last"]


def test_a_client_that_owes_an_ack_for_too_long_is_left():
    """One that owes nothing is not."""
    limits = NodeLimits(tap_ack_s_max=0.1)
    with Node(vbuckets=1, limits=limits) as node:
        with TapReader(node, flags=ACK) as tap:
            tap.acks = False
            tap.read(is_closed)
            assert tap.ends()
        with TapReader(node, flags=ACK) as tap:
            tap.read(is_closed)
            time.sleep(0.3)
            put(node, "later")
            assert keys(tap.read_items(1)) == [b"later"]


def test_a_flush_is_told_to_who_sees_the_whole_bucket(node: LiveNode):
    """Then come the deletions, and later changes; who sees some vbuckets sees deletions alone."""
    put(node, "a")
    with TapReader(node, flags=ACK) as tap, TapReader(node, vbuckets=[0]) as some:
        tap.read(lambda one: shapes([one]) == [("opaque", 8, 7)])
        some.read(is_closed)
        with Talk(node) as talk:
            talk.get(Flush(), Done)
        put(node, "b")
        assert shapes(tap.read(lambda one: keys([one]) == [b"b"])) == [
            ("flush",),
            ("delete", b"a"),
            ("set", b"b", b"v"),
        ]
        assert shapes(some.read(lambda one: keys([one]) == [b"b"])) == [("delete", b"a"), ("set", b"b", b"v")]
        with Talk(node) as talk:
            talk.get(Flush(), Done)
        flushed = tap.next()
        assert isinstance(flushed, TapFlush)
        tap.ack(flushed, TEMPORARY)
        again = tap.read(lambda one: isinstance(one, TapFlush))
        assert keys(again) in ([], [b"b"])  # the deletion may have been on its way
        assert keys(tap.read(lambda one: isinstance(one, TapDelete))) == [b"b"]


# -------------------------------------------------------------------------------------------------------- checkpoints


def create(node: Node, vbucket: int = 0) -> tuple[int, int]:
    """Close the open checkpoint."""
    with Talk(node) as talk:
        told = talk.get(CreateCheckpoint(vbucket=VBucketId(vbucket)), CheckpointIds)
    return told.open_checkpoint, told.persisted_checkpoint


def test_checkpoints_stand_around_changes(node: LiveNode):
    """The open one begins after old items; one that is closed ends, and the next begins, be it empty."""
    put(node, "old")
    node.flush()
    opened, _ = create(node)
    with TapReader(node, flags=ACK | F.CHECKPOINT, vbuckets=[0]) as tap:
        got = tap.read(lambda one: shapes([one])[0][0] == "start")
        assert shapes(got)[:2] == [("opaque", 0, 0), ("opaque", 2, 0)]
        assert shapes(got)[-1] == ("start", opened, 0)
        put(node, "first")
        assert keys(tap.read_items(1)) == [b"first"]
        node.flush()
        assert create(node) == (opened + 1, opened - 1)
        got = tap.read(lambda one: shapes([one])[0][0] == "start")
        assert shapes(got) == [("end", opened, 0), ("start", opened + 1, 0)]
        assert create(node) == (opened + 1, opened)
        put(node, "second")
        assert keys([tap.next()]) == [b"second"]
    with Talk(node) as talk:
        assert talk.get(LastClosedCheckpoint(), CheckpointId).checkpoint == opened


def test_a_change_is_told_in_its_own_checkpoint(node: LiveNode):
    """Also when several were closed before the client read any of them."""
    opened, _ = create(node)
    with TapReader(node, flags=F.CHECKPOINT, vbuckets=[0], date=FOREVER) as tap:
        assert shapes(tap.read(lambda one: shapes([one])[0][0] == "start"))[-1] == ("start", opened, 0)
        node.chaos.freeze()
        for number in range(3):
            put(node, f"key-{number}")
            create(node)
        node.chaos.thaw()
        got = tap.read(lambda one: shapes([one]) == [("start", opened + 3, 0)])
    expected: list[tuple[object, ...]] = []
    for number in range(3):
        put_shape = ("set", f"key-{number}".encode(), b"v")
        expected += [put_shape, ("end", opened + number, 0), ("start", opened + number + 1, 0)]
    assert shapes(got) == expected


def test_a_client_goes_on_at_a_checkpoint_that_is_known(node: LiveNode):
    """At its start; one that is not known brings everything."""
    put(node, "old")
    opened, _ = create(node)
    put(node, "new")
    for named, expected in ((opened, [b"new"]), (opened - 1, [b"old", b"new"]), (0, [b"old", b"new"])):
        with TapReader(node, vbuckets=[0], checkpoints=[(0, named)]) as tap:
            assert keys(tap.read(lambda one: keys([one]) == [b"new"])) == expected


def test_checkpoints_of_vbuckets_that_are_not_here(node: LiveNode):
    """They are refused as other commands are."""
    with Talk(node) as talk:
        for request in (CreateCheckpoint(vbucket=VBucketId(60)), LastClosedCheckpoint(vbucket=VBucketId(60))):
            assert talk.status(request) == Status.NOT_MY_VBUCKET


# ------------------------------------------------------------------------------------------------- registered clients


REGISTERED = F.REGISTERED_CLIENT


def test_a_registered_client_goes_on_where_it_acknowledged(node: LiveNode):
    """What it was sent and did not acknowledge comes again; old items do not."""
    fill(node, 4)
    with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as tap:
        tap.read(is_closed)
        tap.acks = False
        fill(node, 4, "unacked")
        tap.read(lambda one: keys([one]) == [b"unacked003"])
    fill(node, 2, "away")
    with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as tap:
        got = tap.read(lambda one: keys([one]) == [b"away001"])
    expected = [*(f"unacked{number:03}" for number in range(4)), "away000", "away001"]
    assert keys(got) == [key.encode() for key in expected]
    assert ("opaque", 1, 0) not in shapes(got)


def test_without_acks_it_goes_on_behind_what_was_sent(node: LiveNode):
    """And when it is forgotten, at the beginning."""
    fill(node, 3)
    with TapReader(node, flags=REGISTERED, name="again") as tap:
        tap.read(lambda one: shapes([one]) == [("opaque", 8, 7)])
    fill(node, 2, "away")
    with TapReader(node, flags=REGISTERED, name="again") as tap:
        assert keys(tap.read(lambda one: keys([one]) == [b"away001"])) == [b"away000", b"away001"]
    with Talk(node) as talk:
        assert talk.stats(b"tap")["ep_tap_registered_count"] == "1"
        talk.get(DeregisterTapClient(name=b"again"), Done)
        assert talk.stats(b"tap")["ep_tap_registered_count"] == "0"
    with TapReader(node, flags=REGISTERED, name="again") as tap:
        assert len(keys(tap.read(lambda one: shapes([one]) == [("opaque", 8, 7)]))) == 5


def test_one_that_wanted_later_changes_alone_misses_none(node: LiveNode):
    """Not those that are made while it is away, be it before the first."""
    fill(node, 1)
    with TapReader(node, flags=ACK | REGISTERED, name="again", date=FOREVER) as tap:
        tap.read(lambda one: shapes([one]) == [("opaque", 0, 0)])
        wait_for_tap(node)
    fill(node, 1, "away")
    put(node, "away-1", vbucket=1)
    with TapReader(node, flags=ACK | REGISTERED, name="again", date=FOREVER) as tap:
        assert set(keys(tap.read_items(2))) == {b"away000", b"away-1"}


def test_an_older_connection_of_the_name_has_acknowledged_for_the_new_one(node: LiveNode):
    """A client that connects again while its old connection seems to live goes on, too."""
    fill(node, 4)
    with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as old:
        old.read(is_closed)
        put(node, "later")
        old.read_items(1)
        with Talk(node) as talk:
            while talk.stats(b"tapagg")["_total:ack_log_size"] != "0":
                pass
        with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as new:
            put(node, "last")
            assert keys(new.read(lambda one: keys([one]) == [b"last"])) == [b"last"]


@pytest.mark.parametrize("what", ["purged", "rolled back"])
def test_what_cannot_be_gone_on_with_begins_anew(node: LiveNode, what: str):
    """Purged deletions, or a branch that was left: everything comes again."""
    fill(node, 3)
    with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as tap:
        tap.read(is_closed)
        if what == "rolled back":
            put(node, "to be lost")
            tap.read_items(1)
            with Talk(node) as talk:
                while talk.stats(b"tapagg")["_total:ack_log_size"] != "0":
                    pass
    if what == "purged":
        with Talk(node) as talk:
            assert talk.status(Delete(key=b"k001")) == 0
        put(node, "later")
        node.flush()
        with Talk(node) as talk:
            assert talk.status(CompactDb(drop_deletes=1, purge_before_time=0, purge_before_seqno=Seqno(0))) == 0
    else:
        node.chaos.failover(vbuckets=[0], lost=1)
    with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as tap:
        got = tap.read(is_closed)
    there = {b"k000", b"k002", b"later"} if what == "purged" else {b"k000", b"k001", b"k002"}
    assert set(keys(got)) == there


def test_there_is_a_bound_for_registered_clients():
    """One more is refused, with a word; one that is known may come."""
    with Node(vbuckets=1, limits=NodeLimits(registered_max=1)) as node:
        for name in ("one", "one"):
            with TapReader(node, flags=REGISTERED, name=name) as tap:
                tap.read(is_closed)
        with TapReader(node, flags=REGISTERED, name="two") as tap:
            reply = tap.receive()
            assert reply.status == Status.OUT_OF_MEMORY
            assert tap.ends()


# ---------------------------------------------------------------------------------------------------------- all of it


@pytest.mark.parametrize("seed", range(6))
def test_a_registered_client_has_the_newest_of_every_key_in_the_end(seed: int):
    """Whatever is acknowledged, refused or cut on the way."""
    rng = random.Random(seed)
    limits = NodeLimits(tap_ack_interval=rng.choice([1, 3, 7]), tap_ack_window=2, tap_pause_s=0.001)
    with LiveNode(vbuckets=4, limits=limits) as node:
        written: dict[bytes, bytes | None] = {}
        copy: dict[bytes, bytes | None] = {}
        for round_ in range(12):
            write_some(node, rng, written)
            flags = ACK | REGISTERED | (F.CHECKPOINT if rng.random() < 0.5 else 0)
            with TapReader(node, flags=flags, name="again") as tap:
                for _ in range(rng.randrange(40) if round_ < 11 else 0):
                    read_one(tap, rng, copy)
                    if rng.random() < 0.05:
                        write_some(node, rng, written)
        with TapReader(node, flags=ACK | REGISTERED, name="again") as tap:
            node.items.set(b"the end", b"1")
            written[b"the end"] = b"1"
            end = time.monotonic() + 30
            while copy != written:
                assert time.monotonic() < end, f"seed {seed}"
                read_one(tap, rng, copy, refuses=False)


def write_some(node: LiveNode, rng: random.Random, written: dict[bytes, bytes | None]) -> None:
    """Set and delete a few of not many keys."""
    for _ in range(rng.randrange(15)):
        key = f"key-{rng.randrange(30)}".encode()
        if written.get(key) is not None and rng.random() < 0.3:
            node.items.delete(key)
            written[key] = None
        else:
            written[key] = str(rng.random()).encode()
            node.items.set(key, written[key] or b"")


def read_one(tap: TapReader, rng: random.Random, copy: dict[bytes, bytes | None], *, refuses: bool = True) -> None:
    """Read a message, and take it, or not."""
    tap.socket.settimeout(0.2 if refuses else 20)
    try:
        message = tap.next()
    except TimeoutError:
        return
    if refuses and rng.random() < 0.1:
        tap.ack(message, TEMPORARY)
        return
    if isinstance(message, TapMutation):
        copy[message.key] = message.value
    elif isinstance(message, TapDelete):
        copy[message.key] = None
    if asks(message) and (not refuses or rng.random() < 0.9):
        tap.ack(message)
