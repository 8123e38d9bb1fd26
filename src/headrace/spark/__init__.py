"""Buckets as DataFrames: the formats `dcp` and `tap` of Spark, and what makes a session that has them.

options   the one table of options             told      errors as sentences
offsets   where a query stands, as JSON        planning  what a micro-batch reads, and what became of the history
source    format `dcp`                         batch, stream, reading, sharing   its readers
sink      writes of format `dcp`               tap       format `tap`
sessions  a Spark session that is set up       values    JSON values as columns
progress  lag, rows and rollbacks of a query

Nothing here imports the node or its store: an executor needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.progress import ProgressListener, measured
    from headrace.spark.sessions import session
    from headrace.spark.source import DcpSource
    from headrace.spark.tap import TapSource
    from headrace.spark.values import json_columns

__all__ = ["DcpSource", "ProgressListener", "TapSource", "json_columns", "measured", "register", "session"]

_HOMES = {
    "DcpSource": "source",
    "ProgressListener": "progress",
    "TapSource": "tap",
    "json_columns": "values",
    "measured": "progress",
    "register": "sessions",
    "session": "sessions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
