"""An append-only log of changes: a folder with a Parquet file for each micro-batch.

    batch-000000000017.parquet    the rows of batch 17, by vbucket and seqno, with the column `batch`
    _headrace.json                which checkpoint numbers the batches

A file appears whole, under its name, or not at all; one that is there is never changed. So a batch that is played
again, after whatever kill, is in the log once. Readers of Parquet skip names that begin with `_` or `.`.

The log keeps every row as it came, rollbacks too. `current_items` gives what they leave: of each item the newest row
that no later rollback makes void. A `rollback` row of batch 17 says that rows of its vbucket in batches before 17 with
a larger seqno are void; rows of batch 17 itself came after it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, parquet

from headrace.columns import TEXT_KEYS, schema
from headrace.columns.schema import EVENTS, ROLLBACK
from headrace.pipelines.tables import TableError
from headrace.pipelines.tables.collections import CollectionNames
from headrace.pipelines.tables.folding import GONE, fold

if TYPE_CHECKING:
    from collections.abc import Iterable

BATCH = "batch"
_MARK = "_headrace.json"
_BATCH_MAX = 1 << 40


class ChangeLog:
    """A log at a path; it is made with its first batch. It may be used by one thread at a time."""

    def __init__(self, path: str | os.PathLike[str], *, keys: str = TEXT_KEYS) -> None:
        self.path = Path(path).absolute()
        self._schema = log_schema(keys)
        try:
            if self.path.exists() and any(self.path.iterdir()) and not (self.path / _MARK).exists():
                raise TableError(f"{self.path} is no log of changes, and not empty: give another path")
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TableError(f"{self.path}: a log cannot be made there: {error.strerror or error}") from None

    def append(self, application: str, batch: int, rows: pa.Table) -> bool:
        """Append a batch; False when the log has it already, or there is nothing in it.

        `application` names the checkpoint that numbers the batches.
        """
        try:
            self._check(application, batch)
            path = self.path / f"batch-{batch:012}.parquet"
            if not rows.num_rows or path.exists():
                return False
            self._write(path, batch, rows)
        except OSError as error:
            raise TableError(f"{self.path}: batch {batch} cannot be written: {error.strerror or error}") from None
        return True

    def _check(self, application: str, batch: int) -> None:
        mark = self.path / _MARK
        if mark.exists():
            found = json.loads(mark.read_text(encoding="utf-8")).get("checkpoint")
            if found != application:
                raise TableError(
                    f"{self.path} is the log of another checkpoint ({found}): go on with that one, or begin a new log "
                    "at another path"
                )
        elif batch:
            raise TableError(
                f"{self.path}: the checkpoint stands at batch {batch}, and the log is not there: begin with a new "
                "checkpoint"
            )
        else:
            beside = mark.with_suffix(".new")
            beside.write_text(json.dumps({"headrace_log": 1, "checkpoint": application}) + "\n", encoding="utf-8")
            beside.replace(mark)

    def _write(self, path: Path, batch: int, rows: pa.Table) -> None:
        numbered = rows.append_column(BATCH, pa.array(np.full(rows.num_rows, batch))).cast(self._schema)
        ordered = numbered.sort_by([("vbucket", "ascending"), ("seqno", "ascending")])
        beside = path.with_name(f".{path.name}.new")
        with beside.open("wb") as file:
            parquet.write_table(ordered, file, compression="zstd", compression_level=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


def log_schema(keys: str = TEXT_KEYS) -> pa.Schema:
    """The columns of a log: those of a change, and the number of its batch."""
    return schema(keys).append(pa.field(BATCH, pa.int64()))


def open_log(path: str | os.PathLike[str]) -> dataset.Dataset:
    """Open a log to read."""
    folder = Path(path)
    if not (folder / _MARK).exists():
        raise TableError(f"{folder} is no log of changes: there is no {_MARK}")
    try:
        files = sorted(map(str, folder.glob("batch-*.parquet")))
        return dataset.dataset(files, format="parquet") if files else dataset.dataset(log_schema().empty_table())
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{folder}: the log cannot be read: {error}") from None


def current_items(rows: pa.Table, *, keys: str = TEXT_KEYS) -> pa.Table:
    """Give the items that rows of a log leave: all rows of the vbuckets in question, in any order.

    They have the columns of a table of items (`headrace.pipelines.tables.folding.ITEM`).
    """
    names = CollectionNames()
    names.learn(rows)
    left = rows.filter(pc.invert(_void_after_rollbacks(rows)))
    left = left.filter(pc.not_equal(left["event"], EVENTS[ROLLBACK]))
    items = fold(left, names, keys=keys).items
    return items.filter(pc.invert(items[GONE])).drop_columns([GONE])


def _void_after_rollbacks(rows: pa.Table) -> pa.Array:
    """Tell which rows a rollback of a later batch makes void."""
    found = rows.filter(pc.equal(rows["event"], EVENTS[ROLLBACK])).select(["vbucket", BATCH, "seqno"])
    if not found.num_rows:
        return pa.array(np.zeros(rows.num_rows, dtype=bool))
    found = found.sort_by([("vbucket", "ascending"), (BATCH, "ascending")])
    places = _places(found["vbucket"], found[BATCH])
    least = _least_from(found["vbucket"].to_numpy(), found["seqno"].to_numpy())
    at = np.searchsorted(places, _places(rows["vbucket"], rows[BATCH]), side="right")
    # Behind the last rollback, or at one of another vbucket, there is none to come.
    inside = np.minimum(at, len(places) - 1)
    to_come = (at < len(places)) & (found["vbucket"].to_numpy()[inside] == rows["vbucket"].to_numpy())
    seqnos = pc.fill_null(rows["seqno"], 0).to_numpy()
    return pa.array(to_come & (seqnos > least[inside]))


def _places(vbuckets: pa.ChunkedArray, batches: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """One number for vbucket and batch, in their order."""
    place: np.ndarray[tuple[int], np.dtype[np.int64]] = vbuckets.to_numpy().astype(np.int64) * _BATCH_MAX
    place += batches.to_numpy()
    return place


def _least_from(
    vbuckets: np.ndarray[tuple[int], np.dtype[np.int32]], seqnos: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Of each rollback, the least seqno of it and those of its vbucket that come later."""
    least = seqnos.copy()
    for place in range(len(least) - 2, -1, -1):  # rollbacks are few
        if vbuckets[place] == vbuckets[place + 1]:
            least[place] = min(least[place], least[place + 1])
    return least


def current_state(path: str | os.PathLike[str], vbuckets: Iterable[int] | None = None) -> pa.Table:
    """Give the items that a log leaves, of all vbuckets or of some; the rows of those are held in memory."""
    log = open_log(path)
    keys = "binary" if pa.types.is_binary(log.schema.field("key").type) else TEXT_KEYS
    only = None if vbuckets is None else pc.field("vbucket").isin(list(vbuckets))
    return current_items(log.to_table(filter=only), keys=keys)


__all__ = ["BATCH", "ChangeLog", "current_items", "current_state", "log_schema", "open_log"]
