"""A bucket into Spark, side by side in one run with Spark's own ceiling and the official connector.

    python benchmarks/spark.py [--quick] [--rounds 7] [--official FOLDER] [--no-official] [--no-memory]

One node process and a local Spark of two cores on the same machine; the sink is `noop`, which takes rows and does
nothing. The contenders take turns, after two rounds that warm everything up. A figure is the median of its rounds, a
ratio the median of the ratios within each round: what else the machine is doing slows neighbours alike.

    ceiling    a Python source with two tasks that gives the same rows as ready-made Arrow batches, as large as ours,
               out of two files that are in the system's cache
    one batch  the same with the first of these batches again and again, which never leaves the processor's cache
    dcp        `spark.read.format("dcp")` from the node, over two tasks, every change a row
    documents  the same with `mode=documents`
    stream     `spark.readStream.format("dcp")` from the beginning, with `availableNow`
    official   `couchbase.kv` of Couchbase's connector, a stream from the beginning, if its jars can be had: from Maven
               Central, or from the folder that --official names. It runs in a Spark of its own, behind the others

Then freshness: from the answer to a write until its row is seen in `foreachBatch`, default trigger, one write at a
time. Then the memory of a Python worker that reads 1 M and 5 M rows. Nothing here is a test: targets are printed, not
asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.client import BatchReader, ChangeOptions, KvConnection, Loader, LoadRow
from headrace.spark import session
from headrace.spark.rows import spark_schema

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.processes import HOST, Server, start_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SIZES = (16, 256, 2048)
TASKS = 2
WARM_UP = 2
TARGET_OF_CEILING = 0.5
TARGET_FRESH_S = 0.5
OFFICIAL_ROUNDS = 3
OFFICIAL = "com.couchbase.client:spark-connector_2.13:4.0.0"


# ---------------------------------------------------------------------------------------------------------------------
# The ceiling
# ---------------------------------------------------------------------------------------------------------------------


class Ready(DataSource):
    """Gives Arrow batches that were kept in files; with `rows`, the first of them until there were so many rows."""

    @classmethod
    def name(cls) -> str:
        """What it is called."""
        return "ready"

    def schema(self) -> StructType:
        """The columns of a change."""
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader."""
        del schema
        return ReadyReader(self.options["folder"], int(self.options.get("rows", "0")))


class ReadyReader(DataSourceReader):
    """Two tasks, each with a file."""

    def __init__(self, folder: str, rows: int) -> None:
        self._folder = folder
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """One for each core."""
        return [InputPartition(each) for each in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the batches of a file, or one of them as often as is wanted."""
        with pa.memory_map(f"{self._folder}/{partition.value}") as opened:
            batches = pa.ipc.open_stream(opened)
            if not self._rows:
                yield from batches
                return
            batch = next(batches)
            left = self._rows // TASKS
            while left > 0:
                yield batch if batch.num_rows <= left else batch.slice(0, left)
                left -= batch.num_rows


def keep_rows(connection: str, folder: Path) -> int:
    """Write down all rows of a node, in batches as a task gives them; gives how many."""
    rows = 0
    for task in range(TASKS):
        options = ChangeOptions(connection=connection, vbuckets=tuple(range(task, 1024, TASKS)))
        with BatchReader(options, until="now") as reader, pa.OSFile(str(folder / str(task)), "wb") as opened:
            first = next(reader)
            with pa.ipc.new_stream(opened, first.schema) as writer:
                for batch in chain([first], reader):
                    writer.write_batch(batch)
                    rows += batch.num_rows
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Contenders
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def headrace_node() -> Iterator[Server]:
    """Run a node with 1024 vbuckets on a data directory of its own."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        node = start_node("--data", folder)
        try:
            yield node
        finally:
            node.stop()
            node.close()


def load(port: int, count: int, size: int) -> None:
    """Store so many documents, and wait until they are on disk."""
    value = os.urandom(size)
    with KvConnection(HOST, port) as kv:

        def refused(row: LoadRow, error: Exception) -> None:
            raise SystemExit(f"{row.key!r}: {error}")

        loader = Loader(kv, refused=refused)
        for number in range(count):
            loader.add(LoadRow("", b"key-%012d" % number, value))
        loader.finish()
    on_disk = ChangeOptions(connection=f"couchbase://{HOST}:{port}", mitigate_rollbacks=True, no_value=True)
    with BatchReader(on_disk, until="now") as reader:
        for _ in reader:
            pass


def to_nowhere(rows: DataFrame) -> float:
    """Give all rows to the `noop` sink; the seconds that it took."""
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def streamed(spark: SparkSession, connection: str) -> float:
    """Stream everything to the `noop` sink; the seconds from `start` to the end."""
    rows = spark.readStream.format("dcp").option("connection", connection).load()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        began = time.perf_counter()
        sink = rows.writeStream.format("noop").option("checkpointLocation", folder)
        sink.trigger(availableNow=True).start().awaitTermination()
        return time.perf_counter() - began


@dataclass
class Table:
    """Seconds by contender for one size of values, round by round."""

    size: int
    rows: int
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def of_ceiling(self, contender: str, ceiling_of: str = "ceiling") -> float:
        """The part of the ceiling that a contender reaches: round by round, or by medians where it had its own."""
        ceiling, took = self.seconds[ceiling_of], self.seconds[contender]
        if len(ceiling) != len(took):
            return statistics.median(ceiling) / statistics.median(took)
        return statistics.median(one / other for one, other in zip(ceiling, took, strict=True))

    def lines(self) -> list[str]:
        """The rows of a table."""
        found = []
        for name, seconds in self.seconds.items():
            took = statistics.median(seconds)
            megabytes = self.rows * (self.size + 16) / 1e6
            found.append(
                f"| {self.size} | {name} | {self.rows / took:,.0f} | {megabytes / took:,.0f} | "
                f"{self.of_ceiling(name):.2f} |"
            )
        return found


def throughput(spark: SparkSession, rows: int, rounds: int, official: Official | None) -> list[Table]:
    """Measure each size with a node of its own, the contenders in turn."""
    tables = []
    for size in SIZES:
        count = rows if size < SIZES[-1] else rows // 2
        table = Table(size, count)
        with headrace_node() as node, tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            connection = f"couchbase://{HOST}:{node.port}"
            load(node.port, count, size)
            assert keep_rows(connection, Path(folder)) == count
            ready = spark.read.format("ready").option("folder", folder)
            again = spark.read.format("ready").option("folder", folder).option("rows", count)
            assert ready.load().count() == again.load().count() == count
            ours = spark.read.format("dcp").option("connection", connection)
            assert ours.load().count() == count
            contenders: dict[str, Callable[[], float]] = {
                "ceiling": lambda ready=ready: to_nowhere(ready.load()),  # type: ignore[misc]
                "one batch": lambda again=again: to_nowhere(again.load()),  # type: ignore[misc]
                "dcp": lambda ours=ours: to_nowhere(ours.option("mode", "changes").load()),  # type: ignore[misc]
                "documents": lambda ours=ours: to_nowhere(ours.option("mode", "documents").load()),  # type: ignore[misc]
                "stream": lambda connection=connection: streamed(spark, connection),  # type: ignore[misc]
            }
            for number in range(WARM_UP + rounds):
                for name, work in contenders.items():
                    took = work()
                    if number >= WARM_UP:
                        table.seconds.setdefault(name, []).append(took)
            if official is not None:
                told = official.run(node.port, count)
                if isinstance(told, str):
                    print(f"official connector, {size} bytes: {told}", flush=True)
                else:
                    table.seconds["official"] = told
        for line in table.lines():
            print(line, flush=True)
        tables.append(table)
    return tables


# ---------------------------------------------------------------------------------------------------------------------
# The official connector, in a Python process of its own
# ---------------------------------------------------------------------------------------------------------------------


class Official:
    """Couchbase's connector, out of a folder or fetched by Maven; its DCP source reads the node as a stream."""

    def __init__(self, folder: Path | None) -> None:
        self._fetched = None if folder else tempfile.mkdtemp(prefix="headrace-bench-jars-")
        self._jars = folder or Path(str(self._fetched))
        self.wrong = self._fetch() if folder is None else None

    def _fetch(self) -> str | None:
        maven = shutil.which("mvn")
        if maven is None:
            return "mvn is not installed"
        group, artifact, version = OFFICIAL.split(":")
        pom = self._jars / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>b</groupId>'
            "<artifactId>b</artifactId><version>1</version><dependencies><dependency>"
            f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
            "<exclusions><exclusion><groupId>org.apache.spark</groupId><artifactId>*</artifactId></exclusion>"
            "<exclusion><groupId>org.scala-lang</groupId><artifactId>*</artifactId></exclusion></exclusions>"
            "</dependency></dependencies></project>\n"
        )
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={self._jars}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        return None if done.returncode == 0 else f"mvn cannot fetch {OFFICIAL}"

    def run(self, port: int, rows: int) -> list[float] | str:
        """Read everything; the seconds of each round, or why it cannot."""
        jars = ",".join(str(jar) for jar in sorted(self._jars.glob("*.jar")))
        command = [sys.executable, __file__, "--official-only", str(port), str(rows), jars]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        except subprocess.TimeoutExpired:
            return "it did not end within 300 s"
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                told: list[float] = json.loads(line)["seconds"]
                return told
        return f"it failed: {done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else 'no word'}"

    def close(self) -> None:
        """Remove what was fetched."""
        if self._fetched:
            shutil.rmtree(self._fetched, ignore_errors=True)


def run_official(port: int, rows: int, jars: str) -> None:
    """Stream a bucket by the official connector to `noop`; print the seconds of each round, once warm, as JSON."""
    spark = session(
        "official",
        master=f"local[{TASKS}]",
        conf={
            "spark.jars": jars,
            "spark.driver.memory": "2g",
            "spark.couchbase.connectionString": f"couchbase://{HOST}:{port}",
            "spark.couchbase.username": "Administrator",
            "spark.couchbase.password": "password",
        },
    )
    took = []
    for _ in range(WARM_UP + OFFICIAL_ROUNDS):
        counted: list[int] = []
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            changes = (
                spark.readStream.format("couchbase.kv")
                .option("bucket", "default")
                .option("streamFrom", "fromBeginning")
                .option("numPartitions", str(TASKS))
                .option("streamMetaData", "full")
                .load()
            )
            began = time.perf_counter()
            query = changes.writeStream.format("noop").option("checkpointLocation", folder).trigger(availableNow=True)
            running = query.start()
            running.awaitTermination()
            took.append(time.perf_counter() - began)
            counted.extend(progress["numInputRows"] for progress in running.recentProgress)
        if sum(counted) != rows:
            raise SystemExit(f"{sum(counted)} rows of {rows}")
    print(json.dumps({"seconds": took[WARM_UP:]}))
    spark.stop()


# ---------------------------------------------------------------------------------------------------------------------
# Freshness and memory
# ---------------------------------------------------------------------------------------------------------------------


def freshness(spark: SparkSession, writes: int) -> tuple[float, float]:
    """Write one document after the other, each when the one before was seen: median and 99th percentile, in seconds."""
    seen = threading.Event()
    took: list[float] = []
    waited_for = [""]

    def look(rows: DataFrame, _batch: int) -> None:
        if any(row["key"] == waited_for[0] for row in rows.select("key").collect()):
            seen.set()

    with headrace_node() as node, tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        rows = spark.readStream.format("dcp").option("connection", f"couchbase://{HOST}:{node.port}").load()
        query = rows.writeStream.foreachBatch(look).option("checkpointLocation", folder).start()
        with KvConnection(HOST, node.port) as kv:
            for number in range(writes + 5):
                waited_for[0] = f"fresh-{number}"
                seen.clear()
                kv.set(waited_for[0].encode(), b"x" * 256)
                began = time.perf_counter()
                if not seen.wait(60):
                    raise SystemExit(f"a write was not seen within 60 s: {query.exception()}")
                took.append(time.perf_counter() - began)
        query.stop()
    measured = sorted(took[5:])  # the first ones start workers
    return statistics.median(measured), measured[int(len(measured) * 0.99) - 1]


def worker_memory(spark: SparkSession, rows: int) -> int:
    """Read so many rows in one task; the most memory that a Python worker had, in bytes."""
    peak = 0
    done = threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max([peak, *(resident(pid) for pid in workers())])

    with headrace_node() as node:
        load(node.port, rows, 256)
        looking = threading.Thread(target=look)
        looking.start()
        to_nowhere(spark.read.format("dcp").option("connection", f"couchbase://{HOST}:{node.port}").load())
        done.set()
        looking.join()
    return peak


def workers() -> list[int]:
    """The Python workers of our Spark: forks of pyspark's daemon, which is a child of our child."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"pyspark.daemon" in command and descends(int(folder.name), os.getpid()):
                found.append(int(folder.name))
    return found


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process comes of another."""
    while pid > 1:
        try:
            pid = int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
        if pid == ancestor:
            return True
    return False


def resident(pid: int) -> int:
    """The resident memory of a process, in bytes; 0 when it is gone."""
    try:
        return int((Path("/proc") / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--official", type=Path, metavar="FOLDER", help="the jars of Couchbase's connector")
    parser.add_argument("--no-official", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--official-only", nargs=3, metavar=("PORT", "ROWS", "JARS"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.official_only:
        port, rows, jars = asked.official_only
        run_official(int(port), int(rows), jars)
        return
    conf: dict[str, Any] = {"spark.driver.memory": "2g", "spark.ui.enabled": False}
    spark = session("benchmark", master=f"local[{TASKS}]", conf=conf)
    spark.dataSource.register(Ready)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"Spark {spark.version}")  # fmt: skip
    official = None if asked.no_official else Official(asked.official)
    if official is not None and official.wrong is not None:
        print(f"official connector: {official.wrong}")
        official = None
    scale = 10 if asked.quick else 1
    print("| value bytes | contender | rows/s | MB/s | of the ceiling |")
    print("|---|---|---|---|---|")
    tables = throughput(spark, 1_000_000 // scale, asked.rounds, official)
    least, of_one = (min(table.of_ceiling("dcp", each) for table in tables) for each in ("ceiling", "one batch"))
    met = "yes" if least >= TARGET_OF_CEILING else "NO"
    print(f"least of the ceiling: {least:.2f}; target {TARGET_OF_CEILING}: {met}; least of one batch: {of_one:.2f}")
    median, slow = freshness(spark, 200 // scale)
    print(f"freshness: median {median:.3f} s, 99th percentile {slow:.3f} s; target for the median {TARGET_FRESH_S} s: "
          f"{'yes' if median <= TARGET_FRESH_S else 'NO'}")  # fmt: skip
    if not asked.no_memory:
        for rows in (1_000_000 // scale, 5_000_000 // scale):
            print(f"memory of a Python worker, {rows:,} rows of 256 bytes: {worker_memory(spark, rows) / 1e6:.0f} MB")
    spark.stop()
    if official is not None:
        official.close()


if __name__ == "__main__":
    main()
