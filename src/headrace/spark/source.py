"""The format `dcp`: one class that Spark finds by its name, and makes anew wherever it needs it.

Spark has a Python process for each thing that it asks of a source, and each imports this file: what only one of them
needs is imported there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from headrace.spark.told import told

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DcpSource(DataSource):
    """Changes and documents of a bucket, and writes into one.

    >>> spark.readStream.format("dcp").option("connection", "couchbase://host").option("bucket", "b").load()
    ... # doctest: +SKIP

    Every option is in docs/reference/spark-options.md.
    """

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return "dcp"

    def schema(self) -> StructType:
        """Give the columns of a change row; called on the driver, when a DataFrame is made."""
        from headrace.spark.rows import spark_schema  # noqa: PLC0415 - see the top of the file

        keys = {name.lower(): value for name, value in self.options.items()}.get("keys", "text").strip().lower()
        return spark_schema(keys)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make what reads a batch; called on the driver."""
        from headrace.spark.batch import DcpBatchReader  # noqa: PLC0415 - see the top of the file
        from headrace.spark.options import Options, Use  # noqa: PLC0415

        del schema
        with told():
            return DcpBatchReader(Options(self.options, Use.BATCH))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Make what reads a stream; called on the driver, and once more for what goes to the executors."""
        from headrace.errors import HeadraceError  # noqa: PLC0415 - see the top of the file
        from headrace.spark.options import Options, Use  # noqa: PLC0415
        from headrace.spark.refusing import Refused  # noqa: PLC0415
        from headrace.spark.stream import DcpStreamReader  # noqa: PLC0415

        del schema
        try:
            return DcpStreamReader(Options(self.options, Use.STREAM))
        except HeadraceError as error:
            return Refused(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Make what writes a batch; called on the driver."""
        from headrace.spark.options import Options, Use  # noqa: PLC0415
        from headrace.spark.sink import batch_writer  # noqa: PLC0415 - see the top of the file

        with told():
            return batch_writer(Options(self.options, Use.WRITE), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Make what writes a stream; called on the driver."""
        from headrace.spark.options import Options, Use  # noqa: PLC0415
        from headrace.spark.sink import stream_writer  # noqa: PLC0415 - see the top of the file

        with told():
            return stream_writer(Options(self.options, Use.WRITE), schema, overwrite=overwrite)


__all__ = ["DcpSource"]
