"""Answers as bytes, for the paths that cannot afford a message object each."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from headrace.wire.codes import Magic

if TYPE_CHECKING:
    from headrace.node.refused import Refused

_HEAD = Struct(">BBHBBHIIQ")
_HEAD_NO_CAS = Struct(">BBHBBHII")
_WITH_SEQNO = Struct(">BBHBBHIIQQQ")
_RESPONSE = int(Magic.RESPONSE)
_SEQNO_BYTES = 16
_FLAGS_BYTES = 4

pack_head = _HEAD.pack


def done(opcode: int, opaque: int, cas: int) -> bytes:
    """Success, with nothing but a CAS."""
    return pack_head(_RESPONSE, opcode, 0, 0, 0, 0, 0, opaque, cas)


def done_at(opcode: int, opaque: int, cas: int, vbuuid: int, seqno: int) -> bytes:
    """Success, and which change it was."""
    return _WITH_SEQNO.pack(_RESPONSE, opcode, 0, _SEQNO_BYTES, 0, 0, _SEQNO_BYTES, opaque, cas, vbuuid, seqno)


def item(opcode: int, opaque: int, datatype: int, cas: bytes, flags: bytes, key: bytes, value: bytes) -> bytes:  # noqa: PLR0913, PLR0917 - the hot path
    """An item; CAS and flags come as they lie in the record."""
    body_bytes = _FLAGS_BYTES + len(key) + len(value)
    head = _HEAD_NO_CAS.pack(_RESPONSE, opcode, len(key), _FLAGS_BYTES, datatype, 0, body_bytes, opaque)
    return b"".join((head, cas, flags, key, value))


def error(opcode: int, opaque: int, refused: Refused) -> bytes:
    """A refusal: no CAS, no extras, no key; memccapable checks each."""
    text = refused.text.encode()
    return pack_head(_RESPONSE, opcode, 0, 0, 0, refused.status, len(text), opaque, 0) + text
