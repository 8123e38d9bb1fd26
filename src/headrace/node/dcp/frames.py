"""Records to the frames that a consumer agreed on.

A record is a DCP mutation, deletion with its time, or expiration, with opaque 0: for a consumer that takes items in
this form a stream is a copy with another opaque, and that is done in place by a compiled loop. Everything else (UPR's
30 bytes, the draft's 28, deletions without a time, no values, no xattrs, inflated or compressed values, extended
metadata) is made frame by frame.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from array import array
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Any

from headrace.node.values import JSON, SNAPPY, XATTR, body_of
from headrace.store import StoreError
from headrace.store.records import (
    BODY_BYTES_AT,
    DATATYPE_AT,
    DELETED,
    EXPIRED,
    KINDS,
    LIVE,
    OPAQUE_AT,
    OPCODE_AT,
    SEQNO_AT,
    SEQNO_END,
    Record,
    head_of,
    unpack,
)
from headrace.wire import Dialect, deflate, inflate
from headrace.wire.catalogue import Deletion, Expiration, Mutation
from headrace.wire.codes import Magic
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.ids import Opaque

log = logging.getLogger("headrace.node.dcp.frames")

(A_DATA, A_AT, A_END, A_BUDGET, A_OPAQUE, A_DATATYPES, A_LIVE, A_DELETED, A_EXPIRED, A_SEQNO, ARGUMENTS) = range(11)

EXT_METADATA = bytes.fromhex("0102000100")
"""What servers append when `enable_ext_metadata` is on: version 1, one field (2), one byte long, 0 (capture 06d)."""
COMPRESS_BYTES_MIN = 32
CONVERTED_MAX = 256
"""How many frames are made anew before it is the turn of others: each takes as long as thousands of copied bytes."""
_ITEM, _ITEM_UPR = head_of(Mutation, "31 bytes"), head_of(Mutation, "30 bytes", Dialect.UPR)
_ITEM_DRAFT = head_of(Mutation, "28 bytes", Dialect.UPR_DRAFT)
"""The draft gives removals the same fields: what the item had, which is nothing."""
_OF_DRAFT = {
    kind: message.spec.opcodes[Dialect.UPR_DRAFT]
    for kind, message in ((LIVE, Mutation), (DELETED, Deletion), (EXPIRED, Expiration))
}
_REMOVAL, _DELETED_AT, _EXPIRED_AT = head_of(Deletion, "v1"), head_of(Deletion, "v2"), head_of(Expiration, "v2")
_UINT32 = Struct(">I")
_UINT64 = Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What items look like on a connection."""

    dialect: Dialect = Dialect.DCP
    delete_times: bool = False
    expiry_opcode: bool = False
    xattrs: bool = False
    snappy: bool = False
    no_value: bool = False
    keeps_datatype: bool = False
    ext_metadata: bool = False
    force_compression: bool = False

    @property
    def datatypes(self) -> int:
        """The bits of a datatype that may be sent. JSON is told without having been agreed on (capture 01a)."""
        if self.dialect is Dialect.UPR_DRAFT:
            return 0
        return JSON | (SNAPPY if self.snappy else 0) | (XATTR if self.xattrs else 0)

    @property
    def copies(self) -> tuple[bool, bool, bool]:
        """Whether live items, deletions and expirations go out as they are kept."""
        plain = (
            self.dialect is Dialect.DCP and not self.no_value and not self.ext_metadata and not self.force_compression
        )
        return plain, plain and self.delete_times, plain and self.delete_times and self.expiry_opcode


class Framer:
    """Makes the frames of one connection. `last_seqno` is that of the last one made."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.last_seqno = 0
        self.converted = 0
        """How many frames the last `take` made anew."""
        self._args = args = array("q", bytes(8 * ARGUMENTS))
        self._address = args.buffer_info()[0]
        args[A_DATATYPES] = shape.datatypes
        args[A_LIVE], args[A_DELETED], args[A_EXPIRED] = map(int, shape.copies)
        self._copies = shape.copies[0]

    def take(
        self, block: bytearray | memoryview, at: int, budget: int, opaque: Opaque
    ) -> tuple[list[memoryview | bytes], int, int]:
        """Make frames of the records from a place on, until they have `budget` bytes or more, or enough work was done.

        Gives the pieces to send, how many bytes they are, and where to go on. The block must not be changed after.
        """
        pieces: list[memoryview | bytes] = []
        size, end = 0, len(block)
        view = memoryview(block)
        self.converted = 0
        while at < end and size < budget and self.converted < CONVERTED_MAX:
            start = at
            if self._copies:
                at = self._patch(block, at, budget - size, opaque)
                if at > start:
                    pieces.append(view[start:at])
                    size += at - start
                    continue
            record, at = record_at(view, start)
            self.last_seqno = record.seqno
            piece = convert(record, self.shape, opaque)
            pieces.append(piece)
            size += len(piece)
            self.converted += 1
        return pieces, size, at

    def _patch(self, block: bytearray | memoryview, at: int, budget: int, opaque: int) -> int:
        """Give frames their opaque where they lie; stop behind the budget, and before one that must be made anew."""
        patch = kernel()
        if patch is None:
            return self._patch_plainly(block, at, budget, opaque)
        args = self._args
        args[A_DATA] = ctypes.addressof(ctypes.c_char.from_buffer(block))
        args[A_AT], args[A_END], args[A_BUDGET] = at, len(block), budget
        args[A_OPAQUE] = int.from_bytes(_UINT32.pack(opaque), "little")
        patch(self._address)
        if args[A_AT] > at:
            self.last_seqno = args[A_SEQNO]
        return args[A_AT]

    def _patch_plainly(self, block: bytearray | memoryview, at: int, budget: int, opaque: int) -> int:
        """The same without the compiled loop."""
        copies = dict(zip((LIVE, DELETED, EXPIRED), self.shape.copies, strict=True))
        refused = ~self.shape.datatypes & 0xFF
        stop, end = at + budget, len(block)
        while at + SEQNO_END <= end and at < stop:
            after = at + HEADER_BYTES + _UINT32.unpack_from(block, at + BODY_BYTES_AT)[0]
            is_copied = copies.get(block[at + OPCODE_AT], False) and not block[at + DATATYPE_AT] & refused
            if not is_copied or not at + SEQNO_END <= after <= end:
                break
            _UINT32.pack_into(block, at + OPAQUE_AT, opaque)
            self.last_seqno = _UINT64.unpack_from(block, at + SEQNO_AT)[0]
            at = after
        return at


def record_at(view: memoryview, start: int) -> tuple[Record, int]:
    """The record at a place, and where it ends; what is none is a fault of the disk."""
    end = start + HEADER_BYTES
    if end <= len(view) and view[start + OPCODE_AT] in KINDS:
        end += _UINT32.unpack_from(view, start + BODY_BYTES_AT)[0]
        with contextlib.suppress(struct_error):
            if end <= len(view):
                return unpack(bytes(view[start:end])), end
    raise StoreError("the store is damaged: what stands in the place of a record is none")


def convert(record: Record, shape: Shape, opaque: Opaque) -> bytes:
    """The frame of a record in a shape of its own."""
    value, datatype = _value(record, shape)
    meta = EXT_METADATA if shape.ext_metadata else b""
    opcode, head, extras = _head(record, shape, len(meta))
    key = record.key
    extras_bytes = head.size - HEADER_BYTES
    body_bytes = extras_bytes + len(key) + len(value) + len(meta)
    packed = head.pack(
        Magic.REQUEST, opcode, len(key), extras_bytes, datatype, record.vbucket, body_bytes, opaque, record.cas,
        record.seqno, record.rev_seqno, *extras,
    )  # fmt: skip
    return b"".join((packed, key, value, meta))


def _head(record: Record, shape: Shape, meta_bytes: int) -> tuple[int, Struct, tuple[int, ...]]:
    """Opcode, form and last extras of a frame; what stands before them is the same for all."""
    if shape.dialect is Dialect.UPR_DRAFT:
        return _OF_DRAFT[record.opcode], _ITEM_DRAFT, (record.flags, record.expiry, 0)
    if record.live:
        item = (record.flags, record.expiry, 0, meta_bytes)
        return (LIVE, _ITEM_UPR, item) if shape.dialect is Dialect.UPR else (LIVE, _ITEM, (*item, 0))
    tells_expiry = record.opcode == EXPIRED and shape.expiry_opcode
    opcode = EXPIRED if tells_expiry else DELETED
    # Metadata and a delete time exclude each other: they are two versions of the message.
    if not shape.delete_times or meta_bytes or shape.dialect is Dialect.UPR:
        return opcode, _REMOVAL, (meta_bytes,)
    return (
        (opcode, _EXPIRED_AT, (record.delete_time,)) if tells_expiry else (opcode, _DELETED_AT, (record.delete_time, 0))
    )


def _value(record: Record, shape: Shape) -> tuple[bytes, int]:
    """The value that a consumer gets, and its datatype."""
    value, datatype = record.value, record.datatype
    if shape.dialect is Dialect.UPR_DRAFT:  # which knows values alone
        return (body_of(value, datatype)[1] if record.live and value else b""), 0
    if not value:
        return value, datatype & JSON
    if shape.no_value:
        kept = body_of(value, datatype)[0] if datatype & XATTR and shape.xattrs else b""
        told = datatype & (JSON | XATTR) if shape.keeps_datatype else 0
        return kept, told | XATTR if kept else told & ~XATTR
    if datatype & XATTR and not shape.xattrs:
        value, datatype = body_of(value, datatype)[1], datatype & JSON
    elif datatype & SNAPPY and not shape.snappy:
        value, datatype = inflate(value), datatype & ~SNAPPY
    if shape.force_compression and not datatype & SNAPPY and len(value) >= COMPRESS_BYTES_MIN:
        smaller = deflate(value)
        if len(smaller) < len(value):
            return smaller, datatype | SNAPPY
    return value, datatype


_LOADED: list[Any] = []
_LOADING = threading.Lock()


def kernel() -> Callable[[int], None] | None:
    """The compiled loop, if it is loaded."""
    return _LOADED[0][0] if _LOADED else None


def load() -> None:
    """Load the compiled loop, once a process; the first time on a machine that takes seconds."""
    from headrace.columns.machine import Program, load_program  # noqa: PLC0415 - not before the node serves

    made_of = ("headrace.node.dcp.frames", "headrace.store.records", "headrace.wire.catalogue")
    program = Program("frames", "headrace.node.dcp.frames_kernel", ("patch",), made_of)
    with _LOADING:
        if _LOADED:
            return
        try:
            (patch,), engine = load_program(program)
        except Exception:
            log.exception("streams are made without the compiled loop")
            return
        _LOADED.append((patch, engine))
