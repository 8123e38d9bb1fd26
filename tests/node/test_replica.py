"""A replica: half a snapshot is nobody's state, in memory or on disk, and what was taken too far can be taken back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from headrace.errors import LocalProtocolError
from headrace.history import Branch, Cause, FailoverLog, State, Transition
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.node import Node, NodeLimits
from headrace.node.buckets import Buckets, OpenBucket
from headrace.store import StoreError
from headrace.store.records import key_of, seqno_of, unpack
from headrace.wire.catalogue import Done, Get, Item, Mutated, Set, SetVBucket
from headrace.wire.codes import Feature, VBucketState
from tests.node.talk import Talk, on_loop
from tests.node.test_durability import opened
from tests.store.builders import dead, live

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from headrace.node.vbucket import VBucket

VB = VBucketId(1)
SMALL = NodeLimits(partial_bytes_max=2000)
"""So little that a few items of a snapshot go to disk before the others are there."""
VALUE = b"v" * 500


def on_bucket(
    data: Path, work: Callable[[OpenBucket], Coroutine[Any, Any, None]], limits: NodeLimits | None = None
) -> None:
    """Do something with a bucket that is opened for it and closed cleanly."""

    async def run() -> None:
        buckets = Buckets(data, vbuckets=4, limits=limits or NodeLimits())
        try:
            async with asyncio.timeout(60):
                await work(await buckets.create("b"))
        finally:
            await buckets.close()

    asyncio.run(run())


def replica(it: OpenBucket) -> VBucket:
    """The vbucket of these tests, as a replica."""
    vb = it.bucket.vbucket(VB)
    if vb.state is not State.REPLICA:
        it.bucket.set_state(vb, State.REPLICA, Cause.SET_VBUCKET)
    return vb


def apply(it: OpenBucket, vb: VBucket, seqnos: range, *, keys: int = 1000, value: bytes = b"value") -> None:
    """Changes as a producer sends them: key-N changes at seqno N, and again each `keys` seqnos."""
    for seqno in seqnos:
        it.bucket.apply(vb, live(VB, seqno, b"key-%d" % (seqno % keys), value))


def whole(it: OpenBucket, vb: VBucket, seqnos: range, *, keys: int = 1000) -> None:
    """A snapshot from its marker to its end."""
    it.bucket.begin_snapshot(vb, vb.high_seqno, seqnos[-1])
    apply(it, vb, seqnos, keys=keys)
    it.bucket.end_snapshot(vb)


def seqnos_on_disk(it: OpenBucket) -> list[int]:
    """All that a stream from disk would bring."""
    return [seqno_of(record) for record in it.bucket.disk.reader.latest.records(VB)]


def test_half_a_snapshot_is_seen_by_nobody(tmp_path: Path) -> None:
    """Streams and the disk get a snapshot when it is whole; the replica itself knows how far it is."""

    async def work(it: OpenBucket) -> None:
        bucket, vb = it.bucket, replica(it)
        bucket.begin_snapshot(vb, 0, 4)
        apply(it, vb, range(1, 4))
        assert (vb.high_seqno, vb.whole_seqno, vb.snapshot_start, vb.snapshot_end) == (3, 0, 0, 4)
        assert vb.newer(0) == []
        found = bucket.find(vb, b"key-3")
        assert found is not None
        assert unpack(found).seqno == 3
        await it.flusher.on_disk()
        assert vb.live_items == vb.persisted_seqno == 0
        assert seqnos_on_disk(it) == []
        bucket.apply(vb, dead(VB, 4, b"key-1"))
        bucket.end_snapshot(vb)
        assert [seqno_of(record) for record in vb.newer(0) or []] == [2, 3, 4]
        assert (vb.high_seqno, vb.whole_seqno, vb.snapshot_start, vb.snapshot_end) == (4, 4, 4, 4)
        assert (vb.live_items, bucket.partial_bytes, vb.partial_bytes) == (2, 0, 0)
        await it.flusher.on_disk()
        assert seqnos_on_disk(it) == [2, 3, 4]
        assert vb.persisted_seqno == 4

    on_bucket(tmp_path, work)


def test_a_promotion_in_the_middle_of_a_snapshot_drops_its_part(tmp_path: Path) -> None:
    """The new branch begins at the end of the last whole snapshot, and seqnos go on from there."""

    async def work(it: OpenBucket) -> None:
        bucket, vb = it.bucket, replica(it)
        told: list[tuple[State, Transition]] = []
        bucket.state_watchers.append(lambda vb, change: told.append((vb.state, change)))
        whole(it, vb, range(1, 6))
        bucket.begin_snapshot(vb, 6, 20)
        assert vb.snapshot_start == 5  # a marker of the servers begins behind what the replica has
        apply(it, vb, range(6, 10), keys=5)
        bucket.set_state(vb, State.ACTIVE, Cause.SET_VBUCKET)
        assert told == [(State.ACTIVE, Transition(ends_streams=True, branches=True))]
        assert (vb.high_seqno, vb.whole_seqno, vb.live_items, bucket.partial_bytes) == (5, 5, 5, 0)
        assert vb.failover_log.latest == Branch(vb.vbuuid, Seqno(5))
        assert [seqno_of(record) for record in vb.newer(0) or []] == [1, 2, 3, 4, 5]
        await it.flusher.on_disk()
        assert vb.state_on_disk is State.ACTIVE
        assert seqnos_on_disk(it) == [1, 2, 3, 4, 5]

    on_bucket(tmp_path, work)


async def spilled(it: OpenBucket) -> VBucket:
    """A replica with a whole snapshot and a part of a second one, all of it on disk."""
    vb = replica(it)
    whole(it, vb, range(1, 6))
    it.bucket.apply(vb, dead(VB, 6, b"key-1"))  # without a marker: begins a snapshot of its own
    it.bucket.end_snapshot(vb)
    it.bucket.begin_snapshot(vb, 6, 100)
    apply(it, vb, range(7, 30), keys=20, value=VALUE)
    assert vb.partial, "what is whole is on disk first"
    await it.flusher.on_disk()
    assert vb.is_spilled
    assert not vb.partial
    apply(it, vb, range(30, 33), keys=20, value=VALUE)
    await it.flusher.on_disk()
    return vb


def test_a_large_snapshot_goes_to_disk_before_it_is_whole(tmp_path: Path) -> None:
    """The disk knows that it is not, and nobody is shown any of it until it is."""

    async def work(it: OpenBucket) -> None:
        bucket, vb = it.bucket, await spilled(it)
        assert vb.persisted_seqno == 32
        assert (vb.whole_seqno, vb.snapshot_start, vb.snapshot_end) == (6, 6, 100)
        assert (vb.newer(0), vb.newer(6), bucket.partial_bytes) == ([], [], 0)
        backfill = bucket.disk.backfill(VB, 0)
        assert not backfill.is_whole
        backfill.close()
        with pytest.raises(LocalProtocolError, match="must be rolled back to 6"):
            bucket.set_state(vb, State.ACTIVE, Cause.SET_VBUCKET)
        assert vb.state is State.REPLICA
        bucket.end_snapshot(vb)
        assert vb.whole_seqno == 32
        await it.flusher.on_disk()
        backfill = bucket.disk.backfill(VB, 30)
        assert (backfill.is_whole, backfill.high_seqno) == (True, 32)
        assert key_of(bytes(backfill.block(1))) == b"key-11"
        assert key_of(bytes(backfill.block(1))) == b"key-12"
        assert not backfill.block(1)
        backfill.close()
        assert vb.live_items == len({seqno % 20 for seqno in range(7, 33)})

    on_bucket(tmp_path, work, SMALL)


def test_a_spilled_snapshot_is_taken_back_from_disk(tmp_path: Path) -> None:
    """After a rollback all is as at the end of the last whole snapshot, and a promotion may follow."""

    async def work(it: OpenBucket) -> None:
        bucket, vb = it.bucket, await spilled(it)
        ended: list[bool] = []
        bucket.state_watchers.append(lambda _, change: ended.append(change.ends_streams))
        assert await it.flusher.rolled_back(vb, vb.whole_seqno) == 6
        assert ended == [True]
        assert (vb.high_seqno, vb.persisted_seqno, vb.whole_seqno, vb.live_items) == (6, 6, 6, 4)
        assert not vb.in_snapshot
        assert seqnos_on_disk(it) == [2, 3, 4, 5, 6]
        assert bucket.find(vb, b"key-8") is None
        found = bucket.find(vb, b"key-2")
        assert found is not None
        assert seqno_of(found) == 2
        bucket.set_state(vb, State.ACTIVE, Cause.SET_VBUCKET)
        assert vb.failover_log.latest.seqno == 6
        bucket.replace(vb, unpack(live(VB, 0, b"new")))
        await it.flusher.on_disk()
        assert seqnos_on_disk(it) == [2, 3, 4, 5, 6, 7]

    on_bucket(tmp_path, work, SMALL)


def test_where_a_replica_was_survives_a_restart(tmp_path: Path) -> None:
    """It goes on inside its snapshot, or goes back to before it, as if nothing had been."""

    async def first(it: OpenBucket) -> None:
        vb = await spilled(it)
        it.bucket.adopt(vb, FailoverLog.from_entries([(VbUuid(9), Seqno(40)), (VbUuid(8), Seqno(0))]))

    async def second(it: OpenBucket) -> None:
        vb = it.bucket.vbucket(VB)
        assert (vb.state, vb.state_on_disk) == (State.REPLICA, State.REPLICA)
        assert [branch.vbuuid for branch in vb.failover_log] == [9, 8]
        assert (vb.high_seqno, vb.whole_seqno, vb.snapshot_start, vb.snapshot_end) == (32, 6, 6, 100)
        assert (vb.is_spilled, vb.newer(0)) == (True, [])
        apply(it, vb, range(33, 35))
        await it.flusher.on_disk()

    async def third(it: OpenBucket) -> None:
        vb = it.bucket.vbucket(VB)
        assert (vb.high_seqno, vb.whole_seqno) == (34, 6)
        assert await it.flusher.rolled_back(vb, 30) == 6
        assert [branch.vbuuid for branch in vb.failover_log] == [8]
        assert vb.vbuuid == 8
        assert seqnos_on_disk(it) == [2, 3, 4, 5, 6]

    for work in (first, second, third):
        on_bucket(tmp_path, work, SMALL)


def test_rollbacks(tmp_path: Path) -> None:
    """Back to the newest state between two flushes that is not above what was asked; memory follows the disk."""

    async def work(it: OpenBucket) -> None:
        bucket, flusher, vb = it.bucket, it.flusher, replica(it)
        for first in (1, 11, 21):
            whole(it, vb, range(first, first + 10), keys=15)
            await flusher.on_disk()
        whole(it, vb, range(31, 36), keys=15)
        assert await flusher.rolled_back(vb, 40) == 35, "nothing is above it"
        bucket.begin_snapshot(vb, 35, 50)
        apply(it, vb, range(36, 38))
        assert await flusher.rolled_back(vb, 35) == 35, "the part of a snapshot alone is dropped"
        assert (vb.high_seqno, vb.in_snapshot, len(vb.newer(30) or [])) == (35, False, 5)
        assert await flusher.rolled_back(vb, 34) == 30, "memory has no states in between"
        assert (vb.dirty, vb.partial, vb.recent, vb.items) == ({}, {}, {}, {})
        assert (bucket.dirty_bytes, bucket.recent_bytes, bucket.resident_bytes) == (0, 0, 0)
        assert vb.newer(30) == []
        assert vb.newer(29) is None
        assert await flusher.rolled_back(vb, 29) == 20
        assert seqnos_on_disk(it) == list(range(6, 21))
        assert vb.live_items == 15
        whole(it, vb, range(21, 23))
        await flusher.on_disk()
        assert await flusher.rolled_back(vb, 19) == 10
        assert await flusher.rolled_back(vb, 0) == 0
        assert (seqnos_on_disk(it), vb.live_items, vb.purge_seqno) == ([], 0, 0)
        whole(it, vb, range(1, 4))
        await flusher.on_disk()
        assert seqnos_on_disk(it) == [1, 2, 3]

    on_bucket(tmp_path, work)


def test_what_cannot_be_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An active vbucket, one that is gone, and one whose disk says no stay as they are; a new one is emptied."""

    async def work(it: OpenBucket) -> None:
        bucket, flusher, vb = it.bucket, it.flusher, it.bucket.vbucket(VB)
        with pytest.raises(StoreError, match="active"):
            await flusher.rolled_back(vb, 0)
        whole(it, replica(it), range(1, 4))
        await flusher.on_disk()
        whole(it, vb, range(4, 6))

        def refuse(*_: object) -> NoReturn:
            raise StoreError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(bucket.disk.writer, "rollback", refuse)
            with pytest.raises(StoreError, match="no room"):
                await flusher.rolled_back(vb, 1)
        assert (vb.high_seqno, len(vb.newer(3) or [])) == (5, 2)
        bucket.set_state(vb, State.DEAD, Cause.SET_VBUCKET)
        assert await flusher.delete_vbucket(vb)
        with pytest.raises(StoreError, match="gone"):
            await flusher.rolled_back(vb, 1)
        flusher.stop_persistence()
        new = bucket.make_vbucket(VB, State.REPLICA)
        assert new.state_on_disk is None
        whole(it, new, range(1, 4))
        assert await flusher.rolled_back(new, 2) == 0
        assert (new.high_seqno, new.dirty, new.live_items) == (0, {}, 0)
        flusher.start_persistence()
        await flusher.on_disk()
        assert new.state_on_disk is State.REPLICA

    on_bucket(tmp_path, work)


def test_set_vbucket_takes_half_a_snapshot_back_first(tmp_path: Path) -> None:
    """A manager may promote a replica at any time; clients see the last whole snapshot, and write behind it."""
    with Node(vbuckets=4, data=tmp_path, limits=SMALL) as node, Talk(node, Feature.MUTATION_SEQNO) as talk:
        talk.get(SetVBucket(vbucket=VB, state=VBucketState.REPLICA), Done)
        vb = on_loop(node, lambda: spilled(opened(node)))
        assert vb.is_spilled
        talk.get(SetVBucket(vbucket=VB, state=VBucketState.ACTIVE), Done)
        assert talk.get(Get(vbucket=VB, key=b"key-2"), Item).value == b"value"
        assert talk.status(Get(vbucket=VB, key=b"key-8")) != 0
        assert talk.get(Set(vbucket=VB, key=b"new", value=b"x"), Mutated).seqno == 7
        assert vb.failover_log.latest.seqno == 6
        assert talk.stats(b"failovers")["vb_1:0:seq"] == "6"


def test_what_is_recent_is_bounded(tmp_path: Path) -> None:
    """Streams that follow closely are served from memory; when that grows too large, from disk."""

    async def work(it: OpenBucket) -> None:
        bucket, vb = it.bucket, it.bucket.vbucket(VB)
        for index in range(4):
            bucket.replace(vb, unpack(live(VB, 0, b"k%d" % index, VALUE)))
        await it.flusher.on_disk()
        assert len(vb.newer(0) or []) == 4
        bucket.replace(vb, unpack(live(VB, 0, b"k0", VALUE)))
        await it.flusher.on_disk()
        assert [seqno_of(record) for record in vb.newer(0) or []] == [2, 3, 4, 5]
        bucket.replace(vb, unpack(live(VB, 0, b"large", VALUE * 4)))
        await it.flusher.on_disk()
        assert (vb.newer(5), vb.newer(6), bucket.recent_bytes) == (None, [], 0)

    on_bucket(tmp_path, work, NodeLimits(recent_bytes_max=4000))


def test_the_pager_tells_of_what_it_expires_and_leaves_replicas_alone(tmp_path: Path) -> None:
    """A replica's items end when its producer says so; a vbucket that waits for that keeps no others from ending."""

    async def work(it: OpenBucket) -> None:
        bucket, vb = it.bucket, replica(it)
        told: list[int] = []
        bucket.change_watchers.add(lambda: told.append(1))
        bucket.begin_snapshot(vb, 0, 3)
        for seqno in range(1, 4):
            bucket.apply(vb, live(VB, seqno, b"old-%d" % seqno, expiry=5))
        bucket.end_snapshot(vb)
        await it.flusher.on_disk()
        assert await it.pager.expire() == 0
        assert told == []
        active = bucket.vbucket(0)
        bucket.replace(active, unpack(live(0, 0, b"old", expiry=6)))
        await it.flusher.on_disk()
        assert await it.pager.expire() == 1
        assert told == [1]
        assert (active.live_items, vb.live_items) == (0, 3)

    on_bucket(tmp_path, work)
