"""A counted view of a file or of standard input: it can look ahead, and it stops at the size limit."""

from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.explain.events import InputError
from headrace.explain.limits import FILE_BYTES_MAX, LINE_BYTES_MAX, SPLIT_CAPTURE, size

CHUNK_BYTES = 1 << 18
_MAGIC_BYTES = 4


class ByteStream(Protocol):
    """What a source reads from: any buffered binary file."""

    def read1(self, size: int, /) -> bytes:
        """Give what is there, at most `size` bytes; nothing only where the input ends."""


class Source:
    """Reads `stream` from front to back. `offset` is how many bytes were taken out of it."""

    def __init__(self, stream: ByteStream, name: str, *, on_read: Callable[[int], None] | None = None) -> None:
        self.name = name
        self.offset = 0
        self._stream = stream
        self._ahead = b""
        self._on_read = on_read

    def peek(self, count: int) -> bytes:
        """Look at the next bytes, fewer than `count` only where the input ends."""
        if len(self._ahead) < count:
            parts, lacking = [self._ahead], count - len(self._ahead)
            while lacking and (more := self._stream.read1(lacking)):
                parts.append(more)
                lacking -= len(more)
            self._ahead = b"".join(parts)
        return self._ahead[:count]

    def glance(self, count: int) -> bytes:
        """Look at what is there now, enough to know a file by: a live capture may take its time for more."""
        if len(self.peek(_MAGIC_BYTES)) == _MAGIC_BYTES and len(self._ahead) < count:
            self._ahead += self._stream.read1(count - len(self._ahead))
        return self._ahead[:count]

    def read(self, count: int) -> bytes:
        """Take the next bytes, fewer than `count` only where the input ends."""
        found = self.peek(count)
        self._ahead = self._ahead[len(found) :]
        self._count(len(found))
        return found

    def chunks(self) -> Iterator[bytes]:
        """Take everything, in pieces of a size that suits memory."""
        while chunk := self._ahead or self._stream.read1(CHUNK_BYTES):
            self._ahead = b""
            self._count(len(chunk))
            yield chunk

    def rest(self, limit_bytes: int, way_out: str) -> bytes:
        """Take everything at once, if it is within the limit; if not, tell the way out."""
        found = self.read(limit_bytes + 1)
        if len(found) > limit_bytes:
            raise InputError(f"{self.name} is longer than {size(limit_bytes)}, the most for hex; {way_out}")
        return found

    def lines(self) -> Iterator[bytes]:
        """Take everything line by line. What was looked at ahead comes first."""
        carry = b""
        for chunk in self.chunks():
            *whole, carry = (carry + chunk).split(b"\n")
            yield from whole
            if len(carry) > LINE_BYTES_MAX:
                raise InputError(
                    f"{self.name} has a line longer than {size(LINE_BYTES_MAX)}, the most for a line of a capture; "
                    "write each message on a line of its own"
                )
        if carry:
            yield carry

    def _count(self, taken: int) -> None:
        self.offset += taken
        if self.offset > FILE_BYTES_MAX:
            raise InputError(too_long(self.name, FILE_BYTES_MAX))
        if self._on_read is not None:
            self._on_read(taken)


def too_long(name: str, limit_bytes: int) -> str:
    """Say that an input goes past its limit, and what to do."""
    return (
        f"{name} is longer than {size(limit_bytes)}, the most that is read from one input; "
        f"split it, a packet capture with: {SPLIT_CAPTURE}"
    )
