"""A node in the simulation: the node's own bucket, flusher, disk, ends and commands, without sockets and processes.

What stands in for the world: the disk is a `Platter`, the thread of the flusher is a virtual delay, clients call the
handlers of the commands, and `crash` forgets everything but the platter. `SimBucket` tells the model of every change
and has it look at every copy at the moments when it must be whole: the end of a snapshot, a promotion, a rollback.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace.history import Cause, State, Transition
from headrace.ids import VBucketId
from headrace.node.bucket import Bucket
from headrace.node.buckets import OpenBucket
from headrace.node.clock import CasClock
from headrace.node.commands import items, seqnos, vbuckets
from headrace.node.flusher import Flusher
from headrace.node.pager import Pager
from headrace.store.records import unpack
from headrace.testing.sim.disk import Platter, SimDisk
from headrace.testing.sim.ends import SimSession
from headrace.testing.sim.model import NOWHERE, BrokenError, Copy, Place, Shown
from headrace.wire.catalogue import DeleteVBucket, GetFailoverLog, SetVBucket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from random import Random

    from headrace.history import FailoverLog
    from headrace.node.limits import NodeLimits
    from headrace.node.session import Session
    from headrace.node.vbucket import VBucket
    from headrace.store import StoreError, VBucketRecord
    from headrace.store.records import Record
    from headrace.testing.link import MemoryLine
    from headrace.testing.sim.world import World
    from headrace.wire.message import Request, Response

T = TypeVar("T")

EPOCH_S = 1_700_000_000
"""What the clocks of the simulation say when it begins."""


class DownError(Exception):
    """The node does not answer."""


class _InOrder(dict[T, None]):
    """A set whose members stand in the order in which they came: where they lie in memory is different in each run."""

    def add(self, member: T) -> None:
        self[member] = None

    def discard(self, member: T) -> None:
        self.pop(member, None)


class SimBucket(Bucket):
    """The bucket of a node, looked at."""

    def __init__(self, node: SimNode, disk: SimDisk, *, vbuckets: int, limits: NodeLimits) -> None:
        super().__init__("default", disk, vbuckets=vbuckets, limits=limits)
        self.clock = CasClock(self.clock_floor(disk), now_ns=node.wall_ns)
        self.change_watchers = cast("set[Callable[[], None]]", _InOrder[Any]())
        self.node = node
        self.is_alive = True
        """Whether this is still the memory of its node: what outlives a crash by a moment counts for nothing."""

    @staticmethod
    def clock_floor(disk: SimDisk) -> int:
        """The largest CAS that the disk knows."""
        return max((one.cas_max for one in disk.vbuckets().values()), default=0)

    def replace(self, vb: VBucket, record: Record) -> Record:
        """Change an item: this is history."""
        record = super().replace(vb, record)
        if self.is_alive:
            if vb.state is not State.ACTIVE:
                raise BrokenError(f"vbucket {vb.id} at {self.node.name} is {vb.state.name} and made a change")
            self.node.world.model.wrote(vb.id, vb.vbuuid, record, self.node.name)
        return record

    def make_vbucket(self, vb_id: VBucketId, state: State) -> VBucket:
        """Make a vbucket: a branch begins."""
        if state is State.ACTIVE:
            self.node.world.cluster.becomes_active(self.node, vb_id, NOWHERE)
        vb = super().make_vbucket(vb_id, state)
        self.node.began(vb)
        return vb

    def set_state(self, vb: VBucket, state: State, cause: Cause) -> Transition:
        """Change a state. A vbucket that becomes active is a whole state, and has all that it had whole before."""
        before, was, whole = vb.state, vb.vbuuid, Place(vb.vbuuid, vb.whole_seqno)
        if self.is_alive and state is State.ACTIVE and before is not State.ACTIVE:
            self.node.world.cluster.becomes_active(self.node, vb.id, whole)
        change = super().set_state(vb, state, cause)
        if self.is_alive:
            self.node.world.trace(f"{self.node.name} vb {vb.id}: {before.name} -> {state.name} ({cause}) at {whole}")
            if vb.vbuuid != was:
                self.node.began(vb)
            if state is State.ACTIVE and before is not State.ACTIVE:
                self.node.require_whole(vb, "its promotion")
                self.node.require_in(vb, whole, "what it had whole before its promotion")
                expected = self.node.expected.pop(vb.id, whole)
                self.node.require_in(vb, expected, "what it had whole when its promotion was asked for")
            self.node.world.owners_changed()
            if cause is Cause.TAKEOVER:
                self.node.world.takes_over(vb.id)
        return change

    def adopt(self, vb: VBucket, log: FailoverLog) -> None:
        """Take over a log: what is whole here must be in that history."""
        super().adopt(vb, log)
        if self.is_alive and not vb.is_spilled:
            self.node.require_whole(vb, "the beginning of its stream")

    def end_snapshot(self, vb: VBucket) -> None:
        """A snapshot is whole."""
        super().end_snapshot(vb)
        if self.is_alive:
            self.node.require_whole(vb, "the end of a snapshot")

    def reset(self, vb: VBucket, kept: VBucketRecord) -> None:
        """A vbucket was rolled back."""
        super().reset(vb, kept)
        if self.is_alive:
            place = self.node.place_of(vb)
            self.node.world.trace(f"{self.node.name} vb {vb.id}: rolled back to {place}")
            self.node.require_whole(vb, "its rollback")


class SimFlusher(Flusher):
    """The flusher of a node, whose thread is a delay."""

    def __init__(self, bucket: SimBucket, disk: SimDisk, rng: Random) -> None:
        super().__init__(bucket)
        self.slow_s = 0.002
        self._rng = rng
        self._disk = disk

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Work for a while, then do it, then be told of it; a crash may come between any two of them."""
        await asyncio.sleep(self.slow_s * self._rng.random())
        result = work()
        await asyncio.sleep(self.slow_s * self._rng.random())
        return result

    def roll_back(self, vb: VBucket, to: int, done: Callable[[int | StoreError], None]) -> None:
        """Take a vbucket back: not above what is asked for, and to a state that it had."""

        def checked(reached: int | StoreError) -> None:
            if isinstance(reached, int) and (reached > to or vb.in_snapshot):
                raise BrokenError(f"vbucket {vb.id} was to be rolled back to {to}, and is at {reached}")
            done(reached)

        super().roll_back(vb, to, checked)

    def rolls_back(self, vb: VBucket) -> bool:
        """Whether a vbucket is on its way back: until memory has heard of it, it tells what the disk had before."""
        return any(one is vb for one in self._rollbacks.values())

    def die(self) -> None:
        """End with the process."""
        for task in (self._task, *self._rollbacks):
            task.cancel()


class SimPager(Pager):
    """A pager that works when it is told to."""

    def __init__(self, bucket: Bucket, flusher: Flusher) -> None:
        self._bucket = bucket
        self._flusher = flusher
        self._tasks = []


class SimNode:
    """One node: it is up or down, has a platter and a clock of its own, and lines to others."""

    def __init__(self, world: World, name: str, *, vbuckets: int, limits: NodeLimits) -> None:
        self.world = world
        self.name = name
        self.platter = Platter(vbuckets, world.model, self._went_back)
        self.limits = limits
        self.wall_offset_s = 0.0
        self.is_cut_off = False
        """Whether nobody but its own clients reaches it."""
        self.opened: OpenBucket | None = None
        self.is_stopping = False
        self.lines: dict[MemoryLine, None] = {}
        """Its ends of links, in the order in which they were made."""
        self.starts = 0
        self.durable: dict[int, list[Place]] = defaultdict(list)
        """By vbucket: places that this node told to be on its disk, and that it was not rolled back behind."""
        self.expected: dict[int, Place] = {}
        """By vbucket: what a copy that is being promoted had whole before anything was done to it."""
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # ----------------------------------------------------------------------------------------------- its life

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return self.opened is not None and not self.is_stopping

    @property
    def is_down(self) -> bool:
        """Whether no process of it runs."""
        return self.opened is None

    @property
    def bucket(self) -> SimBucket:
        """Its bucket."""
        if self.opened is None:
            raise DownError(self.name)
        return cast("SimBucket", self.opened.bucket)

    @property
    def flusher(self) -> SimFlusher:
        """Its flusher."""
        if self.opened is None:
            raise DownError(self.name)
        return cast("SimFlusher", self.opened.flusher)

    @property
    def disk(self) -> SimDisk:
        """Its disk."""
        return cast("SimDisk", self.bucket.disk)

    def vb(self, vb_id: int) -> VBucket | None:
        """A vbucket; None where the node is down or has none."""
        return None if self.opened is None or self.is_stopping else self.opened.bucket.vbuckets[vb_id]

    def wall_ns(self) -> int:
        """What its clock shows, be it right or wrong."""
        return int((EPOCH_S + self.world.loop.time() + self.wall_offset_s) * 1_000_000_000)

    def start(self) -> None:
        """Start the process: recover from the platter."""
        world = self.world
        self.starts += 1
        disk = SimDisk(self.platter, world.rng)
        lost = disk.recover([world.new_vbuuid() for _ in self.platter.marks])
        bucket = SimBucket(self, disk, vbuckets=len(self.platter.marks), limits=self.limits)
        flusher = SimFlusher(bucket, disk, world.rng)
        self.opened = OpenBucket(bucket, flusher, SimPager(bucket, flusher))
        told = []
        for vb in bucket.vbuckets:
            if vb is None:
                continue
            told.append(f"{vb.id}:{vb.state.name[0]}{vb.high_seqno}")
            self.began(vb)
            if not vb.is_spilled:
                self.require_whole(vb, "its start")
            for place in self.durable[vb.id]:
                self.require_in(vb, place, "what it had told to be on disk before its start")
        world.trace(f"{self.name} starts, lost {sorted(lost)}: {' '.join(told)}")
        world.owners_changed()

    async def stop(self) -> None:
        """End the process as it should end: connections first, then all goes to disk."""
        self.world.trace(f"{self.name} stops")
        self.is_stopping = True
        bucket, flusher = self.bucket, self.flusher
        for task in list(self._tasks):
            task.cancel()
        for line in list(self.lines):
            line.hang_up()
            self.world.peer_crashed(line)
        self.lines.clear()
        if await self.call(flusher.close()):
            self.platter.marks[:] = bytes(len(self.platter.marks))
        if self.opened is not None and self.opened.bucket is bucket:
            bucket.is_alive = False
            self.opened = None
            self.is_stopping = False
            self.world.trace(f"{self.name} has stopped")

    def crash(self, *, power: bool) -> None:
        """End the process, with all that was in its memory."""
        self.world.trace(f"{self.name} crashes{', power and all' if power else ''}")
        self.bucket.is_alive = False
        self.flusher.die()
        self.opened = None
        self.is_stopping = False
        for task in list(self._tasks):
            task.cancel()
        for line in list(self.lines):
            line.forget()
            self.world.peer_crashed(line)
        self.lines.clear()
        if power:
            self.platter.lose_power()

    async def call(self, work: Awaitable[T] | Coroutine[Any, Any, T]) -> T:
        """Wait for something that the node does; `DownError` when it ends before."""
        if self.opened is None:
            if asyncio.iscoroutine(work):
                work.close()
            raise DownError(self.name)
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._tasks[task] = None
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._tasks.pop(task, None)
        if task.cancelled():
            raise DownError(self.name)
        return task.result()

    # -------------------------------------------------------------------------------------------- its commands

    def session(self) -> Session:
        """A client's session."""
        if self.opened is None or self.is_stopping:
            raise DownError(self.name)
        return cast("Session", SimSession(self.opened))

    async def set_vbucket(self, vb_id: int, state: State) -> None:
        """The command of a manager."""
        request = SetVBucket(vbucket=VBucketId(vb_id), state=state)
        await asyncio.sleep(self.world.rng.random() * self.world.command_s)
        session, vb = self.session(), self.vb(vb_id)
        if vb is not None and state is State.ACTIVE and not self.flusher.rolls_back(vb):
            self.expected[vb_id] = self.place_of(vb)
        try:
            await self.call(cast("Coroutine[Any, Any, Response]", vbuckets.set_vbucket(session, request)))
        finally:
            self.expected.pop(vb_id, None)

    async def delete_vbucket(self, vb_id: int) -> None:
        """The command of a manager."""
        request = DeleteVBucket(vbucket=VBucketId(vb_id))
        await self.call(cast("Coroutine[Any, Any, Response]", vbuckets.delete_vbucket(self.session(), request)))

    def failover_log(self, request: GetFailoverLog) -> Response:
        """The command of a reader."""
        return cast("Response", seqnos.failover_log(self.session(), request))

    def serve(self, handler: Callable[[Session, Any], Any], request: Request) -> Any:
        """Serve a command on items, as a connection would."""
        bucket = self.bucket
        bucket.clock.tick()
        try:
            return handler(self.session(), request)
        finally:
            bucket.changed()

    # ------------------------------------------------------------------------------------------- what it shows

    def place_of(self, vb: VBucket) -> Place:
        """Where a vbucket is whole."""
        return Place(vb.vbuuid, vb.whole_seqno)

    def copy_of(self, vb: VBucket) -> Copy:
        """What a vbucket shows, layer by layer, without a trace in memory: half a snapshot is none of it."""
        # As the node knows the disk: what its writer has just done counts when the node has heard of it.
        # A vbucket that is not on disk yet asks it nothing: what is there may be of one that is being removed.
        kept = self.disk.reader.latest.records(vb.id) if vb.persisted_seqno else ()
        found = {unpack(one).key: one for one in kept}
        for key, record in vb.items.items():
            if key not in vb.flushing and key not in vb.dirty and found.get(key) != record:
                raise BrokenError(f"vbucket {vb.id} at {self.name}: memory has another {key!r} than the disk")
        found.update(vb.flushing)
        found.update(vb.dirty)
        return {key: Shown.of(unpack(record)) for key, record in found.items()}

    def began(self, vb: VBucket) -> None:
        """A vbucket is there; its branch may be new."""
        self.world.model.branched(vb.id, vb.failover_log)

    def require_whole(self, vb: VBucket, when: str) -> None:
        """A vbucket must be a state that its history had."""
        if vb.is_spilled:
            raise BrokenError(f"vbucket {vb.id} at {self.name} at {when} is in the middle of a snapshot")
        self.world.model.require_copy(vb.id, self.place_of(vb), self.copy_of(vb), f"{self.name}, {when}")

    def require_in(self, vb: VBucket, place: Place, what: str) -> None:
        """A vbucket must have a place in its history."""
        if not self.world.model.contains(vb.id, self.place_of(vb), place):
            raise BrokenError(f"vbucket {vb.id} at {self.name} is at {self.place_of(vb)}, without {what}: {place}")

    def _went_back(self, vb_id: int, here: Place) -> None:
        """A copy was rolled back or removed: what it had told to be on disk beyond that is no promise any more."""
        contains = self.world.model.contains
        self.durable[vb_id] = [place for place in self.durable[vb_id] if contains(vb_id, here, place)]

    def observe(self, vb: VBucket) -> None:
        """A client asks what is on disk, and relies on it."""
        place = Place(vb.vbuuid, vb.durable_seqno)
        if place.seqno and place not in self.durable[vb.id] and not self.flusher.rolls_back(vb):
            self.durable[vb.id].append(place)
            if vb.state is State.ACTIVE:
                self.world.promised(self, vb.id, place)


__all__ = ["DownError", "SimBucket", "SimFlusher", "SimNode", "items"]
