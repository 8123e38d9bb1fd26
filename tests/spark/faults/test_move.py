"""Vbuckets that move to another node in the middle of a query, and work that goes to each node of two."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headrace.pipelines.move import Move
from tests.spark.faults.buckets import Bucket, Writers, live_nodes
from tests.spark.faults.copies import EVENT, FAIL, REBUILD, Copy
from tests.spark.faults.queries import Query, connection_to, is_task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headrace.testing import LiveNode

VBUCKETS = 8
FIRST = [f"key-{number}" for number in range(1000)]


@pytest.fixture
def nodes() -> Iterator[list[LiveNode]]:
    """Two nodes that share the vbuckets, with a few items."""
    with live_nodes(2, VBUCKETS) as started:
        with Bucket(*started) as bucket:
            bucket.fill(FIRST)
        yield started


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT, FAIL])
def test_a_vbucket_moves_in_the_middle_of_a_query(
    spark: SparkSession, nodes: list[LiveNode], tmp_path: Path, on_rollback: str
):
    """Vbuckets move there and back while they are written and read: each change comes once, nothing is rolled back."""
    options = {"connection": connection_to(*nodes), "onRollback": on_rollback, "maxOffsetsPerTrigger": 200}
    with Bucket(*nodes) as bucket, Query(spark, options, tmp_path, Copy(on_rollback)) as running:
        one, two = bucket.servers
        with Writers(*nodes) as writers:
            running.until_rows(100)
            Move(one, two, 0).run(lambda: False)
            Move(two, one, 1).run(lambda: False)
            writers.wait(60)
            Move(two, one, 0).run(lambda: False)
            writers.wait(60)
            writers.stop()
        running.ends_equal(bucket.documents({*FIRST, *writers.keys}))
        assert not running.copy.rollbacks


def test_all_vbuckets_of_a_node_move_away(spark: SparkSession, nodes: list[LiveNode], tmp_path: Path):
    """The query goes on when the node that it was told of first has nothing any more, and is stopped then."""
    options = {"connection": connection_to(*nodes), "onRollback": FAIL}
    with Bucket(*nodes) as bucket, Query(spark, options, tmp_path, Copy(FAIL)) as running:
        running.until_rows(len(FIRST))
        one, two = bucket.servers
        for vb in range(0, VBUCKETS, 2):
            Move(one, two, vb).run(lambda: False)
        nodes[0].stop()
        keys = [f"new-{number}" for number in range(100)]
        with Bucket(nodes[1]) as rest:
            rest.fill(keys)
            running.ends_equal(rest.documents([*FIRST, *keys]))
        assert not running.copy.rollbacks


def test_the_work_goes_to_both_nodes(spark: SparkSession, nodes: list[LiveNode], tmp_path: Path):
    """Each node has connections of the source while a batch is read, and sends its own part of the changes alone."""
    options = {"connection": connection_to(*nodes)}
    for node in nodes:
        node.chaos.slow(40_000)  # so that there is time to look
    with Query(spark, options, tmp_path, Copy()) as running:
        names: list[set[str]] = [set(), set()]

        def both() -> bool:
            for place, node in enumerate(nodes):
                names[place] |= {str(each["connection"]) for each in node.chaos.show() if "connection" in each}
            return all(any(is_task(name) for name in seen) for seen in names)

        running.until(both, f"both nodes serve tasks: {names}")
        for node in nodes:
            node.chaos.calm()
        running.until_rows(len(FIRST))
        time.sleep(0.1)
    assert names[0].isdisjoint(names[1])
