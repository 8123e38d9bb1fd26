"""One bucket: its vbuckets, the way to an item, and the one way in which an item changes.

Every change of every command ends in `put`, which gives memory the new record and leaves it to the flusher to bring it
to disk. What a replica is sent comes snapshot by snapshot (`begin_snapshot`, `apply`, `end_snapshot`). Memory is never
asked to hold more than `NodeLimits` says: what is on disk may be dropped from it at any time. Nothing here waits; what
must wait for the disk is in flusher.py.
"""

from __future__ import annotations

import secrets
from array import array
from typing import TYPE_CHECKING, NoReturn

from headrace.errors import LocalProtocolError
from headrace.history import Cause, FailoverLog, State, Transition, transition
from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.node.clock import CasClock
from headrace.node.limits import RELATIVE_EXPIRY_S_MAX, NodeLimits
from headrace.node.memory import RECORD_OVERHEAD_BYTES, Memory
from headrace.node.refused import Refused, exists, not_found
from headrace.node.runs import Runs, kernel
from headrace.node.seen import SEEN_MASK, SEEN_SLOTS
from headrace.node.vbucket import VBucket, append_newer
from headrace.protocol.tap_hops import Hops
from headrace.store import StoreError, VBucketRecord
from headrace.store.records import (
    DELETED,
    EXPIRED,
    HEAD,
    LIVE,
    OPCODE_AT,
    Record,
    expiry_of,
    unpack,
)
from headrace.wire.codes import Status
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.disk import Disk

_ACTIVE = State.ACTIVE
_unpack_head = HEAD.unpack_from


def new_vbuuid() -> VbUuid:
    """Name a branch: 48 bits that are not 0, as Couchbase's are."""
    return VbUuid(secrets.randbelow((1 << 48) - 1) + 1)


class Counts:
    """What was asked of a bucket since the node started."""

    __slots__ = ("deletes", "expired", "get_hits", "get_misses", "sets")

    def __init__(self) -> None:
        self.get_hits = self.get_misses = self.sets = self.deletes = self.expired = 0


class Bucket(Memory):
    """The items of one bucket. `vbuckets` has a place for each id; None where there is no such vbucket."""

    def __init__(self, name: str, disk: Disk, *, vbuckets: int, limits: NodeLimits) -> None:
        super().__init__(limits)
        self.name = name
        self.disk = disk
        self.counts = Counts()
        self.locks: dict[tuple[int, bytes], tuple[int, int]] = {}
        """(vbucket, key) -> (CAS that unlocks, second in which the lock ends)."""
        self.trouble: str | None = None
        """Why no write is acknowledged now; None when all is well."""
        self.map_revision = 1
        """Rises with every change of what the cluster map tells."""
        self.dirty_vbuckets: dict[int, VBucket] = {}
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to flush; the flusher sets it."""
        self.hurry: Callable[[], None] = lambda: None
        """Called when what there is to flush should not wait for company; the flusher sets it."""
        self.change_watchers: set[Callable[[], None]] = set()
        """Called when items have changed: streams look then for what is new."""
        self.backfills: set[object] = set()
        """The streams that read from disk now."""
        self.state_watchers: list[Callable[[VBucket, Transition], None]] = []
        """Called when the state of a vbucket was set, when it was rolled back, and when it is gone."""
        self.hops = Hops()
        """How far what came by TAP may still go."""
        kept = disk.vbuckets()
        self.seen: bytearray | None = None if any(one.high_seqno for one in kept.values()) else bytearray(SEEN_SLOTS)
        """A byte for each slot of a key's hash: 0 says that the disk has no such key. None says nothing."""
        self.clock = CasClock(max((one.cas_max for one in kept.values()), default=0))
        self.seqnos = array("q", bytes(8 * vbuckets))
        """The high seqno of each vbucket, where the compiled loop can reach it."""
        self.is_serving = array("B", bytes(vbuckets))
        """1 for each active vbucket: `serving`, for the compiled loop."""
        self.vbuckets = [
            VBucket(VBucketId(vb), kept[VBucketId(vb)], self.seqnos) if vb in kept else None for vb in range(vbuckets)
        ]
        self.serving: dict[int, VBucket] = {}
        """The active ones by their id, for the loop that has no time to ask."""
        for vb in self.vbuckets:
            if vb is not None:
                self._serve(vb)
        self._partial_bytes_max = min(limits.partial_bytes_max, limits.dirty_bytes_max // 8)
        self._runs: Runs | None = None
        self._marks = disk.marks

    # ------------------------------------------------------------------------------------------------------- vbuckets

    def vbucket(self, vb_id: int) -> VBucket:
        """A vbucket in whatever state."""
        vb = self.vbuckets[vb_id] if vb_id < len(self.vbuckets) else None
        return self._not_mine(vb_id) if vb is None else vb

    def active(self, vb_id: int) -> VBucket:
        """A vbucket that serves its items."""
        vb = self.vbuckets[vb_id] if vb_id < len(self.vbuckets) else None
        return self._not_mine(vb_id) if vb is None or vb.state is not _ACTIVE else vb

    def _not_mine(self, vb_id: int) -> NoReturn:
        del vb_id  # clients take a text here for a cluster map
        raise Refused(Status.NOT_MY_VBUCKET)

    def make_vbucket(self, vb_id: VBucketId, state: State) -> VBucket:
        """Make a vbucket that is empty, and leave it to the flusher."""
        log = FailoverLog.new(new_vbuuid())
        entries = tuple((branch.vbuuid, branch.seqno) for branch in log)
        vb = VBucket(vb_id, VBucketRecord(state=state, failover_log=entries), self.seqnos, is_new=True)
        self.vbuckets[vb_id] = vb
        self.touch_vbucket(vb)
        return vb

    def set_state(self, vb: VBucket, state: State, cause: Cause) -> Transition:
        """Change the state of a vbucket: the one place that does. Begins a new branch where the change asks for one.

        What a replica has of an unfinished snapshot is dropped when it becomes active. A spilled snapshot is partly on
        disk and must have been rolled back by then (`Flusher.roll_back`).
        """
        change = transition(vb.state, state, cause=cause)
        if state is _ACTIVE and vb.in_snapshot:
            if vb.is_spilled:
                raise LocalProtocolError(
                    f"vbucket {vb.id} is on disk in the middle of the snapshot that ends at {vb.snapshot_end}: "
                    f"it must be rolled back to {vb.whole_seqno} before it becomes active"
                )
            self.drop_partial(vb)
        if change.branches:
            vb.branch(new_vbuuid(), vb.whole_seqno)
        vb.state = state
        self.touch_vbucket(vb)
        self._tell_state(vb, change)
        return change

    def _tell_state(self, vb: VBucket, change: Transition) -> None:
        for watcher in tuple(self.state_watchers):
            watcher(vb, change)

    def adopt(self, vb: VBucket, log: FailoverLog) -> None:
        """Take over the failover log of a vbucket's producer."""
        if log == vb.failover_log:
            return
        was, vb.failover_log, vb.vbuuid = vb.vbuuid, log, log.latest.vbuuid
        self._have_written(vb)
        if vb.vbuuid != was:
            # Streams of this copy have told the old branch. Their readers would name it for changes of the new one, and
            # a node that is still on the old one would let them go on.
            self._tell_state(vb, Transition(ends_streams=True))

    def begin_branch(self, vb: VBucket) -> None:
        """Begin a branch in a vbucket whose next changes are of no history that it was told."""
        vb.branch(new_vbuuid(), vb.whole_seqno)
        self._have_written(vb)
        self._tell_state(vb, Transition(ends_streams=True))  # as above: they have told the old branch

    def touch_vbucket(self, vb: VBucket) -> None:
        """The state of a vbucket is another: have the flusher write it, though none of its items changed."""
        self._serve(vb)
        self.map_revision += 1
        self._have_written(vb)

    def _have_written(self, vb: VBucket) -> None:
        self.dirty_vbuckets[vb.id] = vb
        self.wake()

    def drop_vbucket(self, vb: VBucket) -> None:
        """Forget a vbucket and all it holds in memory."""
        self._forget_all(vb)
        self.vbuckets[vb.id] = None
        self.serving.pop(vb.id, None)
        self.is_serving[vb.id] = 0
        self.dirty_vbuckets.pop(vb.id, None)
        self.map_revision += 1
        self._tell_state(vb, Transition(ends_streams=True))

    def reset(self, vb: VBucket, kept: VBucketRecord) -> None:
        """A vbucket was rolled back on disk: memory has what the disk has, and nothing beyond it."""
        self._forget_all(vb)
        vb.restore(kept)
        self._have_written(vb)  # its state may be newer than the disk's
        self._tell_state(vb, Transition(ends_streams=True))  # they have told what never was

    def _forget_all(self, vb: VBucket) -> None:
        """Drop all that memory holds of a vbucket, be it on disk or not."""
        self.empty(vb)
        self._marks[vb.id] = 0
        self.hops.forget(vb.id)
        if self.locks:
            for place in [place for place in self.locks if place[0] == vb.id]:
                del self.locks[place]

    def _serve(self, vb: VBucket) -> None:
        self.is_serving[vb.id] = vb.state is _ACTIVE
        if vb.state is _ACTIVE:
            self.serving[vb.id] = vb
        else:
            self.serving.pop(vb.id, None)

    # ---------------------------------------------------------------------------------------------------------- items

    def find(self, vb: VBucket, key: bytes) -> bytes | None:
        """The newest record of a key, be it a tombstone or expired."""
        record = vb.resident(key)
        seen = self.seen
        if record is None and vb.persisted_seqno and (seen is None or seen[hash(key) & SEEN_MASK]):
            record = self._read(vb, key)
            if record is not None:
                vb.items[key] = record
                self.resident_bytes += len(record) + RECORD_OVERHEAD_BYTES
                if self.resident_bytes > self.limits.resident_bytes_max:
                    self.evict()
        return record

    def _read(self, vb: VBucket, key: bytes) -> bytes | None:
        try:
            return self.disk.get(vb.id, key)
        except StoreError:  # LMDB reads nothing more in a transaction that met a damaged page
            self.disk.refresh()
            raise

    def live(self, vb: VBucket, key: bytes) -> bytes | None:
        """The record of a live item. One whose time has come becomes a tombstone here and now."""
        record = self.find(vb, key)
        if record is None or record[OPCODE_AT] != LIVE:
            return None
        if self.is_over(record):
            self.expire(vb, unpack(record))
            return None
        return record

    def item(self, vb_id: int, key: bytes) -> tuple[VBucket, Record]:
        """The item of a key in an active vbucket, or the refusal."""
        vb = self.active(vb_id)
        record = self.live(vb, key)
        if record is None:
            raise not_found()
        return vb, unpack(record)

    def put(self, vb: VBucket, key: bytes, record: bytes) -> None:
        """Make a record the newest of its key."""
        if self.seen is not None:
            self.seen[hash(key) & SEEN_MASK] = 1
        dirty = vb.dirty
        if key in dirty:
            del dirty[key]  # to its end: dirty is in order of seqno
        elif not dirty:
            self.begin_dirty(vb)
        dirty[key] = record
        self.dirty_bytes += len(record) + RECORD_OVERHEAD_BYTES

    def begin_dirty(self, vb: VBucket) -> None:
        """A vbucket is about to have its first change that is not on disk."""
        self._marks[vb.id] = 1
        self.dirty_vbuckets[vb.id] = vb
        self.wake()

    @property
    def runs(self) -> Runs | None:
        """The compiled loop for runs of sets, once it is loaded; None where each set must be looked at."""
        if self._runs is None:
            take = kernel()
            if take is None:
                return None
            self._runs = Runs(take, self)
        return None if self.locks else self._runs

    def check_writable(self) -> None:
        """Refuse every change while the disk takes none."""
        if self.trouble is not None:
            raise Refused(Status.TEMPORARY_FAILURE, self.trouble)

    def store(self, item: Record, *, cas: int, must_exist: bool | None = None) -> Record:
        """Set an item; `must_exist` is what add (False) and replace (True) want to be so. A CAS of 0 means any."""
        vb = self.active(item.vbucket)
        record = self.find(vb, item.key)
        old = unpack(record) if record is not None else None
        if old is not None and old.live and not self._is_past(old.expiry):
            if must_exist is False:
                raise exists()
            self.check_version(vb, item.key, old.cas, cas)
        elif must_exist or cas:
            raise not_found()
        revision = old.rev_seqno + 1 if old is not None else 1
        return self.replace(vb, item._replace(rev_seqno=revision, expiry=self.until(item.expiry), cas=Cas(0)))

    def _is_past(self, expiry: int) -> bool:
        return 0 < expiry <= self.clock.seconds

    def is_over(self, record: bytes) -> bool:
        """Whether a record is of a live item whose time has come."""
        return record[OPCODE_AT] == LIVE and self._is_past(expiry_of(record))

    def replace(self, vb: VBucket, record: Record) -> Record:
        """Store a record with the next seqno and, where it has none, the next CAS; give it as it is now."""
        self.check_writable()
        old = self.find(vb, record.key)
        was_live = old is not None and old[OPCODE_AT] == LIVE
        vb.live_items += record.live - was_live
        vb.high_seqno += 1
        record = record._replace(vbucket=vb.id, seqno=Seqno(vb.high_seqno), cas=record.cas or Cas(self.clock.next()))
        self.put(vb, record.key, record.pack())
        if self.locks:
            self.locks.pop((vb.id, record.key), None)
        if record.live:
            self.counts.sets += 1
        elif record.opcode == DELETED:
            self.counts.deletes += 1
        else:
            self.counts.expired += 1
        return record

    def remove(self, vb: VBucket, item: Record, *, kind: int = DELETED) -> Record:
        """Put a tombstone in the place of an item."""
        gone = item._replace(
            opcode=kind, value=b"", datatype=0, cas=Cas(0), rev_seqno=item.rev_seqno + 1,
            flags=0, expiry=0, delete_time=self.clock.seconds,
        )  # fmt: skip
        return self.replace(vb, gone)

    def expire(self, vb: VBucket, item: Record) -> None:
        """Turn an item whose time has come into a tombstone; a disk that takes nothing leaves it for later."""
        if vb.state is _ACTIVE and self.trouble is None:
            self.remove(vb, item, kind=EXPIRED)

    def until(self, seconds: int) -> int:
        """An expiry as it is kept: seconds of the epoch, 0 for never."""
        return seconds + self.clock.seconds if 0 < seconds <= RELATIVE_EXPIRY_S_MAX else seconds

    def changed(self) -> None:
        """Tell the streams that there is something new."""
        for watcher in tuple(self.change_watchers):
            watcher()

    # -------------------------------------------------------------------------------------------------------- replica

    def begin_snapshot(self, vb: VBucket, start: int, end: int) -> None:
        """What a replica is sent now is whole at `end`; in the middle of a snapshot, this one goes on for it."""
        vb.begin_snapshot(start, end)

    def apply(self, vb: VBucket, record: bytes) -> None:
        """Take one change that was made elsewhere, with the seqno, CAS and revision that it got there."""
        _, opcode, key_bytes, extras_bytes, _, _, _, _, cas, seqno, _ = _unpack_head(record)
        key = record[HEADER_BYTES + extras_bytes : HEADER_BYTES + extras_bytes + key_bytes]
        if not vb.in_snapshot:
            vb.begin_snapshot(vb.high_seqno, seqno)
        self.seqnos[vb.id] = seqno
        if cas > self.clock.last:
            self.clock.see(cas)
        if vb.is_spilled:
            old = self.find(vb, key)
            vb.live_items += (opcode == LIVE) - (old is not None and old[OPCODE_AT] == LIVE)
            self.put(vb, key, record)
            return
        partial = vb.partial
        old = partial.pop(key, None)  # to its end: as dirty, it is in order of seqno
        partial[key] = record
        size = len(record) + RECORD_OVERHEAD_BYTES if old is None else len(record) - len(old)
        vb.partial_bytes += size
        self.partial_bytes += size
        if vb.partial_bytes > self._partial_bytes_max or self.partial_bytes > 2 * self._partial_bytes_max:
            self.spill(vb)

    def end_snapshot(self, vb: VBucket) -> None:
        """All of a snapshot was applied: it is seen from now on, and goes to disk."""
        if vb.is_spilled:
            self._have_written(vb)  # that it is whole, though all its items may be there already
        else:
            self._merge(vb, self.take_partial(vb))
        vb.end_snapshot()

    def drop_partial(self, vb: VBucket) -> None:
        """Go back to the end of the last whole snapshot, where the one after it is in memory alone."""
        seqno = vb.whole_seqno
        self.take_partial(vb)
        vb.end_snapshot()
        vb.high_seqno = seqno

    def spill(self, vb: VBucket) -> None:
        """Let the part of a snapshot go to disk, once it is more than memory should hold.

        Not before all that is whole is on disk: in one transaction with it, there would be nothing to roll back to.
        """
        most = self._partial_bytes_max
        if vb.partial_bytes <= most and self.partial_bytes <= 2 * most:
            return
        if vb.dirty or vb.flushing or vb.id in self.dirty_vbuckets:
            self.hurry()
        elif vb.partial:
            vb.is_spilled = True
            self._merge(vb, self.take_partial(vb))

    def _merge(self, vb: VBucket, changes: dict[bytes, bytes]) -> None:
        """Make changes the newest of their keys."""
        if not changes:
            return
        find, seen = self.find, self.seen
        for key, record in changes.items():
            old = find(vb, key)
            vb.live_items += (record[OPCODE_AT] == LIVE) - (old is not None and old[OPCODE_AT] == LIVE)
            if seen is not None:
                seen[hash(key) & SEEN_MASK] = 1
        if not vb.dirty:
            self.begin_dirty(vb)
        append_newer(vb.dirty, changes)
        self.dirty_bytes += sum(map(len, changes.values())) + RECORD_OVERHEAD_BYTES * len(changes)

    # ---------------------------------------------------------------------------------------------------------- locks

    def check_version(self, vb: VBucket, key: bytes, old_cas: int, cas: int) -> None:
        """Refuse to change an item that is locked or another version than the client means; 0 means any.

        A locked item changes for the CAS that its lock was given with, and the change ends the lock.
        """
        lock = self.lock_of(vb, key) if self.locks else None
        if lock is not None:
            if cas != lock:
                raise Refused(Status.LOCKED, "Locked")
        elif cas and cas != old_cas:
            raise exists()

    def lock_of(self, vb: VBucket, key: bytes) -> int | None:
        """The CAS that unlocks an item; None for one that is not locked."""
        lock = self.locks.get((vb.id, key))
        if lock is None:
            return None
        if lock[1] <= self.clock.seconds:
            del self.locks[vb.id, key]
            return None
        return lock[0]

    def sweep_locks(self) -> None:
        """Forget locks that have ended: while there is one, every set is looked at twice."""
        if self.locks:
            self.clock.tick()
            now = self.clock.seconds
            for place in [place for place, lock in self.locks.items() if lock[1] <= now]:
                del self.locks[place]
