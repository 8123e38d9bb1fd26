"""A record: one item as memory and disk keep it, which is its DCP message.

A live item is a mutation with 31 bytes of extras, a tombstone a deletion with its delete time (21 bytes) or an
expiration (20). The opaque is 0, the vbucket and the CAS stand in the header. So a stream that reads from disk copies
bytes and patches an opaque; nothing is encoded twice. Every place in a record comes from the catalogue.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from headrace.ids import Cas, Seqno, VBucketId
from headrace.store.places import Places
from headrace.wire import Dialect
from headrace.wire.catalogue import Deletion, Expiration, Mutation
from headrace.wire.codes import Magic
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    from headrace.wire.message import Layout, Request

_HEADER = ">BBHBBHIIQ"
_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def _layout(message: type[Request], name: str, dialect: Dialect = Dialect.DCP) -> Layout:
    return next(one for one in message.spec.layouts[dialect] if one.name == name)


def _struct(message: type[Request], layout: Layout) -> Struct:
    names = (*layout.extras, *layout.engine)
    return Struct(_HEADER + "".join(_WIDTHS[message.spec.integer(name).size] for name in names))


def head_of(message: type[Request], layout: str, dialect: Dialect = Dialect.DCP) -> Struct:
    """Header, extras and what TAP has behind them of a message in one of its layouts, as the catalogue has them."""
    return _struct(message, _layout(message, layout, dialect))


_MUTATION = _layout(Mutation, "31 bytes")
_DELETION = _layout(Deletion, "v2")
_EXPIRATION = _layout(Expiration, "v2")

LIVE = Mutation.spec.opcodes[Dialect.DCP]
DELETED = Deletion.spec.opcodes[Dialect.DCP]
EXPIRED = Expiration.spec.opcodes[Dialect.DCP]
KINDS = frozenset({LIVE, DELETED, EXPIRED})

MUTATION = _struct(Mutation, _MUTATION)
"""Header and extras of a live item; key and value follow."""
MUTATION_PLAIN = Struct(_HEADER + "QQII7x")
"""The same for an item without lock and metadata, whose last three fields are zeros."""
DELETION = _struct(Deletion, _DELETION)
EXPIRATION = _struct(Expiration, _EXPIRATION)

MUTATION_EXTRAS_BYTES = MUTATION.size - HEADER_BYTES
# Places in the header, as the drawing in wire.header has them.
OPCODE_AT = 1
EXTRAS_BYTES_AT = 4
DATATYPE_AT = 5
BODY_BYTES_AT = 8
OPAQUE_AT = 12
CAS_AT = 16
CAS_END = 24
SEQNO_AT = HEADER_BYTES + Mutation.spec.extras_offset(_MUTATION, "by_seqno")
SEQNO_END = SEQNO_AT + 8
assert MUTATION_PLAIN.size == MUTATION.size
REVISION = Struct(">Q")
REVISION_AT = HEADER_BYTES + Mutation.spec.extras_offset(_MUTATION, "rev_seqno")
FLAGS_AT = HEADER_BYTES + Mutation.spec.extras_offset(_MUTATION, "flags")
FLAGS_END = EXPIRY_AT = HEADER_BYTES + Mutation.spec.extras_offset(_MUTATION, "expiry")
EXPIRY_END = EXPIRY_AT + 4
DELETE_TIME_AT = HEADER_BYTES + Deletion.spec.extras_offset(_DELETION, "delete_time")

HEAD = Struct(_HEADER + "QQ")
"""Header, seqno and revision: what every kind of record begins with."""

_SIZES = Struct(">HBxxxI")  # key length, extras length, body length
_CAS = Struct(">Q")
_SEQNO = Struct(">Q")
_TIME = Struct(">I")
_STRUCTS = {LIVE: MUTATION, DELETED: DELETION, EXPIRED: EXPIRATION}

PLACES = Places(
    head=">BBHBxHI12xQ",  # as _HEADER, without what no check looks at, and the seqno behind it
    magic=Magic.REQUEST,
    live=LIVE,
    extras_bytes={opcode: layout.size - HEADER_BYTES for opcode, layout in _STRUCTS.items()},
    header_bytes=HEADER_BYTES,
    body_bytes_at=BODY_BYTES_AT,
    seqno_at=SEQNO_AT,
    expiry_at=EXPIRY_AT,
    delete_time_at=DELETE_TIME_AT,
)
"""What a process that does not import the catalogue must know of records."""


class Record(NamedTuple):
    """A record, read. `opcode` tells the kind: LIVE, DELETED or EXPIRED."""

    opcode: int
    vbucket: VBucketId
    key: bytes
    value: bytes
    datatype: int
    cas: Cas
    seqno: Seqno
    rev_seqno: int
    flags: int = 0
    expiry: int = 0
    delete_time: int = 0

    @property
    def live(self) -> bool:
        """Whether this is an item, and not the trace of one."""
        return self.opcode == LIVE

    def pack(self) -> bytes:
        """Give the bytes of the record."""
        if self.opcode == LIVE:
            extras: tuple[int, ...] = (self.flags, self.expiry, 0, 0, 0)
        else:
            extras = (self.delete_time, 0) if self.opcode == DELETED else (self.delete_time,)
        layout = _STRUCTS[self.opcode]
        extras_bytes = layout.size - HEADER_BYTES
        head = layout.pack(
            Magic.REQUEST,
            self.opcode,
            len(self.key),
            extras_bytes,
            self.datatype,
            self.vbucket,
            extras_bytes + len(self.key) + len(self.value),
            0,
            self.cas,
            self.seqno,
            self.rev_seqno,
            *extras,
        )
        return head + self.key + self.value


def unpack(record: bytes) -> Record:
    """Read a record."""
    opcode = record[OPCODE_AT]
    layout = _STRUCTS[opcode]
    _, _, key_bytes, _, datatype, vbucket, _, _, cas, seqno, rev_seqno, *extras = layout.unpack_from(record)
    value_at = layout.size + key_bytes
    flags, expiry, delete_time = (extras[0], extras[1], 0) if opcode == LIVE else (0, 0, extras[0])
    return Record(
        opcode,
        VBucketId(vbucket),
        record[layout.size : value_at],
        record[value_at:],
        datatype,
        Cas(cas),
        Seqno(seqno),
        rev_seqno,
        flags,
        expiry,
        delete_time,
    )


def key_of(record: bytes) -> bytes:
    """The key of a record."""
    key_bytes, extras_bytes, _ = _SIZES.unpack_from(record, 2)
    start = HEADER_BYTES + extras_bytes
    return record[start : start + key_bytes]


def seqno_of(record: bytes) -> Seqno:
    """The seqno of a record."""
    return Seqno(_SEQNO.unpack_from(record, SEQNO_AT)[0])


def cas_of(record: bytes) -> Cas:
    """The CAS of a record."""
    return Cas(_CAS.unpack_from(record, CAS_AT)[0])


def length_of(data: bytes | memoryview, start: int) -> int:
    """How many bytes the record at `start` has."""
    size: int = HEADER_BYTES + _SIZES.unpack_from(data, start + 2)[2]
    return size


def expiry_of(live: bytes) -> int:
    """When a live item ends, in seconds of the epoch; 0 for never."""
    seconds: int = _TIME.unpack_from(live, EXPIRY_AT)[0]
    return seconds


def delete_time_of(tombstone: bytes) -> int:
    """When the item was removed, in seconds of the epoch."""
    seconds: int = _TIME.unpack_from(tombstone, DELETE_TIME_AT)[0]
    return seconds
