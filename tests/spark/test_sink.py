"""Writes of format `dcp` by a real Spark: rows of changes and documents, in batch and as a stream, through crashes."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit, repeat, udf
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client import Address, BucketWriter, ItemVersion, KvConnection
from headrace.client.options import ChangeOptions
from headrace.history import State
from headrace.pipelines.servers import Server, Vbuckets
from headrace.testing import LiveNode
from headrace.wire import join_xattrs
from headrace.wire.catalogue import GetAllVBSeqnos, Seqnos
from headrace.wire.codes import Datatype
from tests.processes import start_node
from tests.spark.sinks import CAS, changes, held

WAIT_S = 120


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    """The node that is written to."""
    with LiveNode(data=tmp_path / "target", vbuckets=8) as found:
        yield found


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LiveNode]:
    """A node with items of every kind: JSON, bytes, flags, expiry, xattrs, deleted, expired, overwritten."""
    with LiveNode(data=tmp_path / "source", vbuckets=16) as found:
        found.write(300)
        found.write({"octets": b"\x00\xff", "text": "a text", "empty": b""})
        found.items.set(b"flags", b"1", flags=77, expiry=4_000_000_000)
        found.write({f"key-{number}": {"n": "again"} for number in range(20)})
        found.delete(*(f"key-{number}" for number in range(5, 15)))
        with BucketWriter(ChangeOptions(connection=found.connection_string)) as writer:
            value = join_xattrs({b"_sync": b'{"rev":1}'}, b'{"a":1}')
            datatype = int(Datatype.XATTR | Datatype.JSON)
            writer.set_version("", b"xattrs", value, ItemVersion(1, 0, 4, CAS), datatype=datatype)
            writer.delete_version("", b"expired", b"", ItemVersion(0, 1_700_000_000, 9, CAS), expired=True)
            writer.finish()
        yield found


def save(rows: DataFrame, node: LiveNode, **options: str) -> None:
    """Write a DataFrame."""
    rows.write.format("dcp").option("connection", node.connection_string).options(**options).mode("append").save()


# -- changes


def test_a_copy_is_equal_item_by_item(spark: SparkSession, source: LiveNode, node: LiveNode):
    """Rows that the format reads are written as what they were, to a bucket with another number of vbuckets."""
    reader = spark.read.format("dcp").option("connection", source.connection_string).option("xattrs", "true")
    save(reader.load(), node)
    assert held(node) == held(source)
    assert node.count() == source.count() == 300 - 10 + 5
    before = node.high_seqnos()
    save(reader.load(), node)
    assert node.high_seqnos() == before


def test_a_copy_of_arrow_batches(spark: SparkSession, source: LiveNode, node: LiveNode):
    """Rows that came another way are as good, in any order; what the target has newer stays."""
    node.write({"key-20": "1"})
    node.write({"key-20": "newer"})
    rows = spark.createDataFrame(changes(source))
    save(rows.orderBy("value").repartition(3), node)
    assert node.get("key-20") == b"newer"
    assert [row for row in held(node) if row[1] != "key-20"] == [row for row in held(source) if row[1] != "key-20"]
    save(rows, node, conflicts="source")
    assert held(node) == held(source)


def test_two_nodes_that_share_the_vbuckets(spark: SparkSession, source: LiveNode, tmp_path: Path):
    """Each row goes to the node that owns its vbucket."""
    with ExitStack() as stack:
        one, two = (stack.enter_context(LiveNode(data=tmp_path / name, vbuckets=8)) for name in ("one", "two"))
        for place, each in enumerate((one, two)):
            with Vbuckets(Server(address=Address(host=each.host, port=each.port), timeout_s=20.0)) as vbuckets:
                for vb in range(8):
                    if vb % 2 != place:
                        vbuckets.set_state(vb, State.DEAD)
        rows = spark.createDataFrame(changes(source))
        save(rows, one, connection=f"{one.connection_string},{two.host}:{two.port}")
        assert held(one, two) == held(source)
        assert min(one.count(), two.count()) > 50


# -- documents


def test_documents_of_whole_rows(spark: SparkSession, node: LiveNode):
    """Every type that Spark's rows have comes to the document as the guide says."""
    rows = spark.sql(
        "select 'k' key, 3 n, 1.5D x, double('NaN') none, string(null) null, 'Zürich' text, true yes,"
        " date'2026-01-31' day, timestamp'2026-01-31 12:00:00+01:00' at, timestamp_ntz'2026-01-31 12:00:00' local,"
        " 12.50BD price, x'0001' octets, array(1, 2) list, named_struct('a', 1, 'b', string(null)) struct,"
        " map('x', 1) map, cast(7 as tinyint) small, 60 ttl"
    )
    save(rows, node, ttlColumn="ttl")
    assert json.loads(node.get("k")) == {
        "n": 3,
        "x": 1.5,
        "none": None,
        "null": None,
        "text": "Zürich",
        "yes": True,
        "day": "2026-01-31",
        "at": "2026-01-31T11:00:00+00:00",
        "local": "2026-01-31T12:00:00",
        "price": "12.50",
        "octets": "AAE=",
        "list": [1, 2],
        "struct": {"a": 1, "b": None},
        "map": {"x": 1},
        "small": 7,
    }


def test_many_documents_with_values_and_deletes(spark: SparkSession, node: LiveNode):
    """A value column is stored as it is, and rows with the mark remove theirs."""
    rows = spark.range(0, 5000, 1, 4).selectExpr(
        "concat('doc-', id) as id", "to_json(struct(id as n)) as doc", "id % 10 = 0 as gone"
    )
    save(rows, node, keyColumn="id", valueColumn="doc")
    assert node.count() == 5000
    assert node.get("doc-4711") == b'{"n":4711}'
    save(rows, node, keyColumn="id", valueColumn="doc", deleteColumn="gone")
    assert node.count() == 4500


def test_rows_put_aside_and_the_others_written(spark: SparkSession, node: LiveNode, tmp_path: Path):
    """Each task with wrong rows has a file of them, whole and by its name; all the others are in the bucket."""
    rows = spark.range(0, 100, 1, 4).selectExpr(
        "case when id in (3, 80) then null when id = 7 then repeat('k', 251) else concat('k-', id) end as key", "id"
    )
    save(rows, node, deadLetterPath=str(tmp_path / "dead"))
    assert node.count() == 97
    files = sorted((tmp_path / "dead").iterdir())
    assert [each.name.split("-")[:2] for each in files] == [["part", "00000"], ["part", "00003"]]
    letters = [json.loads(line) for each in files for line in each.read_text().splitlines()]
    assert [(each["reason"], each["row"]["id"]) for each in letters] == [
        ("it has no key", 3),
        ("a key has 1 to 250 bytes, not 251", 7),
        ("it has no key", 80),
    ]


# -- errors


def test_a_wrong_row_fails_the_job_with_one_sentence(spark: SparkSession, node: LiveNode):
    """The key and the reason are told, and no stack trace of ours."""
    with pytest.raises(PythonException) as caught:
        save(spark.sql("select repeat('k', 251) key, 1 n"), node)
    assert "cannot be written to bucket default: a key has 1 to 250 bytes, not 251" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"connection": "couchbase://127.0.0.1:1"}, "127.0.0.1:1: cannot connect"),
        ({"bucket": "nowhere"}, "bucket nowhere at 127.0.0.1"),
        ({"keyColumn": "kez"}, "option keyColumn: there is no column kez; did you mean key?"),
        ({"username": "ann", "password": "s3cret-word"}, "user ann at 127.0.0.1"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_is_told_before_a_task_runs(
    spark: SparkSession, node: LiveNode, options: dict[str, str], sentence: str
):
    """One sentence from the driver, without a stack trace, and never the password."""
    with pytest.raises(AnalysisException) as caught:
        save(spark.sql("select 'k' key, 1 n"), node, **options)
    told = str(caught.value)
    assert sentence in told
    assert "Traceback" not in told
    assert "s3cret-word" not in told


def test_a_bucket_is_not_overwritten(spark: SparkSession, node: LiveNode):
    """Spark's mode that empties first is refused, with the mode to use."""
    rows = spark.sql("select 'k' key, 1 n").write.format("dcp").option("connection", node.connection_string)
    with pytest.raises(AnalysisException, match='never empties the bucket first: use mode\\("append"\\)'):
        rows.mode("overwrite").save()
    assert node.count() == 0


def test_counts_are_among_the_logs_of_python_workers(spark: SparkSession, node: LiveNode):
    """Where a session keeps these logs, the counts of a write are a line of them."""
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        save(spark.sql("select 'k' key, 1 n"), node)
        logs = spark.tvf.python_worker_logs().where("logger = 'headrace.spark.sink'").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    assert logs[-1]["msg"] == "bucket default: 1 written, 0 deleted, 0 kept, 0 skipped, 0 unapplied, 0 dead"


# -- crashes


def slow_rows(spark: SparkSession, count: int) -> DataFrame:
    """Documents that take some seconds to come."""

    @udf("string", useArrow=False)
    def slow_key(number: int) -> str:
        time.sleep(0.0005)
        return f"key-{number}"

    rows = spark.range(0, count, 1, 2)
    return rows.select(slow_key("id").alias("key"), repeat(lit("x"), 500).alias("value"))


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it never was"
        time.sleep(0.05)


def test_a_node_that_is_killed_and_comes_again_has_every_row(spark: SparkSession, tmp_path: Path):
    """SIGKILL takes back what was not on disk; the job waits, sends that again, and ends with all rows there."""
    server = start_node("--data", str(tmp_path / "node"), "--vbuckets", "8")
    ended = threading.Event()

    def high() -> int:
        with KvConnection(server.host, server.port) as kv:
            reply = kv.request(GetAllVBSeqnos())
        assert isinstance(reply, Seqnos)
        return sum(row.seqno for row in reply.seqnos)

    def kill() -> int:
        """Kill the node twice in the middle; gives how often that was in the middle."""
        kills = 0
        for least in (1000, 4000):
            wait_for(lambda least=least: ended.is_set() or high() > least)  # type: ignore[misc]
            if not ended.is_set():
                server.kill()
                server.start()
                kills += 1
        return kills

    try:
        write = slow_rows(spark, 10_000).write.format("dcp").options(valueColumn="value")
        with ThreadPoolExecutor(1) as pool:
            killer = pool.submit(kill)
            try:
                # In this thread: Spark finds sources in Python only in a thread that has a session.
                write.option("connection", f"couchbase://{server.host}:{server.port}").mode("append").save()
            finally:
                ended.set()
            assert killer.result(WAIT_S) == 2
        with KvConnection(server.host, server.port) as kv:
            assert all(kv.get(b"key-%d" % number).value == b"x" * 500 for number in range(10_000))
    finally:
        if server.running:
            server.kill()
        server.close()


# -- streams


def put_file(folder: Path, name: str, numbers: range) -> None:
    """Give a stream of files something to read."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"key": f"doc-{number}", "n": number, "rev": 1}) for number in numbers]
    (folder / f".{name}").write_text("\n".join(lines))
    (folder / f".{name}").rename(folder / name)


def run_stream(spark: SparkSession, folder: Path, node: LiveNode, checkpoint: Path, **options: str) -> StreamingQuery:
    """Write what is there of a stream, and end."""
    rows = spark.readStream.schema("key string, n long, rev long").json(str(folder))
    writer = rows.writeStream.format("dcp").option("connection", node.connection_string).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(WAIT_S)
    assert not query.isActive
    return query


def test_a_stream_goes_on_where_it_stopped(spark: SparkSession, node: LiveNode, tmp_path: Path):
    """A query that is started again writes what is new; one whose last batch was not committed writes that again."""
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    put_file(folder, "a.json", range(100))
    query = run_stream(spark, folder, node, checkpoint, revColumn="rev")
    assert query.lastProgress is not None
    assert query.lastProgress["sink"]["numOutputRows"] == 100
    put_file(folder, "b.json", range(100, 150))
    run_stream(spark, folder, node, checkpoint, revColumn="rev")
    assert node.count() == 150
    before = node.high_seqnos()
    for each in (checkpoint / "commits").glob("*1*"):  # as if Spark had ended before it noted the second batch
        each.unlink()
    query = run_stream(spark, folder, node, checkpoint, revColumn="rev")
    assert query.lastProgress is not None
    assert (query.lastProgress["batchId"], query.lastProgress["sink"]["numOutputRows"]) == (1, 50)
    assert node.high_seqnos() == before
    assert node.get("doc-120") == b'{"n":120}'


def test_a_stream_of_changes_from_bucket_to_bucket(
    spark: SparkSession, source: LiveNode, node: LiveNode, tmp_path: Path
):
    """What `readStream` gives, `writeStream` takes: the copy is equal, also after a restart with new changes."""

    def copy() -> None:
        rows = spark.readStream.format("dcp").option("connection", source.connection_string).option("xattrs", "true")
        writer = rows.load().writeStream.format("dcp").option("connection", node.connection_string)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination(WAIT_S)
        assert not query.isActive

    copy()
    assert held(node) == held(source)
    source.write({f"later-{number}": str(number) for number in range(50)})
    source.delete("text", "key-100")
    copy()
    assert held(node) == held(source)
