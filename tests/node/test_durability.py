"""Memory first, disk behind: what is on disk, when, and what happens when the disk says no."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import HeadraceError
from headrace.ids import Seqno, VBucketId
from headrace.node import Node, NodeLimits, runs
from headrace.store import Changes, LmdbReader, StoreError
from headrace.store.records import EXPIRED, Record, unpack
from headrace.wire.catalogue import (
    Add,
    Delete,
    Done,
    ErrorReply,
    Flush,
    FlushQ,
    Get,
    GetMeta,
    Increment,
    Item,
    Meta,
    Mutated,
    Noop,
    SeqnoPersistence,
    Set,
    SetQ,
    SetVBucket,
    SetWithMeta,
    StopPersistence,
    Text,
)
from headrace.wire.codes import Feature, Status, VBucketState
from tests.node.talk import Talk, on_loop
from tests.store.consistency import assert_consistent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.node.buckets import OpenBucket


def opened(node: Node, name: str = "default") -> OpenBucket:
    """The bucket of a node, to be touched in its loop alone."""
    found = node.running.services.buckets.get(name)
    assert found is not None
    return found


def wait_until(said: Any, *, seconds: float = 15.0) -> None:
    """Wait for something to become so."""
    deadline = time.monotonic() + seconds
    while not said():
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.02)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of one test."""
    return tmp_path / "data"


def test_a_clean_stop_keeps_all_and_branches_nothing(data: Path):
    """Items, states, counts and failover logs are the same after a restart; the CAS goes on from where it was."""
    with Node(vbuckets=4, data=data) as node, Talk(node) as talk:
        for index in range(200):
            talk.send(SetQ(vbucket=VBucketId(index % 4), key=b"k%d" % index, value=b"v%d" % index, flags=index))
        talk.get(Delete(key=b"k0"), Mutated)
        last = talk.get(Set(key=b"last", value=b"x"), Mutated)
        talk.get(SetVBucket(vbucket=VBucketId(3), state=VBucketState.REPLICA), Done)
        before = talk.stats(b"failovers") | talk.stats(b"vbucket-details")
    with Node(vbuckets=4, data=data) as node, Talk(node) as talk:
        after = talk.stats(b"failovers") | talk.stats(b"vbucket-details")
        same = [name for name in before if not name.endswith(("in_memory", "queue_size", "persisted_seqno"))
                and "persisted_snap" not in name]  # fmt: skip
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
        assert talk.get(Get(vbucket=VBucketId(1), key=b"k5"), Item).flags == 5
        assert talk.status(Get(key=b"k0")) == Status.KEY_NOT_FOUND
        assert talk.get(Get(key=b"last"), Item).cas == last.cas
        assert talk.get(Set(key=b"next", value=b"x"), Mutated).cas > last.cas
        assert talk.stats()["curr_items"] == "201"


def test_every_write_is_on_disk_when_it_is_answered(data: Path):
    """With `sync every-write` the store has the record, whole, once the answer is there."""
    with Node(vbuckets=4, data=data, sync_every_write=True) as node, Talk(node, Feature.MUTATION_SEQNO) as talk:
        reader = opened(node).bucket.disk.reader

        def kept(key: bytes) -> Record:
            with reader.snapshot() as snapshot:
                assert_consistent(snapshot)
                record = snapshot.get(VBucketId(0), key)
            assert record is not None
            return unpack(record)

        for index in range(20):
            stored = talk.get(Set(key=b"k", value=b"%d" % index, expiry=1000), Mutated)
            record = on_loop(node, lambda: kept(b"k"))
            assert (record.value, record.cas, record.seqno) == (b"%d" % index, stored.cas, stored.seqno)
        talk.send(SetQ(key=b"a", value=b"1"), Set(key=b"b", value=b"2"), Get(key=b"a"), Noop())
        assert [talk.receive().status for _ in range(3)] == [0, 0, 0]
        assert on_loop(node, lambda: kept(b"a")).value == b"1"


class FailingDisk:
    """Makes the writer of a node refuse, as a full disk does."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = True
        disk = opened(node).bucket.disk
        really = disk.write

        def write(changes: Sequence[Changes]) -> None:
            if self.full:
                raise StoreError("cannot write: No space left on device")
            really(changes)

        monkeypatch.setattr(disk, "write", write)


@pytest.mark.parametrize("every_write", [False, True])
def test_a_disk_that_refuses_stops_the_acknowledging(data: Path, monkeypatch: pytest.MonkeyPatch, every_write: bool):
    """Writes are refused with the reason, reads go on, and all that was acknowledged is there when it works again."""
    with Node(vbuckets=4, data=data, sync_every_write=every_write) as node, Talk(node) as talk:
        talk.get(Set(key=b"before", value=b"1"), Mutated)
        disk = FailingDisk(node, monkeypatch)
        refused = talk.ask(Set(key=b"during", value=b"2"))
        if every_write:
            assert isinstance(refused, ErrorReply)
            assert refused.status == Status.TEMPORARY_FAILURE
            assert talk.ends()
        with Talk(node) as other:
            wait_until(lambda: other.stats()["ep_degraded_mode"] == "1")
            for message in (
                Set(key=b"x", value=b"3"),
                Add(key=b"y"),
                Delete(key=b"before"),
                Increment(key=b"n", delta=1),
            ):
                reply = other.ask(message)
                assert isinstance(reply, ErrorReply)
                assert (reply.status, b"No space left" in reply.value) == (Status.TEMPORARY_FAILURE, True)
            assert other.get(Get(key=b"before"), Item).value == b"1"
            disk.full = False
            wait_until(lambda: other.stats()["ep_degraded_mode"] == "0")
            other.get(Set(key=b"after", value=b"4"), Mutated)
            if not every_write:
                assert other.get(Get(key=b"during"), Item).value == b"2"
    with Node(vbuckets=4, data=data) as node, Talk(node) as talk:
        assert talk.get(Get(key=b"before"), Item).value == b"1"
        assert talk.get(Get(key=b"after"), Item).value == b"4"
        if not every_write:
            assert talk.get(Get(key=b"during"), Item).value == b"2"


def test_quiet_writes_that_are_not_on_disk_are_told_of_by_the_end(data: Path, monkeypatch: pytest.MonkeyPatch):
    """A refused quiet write has no answer to be changed: the connection ends, so that nobody takes it for done."""
    with Node(vbuckets=4, data=data, sync_every_write=True) as node, Talk(node) as talk:
        disk = FailingDisk(node, monkeypatch)
        talk.send(SetQ(key=b"a", value=b"1"), Set(key=b"b", value=b"2"), Get(key=b"a"), Noop())
        statuses = [talk.receive().status for _ in range(3)]
        assert statuses[0] == Status.TEMPORARY_FAILURE
        assert talk.ends()
        disk.full = False


def test_a_stop_that_loses_something_says_so(data: Path, monkeypatch: pytest.MonkeyPatch):
    """What was acknowledged and cannot be brought to disk is no clean end, and the next start branches."""
    node = Node(vbuckets=4, data=data)
    node.start()
    with Talk(node) as talk:
        FailingDisk(node, monkeypatch)
        talk.get(Set(key=b"lost", value=b"1"), Mutated)
    with pytest.raises(HeadraceError, match="not on disk, in default"):
        node.stop()
    with Node(vbuckets=4, data=data) as node, Talk(node) as talk:
        assert talk.stats(b"failovers 0")["vb_0:num_entries"] == "2"
        assert talk.stats(b"failovers 1")["vb_1:num_entries"] == "1"


def test_writers_wait_for_a_disk_that_is_behind(data: Path):
    """More than memory may hold goes in, nothing is lost, and what waits for the disk stays bounded."""
    limits = NodeLimits(dirty_bytes_max=1 << 20, resident_bytes_max=1 << 20)
    highest = 0
    with Node(vbuckets=4, data=data, limits=limits) as node, Talk(node) as talk:
        bucket = opened(node).bucket
        done = threading.Event()

        def watch() -> None:
            nonlocal highest
            while not done.is_set():
                highest = max(highest, bucket.waiting_bytes)
                time.sleep(0.001)

        watcher = threading.Thread(target=watch)
        watcher.start()
        value = b"\x00" * 10_000
        for index in range(3000):
            talk.send(SetQ(vbucket=VBucketId(index % 4), key=b"k%d" % index, value=value))
        talk.get(Noop(), Done)
        done.set()
        watcher.join()
        assert highest < 8 << 20
        assert bucket.resident_bytes < 4 << 20
        for index in range(0, 3000, 97):
            assert talk.get(Get(vbucket=VBucketId(index % 4), key=b"k%d" % index), Item).value == value
        assert talk.stats()["curr_items"] == "3000"


def test_memory_without_a_disk_is_bounded(data: Path):
    """With persistence stopped, writes beyond what may wait are refused for now, and not kept without end."""
    with Node(vbuckets=4, data=data, limits=NodeLimits(dirty_bytes_max=1 << 20)) as node, Talk(node) as talk:
        talk.get(StopPersistence(), Text)
        statuses = [talk.status(Set(key=b"k%d" % index, value=b"\x00" * 100_000)) for index in range(30)]
        assert statuses[0] == Status.SUCCESS
        assert statuses[-1] == Status.TEMPORARY_FAILURE
        assert opened(node).bucket.waiting_bytes < 2 << 20
        assert talk.status(Get(key=b"k0")) == Status.SUCCESS


@pytest.mark.parametrize("flush", [Flush(), FlushQ(), Flush(expiry=1)])
def test_a_flush_removes_what_is_in_memory_and_on_disk(data: Path, flush: Flush | FlushQ):
    """Every item becomes a deletion with a seqno of its own; what is set afterwards stays."""
    with Node(vbuckets=4, data=data, limits=NodeLimits(resident_bytes_max=0)) as node, Talk(node) as talk:
        for index in range(2500):
            talk.send(SetQ(key=b"old%d" % index, value=b"x"))
        talk.get(SeqnoPersistence(seqno=Seqno(2500)), Done)
        talk.get(Set(vbucket=VBucketId(1), key=b"fresh", value=b"x"), Mutated)
        talk.send(flush)
        if not isinstance(flush, FlushQ):
            assert talk.receive().status == Status.SUCCESS
        wait_until(lambda: talk.stats()["curr_items"] == "0")
        assert talk.status(Get(key=b"old7")) == Status.KEY_NOT_FOUND
        assert talk.stats(b"vbucket-seqno 0")["vb_0:high_seqno"] == "5000"
        talk.get(Set(key=b"new", value=b"y"), Mutated)
        assert talk.stats()["curr_items"] == "1"


def test_expired_items_become_tombstones_without_being_asked_for(data: Path):
    """The pager finds them on disk; streams will see an expiration, and the count falls."""
    with Node(vbuckets=4, data=data) as node, Talk(node) as talk:
        for index in range(50):
            talk.send(SetQ(key=b"e%d" % index, value=b"x", expiry=1))
        talk.get(Set(key=b"stays", value=b"x", expiry=1000), Mutated)
        talk.get(SeqnoPersistence(seqno=Seqno(51)), Done)
        time.sleep(1.1)
        wait_until(lambda: on_loop(node, opened(node).pager.expire) + 1 and talk.stats()["curr_items"] == "1")
    reader = LmdbReader(data / "buckets" / "default" / "store")
    with reader.snapshot() as snapshot:
        assert_consistent(snapshot)
        kinds = [unpack(record).opcode for record in snapshot.records(VBucketId(0))]
    reader.close()
    assert kinds.count(EXPIRED) == 50


def test_old_tombstones_are_purged(data: Path):
    """Past their time they go, and the purge seqno tells streams so; the newest change stays, whatever it is."""
    with Node(vbuckets=4, data=data, limits=NodeLimits(tombstone_s_min=0)) as node, Talk(node) as talk:
        for index in range(30):
            talk.send(SetQ(key=b"t%d" % index, value=b"x"))
            talk.get(Delete(key=b"t%d" % index), Mutated)
        talk.get(SeqnoPersistence(seqno=Seqno(60)), Done)
        time.sleep(1.1)
        on_loop(node, opened(node).pager.purge)
        assert talk.stats(b"vbucket-seqno 0")["vb_0:purge_seqno"] == "58"
    reader = LmdbReader(data / "buckets" / "default" / "store")
    with reader.snapshot() as snapshot:
        assert [unpack(record).seqno for record in snapshot.records(VBucketId(0))] == [60]
        assert_consistent(snapshot)
    reader.close()


def test_a_node_is_told_who_has_its_directory(data: Path):
    """A second node on the same data is refused, and the first goes on."""
    with Node(vbuckets=4, data=data) as node, Talk(node) as talk:
        import headrace.node.buckets as module  # noqa: PLC0415

        wait_s, module.LOCK_WAIT_S = module.LOCK_WAIT_S, 0.1
        try:
            with pytest.raises(StoreError, match="process id"), Node(vbuckets=4, data=data):
                pass
        finally:
            module.LOCK_WAIT_S = wait_s
        assert talk.status(Noop()) == Status.SUCCESS


@pytest.mark.parametrize("again", [False, True])
def test_what_memory_forgot_the_disk_has(data: Path, again: bool):
    """However an item was written, it is found on disk when memory has dropped it, and its next version counts on."""
    runs.load()
    limits = NodeLimits(resident_bytes_max=0)
    writes = [
        SetQ(key=b"run", value=b"\x00"),
        Set(key=b"set", value=b"\x00"),
        Set(key=b"json", value=b"{}"),
        Add(key=b"add", value=b"\x00"),
        Increment(key=b"count", delta=1),
        SetWithMeta(key=b"meta", value=b"\x00", rev_seqno=1, item_cas=7),
    ]
    keys = [b"run", b"set", b"json", b"add", b"count", b"meta"]
    with Node(vbuckets=1, data=data, limits=limits) as node, Talk(node) as talk:
        talk.send(*writes, Noop())
        for _ in writes:
            talk.receive()
        talk.get(SeqnoPersistence(seqno=Seqno(len(writes))), Done)
        wait_until(lambda: not (on_loop(node, lambda: opened(node).bucket.vbucket(0).items)))
        if again:
            for key in keys:
                talk.send(SetQ(key=key, value=b"\x00again"))
            talk.get(SeqnoPersistence(seqno=Seqno(2 * len(writes))), Done)
        for key in keys:
            assert talk.status(Get(key=key)) == Status.SUCCESS
            assert talk.get(GetMeta(key=key), Meta).rev_seqno == 1 + again
            assert talk.status(Add(key=key, value=b"x")) == Status.KEY_EXISTS
        assert talk.stats()["curr_items"] == str(len(writes))
