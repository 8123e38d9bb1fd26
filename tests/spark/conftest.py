"""One Spark for the tests of a process, and what a program in a process of its own needs to have one.

A test under pytest-xdist runs in a worker process, and each has its own Java: `local[2]`, 1 GB, no UI, its files in
pytest's own folders. The Java process ends with the last test, and not with the interpreter.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.spark import session
from headrace.spark.java import JavaError, find_java

_STOP_S_MAX = 60
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"
"""Tests are short: the second compiler of the JVM takes more of two cores than it gives back."""


@pytest.fixture(scope="session")
def java_home() -> str:
    """The Java that Spark runs on; tests skip where there is none."""
    try:
        return str(find_java().home)
    except JavaError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, java_home: str) -> Iterator[SparkSession]:
    """A Spark session for all tests of this process; nobody stops it but this."""
    del java_home
    if SparkContext._active_spark_context is not None:  # a program of the documentation has left one
        SparkContext._active_spark_context.stop()
    folder = tmp_path_factory.mktemp("spark")
    started = session("tests", master="local[2]", conf=spark_conf(folder))
    yield started
    stop(started)


def spark_conf(folder: Path) -> dict[str, str]:
    """Settings of a small Spark whose files are all in one folder."""
    return {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"{_SHORT_LIVED} -Djava.io.tmpdir={folder}",
    }


def spark_home(folder: Path) -> Path:
    """The installed Spark by links, so that executors of a `local-cluster` work in a folder of the test: `work`."""
    home = folder / "spark-home"
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "work":  # who runs a local cluster without this has left one there
            (home / each.name).symlink_to(each)
    return home


def stop(spark: SparkSession) -> None:
    """Stop Spark and its Java process, which would stay until the interpreter ends."""
    gateway = SparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    process.wait(timeout=_STOP_S_MAX)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def spark_command_env(java_home: str, tmp_path: Path) -> dict[str, str]:
    """The environment of a program that starts a Spark of its own: Java, the workers' Python, loopback, its files."""
    folder = tmp_path / "spark-files"
    folder.mkdir()
    return {
        **os.environ,
        "JAVA_HOME": java_home,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_SUBMIT_OPTS": _SHORT_LIVED,
        "TMPDIR": str(folder),
    }
