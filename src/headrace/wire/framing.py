"""Bytes in any pieces -> frames.

The reader keeps what was not yet taken in one buffer and looks at each byte a fixed number of times, whatever the
pieces were. It holds no more than it was fed and not yet asked for, within `Limits.buffered_bytes_max`; a header that
promises too much is refused when it is seen, before its body is waited for.
"""

from __future__ import annotations

from enum import Enum

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.header import Frame, Header
from headrace.wire.limits import HEADER_BYTES, Limits

_COMPACT_BYTES = 64 * 1024


class NeedData(Enum):
    """The answer of a reader that can say nothing before it is fed more."""

    NEED_DATA = "need data"


NEED_DATA = NeedData.NEED_DATA


class FrameReader:
    """Cuts one direction of one connection into frames.

    >>> reader = FrameReader()
    >>> reader.receive(bytes.fromhex("800a0000000000000000000000000007"))
    >>> reader.next_frame()
    <NeedData.NEED_DATA: 'need data'>
    >>> reader.receive(bytes(8))
    >>> reader.next_frame().header.opaque
    7
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._buffer = bytearray()
        self._start = 0
        self._consumed_bytes = 0
        self._header: Header | None = None
        self._error: tuple[str, int] | None = None

    @property
    def buffered_bytes(self) -> int:
        """What was received and not yet given out."""
        return len(self._buffer) - self._start

    @property
    def offset(self) -> int:
        """Where the next frame begins, counted from the first byte ever received."""
        return self._consumed_bytes

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes from the peer; to feed on without taking frames out is the caller's mistake."""
        if self.buffered_bytes + len(data) > self._limits.buffered_bytes_max:
            raise LocalProtocolError(
                f"{self.buffered_bytes} bytes wait to be read; {len(data)} more would pass the limit of "
                f"{self._limits.buffered_bytes_max}: take frames out first"
            )
        self._buffer += data

    def next_frame(self) -> Frame | NeedData:
        """Give the next whole frame. After bytes that cannot be one, the same error comes for ever."""
        if self._error:
            raise RemoteProtocolError(self._error[0], offset=self._error[1])
        if self._header is None and not self._read_header():
            return NEED_DATA
        header = self._header
        assert header is not None
        end = self._start + HEADER_BYTES + header.body_length
        if len(self._buffer) < end:
            return NEED_DATA
        body = bytes(memoryview(self._buffer)[self._start + HEADER_BYTES : end])
        self._consumed_bytes += end - self._start
        self._start = end
        self._header = None
        self._compact()
        return Frame(header, body)

    def _read_header(self) -> bool:
        if self.buffered_bytes < HEADER_BYTES:
            return False
        header = Header.parse(self._buffer, self._start)
        problem = header.problem(self._limits.body_bytes_max)
        if problem:
            self._error = problem[1], self._consumed_bytes + problem[0]
            self._buffer.clear()
            self._start = 0
            raise RemoteProtocolError(self._error[0], offset=self._error[1])
        self._header = header
        return True

    def _compact(self) -> None:
        """Drop what was given out, once it is more than half: each byte moves at most once on the average."""
        if self._start == len(self._buffer) or self._start > max(_COMPACT_BYTES, len(self._buffer) // 2):
            del self._buffer[: self._start]
            self._start = 0
