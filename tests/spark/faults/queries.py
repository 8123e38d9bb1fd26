"""A streaming query that keeps a copy, for as long as a `with` lasts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from headrace.client import Address
from headrace.pipelines.servers import Server, Vbuckets
from tests.spark.faults.copies import Copy, difference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.spark.faults.buckets import Document, Reachable

WAIT_S = 60.0
LOOK_S = 0.02


def connection_to(*nodes: object) -> str:
    """The connection string of nodes."""
    return "couchbase://" + ",".join(f"{node.host}:{node.port}" for node in nodes)  # type: ignore[attr-defined]


def task_connections(node: Reachable) -> dict[str, int]:
    """The connections that tasks have to a node just now, and how many bytes each was sent."""
    with Vbuckets(Server(address=Address(host=node.host, port=node.port), timeout_s=20.0)) as asked:
        told = asked.stats("dcp")
    sent = {name.split(":")[1]: int(count) for name, count in told.items() if name.endswith(":total_bytes_sent")}
    return {name: count for name, count in sent.items() if is_task(name)}


def is_task(name: str) -> bool:
    """Whether a connection of this name is of a task, and not of the driver."""
    return name.startswith("headrace-spark") and "scout" not in name


class Query:
    """A query into a copy; a context manager that stops it."""

    def __init__(
        self,
        spark: SparkSession,
        options: Mapping[str, object],
        checkpoint: Path,
        copy: Copy,
        *,
        available_now: bool = False,
    ) -> None:
        self.copy = copy
        reader = spark.readStream.format("dcp")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.foreachBatch(copy).option("checkpointLocation", str(checkpoint))
        if available_now:
            writer = writer.trigger(availableNow=True)
        self.query: StreamingQuery = writer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def until(self, holds: Callable[[], object], what: str, *, within_s: float = WAIT_S) -> None:
        """Wait until something holds; the query must not fail meanwhile."""
        end = time.monotonic() + within_s
        while not holds():
            failure = self.query.exception()
            assert failure is None, f"the query failed: {failure}"
            assert self.query.isActive, f"the query ended, and still not: {what}"
            assert time.monotonic() < end, f"not in {within_s} s: {what}; {self.query.status}"
            time.sleep(LOOK_S)

    def until_rows(self, rows: int) -> None:
        """Wait until so many rows came."""
        self.until(lambda: self.copy.rows >= rows, f"{rows} rows, there are {self.copy.rows}")

    def until_failed(self, *, within_s: float = WAIT_S) -> str:
        """Wait until the query fails, and give what it says."""
        end = time.monotonic() + within_s
        while (failure := self.query.exception()) is None:
            assert time.monotonic() < end, f"the query goes on: {self.query.status}"
            time.sleep(LOOK_S)
        return str(failure)

    def ends_equal(self, truth: Mapping[str, Document], *, within_s: float = WAIT_S) -> None:
        """Wait until the copy is the bucket, item by item, and see that it stays so when everything is read.

        A query with a small limit may be far behind: it has time as long as rows still come.
        """
        end, rows = time.monotonic() + within_s, 0
        while (wrong := difference(self.copy.documents(), truth)) and time.monotonic() < end:
            failure = self.query.exception()
            assert failure is None, f"the query failed: {failure}"
            if self.copy.rows > rows:
                end, rows = time.monotonic() + within_s, self.copy.rows
            time.sleep(0.1)
        assert not wrong, f"{wrong}; {self.query.status}; rollbacks: {self.copy.rollbacks[:5]}"
        self.query.processAllAvailable()
        assert not difference(self.copy.documents(), truth)
