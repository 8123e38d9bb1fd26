"""A table stays equal to a bucket on two nodes, whatever happens to them while they are written to."""

from __future__ import annotations

import fnmatch
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from headrace.client import NotFoundError
from headrace.pipelines.move import Move
from headrace.testing import LiveNode
from headrace.wire.catalogue import Flush
from tests.pipelines.test_materialize import WAIT_S, Job, Running
from tests.spark.faults.buckets import Bucket, Writers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

VBUCKETS = 8
FIRST = [f"key-{number}" for number in range(400)]
BRIEF = [f"brief-{number}" for number in range(20)]
TASKS = "headrace-spark-[!s]*"
"""What the connections are called by which tasks read; that of the driver's scout goes on with an s."""

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes() -> Iterator[list[LiveNode]]:
    """Two nodes that share the vbuckets, with some items."""
    with LiveNode(vbuckets=VBUCKETS) as one, LiveNode(vbuckets=VBUCKETS) as two:
        with Bucket(one, two) as bucket:
            bucket.share()
            bucket.fill(FIRST)
        yield [one, two]


def wait_for(holds: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"not so: {what}"
        time.sleep(0.02)


def cut_mid_message(_: Running, nodes: list[LiveNode], __: Bucket) -> None:
    """Cut what tasks read from each node in the middle of a message."""

    def cut(node: LiveNode) -> list[str]:
        with suppress(NotFoundError):  # no task has read from it yet
            return node.chaos.cut(name=TASKS, after_messages=5, mid_message=True)
        return []

    for node in nodes:
        wait_for(lambda node=node: cut(node), "something is cut")  # type: ignore[misc]


def cut_again_and_again(_: Running, nodes: list[LiveNode], bucket: Bucket) -> None:
    """Cut every connection after some bytes, and those that come instead, until each node has cut several."""
    seen: dict[LiveNode, set[str]] = {node: set() for node in nodes}
    for node in nodes:
        node.chaos.cut(name=TASKS, after_bytes=3000, again=True)

    def several() -> bool:
        bucket.set("key-0", b"{}")  # so that there is something to read
        for node, names in seen.items():
            names.update(fnmatch.filter((str(each.get("connection")) for each in node.chaos.show()), TASKS))
        return all(len(names) >= 6 for names in seen.values())  # two workers have one each when nothing is cut

    wait_for(several, "connections come instead of those that were cut")
    for node in nodes:
        node.chaos.calm()


def move_there_and_back(running: Running, _: list[LiveNode], bucket: Bucket) -> None:
    """Move a vbucket to the other node and back, and one of the other's meanwhile."""
    one, two = bucket.servers
    Move(one, two, 0).run(lambda: False)
    Move(two, one, 1).run(lambda: False)
    rows = running.run.progress.rows
    running.until(lambda: running.run.progress.rows >= rows + 50)
    Move(two, one, 0).run(lambda: False)


def expire_and_flush(_: Running, nodes: list[LiveNode], bucket: Bucket) -> None:
    """Let some items expire, and empty the bucket."""
    for key in BRIEF:
        bucket.set(key, b"{}", expiry=1)
    wait_for(lambda: not bucket.some(BRIEF), "items expire")
    for node in nodes:
        node.items.request(Flush())


TROUBLES = [cut_mid_message, cut_again_and_again, move_there_and_back, expire_and_flush]


@pytest.mark.parametrize("kind", ["delta", "parquet"])
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda each: each.__name__)
def test_a_table_of_two_nodes_ends_equal(
    spark: SparkSession,
    nodes: list[LiveNode],
    tmp_path: Path,
    trouble: Callable[[Running, list[LiveNode], Bucket], None],
    kind: str,
):
    """With writers going on, after each kind of trouble and without a rollback, the table is the bucket."""
    job = Job(spark, *nodes, folder=tmp_path, kind=kind)
    with Bucket(*nodes) as bucket, Writers(*nodes) as writers:
        running = Running(job.materialization(maxOffsetsPerTrigger="150"))
        running.until(lambda: running.run.progress.rows >= 150)
        trouble(running, nodes, bucket)
        rows = running.run.progress.rows
        writers.wait(50)
        writers.stop()
        running.until(lambda: running.run.progress.rows > rows)
        running.stop()
        job.once()
        truth = bucket.documents({*FIRST, *BRIEF, *writers.keys})
    assert job.check() == len(truth)
    assert running.run.progress.rollbacks == 0
    assert set(FIRST).isdisjoint(truth) == (trouble is expire_and_flush)
