"""Random TAP messages against a model of the bucket, cut anywhere and sent again, and bytes that are no TAP."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.client import ChangeOptions, ChangeReader
from headrace.client.changes import Change
from headrace.history import Cause, State
from headrace.ids import VBucketId
from headrace.node import Node
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import Noop, TapDelete, TapFlush, TapMutation, TapRequest
from headrace.wire.codes import Status, TapFlag
from tests.node.talk import on_loop
from tests.tap.sending import ACK, CLOCK, IN_ORDER, Sender, flush, found, gone, high_seqno, item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VBUCKETS = 2
KEYS = [b"a", b"b", b"c", b"\xff\x00"]

numbers = st.integers(0, 0xFFFF_FFFF)
items = st.builds(
    item,
    st.sampled_from(KEYS),
    st.sampled_from([b"", b"1", b"{}", b"not json", bytes(300)]),
    vbucket=st.integers(0, VBUCKETS),
    cas=st.sampled_from([0, CLOCK, CLOCK + 1, CLOCK + 2]),
    rev=st.sampled_from([None, 0, 1, 2, 3]),
    item_flags=numbers,
    tap_flags=st.sampled_from([0, ACK, IN_ORDER, ACK | IN_ORDER, ACK | TapFlag.NO_VALUE]),
    ttl=st.sampled_from([0, 1, 255]),
)
deletions = st.builds(
    gone,
    st.sampled_from(KEYS),
    vbucket=st.integers(0, VBUCKETS),
    cas=st.sampled_from([0, CLOCK + 1, CLOCK + 3]),
    rev=st.sampled_from([None, 1, 2, 3]),
    tap_flags=st.sampled_from([0, ACK]),
)
messages = st.lists(st.one_of(items, items, deletions, st.builds(flush)), max_size=25)


@dataclass
class Kept:
    """What the model has of a key; a CAS of 0 is one that the node drew."""

    live: bool
    value: bytes
    cas: int
    rev: int
    flags: int


@dataclass
class Model:
    """A bucket as simple as can be."""

    vbuckets: list[dict[bytes, Kept]] = field(default_factory=lambda: [{} for _ in range(VBUCKETS)])
    changes: list[int] = field(default_factory=lambda: [0] * VBUCKETS)

    def take(self, message: TapRequest) -> int:
        """Do what a message tells; give the status that it is answered with."""
        if message.ttl == 0:
            return Status.INVALID
        if isinstance(message, TapFlush):
            for vb, kept in enumerate(self.vbuckets):
                for one in kept.values():
                    if one.live:
                        one.live, one.value, one.cas, one.rev, one.flags = False, b"", 0, one.rev + 1, 0
                        self.changes[vb] += 1
            return 0
        assert isinstance(message, TapMutation | TapDelete)
        if message.tap_flags & TapFlag.NO_VALUE:
            return Status.INVALID
        if message.vbucket >= VBUCKETS:
            return Status.NOT_MY_VBUCKET
        self._store(message)
        return 0

    def _store(self, message: TapMutation | TapDelete) -> None:
        kept = self.vbuckets[message.vbucket]
        old = kept.get(message.key)
        live = isinstance(message, TapMutation)
        new = Kept(live=live, value=b"", cas=message.cas, rev=message.rev_seqno or 0, flags=0)
        if isinstance(message, TapMutation):
            swapped = int.from_bytes(message.item_flags.to_bytes(4, "big"), "little")
            new.value = message.value
            new.flags = message.item_flags if message.tap_flags & IN_ORDER else swapped
        if message.rev_seqno is None:
            new.rev = old.rev + 1 if old is not None else 1
            if not message.cas and not live and (old is None or not old.live):
                return
            if not live and old is None:
                return
            if message.cas and old is not None and (old.live, old.cas) == (live, message.cas):
                return
        elif old is not None and (old.live, old.rev) == (live, new.rev) and message.cas in (0, old.cas):
            return
        kept[message.key] = new
        self.changes[message.vbucket] += 1


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    """A node that is begun anew for each example."""
    with Node(vbuckets=VBUCKETS) as node:
        yield node


def begin_anew(node: Node) -> None:
    """Make every vbucket anew, so that an example finds an empty bucket."""
    opened = node.running.services.buckets.get("default")
    assert opened is not None

    async def renew() -> None:
        for number in range(VBUCKETS):
            vb = opened.bucket.vbucket(number)
            opened.bucket.set_state(vb, State.DEAD, Cause.SET_VBUCKET)
            await opened.flusher.delete_vbucket(vb)
            opened.bucket.make_vbucket(VBucketId(number), State.ACTIVE)

    on_loop(node, renew)


def check(node: Node, model: Model, before: Sequence[int] = (0,) * VBUCKETS) -> None:
    """Hold every key and every high seqno against the model."""
    for vb, kept in enumerate(model.vbuckets):
        assert high_seqno(node, vb) - before[vb] == model.changes[vb]
        for key in KEYS:
            one, record = kept.get(key), found(node, key, vb)
            if one is None:
                assert record is None
                continue
            assert record is not None
            assert (record.live, record.value, record.rev_seqno, record.flags) == (
                one.live, one.value, one.rev, one.flags,
            )  # fmt: skip
            assert one.cas in (0, record.cas)


@given(messages)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_as_the_model(shared: Node, sent: list[TapRequest]):
    """Whatever is sent, each answer, each item and each high seqno is the model's."""
    begin_anew(shared)
    model = Model()
    expected = [(model.take(message), bool(message.tap_flags & ACK)) for message in sent]
    with Sender(shared) as sender:
        told = sender.send_unasked(*sent)
    assert [one.status for one in told] == [status for status, asked in expected if asked]
    check(shared, model)


stable = st.lists(
    st.builds(
        item,
        st.sampled_from(KEYS),
        st.binary(max_size=20),
        cas=st.integers(CLOCK, CLOCK + 5),
        rev=st.integers(1, 5),
        vbucket=st.integers(0, VBUCKETS - 1),
    )
    | st.builds(
        gone,
        st.sampled_from(KEYS),
        cas=st.integers(CLOCK + 10, CLOCK + 15),
        rev=st.integers(1, 5),
        vbucket=st.integers(0, VBUCKETS - 1),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda message: (message.vbucket, message.key, message.cas, message.rev_seqno),
)


@given(stable, st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_anywhere_and_sent_again(shared: Node, sent: list[TapMutation | TapDelete], data: st.DataObject):
    """A connection that breaks at any byte, and all sent again from the beginning, end as one that did not break."""
    begin_anew(shared)
    block = b"".join(encode(message, Dialect.TAP) for message in sent)
    for _ in range(data.draw(st.integers(1, 3))):
        with Sender(shared) as cut:
            cut.socket.sendall(block[: data.draw(st.integers(0, len(block)))])
    with Sender(shared) as sender:
        assert set(sender.tell(*sent)) == {0}
        before = [high_seqno(shared, vb) for vb in range(VBUCKETS)]
        last = {(message.vbucket, message.key): message for message in sent}
        assert set(sender.tell(*last.values())) == {0}
        assert [high_seqno(shared, vb) for vb in range(VBUCKETS)] == before, "what is there takes no seqno"
    for (vb, key), message in last.items():
        record = found(shared, key, vb)
        assert record is not None
        assert (record.cas, record.rev_seqno, record.live) == (
            message.cas, message.rev_seqno, isinstance(message, TapMutation),
        )  # fmt: skip


def test_garbage(shared: Node):
    """Messages with bytes changed at random are refused, taken or end the connection, and the node goes on."""
    chance = random.Random(6)
    sent = [item(b"key", b"value"), gone(b"key"), flush()]
    for _ in range(300):
        block = bytearray(encode(chance.choice(sent), Dialect.TAP))
        for _ in range(chance.randint(1, 4)):
            block[chance.randrange(1, len(block))] = chance.randrange(256)
        with Sender(shared) as one:
            one.socket.sendall(block)
    with Sender(shared) as one:
        assert one.status(Noop()) == 0


def test_read_by_dcp():
    """A node that is fed by TAP tells every item by DCP, in seqnos of its own without a gap."""
    with Node(vbuckets=4) as node, Sender(node) as sender:
        sent = [
            item(b"key-%d" % number, b"%d" % number, vbucket=number % 4, cas=CLOCK + number) for number in range(400)
        ]
        assert set(sender.tell(*sent, *(gone(b"key-%d" % number, vbucket=number % 4) for number in range(40)))) == {0}
        options = ChangeOptions(connection=f"couchbase://{node.host}:{node.port}", keys="binary")
        with ChangeReader(options, start="beginning", until="now") as reader:
            changes = [each for each in reader if isinstance(each, Change)]
    newest = {each.key: each for each in changes}
    assert len(newest) == 400
    for number in range(400):
        change = newest[b"key-%d" % number]
        if number < 40:
            assert change.event == "deletion"
        else:
            assert (change.value, change.cas, change.rev) == (b"%d" % number, CLOCK + number, 1)
    assert {vb: max(each.seqno for each in changes if each.vbucket == vb) for vb in range(4)} == dict.fromkeys(
        range(4), 110
    )
