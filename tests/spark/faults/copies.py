"""What a user of a stream keeps: a copy of the bucket, made of change rows and of nothing else.

Both kinds follow the documentation of `onRollback` to the letter and check on the way what is promised of the rows: in
each vbucket the seqnos of a batch lie after those of the batches before it, and no row comes twice.

    rebuild   a rollback row with seqno 0 voids all rows of its vbucket; the batch brings the vbucket anew
    event     a rollback row with seqno S voids the rows of its vbucket after S that earlier batches brought

A copy keeps batches by their number, so that one that Spark replays after a crash is taken once: the first reading of
it or the last, as a sink would that skips what it has, or one that overwrites.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from headrace.columns.schema import unsigned
from tests.spark.faults.buckets import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

COLUMNS = ("event", "vbucket", "vbuuid", "seqno", "rev", "cas", "key", "value", "flags", "expiry")
REBUILD, EVENT, FAIL = "rebuild", "event", "fail"


class Row(NamedTuple):
    """A change row, as far as a copy looks at it."""

    event: str
    vbucket: int
    vbuuid: int
    seqno: int
    key: str | None
    document: Document | None


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a batch, with unsigned numbers."""
    found = []
    for row in table.select(COLUMNS).to_pylist():
        document = None
        if row["event"] == "mutation":
            document = Document(row["value"], unsigned(row["cas"]), unsigned(row["rev"]), row["flags"], row["expiry"])
        found.append(
            Row(row["event"], row["vbucket"], unsigned(row["vbuuid"]), unsigned(row["seqno"]), row["key"], document)
        )
    return found


class Copy:
    """Batches as they came, and what they amount to; called by `foreachBatch`."""

    def __init__(self, on_rollback: str = REBUILD, *, keep: str = "first") -> None:
        self.on_rollback = on_rollback
        self.keep = keep
        self.batches: dict[int, pa.Table] = {}
        self.order: list[int] = []
        """The batches as they were taken; one that was replayed stands here twice."""
        self._lock = threading.Lock()

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.take(number, frame.select(*COLUMNS).toArrow())

    def take(self, number: int, table: pa.Table) -> None:
        """Keep a batch."""
        with self._lock:
            self.order.append(number)
            if self.keep == "last" or number not in self.batches:
                self.batches[number] = table

    @property
    def rows(self) -> int:
        """How many rows came, of the batches that were kept."""
        with self._lock:
            return sum(table.num_rows for table in self.batches.values())

    @property
    def rollbacks(self) -> list[Row]:
        """All rollback rows, in the order of their batches."""
        return [row for rows in self._read() for row in rows if row.event == "rollback"]

    def _read(self) -> list[list[Row]]:
        with self._lock:
            held = sorted(self.batches.items())
        return [rows_of(table) for _, table in held]

    def documents(self) -> dict[str, Document]:
        """What the copy says that the bucket has."""
        held: dict[int, list[Row]] = defaultdict(list)
        for rows in self._read():
            by_vbucket: dict[int, list[Row]] = defaultdict(list)
            for row in rows:
                by_vbucket[row.vbucket].append(row)
            for vbucket, found in by_vbucket.items():
                held[vbucket] = self._put(vbucket, held[vbucket], found)
        newest: dict[str, Row] = {}
        for found in held.values():
            newest |= {row.key: row for row in found if row.key is not None}
        return {key: row.document for key, row in newest.items() if row.document is not None}

    def _put(self, vbucket: int, held: list[Row], found: list[Row]) -> list[Row]:
        back = [row for row in found if row.event == "rollback"]
        assert len(back) <= 1, f"vbucket {vbucket} was rolled back {len(back)} times in a batch: {back}"
        if back and self.on_rollback == REBUILD:
            assert back[0].seqno == 0, f"a rollback to {back[0].seqno} with onRollback {REBUILD}"
        if back:
            held = [row for row in held if row.seqno <= back[0].seqno]
        changes = sorted((row for row in found if row.event != "rollback"), key=lambda row: row.seqno)
        seqnos = [row.seqno for row in changes]
        assert len(set(seqnos)) == len(seqnos), f"vbucket {vbucket}: a seqno comes twice in a batch: {seqnos}"
        if held and changes:
            assert held[-1].seqno < seqnos[0], f"vbucket {vbucket}: seqno {seqnos[0]} comes after {held[-1].seqno}"
        return [*held, *changes]


class StoredCopy(Copy):
    """A copy in files, for a query in another process: `FileSink` there writes them."""

    def __init__(self, folder: Path, on_rollback: str = REBUILD) -> None:
        super().__init__(on_rollback)
        self._folder = folder

    def _read(self) -> list[list[Row]]:
        self.load()
        return super()._read()

    def load(self) -> None:
        """Take what is there."""
        for path in sorted(self._folder.glob("*.arrow")):
            with pa.ipc.open_file(path) as opened:
                self.batches[int(path.stem)] = opened.read_all()


def store(folder: Path, number: int, table: pa.Table, *, keep: str) -> None:
    """Put a batch into its file, all or nothing."""
    path = folder / f"{number}.arrow"
    if keep == "first" and path.exists():
        return
    beside = path.with_suffix(".part")
    with pa.OSFile(str(beside), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    beside.rename(path)


def difference(copy: Mapping[str, Any], truth: Mapping[str, Any], *, shown: int = 5) -> str:
    """Say in what a copy differs from the truth; an empty text where it does not."""
    wrong = {
        "missing": [key for key in truth if key not in copy],
        "extra": [key for key in copy if key not in truth],
        "other": [key for key in truth if key in copy and copy[key] != truth[key]],
    }
    return "; ".join(
        f"{len(keys)} {kind}: " + ", ".join(f"{key} {copy.get(key)} / {truth.get(key)}" for key in _some(keys, shown))
        for kind, keys in wrong.items()
        if keys
    )


def _some(keys: Iterable[str], shown: int) -> list[str]:
    return sorted(keys)[:shown]
