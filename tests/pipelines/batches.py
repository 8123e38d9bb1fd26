"""Change rows made by hand, and what a table holds, as plain values."""

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from headrace.columns import schema
from headrace.wire.codes import SystemEventKind

Item = tuple[int, str, str, str]
"""vbucket, scope, collection, key"""


def row(event: str, vbucket: int, seqno: int | None, key: str | None = None, value: bytes | None = None, **more: Any):
    """One change row; what is not said is as a server would have it."""
    plain: dict[str, Any] = dict.fromkeys(schema().names)
    plain |= {"event": event, "vbucket": vbucket, "vbuuid": 7, "seqno": seqno, "key": key, "value": value}
    if event in ("mutation", "deletion", "expiration"):
        plain |= {"scope": "_default", "collection": "_default", "rev": 1, "cas": seqno, "flags": 0, "expiry": 0}
        plain |= {"datatype": 1}
    return plain | more


def put(key: str, vbucket: int, seqno: int, value: bytes = b"{}", **more: Any):
    """A mutation."""
    return row("mutation", vbucket, seqno, key, value, **more)


def gone(key: str, vbucket: int, seqno: int, event: str = "deletion", **more: Any):
    """A deletion or an expiration."""
    return row(event, vbucket, seqno, key, **more)


def rollback(vbucket: int, seqno: int = 0):
    """A rollback."""
    return row("rollback", vbucket, seqno)


def system(kind: SystemEventKind, vbucket: int, seqno: int, name: str, scope: int, collection: int | None = None):
    """A system event about a scope or a collection."""
    ids = struct.pack(">QI", 1, scope) if collection is None else struct.pack(">QII", 1, scope, collection)
    return row("system", vbucket, seqno, name, ids, flags=int(kind))


def table(*rows: dict[str, Any]) -> pa.Table:
    """Make a batch, in as many chunks as Spark would."""
    half = len(rows) // 2
    return pa.concat_tables([pa.Table.from_pylist(list(some), schema=schema()) for some in (rows[:half], rows[half:])])


def items(path: Path) -> dict[Item, bytes]:
    """What a Delta table holds."""
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    found = {(each["vbucket"], each["scope"], each["collection"], each["key"]): each["value"] for each in rows}
    assert len(found) == len(rows), "an item is there twice"
    return found


def keys(path: Path) -> dict[str, bytes]:
    """What a Delta table holds, by key alone."""
    return {item[3]: value for item, value in items(path).items()}


def version(path: Path) -> int:
    """The version of a Delta table."""
    return DeltaTable(str(path)).version()
