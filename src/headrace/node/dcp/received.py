"""Items as a peer sends them to the records that are kept.

A record is a DCP message of its own (`store.records`), so most frames become one by a patched opaque. What a producer
of another age sends is brought to that form: UPR's mutations of 30 bytes, the draft's of 28, removals without a time,
extended metadata.
Every place in a frame comes from the catalogue.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from headrace.ids import Cas, Seqno, VBucketId
from headrace.node.values import JSON, is_json
from headrace.store.records import (
    DELETED,
    DELETION,
    EXPIRATION,
    EXPIRED,
    LIVE,
    MUTATION,
    OPAQUE_AT,
    Record,
    head_of,
)
from headrace.wire import Dialect
from headrace.wire.catalogue import Deletion, Expiration, Mutation
from headrace.wire.codes import Datatype, Magic
from headrace.wire.limits import HEADER_BYTES, KEY_BYTES_MAX

if TYPE_CHECKING:
    from headrace.wire.message import Layout, Request

HEAD = Struct(">BBHBBHIIQQ")
"""The header, and the seqno that every item begins with."""

KNOWN_DATATYPES = int(Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR)
_META_VERSION = 1
_LENGTH = Struct(">H")
_NO_OPAQUE = bytes(4)


def _size(message: type[Request], dialect: Dialect, name: str) -> tuple[int, int]:
    """How many bytes of extras a layout has, and where among them the length of the metadata stands; -1 for nowhere."""
    layout: Layout = next(one for one in message.spec.layouts[dialect] if one.name == name)
    return message.spec.extras_size(layout), message.spec.extras_offset(layout, "meta_length")


_META_AT: dict[tuple[int, int], int] = {
    (opcode, size): HEADER_BYTES + at if at >= 0 else -1
    for opcode, (size, at) in (
        (LIVE, _size(Mutation, Dialect.DCP, "31 bytes")),
        (LIVE, _size(Mutation, Dialect.UPR, "30 bytes")),
        (DELETED, _size(Deletion, Dialect.DCP, "v1")),
        (DELETED, _size(Deletion, Dialect.DCP, "v2")),
        (EXPIRED, _size(Expiration, Dialect.DCP, "v1")),
        (EXPIRED, _size(Expiration, Dialect.DCP, "v2")),
    )
}
"""Where a kind of item with so many extras has the length of its metadata."""

_KEPT_BYTES = {LIVE: MUTATION.size, DELETED: DELETION.size, EXPIRED: EXPIRATION.size}
_PLAIN_TAIL = MUTATION.size - 7
"""Where lock time, length of metadata and nru of a mutation begin: all zero in a record."""
_MUTATION_TAIL = bytes(7)
_SHARED_BYTES = HEADER_BYTES + 16
"""Header, seqno and revision: what all forms of an item share."""


def plain_record(data: bytes, at: int, end: int) -> bytes | None:
    """The record of a mutation that is one but for its opaque; None for one that `record_of` has to look at."""
    tail = at + _PLAIN_TAIL
    if data[tail : tail + 7] != _MUTATION_TAIL:
        return None
    return b"".join((data[at : at + OPAQUE_AT], _NO_OPAQUE, data[at + OPAQUE_AT + 4 : end]))


def record_of(data: bytes, at: int, end: int, *, now_s: int) -> bytes | None:
    """The record of an item whose frame lies there; None for a frame that can be none.

    A removal that does not say when it was is taken to be of now: tombstones are kept for a time from then.
    """
    _, opcode, key_bytes, extras_bytes, datatype, vbucket, _, _, cas, _ = HEAD.unpack_from(data, at)
    meta_at = _META_AT.get((opcode, extras_bytes))
    if meta_at is None or not 0 < key_bytes <= KEY_BYTES_MAX or datatype & ~KNOWN_DATATYPES:
        return None
    key_at = at + HEADER_BYTES + extras_bytes
    meta_bytes = _LENGTH.unpack_from(data, at + meta_at)[0] if meta_at >= 0 else 0
    value_end = end - meta_bytes
    if key_at + key_bytes > value_end or (meta_bytes and data[value_end] != _META_VERSION):
        return None
    if opcode == EXPIRED and value_end > key_at + key_bytes and not datatype & Datatype.XATTR:
        return None  # capture 07b; what outlives an item are its xattrs
    head = _HEADER.pack(
        Magic.REQUEST,
        opcode,
        key_bytes,
        _KEPT_BYTES[opcode] - HEADER_BYTES,
        datatype,
        vbucket,
        _KEPT_BYTES[opcode] - HEADER_BYTES + value_end - key_at,
        0,
        cas,
    )
    shared = data[at + HEADER_BYTES : at + _SHARED_BYTES]
    return b"".join((head, shared, _rest(data, at, opcode, extras_bytes, now_s), data[key_at:value_end]))


_DRAFT = head_of(Mutation, "28 bytes", Dialect.UPR_DRAFT)
_DRAFT_EXTRAS = _DRAFT.size - HEADER_BYTES
DRAFT_KINDS = {
    message.spec.opcodes[Dialect.UPR_DRAFT]: kind
    for message, kind in ((Mutation, LIVE), (Deletion, DELETED), (Expiration, EXPIRED))
}
"""Which kind of record an item of the draft becomes, by its opcode."""


def draft_record_of(data: bytes, at: int, end: int, *, now_s: int) -> bytes | None:
    """The same for an item of the draft, which has 28 bytes of extras whatever it is, and no datatypes.

    What is JSON is found out, as it is for what clients store.
    """
    key_at = at + _DRAFT.size
    if key_at > end:
        return None
    _, opcode, key_bytes, extras_bytes, _, vbucket, _, _, cas, seqno, revision, flags, expiry, _ = _DRAFT.unpack_from(
        data, at
    )
    kind, value = DRAFT_KINDS[opcode], data[key_at + key_bytes : end]
    is_live = kind == LIVE
    if extras_bytes != _DRAFT_EXTRAS or not 0 < key_bytes <= min(KEY_BYTES_MAX, end - key_at):
        return None
    if value and not is_live:
        return None
    return Record(
        opcode=kind,
        vbucket=VBucketId(vbucket),
        key=data[key_at : key_at + key_bytes],
        value=value,
        datatype=JSON if is_live and is_json(value) else 0,
        cas=Cas(cas),
        seqno=Seqno(seqno),
        rev_seqno=revision,
        flags=flags,
        expiry=expiry,
        delete_time=0 if is_live else now_s & 0xFFFF_FFFF,
    ).pack()


_HEADER = Struct(">BBHBBHIIQ")
_TIME = Struct(">I")


def _rest(data: bytes, at: int, opcode: int, extras_bytes: int, now_s: int) -> bytes:
    """The extras of a record behind seqno and revision."""
    if opcode == LIVE:
        return data[at + _SHARED_BYTES : at + _PLAIN_TAIL] + _MUTATION_TAIL
    told = HEADER_BYTES + extras_bytes == _KEPT_BYTES[opcode]
    removed = data[at + _SHARED_BYTES : at + _SHARED_BYTES + 4] if told else _TIME.pack(now_s & 0xFFFF_FFFF)
    return removed + bytes(_KEPT_BYTES[opcode] - _SHARED_BYTES - 4)
