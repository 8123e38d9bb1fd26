"""What a bucket holds, written into a table without Spark."""

from pathlib import Path

import pyarrow as pa

from headrace.client import BatchReader, ChangeOptions
from headrace.columns import schema
from headrace.pipelines.tables.change_log import ChangeLog
from headrace.pipelines.tables.delta import DeltaSink
from headrace.testing import LiveNode


def copy_into(node: LiveNode, path: Path, kind: str, *, batch: int = 0) -> None:
    """Read a bucket from its beginning, and write it as one batch."""
    with BatchReader(ChangeOptions(connection=node.connection_string), until="now") as reader:
        rows = pa.Table.from_batches(list(reader), schema=schema())
    if kind == "delta":
        DeltaSink(path).commit("copy", batch, rows)
    else:
        ChangeLog(path).append("copy", batch, rows)
