"""What goes wrong is told in one sentence of ours, and no stack trace of Python stands before it or after."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from headrace.client import KvConnection
from headrace.testing import LiveNode
from tests.client.servers import free_port
from tests.spark.faults.test_secrets import PASSWORD, USER, start_closed_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.processes import Server

BOTH = {
    "unknown option": ({"colections": "x"}, "there is no option colections: did you mean collections?"),
    "wrong value": ({"mode": "everything"}, "option mode is changes or documents, not 'everything'"),
    "wrong number": ({"minPartitions": "0"}, "option minPartitions is a whole number from 1 on, not '0'"),
    "wrong offsets": ({"startingOffsets": "{1"}, "option startingOffsets is earliest, latest, or positions as JSON"),
    "wrong vbucket": ({"startingOffsets": '{"99": 1}'}, "option startingOffsets: '99' is no vbucket"),
    "no such vbucket": ({"vbuckets": "7"}, "option vbuckets: there is no vbucket 7, bucket default has 0 to 3"),
    "name alone": ({"username": "ann"}, "a user name and a password go together"),
    "no such file": ({"username": "a", "passwordFile": "/nowhere/p"}, "option passwordFile: /nowhere/p cannot be read"),
    "missing bucket": ({"bucket": "elsewhere"}, "there is no bucket elsewhere"),
}
BATCH_ALONE = {
    "of a stream": ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger has no meaning in spark.read"),
    "of a write": ({"keyColumn": "k"}, "option keyColumn has no meaning in spark.read"),
}
STREAM_ALONE = {
    "of a batch": ({"mode": "documents"}, "option mode is documents, which is of spark.read"),
    "of an end": ({"endingOffsets": "latest"}, "option endingOffsets has no meaning in spark.readStream"),
}


@pytest.fixture(scope="module")
def node() -> Iterator[LiveNode]:
    """A node with a few items."""
    with LiveNode(vbuckets=4) as started:
        started.write(20)
        yield started


@pytest.fixture
def closed_node(tmp_path: Path) -> Iterator[Server]:
    """A node that wants a password."""
    node = start_closed_node(tmp_path)
    yield node
    node.kill()
    node.close()


def of_a_batch(spark: SparkSession, options: dict[str, str]) -> str:
    """What a batch read fails with."""
    with pytest.raises(Exception, match=r".") as failed:
        spark.read.format("dcp").options(**options).load().count()
    return str(failed.value)


def of_a_stream(spark: SparkSession, options: dict[str, str], folder: Path, *, now: bool = True) -> str:
    """What a streaming query fails with."""
    with pytest.raises(Exception, match=r".") as failed:
        run(spark, options, folder, now=now)
    return str(failed.value)


def run(spark: SparkSession, options: dict[str, str], folder: Path, *, now: bool = True) -> None:
    """Run a query until it fails, or with `now` until it has read what is there."""
    frame = spark.readStream.format("dcp").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    query = (writer.trigger(availableNow=True) if now else writer).start()
    try:
        assert query.awaitTermination(30), "the query does not end"
    finally:
        query.stop()


def is_one_sentence(said: str, sentence: str) -> None:
    """Our sentence is in what was said, on the first line of it, and nothing of Python's traces."""
    assert sentence in said.splitlines()[0], said
    assert not re.search(r'Traceback \(most recent|File "', said), said


@pytest.mark.parametrize(("options", "sentence"), [*BOTH.values(), *BATCH_ALONE.values()], ids=[*BOTH, *BATCH_ALONE])
def test_a_batch_says_what_is_wrong(spark: SparkSession, node: LiveNode, options: dict[str, str], sentence: str):
    """Each wrong option of a batch read is one sentence that says what would do."""
    is_one_sentence(of_a_batch(spark, {"connection": node.connection_string, **options}), sentence)


@pytest.mark.parametrize(("options", "sentence"), [*BOTH.values(), *STREAM_ALONE.values()], ids=[*BOTH, *STREAM_ALONE])
def test_a_stream_says_what_is_wrong(
    spark: SparkSession, node: LiveNode, tmp_path: Path, options: dict[str, str], sentence: str
):
    """Each wrong option of a stream is one sentence that says what would do."""
    is_one_sentence(of_a_stream(spark, {"connection": node.connection_string, **options}, tmp_path), sentence)


AHEAD = {
    "a seqno": ("9999", "has more than this history"),
    "a branch": ('{"vbuuid": 77, "seqno": 3}', "branch is not in the failover log"),
}


@pytest.mark.parametrize(("start", "because"), AHEAD.values(), ids=AHEAD)
def test_a_batch_from_where_the_bucket_never_was(spark: SparkSession, node: LiveNode, start: str, because: str):
    """It says where the vbucket ends and what a batch can do about it, which is not what a stream can; and does it."""
    options = {"connection": node.connection_string, "startingOffsets": f'{{"1": {start}}}', "vbuckets": "1"}
    said = of_a_batch(spark, options)
    seqno = start if start.isdigit() else 3
    is_one_sentence(said, f"bucket default: vbucket 1 stands at seqno {seqno}, holds up to 0 (")
    is_one_sentence(said, because)
    is_one_sentence(said, "Give startingOffsets that the bucket has; or set failOnDataLoss to false")
    assert not re.search("checkpoint|onRollback|rollback row", said.splitlines()[0])
    found = spark.read.format("dcp").options(**options, failOnDataLoss="false").load()
    assert found.filter("event = 'mutation'").count() == node.high_seqnos()[1]


def test_an_unreachable_host_is_told_at_once(spark: SparkSession, tmp_path: Path):
    """A new query on a node that is not there does not wait; the sentence names the address."""
    port = free_port()
    options = {"connection": f"couchbase://127.0.0.1:{port}"}
    sentence = f"127.0.0.1:{port}: cannot connect: Connection refused"
    options["giveUp"] = "600"
    is_one_sentence(of_a_batch(spark, options), sentence)
    is_one_sentence(of_a_stream(spark, options, tmp_path / "one", now=False), sentence)
    is_one_sentence(of_a_stream(spark, options, tmp_path / "two"), sentence)


def test_a_name_that_nobody_knows_is_told(spark: SparkSession, tmp_path: Path):
    """A host whose name does not resolve is named, with the system's reason."""
    options = {"connection": "couchbase://nowhere.invalid"}
    for said in (of_a_batch(spark, options), of_a_stream(spark, options, tmp_path)):
        is_one_sentence(said, "nowhere.invalid:11210: cannot connect: ")


def of_a_sink(spark: SparkSession, options: dict[str, str], folder: Path) -> str:
    """What a query that writes to a bucket fails with."""
    (folder / "in").mkdir()
    (folder / "in" / "one.json").write_text('{"key": "k", "n": 1}')
    rows = spark.readStream.schema("key string, n long").json(str(folder / "in"))
    writer = rows.writeStream.format("dcp").options(**options).option("checkpointLocation", str(folder / "checkpoint"))
    with pytest.raises(Exception, match=r".") as failed:
        writer.trigger(availableNow=True).start().awaitTermination(60)
    return str(failed.value)


SINKS = {
    "unreachable": ({"connection": "couchbase://127.0.0.1:1", "retry": "1"}, "127.0.0.1:1: cannot connect: "),
    "unknown name": ({"connection": "couchbase://nowhere.invalid", "retry": "1"}, "nowhere.invalid:11210: cannot conn"),
    "missing bucket": ({"bucket": "elsewhere"}, "there is no bucket elsewhere"),
    "unknown option": ({"keyColum": "key"}, "there is no option keycolum: did you mean keyColumn?"),
}


@pytest.mark.parametrize(("options", "sentence"), [*SINKS.values()], ids=[*SINKS])
def test_a_stream_into_a_bucket_says_what_is_wrong(
    spark: SparkSession, node: LiveNode, tmp_path: Path, options: dict[str, str], sentence: str
):
    """Whether the driver or a task finds it, it is one sentence."""
    is_one_sentence(of_a_sink(spark, {"connection": node.connection_string, **options}, tmp_path), sentence)


def test_a_key_that_is_no_text_is_told_by_a_task(spark: SparkSession, tmp_path: Path):
    """What a task finds in the rows is told with the way out, before anything else."""
    with LiveNode(vbuckets=1) as node:
        node.items.set(b"\xff\xfe", b"x")
        options = {"connection": node.connection_string}
        for said in (of_a_batch(spark, options), of_a_stream(spark, options, tmp_path)):
            is_one_sentence(" ".join(said.splitlines()), "is not UTF-8; read it with keys=binary")


def test_a_node_that_falls_silent_is_told_by_a_task(spark: SparkSession, tmp_path: Path):
    """When `giveUp` is over, the sentence says of which vbucket nothing came, and what was to come."""
    with LiveNode(vbuckets=1) as node:
        node.write(50)
        node.chaos.slow(1, name="headrace-spark-[!s]*")  # that of the driver is called scout
        said = of_a_stream(spark, {"connection": node.connection_string, "giveUp": "1"}, tmp_path)
    is_one_sentence(said, "vbucket 0 of bucket default: nothing came after seqno 0 for 1.0 s, and seqnos up to 50 were")


def test_a_wrong_password_is_told(spark: SparkSession, closed_node: Server, tmp_path: Path):
    """Whether it is wrong or missing, the sentence says so, and does not repeat it."""
    options = {"connection": f"couchbase://{closed_node.host}:{closed_node.port}", "username": USER}
    wrong = {**options, "password": f"not {PASSWORD}"}
    for said in (of_a_batch(spark, wrong), of_a_stream(spark, wrong, tmp_path / "one")):
        is_one_sentence(said, "not authenticated")
        assert PASSWORD not in said
    said = of_a_sink(spark, wrong, tmp_path)
    is_one_sentence(said, "not authenticated")
    assert PASSWORD not in said
    del options["username"]
    is_one_sentence(of_a_batch(spark, options), "authenticate first")


def test_a_checkpoint_of_another_bucket_is_refused(spark: SparkSession, tmp_path: Path):
    """A query does not go on with positions that are of another bucket."""
    with LiveNode(vbuckets=4, buckets=("one", "two")) as node:
        options = {"connection": node.connection_string, "bucket": "one"}
        with KvConnection(node.host, node.port, bucket="one") as items:
            items.set(b"key", b"value")
        run(spark, options, tmp_path)
        said = of_a_stream(spark, {**options, "bucket": "two"}, tmp_path)
    is_one_sentence(said, "the checkpoint is of bucket one, and the query reads two")
