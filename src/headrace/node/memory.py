"""How much of a bucket is in memory, and what is dropped from it when that is too much.

What waits for the disk (`dirty`, `flushing`, `partial`) can only wait; whoever brings more has to wait too. What is on
disk as well (`items`, `recent`) may be dropped at any time, and is read again when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.node.vbucket import append_newer

if TYPE_CHECKING:
    from headrace.node.limits import NodeLimits
    from headrace.node.vbucket import VBucket

RECORD_OVERHEAD_BYTES = 200
"""What Python takes beside the bytes: a record, its key, and its places in two dicts."""


class Memory:
    """The sizes of all that a bucket's vbuckets hold."""

    def __init__(self, limits: NodeLimits) -> None:
        self.limits = limits
        self.vbuckets: list[VBucket | None] = []
        self.dirty_bytes = 0
        self.flushing_bytes = 0
        self.partial_bytes = 0
        """What replicas hold back until their snapshots are whole."""
        self.resident_bytes = 0
        self.recent_bytes = 0
        self._evict_from = 0

    @property
    def waiting_bytes(self) -> int:
        """What waits for the disk, or until it may go there."""
        return self.dirty_bytes + self.flushing_bytes + self.partial_bytes

    @property
    def live_items(self) -> int:
        """How many items there are, those among them that are expired and not yet seen to be."""
        return sum(vb.live_items for vb in self.vbuckets if vb is not None)

    def settle(self, vb: VBucket, *, keep_recent: bool = True) -> None:
        """What the writer had of a vbucket is on disk: keep it as such, and for the streams that follow."""
        items, flushed = vb.items, vb.flushing
        size = bytes_of(flushed)
        for key in items.keys() & flushed.keys():
            self.resident_bytes -= len(items[key]) + RECORD_OVERHEAD_BYTES
        self.resident_bytes += size
        items.update(flushed)
        vb.flushing = {}
        if keep_recent:
            before = len(vb.recent) + len(flushed)
            self.recent_bytes += size - append_newer(vb.recent, flushed)
            self.recent_bytes -= RECORD_OVERHEAD_BYTES * (before - len(vb.recent))

    def forget(self, vb: VBucket) -> int:
        """Drop what is kept of a vbucket in memory though the disk has it; gives how many items that were."""
        dropped = len(vb.items)
        self.resident_bytes -= bytes_of(vb.items)
        vb.items = {}
        return dropped

    def evict(self) -> None:
        """Drop about half of what is on disk too, vbucket by vbucket, once it is more than memory may hold."""
        if self.resident_bytes <= self.limits.resident_bytes_max:
            return
        there = [vb for vb in self.vbuckets if vb is not None and vb.items]
        total, dropped = sum(len(vb.items) for vb in there), 0
        for _ in range(len(there)):
            self._evict_from = (self._evict_from + 1) % len(there)
            dropped += self.forget(there[self._evict_from])
            if dropped > total // 2:
                break

    def drop_recent(self, vb: VBucket) -> None:
        """Forget what is kept of a vbucket for the streams that follow it."""
        self.recent_bytes -= bytes_of(vb.recent)
        vb.drop_recent()

    def drop_recents(self) -> None:
        """The same for all vbuckets."""
        self.recent_bytes = 0
        for vb in self.vbuckets:
            if vb is not None:
                vb.drop_recent()

    def take_partial(self, vb: VBucket) -> dict[bytes, bytes]:
        """Take what a vbucket holds back."""
        partial, vb.partial = vb.partial, {}
        self.partial_bytes -= vb.partial_bytes
        vb.partial_bytes = 0
        return partial

    def empty(self, vb: VBucket) -> None:
        """Drop all that memory holds of a vbucket, be it on disk or not."""
        self.dirty_bytes = max(0, self.dirty_bytes - bytes_of(vb.dirty))  # what hot.py adds to it is near enough
        vb.dirty = {}
        self.take_partial(vb)
        self.drop_recent(vb)
        self.forget(vb)


def bytes_of(layer: dict[bytes, bytes]) -> int:
    """How much memory a layer of records takes."""
    return sum(map(len, layer.values())) + RECORD_OVERHEAD_BYTES * len(layer)


__all__ = ["RECORD_OVERHEAD_BYTES", "Memory", "bytes_of"]
