"""Received bytes -> an Arrow batch of change rows, by the kernel.

One call makes one batch: the kernel counts, one block of memory is taken for all columns, the kernel fills it, and
Arrow arrays are laid over its parts without a copy. Python's work is per batch, not per change.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.columns import slots as s
from headrace.columns.changes import NO_SNAPSHOT, Changes, Controls, Positions, Settings
from headrace.columns.machine import kernel
from headrace.columns.plain import decode_changes as decode_plainly
from headrace.columns.schema import (
    DEFAULT_NAME,
    DELETION,
    EVENTS,
    EXPIRATION,
    FLUSH,
    MUTATION,
    SNAPSHOT_TYPES,
    SYSTEM,
    TEXT_KEYS,
    schema,
)
from headrace.columns.tables import tables
from headrace.errors import RemoteProtocolError
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    import numpy.typing as npt

_ITEMS = (MUTATION, DELETION, EXPIRATION)
_PURE = (0, 1 << MUTATION)
_ALIGN = 64
_HUGE_PAGE = 2 * 1024 * 1024
_CONSTANT_ROWS = 1 << 16
_PAIR_BYTES_MIN = 6
_INT, _LONG, _STRING, _BINARY = pa.int32(), pa.int64(), pa.string(), pa.binary()
_TIME = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(_STRING, _STRING)
_EVENT_NAMES = pa.array(EVENTS)
_TYPE_NAMES = pa.array(SNAPSHOT_TYPES)


def decode_changes(data: bytes | bytearray | memoryview, settings: Settings, positions: Positions) -> Changes:
    """Decode the whole frames at the start of `data`.

    Nobody may write to the bytes while this runs. They may be overwritten afterwards: nothing that is returned refers
    to them.
    """
    received = np.frombuffer(data, np.uint8)
    machine = kernel()
    frames_max = len(received) // HEADER_BYTES + 1
    talk, arguments = _talk(settings, positions)
    report = talk[s.ARGUMENTS :]
    report[:] = 0
    talk[s.A_DATA] = received.__array_interface__["data"][0]
    talk[s.A_END] = len(received)
    notes = positions.notes(9 * frames_max)
    talk[s.A_PLACES], talk[s.A_KINDS] = notes, notes + 8 * frames_max
    machine.scan(arguments)
    room = _Room(report.tolist(), positions)
    room.enter(talk)
    machine.fill(arguments)
    told = report.tolist()
    consumed, stopped = told[s.CONSUMED], told[s.STOPPED]
    return Changes(
        rows=_Columns(room, told, settings).batch() if told[s.ROWS] else _no_rows(settings.keys),
        controls=room.beside(told[s.CONTROLS], settings),
        consumed_bytes=consumed,
        flow_bytes=told[s.FLOW_BYTES],
        more=stopped in (s.BATCH_FULL, s.ANSWERED),
        error=_reason(received, consumed, settings, positions) if stopped == s.BAD_FRAME else None,
    )


def _talk(settings: Settings, positions: Positions) -> tuple[npt.NDArray[np.int64], int]:
    """The block by which the kernel is spoken to, and its address; what a connection has once for all is in it."""
    known = positions.talk
    if known is not None and known[0] is settings:
        return known[1:]
    talk = np.zeros(s.ARGUMENTS + s.REPORT, np.int64)
    talk[: s.ARGUMENTS] = tables(settings.dialect).arguments
    talk[s.A_BODY_MAX] = settings.body_bytes_max
    talk[s.A_INFLATED_MAX] = settings.inflated_bytes_max
    talk[s.A_ROWS_MAX] = settings.rows_max
    talk[s.A_VALUE_MAX] = settings.value_bytes_max
    talk[s.A_KEY_MAX] = settings.key_bytes_max
    talk[s.A_COLLECTIONS] = settings.collections is not None
    talk[s.A_TEXT] = settings.keys == TEXT_KEYS
    talk[s.A_STATE] = positions.address
    arguments: int = talk.__array_interface__["data"][0]
    talk[s.A_REPORT] = arguments + 8 * s.ARGUMENTS
    positions.talk = settings, talk, arguments
    return talk, arguments


@cache
def _no_rows(keys: str) -> pa.RecordBatch:
    """A batch without a row."""
    return pa.RecordBatch.from_pylist([], schema=schema(keys))


def _reason(
    received: npt.NDArray[np.uint8], start: int, settings: Settings, positions: Positions
) -> RemoteProtocolError:
    """Ask the plain codec what is wrong with the frame that the kernel stopped at."""
    body_length = int.from_bytes(received[start + 8 : start + 12].tobytes())
    bad = received[start : start + HEADER_BYTES + min(body_length, settings.body_bytes_max)].tobytes()
    error = decode_plainly(bad, settings, positions).error
    return RemoteProtocolError(error.text if error else "this frame cannot be read", offset=start)


class _Room:
    """One block of memory, cut into the parts that the kernel fills."""

    def __init__(self, report: list[int], positions: Positions) -> None:
        rows = report[s.ROWS]
        self.wide = bool(report[s.TIMED]) or report[s.SEEN_EVENTS] not in _PURE
        self._longs = s.WIDE_LONGS if self.wide else s.NARROW_LONGS
        xattr_bytes = report[s.XATTR_BYTES]
        pairs = xattr_bytes // _PAIR_BYTES_MIN + 1 if xattr_bytes else 0
        sizes = {
            s.A_LONGS: 8 * self._longs * rows,
            s.A_CONTROLS: 16 * (report[s.CONTROLS] + 1),
            s.A_INTS: 4 * s.INTS * (rows + 1),
            s.A_NAME_OFFSETS: 4 * (pairs + 1),
            s.A_TEXT_OFFSETS: 4 * (pairs + 1),
            s.A_EVENTS: rows,
            s.A_KEYS: report[s.KEY_BYTES],
            s.A_VALUES: report[s.VALUE_BYTES],
            s.A_CONTROL_BYTES: report[s.CONTROL_BYTES],
            s.A_NAMES: xattr_bytes,
            s.A_TEXTS: xattr_bytes,
        }
        self.start_of: dict[int, int] = {}
        end = 0
        for part, size in sizes.items():
            self.start_of[part] = end
            end += -(-size // _ALIGN) * _ALIGN
        # numpy asks the system for huge pages where Arrow's pools do not; a block that begins with one has the most of
        # them, and new memory then costs a fraction. What lies before the beginning is never touched.
        align = _HUGE_PAGE if end >= _HUGE_PAGE else _ALIGN
        taken = positions.block(end + align)
        start = -taken.ctypes.data % align
        self.bytes = taken[start : start + end]
        self.block = pa.py_buffer(self.bytes)
        self.rows = rows
        self._sizes = sizes
        self.ints = self._view(s.A_INTS, np.int32).reshape(s.INTS, rows + 1)
        self.pair_offsets: list[npt.NDArray[np.int32]] = []
        if xattr_bytes:
            self.pair_offsets = [self._view(part, np.int32) for part in (s.A_NAME_OFFSETS, s.A_TEXT_OFFSETS)]
            for offsets in self.pair_offsets:
                offsets[0] = 0
            self.ints[s.XATTRS_AT] = 0

    @property
    def longs(self) -> npt.NDArray[np.int64]:
        """The columns of 64-bit numbers."""
        return self._view(s.A_LONGS, np.int64).reshape(self._longs, self.rows)

    @property
    def events(self) -> npt.NDArray[np.uint8]:
        """What happened, row by row."""
        return self._view(s.A_EVENTS, np.uint8)

    def _view(self, part: int, kind: Any) -> npt.NDArray[Any]:
        start = self.start_of[part]
        return self.bytes[start : start + self._sizes[part]].view(kind)

    def enter(self, arguments: npt.NDArray[np.int64]) -> None:
        """Tell the kernel where to write."""
        begin = self.block.address
        for part, start in self.start_of.items():
            arguments[part] = begin + start
        arguments[s.A_WIDE] = self.wide

    def part(self, part: int, start: int, length: int) -> pa.Buffer:
        """Some bytes of a part, as an Arrow buffer."""
        return self.block.slice(self.start_of[part] + start, length)

    def long_column(self, column: int, rows: int) -> pa.Buffer:
        """A column of 64-bit numbers."""
        return self.part(s.A_LONGS, 8 * column * self.rows, 8 * rows)

    def int_column(self, column: int, rows: int) -> pa.Buffer:
        """A column of 32-bit numbers."""
        return self.part(s.A_INTS, 4 * column * (self.rows + 1), 4 * rows)

    def beside(self, count: int, settings: Settings) -> Controls:
        """The frames that are no rows."""
        places = self._view(s.A_CONTROLS, np.int64).reshape(-1, 2)[: count + 1].copy()
        kept = self._view(s.A_CONTROL_BYTES, np.uint8)[: places[-1, 1]].tobytes()
        return Controls(places[:-1, 0], places[:, 1], kept, settings.dialect)


class _Columns:
    """Arrow arrays over the parts of a filled room."""

    def __init__(self, room: _Room, report: list[int], settings: Settings) -> None:
        self.room = room
        self.report = report
        self.settings = settings
        self.rows = report[s.ROWS]
        self.pure = report[s.SEEN_EVENTS] in _PURE

    @property
    def events(self) -> npt.NDArray[np.uint8]:
        """What happened, row by row."""
        return self.room.events[: self.rows]

    def batch(self) -> pa.RecordBatch:
        """The batch; every null is one that the message did not carry."""
        items = self._among(*_ITEMS)
        snapshots = self._snapshots()
        scope, collection = self._names()
        key_type = _STRING if self.settings.keys == TEXT_KEYS else _BINARY
        dated = None if self.report[s.CLOCKS] == self.rows else self.room.longs[s.CHANGED_AT, : self.rows] != s.ABSENT
        columns = [
            self._event(),
            self._int(s.VBUCKET, None),
            self._long(s.VBUUID, None),
            self._long(s.SEQNO, None if self.pure else self.events != FLUSH),
            self._long(s.REV, items),
            self._long(s.CAS, None),
            self._bytes(key_type, s.KEY_AT, s.A_KEYS, self._among(*_ITEMS, SYSTEM)),
            self._bytes(_BINARY, s.VALUE_AT, s.A_VALUES, self._with_value()),
            self._int(s.DATATYPE, items),
            self._carried(s.FLAGS),
            self._carried(s.EXPIRY) if self.room.wide else _zeros(self.rows),
            self._carried(s.LOCK_TIME) if self.room.wide else _zeros(self.rows),
            _nulls(_LONG, self.rows) if self.pure else self._carried(s.DELETE_TIME),
            scope,
            collection,
            self._xattrs(),
            self._long(s.SNAP_START, snapshots),
            self._long(s.SNAP_END, snapshots),
            self._snapshot_type(snapshots),
            self._long(s.CHANGED_AT, dated, _TIME),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_schema(self.settings.keys))

    def _among(self, *events: int) -> npt.NDArray[np.bool_] | None:
        """Which rows are of these events; None for all."""
        return None if self.pure else np.isin(self.events, events)

    def _with_value(self) -> npt.NDArray[np.bool_] | None:
        if self.pure:
            return None
        offsets = self.room.ints[s.VALUE_AT, : self.rows + 1]
        valid: npt.NDArray[np.bool_] = (
            (self.events == MUTATION) | (self.events == SYSTEM) | (offsets[1:] > offsets[:-1])
        )
        return valid

    def _snapshots(self) -> npt.NDArray[np.bool_] | None:
        if not self.report[s.SEEN_TYPES] & 1 << NO_SNAPSHOT:
            return None
        valid: npt.NDArray[np.bool_] = self.room.ints[s.SNAP_TYPE, : self.rows] != NO_SNAPSHOT
        return valid

    def _long(self, column: int, valid: npt.NDArray[np.bool_] | None, kind: pa.DataType | None = None) -> pa.Array:
        buffers = [_bitmap(valid), self.room.long_column(column, self.rows)]
        return pa.Array.from_buffers(kind or _LONG, self.rows, buffers)

    def _carried(self, column: int) -> pa.Array:
        """A column of 32-bit numbers that only some messages carry."""
        return self._long(column, None if self.pure else self.room.longs[column, : self.rows] != s.ABSENT)

    def _int(self, column: int, valid: npt.NDArray[np.bool_] | None) -> pa.Array:
        return pa.Array.from_buffers(_INT, self.rows, [_bitmap(valid), self.room.int_column(column, self.rows)])

    def _bytes(self, kind: pa.DataType, column: int, part: int, valid: npt.NDArray[np.bool_] | None) -> pa.Array:
        length = int(self.room.ints[column, self.rows])
        buffers = [_bitmap(valid), self.room.int_column(column, self.rows + 1), self.room.part(part, 0, length)]
        return pa.Array.from_buffers(kind, self.rows, buffers)

    def _event(self) -> pa.Array:
        seen = self.report[s.SEEN_EVENTS]
        if seen.bit_count() <= 1:
            return _constant(EVENTS[max(seen.bit_length() - 1, 0)], self.rows)
        return _EVENT_NAMES.take(pa.array(self.events))

    def _snapshot_type(self, snapshots: npt.NDArray[np.bool_] | None) -> pa.Array:
        seen = self.report[s.SEEN_TYPES]
        if snapshots is None and seen.bit_count() == 1:
            return _constant(SNAPSHOT_TYPES[seen.bit_length() - 1], self.rows)
        kinds = self.room.ints[s.SNAP_TYPE, : self.rows]
        return _TYPE_NAMES.take(pa.array(kinds, mask=None if snapshots is None else ~snapshots))

    def _names(self) -> tuple[pa.Array, pa.Array]:
        """Scope and collection of each row."""
        known = self.settings.collections
        if known is None:
            return _constant(DEFAULT_NAME, self.rows), _constant(DEFAULT_NAME, self.rows)
        ids = self.room.ints[s.COLLECTION, : self.rows].view(np.uint32).astype(np.int64)
        items = self._among(*_ITEMS)
        if items is not None:
            ids[~items] = -1
        distinct, places = np.unique(ids, return_inverse=True)
        names = [known.get(int(each), (None, f"0x{each:x}")) if each >= 0 else (DEFAULT_NAME,) * 2 for each in distinct]
        scopes, collections = zip(*names, strict=True) if names else ((), ())
        return tuple(pa.array(column, _STRING).take(pa.array(places)) for column in (scopes, collections))

    def _xattrs(self) -> pa.Array:
        """A map a row; null where the item has no block of xattrs, empty where the block is."""
        kind = _MAP
        if not self.report[s.XATTR_BYTES]:
            return _nulls(kind, self.rows)
        pairs = self.report[s.PAIR]
        columns = []
        parts = ((s.A_NAME_OFFSETS, s.A_NAMES), (s.A_TEXT_OFFSETS, s.A_TEXTS))
        for (offsets_part, bytes_part), offsets in zip(parts, self.room.pair_offsets, strict=True):
            room = self.room
            buffers = [None, room.part(offsets_part, 0, 4 * (pairs + 1)), room.part(bytes_part, 0, int(offsets[pairs]))]
            columns.append(pa.Array.from_buffers(_STRING, pairs, buffers))
        entries = pa.StructArray.from_arrays(columns, fields=[kind.key_field, kind.item_field])
        first = self.room.ints[s.XATTRS_AT, : self.rows]
        offsets = np.append(first - 1, np.int32(pairs))
        # A row without xattrs begins where the next row with some does.
        offsets = np.minimum.accumulate(np.where(offsets < 0, pairs, offsets)[::-1])[::-1]
        buffers = [_bitmap(first > 0), pa.py_buffer(np.ascontiguousarray(offsets, np.int32))]
        return pa.Array.from_buffers(kind, self.rows, buffers, children=[entries])


def _bitmap(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Arrow's validity bits; None when every row has a value."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


@cache
def _schema(keys: str) -> pa.Schema:
    return schema(keys)


@cache
def _zero_rows() -> pa.Array:
    return pa.repeat(pa.scalar(0, _LONG), _CONSTANT_ROWS)


def _zeros(rows: int) -> pa.Array:
    """0 in every row; small batches share one array."""
    return _zero_rows().slice(0, rows) if rows <= _CONSTANT_ROWS else pa.repeat(pa.scalar(0, _LONG), rows)


@cache
def _null_rows(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_CONSTANT_ROWS, kind)


def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """Nothing in every row; small batches share one array."""
    return _null_rows(kind).slice(0, rows) if rows <= _CONSTANT_ROWS else pa.nulls(rows, kind)


@cache
def _constants(text: str) -> pa.Array:
    return pa.repeat(text, _CONSTANT_ROWS)


def _constant(text: str, rows: int) -> pa.Array:
    """The same text in every row; small batches share one array."""
    return _constants(text).slice(0, rows) if rows <= _CONSTANT_ROWS else pa.repeat(text, rows)
