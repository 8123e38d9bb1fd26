"""The 24-byte header and the frame that it heads.

      0       1       2       3       4       5       6       7
    +-------+-------+-------+-------+-------+-------+-------+-------+
    | magic |opcode |  key length   |extras | data- |   vbucket, or |
    |       |       | (see below)   |length | type  | status in 0x81|
    +-------+-------+-------+-------+-------+-------+-------+-------+
    |       total body length       |            opaque             |
    +-------+-------+-------+-------+-------+-------+-------+-------+
    |                              CAS                              |
    +-------+-------+-------+-------+-------+-------+-------+-------+

Magics 0x08 and 0x18 ("flexible framing") split the key length: byte 2 is the length of the framing extras, byte 3
that of the key. The body is framing extras, extras, key, value, in this order; TAP puts its engine-specific bytes
between extras and key and counts them in the body alone.

This file knows no opcode. What a frame means is the catalogue's business.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.codes import Magic
from headrace.wire.limits import HEADER_BYTES

_CLASSIC = struct.Struct(">BBHBBHIIQ")
_FLEXIBLE = struct.Struct(">BBBBBBHIIQ")

FLEXIBLE_MAGICS = frozenset({Magic.FLEXIBLE_REQUEST, Magic.FLEXIBLE_RESPONSE})
REQUEST_MAGICS = frozenset({Magic.REQUEST, Magic.FLEXIBLE_REQUEST})
RESPONSE_MAGICS = frozenset({Magic.RESPONSE, Magic.FLEXIBLE_RESPONSE})
MAGICS = frozenset(Magic)
_KNOWN_MAGIC = tuple(number in MAGICS for number in range(256))


class Header(NamedTuple):
    """The header's numbers. `specific` is the vbucket of a request and the status of a response."""

    magic: int
    opcode: int
    framing_length: int
    key_length: int
    extras_length: int
    datatype: int
    specific: int
    body_length: int
    opaque: int
    cas: int

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, start: int = 0) -> Header:
        """Read the 24 bytes at `start`, whatever they say."""
        if data[start] in FLEXIBLE_MAGICS:
            return cls._make(_FLEXIBLE.unpack_from(data, start))
        magic, opcode, key, extras, datatype, specific, body, opaque, cas = _CLASSIC.unpack_from(data, start)
        return cls(magic, opcode, 0, key, extras, datatype, specific, body, opaque, cas)

    def pack(self) -> bytes:
        """Give the 24 bytes; a number that its field cannot hold is the caller's mistake."""
        try:
            if self.magic in FLEXIBLE_MAGICS:
                return _FLEXIBLE.pack(*self)
            magic, opcode, _, key, extras, datatype, specific, body, opaque, cas = self
            return _CLASSIC.pack(magic, opcode, key, extras, datatype, specific, body, opaque, cas)
        except struct.error as error:
            raise LocalProtocolError(f"the header cannot hold {self}: {error}") from error

    def problem(self, body_bytes_max: int) -> tuple[int, str] | None:
        """Say which byte makes this header impossible, and why; None when a frame can follow."""
        if not _KNOWN_MAGIC[self.magic]:
            return 0, f"0x{self.magic:02x} is no magic of this protocol"
        if self.body_length > body_bytes_max:
            return 8, f"a body of {self.body_length} bytes; this reader takes at most {body_bytes_max}"
        named = self.framing_length + self.extras_length + self.key_length
        if named > self.body_length:
            return 8, f"a body of {self.body_length} bytes; extras and key alone have {named}"
        return None


class Frame(NamedTuple):
    """One header and the body that it announced."""

    header: Header
    body: bytes

    @property
    def framing(self) -> bytes:
        """The framing extras of a flexible header."""
        return self.body[: self.header.framing_length]

    @property
    def extras(self) -> bytes:
        """The extras."""
        start = self.header.framing_length
        return self.body[start : start + self.header.extras_length]

    @property
    def key(self) -> bytes:
        """The key, where no engine-specific bytes stand before it."""
        start = self.header.framing_length + self.header.extras_length
        return self.body[start : start + self.header.key_length]

    @property
    def value(self) -> bytes:
        """All that follows the key."""
        return self.body[self.header.framing_length + self.header.extras_length + self.header.key_length :]

    def pack(self) -> bytes:
        """The frame as it travels."""
        return self.header.pack() + self.body


def whole_frame(data: bytes, *, body_bytes_max: int) -> Frame:
    """Read exactly one frame; anything before its end or after it is refused."""
    if len(data) < HEADER_BYTES:
        raise RemoteProtocolError(f"{len(data)} bytes are no header of {HEADER_BYTES}", offset=len(data))
    header = Header.parse(data)
    problem = header.problem(body_bytes_max)
    if problem:
        raise RemoteProtocolError(problem[1], offset=problem[0])
    if len(data) != HEADER_BYTES + header.body_length:
        raise RemoteProtocolError(
            f"the header announces {HEADER_BYTES + header.body_length} bytes, {len(data)} are there", offset=8
        )
    return Frame(header, bytes(data[HEADER_BYTES:]))
