"""The newest version of each document: `mode=documents`.

A key lives in one vbucket, and a task has whole vbuckets: nobody else has another version. Some vbuckets are read at a
time, and their rows wait until they are all there, in memory up to a bound and then in a file. Then it is known which
rows are the newest: inside one snapshot no key comes twice, and only where a vbucket came by several (a part from disk
and a part from memory, or a connection that broke) the older versions are looked for and dropped. A vbucket whose
history branched meanwhile is read anew.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import ConnectionLostError
from headrace.client.scout import Scout
from headrace.columns import EVENTS
from headrace.columns.schema import MUTATION
from headrace.ids import VBucketId
from headrace.spark.reading import give_back, take_reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.options import ChangeOptions
    from headrace.client.ranges import Range, RangeReader
    from headrace.spark.filters import Wanted
    from headrace.spark.sharing import Share

VBUCKETS_AT_ONCE = 16
HELD_BYTES_MAX = 64 * 1024 * 1024
TRIES = 5
_LIVE = EVENTS[MUTATION]
_KEY = ("vbucket", "scope", "collection", "key")
_SNAPSHOT = ("vbucket", "snapshot_start", "snapshot_end")


def read_documents(options: ChangeOptions, share: Share, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Give the documents of a share, each once."""
    reader = take_reader(options)
    try:
        for start in range(0, len(share.ranges), VBUCKETS_AT_ONCE):
            for rows in _newest(reader, list(share.ranges[start : start + VBUCKETS_AT_ONCE])):
                kept = wanted.of(rows.filter(pc.equal(rows.column("event"), _LIVE)))
                if kept.num_rows:
                    yield kept
    finally:  # also where nobody wants the rest: no reading is under way while rows are given
        give_back(options, reader)


def _newest(reader: RangeReader, ranges: list[Range]) -> Iterator[pa.RecordBatch]:
    """Give the newest row of each key of some vbuckets."""
    options = reader.options
    for _ in range(TRIES):
        with _Held() as held:
            for rows in reader.read(ranges, cut=False):
                held.add(rows)
            left = reader.left
            yield from held.newest(left)
        ranges = _anew(options, [each for each in ranges if each.vbucket in left])
        if not ranges:
            return
    raise ConnectionLostError(
        f"vbucket {ranges[0].vbucket} of bucket {options.bucket} failed over {TRIES} times while it was read: "
        "read again when the cluster is calm"
    )


def _anew(options: ChangeOptions, ranges: list[Range]) -> list[Range]:
    """Plan vbuckets again whose history branched: up to where they are now, on whatever branch."""
    if not ranges:
        return []
    with Scout(options) as scout:
        seen = scout.await_sightings({VBucketId(each.vbucket) for each in ranges})
    highs = {int(vbucket): found.high for vbucket, found in seen.items()}
    return [replace(each, head=0, end=min(each.end, highs[each.vbucket])) for each in ranges]


class _Held:
    """The rows of some vbuckets; a context manager that removes its file."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: Any = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, rows: pa.RecordBatch) -> None:
        """Keep rows."""
        self._batches.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > HELD_BYTES_MAX:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="headrace-documents-")  # noqa: SIM115 - closed with this
            self._writer = pa.ipc.new_stream(self._file, self._batches[0].schema)
        for rows in self._batches:
            self._writer.write_batch(rows)
        self._batches, self._bytes = [], 0

    def newest(self, without: frozenset[Any]) -> Iterator[pa.RecordBatch]:
        """Give of each key the last row; those of some vbuckets are dropped."""
        if self._writer is not None:
            self._spill()
            self._writer.close()
        kept = self._last_of_each_key(without)
        start = 0
        for rows in self._all():
            yield rows if kept is None else rows.filter(kept.slice(start, rows.num_rows))
            start += rows.num_rows

    def _last_of_each_key(self, without: frozenset[Any]) -> pa.Array | None:
        """Mark the rows to keep; None for all of them."""
        snapshots = [pa.Table.from_batches([rows]).select(_SNAPSHOT) for rows in self._all()]
        if not snapshots:
            return None
        ways = pa.concat_tables(snapshots).group_by(list(_SNAPSHOT)).aggregate([])
        several = ways.num_rows > len(ways.column("vbucket").unique())
        if not several and not without:
            return None
        keys = pa.concat_tables(pa.Table.from_batches([rows]).select(_KEY) for rows in self._all())
        places = pa.array(np.arange(keys.num_rows))
        # Rows of a vbucket came in the order of their seqnos.
        last = keys.append_column("place", places).group_by(list(_KEY)).aggregate([("place", "max")])
        dropped = pc.is_in(keys.column("vbucket"), pa.array(sorted(without), pa.int32()))
        marked = pc.and_not(pc.is_in(places, last.column("place_max")), dropped.combine_chunks())
        return marked.combine_chunks() if isinstance(marked, pa.ChunkedArray) else marked

    def _all(self) -> Iterator[pa.RecordBatch]:
        if self._file is not None:
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)
        yield from self._batches


__all__ = ["read_documents"]
