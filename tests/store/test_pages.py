"""Records read from LMDB's pages are those that its cursor gives, and damage is no reason to crash."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.node import kernels
from headrace.store import Changes, StoreError, VBucketRecord, layout, open_store
from headrace.store.pages import BAD, END, MORE, TOO_LARGE, walk_from
from headrace.store.records import LIVE, Record

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.store import LmdbReader
    from headrace.store.backfill import Backfill

VB = VBucketId(1)
SIZES = (0, 1, 100, 300, 2000, 4000, 20_000)


@pytest.fixture(autouse=True, scope="module")
def _kernel() -> None:
    """The compiled loop is what is tested here."""
    kernels.load_pages()


def fill(path: Path, sizes: list[int], step: int = 2) -> LmdbReader:
    """A store whose vbucket 1 has records of some sizes, at every `step`-th seqno."""
    writer, reader = open_store(path)
    records = [
        Record(LIVE, VB, b"key-%d" % n, os.urandom(size), 0, Cas(n + 1), Seqno(step * n + 1), 1).pack()
        for n, size in enumerate(sizes)
    ]
    now = VBucketRecord(
        state=1, failover_log=((VbUuid(1), Seqno(0)),), high_seqno=Seqno(step * len(sizes)), live_items=len(sizes)
    )
    writer.write([Changes(vbucket=VB, records=records, now=now)])
    writer.close()
    return reader


def walked(reader: LmdbReader, first: int, room_bytes: int) -> tuple[bytes, int]:
    """All that a walk gives, and how it ended."""
    with reader.snapshot() as snapshot:
        walk = walk_from(reader._environment, snapshot._txn, layout.by_seqno_name(VB), first)
        assert walk is not None
        parts, room = [], bytearray(room_bytes)
        while True:
            size = walk.fill(room, len(room))
            if walk.outcome == TOO_LARGE:
                assert size > len(room)
                room = bytearray(size)
                continue
            parts.append(bytes(room[:size]))
            if walk.outcome != MORE:
                return b"".join(parts), walk.outcome


def read(backfill: Backfill) -> bytes:
    """All that a backfill gives."""
    parts = []
    while block := backfill.block(1 << 16):
        parts.append(bytes(block))
    return b"".join(parts)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=300),
    data=st.data(),
    room_bytes=st.integers(1, 100_000),
)
def test_as_the_cursor_reads(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject, room_bytes: int
):
    """From any seqno, with any room, small values and those with pages of their own."""
    reader = fill(tmp_path_factory.mktemp("store"), sizes)
    try:
        for _ in range(5):
            first = data.draw(st.integers(0, 2 * len(sizes) + 3))
            with reader.snapshot() as snapshot:
                expected = b"".join(snapshot.records(VB, first=first))
            assert walked(reader, first, room_bytes) == (expected, END)
    finally:
        reader.close()


def test_a_deep_tree(tmp_path: Path):
    """Some ten thousand pages: three levels, and every one of them is crossed."""
    reader = fill(tmp_path, [100] * 100_000, step=1)
    try:
        with reader.snapshot() as snapshot:
            assert snapshot._txn.stat(reader._environment.handles.by_seqno[VB])["depth"] >= 3
            for first in (0, 1, 30_001, 99_999, 100_000, 100_001):
                expected = b"".join(snapshot.records(VB, first=first))
                assert walked(reader, first, 1 << 18) == (expected, END)
                with_backfill = reader.backfill(VB, max(first - 1, 0))
                try:
                    assert read(with_backfill) == b"".join(snapshot.records(VB, first=max(first, 1)))
                finally:
                    with_backfill.close()
    finally:
        reader.close()


def test_a_vbucket_without_records_takes_no_walk(tmp_path: Path):
    """An empty tree has no root: the cursor says that there is nothing."""
    reader = fill(tmp_path, [1])
    try:
        with reader.snapshot() as snapshot:
            assert walk_from(reader._environment, snapshot._txn, layout.by_seqno_name(7), 0) is None
    finally:
        reader.close()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.randoms(use_true_random=False))
def test_damage_is_found_or_harmless(tmp_path_factory: pytest.TempPathFactory, seed: object):
    """Bytes overwritten anywhere in the file: a walk ends, with what it could read, and touches nothing outside."""
    path = tmp_path_factory.mktemp("store")
    reader = fill(path, [300] * 400 + [9000] * 20)
    try:
        with reader.snapshot() as snapshot:
            walk = walk_from(reader._environment, snapshot._txn, layout.by_seqno_name(VB), 0)
            assert walk is not None
            with (path / layout.DATA_FILE).open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
                for _ in range(20):  # behind the two pages that say where everything is
                    at = seed.randrange(2 * 4096, len(view) - 8)  # type: ignore[attr-defined]
                    view[at : at + 8] = seed.randbytes(8)  # type: ignore[attr-defined]
            room, total = bytearray(1 << 16), 0
            while walk.outcome == MORE and total < 64 << 20:
                size = walk.fill(room, len(room))
                if walk.outcome == TOO_LARGE:
                    break
                total += size
            assert walk.outcome in {END, BAD, TOO_LARGE} or total >= 64 << 20
    finally:
        reader.close()


def test_a_damaged_page_is_told(tmp_path: Path):
    """A stream that meets one is told so; it does not go on as if nothing was missing."""
    reader = fill(tmp_path, [300] * 2000)
    try:
        backfill = reader.backfill(VB, 0)
        try:
            assert backfill.block(1000)
            data = tmp_path / layout.DATA_FILE
            with data.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
                for page in range(2, len(view) // 4096):
                    view[4096 * page + 10 : 4096 * page + 12] = b"\0\0"  # a page of no kind
            with pytest.raises(StoreError, match="damaged"):
                read(backfill)
        finally:
            backfill.close()
    finally:
        reader.close()
