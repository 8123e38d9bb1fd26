"""The relay alone, between two sockets: what comes out, what stays, and how much waits."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import ServerAnswerError
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.pipelines.relay import READS_MAX, WAITING_BYTES_MAX, Relay
from headrace.wire import encode
from headrace.wire.catalogue import (
    CloseStream,
    Control,
    Done,
    ErrorReply,
    Mutation,
    SetVBucketState,
    SnapshotMarker,
    StreamAdded,
    StreamEnd,
    StreamRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.pipelines.lines import Line

READ_BYTES = 64 * 1024
VB = VBucketId(3)
OPAQUE = Opaque(9)


class FakeLine:
    """One end of a socket pair for the relay, the other for the test."""

    sends_delete_times = True

    def __init__(self) -> None:
        self.inner, self.outer = socket.socketpair()
        self.inner.setblocking(False)
        self.outer.setblocking(False)

    def fileno(self) -> int:
        return self.inner.fileno()

    def read(self) -> bytes:
        try:
            return self.inner.recv(READ_BYTES)
        except BlockingIOError:
            return b""

    def write(self, data: memoryview) -> int:
        try:
            return self.inner.send(data)
        except BlockingIOError:
            return 0

    def said(self) -> bytes:
        """What the relay sent to this side."""
        found = bytearray()
        while True:
            try:
                found += self.outer.recv(READ_BYTES)
            except BlockingIOError:
                return bytes(found)

    def close(self) -> None:
        self.inner.close()
        self.outer.close()


class Told:
    """Keeps what the relay tells."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def asked(self, *event: int) -> None:
        self.events.append(("asked", *event))

    def added(self, *event: int) -> None:
        self.events.append(("added", *event))

    def marked(self, *event: int) -> None:
        self.events.append(("marked", *event))

    def state_sent(self, *event: int) -> None:
        self.events.append(("state", *event))

    def ended(self, *event: int) -> None:
        self.events.append(("ended", *event))

    def refused(self, *event: int) -> None:
        self.events.append(("refused", *event))


class Joined:
    """A relay, and both ends of it."""

    def __init__(self) -> None:
        self.producer, self.consumer, self.told = FakeLine(), FakeLine(), Told()
        self.relay = Relay(cast("Line", self.producer), cast("Line", self.consumer), self.told)

    def carry(self) -> None:
        while self.relay.step(0):
            pass

    def close(self) -> None:
        self.producer.close()
        self.consumer.close()


@pytest.fixture
def joined() -> Iterator[Joined]:
    """A relay between two sockets."""
    made = Joined()
    yield made
    made.close()


def item(seqno: int, value: bytes = b"v") -> bytes:
    """A mutation."""
    return encode(Mutation(vbucket=VB, opaque=OPAQUE, by_seqno=Seqno(seqno), rev_seqno=1, nru=0, key=b"k", value=value))


MARKER = encode(SnapshotMarker(vbucket=VB, opaque=OPAQUE, start_seqno=Seqno(0), end_seqno=Seqno(7), flags=1))
PENDING = encode(SetVBucketState(vbucket=VB, opaque=OPAQUE, state=3))
END = encode(StreamEnd(vbucket=VB, opaque=OPAQUE, reason=2))
CLOSED = encode(Done(opcode=0x52, opaque=OPAQUE))


def test_down(joined: Joined):
    """Everything of the producer goes on but answers to the relay; what tells of a stream is told."""
    frames = [MARKER, item(1), CLOSED, item(2), PENDING, END]
    joined.producer.outer.send(b"".join(frames))
    joined.carry()
    assert joined.consumer.said() == b"".join(frame for frame in frames if frame != CLOSED)
    assert joined.told.events == [("marked", 3, 0, 7), ("state", 3, 3), ("ended", 3, 2)]
    assert joined.relay.items == 2


def test_up(joined: Joined):
    """Everything of the consumer goes on but answers to the relay; requests and refusals are told."""
    request = encode(StreamRequest(vbucket=VB, opaque=OPAQUE, snapshot_start=Seqno(0), snapshot_end=Seqno(0)))
    refusal = encode(ErrorReply(opcode=0x57, status=0x22, opaque=OPAQUE, value=b"Outside range"))
    fine = encode(Done(opcode=0x5B, opaque=OPAQUE))
    added = encode(StreamAdded(opcode=0x51, opaque=Opaque(3), stream_opaque=9))
    closed = encode(CloseStream(vbucket=VB, opaque=OPAQUE))
    joined.consumer.outer.send(request + added + refusal + CLOSED + fine + closed)
    joined.carry()
    assert joined.producer.said() == request + refusal + fine + closed
    assert joined.told.events == [("asked", 3, 9), ("added", 3, 0), ("refused", 9, 0x57, 0x22)]


def test_own_messages(joined: Joined):
    """What the relay says itself stands between whole messages."""
    half = len(item(1)) // 2
    joined.producer.outer.send(item(1)[:half])
    joined.carry()
    joined.relay.tell_consumer(PENDING)
    joined.relay.tell_producer(END)
    joined.producer.outer.send(item(1)[half:])
    joined.carry()
    assert joined.consumer.said() == PENDING + item(1)
    assert joined.producer.said() == END


@pytest.mark.parametrize("sends_delete_times", [True, False])
def test_extended_metadata(joined: Joined, sends_delete_times: bool):
    """It is not asked of a producer that sends delete times; the consumer hears that it is so."""
    joined.producer.sends_delete_times = sends_delete_times
    wish = encode(Control(key=b"enable_ext_metadata", value=b"true", opaque=OPAQUE))
    other = encode(Control(key=b"enable_noop", value=b"true", opaque=OPAQUE))
    joined.consumer.outer.send(other + wish + other)
    joined.carry()
    assert joined.producer.said() == (other + other if sends_delete_times else other + wish + other)
    assert joined.consumer.said() == (encode(Done(opcode=0x5E, opaque=OPAQUE)) if sends_delete_times else b"")


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=12), st.lists(st.integers(1, 2000), max_size=12))
def test_cut_anywhere(sizes: list[int], cuts: list[int]):
    """However the bytes come, they go on the same."""
    joined = Joined()
    try:
        data = b"".join(item(number + 1, bytes(size)) for number, size in enumerate(sizes))
        at = 0
        for cut in [*cuts, len(data)]:
            joined.producer.outer.send(data[at : at + cut])
            at = min(at + cut, len(data))
            joined.carry()
        assert joined.consumer.said() == data[: len(data)]
        assert joined.relay.items == len(sizes)
    finally:
        joined.close()


def test_a_slow_side_slows_the_other(joined: Joined):
    """A consumer that does not read makes the relay stop reading: what waits is bounded."""
    data, at, most = item(1, bytes(1000)) * 20_000, 0, 0
    while at < len(data):
        try:
            at += joined.producer.outer.send(data[at : at + READ_BYTES])
        except BlockingIOError:
            break
        joined.carry()
        most = max(most, joined.relay._down.waiting_bytes)
    assert at < len(data)
    assert WAITING_BYTES_MAX <= most <= WAITING_BYTES_MAX + READS_MAX * READ_BYTES
    got = bytearray()
    while len(got) < len(data):
        got += joined.consumer.said()
        if at < len(data):
            with suppress(BlockingIOError):
                at += joined.producer.outer.send(data[at : at + READ_BYTES])
        joined.carry()
    assert got == data


def test_a_large_item_in_pieces(joined: Joined):
    """An item of many reads goes on whole."""
    data, at, got = item(1, bytes(3 << 20)), 0, bytearray()
    while len(got) < len(data):
        at += joined.producer.outer.send(data[at : at + READ_BYTES])
        joined.carry()
        got += joined.consumer.said()
    assert got == data


def test_no_stream_connection(joined: Joined):
    """A length that no message has ends the job."""
    joined.producer.outer.send(item(1)[:8] + b"\xff" * 16)
    with pytest.raises(ServerAnswerError, match="no stream connection"):
        joined.carry()
