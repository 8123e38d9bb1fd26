import json
import re
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import HeadraceError
from headrace.spark import ProgressListener, measured
from headrace.spark.offsets import Offset
from headrace.spark.progress import ENDED_MAX, SIGHTINGS_MAX, Sightings, advanced
from headrace.spark.progress_metrics import BUCKET, MEASURED, PREFIX, QUERY, VBUCKET
from headrace.testing import LiveNode

WAIT_S_MAX = 120


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def offset(seqnos: Mapping[int, int], rollbacks: Mapping[int, int] | None = None, bucket: str = "travel") -> str:
    """An offset as Spark's progress has it: JSON text."""
    plain: dict[str, Any] = {
        "headrace_offset": 1,
        "bucket": bucket,
        "vbuckets": {str(vbucket): [7, seqno, seqno, seqno] for vbucket, seqno in seqnos.items()},
    }
    if rollbacks is not None:
        plain["rollbacks"] = {str(vbucket): [seqno, 7] for vbucket, seqno in rollbacks.items()}
    return json.dumps(plain)


def source(start: str | None, end: str, latest: str | None, rows: int) -> SimpleNamespace:
    """What Spark tells of one source; it says `None` where there is no offset."""
    return SimpleNamespace(startOffset=str(start), endOffset=end, latestOffset=str(latest), numInputRows=rows)


class Queries:
    """Events of queries as Spark sends them to a listener."""

    def __init__(self, listener: ProgressListener) -> None:
        self.listener = listener

    def start(self, name: str | None = "travel", query: uuid.UUID | None = None) -> SimpleNamespace:
        """A query starts, or one that is known starts again."""
        event = SimpleNamespace(id=query or uuid.uuid4(), runId=uuid.uuid4(), name=name)
        self.listener.onQueryStarted(event)  # type: ignore[arg-type]  # it has what the listener asks for
        return event

    def batch(self, query: SimpleNamespace, number: int, *sources: SimpleNamespace, **observed: Row) -> None:
        """A micro-batch is done."""
        progress = SimpleNamespace(
            id=query.id,
            runId=query.runId,
            name=query.name,
            batchId=number,
            batchDuration=250,
            numInputRows=sum(each.numInputRows for each in sources),
            processedRowsPerSecond=float("nan"),
            sources=sources,
            observedMetrics=observed,
        )
        self.listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]

    def end(self, query: SimpleNamespace, error: str | None = None) -> None:
        """A query ends."""
        event = SimpleNamespace(id=query.id, runId=query.runId, exception=error)
        self.listener.onQueryTerminated(event)  # type: ignore[arg-type]


@pytest.fixture
def clock() -> Clock:
    """A time that the test sets."""
    return Clock()


@pytest.fixture
def queries(clock: Clock) -> Queries:
    """Queries of a listener that keeps every vbucket."""
    return Queries(ProgressListener(per_vbucket=True, clock=clock))


def test_lag_is_what_the_bucket_has_beyond_a_batch(queries: Queries, clock: Clock):
    """Lag in seqnos is high less read, per vbucket, as a sum and as the largest; in seconds, since it was seen."""
    query = queries.start()
    queries.batch(query, 0, source(None, offset({0: 10, 1: 5}), offset({0: 12, 1: 5, 2: 4}), rows=15))
    clock.now += 3
    found = queries.listener.snapshot()["travel"]["buckets"]["travel"]
    assert (found["lag_seqnos"], found["lag_seqnos_max"], found["lag_s"]) == (6, 4, 3.0)
    assert found["vbuckets"][0] == {"seqno": 10, "high": 12, "lag_seqnos": 2, "lag_s": 3.0}
    assert found["vbuckets"][1] == {"seqno": 5, "high": 5, "lag_seqnos": 0, "lag_s": 0.0}
    assert found["vbuckets"][2]["lag_seqnos"] == 4


def test_lag_in_seconds_is_of_the_oldest_unread_change(queries: Queries, clock: Clock):
    """As a query catches up, its lag is the age of what it has still not read, and nothing when it has all."""
    query = queries.start()
    lags = []
    for number, (read, high) in enumerate([(10, 20), (15, 30), (20, 40), (35, 40), (40, 40)]):
        queries.batch(query, number, source(None, offset({0: read}), offset({0: high}), rows=0))
        lags.append(queries.listener.snapshot()["travel"]["buckets"]["travel"]["lag_s"])
        clock.now += 10
    # 20 was seen at 0, 30 at 10, 40 at 20.
    assert lags == [0.0, 10.0, 10.0, 10.0, 0.0]


def test_a_failover_takes_sightings_back():
    """What a failover took back is not waited for."""
    seen = Sightings()
    seen.add(0.0, 100, read=10)
    seen.add(5.0, 50, read=10)
    assert seen.seen == [(5.0, 50)]
    seen.add(6.0, 50, read=50)
    assert seen.lag_s(9.0) == 0.0


def test_sightings_are_bounded_and_never_too_short():
    """However long a query is behind, a vbucket keeps few sightings, and its lag is never told too short."""
    seen = Sightings()
    for second in range(10 * SIGHTINGS_MAX):
        seen.add(float(second), 2 + second, read=1)
        assert len(seen.seen) <= SIGHTINGS_MAX
    last = 10 * SIGHTINGS_MAX - 1
    assert seen.lag_s(last) == last
    for read in range(2, last, 7):
        seen.add(float(last), 2 + last, read=read)
        assert seen.lag_s(last) >= last - (read - 1)


def test_rows_and_what_gave_none(queries: Queries):
    """Seqnos that went by without a row are counted, rows of rollbacks are not rows, and a first batch says nothing."""
    query = queries.start()
    queries.batch(query, 0, source(None, offset({0: 10}), offset({0: 10}), rows=9))
    queries.batch(query, 1, source(offset({0: 10}), offset({0: 20, 1: 3}), offset({0: 20, 1: 3}), rows=8))
    back = offset({0: 15, 1: 4}, {0: 0})
    queries.batch(query, 2, source(offset({0: 20, 1: 3}), back, offset({0: 15}), rows=15))
    queries.batch(query, 3, source(back, back, offset({0: 15}), rows=0))  # nothing was read, and the offset is the same
    found = queries.listener.snapshot()["travel"]["buckets"]["travel"]
    assert (found["rows"], found["seqnos"], found["deduplicated"], found["rollbacks"]) == (31, 13 + 16, 5 + 2, 1)


@pytest.mark.parametrize(
    ("start", "end", "rollbacks", "seqnos"),
    [
        ({0: 5}, {0: 9}, {}, 4),
        ({}, {0: 9, 1: 2}, {}, 11),
        ({0: 9}, {0: 7}, {0: 3}, 4),
        ({0: 9, 1: 1}, {0: 7, 1: 4}, {0: 0}, 10),
        ({0: 9}, {}, {0: 0}, 0),
    ],
)
def test_seqnos_of_a_batch(start: dict[int, int], end: dict[int, int], rollbacks: dict[int, int], seqnos: int):
    """A batch goes from its start to its end, and where it was rolled back from there."""
    ends = Offset.from_json(json.loads(offset(end, rollbacks)))
    assert advanced(Offset.from_json(json.loads(offset(start))), ends) == seqnos


def test_measurements_are_added_up(queries: Queries, clock: Clock):
    """Bytes and rows of `measured` are sums over batches; the age is of the newest row of the last that had one."""
    query = queries.start()
    first = Row(rows=3, bytes=300, newest_us=997_000_000)
    queries.batch(query, 0, headrace=first, other=Row(rows=1))
    clock.now += 10
    queries.batch(query, 1, headrace=Row(rows=0, bytes=None, newest_us=None))
    assert queries.listener.snapshot()["travel"]["measured"] == {
        "rows": 3,
        "bytes": 300,
        "newest_changed_at": 997.0,
        "age_s": 3.0,
    }


def test_a_query_that_starts_again_goes_on(queries: Queries):
    """A query of the same checkpoint keeps its sums over an end and a new start; its error goes with the new run."""
    query = queries.start()
    queries.batch(query, 0, source(None, offset({0: 10}), None, rows=10))
    queries.end(query, "it broke")
    found = queries.listener.snapshot()["travel"]
    assert (found["is_active"], found["error"], found["batch_s"], found["rows_per_s"]) == (False, "it broke", 0.25, 0.0)
    again = queries.start(query=query.id)
    queries.end(query)  # the old run, late
    queries.batch(again, 1, source(offset({0: 10}), offset({0: 12}), None, rows=2))
    found = queries.listener.snapshot()["travel"]
    assert (found["is_active"], found["error"], found["batches"]) == (True, None, 2)
    assert found["buckets"]["travel"]["rows"] == 12


def test_queries_are_told_apart(queries: Queries):
    """A query without a name goes by its id, a new one takes the place of an ended one of its name, few are kept."""
    nameless = queries.start(None)
    old, new = queries.start("same"), queries.start("same")
    assert list(queries.listener.snapshot()) == [str(nameless.id), "same"]
    assert queries.listener.snapshot()["same"]["id"] == str(new.id) != str(old.id)
    for _ in range(ENDED_MAX + 5):
        queries.end(queries.start(None))
    assert len(queries.listener.snapshot()) == ENDED_MAX + 2


def test_other_sources_are_none_of_ours(queries: Queries):
    """Offsets of other sources are passed over, broken ones too, and two buckets of one name stay apart."""
    query = queries.start()
    rate = source("3", "4", "4", rows=1)
    broken = source(None, '{"headrace_offset": 1, "vbuckets": 3}', None, rows=1)
    ours = source(None, offset({0: 1}), None, rows=1)
    queries.batch(query, 0, rate, broken, ours, ours, source(None, offset({0: 1}, bucket="beer"), None, rows=5))
    buckets = queries.listener.snapshot()["travel"]["buckets"]
    assert {name: each["rows"] for name, each in buckets.items()} == {"beer": 5, "travel": 1, "travel (2)": 1}


def test_metrics_are_prometheus_text(queries: Queries, clock: Clock):
    """The text has each metric with its labels; a series for a vbucket only where it was asked for."""
    query = queries.start()
    queries.batch(
        query,
        0,
        source(None, offset({0: 10}), offset({0: 12}), rows=9),
        headrace=Row(rows=9, bytes=90, newest_us=None),
    )
    clock.now += 2
    text = queries.listener.metrics()
    of = 'bucket="travel",query="travel"'
    assert f"headrace_spark_lag_seqnos{{{of}}} 2.0" in text
    assert f"headrace_spark_lag_seconds{{{of}}} 2.0" in text
    assert f"headrace_spark_rows_total{{{of}}} 9.0" in text
    assert 'headrace_spark_measured_bytes_total{query="travel"} 90.0' in text
    assert 'headrace_spark_active{query="travel"} 1.0' in text
    assert 'headrace_spark_vbucket_lag_seqnos{bucket="travel",query="travel",vbucket="0"} 2.0' in text
    assert "headrace_spark_newest_age_seconds{" not in text  # no row had a time
    for shown in (*QUERY, *BUCKET, *MEASURED, *VBUCKET):
        assert f"# HELP {PREFIX}{shown.name}" in text
    queries.listener.per_vbucket = False
    assert "vbucket" not in queries.listener.metrics().replace("of all vbuckets", "").replace("of the vbucket", "")


def test_metrics_are_served_on_loopback(queries: Queries):
    """A server gives the metrics of the moment at its address until it is closed, and a taken port is told."""
    queries.start("served")
    with queries.listener.serve() as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert 'headrace_spark_active{query="served"} 1.0' in fetched(server.url)
        queries.start("later")
        assert 'query="later"' in fetched(server.url)
        with pytest.raises(HeadraceError, match=f"cannot be served on 127.0.0.1:{server.port}: "):
            queries.listener.serve(server.port)
    server.close()
    with pytest.raises(OSError, match="refused"):
        fetched(server.url)


def test_metrics_without_their_package_are_told(queries: Queries, monkeypatch: pytest.MonkeyPatch):
    """Without prometheus-client a listener works, and metrics are refused with what to install."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "headrace.spark.progress_metrics")
    with pytest.raises(HeadraceError, match="pip install prometheus-client"):
        queries.listener.metrics()
    assert queries.listener.snapshot() == {}


def fetched(url: str) -> str:
    """What is at an address."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def until(holds: Callable[[], bool], query: StreamingQuery) -> None:
    """Wait for what a listener hears only after a batch."""
    end = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < end, query.lastProgress
        assert query.exception() is None
        time.sleep(0.1)


@pytest.mark.slow
def test_a_real_query_is_followed(spark: SparkSession, tmp_path: Path):
    """Of a query on a node, rows, bytes, deduplicated changes, lag and a rollback are what happened."""
    listener = ProgressListener(per_vbucket=True)
    spark.streams.addListener(listener)
    try:
        with LiveNode(vbuckets=2) as node:
            node.write({f"key{number}": b"x" * 100 for number in range(20)})
            changes = spark.readStream.format("dcp").option("connection", node.connection_string).load()
            written = measured(changes).writeStream.format("noop").queryName("real")
            query = written.option("checkpointLocation", str(tmp_path)).start()
            try:
                until(lambda: _bucket(listener).get("rows") == 20, query)
                for _ in range(5):
                    node.write({"key0": b"y" * 100})
                until(lambda: _bucket(listener)["rows"] + _bucket(listener)["deduplicated"] == 25, query)
                assert _bucket(listener)["rows"] >= 21
                node.chaos.failover("all", lost=1)
                until(lambda: _bucket(listener)["rollbacks"] == 2, query)
                node.write(20)
                until(lambda: _read(listener) == node.high_seqnos(), query)
            finally:
                query.stop()
            until(lambda: not listener.snapshot()["real"]["is_active"], query)
    finally:
        spark.streams.removeListener(listener)
    found = listener.snapshot()["real"]
    assert (found["is_active"], found["error"]) == (False, None)
    assert found["measured"]["rows"] == _bucket(listener)["rows"] + 2
    assert found["measured"]["bytes"] >= 20 * 104
    assert found["measured"]["age_s"] < WAIT_S_MAX
    assert _bucket(listener)["lag_seqnos"] == 0


class Scraped(ProgressListener):
    """A listener whose metrics are fetched over HTTP after each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.server = self.serve()
        self.scraped: list[str] = []

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        super().onQueryProgress(event)
        self.scraped.append(fetched(self.server.url))


@pytest.mark.slow
def test_a_limited_query_is_seen_to_catch_up(spark: SparkSession, tmp_path: Path):
    """Of a query that takes 5 changes a batch, lag falls to 0 where Prometheus looks and in Spark's own progress."""
    listener = Scraped()
    spark.streams.addListener(listener)
    try:
        with LiveNode(vbuckets=2) as node, listener.server:
            node.write(20)
            options = {"connection": node.connection_string, "maxOffsetsPerTrigger": "5"}
            written = spark.readStream.format("dcp").options(**options).load().writeStream.format("noop")
            written = written.queryName("limited").option("checkpointLocation", str(tmp_path))
            query = written.trigger(availableNow=True).start()
            assert query.awaitTermination(WAIT_S_MAX)
            until(lambda: len(listener.scraped) == len(query.recentProgress), query)
            high = node.high_seqnos()
    finally:
        spark.streams.removeListener(listener)
    metric = re.compile(r'^headrace_spark_lag_seqnos\{bucket="default",query="limited"\} (\S+)$', re.MULTILINE)
    lags = [float(found[1]) for text in listener.scraped if (found := metric.search(text))]
    assert lags == [15.0, 10.0, 5.0, 0.0]
    told = [json.loads(each.json)["sources"][0] for each in query.recentProgress]
    newest = [Offset.from_json(each["latestOffset"]) for each in told]
    assert [{vb: at.seqno for vb, at in each.vbuckets.items()} for each in newest] == [high] * 4
    behind = [advanced(Offset.from_json(each["endOffset"]), new) for each, new in zip(told, newest, strict=True)]
    assert behind == [15, 10, 5, 0]


def _read(listener: ProgressListener) -> dict[int, int]:
    return {vbucket: row["seqno"] for vbucket, row in _bucket(listener)["vbuckets"].items()}


def _bucket(listener: ProgressListener) -> dict[str, Any]:
    found: dict[str, Any] = listener.snapshot().get("real", {}).get("buckets", {}).get("default", {})
    return found
