"""Spark that is killed: the whole driver, or one executor of two, while writers go on."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from headrace.testing import Chaos
from tests.spark.conftest import spark_conf, spark_home
from tests.spark.faults.buckets import Bucket, Writers
from tests.spark.faults.copies import EVENT, FAIL, REBUILD
from tests.spark.faults.jobs import Job
from tests.spark.faults.queries import connection_to

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Server

pytestmark = pytest.mark.slow

FIRST = [f"key-{number}" for number in range(2000)]


@pytest.mark.parametrize(
    ("on_rollback", "keep"),
    [(REBUILD, "first"), (REBUILD, "last"), (EVENT, "first"), (EVENT, "last"), (FAIL, "first")],
)
def test_a_killed_driver_goes_on_from_its_checkpoint(
    cluster: Callable[[int], list[Server]],
    tmp_path: Path,
    spark_command_env: dict[str, str],
    on_rollback: str,
    keep: str,
):
    """After kill -9 at any moment, and one with a failover meanwhile, a new driver ends equal.

    With `fail` there is no failover, over which it would rightly stop: nor does it stop over anything else.
    """
    chance = random.Random(f"{on_rollback} {keep}")
    servers = cluster(2)
    options = {"connection": connection_to(*servers), "onRollback": on_rollback, "maxOffsetsPerTrigger": 300}
    conf = spark_conf(tmp_path)
    keys = {*FIRST, "while away"}
    with Bucket(*servers) as bucket, Writers(*servers, pause_s=0.01) as writers:
        bucket.fill(FIRST)
        rows = 0
        for away in range(3):
            with Job(tmp_path, options, spark_command_env, conf, keep=keep) as job:
                job.until_rows(rows + 400)
                time.sleep(chance.random())
            rows = job.copy.rows
            if away == 1 and on_rollback != FAIL:  # what the killed batch had read is partly gone when it is replayed
                Chaos(connection_to(servers[0])).failover("0,2,4", lost=3)
            bucket.set("while away", b"%d" % away)
        writers.stop()
        truth = bucket.documents(keys | writers.keys)
        with Job(tmp_path, options, spark_command_env, conf, keep=keep) as job:
            job.ends_equal(truth)
            job.stop()
        assert on_rollback != FAIL or not job.copy.rollbacks


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT, FAIL])
def test_a_killed_executor_is_replaced(
    cluster: Callable[[int], list[Server]], tmp_path: Path, spark_command_env: dict[str, str], on_rollback: str
):
    """Of two executors one is killed while its tasks read, twice; the query goes on and ends equal, nothing twice."""
    chance = random.Random(on_rollback)
    servers = cluster(2)
    options = {
        "connection": connection_to(*servers),
        "onRollback": on_rollback,
        "minPartitions": 4,
        "maxOffsetsPerTrigger": 1000,
    }
    conf = {**spark_conf(tmp_path), "spark.executor.memory": "512m", "spark.task.maxFailures": "4"}
    environment = {**spark_command_env, "SPARK_HOME": str(spark_home(tmp_path))}
    with Bucket(*servers) as bucket, Writers(*servers, pause_s=0.01) as writers:
        bucket.fill(FIRST)
        with Job(tmp_path, options, environment, conf, master="local-cluster[2,1,512]") as job:
            for _ in range(2):
                job.copy.load()
                job.until_rows(job.copy.rows + 300)
                job.until(lambda: len(job.executors()) == 2, "two executors")
                time.sleep(chance.random())
                os.kill(chance.choice(job.executors()), signal.SIGKILL)
                job.copy.load()
                job.until_rows(job.copy.rows + 100)
            writers.stop()
            job.ends_equal(bucket.documents({*FIRST, *writers.keys}))
            assert not job.copy.rollbacks
            job.stop()
