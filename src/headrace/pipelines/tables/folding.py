"""The rows of a micro-batch -> each item's newest row, and what of the table is void.

A batch brings any number of versions of an item, in no order; of those the one with the largest seqno counts. What a
`rollback` row says comes before all other rows of its vbucket: of what was there, nothing is left. A collection that
was dropped takes along what its vbucket had in it before. Everything is done on columns; only the few rows about
vbuckets and collections are looked at one by one.

An item is known by vbucket, scope, collection and key: servers do not check that a key lies in the vbucket which
clients look for it in, and who writes it elsewhere writes another item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.schema import DELETION, EVENTS, EXPIRATION, MUTATION, ROLLBACK, schema
from headrace.pipelines.tables import TableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.pipelines.tables.collections import CollectionNames, Dropped

IDENTITY = ("vbucket", "scope", "collection", "key")
"""The columns that tell items apart."""

ITEM = (
    "key",
    "value",
    "vbucket",
    "vbuuid",
    "seqno",
    "rev",
    "cas",
    "flags",
    "expiry",
    "datatype",
    "scope",
    "collection",
    "changed_at",
)
"""The columns of an item, in the order in which a table has them."""

GONE = "gone"
_ITEM_EVENTS = tuple(EVENTS[number] for number in (MUTATION, DELETION, EXPIRATION))
_POSITION = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class Void:
    """What of a table is no more, apart from single items: whole vbuckets, and collections within vbuckets."""

    vbuckets: pa.Array
    collections: pa.Table
    """With the columns vbucket, scope, collection and `before`, a seqno."""

    @classmethod
    def of(cls, vbuckets: Iterable[int] = (), dropped: Iterable[Dropped] = ()) -> Void:
        """Put together what rows say."""
        columns = pa.schema(
            [("vbucket", pa.int32()), ("scope", pa.string()), ("collection", pa.string()), ("before", pa.int64())]
        )
        rows = [dict(zip(columns.names, each, strict=True)) for each in dropped]
        found = pa.Table.from_pylist(rows, schema=columns)
        if len(rows) > 1:  # a name that was dropped, made again and dropped again counts once
            last = found.group_by(list(IDENTITY[:3])).aggregate([("before", "max")])
            found = last.rename_columns({"before_max": "before"}).select(columns.names).cast(columns)
        return cls(vbuckets=pa.array(sorted(set(vbuckets)), pa.int32()), collections=found)

    def __bool__(self) -> bool:
        return bool(len(self.vbuckets) or self.collections.num_rows)

    def marks(self, items: pa.Table) -> pa.Array:
        """Tell of each row of a table, written before the batch, whether it is void."""
        marks = pc.is_in(items["vbucket"], value_set=self.vbuckets)
        if self.collections.num_rows:
            marks = pc.or_(marks, self._marks_before(items, seqnos=False))
        return _flat(marks)

    def marks_within(self, items: pa.Table) -> pa.Array:
        """Tell of each row of the batch itself whether a later row of it makes it void."""
        return self._marks_before(items, seqnos=True)

    def _marks_before(self, items: pa.Table, *, seqnos: bool) -> pa.Array:
        if not self.collections.num_rows:
            return pa.array(np.zeros(items.num_rows, dtype=bool))
        keys = items.select([*IDENTITY[:3], "seqno"]) if seqnos else items.select(list(IDENTITY[:3]))
        numbered = keys.append_column(_POSITION, pa.array(np.arange(items.num_rows)))
        found = numbered.join(self.collections, keys=list(IDENTITY[:3]), join_type="inner")
        if seqnos:
            found = found.filter(pc.less(found["seqno"], found["before"]))
        marks = np.zeros(items.num_rows, dtype=bool)
        marks[found[_POSITION].to_numpy()] = True
        return pa.array(marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What a micro-batch does to a table."""

    items: pa.Table
    """One row for each item that the batch speaks of, with the columns of `ITEM` and `gone`."""
    void: Void
    """What was there before the batch, and is void."""

    def __bool__(self) -> bool:
        return bool(self.items.num_rows or self.void)


def item_schema(keys: str) -> pa.Schema:
    """The columns of an item."""
    fields = schema(keys)
    return pa.schema([fields.field(name) for name in ITEM])


def fold(rows: pa.Table, names: CollectionNames, *, keys: str) -> Folded:
    """Fold a batch of change rows; `names` has learned from it already."""
    plain = _plain(rows, keys)
    void = Void.of(_rolled_back(rows), names.dropped(rows))
    newest = plain.take(newest_of(plain))
    gone = pc.or_(pc.not_equal(newest["event"], EVENTS[MUTATION]), void.marks_within(newest))
    return Folded(items=newest.select(ITEM).append_column(GONE, gone), void=void)


def newest_of(items: pa.Table) -> pa.Array:
    """Give the positions of the rows with the largest seqno of each item."""
    order = pc.sort_indices(items["seqno"])
    sorted_keys = items.select(IDENTITY).take(order).append_column(_POSITION, pa.array(np.arange(len(order))))
    last = sorted_keys.group_by(list(IDENTITY)).aggregate([(_POSITION, "max")])[f"{_POSITION}_max"]
    return pc.take(order, last.combine_chunks())


def _plain(rows: pa.Table, keys: str) -> pa.Table:
    """Pick the rows of items, in the types of a table; a scope that nobody named is an empty text."""
    items = rows.filter(pc.is_in(rows["event"], value_set=pa.array(_ITEM_EVENTS)))
    items = items.select(["event", *ITEM]).cast(pa.schema([("event", pa.string()), *item_schema(keys)]))
    scope = items.schema.get_field_index("scope")
    return items.set_column(scope, "scope", pc.fill_null(items["scope"], ""))


def _rolled_back(rows: pa.Table) -> list[int]:
    found = rows.filter(pc.equal(rows["event"], EVENTS[ROLLBACK])).select(["vbucket", "seqno"]).to_pylist()
    for row in found:
        if row["seqno"]:
            raise TableError(
                f"vbucket {row['vbucket']} was rolled back to seqno {row['seqno']}: a table has no older versions to "
                "go back to; read with onRollback=rebuild"
            )
    return [row["vbucket"] for row in found]


def _flat(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


__all__ = ["GONE", "IDENTITY", "ITEM", "Folded", "Void", "fold", "item_schema", "newest_of"]
