"""One vbucket in memory: what it is, what waits for the disk, and what is kept of the rest.

    dirty     key -> record: acknowledged, not on its way yet; in order of seqno, each key once
    flushing  the same for what the writer has in hand
    items     key -> record: as much of what is on disk as memory allows

A lookup asks them in this order, then the disk. `dirty` goes to disk as a whole: versions in between are gone from it,
so no part of it is a state that the vbucket ever had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.history import FailoverLog, State
from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.store import Changes, VBucketRecord

if TYPE_CHECKING:
    from collections.abc import MutableSequence


class VBucket:
    """The numbers and the items of one vbucket. `Bucket` is the only one that changes it."""

    __slots__ = (
        "_seqnos",
        "dirty",
        "failover_log",
        "flushing",
        "id",
        "items",
        "live_items",
        "persisted_seqno",
        "purge_seqno",
        "state",
        "vbuuid",
    )

    def __init__(self, vbucket: VBucketId, kept: VBucketRecord, seqnos: MutableSequence[int]) -> None:
        self.id = vbucket
        self._seqnos = seqnos
        self.state = State(kept.state)
        self.failover_log = FailoverLog.from_entries(kept.failover_log)
        self.vbuuid: VbUuid = self.failover_log.latest.vbuuid
        self.high_seqno: int = kept.high_seqno
        self.persisted_seqno: int = kept.high_seqno
        self.purge_seqno: int = kept.purge_seqno
        self.live_items = kept.live_items
        self.items: dict[bytes, bytes] = {}
        self.dirty: dict[bytes, bytes] = {}
        self.flushing: dict[bytes, bytes] = {}

    @property
    def high_seqno(self) -> int:
        """The seqno of the last change."""
        return self._seqnos[self.id]

    @high_seqno.setter
    def high_seqno(self, seqno: int) -> None:
        self._seqnos[self.id] = seqno

    def branch(self, vbuuid: VbUuid, seqno: int) -> None:
        """Begin a new branch of history."""
        self.failover_log = self.failover_log.branch(vbuuid=vbuuid, seqno=Seqno(seqno))
        self.vbuuid = vbuuid

    def record(self, cas_max: int) -> VBucketRecord:
        """What the disk is to know of the vbucket as it is now."""
        return VBucketRecord(
            state=self.state,
            failover_log=tuple((branch.vbuuid, branch.seqno) for branch in self.failover_log),
            high_seqno=Seqno(self.high_seqno),
            purge_seqno=Seqno(self.purge_seqno),
            cas_max=Cas(cas_max),
            live_items=self.live_items,
            snapshot_start=Seqno(self.high_seqno),
            snapshot_end=Seqno(self.high_seqno),
        )

    def resident(self, key: bytes) -> bytes | None:
        """The newest record of a key, if memory has it."""
        return self.dirty.get(key) or self.flushing.get(key) or self.items.get(key)

    def take(self, cas_max: int) -> Changes:
        """Hand all that is dirty to the writer."""
        assert not self.flushing, "a vbucket is flushed by one batch at a time"
        self.flushing, self.dirty = self.dirty, {}
        return Changes(vbucket=self.id, records=self.flushing.values(), now=self.record(cas_max))

    def put_back(self) -> None:
        """Take back what the writer could not write; what came since is newer, and stays behind it."""
        kept = {key: record for key, record in self.flushing.items() if key not in self.dirty}
        kept.update(self.dirty)
        self.dirty, self.flushing = kept, {}
