"""What the tests of writes share: what a bucket holds, rows of changes by hand, and writes without a Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.client import BatchReader, ChangeOptions
from headrace.columns import schema as change_schema
from headrace.spark.options import Options, Use
from headrace.spark.sink import SinkPlan, Written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.testing import LiveNode

CAS = 1_700_000_000_000_000_000
COMPARED = ("event", "key", "value", "rev", "cas", "flags", "expiry", "datatype", "delete_time", "xattrs")
"""What is the same wherever an item is; vbuckets, branches and seqnos are a bucket's own."""


def changes(*nodes: LiveNode, **more: Any) -> pa.Table:
    """All that buckets hold, as rows of changes."""
    connection = ",".join([nodes[0].connection_string, *(f"{each.host}:{each.port}" for each in nodes[1:])])
    with BatchReader(ChangeOptions(connection=connection, xattrs=True, **more), until="now") as batches:
        return pa.Table.from_batches(list(batches), schema=change_schema(more.get("keys", "text")))


def held(*nodes: LiveNode, **more: Any) -> list[tuple[Any, ...]]:
    """The items and tombstones of buckets, by their keys: all that a copy has to share."""
    rows = changes(*nodes, **more).select(list(COMPARED)).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: row[1])


def change(event: str = "mutation", **fields: Any) -> dict[str, Any]:
    """A row of a change."""
    plain = {"vbucket": 0, "rev": 1, "cas": CAS, "key": "k", "value": b"{}", "flags": 0, "expiry": 0, "datatype": 0}
    return dict.fromkeys(change_schema().names) | plain | {"event": event} | fields


def plan_of(schema: dict[str, str] | StructType, **options: str) -> SinkPlan:
    """Plan a write, as Spark's driver has it done. Options are named as in Python, with what Spark calls them."""
    if isinstance(schema, dict):
        columns = StructType()
        for name, kind in schema.items():
            columns.add(name, kind)
        schema = columns
    return SinkPlan.of(Options(options, Use.WRITE), schema, overwrite=False)


CHANGE_COLUMNS = StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in {
                **dict.fromkeys(("event", "key", "scope", "collection"), "string"),
                **dict.fromkeys(("rev", "cas", "flags", "expiry", "delete_time", "seqno"), "long"),
                **dict.fromkeys(("vbucket", "datatype"), "integer"),
                "value": "binary",
                "xattrs": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
            }.items()
        ],
    }
)


def write_changes(node: LiveNode, rows: Iterable[dict[str, Any]], **options: str) -> Written:
    """Write rows of changes in one task, without a Spark."""
    names = [field.name for field in CHANGE_COLUMNS.fields]
    batch = pa.RecordBatch.from_pylist(list(rows), schema=change_schema()).select(names)
    plan = plan_of(CHANGE_COLUMNS, connection=node.connection_string, **options)
    return plan.write(iter([batch]))


def write_documents(
    node: LiveNode, schema: dict[str, str], table: pa.Table | dict[str, Any], **options: str
) -> Written:
    """Write documents in one task, without a Spark."""
    batch = pa.RecordBatch.from_pydict(table) if isinstance(table, dict) else table.to_batches()[0]
    plan = plan_of(schema, connection=node.connection_string, **options)
    return plan.write(iter([batch]))
