"""The changes of one vbucket behind a cursor, a snapshot at a time, from memory or from disk.

Memory first: all newest records behind the cursor, as they are at that moment, are a snapshot. When memory has not all
of them, or they are more than a slow consumer may keep from being dropped, the disk has them: one read transaction is a
snapshot too. So what a stream holds is bounded by `MEMORY_SNAPSHOT_BYTES_MAX`, or by one block and one transaction,
however much there is to send and however slowly it is read. Only while the disk takes nothing does memory have to do.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace.store.records import seqno_of

if TYPE_CHECKING:
    from headrace.node.bucket import Bucket
    from headrace.node.flusher import Flusher
    from headrace.node.vbucket import VBucket
    from headrace.store.backfill import Backfill

MEMORY_SNAPSHOT_BYTES_MAX = 8 << 20
"""A larger snapshot is read from disk: in memory it would be kept for as long as the consumer takes."""
BLOCK_BYTES = 256 << 10
"""What is read at a time."""


class Feed:
    """Reads the changes of one vbucket for one stream."""

    __slots__ = (
        "_backfill",
        "_bucket",
        "_ends",
        "_flusher",
        "_next",
        "_records",
        "_vb",
        "at",
        "awaits_disk",
        "block",
        "disk_only",
    )

    def __init__(self, bucket: Bucket, flusher: Flusher, vb: VBucket, *, disk_only: bool) -> None:
        self._bucket = bucket
        self._flusher = flusher
        self._vb = vb
        self.disk_only = disk_only
        self.awaits_disk = False
        """Whether memory has too much for a snapshot, so that the next one comes from disk."""
        self._backfill: Backfill | None = None
        self._records: list[bytes] = []
        self._ends: list[int] = []
        self._next = 0
        self.block = bytearray()
        self.at = 0

    @property
    def reads_disk(self) -> bool:
        """Whether a read transaction is open."""
        return self._backfill is not None

    def open(self, cursor: int, *, may_read_disk: bool) -> tuple[int, bool] | None:
        """Begin the snapshot behind a cursor: its end, and whether it is from disk. None when there is none now.

        The snapshot of a range whose changes are all purged has no records.
        """
        vb = self._vb
        if vb.whole_seqno <= cursor or (self.awaits_disk and vb.persisted_seqno <= cursor):
            return None
        records = None if self.disk_only or self.awaits_disk else vb.newer(cursor)
        if records is not None:
            ends = list(accumulate(map(len, records)))
            if not records:
                return None
            if ends[-1] <= MEMORY_SNAPSHOT_BYTES_MAX or self._flusher.stopped or self._bucket.trouble is not None:
                self._records, self._ends, self._next = records, ends, 0
                return seqno_of(records[-1]), False
            self.awaits_disk = True
            self._flusher.hurry()
        if vb.persisted_seqno <= cursor or not may_read_disk:
            return None
        self.awaits_disk = False
        self._backfill = self._bucket.disk.backfill(vb.id, cursor)
        # What a replica has on disk in the middle of a large snapshot is no state to show.
        if self._backfill.high_seqno <= cursor or not self._backfill.is_whole:
            self.close()
            return None
        return self._backfill.high_seqno, True

    def fill(self) -> bool:
        """Have a block to send from; False when the snapshot is at its end."""
        if self.at < len(self.block):
            return True
        self.at = 0
        if self._backfill is not None:
            self.block = self._backfill.block(BLOCK_BYTES)
        else:
            first = self._next
            done = self._ends[first - 1] if first else 0
            last = min(bisect_left(self._ends, done + BLOCK_BYTES) + 1, len(self._records))
            self.block = bytearray().join(self._records[first:last])
            self._next = last
        return bool(self.block)

    def close(self) -> None:
        """Let go of what is read from."""
        if self._backfill is not None:
            self._backfill.close()
            self._backfill = None
        self._records, self._ends, self._next = [], [], 0
        self.block, self.at = bytearray(), 0
