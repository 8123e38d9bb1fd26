"""A vbucket is taken back: as far as the store remembers, all or nothing, whoever dies meanwhile."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import lmdb
import pytest

from headrace.ids import Seqno, VBucketId
from headrace.store import (
    Changes,
    DictStore,
    LmdbReader,
    LmdbWriter,
    StoreError,
    WriterProcess,
    layout,
    open_store,
    undo,
)
from tests.store.builders import batch, changes, dead, live, now
from tests.store.consistency import assert_consistent, assert_same
from tests.store.test_faults import failing_disk
from tests.store.test_writer_process import pid_of

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.store import Writer

VB = VBucketId(2)
KILLS = 10
__all__ = ["failing_disk"]


def overwrite(high: int, count: int, *, keys: int, value: bytes = b"v" * 200) -> Changes:
    """The next changes of a vbucket, over and over on the same keys."""
    records = [live(VB, seqno, b"key-%d" % (seqno % keys), value) for seqno in range(high + 1, high + count + 1)]
    return Changes(vbucket=VB, records=records, now=now(high + count, live_items=min(keys, high + count)))


def test_times_and_tombstones_come_back(tmp_path: Path) -> None:
    """The indexes have what was there before, and nothing of what was taken back."""
    writer, reader = open_store(tmp_path)
    writer.write([changes(VB, [live(VB, 1, b"a", expiry=7), dead(VB, 2, b"b"), live(VB, 3, b"c")], 3)])
    with reader.snapshot() as snapshot:
        before = list(snapshot.records(VB))
    writer.write([changes(VB, [dead(VB, 4, b"a"), live(VB, 5, b"b", expiry=9), live(VB, 6, b"d", expiry=3)], 6)])
    writer.write([changes(VB, [live(VB, 7, b"a", expiry=8), dead(VB, 8, b"c")], 8)])
    assert writer.rollback(VB, 5).high_seqno == 3
    with reader.snapshot() as snapshot:
        assert list(snapshot.records(VB)) == before
        assert [(one.key, one.expiry) for one in snapshot.expired(now=99, limit=9)] == [(b"a", 7)]
        assert_consistent(snapshot)
    assert writer.purge(VB, deleted_before=2000, limit=9) == {VB: 2}
    reader.close()
    writer.close()


def test_what_was_purged_stays_purged(tmp_path: Path) -> None:
    """A tombstone that is gone does not come back; the item that it had replaced after the boundary does."""
    writer, reader = open_store(tmp_path)
    writer.write([changes(VB, [dead(VB, 1, b"gone"), live(VB, 2, b"here")], 2)])
    writer.write([changes(VB, [dead(VB, 3, b"here"), live(VB, 4, b"new")], 4)])
    assert writer.purge(VB, deleted_before=2000, limit=9) == {VB: 3}
    back = writer.rollback(VB, 2)
    assert (back.high_seqno, back.purge_seqno) == (2, 2)
    with reader.snapshot() as snapshot:
        assert snapshot.keys(VB, limit=9) == [(b"here", Seqno(2))]
        assert_consistent(snapshot)
    reader.close()
    writer.close()


def test_too_much_to_remember(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its bounds the store forgets the oldest, and empties the vbucket rather than guess."""
    monkeypatch.setattr(undo, "ENTRIES_MAX", 3)
    monkeypatch.setattr(undo, "STORE_BYTES_MAX", 100_000)
    writer, reader = open_store(tmp_path)
    for high in range(0, 60, 10):
        writer.write([overwrite(high, 10, keys=15)])
    assert writer.rollback(VB, 45).high_seqno == 40
    assert writer.rollback(VB, 35).high_seqno == 30
    assert writer.rollback(VB, 29).high_seqno == 0, "20 was the fourth before the last"
    writer.write([overwrite(0, 10, keys=15)])
    writer.write([overwrite(10, 400, keys=500)])
    writer.write([overwrite(410, 400, keys=500, value=b"large" * 200)])
    assert writer.rollback(VB, 809).high_seqno == 410
    writer.write([overwrite(410, 400, keys=500, value=b"large" * 200)])
    writer.write([overwrite(810, 450, keys=500)])
    assert writer.rollback(VB, 1259).high_seqno == 0, "one transaction replaced more than is kept"
    with reader.snapshot() as snapshot:
        assert_consistent(snapshot)
        assert list(snapshot.records(VB)) == []
    reader.close()
    writer.close()


def test_an_unfinished_snapshot_is_never_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is, the way back to its beginning stays until it is whole."""
    monkeypatch.setattr(undo, "ENTRIES_MAX", 3)
    monkeypatch.setattr(undo, "STORE_BYTES_MAX", 1000)
    for kind in (open_store(tmp_path)[0], DictStore()):
        writer: Writer = kind
        writer.write([overwrite(0, 20, keys=20)])
        for high in range(20, 120, 10):
            part = overwrite(high, 10, keys=20)
            unfinished = replace(part.now, snapshot_end=Seqno(500), whole_seqno=Seqno(20))
            writer.write([replace(part, now=unfinished)])
        back = writer.rollback(VB, 110)
        assert (back.high_seqno, back.live_items, back.is_whole) == (20, 20, True)
        writer.close()


@pytest.mark.parametrize("call", ["data", "root"])
def test_a_failing_sync_takes_nothing_back(tmp_path: Path, failing_disk: Path, call: str) -> None:
    """An error of the disk at commit is an error of the rollback; all is as before, and it can be asked again."""
    oracle = DictStore()
    writer = WriterProcess(tmp_path / "store")
    reader = LmdbReader(tmp_path / "store")
    for high in range(0, 600, 200):
        some = [overwrite(high, 200, keys=300)]
        writer.write(some)
        oracle.write(some)
    (failing_disk / call).touch()
    with pytest.raises(StoreError, match=r"cannot roll back a vbucket of the store in .*Input/output error"):
        writer.rollback(VB, 500)
    (failing_disk / call).unlink()
    with reader.snapshot() as snapshot, oracle.snapshot() as expected:
        assert_same(snapshot, expected)
    assert writer.rollback(VB, 500) == oracle.rollback(VB, 500)
    with reader.snapshot() as snapshot, oracle.snapshot() as expected:
        assert_same(snapshot, expected)
        assert_consistent(snapshot)
    reader.close()
    writer.close()


def test_kill_9_in_the_middle_of_a_rollback(tmp_path: Path) -> None:
    """Whenever the child is killed, a rollback that returned was done once and whole."""
    chance = random.Random(3)
    oracle = DictStore()
    writer = WriterProcess(tmp_path)
    reader = LmdbReader(tmp_path)
    killed = 0
    for _ in range(KILLS):
        with oracle.snapshot() as snapshot:
            kept = snapshot.vbucket(VB)
        high = kept.high_seqno if kept else 0
        for step in range(3):
            some = [overwrite(high + 1000 * step, 1000, keys=1500)]
            writer.write(some)
            oracle.write(some)
        pid = pid_of(writer)
        timer = threading.Timer(chance.uniform(0, 0.03), os.kill, (pid, signal.SIGKILL))
        timer.start()
        to = high + chance.choice([500, 1500, 2999])
        try:
            assert writer.rollback(VB, to) == oracle.rollback(VB, to)
        finally:
            timer.join()
        killed += writer.pid != pid
        with reader.snapshot() as snapshot, oracle.snapshot() as expected:
            assert_same(snapshot, expected)
        if writer.pid == pid:  # it was done before the kill, which the next call would hear of
            with pytest.raises(StoreError, match="SIGKILL"):
                writer.compact()
    assert killed
    with reader.snapshot() as snapshot:
        assert_consistent(snapshot)
    reader.close()
    writer.close()


def test_a_rollback_that_was_done_and_not_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again, and says the same."""
    writer = WriterProcess(tmp_path)
    writer.write([batch(VB, 1, 10)])
    writer.write([batch(VB, 11, 10)])
    ask = writer._ask

    def ask_and_lose(call: str, **arguments: object) -> object:
        monkeypatch.setattr(writer, "_ask", ask)
        ask(call, **arguments)
        os.kill(pid_of(writer), signal.SIGKILL)
        return ask("compact")

    monkeypatch.setattr(writer, "_ask", ask_and_lose)
    assert writer.rollback(VB, 15).high_seqno == 10
    writer.close()


def downgrade(path: Path) -> None:
    """Make of a store what version 1 would have left."""
    with lmdb.Environment(str(path), max_dbs=layout.DATABASES_MAX, map_size=1 << 30) as opened:
        meta = opened.open_db(layout.META)
        undone = opened.open_db(layout.UNDO_DATABASE)
        with opened.begin(write=True) as txn:
            txn.put(layout.META_FORMAT, b"1", db=meta)
            txn.drop(undone)


def test_a_store_of_version_1_is_taken_over(tmp_path: Path) -> None:
    """A reader reads it as it is; a writer makes it version 2, with all that is in it and without a history."""
    writer = LmdbWriter(tmp_path)
    writer.write([batch(VB, 1, 10)])
    writer.write([batch(VB, 11, 10)])
    writer.close()
    downgrade(tmp_path)
    reader = LmdbReader(tmp_path)
    assert len(list(reader.latest.records(VB))) == 20
    reader.close()
    for _ in range(2):
        writer = LmdbWriter(tmp_path)
        writer.close()
    with lmdb.Environment(str(tmp_path), max_dbs=layout.DATABASES_MAX) as opened:
        meta = opened.open_db(layout.META)
        with opened.begin() as txn:
            assert txn.get(layout.META_FORMAT, db=meta) == b"2"
    writer, reader = open_store(tmp_path)
    writer.write([batch(VB, 21, 10)])
    assert writer.rollback(VB, 25).high_seqno == 20
    assert len(list(reader.latest.records(VB))) == 20
    assert writer.rollback(VB, 15).high_seqno == 0
    reader.close()
    writer.close()
