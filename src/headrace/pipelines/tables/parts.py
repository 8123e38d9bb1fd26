"""The files of a table: which rows lie together, and how a batch changes them.

A table is split by `part`, which is vbucket modulo 64. A change then touches the files of one part only, so that a few
changes rewrite a small piece of a large table, and a batch that changes everything needs the memory of a part or two at
a time. A part has one file, or a few:

    rows in it changed or went   the file is written anew, without them
    rows only came               they are a new file
    files became many            those of about the same size are put together, on that occasion

Nothing here is seen before it is committed: files get new names, and those that are replaced stay where they are.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from headrace.pipelines.tables.folding import GONE, IDENTITY

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headrace.pipelines.tables.folding import Folded, Void

PARTS = 64
PART = "part"
"""The column by which a table is split."""

FILES_MANY = 8
"""From so many files of a part on, some are put together."""

FILE_BYTES_MAX = 64 << 20
"""About so much a file holds, before it is compressed."""

ROW_GROUP_ROWS = 64 * 1024
_REPEATING = ["vbucket", "vbuuid", "flags", "expiry", "datatype", "scope", "collection"]
_POSITION = "position"


class File(NamedTuple):
    """A file of a table, by its path in the table."""

    path: str
    bytes: int
    rows: int


@dataclass(slots=True)
class Rewritten:
    """What becomes of the files of a part."""

    part: int
    added: list[File] = field(default_factory=list)
    removed: list[File] = field(default_factory=list)


def part_of(vbucket: int) -> int:
    """Tell the part that a vbucket's rows lie in."""
    return vbucket % PARTS


def parts_of(vbuckets: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Tell it of a column."""
    return pa.array(np.asarray(vbuckets, dtype=np.int32) % PARTS)


def split(folded: Folded) -> dict[int, pa.Table]:
    """Split the items of a batch by part; parts that hold something void are there with or without items."""
    found = {part_of(vbucket): folded.items.slice(0, 0) for vbucket in _voided(folded.void)}
    parts = np.asarray(parts_of(folded.items["vbucket"]))
    order = np.argsort(parts, kind="stable")
    ends = np.searchsorted(parts[order], np.arange(PARTS + 1))
    for part in np.unique(parts).tolist():
        found[part] = folded.items.take(pa.array(order[ends[part] : ends[part + 1]]))
    return found


def _voided(void: Void) -> Iterable[int]:
    yield from void.vbuckets.to_pylist()
    yield from void.collections["vbucket"].to_pylist()


def rewrite(root: Path, part: int, items: pa.Table, void: Void, files: list[File]) -> Rewritten:
    """Write what a batch makes of one part; `files` are those that the part has."""
    done = Rewritten(part)
    fresh = items.filter(pc.invert(items[GONE])).drop_columns([GONE])
    tables = [fresh]
    together = _together(files, fresh.nbytes)
    for file in files:
        kept = _kept(root / file.path, items, void, fresh.schema, whole=file in together)
        if kept is not None:
            done.removed.append(file)
            tables.append(kept)
    done.added = write(root, part, pa.concat_tables(tables))
    return done


def _kept(path: Path, items: pa.Table, void: Void, columns: pa.Schema, *, whole: bool) -> pa.Table | None:
    """Read a file without the rows that changed or went; None when there are none such, and it may stay as it is."""
    marks = _hits(_read(path, pa.schema([columns.field(name) for name in IDENTITY])), items, void)
    hit = pc.any(marks).as_py()
    if not hit and not whole:
        return None
    found = _read(path, columns)
    return found.filter(pc.invert(marks)) if hit else found


def _hits(identities: pa.Table, items: pa.Table, void: Void) -> pa.Array:
    """Tell which rows of a file the batch speaks of, or makes void."""
    marks = np.array(void.marks(identities)) if void else np.zeros(identities.num_rows, dtype=bool)
    # Few rows have a key that is in the batch; only those are looked at by all that tells items apart.
    keys = pc.is_in(identities["key"], value_set=items["key"].combine_chunks())
    places = np.flatnonzero(np.asarray(keys))
    if len(places):
        near = identities.take(pa.array(places)).append_column(_POSITION, pa.array(places))
        same = near.join(items.select(IDENTITY), keys=list(IDENTITY), join_type="left semi")
        marks[same[_POSITION].to_numpy()] = True
    return pa.array(marks)


def _read(path: Path, columns: pa.Schema) -> pa.Table:
    # `partitioning=None`: the folder's name is not a column here. The schema undoes what other writers make of texts.
    return parquet.read_table(
        path, columns=columns.names, schema=columns, partitioning=None, use_threads=False, memory_map=False
    )


def _together(files: list[File], fresh_bytes: int) -> set[File]:
    """Choose which files to put together with what is new: from the smallest on, while they are of about one size."""
    found: set[File] = set()
    if len(files) < FILES_MANY:
        return found
    total = fresh_bytes
    for file in sorted(files, key=lambda each: each.bytes):
        if file.bytes > 2 * max(total, 1 << 16) or file.bytes > FILE_BYTES_MAX // 2:
            break
        found.add(file)
        total += file.bytes
    return found if len(found) > 1 else set()


def write(root: Path, part: int, rows: pa.Table) -> list[File]:
    """Write rows into new files of a part; none for no rows."""
    if not rows.num_rows:
        return []
    (root / f"{PART}={part}").mkdir(exist_ok=True)
    count = -(-rows.nbytes // FILE_BYTES_MAX)
    each = -(-rows.num_rows // count)
    return [_write(root, part, rows.slice(start, each)) for start in range(0, rows.num_rows, each)]


def _write(root: Path, part: int, rows: pa.Table) -> File:
    path = f"{PART}={part}/{time.time_ns():019}-{uuid.uuid4().hex[:12]}.parquet"
    parquet.write_table(
        rows,
        root / path,
        compression="zstd",
        compression_level=1,
        row_group_size=ROW_GROUP_ROWS,
        use_dictionary=_REPEATING,
        write_statistics=["vbucket", "seqno", "changed_at"],
    )
    return File(path, (root / path).stat().st_size, rows.num_rows)


__all__ = ["PART", "PARTS", "File", "Rewritten", "part_of", "parts_of", "rewrite", "split", "write"]
