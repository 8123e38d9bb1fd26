"""The format `dcp` against Couchbase's own server, where there is one; tests/client/test_dcp_couchbase.py says how.

The server is an old one (4.1.2): it deduplicates and snapshots by its own rules, which is what counts here.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from headrace.client import BatchReader, BucketWriter, ChangeOptions, ItemVersion, KvConnection
from headrace.pipelines.compare import Comparison, compare
from headrace.pipelines.sides import BucketSide
from headrace.testing import LiveNode
from headrace.wire import join_xattrs
from headrace.wire.catalogue import GetAllVBSeqnos, Seqnos, StopPersistence
from headrace.wire.codes import Datatype
from tests.client.servers import HOST, free_port
from tests.client.test_dcp_couchbase import PROGRAM, VBUCKETS, on_disk, server
from tests.spark.faults.buckets import Bucket, Writers
from tests.spark.faults.copies import EVENT, FAIL, REBUILD, Copy, difference, rows_of
from tests.spark.faults.queries import WAIT_S, Query
from tests.spark.sinks import CAS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="no Couchbase server: HEADRACE_COUCHBASE_SERVER is not set"),
    pytest.mark.slow,
]
FIRST = [f"key-{number}" for number in range(1000)]


class Place:
    """Where the server is, as `Bucket` wants to know it."""

    def __init__(self) -> None:
        self.host, self.port = HOST, free_port()

    @property
    def connection_string(self) -> str:
        """How clients reach it."""
        return f"couchbase://{self.host}:{self.port}"

    @property
    def options(self) -> dict[str, object]:
        """The options of a read."""
        return {"connection": self.connection_string}


def copied(spark: SparkSession, options: dict[str, object]) -> Copy:
    """A batch read as a copy."""
    copy = Copy()
    given = {name: str(value) for name, value in options.items()}
    copy(spark.read.format("dcp").options(**given).load(), 0)
    return copy


def test_a_batch_is_the_bucket(spark: SparkSession, tmp_path: Path):
    """Documents and changes are what GET and GET_META say, also under writers and from disk after a restart."""
    place = Place()
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(FIRST)
        for key in FIRST[::5]:
            bucket.delete(key)
        with Writers(place, deletes=0.0) as writers:
            writers.wait(300)
            found = {str(row.key) for row in rows_of(copied(spark, {**place.options, "mode": "documents"}).batches[0])}
            writers.stop()
        assert {key for key in FIRST if key not in FIRST[::5]} <= found
        keys = {*FIRST, *writers.keys}
        truth = bucket.documents(keys)
        for mode in ("documents", "changes"):
            assert not difference(copied(spark, {**place.options, "mode": mode}).documents(), truth)
        on_disk(place.port, tmp_path)
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        truth = bucket.documents(keys)
        for mode in ("documents", "changes"):
            assert not difference(copied(spark, {**place.options, "mode": mode}).documents(), truth)


def test_a_batch_ends_where_it_was_told_to(spark: SparkSession, tmp_path: Path):
    """The server sends to the end of a snapshot; the read cuts at its end, and the stream goes on right there."""
    place = Place()
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(FIRST)
        ends = "{" + ",".join(f'"{vb}": 30' for vb in range(VBUCKETS)) + "}"
        rows = rows_of(copied(spark, {**place.options, "endingOffsets": ends}).batches[0])
        assert {vb: sum(row.vbucket == vb for row in rows) for vb in range(VBUCKETS)} == dict.fromkeys(
            range(VBUCKETS), 30
        )
        assert {row.seqno for row in rows} == set(range(1, 31))
        rest = rows_of(copied(spark, {**place.options, "startingOffsets": ends}).batches[0])
        assert len(rows) + len(rest) == len(FIRST)


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT, FAIL])
def test_a_stream_goes_on_after_a_clean_restart(spark: SparkSession, tmp_path: Path, on_rollback: str):
    """Writers, limits, a restart of the query and one of the server: it ends equal and nothing is rolled back."""
    place = Place()
    options = {**place.options, "onRollback": on_rollback, "maxOffsetsPerTrigger": 300}
    copy = Copy(on_rollback)
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(FIRST)
        with Writers(place) as writers:
            with Query(spark, options, tmp_path / "checkpoint", copy) as running:
                running.until_rows(500)
            with Query(spark, options, tmp_path / "checkpoint", copy) as running:
                running.until_rows(900)
                writers.stop()
                running.ends_equal(bucket.documents({*FIRST, *writers.keys}))
        on_disk(place.port, tmp_path)
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(["after"])
        with Query(spark, options, tmp_path / "checkpoint", copy) as running:
            running.ends_equal(bucket.documents({*FIRST, *writers.keys, "after"}))
    assert not copy.rollbacks


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT])
def test_what_a_killed_server_lost_is_undone(spark: SparkSession, tmp_path: Path, on_rollback: str):
    """After kill -9 with changes that were in memory alone, a running query ends equal to what the server has."""
    place = Place()
    copy = Copy(on_rollback)
    lost = [f"lost-{number}" for number in range(60)]
    query = None
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(FIRST)
        on_disk(place.port, tmp_path)
        query = Query(spark, {**place.options, "onRollback": on_rollback}, tmp_path / "checkpoint", copy)
        query.until_rows(len(FIRST))
        with KvConnection(place.host, place.port) as items:
            items.request(StopPersistence())
        bucket.fill(lost)
        query.until(lambda: set(lost) <= copy.documents().keys(), "what will be lost was read")
        os.kill(int((tmp_path / "db" / "pid").read_text()), signal.SIGKILL)
    with query, server(tmp_path / "db", place.port), Bucket(place) as bucket:
        new = [f"new-{number}" for number in range(60)]
        bucket.fill(new)
        truth = bucket.documents([*FIRST, *lost, *new])
        assert not set(lost) & truth.keys()
        query.ends_equal(truth)
        assert copy.rollbacks


# -- writes


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LiveNode]:
    """A node of ours with what the old server can hold: JSON, bytes, flags, expiry; overwritten, deleted, expired."""
    with LiveNode(data=tmp_path / "source", vbuckets=16) as found:
        found.write(500)
        found.write({"octets": b"\x00\xff", "text": "a text", "empty": b""})
        found.items.set(b"flags", b"1", flags=0x0102_0304, expiry=4_000_000_000)
        found.write({f"key-{number}": {"n": "again"} for number in range(20)})
        found.delete(*(f"key-{number}" for number in range(5, 15)))
        with BucketWriter(ChangeOptions(connection=found.connection_string)) as writer:
            writer.delete_version("", b"expired", b"", ItemVersion(0, 1_700_000_000, 9, CAS), expired=True)
            writer.set_version("", b"large", b"[]", ItemVersion(2**32 - 1, 0, 2**48 - 1, CAS), datatype=Datatype.JSON)
            writer.finish()
        yield found


def save(rows: DataFrame, place: Place, **options: str) -> None:
    """Write a DataFrame."""
    rows.write.format("dcp").option("connection", place.connection_string).options(**options).mode("append").save()


def compared(source: LiveNode, place: Place) -> Comparison:
    """Compare two buckets. Which values are JSON the old server finds by itself, and a node is told."""
    sides = [BucketSide(ChangeOptions(connection=each.connection_string)) for each in (source, place)]
    return compare(*sides, ignored=["datatype"])


def tombstones(each: LiveNode | Place) -> set[tuple[str, int, int]]:
    """What is deleted in a bucket: keys with revision and CAS. The old server calls the end of an item a deletion."""
    with BatchReader(ChangeOptions(connection=each.connection_string), until="now") as batches:
        rows = [row for batch in batches for row in batch.to_pylist()]
    return {(row["key"], row["rev"], row["cas"]) for row in rows if row["event"] in {"deletion", "expiration"}}


def high_seqnos(place: Place) -> dict[int, int]:
    """How far each vbucket is."""
    with KvConnection(place.host, place.port) as items:
        reply = items.request(GetAllVBSeqnos())
    assert isinstance(reply, Seqnos)
    return {row.vbucket: row.seqno for row in reply.seqnos}


def test_documents_are_what_was_written(spark: SparkSession, tmp_path: Path):
    """Values, times to live and removals are what GET and a batch read say, and the same when written twice."""
    place, count, began = Place(), 2000, int(time.time())
    rows = spark.range(0, count, 1, 4).selectExpr(
        "concat('doc-', id) as key",
        "if(id % 2 = 0, to_json(struct(id as n)), concat('text ', id)) as doc",
        "if(id % 3 = 0, 3600, 0) as ttl",
        "id % 10 = 9 as gone",
    )
    keys = [f"doc-{number}" for number in range(count)]
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        save(rows.drop("gone"), place, valueColumn="doc", ttlColumn="ttl")
        assert len(bucket.documents(keys)) == count
        for _ in range(2):
            save(rows, place, valueColumn="doc", ttlColumn="ttl", deleteColumn="gone")
            truth = bucket.documents(keys)
            assert {key: each.value for key, each in truth.items()} == {
                f"doc-{number}": f"text {number}".encode() if number % 2 else b'{"n":%d}' % number
                for number in range(count)
                if number % 10 != 9
            }
            for key, each in truth.items():
                ends = int(key.removeprefix("doc-")) % 3 == 0
                assert began + 3600 <= each.expiry <= time.time() + 3601 if ends else each.expiry == 0
            for mode in ("documents", "changes"):
                assert not difference(copied(spark, {**place.options, "mode": mode}).documents(), truth)


def test_documents_with_revisions(spark: SparkSession, tmp_path: Path):
    """The larger revision wins, of documents and of removals; the same rows again change nothing at all."""
    place = Place()
    first = spark.sql("select concat('doc-', id) key, id n, 5L rev, false gone from range(100)")
    mixed = spark.sql("select concat('doc-', id) key, -1L n, 4L + id % 3 rev, id % 2 = 0 gone from range(100)")
    options = {"revColumn": "rev", "deleteColumn": "gone"}
    keys = [f"doc-{number}" for number in range(100)]
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        save(first, place, **options)
        save(mixed, place, **options)
        truth, before = bucket.documents(keys), high_seqnos(place)
        for each in (first, mixed):
            save(each, place, **options)
        assert (bucket.documents(keys), high_seqnos(place)) == (truth, before)
        newer = {number for number in range(100) if number % 3 == 2}
        assert {key: (json.loads(each.value)["n"], each.rev, each.cas) for key, each in truth.items()} == {
            f"doc-{number}": (-1, 6, 6) if number in newer else (number, 5, 5)
            for number in range(100)
            if number not in newer or number % 2
        }
        assert tombstones(place) == {(f"doc-{number}", 6, 6) for number in newer if number % 2 == 0}


def test_a_copy_of_our_node_is_equal(spark: SparkSession, tmp_path: Path, source: LiveNode):
    """Changes become what they were: value, CAS, revision, flags, expiry, tombstones; twice is once; newer stays."""
    place = Place()
    rows = spark.read.format("dcp").option("connection", source.connection_string).load()
    with server(tmp_path / "db", place.port), KvConnection(place.host, place.port) as items:
        for _ in range(3):
            items.set(b"key-100", b"newer")
        items.set(b"key-0", b"older")
        for _ in range(3):
            items.set(b"key-5", b"newer than its deletion")
        save(rows, place)
        found = compared(source, place)
        assert (found.missing.count, found.extra.count, found.stale.count) == (0, 1, 1)
        assert items.get(b"key-100").value == b"newer"
        assert items.get(b"key-5").value == b"newer than its deletion"
        assert tombstones(source) - tombstones(place) == {each for each in tombstones(source) if each[0] == "key-5"}
        before = high_seqnos(place)
        save(rows.orderBy("value").repartition(3), place)
        assert high_seqnos(place) == before
        save(rows, place, conflicts="source")
        assert compared(source, place).is_equal
        assert tombstones(place) == tombstones(source)
        assert len(tombstones(place)) == 11


def test_a_copy_is_on_disk_and_comes_back(spark: SparkSession, tmp_path: Path, source: LiveNode):
    """A write that ended is on disk: after a kill it is all there, kept when written again, the same copied back."""
    place = Place()
    changes = spark.read.format("dcp").option("connection", source.connection_string).load()
    with server(tmp_path / "db", place.port):
        save(changes, place)
        os.kill(int((tmp_path / "db" / "pid").read_text()), signal.SIGKILL)
    with server(tmp_path / "db", place.port), LiveNode(data=tmp_path / "back", vbuckets=4) as back:
        assert compared(source, place).is_equal
        assert tombstones(place) == tombstones(source)
        before = high_seqnos(place)
        save(changes, place)  # what is deleted has to be looked up on disk now
        assert high_seqnos(place) == before
        rows = spark.read.format("dcp").option("connection", place.connection_string).load()
        rows.write.format("dcp").option("connection", back.connection_string).mode("append").save()
        assert compared(back, place).is_equal
        assert tombstones(back) == tombstones(source)


def test_xattrs_are_wrong_rows(spark: SparkSession, tmp_path: Path, source: LiveNode):
    """The old server has no place for them: such rows are put aside with the reason, and the others written."""
    place = Place()
    with BucketWriter(ChangeOptions(connection=source.connection_string)) as writer:
        block = join_xattrs({b"_sync": b'{"rev":1}'}, b'{"a":1}')
        marks = int(Datatype.XATTR | Datatype.JSON)
        writer.set_version("", b"xattrs", block, ItemVersion(1, 0, 4, CAS), datatype=marks)
        writer.finish()
    rows = spark.read.format("dcp").option("connection", source.connection_string).option("xattrs", "true").load()
    with server(tmp_path / "db", place.port):
        save(rows, place, deadLetterPath=str(tmp_path / "dead"))
        found = compared(source, place)
        assert (found.missing.count, found.extra.count, found.stale.count) == (1, 0, 0)
    letters = [json.loads(line) for each in (tmp_path / "dead").iterdir() for line in each.read_text().splitlines()]
    assert [(each["key"], each["reason"]) for each in letters] == [
        ("xattrs", "it has xattrs, and the server knows none")
    ]


def test_a_stream_ends_equal_after_the_target_was_killed(spark: SparkSession, tmp_path: Path, source: LiveNode):
    """What the killed server had in memory alone is written again; the query itself goes on as if nothing was."""
    place = Place()
    rows = spark.readStream.format("dcp").option("connection", source.connection_string).load()
    writer = rows.writeStream.format("dcp").option("connection", place.connection_string)
    query = None
    try:
        with server(tmp_path / "db", place.port), KvConnection(place.host, place.port) as items:
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            query.processAllAvailable()
            items.request(StopPersistence())
            before = sum(high_seqnos(place).values())
            source.write({f"late-{number}": str(number) for number in range(200)})
            eventually(lambda: sum(high_seqnos(place).values()) > before)  # a micro-batch, or the first of some
            os.kill(int((tmp_path / "db" / "pid").read_text()), signal.SIGKILL)
        with Writers(source) as writers, server(tmp_path / "db", place.port):
            writers.wait(300)
            writers.stop()
            query.processAllAvailable()
            assert compared(source, place).is_equal
            assert tombstones(place) == tombstones(source)
    finally:
        if query is not None:
            query.stop()


def eventually(holds: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it never was"
        time.sleep(0.05)
