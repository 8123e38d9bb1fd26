"""The row of a change, as Arrow and Spark see it.

Unsigned 64-bit numbers of the wire (uuid, seqno, revision, CAS) are signed longs with the same bits, since Spark has no
other; `unsigned` and `signed` are the one place that converts. What a message does not carry is null.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.wire.codes import SnapshotFlag

EVENTS = ("mutation", "deletion", "expiration", "flush", "system", "rollback", "seqno_advanced")
"""What happened, by the kernel's number for it. `rollback` is never on the wire: whoever undoes a branch says it."""

MUTATION, DELETION, EXPIRATION, FLUSH, SYSTEM, ROLLBACK, SEQNO_ADVANCED = range(len(EVENTS))

SNAPSHOT_TYPES = ("memory", "disk", "history", "unknown")
"""Where a snapshot came from."""

MEMORY, DISK, HISTORY, OTHER = range(len(SNAPSHOT_TYPES))

TEXT_KEYS, BINARY_KEYS = "text", "binary"

DEFAULT_NAME = "_default"
"""The scope and the collection of every key where collections were not agreed on."""

CLOCK_NS = (1_262_304_000_000_000_000, 4_102_444_800_000_000_000)
"""A CAS between these (2010 to 2100, in nanoseconds of the epoch) is taken for a clock; servers before 4.0 counted."""


def schema(keys: str = TEXT_KEYS) -> pa.Schema:
    """The columns of a change row, in their order."""
    return pa.schema(
        [
            ("event", pa.string()),
            ("vbucket", pa.int32()),
            ("vbuuid", pa.int64()),
            ("seqno", pa.int64()),
            ("rev", pa.int64()),
            ("cas", pa.int64()),
            ("key", pa.string() if keys == TEXT_KEYS else pa.binary()),
            ("value", pa.binary()),
            ("datatype", pa.int32()),
            ("flags", pa.int64()),
            ("expiry", pa.int64()),
            ("lock_time", pa.int64()),
            ("delete_time", pa.int64()),
            ("scope", pa.string()),
            ("collection", pa.string()),
            ("xattrs", pa.map_(pa.string(), pa.string())),
            ("snapshot_start", pa.int64()),
            ("snapshot_end", pa.int64()),
            ("snapshot_type", pa.string()),
            ("changed_at", pa.timestamp("us", tz="UTC")),
        ]
    )


def snapshot_type(flags: int) -> int:
    """The place in `SNAPSHOT_TYPES` of a marker's flags."""
    if flags & SnapshotFlag.HISTORY:
        return HISTORY
    if flags & SnapshotFlag.DISK:
        return DISK
    return MEMORY if flags & SnapshotFlag.MEMORY else OTHER


def signed(number: int) -> int:
    """An unsigned 64-bit number as the long with the same bits."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unsigned(number: int) -> int:
    """A long as the unsigned 64-bit number with the same bits."""
    return number + (1 << 64) if number < 0 else number
