"""A vbucket that has nearly all the work: its changes are cut by seqno, and several tasks read them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from headrace.client import ChangeOptions, KvConnection, Loader, LoadRow, vbucket_of
from headrace.client.options import OnRollback
from headrace.client.ranges import Range
from headrace.client.scout import Scout
from headrace.ids import VBucketId
from headrace.spark.filters import Wanted
from headrace.spark.planning import DataLossError
from headrace.spark.reading import read_share
from headrace.spark.sharing import Share
from headrace.testing import LiveNode
from tests.spark.faults.buckets import Bucket
from tests.spark.faults.copies import COLUMNS, Copy, difference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.faults.buckets import Document

HOT, VBUCKETS, TASKS = 60_000, 4, 4
COLD = [f"cold-{number}" for number in range(100)]


@pytest.fixture(scope="module")
def node() -> Iterator[LiveNode]:
    """A node with many items in vbucket 0 and a few elsewhere."""
    with LiveNode(vbuckets=VBUCKETS) as started:
        with KvConnection(started.host, started.port) as connection:
            loader = Loader(connection, refused=_refused)
            for key in keys():
                loader.add(LoadRow(key, key.encode(), b"x"))
            loader.finish()
        yield started


def keys() -> list[str]:
    """Every key that is written."""
    hot: list[str] = []
    number = 0
    while len(hot) < HOT:
        if not vbucket_of(b"hot-%d" % number, VBUCKETS):
            hot.append(f"hot-{number}")
        number += 1
    return [*hot, *COLD]


@pytest.fixture(scope="module")
def truth(node: LiveNode) -> dict[str, Document]:
    """What the bucket has."""
    with Bucket(node) as bucket:
        return bucket.documents(keys())


class Tasks(Copy):
    """A copy that also keeps how many rows of the hot vbucket each task gave."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_of_task: Counter[int] = Counter()

    def __call__(self, frame: DataFrame, number: int) -> None:
        table = frame.select(*COLUMNS).withColumn("task", F.spark_partition_id()).toArrow()
        hot = zip(table.column("vbucket").to_pylist(), table.column("task").to_pylist(), strict=True)
        self.rows_of_task.update(task for vbucket, task in hot if not vbucket)
        self.take(number, table)


def test_tasks_of_a_stream_share_a_hot_vbucket(
    spark: SparkSession, node: LiveNode, truth: dict[str, Document], tmp_path: Path
):
    """Each of the tasks that were asked for reads its part of the one vbucket, and the copy is the bucket."""
    copy = Tasks()
    options = {"connection": node.connection_string, "minPartitions": str(TASKS)}
    writer = spark.readStream.format("dcp").options(**options).load().writeStream.foreachBatch(copy)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(60), "the query does not end"
    assert not difference(copy.documents(), truth)
    _are_like_parts(copy)


def test_tasks_of_a_batch_share_a_hot_vbucket(spark: SparkSession, node: LiveNode, truth: dict[str, Document]):
    """With `mode` changes a batch read is cut, too; with documents the vbucket is one task's, and all are there."""
    reader = spark.read.format("dcp").option("connection", node.connection_string).option("minPartitions", str(TASKS))
    copy = Tasks()
    copy(reader.load(), 0)
    assert not difference(copy.documents(), truth)
    _are_like_parts(copy)
    copy = Tasks()
    copy(reader.option("mode", "documents").load(), 0)
    assert not difference(copy.documents(), truth)
    assert len(copy.rows_of_task) == 1


def test_a_hot_vbucket_with_purged_deletions_is_read_by_one_task(spark: SparkSession):
    """Where a server would not let a stream begin in the middle, the vbucket is not cut, and nothing is missing."""
    with LiveNode(vbuckets=1) as node:
        with KvConnection(node.host, node.port) as connection:
            loader = Loader(connection, refused=_refused)
            for number in range(HOT):
                loader.add(LoadRow(str(number), b"%d" % number, b"x"))
            loader.finish()
        node.delete(str(HOT - 1))
        node.write({"last": b"x"})  # the deletion is not the newest change
        node.flush()
        assert node.chaos.purge()[0] > HOT
        copy = Tasks()
        options = {"connection": node.connection_string, "minPartitions": str(TASKS)}
        copy(spark.read.format("dcp").options(**options).load(), 0)
    assert copy.documents().keys() == {*map(str, range(HOT - 1)), "last"}
    assert len(copy.rows_of_task) == 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_purge_after_a_hot_vbucket_was_cut_is_told(fails: bool):
    """A task that reads a part of it says how to go on, and gives no row of what another task reads."""
    with LiveNode(vbuckets=1) as node:
        node.write(100)
        node.delete(*(f"key-{number}" for number in range(50)))
        node.write(1, prefix="last-")
        with Scout(ChangeOptions(connection=node.connection_string)) as scout:
            head = scout.logs([VBucketId(0)])[VBucketId(0)].latest.vbuuid
        node.flush()
        node.chaos.purge()
        lost = OnRollback.FAIL if fails else OnRollback.REBUILD
        options = ChangeOptions(connection=node.connection_string, give_up_s=20, on_rollback=lost)
        share = Share((Range(vbucket=0, start=60, end=151, vbuuid=head, head=head, part=True),))
        way_out = "Set failOnDataLoss to false, and" if fails else "start again, and one reads it anew"
        with pytest.raises(DataLossError, match=f"after seqno 60 cannot be had any more .*{way_out}"):
            next(read_share(options, share, Wanted()))


def _are_like_parts(copy: Tasks) -> None:
    assert sum(copy.rows_of_task.values()) >= HOT
    assert len(copy.rows_of_task) == TASKS
    assert max(copy.rows_of_task.values()) < 1.1 * HOT / TASKS


def _refused(row: LoadRow, error: Exception) -> None:
    raise AssertionError(f"{row.place}: {error}")
