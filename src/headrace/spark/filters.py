"""Which rows of a batch read are wanted: what Spark pushes down, and `startingTimestamp`.

A filter on the vbucket, or on a whole key, says which vbuckets to read at all; one on the seqno, where to begin and
end. The rest is done to whole columns in the task, so that fewer rows go to the JVM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from headrace.client import vbucket_of
from headrace.columns import EVENTS
from headrace.columns.schema import ROLLBACK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.datasource import Filter

_LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rows are wanted; None where nothing was said of it."""

    vbuckets: frozenset[int] | None = None
    seqno_from: int = 0
    seqno_to: int = _LONG_MAX
    events: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    prefix: str | None = None
    since_s: float | None = None

    @property
    def everything(self) -> bool:
        """Whether no row is left out once the ranges are right."""
        bounded = self.seqno_from > 0 or self.seqno_to < _LONG_MAX
        named = self.events is not None or self.keys is not None or self.prefix is not None
        return not (bounded or named or self.since_s is not None)

    def may_hold(self, vbucket: int, vbuckets: int, *, hashed: bool) -> bool:
        """Whether a vbucket can hold a wanted row; `hashed` tells that keys lie where clients put them."""
        if self.vbuckets is not None and vbucket not in self.vbuckets:
            return False
        if self.keys is None or not hashed:
            return True
        return any(vbucket_of(key.encode(), vbuckets) == vbucket for key in self.keys)

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out the rows that are not wanted; a rollback is always."""
        if self.everything:
            return rows
        # A range of changes is cut already; of documents, everything is read.
        seqnos = rows.column("seqno")
        masks = [pc.and_(pc.greater_equal(seqnos, self.seqno_from), pc.less_equal(seqnos, self.seqno_to))]
        if self.events is not None:
            masks.append(pc.is_in(rows.column("event"), pa.array(sorted(self.events), pa.string())))
        if self.keys is not None:
            masks.append(pc.is_in(rows.column("key"), pa.array(sorted(self.keys), pa.string())))
        if self.prefix is not None:
            masks.append(pc.starts_with(rows.column("key"), self.prefix))
        if self.since_s is not None:
            since = pa.scalar(datetime.fromtimestamp(self.since_s, UTC), pa.timestamp("us", tz="UTC"))
            # What has no clock in its CAS cannot be said to be older.
            masks.append(pc.fill_null(pc.greater_equal(rows.column("changed_at"), since), fill_value=True))
        mask = masks[0]
        for each in masks[1:]:
            mask = pc.and_(mask, each)
        return rows.filter(pc.or_(pc.fill_null(mask, fill_value=False), pc.equal(rows.column("event"), _ROLLED_BACK)))


_ROLLED_BACK = EVENTS[ROLLBACK]


def push(wanted: Wanted, filters: Iterable[Filter], *, text_keys: bool) -> tuple[Wanted, list[Filter]]:
    """Take over the filters that can be done here; gives those that Spark has to do itself."""
    left = []
    for each in filters:
        taken = _push(wanted, each, text_keys=text_keys)
        if taken is None:
            left.append(each)
        else:
            wanted = taken
    return wanted, left


def _push(wanted: Wanted, each: Filter, *, text_keys: bool) -> Wanted | None:
    found: Wanted | None = None
    match each:
        case EqualTo(attribute=(name,), value=value) | EqualNullSafe(attribute=(name,), value=value):
            found = _equal(wanted, name, (value,), text_keys=text_keys)
        case In(attribute=(name,), value=values):
            found = _equal(wanted, name, tuple(values), text_keys=text_keys)
        case StringStartsWith(attribute=("key",), value=value) if text_keys and wanted.prefix is None:
            found = replace(wanted, prefix=value)
        case GreaterThan(attribute=("seqno",), value=int(value)):
            found = replace(wanted, seqno_from=max(wanted.seqno_from, value + 1))
        case GreaterThanOrEqual(attribute=("seqno",), value=int(value)):
            found = replace(wanted, seqno_from=max(wanted.seqno_from, value))
        case LessThan(attribute=("seqno",), value=int(value)):
            found = replace(wanted, seqno_to=min(wanted.seqno_to, value - 1))
        case LessThanOrEqual(attribute=("seqno",), value=int(value)):
            found = replace(wanted, seqno_to=min(wanted.seqno_to, value))
    return found


def _equal(wanted: Wanted, name: str, values: tuple[Any, ...], *, text_keys: bool) -> Wanted | None:
    if any(value is None for value in values):
        return None
    if name == "vbucket":
        return replace(wanted, vbuckets=_both(wanted.vbuckets, values))
    if name == "event":
        return replace(wanted, events=_both(wanted.events, values))
    if name == "key" and text_keys:
        return replace(wanted, keys=_both(wanted.keys, values))
    if name == "seqno" and len(values) == 1:
        low, high = max(wanted.seqno_from, values[0]), min(wanted.seqno_to, values[0])
        return replace(wanted, seqno_from=low, seqno_to=high)
    return None


def _both(known: frozenset[Any] | None, values: tuple[Any, ...]) -> frozenset[Any]:
    return frozenset(values) if known is None else known & frozenset(values)


__all__ = ["Wanted", "push"]
