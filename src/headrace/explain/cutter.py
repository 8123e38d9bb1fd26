"""Bytes of one direction cut into messages by their headers, whatever state they are in.

There are two manners, for two kinds of piece.

A *whole* piece was cut by somebody: a hex string, a line of a capture, a small file. Its ends mean
something, so a message may contradict its header: what follows it and begins no other message belongs to
it, and what ends early is shown as far as it goes. (Thirteen of the messages drawn in the protocol
documents are such.) Only a header that promises more than any server takes ends where the next message that
makes sense begins.

A piece of a *stream* has chance ends. There the header is believed; bytes that begin no message, or that
are missing, are counted and reported, and reading goes on at the next header that makes sense. Where the
missing bytes lie inside one message, its header says where the next one begins.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.explain.events import Piece, counted
from headrace.explain.headers import find_message, is_plausible, is_proven, promises_too_much, starts_message
from headrace.wire import message_length
from headrace.wire.header import MAGICS
from headrace.wire.limits import HEADER_BYTES

SHOWN_GARBAGE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One message, or (`readable` false) a stretch without one; `note` says what happened to it."""

    data: bytes
    origin: str
    readable: bool = True
    note: str = ""


class Cutter:
    """One direction of one conversation. Feed it pieces in order; it yields what they complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._pieces: deque[tuple[int, Piece]] = deque()  # where in the whole stream each piece began
        self._base = 0  # the place of the buffer's first byte in the whole stream
        self._skip = 0  # bytes still to come that belong to a message already reported
        self._lost: _Lost | None = None
        self._half = bytearray()  # a whole piece that ended too early, and
        self._half_origin = ""  # where it came from

    def feed(self, piece: Piece) -> Iterator[Cut]:
        """Take the next piece."""
        if piece.whole:
            yield from self._feed_whole(piece)
            return
        self._append(piece)
        yield from self._cut_stream(complete=False)
        if piece.missing:
            yield from self._miss(piece.missing, piece.origin)

    def finish(self) -> Iterator[Cut]:
        """No more bytes will come: give out what is left."""
        if self._half:
            yield self._take_half()
        yield from self._cut_stream(complete=True)
        if self._buffer:
            yield Cut(data=bytes(self._buffer), origin=self._origin())
            self._drop(len(self._buffer))
        yield from self._report_lost()

    # Whole pieces.

    def _feed_whole(self, piece: Piece) -> Iterator[Cut]:
        data, first, before = piece.data, piece.place(0), 0
        if self._half and is_plausible(data):
            yield self._take_half()
        elif self._half:
            before = len(self._half)
            self._half += data
            length = message_length(bytes(self._half[:HEADER_BYTES]))
            if length is None or length > len(self._half):
                return
            joined = self._take_half()
            data, first = joined.data, joined.origin
        at = 0
        while at < len(data):
            origin = piece.place(at - before) if at else first  # the half ends inside the first message
            if data[at] not in MAGICS:  # only at the front: later bytes belong to the message before them
                start = find_message(data, at, complete=True)
                if start is None:
                    yield Cut(data=data[at:], origin=origin)
                    return
                yield _garbage(start - at, data[at:start], origin)
                at = start
                continue
            length = message_length(data[at : at + HEADER_BYTES])
            if promises_too_much(length) and (start := find_message(data, at + 1, complete=True)):
                yield Cut(data=data[at:start], origin=origin)
                at = start
                continue
            if length is None or at + length > len(data):
                self._half += data[at:]
                self._half_origin = origin
                return
            end = at + length
            if end < len(data) and not starts_message(data, end):
                end = find_message(data, end, complete=True) or len(data)
            yield Cut(data=data[at:end], origin=origin)
            at = end

    def _take_half(self) -> Cut:
        cut = Cut(data=bytes(self._half), origin=self._half_origin)
        self._half.clear()
        return cut

    # Streams.

    def _append(self, piece: Piece) -> None:
        skipped = min(self._skip, len(piece.data))
        self._skip -= skipped
        start = self._base + len(self._buffer)
        self._base += skipped  # whoever skips has emptied the buffer
        fresh = piece.data[skipped:]
        if fresh:
            self._pieces.append((start, piece))
            self._buffer += fresh

    def _origin(self) -> str:
        """Name the place of the buffer's first byte."""
        while len(self._pieces) > 1 and self._pieces[1][0] <= self._base:
            self._pieces.popleft()
        if not self._pieces:
            return ""
        start, piece = self._pieces[0]
        return piece.place(self._base - start)

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self._base += count

    def _cut_stream(self, *, complete: bool) -> Iterator[Cut]:
        while self._buffer:
            if self._lost is not None or not self._is_header():
                if not self._seek(complete=complete):
                    return
                yield from self._report_lost()
            length = message_length(bytes(self._buffer[:HEADER_BYTES]))
            if length is None or length > len(self._buffer):
                return
            yield Cut(data=bytes(self._buffer[:length]), origin=self._origin())
            self._drop(length)

    def _is_header(self) -> bool:
        """Believe a header that begins with a magic, as long as its message could exist."""
        return self._buffer[0] in MAGICS and not promises_too_much(message_length(bytes(self._buffer[:HEADER_BYTES])))

    def _seek(self, *, complete: bool) -> bool:
        """Drop what precedes the next message, and tell whether that one is certain enough to be read."""
        start = find_message(self._buffer, 0, complete=complete)
        end = len(self._buffer) if start is None else start
        if self._lost is None:
            self._lost = _Lost(self._origin())
        self._lost.add(bytes(self._buffer[: min(end, SHOWN_GARBAGE_BYTES)]), end)
        self._drop(end)
        return start is not None and (complete or is_proven(self._buffer, 0))

    def _miss(self, missing: int, origin: str) -> Iterator[Cut]:
        """Go on after a hole in the stream."""
        note = f"{counted(missing, 'byte')} {'is' if missing == 1 else 'are'} missing from the input here"
        if self._skip:  # the hole lies in a message that was reported already, or begins there
            self._skip, missing = max(0, self._skip - missing), max(0, missing - self._skip)
            if not missing:
                return
        length = message_length(bytes(self._buffer[:HEADER_BYTES]))
        if self._buffer and self._lost is None and length is not None:
            yield Cut(data=bytes(self._buffer), origin=self._origin(), note=note)
            left = length - len(self._buffer) - missing
            if left >= 0:
                self._skip = left
            else:
                self._lost = _Lost(origin)
        else:
            yield from self._report_lost()
            yield Cut(data=bytes(self._buffer), origin=origin, readable=False, note=note)
            self._lost = _Lost(origin)
        self._base += missing
        self._drop(len(self._buffer))

    def _report_lost(self) -> Iterator[Cut]:
        if self._lost is not None and self._lost.count:
            yield _garbage(self._lost.count, bytes(self._lost.shown), self._lost.origin)
        self._lost = None


class _Lost:
    """What was passed over since the last message: how much, and how it began."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.count = 0
        self.shown = bytearray()

    def add(self, data: bytes, count: int) -> None:
        self.shown += data[: SHOWN_GARBAGE_BYTES - len(self.shown)]
        self.count += count


def _garbage(count: int, data: bytes, origin: str) -> Cut:
    byte = "byte begins" if count == 1 else "bytes begin"
    return Cut(
        data=data[:SHOWN_GARBAGE_BYTES],
        origin=origin,
        readable=False,
        note=f"{count} {byte} no message; reading goes on at the next header that makes sense",
    )
