"""A stream reader that refuses: Spark 4.3 hides an error of `streamReader` itself behind one of its own.

It says "cannot access local variable 'reader'" then. An error of the first question that it asks a reader is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader

from headrace.spark.told import told

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from headrace.errors import HeadraceError


class Refused(DataSourceStreamReader):
    """Raises an error when it is asked where to begin or to go on."""

    def __init__(self, error: HeadraceError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Refuse; called on the driver, first of all."""
        with told():
            raise self._error

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's names and types
        """Refuse; called on the driver, by a query that found a checkpoint."""
        return self.initialOffset()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read nothing: it never comes to that."""
        del partition
        return iter(())


__all__ = ["Refused"]
