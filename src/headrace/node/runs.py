"""Runs of quiet sets, taken at once: what a load is mostly made of.

A compiled loop reads the requests and writes their records, seqnos and CAS included; Python is left with what only it
can do, to put each under its key. That halves the time of a set. The loop is an accelerator and nothing else: until it
is loaded, and for everything that it does not take, `hot.serve` does the same by itself, and a test compares the two.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from array import array
from typing import TYPE_CHECKING, Any

from headrace.node.limits import VALUE_BYTES_MAX
from headrace.node.seen import SEEN_MASK
from headrace.node.values import JSON, MAY_BE_JSON, is_json
from headrace.store.records import (
    DATATYPE_AT,
    LIVE,
    MUTATION,
    OPCODE_AT,
    REVISION,
    REVISION_AT,
)
from headrace.wire import Dialect
from headrace.wire.catalogue import Set, SetQ
from headrace.wire.codes import Magic

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.bucket import Bucket
    from headrace.node.vbucket import VBucket

log = logging.getLogger("headrace.node.runs")

# The kernel's arguments: one block of 64-bit numbers, addresses among them. The last two are its answer.
(
    A_DATA,
    A_AT,
    A_END,
    A_RECORDS,
    A_RECORD_BYTES,
    A_ROWS_MAX,
    A_KEYS,
    A_VALUES,
    A_ENDS,
    A_VBUCKETS,
    A_SERVING,
    A_SEQNOS,
    A_MAY_BE_JSON,
    A_JSON_ROWS,
    A_CAS,
    A_NOW,
    A_VBUCKETS_MAX,
    A_JSON_TOO,
    A_ROWS,
    A_FLAGGED,
    ARGUMENTS,
) = range(21)

STORING_BYTES = Set.spec.extras_size(Set.spec.layouts[Dialect.DCP][0])
STORING = STORING_BYTES << 8
STORING_BYTES_MAX = STORING_BYTES + VALUE_BYTES_MAX
SETQ = Magic.REQUEST << 8 | SetQ.spec.opcodes[Dialect.DCP]
RECORD_BYTES = MUTATION.size

ROWS_MAX = 8192
ROOM_BYTES = 1 << 20


class Runs:
    """The kernel and its memory, for one bucket."""

    def __init__(self, take: Callable[[int], None], bucket: Bucket) -> None:
        self._take = take
        self._bucket = bucket
        self._room = bytearray(ROOM_BYTES)
        self._columns = [array("q", bytes(8 * ROWS_MAX)) for _ in range(5)]
        self._may_be_json = array("B", MAY_BE_JSON)
        self._args = args = array("q", bytes(8 * ARGUMENTS))
        self._address = args.buffer_info()[0]
        self._room_pin = (ctypes.c_char * ROOM_BYTES).from_buffer(self._room)
        args[A_RECORDS] = ctypes.addressof(self._room_pin)
        args[A_RECORD_BYTES] = ROOM_BYTES
        args[A_ROWS_MAX] = ROWS_MAX
        for place, column in zip((A_KEYS, A_VALUES, A_ENDS, A_VBUCKETS, A_JSON_ROWS), self._columns, strict=True):
            args[place] = column.buffer_info()[0]
        args[A_SERVING] = bucket.is_serving.buffer_info()[0]
        args[A_SEQNOS] = bucket.seqnos.buffer_info()[0]
        args[A_MAY_BE_JSON] = self._may_be_json.buffer_info()[0]
        args[A_VBUCKETS_MAX] = len(bucket.vbuckets)

    def take(self, data: bytes, at: int, json_too: int = STORING) -> tuple[int, int]:
        """Serve the run of quiet sets that begins at a place; give where it ends, and how many they were.

        `json_too` is what extras length and datatype may be beside the plain ones.
        """
        bucket, args = self._bucket, self._args
        args[A_DATA] = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
        args[A_AT], args[A_END], args[A_JSON_TOO] = at, len(data), json_too
        args[A_CAS], args[A_NOW] = bucket.clock.last, bucket.clock.seconds
        self._take(self._address)
        rows = args[A_ROWS]
        if rows:
            bucket.clock.last = args[A_CAS]
            self._put(data, rows)
        return args[A_AT], rows

    def _put(self, data: bytes, rows: int) -> None:
        keys, values, ends, vbuckets, json_rows = self._columns
        places = ends[:rows].tolist()
        block = bytes(memoryview(self._room)[: places[-1]])
        start = 0
        records = [block[start : (start := end)] for end in places]
        for row in json_rows[: self._args[A_FLAGGED]]:
            key_bytes = values[row] - keys[row]
            if is_json(records[row][RECORD_BYTES + key_bytes :]):
                records[row] = _with_datatype(records[row], JSON)
        bucket = self._bucket
        serving, seen = bucket.serving, bucket.seen
        for key_at, value_at, vb_id, record in zip(
            keys[:rows].tolist(), values[:rows].tolist(), vbuckets[:rows].tolist(), records, strict=True
        ):
            key = data[key_at:value_at]
            vb = serving[vb_id]
            dirty = vb.dirty
            old = dirty.get(key)
            if old is not None:
                record = _next_version(record, old, vb)  # noqa: PLW2901 - the record that is kept
                del dirty[key]  # to its end: dirty is in order of seqno
                dirty[key] = record
                continue
            if not dirty:
                bucket.begin_dirty(vb)
            slot = hash(key) & SEEN_MASK
            if seen is None or seen[slot]:
                old = bucket.find(vb, key)
            else:
                seen[slot] = 1
            if old is None:
                vb.live_items += 1
                dirty[key] = record
            else:
                dirty[key] = _next_version(record, old, vb)


def _with_datatype(record: bytes, datatype: int) -> bytes:
    return record[:DATATYPE_AT] + bytes([datatype]) + record[DATATYPE_AT + 1 :]


def _next_version(record: bytes, old: bytes, vb: VBucket) -> bytes:
    """A record as what comes after an older one of its key, be that a tombstone."""
    if old[OPCODE_AT] != LIVE:
        vb.live_items += 1
    revision = REVISION.pack(REVISION.unpack_from(old, REVISION_AT)[0] + 1)
    return record[:REVISION_AT] + revision + record[REVISION_AT + REVISION.size :]


_LOADED: list[Any] = []
_LOADING = threading.Lock()


def kernel() -> Callable[[int], None] | None:
    """The compiled loop, if it is loaded."""
    return _LOADED[0][0] if _LOADED else None


def load() -> None:
    """Load the compiled loop, once a process; the first time on a machine that takes seconds."""
    from headrace.columns.machine import Program, load_program  # noqa: PLC0415 - not before the node serves

    made_of = ("headrace.node.runs", "headrace.node.limits", "headrace.store.records", "headrace.wire.catalogue")
    program = Program("runs", "headrace.node.runs_kernel", ("take",), made_of)
    with _LOADING:
        if _LOADED:
            return
        try:
            (take,), engine = load_program(program)
        except Exception:
            log.exception("sets are served without the compiled loop")
            return
        _LOADED.append((take, engine))
