"""The row of a change, as Arrow and Spark see it.

Unsigned 64-bit numbers of the wire (uuid, seqno, revision, CAS) are signed longs with the same bits, since Spark has no
other; `unsigned` and `signed` are the one place that converts. What a message does not carry is null.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

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


class Column(NamedTuple):
    """One column of a change row."""

    name: str
    kind: pa.DataType
    sentence: str


_LONG, _INT, _STRING = pa.int64(), pa.int32(), pa.string()

COLUMNS = (
    Column("event", _STRING, f"what happened: {', '.join(EVENTS)}"),
    Column("vbucket", _INT, "the slice of the bucket"),
    Column("vbuuid", _LONG, "the branch of the vbucket's history, from the failover log that the stream began with"),
    Column("seqno", _LONG, "the place of the change in its vbucket; null for a flush, which has none"),
    Column("rev", _LONG, "how often the item was changed"),
    Column("cas", _LONG, "the version of the item"),
    Column("key", _STRING, "the item's key without its collection id; of a system event, the name; binary if asked"),
    Column("value", pa.binary(), "the document, inflated and without its xattrs; null where a deletion left nothing"),
    Column("datatype", _INT, "how to read `value`: 1 for JSON; the bits for snappy and xattrs are undone"),
    Column("flags", _LONG, "what the writer stored beside the value; of a system event, its kind"),
    Column("expiry", _LONG, "when the item ends, in seconds of the epoch; 0: never"),
    Column("lock_time", _LONG, "for how long the item is locked"),
    Column("delete_time", _LONG, "when it was removed, in seconds of the epoch, where the message tells"),
    Column(
        "scope", _STRING, f"the scope's name; `{DEFAULT_NAME}` without collections, null for an id that nobody named"
    ),
    Column(
        "collection",
        _STRING,
        f"the collection's name; `{DEFAULT_NAME}` without collections, or the id that nobody named",
    ),
    Column("xattrs", pa.map_(_STRING, _STRING), "extended attributes as JSON text by name; null where there are none"),
    Column("snapshot_start", _LONG, "where the snapshot of this change starts; null before the first marker"),
    Column("snapshot_end", _LONG, "where it ends"),
    Column("snapshot_type", _STRING, f"where it came from: {', '.join(SNAPSHOT_TYPES)}"),
    Column("changed_at", pa.timestamp("us", tz="UTC"), "the time in the CAS, where it is a clock"),
)
"""The row of a change. `docs/reference/rows.md` is made of this."""


def schema(keys: str = TEXT_KEYS) -> pa.Schema:
    """The columns of a change row, in their order."""
    kinds = {column.name: column.kind for column in COLUMNS}
    if keys != TEXT_KEYS:
        kinds["key"] = pa.binary()
    return pa.schema(list(kinds.items()))


def snapshot_type(flags: int) -> int:
    """The place in `SNAPSHOT_TYPES` of a marker's flags."""
    from headrace.wire.codes import SnapshotFlag  # noqa: PLC0415 - who only names columns need not load the catalogue

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
