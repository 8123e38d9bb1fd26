"""Memory to disk, in groups.

    put -> wake -> (a little time, so that many changes make one transaction) -> take all that is dirty -> write -> done

One batch is under way at a time, and it takes everything: while the disk works on one, the next gathers, so that
the batches grow with the load. A batch that the disk refuses goes back to memory; from then on the bucket
acknowledges no write, until a later try succeeds. The lock keeps other work of the writer (purge, removal of a vbucket)
from coming between the taking of a batch and its writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headrace.history import State
from headrace.store import Changes, StoreError
from headrace.store.undo import rolled_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.ids import VBucketId
    from headrace.node.bucket import Bucket
    from headrace.node.vbucket import VBucket

T = TypeVar("T")

GATHER_S = 0.05
"""How long a lone change waits for company before it goes to disk, unless someone waits for it."""
GATHER_BUSY_S = 0.5
"""The same under load: larger batches cost less a change, and leave more of the machine to the clients."""
BUSY_BYTES = 1 << 20
"""What has gathered by then tells a load from a trickle."""
RETRY_S = 1.0
"""How long a failing disk is left alone."""

log = logging.getLogger("headrace.node.flusher")


class Flusher:
    """Brings one bucket's changes to disk, and tells who waits for that."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.stopped = False
        """Told to stop persistence: changes gather in memory alone."""
        self.flushes = 0
        self.items = 0
        self.failures = 0
        self.after: list[Callable[[], None]] = []
        """Called once, after the next batch, whatever became of it."""
        self._lock = asyncio.Lock()
        self._awake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._closing = False
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._taken = 0
        self._rollbacks: dict[asyncio.Task[None], VBucket] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"disk-{bucket.name}")
        bucket.wake = self._awake.set
        bucket.hurry = self.hurry
        if bucket.dirty_vbuckets:
            self._awake.set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    # ------------------------------------------------------------------------------------------------------ to wait

    async def on_disk(self) -> None:
        """Wait until all that is in memory now is on disk; raise StoreError when the disk refuses it."""
        bucket = self.bucket
        if bucket.trouble is not None:
            raise StoreError(bucket.trouble)
        if self.stopped:
            raise StoreError("persistence is stopped")
        if not bucket.dirty_vbuckets and not bucket.flushing_bytes:
            return
        generation = self._taken + 1 if bucket.dirty_vbuckets else self._taken
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((generation, waiter))
        self._urgent.set()
        await waiter

    def hurry(self) -> None:
        """Bring what is there to disk without waiting for company."""
        self._urgent.set()

    async def persisted(self, vb: VBucket, seqno: int) -> None:
        """Wait until a vbucket has a seqno on disk, however often the disk must be tried."""
        while vb.durable_seqno < seqno:
            waiter = asyncio.get_running_loop().create_future()
            self.after.append(lambda waiter=waiter: waiter.done() or waiter.set_result(None))  # type: ignore[misc]
            if seqno <= vb.high_seqno:  # who waits for what is not written yet hurries nobody
                self._urgent.set()
            await waiter

    async def purge(self, vbucket: VBucketId | None, *, deleted_before: int, limit: int) -> int:
        """Forget up to `limit` old tombstones, between batches; 0 when there are none."""
        bucket = self.bucket
        async with self._lock:
            purged = await self._in_thread(
                lambda: bucket.disk.writer.purge(vbucket, deleted_before=deleted_before, limit=limit)
            )
            for vb_id, seqno in purged.items():
                vb = bucket.vbuckets[vb_id]
                if vb is not None:
                    vb.purge_seqno = max(vb.purge_seqno, seqno)
                    bucket.forget(vb)
                    bucket.drop_recent(vb)
            bucket.disk.refresh()
        return len(purged)

    def roll_back(self, vb: VBucket, to: int, done: Callable[[int | StoreError], None]) -> None:
        """Take a vbucket back in memory and on disk, to the newest whole state that is not above `to`.

        `done` is called, not from here, with the seqno that it has then, or with what is against it: then nothing has
        changed. An active vbucket is not rolled back: others go by what it has told.
        """
        task = asyncio.get_running_loop().create_task(self._roll_back(vb, to, done))
        self._rollbacks[task] = vb
        task.add_done_callback(self._rollbacks.pop)

    async def rollbacks_done(self, vb: VBucket) -> None:
        """Wait until a vbucket is not being rolled back: what it is told meanwhile would be lost."""
        while under_way := [task for task, of in self._rollbacks.items() if of is vb]:
            await asyncio.wait(under_way)
            await asyncio.sleep(0)  # they leave the table by callbacks of their own

    async def rolled_back(self, vb: VBucket, to: int) -> int:
        """The same, for who can wait."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(reached: int | StoreError) -> None:
            if waiter.done():
                return
            if isinstance(reached, StoreError):
                waiter.set_exception(reached)
            else:
                waiter.set_result(reached)

        self.roll_back(vb, to, done)
        return await waiter

    async def _roll_back(self, vb: VBucket, to: int, done: Callable[[int | StoreError], None]) -> None:
        result: int | StoreError
        async with self._lock:
            try:
                result = await self._rolled_back(vb, to)
            except StoreError as error:
                result = error
            except Exception as error:
                log.exception("a rollback met a fault of ours", extra={"bucket": self.bucket.name, "vbucket": vb.id})
                result = StoreError(f"vbucket {vb.id} could not be rolled back: {error!r}")
        asyncio.get_running_loop().call_soon(done, result)

    async def _rolled_back(self, vb: VBucket, to: int) -> int:
        """Do it, between batches."""
        bucket = self.bucket
        if bucket.vbuckets[vb.id] is not vb:
            raise StoreError(f"vbucket {vb.id} is gone")
        if vb.state is State.ACTIVE:
            raise StoreError(f"vbucket {vb.id} is active and not to be rolled back")
        if to >= vb.whole_seqno and not vb.is_spilled:
            bucket.drop_partial(vb)
            return vb.high_seqno
        if vb.state_on_disk is None:
            kept = rolled_back(vb.record(bucket.clock.last), 0, 0)
        else:
            await self._write_state(vb)
            kept = await self._in_thread(lambda: bucket.disk.writer.rollback(vb.id, to))
            bucket.disk.refresh()
        bucket.reset(vb, kept)
        return vb.high_seqno

    async def _write_state(self, vb: VBucket) -> None:
        """Have the disk know that a vbucket is no owner, before it goes back.

        Else a node that is killed after the rollback would start as its owner, on an old branch, and give seqnos that
        others have seen once more. The disk itself is asked: a batch that failed may have been kept.
        """
        disk = self.bucket.disk
        disk.refresh()
        state, kept = vb.state, disk.reader.latest.vbucket(vb.id)
        if kept is None or kept.state == state:
            return
        change = Changes(vbucket=vb.id, records=(), now=replace(kept, state=state))
        await self._in_thread(lambda: disk.write([change]))
        disk.refresh()
        vb.state_on_disk = state

    async def delete_vbucket(self, vb: VBucket) -> bool:
        """Remove a vbucket and all it holds, between batches; False when it is not dead by then, or another."""
        bucket = self.bucket
        async with self._lock:
            if bucket.vbuckets[vb.id] is not vb or vb.state is not State.DEAD:
                return False
            bucket.drop_vbucket(vb)
            await self._in_thread(lambda: bucket.disk.writer.delete_vbucket(vb.id))
            bucket.disk.refresh()
            self._awake.set()  # who waited for a change of it waits for nothing now
        return True

    # ------------------------------------------------------------------------------------------------------ to work

    def stop_persistence(self) -> None:
        """Leave changes in memory. Who waits for them is told, but for those whose batch is under way."""
        self.stopped = True
        self._refuse_waiters(StoreError("persistence is stopped"))
        self._call_after()

    def refuse_more(self) -> None:
        """Memory is full, and nothing leaves it while persistence is stopped."""
        self.bucket.trouble = f"persistence is stopped, and {self.bucket.waiting_bytes} bytes wait for it"

    def start_persistence(self) -> None:
        """Go on."""
        self.stopped = False
        self._awake.set()

    async def close(self) -> bool:
        """Flush what is left and end; False when something could not be brought to disk."""
        self._closing = True
        self.stopped = False
        self._awake.set()
        self._urgent.set()
        await asyncio.gather(*self._rollbacks)
        await self._task
        self._thread.shutdown()
        return not self.bucket.dirty_vbuckets

    async def _run(self) -> None:
        while not await self._turn():
            pass

    async def _turn(self) -> bool:
        """Wait for changes and bring them to disk; True when all is done and the bucket closes."""
        try:
            return await self._flush_next()
        except Exception:
            log.exception("the flusher met a fault of ours; it tries again", extra={"bucket": self.bucket.name})
            self.bucket.trouble = "a fault of the node keeps changes from the disk: see its log"
            self._awake.set()
            await asyncio.sleep(RETRY_S)
            return self._closing

    async def _flush_next(self) -> bool:
        await self._awake.wait()
        await self._gather()
        self._urgent.clear()
        self._awake.clear()
        if self.stopped:
            return False
        flushed = await self._flush()
        if self._closing and (not flushed or not self.bucket.dirty_vbuckets):
            self._tell()
            return True
        if not flushed:
            await asyncio.sleep(RETRY_S)
            self._awake.set()
        return False

    async def _gather(self) -> None:
        """Let changes gather, unless someone waits for them or memory fills."""
        await self._pause(GATHER_S)
        busy_until = asyncio.get_running_loop().time() + GATHER_BUSY_S - GATHER_S
        enough_bytes = self.bucket.limits.dirty_bytes_max // 2
        while BUSY_BYTES < self.bucket.dirty_bytes < enough_bytes and not self._urgent.is_set():
            if asyncio.get_running_loop().time() >= busy_until:
                return
            await self._pause(GATHER_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._urgent.wait()

    async def _flush(self) -> bool:
        """Write one batch; False when the disk refused it."""
        bucket = self.bucket
        async with self._lock:
            batch = list(bucket.dirty_vbuckets.values())
            if not batch:
                self._taken += 1
                self._tell()
                return True
            bucket.dirty_vbuckets = {}
            bucket.flushing_bytes, bucket.dirty_bytes = bucket.dirty_bytes, 0
            changes = [vb.take(bucket.clock.last) for vb in batch]
            self._taken += 1
            error = await self._write(changes)
            if error is not None:
                self._failed(batch, error)
                return False
            await self._see_what_is_written()
            self._done(batch, changes)
            self.items += sum(len(change.records) for change in changes)
        return True

    async def _write(self, changes: list[Changes]) -> StoreError | None:
        """Bring a batch to disk. Tried twice: a writer that died is found by the one and replaced by the other."""
        refused: StoreError | None = None
        for _ in range(2):
            try:
                await self._in_thread(lambda: self.bucket.disk.write(changes))
            except StoreError as error:
                if self._was_kept(changes):
                    return None
                refused = error
            else:
                return None
        return refused

    def _was_kept(self, changes: list[Changes]) -> bool:
        """Whether a batch is on disk, though the writer failed: it may have died after its work was done."""
        try:
            self.bucket.disk.refresh()
            kept = self.bucket.disk.vbuckets()
        except StoreError:
            return False
        return any(change.records for change in changes) and all(
            change.vbucket in kept and kept[change.vbucket].high_seqno == change.now.high_seqno for change in changes
        )

    async def _see_what_is_written(self) -> None:
        """Have lookups see the batch that is on disk, however often it must be tried: memory is about to drop it."""
        bucket = self.bucket
        while True:
            try:
                bucket.disk.refresh()
            except StoreError as error:
                if self._closing:
                    return
                bucket.trouble = f"the disk cannot be read: {error}"
                log.warning("the disk cannot be read; tried again", extra={"bucket": bucket.name, "why": str(error)})
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _done(self, batch: list[VBucket], changes: list[Changes]) -> None:
        bucket = self.bucket
        keep_recent = bucket.recent_bytes + bucket.flushing_bytes <= bucket.limits.recent_bytes_max
        for vb, change in zip(batch, changes, strict=True):
            vb.persisted_seqno = max(vb.persisted_seqno, change.now.high_seqno)
            vb.durable_seqno = max(vb.durable_seqno, change.now.durable_seqno)
            vb.state_on_disk = State(change.now.state)
            bucket.settle(vb, keep_recent=keep_recent)
            if not vb.dirty:
                bucket.disk.marks[vb.id] = 0
            if vb.partial:
                bucket.spill(vb)
        bucket.flushing_bytes = 0
        bucket.evict()
        if not keep_recent:
            bucket.drop_recents()
        self.flushes += 1
        if bucket.trouble is not None:
            log.info("the disk works again", extra={"bucket": bucket.name})
            bucket.trouble = None
        self._tell()

    def _failed(self, batch: list[VBucket], error: StoreError) -> None:
        bucket = self.bucket
        for vb in batch:
            vb.put_back()
            bucket.dirty_vbuckets[vb.id] = vb
        bucket.dirty_bytes += bucket.flushing_bytes
        bucket.flushing_bytes = 0
        self.failures += 1
        if bucket.trouble is None:
            log.error("the disk refuses writes; none is acknowledged", extra={"bucket": bucket.name, "why": str(error)})
        bucket.trouble = f"not on disk: {error}"
        self._tell(error)

    def _tell(self, error: StoreError | None = None) -> None:
        """Wake whoever waits for the batch that has just ended."""
        still = []
        for generation, waiter in self._waiters:
            if generation > self._taken:
                still.append((generation, waiter))
            elif not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(StoreError(str(error)))
        self._waiters = still
        self._call_after()

    def _refuse_waiters(self, error: StoreError) -> None:
        """Tell those who wait for a batch that is not taken yet."""
        still = []
        for generation, waiter in self._waiters:
            if generation <= self._taken:
                still.append((generation, waiter))
            elif not waiter.done():
                waiter.set_exception(error)
        self._waiters = still

    def _call_after(self) -> None:
        callbacks, self.after = self.after, []
        loop = asyncio.get_running_loop()
        for callback in callbacks:
            loop.call_soon(callback)  # what a connection does then is not the flusher's, nor are its faults

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
