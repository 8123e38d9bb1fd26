import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.client import ChangeOptions, ConnectionLostError, NoAccessError
from headrace.pipelines.compare import compare
from headrace.pipelines.materialize import Materialization, Progress, open_target
from headrace.pipelines.sides import BucketSide, DeltaSide, LogSide
from headrace.pipelines.tables import Place, TableError
from headrace.testing import LiveNode
from tests.client.servers import free_port
from tests.pipelines.batches import keys, version
from tests.pipelines.copies import copy_into
from tests.spark.faults.queries import connection_to

WAIT_S = 120.0

pytestmark = pytest.mark.slow


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with some items, and some that went."""
    with LiveNode(vbuckets=8) as found:
        found.write(400)
        found.delete(*(f"key-{number}" for number in range(0, 400, 10)))
        yield found


class Job:
    """A table that is kept equal to the bucket of a node, or of nodes that share its vbuckets."""

    def __init__(self, spark: SparkSession, *nodes: LiveNode, folder: Path, kind: str = "delta") -> None:
        self.path, self.checkpoint = folder / "table", folder / "checkpoint"
        self._place = Place.parse(f"{kind}:{self.path}")
        self._spark = spark
        self._connection = connection_to(*nodes)

    def materialization(self, **options: str) -> Materialization:
        """A run that is not started."""
        target = open_target(self._place)
        told = {"connection": self._connection, "giveUp": "30", **options}
        return Materialization(self._spark, told, target, self.checkpoint)

    def once(self, **options: str) -> Progress:
        """Run to the end of what there is."""
        return self.materialization(**options).run(once=True)

    def check(self) -> int:
        """Compare the table with the bucket; give how many items there are."""
        side = (DeltaSide if self._place.kind == "delta" else LogSide)(str(self.path))
        found = compare(BucketSide(ChangeOptions(connection=self._connection)), side)
        assert found.is_equal, found
        return found.equal


@pytest.fixture
def job(spark: SparkSession, node: LiveNode, tmp_path: Path) -> Job:
    """A Delta table of the node's bucket."""
    return Job(spark, node, folder=tmp_path)


class Running:
    """A run in a thread, until told to stop."""

    def __init__(self, run: Materialization) -> None:
        self.run = run
        self._stop = threading.Event()
        self._result: list[Any] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._result.append(self.run.run(self._stop.is_set, every_s=0.1))
        except BaseException as error:  # noqa: BLE001 - the test is told
            self._result.append(error)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something."""
        end = time.monotonic() + WAIT_S
        while not holds():
            assert self._thread.is_alive(), self._result
            assert time.monotonic() < end, f"{self.run.progress}"
            time.sleep(0.05)

    def stop(self) -> Progress:
        """Stop it."""
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        assert isinstance(self._result[0], Progress), self._result
        return self._result[0]


def test_once_ends_with_a_table_that_equals_the_bucket(job: Job, node: LiveNode):
    """Batches keep their limit, each is a commit, and the next run takes only what is new."""
    first = job.once(maxOffsetsPerTrigger="150")
    assert job.check() == 360
    assert (first.batches, first.commits, first.lag) == (3, 3, 0)
    node.write({"key-1": "changed", "new": 1})
    node.delete("key-2")
    second = job.once()
    assert (second.rows, second.commits) == (3, 1)
    assert job.check() == 360
    at = version(job.path)
    assert job.once().commits == 0
    assert version(job.path) - at <= 2  # of tidying, which changes no row


def test_a_log_leaves_what_the_bucket_holds(spark: SparkSession, node: LiveNode, tmp_path: Path):
    """The log of all changes, with a failover among them."""
    job = Job(spark, node, folder=tmp_path, kind="parquet")
    job.once(maxOffsetsPerTrigger="150")
    assert job.check() == 360
    node.flush()
    node.write(100, prefix="lost-")
    job.once()
    node.chaos.failover("all", lost=3)
    node.write({"key-1": "changed", "new": 1})
    assert job.once().rollbacks == 8
    assert job.check() > 300


def test_writers_do_not_disturb(job: Job, node: LiveNode):
    """With writes and removals going on all the time, the table ends equal."""
    running = Running(job.materialization(maxOffsetsPerTrigger="300"))
    for turn in range(20):
        node.write({f"w-{turn}-{number}": turn for number in range(40)} | {f"key-{turn}": turn})
        node.delete(*(f"w-{turn}-{number}" for number in range(0, 40, 4)))
        if turn % 5 == 0:
            time.sleep(0.5)
    running.until(lambda: running.run.progress.rows > 600)
    stopped = running.stop()
    assert stopped.commits > 1
    job.once()
    job.check()


def test_what_a_failover_takes_back_is_undone(job: Job, node: LiveNode):
    """In one commit: items that came are gone again, removed ones are back, changed ones are as they were."""
    job.once()
    node.flush()
    node.write({f"lost-{number}": number for number in range(20)} | {f"key-{number}": "lost" for number in range(1, 6)})
    node.delete("key-7", "key-8", "key-9")
    job.once()
    assert keys(job.path)["key-1"] == b"lost"
    gone_back = node.chaos.failover("all", lost=4)
    assert sum(each.lost for each in gone_back) > 8
    before = version(job.path)
    done = job.once()
    assert (done.commits, done.rollbacks > 0) == (1, True)
    assert version(job.path) - before <= 1 + 2
    job.check()


def test_a_batch_that_is_being_read_is_broken_off(job: Job, node: LiveNode):
    """A stop does not wait for a slow server, and the next run reads the batch."""
    node.write({f"large-{number}": "x" * 10_000 for number in range(100)})
    node.chaos.slow(20_000)
    running = Running(job.materialization())
    running.until((job.checkpoint / "offsets" / "0").exists)
    time.sleep(2.0)
    assert running.stop().batches == 0
    node.chaos.calm()
    job.once()
    assert job.check() == 460


def test_spark_is_told_of_a_failure_in_few_words(job: Job):
    """It searches the text of an exception in a way that a long one breaks: the reason stays with the run."""
    run = job.materialization()
    run._started.set()
    failure = RuntimeError("An error occurred while calling " + "x" * 100_000)

    class Frame:
        def toArrow(self) -> None:  # noqa: N802 - Spark's name
            raise failure

    with pytest.raises(Exception, match=r"^$") as told:
        run._take(Frame(), 0)  # type: ignore[arg-type]
    assert len("".join(traceback.format_exception(told.value))) < 2000
    assert run._failure is failure


def test_a_failover_in_the_middle_of_a_run(job: Job, node: LiveNode):
    """The run goes on by itself, and ends equal."""
    running = Running(job.materialization(maxOffsetsPerTrigger="200"))
    running.until(lambda: running.run.progress.rows >= 400)
    for turn in range(3):
        node.write({f"w-{turn}-{number}": turn for number in range(60)})
        time.sleep(0.3)
        node.chaos.failover("0-3", lost=5)
        node.write({f"v-{turn}-{number}": turn for number in range(60)})
    running.until(lambda: running.run.progress.rollbacks > 0)
    running.stop()
    job.once()
    job.check()


def test_a_new_checkpoint_begins_the_table_anew(job: Job, node: LiveNode):
    """Also when items went meanwhile of which the server has no deletion any more."""
    job.once()
    node.delete(*(f"key-{number}" for number in range(1, 300, 10)))
    node.flush()
    node.chaos.purge()
    shutil.rmtree(job.checkpoint)
    job.once(maxOffsetsPerTrigger="100")
    assert job.check() == 330


def test_a_purge_past_the_position_is_made_good(job: Job, node: LiveNode):
    """Deletions that were purged before they were read are found missing: the vbuckets are read anew."""
    job.once()
    node.delete(*(f"key-{number}" for number in range(1, 300, 10)))
    node.write({"more": 1, "and": 2})
    node.flush()
    node.chaos.purge()
    assert job.once().rollbacks > 0
    assert job.check() == 332


def test_an_empty_bucket_empties_the_table(job: Job, spark: SparkSession, tmp_path: Path):
    """A new checkpoint of a bucket without a change leaves nothing of an older table."""
    job.once()
    shutil.rmtree(job.checkpoint)
    with LiveNode(vbuckets=8) as other:
        empty = Job(spark, other, folder=tmp_path)
        assert empty.once().commits == 1
        assert empty.check() == 0


def test_a_table_that_another_checkpoint_took_is_not_touched(job: Job, node: LiveNode):
    """The run ends with the sentence of the table, not with one of Spark."""
    job.once()
    copy_into(node, job.path, "delta")
    node.write({"new": 1})
    with pytest.raises(TableError, match="begun anew with another checkpoint"):
        job.once()


def test_what_goes_wrong_in_telling_is_not_taken_for_spark(job: Job):
    """Whoever read the output left: that is no failure of Spark, and the query is stopped."""

    def leave(_: Progress) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        job.materialization().run(tell=leave)
    job.once()
    assert job.check() == 360


def test_one_run_at_a_time(job: Job):
    """A checkpoint in use is told."""
    running = Running(job.materialization())
    running.until(lambda: running.run.progress.rows >= 400)
    with pytest.raises(TableError, match="another run is using this checkpoint"):
        job.once()
    running.stop()


def test_a_checkpoint_does_not_go_on_with_other_vbuckets_or_collections(job: Job):
    """What is older than the checkpoint would be missing of them."""
    job.once(vbuckets="0-3")
    with pytest.raises(TableError, match="begun with vbuckets 0-3, and is not to go on with the default collection"):
        job.once()


def test_errors_of_the_source_come_out_as_they_are(job: Job):
    """Class and sentence survive the way through Spark."""
    with pytest.raises(NoAccessError, match="there is no bucket nowhere"):
        job.once(bucket="nowhere")
    shutil.rmtree(job.checkpoint)
    with pytest.raises(ConnectionLostError, match="cannot connect"):
        job.once(connection=f"couchbase://127.0.0.1:{free_port()}", giveUp="1")
