"""A Spark for the tests here: the one that runs in this process, or a new one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.spark import session
from headrace.spark.java import JavaError, find_java
from tests.spark.conftest import spark_conf, stop


@pytest.fixture(scope="session")
def java_home() -> str:
    """The Java that Spark runs on; tests skip where there is none."""
    try:
        return str(find_java().home)
    except JavaError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where Spark puts its files; a Spark that was started here ends with the last test."""
    folder = tmp_path_factory.mktemp("spark")
    yield folder
    running = SparkContext._active_spark_context
    if running is not None and running.appName == str(folder):
        stop(SparkSession.builder.getOrCreate())


@pytest.fixture
def spark(spark_folder: Path, java_home: str) -> SparkSession:
    """A Spark session. Other tests of this process may have stopped the last one, so each test asks anew."""
    del java_home
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    return session(str(spark_folder), master="local[2]", conf=spark_conf(spark_folder))
