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
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    from headrace.node.bucket import Bucket
    from headrace.node.flusher import Flusher
    from headrace.node.vbucket import VBucket
    from headrace.store.backfill import Backfill

MEMORY_SNAPSHOT_BYTES_MAX = 2 << 20
"""A larger snapshot is read from disk: in memory it would be kept for as long as the consumer takes."""
BLOCK_BYTES = 1280 << 10
"""What is read at a time."""
DISK_BLOCK_BYTES_MIN = 16 << 10
"""The least that is read from disk at a time, however little may be sent."""
BACKFILLS_OF_BUCKET_MAX = 1024
"""How many streams of a bucket read from disk at a time: half of what the store has room for."""
RECORDS_AT_ONCE = 1024
"""How many records of memory are looked at for a block."""


class Feed:
    """Reads the changes of one vbucket for one stream."""

    __slots__ = (
        "_backfill",
        "_bucket",
        "_flusher",
        "_next",
        "_records",
        "_vb",
        "at",
        "awaits_disk",
        "block",
        "disk_only",
        "has_gap",
        "ignores_purge",
        "is_starved",
    )

    def __init__(
        self, bucket: Bucket, flusher: Flusher, vb: VBucket, *, disk_only: bool, ignores_purge: bool = False
    ) -> None:
        self._bucket = bucket
        self._flusher = flusher
        self._vb = vb
        self.disk_only = disk_only
        self.ignores_purge = ignores_purge
        self.has_gap = False
        """Whether deletions behind the cursor were purged: what is left would not tell the consumer of them."""
        self.is_starved = False
        """Whether too many others read from the disk."""
        self.awaits_disk = False
        """Whether the next snapshot comes from disk, once that has it: memory has too much, or not all."""
        self._backfill: Backfill | None = None
        self._records: list[bytes] = []
        self._next = 0
        self.block: bytearray | memoryview = bytearray()
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
        self.is_starved = False
        if self._flusher.stopped or self._bucket.trouble is not None:
            self.awaits_disk = False
        if vb.whole_seqno <= cursor or (self.awaits_disk and vb.persisted_seqno <= cursor):
            return None
        records = None if self.disk_only or self.awaits_disk else vb.newer(cursor)
        if records is not None and self._keeps(records):
            self._records, self._next = records, 0
            return (seqno_of(records[-1]), False) if records else None
        if vb.persisted_seqno <= cursor or not may_read_disk:
            return None
        if len(self._bucket.backfills) >= BACKFILLS_OF_BUCKET_MAX:
            self.is_starved = True
            return None
        return self._open_disk(cursor)

    def _keeps(self, records: list[bytes]) -> bool:
        """Whether a snapshot may be sent from memory; if not, it is brought to disk, and read from there."""
        if self._flusher.stopped or self._bucket.trouble is not None:
            return True
        if sum(map(len, records)) <= MEMORY_SNAPSHOT_BYTES_MAX:
            return True
        self.awaits_disk = True
        self._flusher.hurry()
        return False

    def _open_disk(self, cursor: int) -> tuple[int, bool] | None:
        self._backfill = backfill = self._bucket.disk.backfill(self._vb.id, cursor)
        self._bucket.backfills.add(self)
        self.has_gap = 0 < cursor < backfill.vbucket.purge_seqno and not self.ignores_purge
        # What a replica has on disk in the middle of a large snapshot is no state to show; its end comes with a flush.
        self.awaits_disk = not backfill.is_whole and not self._vb.in_snapshot
        if self.has_gap or backfill.high_seqno <= cursor or not backfill.is_whole:
            self.close()
            return None
        return backfill.high_seqno, True

    def fill(self, bytes_wanted: int) -> bool:
        """Have a block to send from; False when the snapshot is at its end.

        No more than is wanted now: a consumer that stops reading leaves what was filled here.
        """
        if self.at < len(self.block):
            return True
        self.at = 0
        if self._backfill is not None:
            self.block = self._backfill.block(max(DISK_BLOCK_BYTES_MIN, min(bytes_wanted, BLOCK_BYTES)))
        else:
            count = min(RECORDS_AT_ONCE, bytes_wanted // HEADER_BYTES + 1)
            records = self._records[self._next : self._next + count]
            enough = bisect_left(list(accumulate(map(len, records))), min(bytes_wanted, BLOCK_BYTES)) + 1
            self.block = bytearray().join(records[:enough])
            self._next += min(enough, len(records))
        return bool(self.block)

    def advance(self, at: int) -> int:
        """Go on at a place of the block, and let go of it at its end: others fill it; gives how far that is."""
        read, self.at = at - self.at, at
        if at >= len(self.block):
            self.block, self.at = bytearray(), 0
        return read

    def close(self) -> None:
        """Let go of what is read from."""
        if self._backfill is not None:
            self._backfill.close()
            self._backfill = None
            self._bucket.backfills.discard(self)
        self._records, self._next = [], 0
        self.block, self.at = bytearray(), 0
