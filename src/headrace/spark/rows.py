"""The row of a change as a Spark schema: the one of `headrace.columns`, type by type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.columns import TEXT_KEYS, schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def spark_schema(keys: str = TEXT_KEYS) -> StructType:
    """The columns of a change row; Spark takes Arrow batches of `headrace.columns` for it without a cast."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - a second that explain need not wait

    return from_arrow_schema(schema(keys))


__all__ = ["spark_schema"]
