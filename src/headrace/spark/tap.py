"""`spark.read.format("tap")`: everything that an old server holds, dumped by TAP.

Batch only. Each task has a TAP connection of its own, to the node that has its vbuckets. A task that fails is done
again by Spark from the beginning of its vbuckets, and Spark takes the rows of one try.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.client import OptionError
from headrace.client.tap_dump import TapDump, TapPart, tap_parts
from headrace.spark.options import Options, Use
from headrace.spark.refusing import Refused
from headrace.spark.rows import spark_schema
from headrace.spark.told import told

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceWriter
    from pyspark.sql.types import StructType


class TapSource(DataSource):
    """What the buckets of a server hold that is too old for DCP.

    >>> spark.read.format("tap").option("connection", "couchbase://old-host").load()  # doctest: +SKIP

    Every option is in docs/reference/spark-options.md.
    """

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return "tap"

    def schema(self) -> StructType:
        """Give the columns of a change row; called on the driver, when a DataFrame is made."""
        with told():
            return spark_schema(Options(self.options, Use.TAP).keys)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make what reads the dump; called on the driver."""
        del schema
        with told():
            return TapReader(Options(self.options, Use.TAP))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Make what refuses a stream; called on the driver."""
        del schema
        return Refused(
            OptionError(
                "format tap is of spark.read: TAP has no positions that a stream could go on from; "
                'use spark.readStream.format("dcp"), which servers know from 3.0 on'
            )
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Refuse; called on the driver."""
        del schema, overwrite
        with told():
            raise OptionError("format tap is of spark.read: write by format dcp")


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task dumps; nothing, where nothing is active."""

    part: TapPart | None


class TapReader(DataSourceReader):
    """Reads a dump. Spark makes one on the driver for a query, plans with it, and pickles it for the tasks."""

    def __init__(self, options: Options) -> None:
        self._parts_min = options.min_partitions or os.cpu_count() or 1
        self._reading = options.change_options(vbuckets=options.vbuckets)

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the servers which vbuckets they have, and share these out to tasks; called once, on the driver."""
        with told():
            return [Share(part) for part in tap_parts(self._reading, self._parts_min)] or [Share(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Dump one share, on an executor."""
        assert isinstance(partition, Share)
        if partition.part is None:
            return
        with told(), TapDump(self._reading, partition.part) as dump:
            yield from dump


__all__ = ["TapReader", "TapSource"]
