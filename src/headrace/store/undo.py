"""The undo index: what the last transactions of a vbucket replaced, so that they can be taken back.

One entry a transaction, under the seqno that the vbucket had before it (its *boundary*): how many live items there
were, and the records that the transaction replaced, one behind the other. To go back to a boundary is to drop every
record above it, and to put back those of its entry and of all later ones that are not above it: each key has at most
one such record, the one that was its newest at the boundary.

Only a whole boundary is a place to go back to: in the middle of a replica's snapshot no state of its producer is on
disk. The oldest entries are dropped when there are too many of them, or too many bytes in them; while a snapshot is
unfinished, not those that lead back to its beginning. What cannot be taken back any more is given up as a whole: the
vbucket is then emptied.
"""

from __future__ import annotations

from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from headrace.ids import Seqno
from headrace.store import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import lmdb

    from headrace.store.contract import VBucketRecord
    from headrace.store.environment import Database
    from headrace.store.places import Places

ENTRIES_MAX = 32
"""How many transactions of a vbucket can be taken back."""
STORE_BYTES_MAX = 256 << 20
"""How many bytes of replaced records a store keeps, shared out evenly among its vbuckets."""

_BODY_BYTES = Struct(">I")


class Boundary(NamedTuple):
    """The key of an entry. The turns and sums of the first and the last one tell how much there is between them."""

    vbucket: int
    seqno: int
    is_whole: int
    turn: int
    """Rises by one with each entry of the vbucket."""
    bytes_before: int
    """How many bytes the entries before it have had."""
    bytes_after: int
    """The same with its own."""


def share_bytes(vbuckets: int) -> int:
    """How many bytes of replaced records a vbucket may keep, in a store of so many."""
    return STORE_BYTES_MAX // max(1, vbuckets)


def keeps_boundary(before: VBucketRecord | None, now: VBucketRecord) -> bool:
    """Whether a transaction leaves a boundary behind. What was empty needs none: it can always be emptied."""
    return before is not None and 0 < before.high_seqno < now.high_seqno


def is_kept(seqno: int, entries: int, size: int, bytes_max: int, now: VBucketRecord) -> bool:
    """Whether the oldest entry stays, when so many entries and bytes begin with it."""
    if entries <= ENTRIES_MAX and size <= bytes_max:
        return True
    return not now.is_whole and seqno >= now.whole_seqno


def rolled_back(before: VBucketRecord, seqno: int, live_items: int) -> VBucketRecord:
    """What is kept of a vbucket that went back to a seqno. Its state stays, and no CAS is given twice.

    Of the failover log, the branches that began later are forgotten. Should none be left, since the log has forgotten
    its beginning, the oldest one stays as if it had begun here: nobody can have less of it than what is here.
    """
    to = Seqno(seqno)
    log = tuple(branch for branch in before.failover_log if branch[1] <= to)
    return replace(
        before,
        failover_log=log or ((before.failover_log[-1][0], to),),
        high_seqno=to,
        purge_seqno=min(before.purge_seqno, to),
        live_items=live_items,
        snapshot_start=to,
        snapshot_end=to,
        whole_seqno=to,
    )


class UndoIndex:
    """The index in one transaction. Its one cursor is used for all, since to make one takes as long as a put."""

    def __init__(self, txn: lmdb.Transaction[bytes], database: Database) -> None:
        self._txn = txn
        self._database = database
        self._cursor = txn.cursor(database)

    def keep(
        self, vbucket: int, before: VBucketRecord, now: VBucketRecord, replaced: Sequence[bytes], bytes_max: int
    ) -> None:
        """Put the entry of a transaction, and drop those for which there is no room."""
        size = sum(map(len, replaced))
        if now.is_whole and size > bytes_max:
            self.forget(vbucket)  # nothing from before can be reached without it
            return
        cursor = self._cursor
        turn, bytes_before = 0, 0
        before_it = self._last(vbucket)
        if before_it is not None:
            turn, bytes_before = before_it.turn + 1, before_it.bytes_after
        newest = Boundary(vbucket, before.high_seqno, before.is_whole, turn, bytes_before, bytes_before + size)
        entry = layout.COUNT.pack(before.live_items) + b"".join(replaced)
        self._txn.put(layout.UNDO.pack(*newest), entry, db=self._database)
        cursor.set_range(layout.VBUCKET.pack(vbucket))
        while (oldest := self._read(vbucket)) is not None:
            entries, total = newest.turn - oldest.turn + 1, newest.bytes_after - oldest.bytes_before
            if is_kept(oldest.seqno, entries, total, bytes_max, now):
                return
            cursor.delete()

    def boundary(self, vbucket: int, to: int) -> Boundary | None:
        """The newest whole boundary that is not above a seqno."""
        boundary = self._last(vbucket)
        while boundary is not None and not (boundary.seqno <= to and boundary.is_whole):
            boundary = self._read(vbucket) if self._cursor.prev() else None
        return boundary

    def live_items(self, boundary: Boundary) -> int:
        """How many live items there were."""
        entry = self._txn.get(layout.UNDO.pack(*boundary), b"", db=self._database)
        count: int = layout.COUNT.unpack_from(entry)[0]
        return count

    def take_back(self, boundary: Boundary, places: Places) -> Iterator[bytes]:
        """Drop a boundary and all later ones, and give each record that was the newest of its key there."""
        cursor = self._cursor
        place = boundary.seqno.to_bytes(8)
        cursor.set_range(layout.UNDO.pack(*boundary))
        while self._read(boundary.vbucket) is not None:
            for record in _parted(cursor.value(), places):
                if record[places.seqno_at : places.seqno_at + 8] <= place:
                    yield record
            cursor.delete()

    def forget(self, vbucket: int) -> None:
        """Drop all entries of a vbucket."""
        self._cursor.set_range(layout.VBUCKET.pack(vbucket))
        while self._read(vbucket) is not None:
            self._cursor.delete()

    def _last(self, vbucket: int) -> Boundary | None:
        """Go to the newest entry of a vbucket."""
        cursor = self._cursor
        found = cursor.prev() if cursor.set_range(layout.VBUCKET.pack(vbucket + 1)) else cursor.last()
        return self._read(vbucket) if found else None

    def _read(self, vbucket: int) -> Boundary | None:
        """The key at the cursor, if it is one of this vbucket."""
        key = self._cursor.key()
        return Boundary(*layout.UNDO.unpack(key)) if key.startswith(layout.VBUCKET.pack(vbucket)) else None


def _parted(entry: bytes, places: Places) -> Iterator[bytes]:
    """The records of an entry."""
    at, unpack = layout.COUNT.size, _BODY_BYTES.unpack_from
    while at < len(entry):
        end = at + places.header_bytes + unpack(entry, at + places.body_bytes_at)[0]
        yield entry[at:end]
        at = end
