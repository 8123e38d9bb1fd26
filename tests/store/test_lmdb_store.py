from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import lmdb
import pytest

from headrace.ids import Seqno, VBucketId
from headrace.store import Changes, FormatError, LmdbReader, LmdbWriter, StoreError, layout, open_store
from headrace.store.records import PLACES
from tests.store.builders import batch, changes, dead, live, now
from tests.store.consistency import assert_consistent

if TYPE_CHECKING:
    from pathlib import Path

VB = VBucketId(7)


def rewrite_meta(path: Path, key: bytes, value: bytes | None) -> None:
    """Change a fact of a store behind its back."""
    with lmdb.Environment(str(path), max_dbs=layout.DATABASES_MAX) as env:
        meta = env.open_db(layout.META)
        with env.begin(write=True) as txn:
            if value is None:
                txn.delete(key, db=meta)
            else:
                txn.put(key, value, db=meta)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one item."""
    path = tmp_path / "store"
    writer = LmdbWriter(path)
    writer.write([changes(VB, [live(VB, 1, b"a")], 1)])
    writer.close()
    return path


@pytest.mark.parametrize("opener", [LmdbReader, LmdbWriter])
def test_a_newer_format_is_refused(store: Path, opener: type[LmdbReader | LmdbWriter]) -> None:
    """Files of a newer format are refused with their version, the known ones and what to do, and are not touched."""
    rewrite_meta(store, layout.META_FORMAT, b"9")
    with pytest.raises(FormatError, match=r"has format 9, .* knows 1, 2\. Open it with the version"):
        opener(store)
    rewrite_meta(store, layout.META_FORMAT, b"2")
    reader = LmdbReader(store)
    assert reader.latest.get(VB, b"a") == live(VB, 1, b"a")
    reader.close()


@pytest.mark.parametrize("opener", [LmdbReader, LmdbWriter])
def test_an_environment_of_somebody_else_is_refused(tmp_path: Path, opener: type[LmdbReader | LmdbWriter]) -> None:
    """An LMDB environment without our facts is no store."""
    with lmdb.Environment(str(tmp_path), max_dbs=4) as env, env.begin(write=True) as txn:
        txn.put(b"meta", b"mine")
    with pytest.raises(StoreError, match="no store of headrace"):
        opener(tmp_path)


@pytest.mark.parametrize("opener", [LmdbReader, LmdbWriter])
def test_a_store_that_names_no_format_is_refused(store: Path, opener: type[LmdbReader | LmdbWriter]) -> None:
    """A store must say its format."""
    rewrite_meta(store, layout.META_FORMAT, None)
    with pytest.raises(StoreError, match="names no format"):
        opener(store)


@pytest.mark.parametrize("opener", [LmdbReader, LmdbWriter])
def test_a_file_that_is_no_lmdb_is_refused(tmp_path: Path, opener: type[LmdbReader | LmdbWriter]) -> None:
    """A data file of another kind is refused, and is as it was."""
    (tmp_path / layout.DATA_FILE).write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="cannot open the store"):
        opener(tmp_path)
    assert (tmp_path / layout.DATA_FILE).read_bytes() == b"not a database" * 1000


@pytest.mark.parametrize("opener", [LmdbReader, LmdbWriter])
def test_a_path_that_is_a_file_is_refused(tmp_path: Path, opener: type[LmdbReader | LmdbWriter]) -> None:
    """A file is not a directory, nor is what seems to be below one."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    for path in (file, file / "below"):
        with pytest.raises(StoreError, match="not a directory"):
            opener(path)


def test_a_reader_makes_no_store(tmp_path: Path) -> None:
    """A reader of an empty directory says so and leaves it empty; one of an unfinished store says so too."""
    with pytest.raises(StoreError, match=r"it has no file data\.mdb"):
        LmdbReader(tmp_path)
    assert list(tmp_path.iterdir()) == []
    lmdb.Environment(str(tmp_path)).close()
    with pytest.raises(StoreError, match="no store"):
        LmdbReader(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_directory_that_is_not_writable_is_refused(tmp_path: Path) -> None:  # pragma: no cover
    """A writer names the directory that it may not write to."""
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StoreError, match="not writable"):
        LmdbWriter(tmp_path)


def test_a_snapshot_sees_nothing_that_came_later(tmp_path: Path) -> None:
    """What is written, replaced, deleted or purged after it was taken is not in a snapshot."""
    writer, reader = open_store(tmp_path)
    writer.write([changes(VB, [live(VB, 1, b"a", expiry=5), dead(VB, 2, b"b"), live(VB, 3, b"c")], 3)])
    with reader.snapshot() as before:
        writer.write([changes(VB, [live(VB, 4, b"a"), dead(VB, 5, b"c")], 5)])
        writer.purge(deleted_before=5000, limit=10)
        with reader.snapshot() as between:
            writer.delete_vbucket(VB)
            assert between.vbucket(VB) == now(5, purge_seqno=2)
            assert [seqno for _, seqno in between.keys(VB, limit=9)] == [4, 5]
            assert_consistent(between)
        assert [key for key, _ in before.keys(VB, limit=9)] == [b"a", b"b", b"c"]
        assert [one.key for one in before.expired(now=5, limit=9)] == [b"a"]
        assert_consistent(before)
    with reader.snapshot() as after:
        assert after.vbuckets() == {}
        assert_consistent(after)
    reader.close()
    writer.close()


def test_latest_moves_when_told(tmp_path: Path) -> None:
    """The snapshot for lookups stays where it is until it is refreshed."""
    writer, reader = open_store(tmp_path)
    assert reader.latest.get(VB, b"a") is None
    writer.write([changes(VB, [live(VB, 1, b"a")], 1)])
    assert reader.latest.get(VB, b"a") is None
    reader.refresh()
    assert reader.latest.get(VB, b"a") == live(VB, 1, b"a")
    reader.close()
    writer.close()


def test_what_is_out_of_bounds_is_not_there(tmp_path: Path) -> None:
    """To read a vbucket or a key that cannot be finds nothing, and to write one is refused."""
    writer, reader = open_store(tmp_path)
    nowhere = VBucketId(layout.VBUCKETS_MAX)
    writer.write([changes(VB, [live(VB, 1, b"a")], 1)])
    with reader.snapshot() as snapshot:
        assert snapshot.get(nowhere, b"a") is None
        assert snapshot.vbucket(nowhere) is None
        assert snapshot.keys(nowhere, limit=9) == []
        assert list(snapshot.records(nowhere)) == []
        assert list(snapshot.records(VB, first=2**64)) == []
        assert list(snapshot.records(VB, last=-1)) == []
        assert snapshot.get(VB, b"") is None
        assert snapshot.get(VB, b"k" * 512) is None
    with pytest.raises(StoreError, match="vbucket 1024 is not among"):
        writer.write([changes(nowhere, [live(nowhere, 1, b"a")], 1)])
    with pytest.raises(StoreError, match="vbucket 1024 is not among"):
        writer.delete_vbucket(nowhere)
    reader.close()
    writer.close()


GOOD = live(VB, 5, b"key", b"value")


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([b""], "0 bytes are no record"),
        ([GOOD[:30]], "30 bytes are no record"),
        ([GOOD[:-1]], "no record at seqno 5"),
        ([GOOD + b"x"], "no record at seqno 5"),
        ([b"\x81" + GOOD[1:]], "no record at seqno 5"),
        ([GOOD[:1] + b"\x56" + GOOD[2:]], "no record at seqno 5"),
        ([GOOD[:2] + b"\x02\x00" + GOOD[4:]], "a key of 512 bytes"),
        ([GOOD[:2] + b"\x00\x09" + GOOD[4:]], "a key of 9 bytes"),
        ([live(VB, 5, b"")], "a key of 0 bytes"),
        ([live(VB, 5, b"k" * 506)], "a key of 506 bytes"),
        ([live(8, 5, b"a")], "a record of vbucket 8"),
        ([live(VB, 4, b"a")], "behind seqno 4: a record of vbucket 7 with seqno 4"),
        ([GOOD, live(VB, 5, b"b")], "behind seqno 5"),
        ([GOOD, live(VB, 6, b"key")], "a key is there twice"),
        ([live(VB, 10, b"b")], "seqno 10 above the high seqno 9"),
    ],
)
def test_what_is_no_record_is_not_written(tmp_path: Path, records: list[bytes], what: str) -> None:
    """Every record is checked before it is written, and one bad record spoils the whole transaction."""
    writer, reader = open_store(tmp_path)
    writer.write([changes(VB, [live(VB, 4, b"old")], 4)])
    with pytest.raises(StoreError, match=what):
        writer.write([changes(1, [live(1, 1, b"a")], 1), Changes(vbucket=VB, records=records, now=now(9))])
    with reader.snapshot() as snapshot:
        assert snapshot.vbuckets() == {VB: now(4)}
        assert_consistent(snapshot)
    reader.close()
    writer.close()


def test_a_vbucket_does_not_go_back(tmp_path: Path) -> None:
    """Neither high seqno nor purge seqno falls, until the vbucket is deleted."""
    writer, reader = open_store(tmp_path)
    writer.write([changes(VB, [dead(VB, 4, b"a"), dead(VB, 5, b"b")], 5)])
    assert writer.purge(VB, deleted_before=2000, limit=9) == {VB: 4}, "the newest change stays"
    with pytest.raises(StoreError, match="would go back from seqno 5 to 3"):
        writer.write([changes(VB, [], 3)])
    writer.write([changes(VB, [], 6, purge_seqno=2)])
    with reader.snapshot() as snapshot:
        assert snapshot.vbucket(VB) == now(6, purge_seqno=4)
    writer.delete_vbucket(VB)
    writer.write([changes(VB, [live(VB, 1, b"a")], 1)])
    with reader.snapshot() as snapshot:
        assert snapshot.vbucket(VB) == now(1)
    reader.close()
    writer.close()


def test_purge_takes_the_oldest_first_and_no_more_than_it_may(tmp_path: Path) -> None:
    """Fewer than the limit gone means that none is left."""
    writer, reader = open_store(tmp_path)
    records = [dead(VB, seqno, b"key-%d" % seqno, at=100 - seqno, expired=seqno % 2 == 0) for seqno in range(1, 11)]
    writer.write([changes(VB, [*records, live(VB, 11, b"alive")], 11)])
    assert writer.purge(deleted_before=99, limit=3) == {VB: 10}
    with reader.snapshot() as snapshot:
        assert [seqno for _, seqno in sorted(snapshot.keys(VB, limit=99), key=lambda one: one[1])] == [*range(1, 8), 11]
        assert_consistent(snapshot)
    assert writer.purge(VBucketId(8), deleted_before=99, limit=3) == {}
    assert writer.purge(VB, deleted_before=99, limit=100) == {VB: 10}
    with reader.snapshot() as snapshot:
        assert snapshot.keys(VB, limit=99) == [(b"alive", Seqno(11)), (b"key-1", Seqno(1))]
        assert_consistent(snapshot)
    reader.close()
    writer.close()


def test_damage_is_seen_by_a_lookup(store: Path) -> None:
    """A record that is not what its place says is an error that names vbucket, key and seqno."""
    good = live(VB, 1, b"a")
    for damaged in (b"", good[:-1], b"\x81" + good[1:], live(8, 1, b"a"), live(VB, 1, b"b"), live(VB, 2, b"a")):
        with lmdb.Environment(str(store), max_dbs=layout.DATABASES_MAX) as env:
            by_seqno = env.open_db(b"s0007")
            with env.begin(write=True) as txn:
                txn.put(layout.SEQNO.pack(1), damaged, db=by_seqno)
        reader = LmdbReader(store)
        with pytest.raises(StoreError, match="damaged: the record of key b'a' in vbucket 7, seqno 1"):
            reader.latest.get(VB, b"a")
        reader.close()


def test_damage_of_a_vbucket_is_seen(store: Path) -> None:
    """A vbucket that cannot be read is an error, not a vbucket that is not there."""
    with lmdb.Environment(str(store), max_dbs=layout.DATABASES_MAX) as env:
        vbuckets = env.open_db(layout.VBUCKETS)
        with env.begin(write=True) as txn:
            txn.put(layout.VBUCKET.pack(VB), b'{"state": 1}', db=vbuckets)
    reader = LmdbReader(store)
    for read in (lambda: reader.latest.vbucket(VB), reader.latest.vbuckets):
        with pytest.raises(StoreError, match="damaged: its vbucket 7"):
            read()
    reader.close()


def test_after_close_everything_is_refused(tmp_path: Path) -> None:
    """Who uses what is closed is told so; to close twice is no error."""
    writer, reader = open_store(tmp_path)
    with reader.snapshot() as snapshot:
        pass
    with pytest.raises(StoreError):
        snapshot.get(VB, b"a")
    for _ in range(2):
        reader.close()
        writer.close()
    for use in (
        lambda: writer.write([]),
        lambda: writer.purge(deleted_before=1, limit=1),
        reader.refresh,
        lambda: reader.latest,
        lambda: reader.snapshot().__enter__(),
    ):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_tokens_are_kept_with_their_write(tmp_path: Path) -> None:
    """The token of the last write that had one is found again, also by another writer."""
    writer = LmdbWriter(tmp_path)
    assert writer.token() == b""
    writer.write([batch(VB, 1, 1)], token=b"first")
    writer.write([batch(VB, 2, 1)])
    with pytest.raises(StoreError):
        writer.write([batch(VB, 2, 1)], token=b"second")
    writer.close()
    writer = LmdbWriter(tmp_path)
    assert writer.token() == b"first"
    writer.close()


def test_places_travel_as_json() -> None:
    """The writer process knows of records what the catalogue says."""
    assert type(PLACES).from_json(PLACES.to_json()) == PLACES
