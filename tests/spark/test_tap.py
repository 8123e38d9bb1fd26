"""Format `tap` in a real Spark: dumps of captured servers, and what it says when it cannot."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.client import KvConnection
from headrace.wire.catalogue import TapMutation
from tests.client.servers import HOST, free_port
from tests.client.tap_server import RELEASES, TapServer, captured, details, items_of, playing, read
from tests.client.test_dcp_couchbase import PROGRAM, server


@pytest.fixture(params=RELEASES)
def old_server(request: pytest.FixtureRequest) -> Iterator[TapServer]:
    """A server that dumps what one of its release once did."""
    frames = captured(request.param, "08f_tap_ack")
    held = items_of(frames)
    with playing(TapServer(frames, statistics=lambda: details(held))) as played:
        yield played


def load(spark: SparkSession, port: int, **options: Any) -> DataFrame:
    """The dump of a server."""
    reader = spark.read.format("tap").option("connection", f"couchbase://{HOST}:{port}")
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def told(caught: pytest.ExceptionInfo[BaseException]) -> str:
    """What a user reads: without a trace of our files."""
    text = str(caught.value)
    assert "Traceback" not in text
    assert "/headrace/" not in text
    return text


def test_a_dump(spark: SparkSession, old_server: TapServer):
    """A DataFrame has the items of the dump, and each task asks for vbuckets of its own."""
    found = load(spark, old_server.port, minPartitions=3)
    rows = found.where("event = 'mutation'").select("vbucket", "key", "value", "rev", "expiry", "cas").collect()
    expected = [message for message in map(read, old_server.frames) if isinstance(message, TapMutation)]
    assert sorted((row.vbucket, row.key, bytes(row.value), row.rev, row.expiry, row.cas) for row in rows) == sorted(
        (each.vbucket, each.key.decode(), each.value, each.rev_seqno, each.expiry, each.cas) for each in expected
    )
    asked = [connect.vbuckets for connect in old_server.connects]
    assert sorted(vb for vbuckets in asked for vb in vbuckets or ()) == sorted(items_of(old_server.frames))
    assert len(asked) >= 3


def test_binary_keys_and_some_vbuckets(spark: SparkSession, old_server: TapServer):
    """Keys come as bytes when asked, and only the vbuckets that were asked for."""
    rows = load(spark, old_server.port, keys="binary", vbuckets="1,3").select("vbucket", "key").collect()
    frames = [read(frame) for frame in old_server.frames]
    expected = {(each.vbucket, each.key) for each in frames if isinstance(each, TapMutation) and each.vbucket in {1, 3}}
    assert expected <= {(row.vbucket, bytes(row.key)) for row in rows}
    assert {row.vbucket for row in rows} == {1, 3}


def test_nothing_there(spark: SparkSession):
    """A bucket without items is a DataFrame without rows."""
    with playing(TapServer(statistics=lambda: details({0: 0, 1: 0}))) as played:
        assert load(spark, played.port).count() == 0


def test_a_cut_fails_the_job(spark: SparkSession):
    """A dump that breaks off fails the job, with the sentence that says what is missing."""
    frames = captured("4.1.2", "08c_tap_dump")
    with (
        playing(TapServer(frames, cut_bytes=sum(map(len, frames[:9])))) as played,
        pytest.raises(PySparkException) as caught,
    ):
        load(spark, played.port).collect()
    assert "which is not whole: vbuckets 0, 1, 2, 3 are not sent to the end" in told(caught)


def test_the_guide(spark: SparkSession, old_server: TapServer, tmp_path: Path):
    """The programs of the guide do what it says: a table of the items, and the newest version of each."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "dump-an-old-server.md").read_text()
    names: dict[str, Any] = {"spark": spark}
    for program in re.findall(r"^```py\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL):
        here = program.replace("old-host:11210", f"{HOST}:{old_server.port}")
        exec(compile(here.replace("old-bucket", str(tmp_path / "t")), "dump-an-old-server.md", "exec"), names)
    expected = {each.key.decode() for each in map(read, old_server.frames) if isinstance(each, TapMutation)}
    assert {row.key for row in spark.read.parquet(str(tmp_path / "t")).collect()} == expected
    newest = names["documents"]
    assert newest.columns == ["key", "value", "flags", "expiry", "rev", "cas"]
    assert {row.key for row in newest.collect()} == expected


def test_no_stream(spark: SparkSession):
    """A stream is refused in a sentence that says why, and what to use."""
    with pytest.raises(PySparkException) as caught:
        spark.readStream.format("tap").load().writeStream.format("noop").start().processAllAvailable()
    assert 'TAP has no positions that a stream could go on from; use spark.readStream.format("dcp")' in told(caught)


def test_no_writes(spark: SparkSession):
    """A write is refused in a sentence."""
    with pytest.raises(PySparkException) as caught:
        spark.range(1).write.format("tap").mode("append").save()
    assert "write by format dcp" in told(caught)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vbucket": "1"}, "there is no option vbucket: did you mean vbuckets?"),
        ({"mode": "documents"}, 'option mode has no meaning in spark.read.format("tap")'),
        ({"keys": "numbers"}, "option keys is text or binary, not 'numbers'"),
        ({"bucket": "travel"}, "a server before 5.0 gives a user the bucket of the same name"),
        ({"username": "u", "passwordEnv": "HEADRACE_NO_SUCH"}, "there is no environment variable HEADRACE_NO_SUCH"),
    ],
)
def test_wrong_options(spark: SparkSession, options: dict[str, str], said: str):
    """Whatever is wrong is told in one sentence."""
    with playing(TapServer()) as played, pytest.raises(PySparkException) as caught:
        load(spark, played.port, **options).collect()
    assert said in told(caught)


def test_nobody_there(spark: SparkSession):
    """A server that cannot be reached is named."""
    port = free_port()
    with pytest.raises(PySparkException) as caught:
        load(spark, port, timeout=2).collect()
    assert f"{HOST}:{port}: cannot connect" in told(caught)


@pytest.mark.skipif(not PROGRAM, reason="no Couchbase server: HEADRACE_COUCHBASE_SERVER is not set")
def test_couchbase(spark: SparkSession, tmp_path: Path):
    """The bucket of a real server, as a DataFrame."""
    port = free_port()
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        for number in range(5000):
            items.set(b"key-%d" % number, b'{"n": %d}' % number, flags=number)
        for number in range(0, 5000, 5):
            items.delete(b"key-%d" % number)
        found = load(spark, port).where("event = 'mutation'")
        rows = found.selectExpr(
            "key", "CAST(get_json_object(CAST(value AS STRING), '$.n') AS INT) AS n", "flags"
        ).collect()
    assert sorted((row.key, row.n, row.flags) for row in rows) == sorted(
        (f"key-{number}", number, number) for number in range(5000) if number % 5
    )
