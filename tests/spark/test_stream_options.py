"""Options of a stream, each through a query that reads a node: what is left out, what is waited for, who is trusted."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING

import pytest

from headrace.client import KvConnection
from headrace.columns.schema import unsigned
from headrace.testing import Chaos, LiveNode
from tests.certificates import certificate
from tests.processes import start_node
from tests.spark.faults.buckets import Bucket
from tests.spark.faults.copies import Copy, difference, rows_of
from tests.spark.faults.queries import Query, connection_to

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.processes import Server

FIRST = [f"key-{number}" for number in range(300)]
LATER = [f"later-{number}" for number in range(100)]


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with a few items."""
    with LiveNode(vbuckets=8) as started:
        with Bucket(started) as bucket:
            bucket.fill(FIRST)
        yield started


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A node as a process, which can be killed."""
    started = start_node("--data", str(tmp_path / "data"), "--vbuckets", "8")
    yield started
    if started.running:
        started.kill()
    started.close()


def test_a_timestamp_leaves_out_what_is_older(spark: SparkSession, node: LiveNode, tmp_path: Path):
    """`startingTimestamp` gives what was changed then or later, in the first batch and in those that follow."""
    time.sleep(0.01)
    between = int(time.time() * 1000) + 1
    time.sleep(0.01)
    with Bucket(node) as bucket:
        bucket.fill(FIRST[-10:], value="again")
        options = {"connection": connection_to(node), "startingTimestamp": between}
        with Query(spark, options, tmp_path, Copy()) as running:
            running.until_rows(10)
            bucket.fill(LATER)
            bucket.delete(FIRST[0])
            running.until_rows(10 + len(LATER) + 1)
            running.query.processAllAvailable()
            rows = [row for table in running.copy.batches.values() for row in rows_of(table)]
        truth = bucket.some([*FIRST[-10:], *LATER])
    assert not difference(running.copy.documents(), truth)
    assert [row.key for row in rows if row.event == "deletion"] == [FIRST[0]]
    assert len(rows) == 10 + len(LATER) + 1


def test_values_may_be_left_at_the_server(spark: SparkSession, node: LiveNode, tmp_path: Path):
    """`noValue` gives the same rows without their values."""
    with Bucket(node) as bucket, Query(spark, _without_values(node), tmp_path, Copy()) as running:
        running.until_rows(len(FIRST))
        bucket.fill(LATER)
        running.until_rows(len(FIRST) + len(LATER))
        truth = bucket.documents([*FIRST, *LATER])
    found = running.copy.documents()
    assert not any(each.value for each in found.values())
    assert not difference(found, {key: each._replace(value=found[key].value) for key, each in truth.items()})


def _without_values(node: LiveNode) -> dict[str, object]:
    return {"connection": connection_to(node), "noValue": True}


@pytest.mark.parametrize("mitigated", [True, False])
def test_what_is_not_on_disk_is_waited_for(spark: SparkSession, server: Server, tmp_path: Path, mitigated: bool):
    """With `rollbackMitigation` no row comes that a kill takes away, and none is taken back; without it some do."""
    options = {"connection": connection_to(server), "rollbackMitigation": mitigated}
    with Bucket(server) as bucket, Query(spark, options, tmp_path / "checkpoint", Copy()) as running:
        bucket.fill(FIRST)
        running.until_rows(len(FIRST))
        running.query.processAllAvailable()
        Chaos(connection_to(server)).pause()
        bucket.fill(LATER)
        if mitigated:
            running.query.processAllAvailable()  # it has looked since, and there is nothing to read
            assert running.copy.rows == len(FIRST)
        else:
            running.until_rows(len(FIRST) + len(LATER))
        server.kill()
        server.start()
        bucket.fill(["after"])
        truth = bucket.documents([*FIRST, *LATER, "after"])
        assert truth.keys() == {*FIRST, "after"}
        running.ends_equal(truth)
    assert bool(running.copy.rollbacks) == (not mitigated)


def test_tls_with_an_authority_of_ones_own(spark: SparkSession, tmp_path: Path):
    """`couchbases://` with `tlsCa` reads a batch and a stream, driver and tasks alike; without it nobody is trusted."""
    cert, key = certificate(tmp_path)
    node = start_node("--vbuckets", "8", "--tls-cert", str(cert), "--tls-key", str(key))
    options = {"connection": f"couchbases://{node.host}:{node.port}", "tlsCa": str(cert)}
    try:
        with KvConnection(node.host, node.port, tls=ssl.create_default_context(cafile=cert)) as items:
            written = {f"key-{number}": items.set(b"key-%d" % number, b"x").cas for number in range(100)}
            frame = spark.read.format("dcp").options(**options, mode="documents").load()
            assert {row.key: unsigned(row.cas) for row in frame.select("key", "cas").collect()} == written
            with Query(spark, options, tmp_path / "checkpoint", Copy()) as running:
                running.until_rows(100)
                written["later"] = items.set(b"later", b"x").cas
                running.until_rows(101)
            assert {key: each.cas for key, each in running.copy.documents().items()} == written
        with pytest.raises(Exception, match=r"cannot connect: .*certificate verify failed"):
            spark.read.format("dcp").option("connection", options["connection"]).load().count()
    finally:
        node.kill()
        node.close()
