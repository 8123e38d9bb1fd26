"""`spark.readStream.format("dcp")` on a node in this program: what a query reads, in which order, and when it ends."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import BatchReader, ChangeOptions
from headrace.spark.watching import ROW_BYTES
from headrace.wire.catalogue import Flush
from tests.spark.faults.buckets import Bucket, Writers, live_nodes
from tests.spark.faults.copies import EVENT, FAIL, REBUILD, Copy, difference, rows_of
from tests.spark.faults.queries import Query, connection_to, task_connections

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headrace.testing import LiveNode

VBUCKETS = 16
FIRST = [f"key-{number}" for number in range(1500)]


@pytest.fixture(params=[pytest.param(1, id="one node"), pytest.param(2, id="two nodes")])
def nodes(request: pytest.FixtureRequest) -> Iterator[list[LiveNode]]:
    """A node, or two that share the vbuckets, with a few items."""
    with filled(request.param) as started:
        yield started


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """One such node."""
    with filled(1) as (started,):
        yield started


@contextmanager
def filled(count: int) -> Iterator[list[LiveNode]]:
    """Nodes with items."""
    with live_nodes(count, VBUCKETS) as started:
        with Bucket(*started) as bucket:
            bucket.fill(FIRST)
        yield started


@pytest.fixture
def bucket(node: LiveNode) -> Iterator[Bucket]:
    """The bucket of the node."""
    with Bucket(node) as opened:
        yield opened


def expire(node: LiveNode) -> None:
    """Let the node look for items whose time is over, as it does every few seconds."""
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    node._on_loop(opened.pager.expire)


def read_now(
    spark: SparkSession, nodes: list[LiveNode], folder: Path, copy: Copy | None = None, **options: object
) -> Copy:
    """Read with AvailableNow until the query ends by itself."""
    copy = copy or Copy()
    given = {"connection": connection_to(*nodes), **options}
    with Query(spark, given, folder, copy, available_now=True) as running:
        assert running.query.awaitTermination(60), "the query does not end"
        assert running.query.exception() is None
    return copy


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT, FAIL])
def test_a_copy_ends_equal_after_sets_deletions_expirations_and_a_flush(
    spark: SparkSession, nodes: list[LiveNode], tmp_path: Path, on_rollback: str
):
    """While writers go on, and after each thing that removes items, the copy ends equal; no row comes twice."""
    brief = [f"brief-{number}" for number in range(100)]
    quiet = {*FIRST, *brief}
    options = {"connection": connection_to(*nodes), "onRollback": on_rollback}
    with Bucket(*nodes) as bucket, Query(spark, options, tmp_path, Copy(on_rollback)) as running:
        with Writers(*nodes, count=2) as writers:
            running.until_rows(len(FIRST))
            for key in brief:
                bucket.set(key, b"soon gone", expiry=1)
            for key in FIRST[::3]:
                bucket.delete(key)
            writers.wait(200)
            time.sleep(1.5)
            for node in nodes:
                expire(node)
            truth = bucket.some(quiet)
            assert truth.keys() == quiet - {*FIRST[::3], *brief}
            running.until(lambda: not difference(_some(running.copy, quiet), truth), "equal after expirations")
            writers.wait(50)
            for node in nodes:
                node.items.request(Flush())
            bucket.set("after", b"the flush", flags=3, expiry=1000)
            writers.wait(50)
            writers.stop()
        truth = bucket.documents({*quiet, *writers.keys, "after"})
        assert "after" in truth
        assert truth.keys() <= {*writers.keys, "after"}
        running.ends_equal(truth)
        events = {row.event for table in running.copy.batches.values() for row in rows_of(table)}
    assert events == {"mutation", "deletion", "expiration"}
    assert not running.copy.rollbacks


def _some(copy: Copy, keys: set[str]) -> dict[str, Any]:
    return {key: found for key, found in copy.documents().items() if key in keys}


def test_available_now_ends_by_itself_while_writers_go_on(spark: SparkSession, nodes: list[LiveNode], tmp_path: Path):
    """It has what was there when it began, in batches within the limit, and the next run has the rest."""
    with Writers(*nodes, count=2, pause_s=0.0005) as writers:
        writers.wait(50)
        copy = read_now(spark, nodes, tmp_path, maxOffsetsPerTrigger=700)
        writers.wait(10)
        writers.stop()
    assert len(copy.batches) > 1
    assert set(FIRST) <= copy.documents().keys()
    read_now(spark, nodes, tmp_path, copy, maxOffsetsPerTrigger=700)
    with Bucket(*nodes) as bucket:
        assert not difference(copy.documents(), bucket.documents({*FIRST, *writers.keys}))
    assert copy.order == sorted(set(copy.order))
    # A task cuts the snapshot in which its range ends: there is no slack.
    assert max(table.num_rows for table in copy.batches.values()) <= 700


def test_a_restarted_query_goes_on_from_its_checkpoint(spark: SparkSession, nodes: list[LiveNode], tmp_path: Path):
    """Each of many runs brings what came since the last one, and nothing twice, whenever a run was stopped."""
    copy, keys = Copy(EVENT), set(FIRST)
    options = {"connection": connection_to(*nodes), "maxOffsetsPerTrigger": 400, "onRollback": EVENT}
    with Writers(*nodes, pause_s=0.001) as writers:
        for run in range(4):
            with Query(spark, options, tmp_path, copy) as running:
                running.until_rows(copy.rows + 300 * (run + 1))
        writers.stop()
    with Bucket(*nodes) as bucket, Query(spark, options, tmp_path, copy) as running:
        running.ends_equal(bucket.documents(keys | writers.keys))
    assert not copy.rollbacks


def test_a_batch_has_no_more_offsets_than_it_may(spark: SparkSession, nodes: list[LiveNode], tmp_path: Path):
    """`maxOffsetsPerTrigger` bounds the rows of every batch, and all but the last are full."""
    copy = read_now(spark, nodes, tmp_path, maxOffsetsPerTrigger=400)
    assert [table.num_rows for table in copy.batches.values()] == [400, 400, 400, 300]


def test_a_batch_has_about_as_many_bytes_as_it_may(spark: SparkSession, nodes: list[LiveNode], tmp_path: Path):
    """`maxBytesPerTrigger` holds for like values within a tenth, counting keys, values and what frames them."""
    with Bucket(*nodes) as bucket:
        start = {str(vb): 0 for vb in range(VBUCKETS)}
        for key in FIRST:  # each has one seqno
            start[str(bucket.vbucket_of(key))] += 1
        for number in range(600):
            bucket.set(f"large-{number}", b"x" * 2000)
    copy = read_now(spark, nodes, tmp_path, maxBytesPerTrigger=200_000, startingOffsets=json.dumps(start))
    sizes = [sum(len(row["value"]) + len(row["key"]) for row in each.to_pylist()) for each in copy.batches.values()]
    assert sum(sizes) > 600 * 2000
    assert max(sizes) < 1.1 * 200_000
    assert min(sizes[:-1]) > 0.8 * 200_000


@pytest.mark.parametrize(("offsets", "bytes_"), [(400, 1_000_000), (1000, 30_000)])
def test_of_two_limits_the_smaller_holds(
    spark: SparkSession, node: LiveNode, tmp_path: Path, offsets: int, bytes_: int
):
    """With `maxOffsetsPerTrigger` and `maxBytesPerTrigger` a batch is full by one of them and within the other."""
    copy = read_now(spark, [node], tmp_path, maxOffsetsPerTrigger=offsets, maxBytesPerTrigger=bytes_)
    tables = list(copy.batches.values())
    assert sum(table.num_rows for table in tables) == len(FIRST)
    rows = [table.num_rows for table in tables[:-1]]
    sizes = [sum(len(row["value"]) + len(row["key"]) + ROW_BYTES for row in each.to_pylist()) for each in tables[:-1]]
    assert max(rows) <= offsets
    assert max(sizes) < 1.1 * bytes_
    assert min(rows) == offsets or min(sizes) > 0.8 * bytes_
    assert (max(rows) == offsets) == (offsets == 400)


def test_from_latest_comes_only_what_is_new(spark: SparkSession, node: LiveNode, bucket: Bucket, tmp_path: Path):
    """`startingOffsets` latest begins with the first change after the start of the query."""
    options = {"connection": connection_to(node), "startingOffsets": "latest"}
    with Query(spark, options, tmp_path, Copy()) as running:
        running.query.processAllAvailable()
        assert not running.copy.rows
        bucket.fill(["new-1", "new-2"])
        running.until_rows(2)
        assert running.copy.documents().keys() == {"new-1", "new-2"}


@pytest.mark.parametrize("form", ["seqnos", "vbuuids", "saved positions"])
def test_from_given_positions(spark: SparkSession, node: LiveNode, bucket: Bucket, tmp_path: Path, form: str):
    """JSON positions, with branches or without, and those that `headrace tail --save` writes, begin right after."""
    with BatchReader(ChangeOptions(connection=connection_to(node)), until="now") as reader:
        for _ in reader:
            pass
        positions = reader.positions
    given: dict[str, Any] = {
        "seqnos": {str(vb): high for vb, high in node.high_seqnos().items()},
        "vbuuids": {str(vb): {"vbuuid": at.vbuuid, "seqno": at.seqno} for vb, at in positions.vbuckets.items()},
        "saved positions": json.loads(positions.to_json()),
    }
    keys = [f"later-{number}" for number in range(40)]
    bucket.fill(keys)
    bucket.delete("key-1")
    copy = read_now(spark, [node], tmp_path, startingOffsets=json.dumps(given[form]))
    assert copy.rows == 41
    assert copy.documents().keys() == set(keys)


def test_two_queries_do_not_disturb_each_other(spark: SparkSession, nodes: list[LiveNode], tmp_path: Path):
    """Both end equal, also when one of them is stopped and started again meanwhile."""
    options = {"connection": connection_to(*nodes)}
    one, two = Copy(), Copy(EVENT)
    with (
        Bucket(*nodes) as bucket,
        Writers(*nodes, pause_s=0.001) as writers,
        Query(spark, options, tmp_path / "one", one) as running,
    ):
        for rows in (500, 1700):
            with Query(spark, {**options, "onRollback": EVENT}, tmp_path / "two", two) as other:
                other.until_rows(rows)
        writers.wait(100)
        writers.stop()
        truth = bucket.documents({*FIRST, *writers.keys})
        running.ends_equal(truth)
        with Query(spark, {**options, "onRollback": EVENT}, tmp_path / "two", two) as other:
            other.ends_equal(truth)
    assert not one.rollbacks
    assert not two.rollbacks


def test_a_quiet_bucket_makes_no_batches(spark: SparkSession, node: LiveNode, tmp_path: Path):
    """When everything is read there is no batch until something changes."""
    with Query(spark, {"connection": connection_to(node)}, tmp_path, Copy()) as running:
        running.until_rows(len(FIRST))
        running.query.processAllAvailable()
        before = list(running.copy.order)
        time.sleep(2)
        assert running.copy.order == before
        node.write({"one more": "x"})
        running.until_rows(len(FIRST) + 1)
        assert len(running.copy.order) == len(before) + 1


def test_a_later_batch_uses_the_connection_of_an_earlier_one(spark: SparkSession, node: LiveNode, tmp_path: Path):
    """Workers keep their connections: many batches open a few, and these send more and more."""
    seen: list[dict[str, int]] = []
    with Query(spark, {"connection": connection_to(node), "minPartitions": 1}, tmp_path, Copy()) as running:
        for number in range(12):
            node.write({f"one more {number}": "x"})
            running.until_rows(len(FIRST) + number + 1)
            seen.append(task_connections(node))
        assert len(running.copy.order) >= 12
    ever = set().union(*seen)
    assert ever == seen[-1].keys(), "a connection was closed"
    assert len(ever) < 12  # there is one for each Python worker that Spark has
    assert all(seen[-1][name] > sent for name, sent in seen[0].items())
