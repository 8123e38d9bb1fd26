"""Where `compare` reads items: a bucket, a Delta table, a log of changes.

A side gives its items group by group, so that neither has to fit into memory: group 3 of 16 is what lies in the
vbuckets 3, 19, 35 and so on. Both sides put a key into the same group, though one may have more vbuckets than the
other: a key's vbucket is its hash modulo their number, which is a power of two on every server, and the number of
groups divides it.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import BatchReader, ChangeOptions, OnRollback
from headrace.columns import BINARY_KEYS
from headrace.columns.schema import EVENTS, ROLLBACK
from headrace.pipelines.tables import TableError
from headrace.pipelines.tables.change_log import BATCH, current_items, log_schema, open_log
from headrace.pipelines.tables.folding import item_schema
from headrace.pipelines.tables.parts import PART, PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalake import DeltaTable
    from pyarrow import dataset

GROUPS_MAX = 64
"""Into so many groups a bucket is split, where it has so many vbuckets."""

IDENTITY = ("scope", "collection", "key")
COMPARED = ("value", "cas", "rev", "flags", "expiry", "datatype")
COLUMNS = (*IDENTITY, "vbucket", *COMPARED)


class Side(Protocol):
    """One of two things that are compared."""

    name: str

    def groups(self) -> int:
        """Tell into how many groups it can be split: a power of two, at most `GROUPS_MAX`."""

    def items(self, number: int, groups: int, seen: Callable[[int], None]) -> pa.Table:
        """Give the items of a group, with `COLUMNS`; `seen` is told how many rows were read, on the way."""


def _power_of_two(count: int) -> int:
    """The least power of two that is not less, at most `GROUPS_MAX`."""
    return min(1 << max(count - 1, 0).bit_length(), GROUPS_MAX)


class BucketSide:
    """A bucket, read by DCP up to where it is when each group is asked for."""

    def __init__(self, options: ChangeOptions) -> None:
        self._options = dataclasses.replace(
            options, keys=BINARY_KEYS, on_rollback=OnRollback.REBUILD, name="headrace-compare"
        )
        self.name = f"{options.connection}/{options.bucket}"
        self._vbuckets = 0

    def groups(self) -> int:
        """Ask how many vbuckets there are."""
        from headrace.client.scout import Scout  # noqa: PLC0415 - tables need none of it

        with Scout(self._options) as scout:
            self._vbuckets = scout.vbuckets
        count = min(self._vbuckets, GROUPS_MAX)
        while self._vbuckets % count or count & (count - 1):
            count -= 1
        return count

    def items(self, number: int, groups: int, seen: Callable[[int], None]) -> pa.Table:
        """Read the vbuckets of a group."""
        options = dataclasses.replace(self._options, vbuckets=tuple(range(number, self._vbuckets, groups)))
        batches: list[pa.RecordBatch] = []
        numbers: list[int] = []
        turn = 0
        with BatchReader(options, until="now") as reader:
            for batch in reader:
                turn += batch.column("event")[0].as_py() == EVENTS[ROLLBACK]  # it makes void what came before
                batches.append(batch)
                numbers.append(turn)
                seen(batch.num_rows)
        if not batches:
            return item_schema(BINARY_KEYS).empty_table().select(COLUMNS)
        column = np.repeat(np.array(numbers), [batch.num_rows for batch in batches])
        rows = pa.Table.from_batches(batches).append_column(BATCH, pa.array(column))
        return current_items(rows, keys=BINARY_KEYS).select(COLUMNS)


class DeltaSide:
    """A Delta table, as it is when the comparison begins."""

    def __init__(self, path: str) -> None:
        self.name = f"delta:{path}"
        self._table = _open_delta(path)
        self._rows = _checked(self._table.to_pyarrow_dataset(), self.name)

    def groups(self) -> int:
        """Look at which vbuckets there are."""
        return _groups_of(self.name, self._rows)

    def items(self, number: int, groups: int, seen: Callable[[int], None]) -> pa.Table:
        """Read the rows of a group."""
        return _plain(_read(self.name, self._rows, COLUMNS, (number, groups), seen))


def _open_delta(path: str) -> DeltaTable:
    try:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra: buckets and logs need none of it
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415
    except ImportError:
        raise TableError("a Delta table needs the package deltalake: pip install 'headrace[delta]'") from None
    if not Path(path).is_dir():
        raise TableError(f"{path}: there is no such folder")
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        raise TableError(f"{path} is no Delta table") from None
    except (DeltaError, OSError) as error:
        raise TableError(f"{path}: the Delta table cannot be read: {str(error).splitlines()[0]}") from None


class LogSide:
    """A log of changes: the items that its rows leave."""

    def __init__(self, path: str) -> None:
        self.name = f"parquet:{path}"
        self._rows = _checked(open_log(path), self.name)

    def groups(self) -> int:
        """Look at which vbuckets there are."""
        return _groups_of(self.name, self._rows)

    def items(self, number: int, groups: int, seen: Callable[[int], None]) -> pa.Table:
        """Read the rows of a group, and work out what they leave."""
        columns = log_schema(BINARY_KEYS)
        rows = _read(self.name, self._rows, tuple(columns.names), (number, groups), seen)
        return current_items(rows.cast(columns), keys=BINARY_KEYS).select(COLUMNS)


def _checked(rows: dataset.Dataset, name: str) -> dataset.Dataset:
    missing = [each for each in COLUMNS if each not in rows.schema.names]
    if missing:
        raise TableError(f"{name} was not made by headrace run materialize: it has no column {missing[0]}")
    return rows


def _groups_of(name: str, rows: dataset.Dataset) -> int:
    largest = -1
    with _translated(name):
        for batch in rows.to_batches(columns=["vbucket"]):
            found = pc.max(batch.column("vbucket")).as_py()
            largest = largest if found is None else max(largest, found)
    return GROUPS_MAX if largest < 0 else _power_of_two(largest + 1)


def _read(
    name: str, rows: dataset.Dataset, columns: tuple[str, ...], group: tuple[int, int], seen: Callable[[int], None]
) -> pa.Table:
    number, groups = group
    only = _within(rows, number, groups) if groups > 1 else None
    with _translated(name):
        batches = []
        for batch in rows.to_batches(columns=list(columns), filter=only):
            batches.append(batch)
            seen(batch.num_rows)
    return pa.Table.from_batches(batches, schema=pa.schema([rows.schema.field(name) for name in columns]))


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{name} cannot be read: {str(error).splitlines()[0]}") from None


def _within(rows: dataset.Dataset, number: int, groups: int) -> pc.Expression:
    """The condition for a group; a table that is split by `part` shows by its folders where its rows are."""
    vbuckets = pc.field("vbucket").isin(list(range(number, 1 << 16, groups)))
    if PART in rows.schema.names and PARTS % groups == 0:
        return pc.field(PART).isin(list(range(number, PARTS, groups))) & vbuckets
    return vbuckets


def _plain(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([item_schema(BINARY_KEYS).field(name) for name in COLUMNS]))


__all__ = ["COLUMNS", "COMPARED", "GROUPS_MAX", "IDENTITY", "BucketSide", "DeltaSide", "LogSide", "Side"]
