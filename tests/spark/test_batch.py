"""`spark.read.format("dcp")` on a node in this program: what a batch read gives, with filters and without."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow.dataset import dataset

from headrace.client import KvConnection, Loader, LoadRow, vbucket_of
from headrace.columns.schema import unsigned
from headrace.ids import VBucketId
from headrace.testing import LiveNode
from headrace.wire.catalogue import Set
from tests.processes import start_node
from tests.spark.faults.buckets import Bucket, Writers, live_nodes
from tests.spark.faults.copies import COLUMNS, REBUILD, Copy, difference, rows_of
from tests.spark.faults.queries import connection_to, task_connections

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.faults.buckets import Document, Reachable

VBUCKETS = 16
FIRST = [f"key-{number}" for number in range(1200)]
GONE = FIRST[::5]
AGAIN = FIRST[1::5]
FILTERS = [
    "vbucket = 3",
    "vbucket IN (1, 2, 99)",
    "seqno > 30",
    "seqno >= 30 AND seqno <= 40",
    "seqno < 12 AND vbucket = 5",
    "seqno = 20",
    "event = 'deletion'",
    "event IN ('mutation', 'expiration')",
    "key = 'key-6'",
    "key = 'nowhere'",
    "key IN ('key-6', 'key-11', 'key-5', 'nowhere')",
    "key LIKE 'key-11%'",
    "key LIKE 'key-11%' AND event = 'mutation' AND seqno > 10",
    "key = 'key-6' OR vbucket = 2",
    "vbucket = 3 AND vbucket = 4",
    "NOT (event = 'deletion')",
    "key IS NULL",
]


@pytest.fixture(scope="module", params=[pytest.param(1, id="one node"), pytest.param(2, id="two nodes")])
def nodes(request: pytest.FixtureRequest) -> Iterator[list[LiveNode]]:
    """A node, or two that share the vbuckets, with items that were set, set again, and removed, by nobody but this."""
    with filled(request.param) as started:
        yield started


@pytest.fixture(scope="module")
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
            for key in GONE:
                bucket.delete(key)
            bucket.fill(AGAIN, value="again")
        yield started


@pytest.fixture
def bucket(node: LiveNode) -> Iterator[Bucket]:
    """The bucket of the node."""
    with Bucket(node) as opened:
        yield opened


def read(spark: SparkSession, *nodes: Reachable, **options: object) -> DataFrame:
    """A DataFrame of the bucket."""
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("dcp").option("connection", connection_to(*nodes)).options(**given).load()


def documents(frame: DataFrame) -> dict[str, Document]:
    """The documents of a DataFrame, of which none may come twice."""
    rows = rows_of(frame.select(*COLUMNS).toArrow())
    found = {row.key: row.document for row in rows if row.key is not None and row.document is not None}
    assert len(found) == len(rows), "a document comes twice, or a row is none"
    return found


def test_documents_are_the_bucket(spark: SparkSession, nodes: list[LiveNode]):
    """`mode` documents gives every item as it is, once, and nothing of what is gone."""
    with Bucket(*nodes) as bucket:
        truth = bucket.documents(FIRST)
    assert len(truth) == len(FIRST) - len(GONE)
    assert not difference(documents(read(spark, *nodes, mode="documents")), truth)


def test_changes_have_the_newest_of_each_key(spark: SparkSession, nodes: list[LiveNode]):
    """`mode` changes gives for each key its newest change, deletions too, with the seqno and branch that it has."""
    copy = Copy(REBUILD)
    copy(read(spark, *nodes), 0)
    with Bucket(*nodes) as bucket:
        assert not difference(copy.documents(), bucket.documents(FIRST))
        newest = {row.key: row for row in sorted(rows_of(copy.batches[0]), key=lambda row: row.seqno)}
        assert all(row.vbucket == bucket.vbucket_of(str(row.key)) for row in newest.values())
    assert {key for key, row in newest.items() if row.event == "deletion"} == set(GONE)
    highs = {vb: nodes[vb % len(nodes)].high_seqnos()[vb] for vb in range(VBUCKETS)}
    reached = {vb: max(row.seqno for row in newest.values() if row.vbucket == vb) for vb in highs}
    assert reached == highs


@pytest.mark.parametrize("mode", ["changes", "documents"])
def test_the_work_goes_to_both_nodes(spark: SparkSession, mode: str):
    """A task of a batch has a connection to one node, and each node sends its own part of the rows alone."""
    with filled(2) as nodes:
        assert read(spark, *nodes, mode=mode).rdd.getNumPartitions() == 2
        assert documents(read(spark, *nodes, mode=mode).filter("event = 'mutation'")).keys() == {*FIRST} - {*GONE}
        sent = [task_connections(node) for node in nodes]  # a worker keeps them for a later task
    assert sent[0].keys().isdisjoint(sent[1].keys())
    parts = [sum(each.values()) for each in sent]
    assert min(parts) > 0.3 * sum(parts), parts


@pytest.mark.parametrize("count", [1, 2])
def test_a_read_under_writers_lacks_nothing_that_was_there_throughout(spark: SparkSession, count: int):
    """Documents that are changed again and again while they are read are there too, in some version of meanwhile."""
    keys = {f"live-{number}" for number in range(400)}
    with live_nodes(count, 8) as nodes, Bucket(*nodes) as bucket:
        bucket.fill([*FIRST, *sorted(keys)])
        with Writers(*nodes, count=2, pause_s=0.0, deletes=0.0) as writers:
            for _ in range(3):
                found = documents(read(spark, *nodes, mode="documents"))
                assert found.keys() == {*FIRST, *keys}
            writers.stop()
        assert not difference(documents(read(spark, *nodes, mode="documents")), bucket.documents({*FIRST, *keys}))


@pytest.mark.parametrize("mode", ["changes", "documents"])
def test_filters_give_the_same_rows_wherever_they_are_done(spark: SparkSession, node: LiveNode, mode: str):
    """Pushed down or not, and with pushdown off in Spark, a filter gives the rows that it gives on a plain copy."""
    everything = spark.createDataFrame(read(spark, node, mode=mode).select(*COLUMNS).toArrow()).cache()
    pushdown = "spark.sql.python.filterPushdown.enabled"
    assert spark.conf.get(pushdown) == "true"
    for condition in FILTERS:
        wanted = _sorted(everything.filter(condition))
        assert _sorted(read(spark, node, mode=mode).filter(condition).select(*COLUMNS)) == wanted, condition
        assert _sorted(read(spark, node, mode=mode, hashedKeys=False).filter(condition).select(*COLUMNS)) == wanted
    spark.conf.set(pushdown, "false")
    try:
        for condition in FILTERS[::4]:
            wanted = _sorted(everything.filter(condition))
            assert _sorted(read(spark, node, mode=mode).filter(condition).select(*COLUMNS)) == wanted, condition
    finally:
        spark.conf.set(pushdown, "true")
        everything.unpersist()


def _sorted(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: (row["vbucket"], row["seqno"]))


def test_a_filter_on_a_key_reads_one_vbucket(spark: SparkSession, node: LiveNode, bucket: Bucket):
    """What is pushed down is not read: a task sees one vbucket for one key, and none for a vbucket that is not."""
    one = read(spark, node).filter("key = 'key-6'")
    assert one.select("vbucket").collect()[0][0] == bucket.vbucket_of("key-6")
    plan = one._jdf.queryExecution().executedPlan().toString()
    assert "BatchScan" in plan
    assert "= key-6" not in plan.split("BatchScan")[0]  # Spark does not look at the rows again


def test_offsets_bound_a_read(spark: SparkSession, node: LiveNode):
    """`startingOffsets` and `endingOffsets` as JSON give what lies between, for vbuckets that they do not name all."""
    highs = node.high_seqnos()
    start = {"0": 10, "1": {"vbuuid": _vbuuid(spark, node, 1), "seqno": 20}, "2": "latest", "3": "earliest"}
    end = {"0": 15, "1": highs[1], "4": 7}
    rows = rows_of(read(spark, node, startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)).toArrow())
    seqnos = {vb: sorted(row.seqno for row in rows if row.vbucket == vb) for vb in highs}
    everything = rows_of(read(spark, node).toArrow())
    lows = {0: 10, 1: 20, 2: highs[2]}
    tops = {0: 15, 4: 7}
    for vb, high in highs.items():
        low, top = lows.get(vb, 0), tops.get(vb, high)
        assert seqnos[vb] == sorted(row.seqno for row in everything if row.vbucket == vb and low < row.seqno <= top)


def _vbuuid(spark: SparkSession, node: LiveNode, vbucket: int) -> int:
    return unsigned(read(spark, node).filter(f"vbucket = {vbucket}").select("vbuuid").collect()[0].vbuuid)


def test_a_timestamp_leaves_out_what_is_older(spark: SparkSession):
    """`startingTimestamp` gives what was changed then or later, by milliseconds or by an ISO time."""
    with LiveNode(vbuckets=4) as node, Bucket(node) as bucket:
        bucket.fill(FIRST[:100])
        time.sleep(0.01)
        between = int(time.time() * 1000) + 1
        time.sleep(0.01)
        bucket.fill(FIRST[90:150], value="later")
        found = documents(read(spark, node, startingTimestamp=between))
        assert found.keys() == set(FIRST[90:150])
        assert not read(spark, node, startingTimestamp="2090-01-01T00:00:00+00:00").count()
        assert documents(read(spark, node, mode="documents", startingTimestamp=between)) == found


def test_values_may_be_left_at_the_server(spark: SparkSession, node: LiveNode, bucket: Bucket):
    """`noValue` gives the same rows without their values."""
    truth = bucket.documents(FIRST)
    rows = read(spark, node, mode="documents", noValue=True).select("key", "value", "cas", "rev").collect()
    assert all(not row.value for row in rows)
    found = {row.key: (unsigned(row.cas), unsigned(row.rev)) for row in rows}
    assert found == {key: (each.cas, each.rev) for key, each in truth.items()}


def test_keys_may_be_bytes(spark: SparkSession):
    """`keys` binary takes keys that are not UTF-8, and filters on them; text says which key is wrong."""
    with LiveNode(vbuckets=4) as node:
        for key in (b"plain", b"\xff\xfe not text"):
            node.items.request(Set(vbucket=VBucketId(0), key=key, value=b"v"))
        frame = read(spark, node, keys="binary")
        assert {bytes(row.key) for row in frame.select("key").collect()} == {b"plain", b"\xff\xfe not text"}
        assert frame.filter("key = X'FFFE206E6F742074657874'").count() == 1
        assert read(spark, node, keys="binary", mode="documents").count() == 2
        with pytest.raises(Exception, match=r"keys.*binary|binary.*keys"):
            read(spark, node).count()


@pytest.mark.parametrize("wanted", [1, 3, 16, 40])
def test_there_are_as_many_tasks_as_were_asked_for(spark: SparkSession, node: LiveNode, wanted: int):
    """`minPartitions` makes so many tasks, as far as there are vbuckets, and the rows are the same."""
    frame = read(spark, node, minPartitions=wanted)
    assert frame.rdd.getNumPartitions() == min(wanted, VBUCKETS)
    assert frame.count() == len(FIRST)


def test_some_vbuckets_alone(spark: SparkSession, node: LiveNode):
    """`vbuckets` reads those and no others."""
    found = {row.vbucket for row in read(spark, node, vbuckets="0,3-5").select("vbucket").distinct().collect()}
    assert found == {0, 3, 4, 5}


@pytest.mark.slow
def test_a_million_documents_are_the_bucket(spark: SparkSession, tmp_path: Path):
    """Every one of a million documents on two nodes comes once, with its value, CAS and flags.

    The rows go through files: as the result of a job they would all have to fit into the driver at once.
    """
    count, vbuckets = 1_000_000, 64
    with ExitStack() as ends:
        nodes = []
        for place in range(2):
            nodes.append(start_node("--vbuckets", str(vbuckets), "--data", str(tmp_path / f"data-{place}")))
            ends.callback(nodes[-1].close)
            ends.callback(nodes[-1].stop)
        with Bucket(*nodes) as bucket:
            bucket.share()
        for place, node in enumerate(nodes):
            _load(node, [key for key in _keys(count) if vbucket_of(key.encode(), vbuckets) % 2 == place])
        read(spark, *nodes, mode="documents").select(*COLUMNS).write.parquet(str(tmp_path / "rows"))
        with Bucket(*nodes) as bucket:
            truth = bucket.documents(_keys(count))
    found: dict[str, Document] = {}
    rows = 0
    for batch in dataset(tmp_path / "rows").to_batches():
        for row in rows_of(pa.Table.from_batches([batch])):
            assert row.key is not None
            assert row.document is not None
            found[row.key] = row.document
            rows += 1
    assert rows == count
    assert not difference(found, truth)


def _keys(count: int) -> list[str]:
    return [f"doc-{number}" for number in range(count)]


def _load(node: Reachable, keys: list[str]) -> None:
    pad = "x" * 70
    with KvConnection(node.host, node.port) as connection:
        loader = Loader(connection, refused=_refused, flags=7)
        for number, key in enumerate(keys):
            loader.add(LoadRow(key, key.encode(), f'{{"n": {number}, "pad": "{pad}"}}'.encode()))
        loader.finish()
        assert loader.acknowledged == len(keys)


def _refused(row: LoadRow, error: Exception) -> None:
    raise AssertionError(f"{row.place}: {error}")
