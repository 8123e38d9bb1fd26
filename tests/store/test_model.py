"""The LMDB store and the dicts do the same, whatever is asked of them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.store import (
    Changes,
    DictStore,
    LmdbReader,
    LmdbSnapshot,
    StoreError,
    VBucketRecord,
    Writer,
    WriterProcess,
    open_store,
    undo,
)
from tests.store.builders import ACTIVE, UUID, changes, dead, live
from tests.store.consistency import assert_consistent, assert_same

if TYPE_CHECKING:
    from headrace.store.dict_store import DictSnapshot

VBUCKETS = (0, 1, 1023)
KEYS = [b"a", b"ab", b"b", b"\x00", b"\xff" * 255, b"k" * 505]
SNAPSHOTS_MAX = 3

vbuckets = st.sampled_from(VBUCKETS)
times = st.integers(0, 6)
one_change = st.tuples(st.sampled_from(KEYS), st.sampled_from(["live", "deleted", "expired"]), times, st.integers(1, 3))
of_vbucket = st.tuples(vbuckets, st.lists(one_change, max_size=5, unique_by=lambda change: change[0]))


class Machine(RuleBasedStateMachine):
    """Writes to both, and reads both; some snapshots are kept open while writing goes on."""

    in_child: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="headrace-store-")
        self.oracle = DictStore()
        self.kept: list[tuple[contextlib.ExitStack, LmdbSnapshot, DictSnapshot]] = []
        self.writer: Writer
        self.reader: LmdbReader

    @initialize()
    def open(self) -> None:
        if self.in_child:
            self.writer = WriterProcess(self.directory)
            self.reader = LmdbReader(self.directory)
        else:
            self.writer, self.reader = open_store(self.directory)

    def close(self) -> None:
        while self.kept:
            self.close_snapshot(0)
        self.reader.close()
        self.writer.close()

    def teardown(self) -> None:
        if hasattr(self, "reader"):
            with self.reader.snapshot() as snapshot:
                assert_consistent(snapshot)
            self.close()
        shutil.rmtree(self.directory)

    def changes_of(self, number: int, drawn: list[tuple[bytes, str, int, int]], rest: int = 0) -> Changes:
        """What a vbucket gets, as the oracle stands; `rest` is how much is missing from its snapshot."""
        vbucket = VBucketId(number)
        with self.oracle.snapshot() as snapshot:
            before = snapshot.vbucket(vbucket) or VBucketRecord(state=ACTIVE, failover_log=((UUID, Seqno(0)),))
        seqno = before.high_seqno
        records = []
        for key, kind, when, step in drawn:
            seqno = Seqno(seqno + step)
            if kind == "live":
                records.append(live(vbucket, seqno, key, key * step, expiry=when))
            else:
                records.append(dead(vbucket, seqno, key, at=when, expired=kind == "expired"))
        now = replace(before, high_seqno=seqno, cas_max=Cas(2**64 - 1), live_items=len(records), purge_seqno=Seqno(0))
        if before.is_whole:
            now = replace(now, whole_seqno=before.high_seqno)
        if rest:
            now = replace(now, snapshot_start=now.whole_seqno, snapshot_end=Seqno(seqno + rest))
        else:
            now = replace(now, snapshot_start=seqno, snapshot_end=seqno, whole_seqno=seqno)
        return Changes(vbucket=vbucket, records=records, now=now)

    @rule(drawn=st.lists(of_vbucket, max_size=3, unique_by=lambda one: one[0]), rest=st.sampled_from([0, 0, 0, 1]))
    def write(self, drawn: list[tuple[int, list[tuple[bytes, str, int, int]]]], rest: int) -> None:
        all_changes = [self.changes_of(number, of, rest) for number, of in drawn]
        self.writer.write(all_changes)
        self.oracle.write(all_changes)
        self.compare()

    @rule(vbucket=vbuckets, drawn=st.lists(st.tuples(one_change, st.booleans()), min_size=3, max_size=6))
    def write_often(self, vbucket: int, drawn: list[tuple[tuple[bytes, str, int, int], bool]]) -> None:
        for of, is_whole in drawn:
            one = [self.changes_of(vbucket, [of], rest=not is_whole)]
            self.writer.write(one)
            self.oracle.write(one)
        self.compare()

    @rule(vbucket=vbuckets, back=st.integers(-1, 12), branches=st.integers(0, 3))
    def rollback(self, vbucket: int, back: int, branches: int) -> None:
        with self.oracle.snapshot() as snapshot:
            before = snapshot.vbucket(VBucketId(vbucket))
        if before is None:
            for writer in (self.writer, self.oracle):
                with pytest.raises(StoreError, match="cannot be rolled back"):
                    writer.rollback(VBucketId(vbucket), 0)
            return
        if branches:
            log = tuple((VbUuid(100 + one), Seqno(before.high_seqno - one)) for one in range(branches))
            log = tuple(branch for branch in log if branch[1] > 0) or ((UUID, Seqno(0)),)
            one = Changes(vbucket=VBucketId(vbucket), records=[], now=replace(before, failover_log=log))
            self.writer.write([one])
            self.oracle.write([one])
        to = max(0, before.high_seqno - back)
        reached = self.writer.rollback(VBucketId(vbucket), to)
        assert reached == self.oracle.rollback(VBucketId(vbucket), to)
        assert reached.high_seqno <= to
        assert reached.is_whole
        assert self.writer.rollback(VBucketId(vbucket), to) == reached
        self.compare()

    @rule(vbucket=vbuckets, first=one_change)
    def write_what_is_wrong(self, vbucket: int, first: tuple[bytes, str, int, int]) -> None:
        good = self.changes_of(vbucket, [first])
        wrong = [
            replace(good, records=[*good.records, *good.records]),
            replace(good, now=replace(good.now, high_seqno=Seqno(0))),
            replace(good, vbucket=VBucketId(500)),
        ]
        for one in wrong:
            for writer in (self.writer, self.oracle):
                with pytest.raises(StoreError):
                    writer.write([good, one] if one.vbucket != good.vbucket else [one])
        self.compare()

    @rule(vbucket=vbuckets)
    def delete_vbucket(self, vbucket: int) -> None:
        self.writer.delete_vbucket(VBucketId(vbucket))
        self.oracle.delete_vbucket(VBucketId(vbucket))
        self.compare()

    @rule(vbucket=st.one_of(st.none(), vbuckets), deleted_before=times, limit=st.integers(0, 4))
    def purge(self, vbucket: int | None, deleted_before: int, limit: int) -> None:
        of = None if vbucket is None else VBucketId(vbucket)
        purged = self.writer.purge(of, deleted_before=deleted_before, limit=limit)
        assert purged == self.oracle.purge(of, deleted_before=deleted_before, limit=limit)
        self.compare()

    @precondition(lambda self: len(self.kept) < SNAPSHOTS_MAX)
    @rule()
    def keep_snapshot(self) -> None:
        stack = contextlib.ExitStack()
        snapshot = stack.enter_context(self.reader.snapshot())
        with self.oracle.snapshot() as oracle:
            self.kept.append((stack, snapshot, oracle.copy()))

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, SNAPSHOTS_MAX))
    def close_snapshot(self, which: int) -> None:
        stack, snapshot, oracle = self.kept.pop(which % len(self.kept))
        assert_same(snapshot, oracle)
        stack.close()

    @rule()
    def reopen(self) -> None:
        self.close()
        self.open()
        self.compare()

    @rule()
    def compact(self) -> None:
        self.writer.compact()

    @rule(vbucket=vbuckets, first=st.integers(0, 9), last=st.integers(0, 9), size=st.integers(1, 500), now=times)
    def read(self, vbucket: int, first: int, last: int, size: int, now: int) -> None:
        of = VBucketId(vbucket)
        self.reader.refresh()
        latest = self.reader.latest
        with self.oracle.snapshot() as oracle:
            expected = list(oracle.records(of, first=first, last=last))
            assert list(latest.records(of, first=first, last=last)) == expected
            blocks = list(latest.records_joined(of, first, last, size))
            assert b"".join(blocks) == b"".join(expected)
            assert all(len(block) >= size for block in blocks[:-1])
            for after in (b"", b"a", b"aa", b"b"):
                assert latest.keys(of, after=after, limit=first) == oracle.keys(of, after=after, limit=first)
            for some in (None, {0, vbucket}):
                assert latest.expired(now=now, limit=first, of=some) == oracle.expired(now=now, limit=first, of=some)

    def compare(self) -> None:
        with self.reader.snapshot() as snapshot, self.oracle.snapshot() as oracle:
            assert_same(snapshot, oracle)
            for vbucket, record in oracle.vbuckets().items():
                for after in {0, record.high_seqno // 2, record.high_seqno}:
                    self.compare_backfill(oracle, vbucket, after)
        for _, snapshot, then in self.kept:
            assert_same(snapshot, then)

    def compare_backfill(self, oracle: DictSnapshot, vbucket: VBucketId, after: int) -> None:
        """A backfill is the same records, in one piece."""
        backfill = self.reader.backfill(vbucket, after)
        assert backfill.vbucket == oracle.vbucket(vbucket)
        blocks = []
        while block := backfill.block(200):
            blocks.append(block)
        assert b"".join(blocks) == b"".join(oracle.records(vbucket, first=after + 1))
        backfill.close()


class OneProcess(Machine):
    in_child = False


class TwoProcesses(Machine):
    in_child = True


class LittleHistory(OneProcess):
    """With so little room for undoing that it is always full."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(undo, "ENTRIES_MAX", 4)
        self.patch.setattr(undo, "STORE_BYTES_MAX", 900)

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()


TestOneProcess = OneProcess.TestCase
TestOneProcess.settings = settings(max_examples=40, stateful_step_count=30)
TestLittleHistory = LittleHistory.TestCase
TestLittleHistory.settings = settings(max_examples=40, stateful_step_count=30)
TestTwoProcesses = TwoProcesses.TestCase
TestTwoProcesses.settings = settings(max_examples=8, stateful_step_count=20)


def test_a_vbucket_twice_in_one_write() -> None:
    """One transaction may have a vbucket twice; the second replaces what the first put, entries and all."""
    directory = tempfile.mkdtemp(prefix="headrace-store-")
    writer, reader = open_store(directory)
    writer.write(
        [
            changes(3, [live(3, 1, b"a", expiry=7), dead(3, 2, b"b")], 2),
            changes(3, [dead(3, 3, b"a"), live(3, 4, b"b")], 4),
        ]
    )
    with reader.snapshot() as snapshot:
        assert_consistent(snapshot)
        assert [seqno for _, seqno in snapshot.keys(VBucketId(3), limit=9)] == [3, 4]
    reader.close()
    writer.close()
    shutil.rmtree(directory)
