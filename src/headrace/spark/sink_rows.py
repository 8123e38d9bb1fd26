"""What rows of changes and documents share: how a task puts them, and the columns of a batch as lists.

A kind of rows is a plain value that travels to the executors. It is made of the columns and the options on the driver,
where what does not fit together is told before any task runs; `put` then takes Arrow batches on an executor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from headrace.client import VALUE_BYTES_MAX, ClientError, OptionError
from headrace.columns.schema import DEFAULT_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.writing import BucketWriter

    Wrong = Callable[[pa.RecordBatch, int, bytes | None, str], None]
    """Is told a row that cannot be written: its batch and place, its key if it has one, and the reason."""

TEXT = (t.StringType, t.BinaryType)
WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)


class RowError(ClientError):
    """A row cannot be written, and there is no place to put it aside."""


@dataclass(slots=True)
class Skipped:
    """Counts rows that say nothing that could be written."""

    skipped: int = 0
    """Which is as it should be."""
    unapplied: int = 0
    """Flushes, and rollbacks: what they take back is not taken back here."""


class Rows(Protocol):
    """Knows what the rows of a write are."""

    def begin(self) -> Rows:
        """One for a task, with what a task remembers."""
        ...

    def put(self, batch: pa.RecordBatch, writer: BucketWriter, wrong: Wrong, skipped: Skipped) -> None:
        """Put the rows of a batch; a row's name at the writer is the batch and its place."""
        ...


def wrong_type(name: str, found: t.DataType, wanted: tuple[type[t.DataType], ...], who: str) -> OptionError:
    """A column is of a type that it cannot be."""
    told = " or ".join(kind().simpleString() for kind in wanted)
    return OptionError(f"column {name} is {found.simpleString()}: {who} it as {told}")


def fault_of_value(value: bytes | None) -> str | None:
    """Say what is wrong with the value of a document; None where nothing is."""
    if value is None:
        return "it has no value"
    if len(value) > VALUE_BYTES_MAX:
        return f"a value of {len(value)} bytes; at most {VALUE_BYTES_MAX} are stored"
    return None


class Columns:
    """The columns of a batch as lists; those that are not there as well."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._names = set(batch.schema.names)

    def plain(self, name: str, otherwise: Any = None) -> list[Any]:
        """A column, with something else in the place of null."""
        if name not in self._names:
            return [otherwise] * self._batch.num_rows
        column = self._batch.column(name)
        if column.null_count and otherwise is not None:
            column = column.fill_null(otherwise)
        return list(column.to_pylist())

    def octets(self, name: str) -> list[Any]:
        """A column of text or bytes, as bytes or None."""
        column = self._batch.column(name)
        if pa.types.is_string(column.type):
            column = column.cast(pa.binary())
        elif pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary())
        return list(column.to_pylist())

    def xattrs(self) -> list[Any]:
        """Names and texts of each row, or None."""
        if "xattrs" not in self._names or not len(self._batch) - self._batch.column("xattrs").null_count:
            return [None] * self._batch.num_rows
        return list(self._batch.column("xattrs").to_pylist())

    def collections(self) -> list[str | None]:
        """The collection of each row that is not in the default one, else None."""
        if "collection" not in self._names:
            return [None] * self._batch.num_rows
        names = self._batch.column("collection").fill_null(DEFAULT_NAME)
        inside, shown = pc.equal(names, DEFAULT_NAME), names
        if "scope" in self._names:
            scopes = self._batch.column("scope")
            inside = pc.and_(inside, pc.equal(scopes.fill_null(DEFAULT_NAME), DEFAULT_NAME))
            shown = pc.binary_join_element_wise(scopes.fill_null("?"), names, ".")
        if pc.all(inside).as_py():
            return [None] * self._batch.num_rows
        return list(pc.if_else(inside, None, shown).to_pylist())


__all__ = ["TEXT", "WHOLE", "Columns", "RowError", "Rows", "Skipped", "fault_of_value", "wrong_type"]
