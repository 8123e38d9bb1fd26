"""A node that is killed or restarted under a running query, alone or as one of two that share the vbuckets."""

from __future__ import annotations

import random
import re
import threading
import time
from typing import TYPE_CHECKING

import pytest

from headrace.client import ChangeOptions
from headrace.client.ranges import Range
from headrace.spark.filters import Wanted
from headrace.spark.reading import read_share
from headrace.spark.sharing import Share
from headrace.testing import Chaos
from tests.spark.faults.buckets import Bucket, Writers
from tests.spark.faults.conftest import VBUCKETS
from tests.spark.faults.copies import EVENT, FAIL, REBUILD, Copy
from tests.spark.faults.queries import Query, connection_to

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.processes import Server

FIRST = [f"key-{number}" for number in range(800)]
LOST = [f"lost-{number}" for number in range(60)]


def has_keys(copy: Copy, keys: list[str]) -> bool:
    """Whether a copy has read all of these."""
    return set(keys) <= copy.documents().keys()


def lose(node: Server, bucket: Bucket, running: Query) -> None:
    """Let a query read changes that never get to the disk, and kill the node."""
    Chaos(connection_to(node)).pause()
    bucket.fill(LOST, value="lost")
    for key in FIRST[::10]:
        bucket.set(key, b"never on disk")
    running.until(lambda: has_keys(running.copy, LOST), "what will be lost was read")
    node.kill()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT])
def test_what_a_killed_node_lost_is_undone(
    spark: SparkSession, cluster: Callable[[int], list[Server]], tmp_path: Path, on_rollback: str, nodes: int
):
    """After kill -9 with lost seqnos, and writers going on, the copy ends equal to what the bucket still has."""
    servers = cluster(nodes)
    options = {"connection": connection_to(*servers), "onRollback": on_rollback}
    with Bucket(*servers) as bucket, Query(spark, options, tmp_path / "checkpoint", Copy(on_rollback)) as running:
        bucket.fill(FIRST)
        running.until_rows(len(FIRST))
        with Writers(*servers) as writers:
            writers.wait(50)
            lose(servers[0], bucket, running)
            servers[0].start()
            writers.wait(100)
            writers.stop()
        truth = bucket.documents({*FIRST, *LOST, *writers.keys})
        running.ends_equal(truth)
        lost = [key for key in LOST if key not in truth]
        assert {bucket.vbucket_of(key) % nodes for key in lost} == {0}
        back = {row.vbucket for row in running.copy.rollbacks}
    assert {bucket.vbucket_of(key) for key in lost} <= back
    assert {vb % nodes for vb in back} == {0}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_query_may_be_told_to_fail_over_a_rollback(
    spark: SparkSession, cluster: Callable[[int], list[Server]], tmp_path: Path, nodes: int
):
    """With `fail` it stops and names vbuckets, seqnos and the way out; with `rebuild` the checkpoint then goes on."""
    servers = cluster(nodes)
    options = {"connection": connection_to(*servers), "onRollback": FAIL}
    copy = Copy()
    with Bucket(*servers) as bucket:
        bucket.fill(FIRST)
        with Query(spark, options, tmp_path / "checkpoint", copy) as running:
            running.until_rows(len(FIRST))
            lose(servers[0], bucket, running)
            servers[0].start()
            said = running.until_failed()
        assert re.search(r"vbucket \d+ stands at seqno \d+, holds up to \d+ \(.+\)", said), said
        assert "Set onRollback to rebuild or event" in said
        bucket.fill([f"new-{number}" for number in range(50)])
        keys = {*FIRST, *LOST, *(f"new-{number}" for number in range(50))}
        with Query(spark, {**options, "onRollback": REBUILD}, tmp_path / "checkpoint", copy) as running:
            running.ends_equal(bucket.documents(keys))
        assert copy.rollbacks


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT, FAIL])
def test_a_clean_restart_of_the_node_is_nothing(
    spark: SparkSession, cluster: Callable[[int], list[Server]], tmp_path: Path, on_rollback: str
):
    """A node that was stopped and started again lost nothing: no rollback, whatever was being read and written."""
    servers = cluster(1)
    options = {"connection": connection_to(*servers), "onRollback": on_rollback}
    with Bucket(*servers) as bucket, Query(spark, options, tmp_path / "checkpoint", Copy(on_rollback)) as running:
        bucket.fill(FIRST)
        with Writers(*servers) as writers:
            running.until_rows(400)
            servers[0].restart()
            writers.wait(100)
            writers.stop()
        running.ends_equal(bucket.documents({*FIRST, *writers.keys}))
        assert not running.copy.rollbacks


def test_a_task_waits_for_a_node_that_is_away(cluster: Callable[[int], list[Server]]):
    """A task that never spoke to a node waits for it as long as `giveUp` allows: a failed task may end the query."""
    (server,) = cluster(1)
    with Bucket(server) as bucket:
        bucket.fill(FIRST)
        in_first = [key for key in FIRST if not bucket.vbucket_of(key)]
    server.stop()
    share = Share((Range(vbucket=0, start=0, end=len(in_first)),))
    later = threading.Timer(1.0, server.start)
    later.start()
    try:
        rows = read_share(ChangeOptions(connection=connection_to(server), give_up_s=30.0), share, Wanted())
        assert sorted(key for batch in rows for key in batch.column("key").to_pylist()) == sorted(in_first)
    finally:
        later.join()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT])
def test_kills_at_any_moment(
    spark: SparkSession,
    cluster: Callable[[int], list[Server]],
    tmp_path: Path,
    on_rollback: str,
    seed: int,
    nodes: int,
):
    """Kills, with persistence paused or not, while batches are read and planned, under writers: it ends equal."""
    chance = random.Random(f"{seed} {nodes}")
    servers = cluster(nodes)
    options = {
        "connection": connection_to(*servers),
        "onRollback": on_rollback,
        "maxOffsetsPerTrigger": chance.choice([150, 500, 5000]),
    }
    with Bucket(*servers) as bucket, Query(spark, options, tmp_path / "checkpoint", Copy(on_rollback)) as running:
        with Writers(*servers, count=2, pause_s=0.005, seed=seed) as writers:
            bucket.fill(FIRST)
            running.until_rows(1)  # a new query on a node that is away is told so at once
            for _ in range(4):
                victim = chance.choice(servers)
                if chance.random() < 0.7:
                    Chaos(connection_to(victim)).pause()
                time.sleep(chance.random() * 2)
                victim.kill()
                time.sleep(chance.random())
                victim.start()
                writers.wait(20)
            writers.stop()
        running.ends_equal(bucket.documents({*FIRST, *writers.keys}))
        assert {row.vbucket for row in running.copy.rollbacks} <= set(range(VBUCKETS))
