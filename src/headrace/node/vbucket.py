"""One vbucket in memory: what it is, what waits for the disk, and what is kept of the rest.

    partial   key -> record: of a snapshot that a replica has not got whole; nobody sees it
    dirty     key -> record: acknowledged, not on its way yet; in order of seqno, each key once
    flushing  the same for what the writer has in hand
    recent    the same for what was flushed last, for the streams that follow
    items     key -> record: as much of what is on disk as memory allows

A lookup asks partial, dirty, flushing and items in this order, then the disk. `dirty` goes to disk as a whole: versions
in between are gone from it, so no part of it is a state that the vbucket ever had.

A replica gets its changes in snapshots, and half a snapshot is no state of its producer either. Its changes wait in
`partial` and go to `dirty` together. A snapshot that is too large for that is *spilled*: its changes go to `dirty` and
to disk as they come, the disk knows that they are not whole, and they are rolled back when the rest will not come.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import compress, islice
from operator import not_
from typing import TYPE_CHECKING

from headrace.history import FailoverLog, State
from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.store import Changes, VBucketRecord
from headrace.store.records import seqno_of

if TYPE_CHECKING:
    from collections.abc import MutableSequence


class VBucket:
    """The numbers and the items of one vbucket. `Bucket` is the only one that changes it."""

    __slots__ = (
        "_seqnos",
        "_snapshot",
        "_whole_seqno",
        "dirty",
        "durable_seqno",
        "failover_log",
        "flushing",
        "id",
        "is_spilled",
        "items",
        "live_items",
        "partial",
        "partial_bytes",
        "persisted_seqno",
        "purge_seqno",
        "recent",
        "recent_from",
        "state",
        "state_on_disk",
        "vbuuid",
    )

    def __init__(
        self, vbucket: VBucketId, kept: VBucketRecord, seqnos: MutableSequence[int], *, is_new: bool = False
    ) -> None:
        self.id = vbucket
        self._seqnos = seqnos
        self.state = State(kept.state)
        self.state_on_disk: State | None = None if is_new else self.state
        """The state that it has after a crash; None for one that the disk does not know yet."""
        self.restore(kept)

    def restore(self, kept: VBucketRecord) -> None:
        """Be what the disk has; the state alone stays, and what memory had beyond it is dropped."""
        self.failover_log = FailoverLog.from_entries(kept.failover_log)
        self.vbuuid: VbUuid = self.failover_log.latest.vbuuid
        self.high_seqno: int = kept.high_seqno
        self.persisted_seqno: int = kept.high_seqno
        """What the disk has, be it a part of a snapshot."""
        self.durable_seqno: int = kept.durable_seqno
        """What is there after a crash and a promotion: half a snapshot is not."""
        self.purge_seqno: int = kept.purge_seqno
        self.live_items = kept.live_items
        self.items: dict[bytes, bytes] = {}
        self.dirty: dict[bytes, bytes] = {}
        self.flushing: dict[bytes, bytes] = {}
        self.partial: dict[bytes, bytes] = {}
        self.partial_bytes = 0
        self.recent: dict[bytes, bytes] = {}
        self.recent_from: int = kept.high_seqno
        """`recent`, `flushing` and `dirty` have the newest record of every key that changed after this seqno."""
        self.is_spilled = not kept.is_whole
        self._snapshot = (int(kept.snapshot_start), int(kept.snapshot_end)) if self.is_spilled else None
        self._whole_seqno: int = kept.whole_seqno

    # -------------------------------------------------------------------------------------------------------- numbers

    @property
    def high_seqno(self) -> int:
        """The seqno of the last change; at a replica, that of the last one which came."""
        return self._seqnos[self.id]

    @high_seqno.setter
    def high_seqno(self, seqno: int) -> None:
        self._seqnos[self.id] = seqno

    @property
    def whole_seqno(self) -> int:
        """The end of the last whole snapshot: what others may be shown, and where a new branch begins."""
        return self.high_seqno if self._snapshot is None else self._whole_seqno

    @property
    def in_snapshot(self) -> bool:
        """Whether a snapshot has begun and not ended."""
        return self._snapshot is not None

    @property
    def snapshot_start(self) -> int:
        """Where the snapshot begins in which `high_seqno` lies; with `snapshot_end`, from where a replica goes on."""
        return self.high_seqno if self._snapshot is None else self._snapshot[0]

    @property
    def snapshot_end(self) -> int:
        """Where it ends: at the high seqno itself, between two snapshots."""
        return self.high_seqno if self._snapshot is None else self._snapshot[1]

    def begin_snapshot(self, start: int, end: int) -> None:
        """What comes now is whole at `end`. In the middle of a snapshot, this one goes on for it."""
        if self._snapshot is None:
            self._whole_seqno = self.high_seqno
        # Servers begin a marker at the first seqno that it brings. A position outside its snapshot would be refused.
        self._snapshot = (min(start, self._whole_seqno), max(end, self.high_seqno))

    def end_snapshot(self) -> None:
        """All of the snapshot is there."""
        self._snapshot = None
        self.is_spilled = False

    def branch(self, vbuuid: VbUuid, seqno: int) -> None:
        """Begin a new branch of history."""
        self.failover_log = self.failover_log.branch(vbuuid=vbuuid, seqno=Seqno(seqno))
        self.vbuuid = vbuuid

    def record(self, cas_max: int) -> VBucketRecord:
        """What the disk is to know of the vbucket as it is now: `partial` is none of its business."""
        high = Seqno(self.high_seqno if self.is_spilled else self.whole_seqno)
        return VBucketRecord(
            state=self.state,
            failover_log=tuple((branch.vbuuid, branch.seqno) for branch in self.failover_log),
            high_seqno=high,
            purge_seqno=Seqno(self.purge_seqno),
            cas_max=Cas(cas_max),
            live_items=self.live_items,
            snapshot_start=Seqno(self.snapshot_start) if self.is_spilled else high,
            snapshot_end=Seqno(self.snapshot_end) if self.is_spilled else high,
            whole_seqno=Seqno(self.whole_seqno),
        )

    # ---------------------------------------------------------------------------------------------------------- items

    def resident(self, key: bytes) -> bytes | None:
        """The newest record of a key, if memory has it."""
        return (
            (self.partial and self.partial.get(key))
            or self.dirty.get(key)
            or self.flushing.get(key)
            or self.items.get(key)
        )

    def newer(self, after: int) -> list[bytes] | None:
        """The newest records behind a seqno, by ascending seqno and each key once; None when the disk is to be asked.

        They end at `whole_seqno`. In the middle of a snapshot that is spilled there is nothing to show, not even of
        what came before it: keys that the snapshot has changed too are gone from that.
        """
        if self.is_spilled:
            return []
        if after < self.recent_from:
            return None
        found: list[bytes] = []
        later: list[dict[bytes, bytes]] = []
        most = self.high_seqno - after  # each has a seqno of its own
        for layer in (self.dirty, self.flushing, self.recent):
            if not layer:
                continue
            records = _last(layer, most)
            cut = bisect_right(records, after, key=seqno_of)
            is_all = cut or len(records) < len(layer)
            del records[:cut]
            for newer in later:
                records = _without(records, layer, newer)
            found[:0] = records
            if is_all:
                break
            later.append(layer)
        return found

    def drop_recent(self) -> None:
        """Forget what was flushed: whoever wants it asks the disk."""
        self.recent = {}
        self.recent_from = self.persisted_seqno

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


def append_newer(layer: dict[bytes, bytes], newer: dict[bytes, bytes]) -> int:
    """Put what is newer behind a layer, so that it stays in order of seqno; give how many bytes of it were replaced."""
    replaced = 0
    for key in layer.keys() & newer.keys():
        replaced += len(layer.pop(key))
    layer.update(newer)
    return replaced


def _last(layer: dict[bytes, bytes], most: int) -> list[bytes]:
    """The last records of a layer, at most so many."""
    if most >= len(layer):
        return list(layer.values())
    records = list(islice(reversed(layer.values()), max(most, 0)))
    records.reverse()
    return records


def _without(records: list[bytes], layer: dict[bytes, bytes], newer: dict[bytes, bytes]) -> list[bytes]:
    """The records of a layer without those whose keys a newer layer has."""
    replaced = layer.keys() & newer.keys()
    if not replaced:
        return records
    # By identity: to compare the records themselves would read all their bytes.
    gone = set(map(id, map(layer.__getitem__, replaced)))
    return list(compress(records, map(not_, map(gone.__contains__, map(id, records)))))


__all__ = ["VBucket", "append_newer"]
