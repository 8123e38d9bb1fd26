"""Compares what two places hold, item by item: buckets, tables, logs of changes.

The first is taken for what should be. Each group of vbuckets is read from both and joined by key, on columns: no loop
over items, and no more in memory than one group of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipelines.sides import COMPARED, IDENTITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.pipelines.sides import Side

EXAMPLES = 5
MISSING, EXTRA, STALE = "missing", "extra", "stale"
KINDS = (MISSING, EXTRA, STALE)
_FIRST, _SECOND = "first", "second"


@dataclass(slots=True)
class Found:
    """Items of one kind of difference: how many, and some of them."""

    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Comparison:
    """What is the same in both, and what is not."""

    first: str
    second: str
    equal: int = 0
    first_items: int = 0
    second_items: int = 0
    missing: Found = field(default_factory=Found)
    """In the first only."""
    extra: Found = field(default_factory=Found)
    """In the second only."""
    stale: Found = field(default_factory=Found)
    """In both, and not the same."""
    differing: dict[str, int] = field(default_factory=dict)
    """In how many stale items each column differs."""

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same."""
        return not (self.missing.count or self.extra.count or self.stale.count)


@dataclass(slots=True)
class Progress:
    """How far a comparison is."""

    groups: int = 0
    done: int = 0
    rows: int = 0


def compare(
    first: Side,
    second: Side,
    *,
    examples: int = EXAMPLES,
    ignored: Iterable[str] = (),
    tell: Callable[[Progress], None] = lambda _: None,
) -> Comparison:
    """Compare two sides; `tell` is called now and then, and may raise to end it."""
    groups = min(first.groups(), second.groups())
    found = Comparison(first.name, second.name)
    columns = [name for name in COMPARED if name not in set(ignored)]
    progress = Progress(groups)

    def seen(rows: int) -> None:
        progress.rows += rows
        tell(progress)

    for number in range(groups):
        _take(found, first.items(number, groups, seen), second.items(number, groups, seen), columns, examples)
        progress.done += 1
        tell(progress)
    return found


def _take(found: Comparison, first: pa.Table, second: pa.Table, columns: list[str], examples: int) -> None:
    found.first_items += first.num_rows
    found.second_items += second.num_rows
    keys = list(IDENTITY)
    if _repeats(first) or _repeats(second):  # a key in two vbuckets is two items
        keys.append("vbucket")
    joined = _marked(first, keys, _FIRST).join(
        _marked(second, keys, _SECOND), keys=keys, join_type="full outer", left_suffix="_1", right_suffix="_2"
    )
    missing, extra = pc.is_null(joined[_SECOND]), pc.is_null(joined[_FIRST])
    _note(found.missing, joined.filter(missing), examples)
    _note(found.extra, joined.filter(extra), examples)
    both = joined.filter(pc.invert(pc.or_(missing, extra)))
    stale = pa.array(np.zeros(both.num_rows, dtype=bool))
    for name in columns:
        differs = _differs(both[f"{name}_1"], both[f"{name}_2"])
        count = pc.sum(differs).as_py() or 0
        if count:
            found.differing[name] = found.differing.get(name, 0) + count
        stale = pc.or_(stale, differs)
    different = both.filter(stale)
    found.equal += both.num_rows - different.num_rows
    _note(found.stale, different, examples, columns)


def _repeats(items: pa.Table) -> bool:
    return bool(items.group_by(list(IDENTITY)).aggregate([]).num_rows != items.num_rows)


def _marked(items: pa.Table, keys: list[str], mark: str) -> pa.Table:
    """Keep what is joined and compared, and a column that tells whether the row is there."""
    kept = items.select([*keys, *COMPARED])
    return kept.append_column(mark, pa.array(np.ones(kept.num_rows, dtype=bool)))


def _differs(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.ChunkedArray:
    # Two nulls are the same, and null is not the same as anything else.
    unknown = pc.not_equal(pc.is_null(first), pc.is_null(second))
    return pc.or_(unknown, pc.fill_null(pc.not_equal(first, second), False))  # noqa: FBT003 - Arrow's own form


def _note(kind: Found, rows: pa.Table, examples: int, columns: Iterable[str] = ()) -> None:
    kind.count += rows.num_rows
    wanted = max(examples - len(kind.examples), 0)
    for row in rows.slice(0, wanted).to_pylist():
        told = {"scope": row["scope"], "collection": row["collection"], "key": row["key"]}
        differing = [name for name in columns if row[f"{name}_1"] != row[f"{name}_2"]]
        if differing:
            told["differing"] = {name: [row[f"{name}_1"], row[f"{name}_2"]] for name in differing}
        kind.examples.append(told)


__all__ = ["EXAMPLES", "KINDS", "Comparison", "Found", "Progress", "compare"]
