"""Tables that hold what a bucket holds.

folding      the rows of a micro-batch -> each item's newest row, and what of the table is void
collections  the names behind the ids of collections, as system events tell them
delta        a Delta table with a row for each item, one commit for each micro-batch     parts  its files
change_log   an append-only log of Parquet files, one for each micro-batch; and the items that it leaves

They take Arrow tables of change rows (`headrace.columns.schema`) and know neither Spark nor a server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from headrace.errors import HeadraceError


class TableError(HeadraceError):
    """A table cannot be written or read as it was asked."""


class Kind(StrEnum):
    """What a place holds, as it is written before its path."""

    DELTA = "delta"
    PARQUET = "parquet"


class Place(NamedTuple):
    """Where a table is, and of which kind."""

    kind: Kind
    path: str

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read `delta:PATH` or `parquet:PATH`.

        >>> Place.parse("delta:/data/travel").path
        '/data/travel'
        """
        kind, colon, path = text.partition(":")
        if not colon or kind not in set(Kind) or not path:
            raise TableError(f"a table is delta:PATH or parquet:PATH, not {text!r}")
        if path.startswith("//") or "://" in path:
            raise TableError(f"{text!r}: a table is written to a path of this machine")
        return cls(Kind(kind), path)

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}"


__all__ = ["Kind", "Place", "TableError"]
