"""Does a message begin here? The questions that are asked of bytes before anybody tries to read them.

The 24-byte header has little redundancy: a magic, a handful of datatype bits, and lengths that must add up.
That is enough to find the next message after bytes that are lost or make no sense, and weak enough to ask
for more proof where there is more to see: the byte after the message must begin another one.
"""

import re

from headrace.wire import Header, message_length
from headrace.wire.header import FLEXIBLE_MAGICS, MAGICS
from headrace.wire.limits import BODY_BYTES_MAX, HEADER_BYTES

_STRONG_MAGICS = MAGICS - FLEXIBLE_MAGICS
_ANY_MAGIC = re.compile(b"[" + b"".join(re.escape(bytes([magic])) for magic in sorted(MAGICS)) + b"]")
_DATATYPE_BITS = 0x0F


def has_header(data: bytes) -> bool:
    """Tell whether there is a header to read at all, whatever it says."""
    return len(data) >= HEADER_BYTES and data[0] in MAGICS


def promises_too_much(length: int | None) -> bool:
    """Tell whether a message of this length is longer than any that servers take."""
    return length is not None and length > HEADER_BYTES + BODY_BYTES_MAX


def is_plausible(data: bytes | bytearray, at: int = 0) -> bool:
    """Tell whether a header stands at `at` whose parts agree with each other."""
    if len(data) - at < HEADER_BYTES:
        return False
    header = Header.parse(data, at)
    return header.problem(BODY_BYTES_MAX) is None and not header.datatype & ~_DATATYPE_BITS


def may_start(data: bytes) -> bool:
    """Tell whether a conversation may start with these bytes, be they fewer than a header."""
    if len(data) < HEADER_BYTES:
        return bool(data) and data[0] in MAGICS
    return is_plausible(data)


def starts_message(data: bytes, at: int) -> bool:
    """Tell whether what follows a message is another one rather than more of it.

    A byte 0x80-0x83 is taken at its word. 0x08 and 0x18 are too common inside values for that.
    """
    return data[at] in _STRONG_MAGICS or is_plausible(data, at)


def find_message(data: bytes | bytearray, at: int, *, complete: bool) -> int | None:
    """Find the first place from `at` on where a message begins, or None.

    `complete`: no bytes will follow. Otherwise a place that needs later bytes for its proof counts, too: ask
    `is_proven` before relying on it.
    """
    while found := _ANY_MAGIC.search(data, at):
        at = found.start()
        if len(data) - at < HEADER_BYTES:
            return None if complete else at
        if is_plausible(data, at) and _next_agrees(data, at):
            return at
        at += 1
    return None


def is_proven(data: bytes | bytearray, at: int) -> bool:
    """Tell whether the message at `at` is all there and followed by the beginning of another one."""
    length = message_length(bytes(data[at : at + HEADER_BYTES]))
    return length is not None and at + length < len(data)


def _next_agrees(data: bytes | bytearray, at: int) -> bool:
    length = message_length(bytes(data[at : at + HEADER_BYTES]))
    assert length is not None
    return at + length >= len(data) or data[at + length] in MAGICS
