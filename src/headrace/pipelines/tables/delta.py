"""A Delta table that holds a row for each item of a bucket: one commit for each micro-batch.

`deltalake` keeps the table's log; which files a batch makes new and which it replaces is worked out in `parts`, and all
of it is one commit. (The library's own merge gives the same rows. It holds what it rewrites in memory: 2.5 GB for a
table of 6 million documents of 256 bytes of which 5000 had changed, against 0.6 GB here, in the same time.)

Who a batch is from is written into the same commit, as application transactions of Delta:

    <application>           the number of the last batch of this checkpoint that the table holds
    headrace                how often the table was begun
    <application>-begun     at which of those times this checkpoint began it

A batch that was committed before is not committed again. A checkpoint that the table knows nothing of begins it anew
with its first batch, number 0: that commit leaves nothing of what was there, and the rest follows, since a new
checkpoint reads the bucket from its beginning. A checkpoint whose table was begun anew by another one is refused: what
the table holds is not what it was made of.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from headrace.columns import TEXT_KEYS
from headrace.pipelines.tables import TableError
from headrace.pipelines.tables.collections import CollectionNames
from headrace.pipelines.tables.folding import GONE, fold, item_schema
from headrace.pipelines.tables.parts import PART, File, Rewritten, rewrite, split, write

if TYPE_CHECKING:
    from headrace.pipelines.tables.folding import Folded

HISTORY_S = 600
"""For how long an old version of the table stays readable."""

CLEAN_S = 60.0
"""How often files are removed that no version needs any more."""

CHECKPOINT_COMMITS = 50
_BEGUN = "headrace"
_NAMES = "_headrace/collections.json"
_WORKERS_MAX = 4


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did; `version` is None where there was nothing to do, or it was done before."""

    version: int | None
    written: int = 0
    """How many items came or changed."""
    removed: int = 0
    """How many items the batch said are gone."""


class DeltaSink:
    """A table at a path; it is made where there is none.

    It may be used by one thread at a time.
    """

    def __init__(self, path: str | os.PathLike[str], *, keys: str = TEXT_KEYS, history_s: int = HISTORY_S) -> None:
        self.path = Path(path).absolute()
        self._keys = keys
        self._history_s = history_s
        self._columns = item_schema(keys)
        self._table = self._open()
        self._names = self._read_names()
        self._cleaned_at = time.monotonic()

    # -- the table

    @property
    def _schema(self) -> pa.Schema:
        return self._columns.append(pa.field(PART, pa.int32()))

    def _open(self) -> DeltaTable:
        try:
            table = DeltaTable(str(self.path))
        except TableNotFoundError:
            table = self._make()
        except (DeltaError, OSError) as error:
            raise TableError(f"{self.path}: the Delta table cannot be opened: {_first_line(error)}") from None
        found = pa.schema(table.schema().to_arrow())
        kinds = {name: _kind(found.field(name).type) for name in found.names}
        wanted = {each.name: _kind(each.type) for each in self._schema}
        if kinds != wanted or table.metadata().partition_columns != [PART]:
            if {**kinds, "key": ""} == {**wanted, "key": ""}:
                raise TableError(f"{self.path}: its keys are {kinds['key']}: read the bucket with such keys")
            raise TableError(f"{self.path} holds another Delta table, with the columns {', '.join(found.names)}")
        self._set_history(table)
        return table

    def _make(self) -> DeltaTable:
        try:
            if self.path.exists() and any(self.path.iterdir()):
                raise TableError(f"{self.path} is no Delta table, and not empty: give another path")
            self.path.mkdir(parents=True, exist_ok=True)
            return DeltaTable.create(
                str(self.path), schema=self._schema, partition_by=[PART], configuration=self._properties()
            )
        except OSError as error:
            raise TableError(f"{self.path}: a table cannot be made there: {error.strerror or error}") from None
        except DeltaError as error:
            raise TableError(f"{self.path}: a table cannot be made there: {_first_line(error)}") from None

    def _properties(self) -> dict[str, str]:
        return {
            "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
            "delta.deletedFileRetentionDuration": f"interval {self._history_s} seconds",
            "delta.logRetentionDuration": f"interval {self._history_s} seconds",
        }

    def _set_history(self, table: DeltaTable) -> None:
        wanted, found = self._properties(), table.metadata().configuration
        changed = {name: text for name, text in wanted.items() if found.get(name) != text}
        if changed:
            table.alter.set_table_properties(changed)

    # -- batches

    def commit(self, application: str, batch: int, rows: pa.Table) -> Committed:
        """Bring the table to where it is after a batch of change rows, in one commit.

        `application` names the checkpoint that numbers the batches.
        """
        try:
            return self._commit(application, batch, rows)
        except DeltaError as error:
            raise TableError(f"{self.path}: batch {batch} cannot be committed: {_first_line(error)}") from None
        except OSError as error:
            raise TableError(f"{self.path}: batch {batch} cannot be written: {error.strerror or error}") from None

    def _commit(self, application: str, batch: int, rows: pa.Table) -> Committed:
        self._table.update_incremental()
        marks = [Transaction(application, batch)]
        done = self._table.transaction_version(application)
        first = done is None
        if done is None:
            begun = (self._table.transaction_version(_BEGUN) or 0) + 1
            self._check_first(application, batch)
            marks += [Transaction(_BEGUN, begun), Transaction(f"{application}-begun", begun)]
        else:
            self._check_owner(application)
            if batch <= done:
                return Committed(None)
        if self._names.learn(rows):
            self._write_names()
        folded = fold(rows, self._names, keys=self._keys)
        if not folded and not first:
            return Committed(None)
        files = self._files()
        changed = self._begin(folded, files) if first else self._change(folded, files)
        self._write_commit(changed, marks)
        self._table.update_incremental()
        gone = folded.items[GONE].to_numpy().sum()
        return Committed(self._table.version(), folded.items.num_rows - int(gone), int(gone))

    def _check_first(self, application: str, batch: int) -> None:
        if batch:
            raise TableError(
                f"{self.path}: the checkpoint stands at batch {batch}, and the table knows nothing of it "
                f"({application}): it is another table's checkpoint, or the table was removed. Remove the checkpoint, "
                "too: then the bucket is read from its beginning"
            )

    def _check_owner(self, application: str) -> None:
        if self._table.transaction_version(_BEGUN) != self._table.transaction_version(f"{application}-begun"):
            raise TableError(
                f"{self.path}: the table was begun anew with another checkpoint since: go on with that one, or remove "
                "this one, so that the table is begun anew"
            )

    def _begin(self, folded: Folded, files: dict[int, list[File]]) -> list[Rewritten]:
        """Leave nothing of what was there."""
        changed = []
        for part, items in split(folded).items():
            fresh = items.filter(pc.invert(items[GONE])).drop_columns([GONE])
            changed.append(Rewritten(part, added=write(self.path, part, fresh)))
        return changed + [Rewritten(part, removed=held) for part, held in files.items()]

    def _change(self, folded: Folded, files: dict[int, list[File]]) -> list[Rewritten]:
        def work(each: tuple[int, pa.Table]) -> Rewritten:
            part, items = each
            return rewrite(self.path, part, items, folded.void, files.get(part, []))

        with ThreadPoolExecutor(min(_WORKERS_MAX, os.cpu_count() or 1)) as pool:
            return list(pool.map(work, split(folded).items()))

    def _files(self) -> dict[int, list[File]]:
        """The files that the table has, by part."""
        adds = pa.table(self._table.get_add_actions(flatten=True)).select(
            ["path", "size_bytes", "num_records", f"partition.{PART}"]
        )
        found: dict[int, list[File]] = {}
        for row in adds.to_pylist():
            file = File(row["path"], row["size_bytes"], row["num_records"] or 0)
            found.setdefault(row[f"partition.{PART}"], []).append(file)
        return found

    def _write_commit(self, changed: list[Rewritten], marks: list[Transaction]) -> None:
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = []
        for each in changed:
            place: dict[str, str | None] = {PART: str(each.part)}
            actions += [
                RemoveAction(
                    file.path, data_change=True, deletion_timestamp=now_ms, size=file.bytes, partition_values=place
                )
                for file in each.removed
            ]
            actions += [
                AddAction(
                    file.path,
                    file.bytes,
                    partition_values=place,
                    modification_time=now_ms,
                    data_change=True,
                    stats=json.dumps({"numRecords": file.rows}),
                )
                for file in each.added
            ]
        properties = CommitProperties(app_transactions=marks)
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), [PART], commit_properties=properties
        )

    # -- keeping it small

    def clean(self, *, now: bool = False) -> None:
        """Remove files that no version needs any more which is younger than the history; every minute or so."""
        if now or time.monotonic() >= self._cleaned_at + CLEAN_S:
            self._cleaned_at = time.monotonic()
            try:
                self._table.vacuum(dry_run=False, full=True)
            except (DeltaError, OSError) as error:
                raise TableError(f"{self.path}: old files cannot be removed: {_first_line(error)}") from None

    # -- names of collections

    def _read_names(self) -> CollectionNames:
        path = self.path / _NAMES
        try:
            return CollectionNames.from_json(path.read_text(encoding="utf-8")) if path.exists() else CollectionNames()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TableError(f"{path}: the names of collections cannot be read: {error}") from None

    def _write_names(self) -> None:
        """Keep names before rows need them: to know one too many does no harm."""
        path = self.path / _NAMES
        path.parent.mkdir(exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_text(self._names.to_json(), encoding="utf-8")
        beside.replace(path)


def _kind(kind: pa.DataType) -> str:
    """The type as a Delta table tells it: texts of all sizes are one."""
    text = str(kind)
    return {"large_string": "string", "string_view": "string", "large_binary": "binary", "binary_view": "binary"}.get(
        text, text
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


__all__ = ["HISTORY_S", "Committed", "DeltaSink"]
