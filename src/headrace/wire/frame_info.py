"""The framing extras of a flexible header (magics 0x08 and 0x18): a row of small tagged objects.

Each begins with a byte of two halves, id and length. A half of 15 is an escape: the next byte, plus 15, is meant; the
id's comes before the length's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

_ESCAPE = 15
_ESCAPED_MAX = _ESCAPE + 0xFF


class FrameInfo(NamedTuple):
    """One object: what it is (`codes.RequestFrameInfo` or `codes.ResponseFrameInfo`), and its bytes."""

    id: int
    data: bytes


def split_frame_infos(framing: bytes) -> tuple[FrameInfo, ...]:
    """Part the framing extras of a message into their objects."""
    infos = []
    at = 0
    while at < len(framing):
        begin = at
        number, length = divmod(framing[at], 16)
        at += 1
        escapes = (number == _ESCAPE) + (length == _ESCAPE)
        if at + escapes > len(framing):
            raise RemoteProtocolError("a frame info is cut within its escapes", offset=begin)
        if number == _ESCAPE:
            number += framing[at]
            at += 1
        if length == _ESCAPE:
            length += framing[at]
            at += 1
        if at + length > len(framing):
            left = len(framing) - at
            raise RemoteProtocolError(f"frame info {number} has {length} bytes, {left} are left", offset=begin)
        infos.append(FrameInfo(number, framing[at : at + length]))
        at += length
    return tuple(infos)


def join_frame_infos(infos: Iterable[FrameInfo]) -> bytes:
    """Spell objects as framing extras."""
    framing = bytearray()
    for info in infos:
        if not (0 <= info.id <= _ESCAPED_MAX and len(info.data) <= _ESCAPED_MAX):
            raise LocalProtocolError(f"frame info {info.id} with {len(info.data)} bytes cannot be spelled")
        halves = min(info.id, _ESCAPE), min(len(info.data), _ESCAPE)
        framing.append(halves[0] * 16 + halves[1])
        framing += bytes(
            whole - _ESCAPE for whole, half in zip((info.id, len(info.data)), halves, strict=True) if half == _ESCAPE
        )
        framing += info.data
    return bytes(framing)
