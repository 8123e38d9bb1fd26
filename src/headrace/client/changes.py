"""Changes one by one, out of a batch: what the columns of a row say, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from headrace.ids import Seqno, VBucketId
from headrace.wire.catalogue import SnapshotMarker
from headrace.wire.codes import SnapshotFlag, names_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator
    from typing import Any

    import pyarrow as pa

    from headrace.client.events import Batch

_UNSIGNED = ("vbuuid", "seqno", "rev", "cas", "snapshot_start", "snapshot_end")


class Change(NamedTuple):
    """One change. Numbers are those of the wire, unsigned; what a message does not carry is None."""

    event: str
    """`mutation`, `deletion`, `expiration`, `flush`, `system` or `seqno_advanced`."""
    vbucket: int
    vbuuid: int
    seqno: int
    """0 for a change that came by TAP, which has no seqnos."""
    rev: int | None
    cas: int
    key: str | bytes | None
    value: bytes | None
    datatype: int | None
    flags: int | None
    expiry: int | None
    lock_time: int | None
    delete_time: int | None
    scope: str | None
    collection: str | None
    xattrs: dict[str, str] | None
    snapshot_start: int | None
    snapshot_end: int | None
    snapshot_type: str | None
    changed_at: dt.datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarked:
    """The changes that follow, up to `end`, belong together: a copy is consistent after the last of them."""

    vbucket: VBucketId
    start: Seqno
    end: Seqno
    kind: str


class Taker(Protocol):
    """Who is told how far changes were handed on."""

    def advance(self, vbucket: VBucketId, seqno: Seqno, end: Seqno) -> None:
        """One change was handed on."""

    def take(self, event: Batch) -> None:
        """All changes of a batch were."""


def changes_of(rows: pa.RecordBatch) -> Iterator[Change]:
    """Give the rows of a batch one by one."""
    return map(Change._make, zip(*(_column(rows, name) for name in Change._fields), strict=True))


def _column(rows: pa.RecordBatch, name: str) -> list[Any]:
    column = rows.column(name)
    if name in _UNSIGNED and not column.null_count:
        found: list[Any] = column.to_numpy().view(np.uint64).tolist()
        return found
    if name == "xattrs":
        return [None if each is None else dict(each) for each in column.to_pylist()]
    listed: list[Any] = column.to_pylist()
    if name in _UNSIGNED:
        return [each if each is None or each >= 0 else each + (1 << 64) for each in listed]
    return listed


def each_change(batch: Batch, taker: Taker) -> Iterator[Change | SnapshotMarked]:
    """Give the changes and markers of a batch in their order; the taker hears of each before it is given."""
    markers = iter(batch.markers)
    marker = next(markers, None)
    # The rows may be fewer than those that the markers were counted among: a bounded reader dropped some at the end of
    # a vbucket. A marker of it may come late then, among changes of others, never among its own.
    for place, change in enumerate(changes_of(batch.rows)):
        while marker is not None and marker.row <= place:
            yield from _marked(marker.message)
            marker = next(markers, None)
        taker.advance(VBucketId(change.vbucket), Seqno(change.seqno), Seqno(change.snapshot_end or change.seqno))
        yield change
    while marker is not None:
        yield from _marked(marker.message)
        marker = next(markers, None)
    taker.take(batch)


def _marked(message: Any) -> Iterator[SnapshotMarked]:
    assert isinstance(message, SnapshotMarker)
    if message.start_seqno is not None and message.end_seqno is not None:
        kind = names_of(SnapshotFlag, message.flags or 0)
        yield SnapshotMarked(vbucket=message.vbucket, start=message.start_seqno, end=message.end_seqno, kind=kind)


__all__ = ["Change", "SnapshotMarked", "Taker", "changes_of", "each_change"]
