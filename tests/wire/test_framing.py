"""Frames out of bytes in any pieces: linear time, bounded memory, errors that stay."""

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire import NEED_DATA, Dialect, Frame, FrameReader, Header, Limits, decode
from headrace.wire.framing import _COMPACT_BYTES
from headrace.wire.limits import BODY_BYTES_MAX, HEADER_BYTES
from tests.wire.vectors import documents, handmade

VECTORS = (*documents(), *handmade())
WIRES = [vector.wire for vector in VECTORS]
NOOP = bytes.fromhex("800a00000000000000000000000000070000000000000000")


def header(**values: int) -> bytes:
    """A header of a SET, with other numbers where they are given."""
    usual = {"magic": 0x80, "opcode": 1, "framing_length": 0, "key_length": 0, "extras_length": 0, "datatype": 0}
    rest = {"specific": 0, "body_length": 0, "opaque": 0, "cas": 0}
    return Header(**{**usual, **rest, **values}).pack()


def taken(reader: FrameReader) -> list[Frame]:
    """Every frame that a reader has ready."""
    found = []
    while isinstance(frame := reader.next_frame(), Frame):
        found.append(frame)
    return found


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.id)
def test_a_vector_whole_byte_by_byte_and_with_trailing_bytes(vector: Any):
    """A frame comes out once its last byte is there, not before, and leaves what follows it alone."""
    whole = FrameReader()
    whole.receive(vector.wire)
    (frame,) = taken(whole)
    assert frame.pack() == vector.wire
    assert frame.framing + frame.extras + frame.key + frame.value == frame.body

    slow = FrameReader()
    for place, byte in enumerate(vector.wire):
        assert slow.next_frame() is NEED_DATA
        assert slow.buffered_bytes == place
        slow.receive(bytes([byte]))
    assert taken(slow) == [frame]

    trailed = FrameReader()
    trailed.receive(vector.wire + vector.wire[:7])
    assert taken(trailed) == [frame]
    assert trailed.buffered_bytes == 7
    assert trailed.offset == len(vector.wire)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.id)
def test_one_message_is_neither_cut_nor_trailed(vector: Any):
    """Decoding one message refuses bytes that are missing at its end, or left over."""
    for wrong in (vector.wire[:-1], vector.wire + b"\0", vector.wire[:20], b""):
        with pytest.raises(RemoteProtocolError):
            decode(wrong, vector.dialect)


@given(data=st.data())
def test_frames_in_random_cuts(data: st.DataObject):
    """Some vectors behind each other, cut anywhere, come out in order."""
    wires = data.draw(st.lists(st.sampled_from(WIRES), max_size=8))
    whole = b"".join(wires)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    reader = FrameReader()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        reader.receive(memoryview(whole)[start:end])
        found += [frame.pack() for frame in taken(reader)]
    assert found == wires


def test_a_wrong_magic_is_refused_for_ever():
    """Bytes without a magic raise at the place where the frame would begin, and again however often one asks."""
    reader = FrameReader()
    reader.receive(NOOP + b"\x55" + NOOP[1:] + NOOP)
    assert len(decode_all(reader)) == 1
    with pytest.raises(RemoteProtocolError, match="0x55 is no magic") as first:
        reader.next_frame()
    assert first.value.offset == len(NOOP)
    reader.receive(NOOP)
    with pytest.raises(RemoteProtocolError) as second:
        reader.next_frame()
    assert (second.value.text, second.value.offset) == (first.value.text, first.value.offset)


def decode_all(reader: FrameReader) -> list[Any]:
    """The messages before the first error."""
    found = []
    try:
        while isinstance(frame := reader.next_frame(), Frame):
            found.append(decode(frame, Dialect.DCP))
    except RemoteProtocolError:
        pass
    return found


@pytest.mark.parametrize("body_length", [BODY_BYTES_MAX + 1, 0xFFFF_FFFF])
def test_a_promise_of_gigabytes_is_refused_before_it_is_believed(body_length: int):
    """A header that promises more than the limit is refused as soon as it is whole, and nothing is kept for it."""
    promise = header(body_length=body_length)
    reader = FrameReader()
    tracemalloc.start()
    try:
        reader.receive(promise)
        with pytest.raises(RemoteProtocolError, match=f"a body of {body_length} bytes; this reader takes at most"):
            reader.next_frame()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024
    assert reader.buffered_bytes == 0
    with pytest.raises(RemoteProtocolError) as refusal:
        decode(promise)
    assert refusal.value.offset == 8


def test_a_promise_within_the_limit_takes_no_memory_either():
    """A header that promises the largest body allowed makes the reader wait, not reserve."""
    reader = FrameReader()
    tracemalloc.start()
    try:
        reader.receive(header(body_length=BODY_BYTES_MAX))
        assert reader.next_frame() is NEED_DATA
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


def test_a_readers_own_limit_holds():
    """A reader takes a body of exactly its limit, and none that is a byte longer."""
    limits = Limits(body_bytes_max=10)
    reader = FrameReader(limits)
    reader.receive(header(body_length=10) + bytes(10) + header(body_length=11))
    assert isinstance(reader.next_frame(), Frame)
    with pytest.raises(RemoteProtocolError, match="at most 10"):
        reader.next_frame()


@pytest.mark.parametrize(
    "lengths",
    [
        {"extras_length": 5, "body_length": 4},
        {"key_length": 5, "body_length": 4},
        {"extras_length": 2, "key_length": 3, "body_length": 4},
        {"magic": 0x08, "framing_length": 1, "extras_length": 2, "key_length": 2, "body_length": 4},
    ],
)
def test_parts_longer_than_their_body_are_refused(lengths: dict[str, int]):
    """Framing extras, extras and key that do not fit in the body raise before the body is waited for."""
    reader = FrameReader()
    reader.receive(header(**lengths))
    with pytest.raises(RemoteProtocolError, match="a body of 4 bytes; extras and key alone have 5") as refusal:
        reader.next_frame()
    assert refusal.value.offset == 8


def test_feeding_on_without_taking_frames_is_our_own_mistake():
    """A reader that is fed past its bound raises LocalProtocolError, keeps its bytes, and goes on once read from."""
    reader = FrameReader(Limits(body_bytes_max=0, buffered_bytes_max=2 * len(NOOP)))
    reader.receive(NOOP + NOOP)
    with pytest.raises(LocalProtocolError, match="48 bytes wait to be read; 1 more would pass the limit of 48"):
        reader.receive(b"\x80")
    assert len(taken(reader)) == 2
    reader.receive(NOOP)
    assert len(taken(reader)) == 1


class CountingBuffer(bytearray):
    """A buffer that counts the bytes it has to move when its front is dropped."""

    moved = 0

    def __delitem__(self, place: Any) -> None:
        super().__delitem__(place)
        self.moved += len(self)


def counted_reader() -> tuple[FrameReader, CountingBuffer]:
    """A reader whose buffer counts."""
    reader = FrameReader()
    buffer = CountingBuffer()
    reader._buffer = buffer
    return reader, buffer


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, 1 << 20])
def test_time_is_linear(piece_bytes: int, monkeypatch: pytest.MonkeyPatch):
    """Each header is parsed once and each byte moves at most once, however large the pieces are."""
    parsed = 0
    parse = Header.parse

    def counting(data: Any, start: int = 0) -> Header:
        nonlocal parsed
        parsed += 1
        return parse(data, start)

    monkeypatch.setattr(Header, "parse", counting)
    draw = random.Random(1)
    frames = [header(body_length=size) + bytes(size) for size in draw.choices([0, 1, 30, 500, 9000], k=150)]
    whole = b"".join(frames)
    reader, buffer = counted_reader()
    found = 0
    for start in range(0, len(whole), piece_bytes):
        reader.receive(whole[start : start + piece_bytes])
        found += len(taken(reader))
    assert found == parsed == len(frames)
    assert buffer.moved <= len(whole)


def test_what_was_taken_is_let_go():
    """The buffer is never larger than twice what still waits in it, or that and a fixed slack."""
    reader, buffer = counted_reader()
    frame = header(body_length=1000) + bytes(1000)
    reader.receive(frame * 2000)
    compacted = 0
    while reader.next_frame() is not NEED_DATA:
        waiting = reader.buffered_bytes
        assert len(buffer) <= max(2 * waiting, waiting + _COMPACT_BYTES)
        compacted += len(buffer) == waiting
    assert compacted > 2
    assert buffer.moved <= 2000 * len(frame)
    assert len(buffer) == 0


def test_a_short_header_is_waited_for():
    """A reader with less than a header has no opinion yet, whatever the first byte is."""
    reader = FrameReader()
    reader.receive(b"\x55" * (HEADER_BYTES - 1))
    assert reader.next_frame() is NEED_DATA
