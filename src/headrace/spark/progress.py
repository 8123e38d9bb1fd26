"""How far queries are: lag, rows, bytes and rollbacks, from what Spark tells of each micro-batch.

Spark's progress has the offsets of a batch as JSON: where it began, where it ended, and where the bucket was. From a
series of them `ProgressListener` keeps, per query and bucket,

- the lag in seqnos: what the bucket has beyond the end of the last batch;
- the lag in seconds: since when the oldest of that has been known to be there;
- rows, and seqnos that went by without one: changes that a newer one replaced, or that were not asked for;
- rollbacks.

Bytes are in no progress of a Python source; `measured` has Spark count them, and how old the newest change was.
Everything here runs on the driver. Spark calls a listener from threads of its own, one event after the other.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.spark.offsets import MARK, Offset, OffsetError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
        StreamingQueryProgress,
    )

    from headrace.spark.progress_metrics import MetricsServer

MEASURED = "headrace"
"""What the measurements of `measured` are called in Spark's progress."""
SIGHTINGS_MAX = 64
"""How many times a vbucket's high seqno is remembered with the time it was first seen."""
ENDED_MAX = 100
"""How many queries that ended are remembered."""
_MICROSECONDS = 1_000_000


def measured(frame: DataFrame, name: str = MEASURED) -> DataFrame:
    """Have Spark measure what runs through a DataFrame of changes; called on the driver, before columns are dropped.

    The sums are in `observedMetrics` of the query's progress under `name`, and a `ProgressListener` reads them there:
    rows, bytes of keys and values, and the time of the newest change. It costs no second pass over the data.

    >>> measured(spark.readStream.format("dcp").load()).writeStream.format("noop").start()  # doctest: +SKIP
    """
    sizes = [sf.coalesce(sf.octet_length(each), sf.lit(0)) for each in ("key", "value") if each in frame.columns]
    sums = [sf.count(sf.lit(1)).alias("rows")]
    if sizes:
        sums.append(sf.sum(sum(sizes[1:], start=sizes[0]).cast("long")).alias("bytes"))
    if "changed_at" in frame.columns:
        sums.append(sf.max(sf.unix_micros("changed_at")).alias("newest_us"))
    return frame.observe(name, *sums)


@dataclass(slots=True)
class Sightings:
    """When a vbucket was first seen to have gone so far: pairs of a time and a high seqno, both rising."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    def add(self, now: float, high: int, *, read: int) -> None:
        """Remember a high seqno, and forget what has been read; a failover may have taken some back."""
        kept = [(at, seqno) for at, seqno in self.seen if read < seqno <= high]
        if high > read and (not kept or kept[-1][1] < high):
            kept.append((now, high))
        self.seen = kept if len(kept) <= SIGHTINGS_MAX else _thinned(kept)

    def lag_s(self, now: float) -> float:
        """How long the oldest change that is not read yet has been known."""
        return max(0.0, now - self.seen[0][0]) if self.seen else 0.0


def _thinned(seen: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Make one of every two, with the earlier time and the later seqno: a lag comes out too long, never too short."""
    pairs = [(first[0], second[1]) for first, second in zip(seen[::2], seen[1::2], strict=False)]
    return [*pairs, *seen[len(pairs) * 2 :]]


@dataclass(slots=True)
class BucketProgress:
    """What became of one bucket in a query."""

    rows: int = 0
    seqnos: int = 0
    deduplicated: int = 0
    rollbacks: int = 0
    read: dict[int, int] = field(default_factory=dict)
    high: dict[int, int] = field(default_factory=dict)
    sightings: dict[int, Sightings] = field(default_factory=dict)

    def take(self, source: SourceProgress, end: Offset, now: float) -> None:
        """Add a batch."""
        start = _offset(source.startOffset)
        latest = _offset(source.latestOffset)
        if source.startOffset != source.endOffset:  # else the batch is of another source of the query, or of none
            self._count(source.numInputRows, start, end)
        self.read = {vbucket: at.seqno for vbucket, at in end.vbuckets.items()}
        if latest is None:
            return
        self.high = {vbucket: at.seqno for vbucket, at in latest.vbuckets.items()}
        for vbucket, high in self.high.items():
            self.sightings.setdefault(vbucket, Sightings()).add(now, high, read=self.read.get(vbucket, 0))

    def _count(self, rows: int, start: Offset | None, end: Offset) -> None:
        rows = max(0, rows - len(end.rollbacks))  # a rollback is a row, and has no seqno of its own
        self.rows += rows
        self.rollbacks += len(end.rollbacks)
        if start is not None:  # the first batch of a query tells none
            seqnos = advanced(start, end)
            self.seqnos += seqnos
            self.deduplicated += max(0, seqnos - rows)

    def lags(self) -> dict[int, int]:
        """Seqnos that each vbucket has and the query has not read."""
        return {vbucket: max(0, high - self.read.get(vbucket, 0)) for vbucket, high in self.high.items()}

    def as_dict(self, now: float, *, per_vbucket: bool) -> dict[str, Any]:
        """Give the plain form."""
        lags = self.lags()
        seconds = {vbucket: each.lag_s(now) for vbucket, each in self.sightings.items()}
        plain: dict[str, Any] = {
            "rows": self.rows,
            "seqnos": self.seqnos,
            "deduplicated": self.deduplicated,
            "rollbacks": self.rollbacks,
            "lag_seqnos": sum(lags.values()),
            "lag_seqnos_max": max(lags.values(), default=0),
            "lag_s": max(seconds.values(), default=0.0),
        }
        if per_vbucket:
            plain["vbuckets"] = {
                vbucket: {
                    "seqno": self.read.get(vbucket, 0),
                    "high": self.high[vbucket],
                    "lag_seqnos": lag,
                    "lag_s": seconds.get(vbucket, 0.0),
                }
                for vbucket, lag in sorted(lags.items())
            }
        return plain


@dataclass(slots=True)
class QueryProgress:
    """What became of one query, over all its runs that the listener saw."""

    id: str
    run_id: str
    name: str | None
    is_active: bool = True
    error: str | None = None
    batch: int | None = None
    batches: int = 0
    batch_s: float = 0.0
    rows_per_s: float = 0.0
    told_at: float = 0.0
    buckets: dict[str, BucketProgress] = field(default_factory=dict)
    measured_rows: int = 0
    measured_bytes: int = 0
    newest_us: int | None = None
    age_s: float | None = None

    def take(self, progress: StreamingQueryProgress, now: float) -> None:
        """Add a batch."""
        self.told_at = now
        self.batches += progress.batchId != self.batch
        self.batch = progress.batchId
        self.batch_s = progress.batchDuration / 1000
        self.rows_per_s = _plain(progress.processedRowsPerSecond)
        named: Counter[str] = Counter()
        for source in progress.sources:
            end = _offset(source.endOffset)
            if end is None:
                continue
            named[end.bucket] += 1
            name = end.bucket if named[end.bucket] == 1 else f"{end.bucket} ({named[end.bucket]})"
            self.buckets.setdefault(name, BucketProgress()).take(source, end, now)
        for name, row in progress.observedMetrics.items():
            if name.startswith(MEASURED):
                self._measure(row.asDict(), now)

    def _measure(self, row: Mapping[str, Any], now: float) -> None:
        self.measured_rows += row.get("rows") or 0
        self.measured_bytes += row.get("bytes") or 0
        newest = row.get("newest_us")
        if newest is not None:
            self.newest_us = max(newest, self.newest_us or newest)
            self.age_s = max(0.0, now - newest / _MICROSECONDS)

    def as_dict(self, now: float, *, per_vbucket: bool) -> dict[str, Any]:
        """Give the plain form."""
        plain: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("id", "run_id", "name", "is_active", "error", "batch", "batches", "batch_s", "rows_per_s")
        }
        plain["told_at"] = self.told_at
        plain["measured"] = None
        if self.measured_rows:
            newest = None if self.newest_us is None else self.newest_us / _MICROSECONDS
            sums = {"rows": self.measured_rows, "bytes": self.measured_bytes}
            plain["measured"] = {**sums, "newest_changed_at": newest, "age_s": self.age_s}
        plain["buckets"] = {
            name: each.as_dict(now, per_vbucket=per_vbucket) for name, each in sorted(self.buckets.items())
        }
        return plain


class ProgressListener(StreamingQueryListener):
    """Keeps the progress of every query of a session that reads a bucket; made and asked on the driver.

    `snapshot()` has it as a dictionary, `metrics()` as Prometheus text, `serve()` at an address. Sums and maxima over
    vbuckets are kept small on purpose; `per_vbucket` adds a row for each.

    >>> listener = ProgressListener()
    >>> spark.streams.addListener(listener)  # doctest: +SKIP
    """

    def __init__(self, *, per_vbucket: bool = False, clock: Callable[[], float] = time.time) -> None:
        self.per_vbucket = per_vbucket
        self._clock = clock
        self._lock = threading.Lock()
        self._queries: dict[str, QueryProgress] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Called before `start()` returns."""
        with self._lock:
            self._query(str(event.id), str(event.runId), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Called after each micro-batch."""
        progress = event.progress
        with self._lock:
            query = self._query(str(progress.id), str(progress.runId), progress.name)
            query.take(progress, self._clock())

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Called now and then while there is nothing to read."""
        with self._lock:
            if (query := self._queries.get(str(event.id))) is not None:
                query.told_at = self._clock()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Called when a query ended, with an error or without."""
        with self._lock:
            query = self._queries.get(str(event.id))
            if query is None or query.run_id != str(event.runId):
                return
            query.is_active = False
            query.error = event.exception
            ended = [each for each in self._queries.values() if not each.is_active]
            for old in ended[:-ENDED_MAX]:
                del self._queries[old.id]

    def _query(self, known_as: str, run_id: str, name: str | None) -> QueryProgress:
        query = self._queries.get(known_as)
        if query is None:
            for other in [each for each in self._queries.values() if name is not None and each.name == name]:
                del self._queries[other.id]  # another query of this name, which must have ended
            query = self._queries[known_as] = QueryProgress(known_as, run_id, name)
        if query.run_id != run_id:  # the same checkpoint, started again
            query.run_id, query.is_active, query.error = run_id, True, None
        return query

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Give all queries by their name, or by their id where they have none.

        A lag in seconds goes on growing between two events, as long as something is known to be unread.
        """
        now = self._clock()
        with self._lock:
            return {
                query.name or query.id: query.as_dict(now, per_vbucket=self.per_vbucket)
                for query in self._queries.values()
            }

    def metrics(self) -> str:
        """Give the snapshot as Prometheus text."""
        from headrace.spark.progress_metrics import exposition  # noqa: PLC0415 - it needs prometheus-client

        return exposition(self)

    def serve(self, port: int = 0, host: str = "127.0.0.1") -> MetricsServer:
        """Serve the metrics over HTTP, on loopback without another word; port 0 is a free one.

        >>> with listener.serve(9464) as server:  # doctest: +SKIP
        ...     print(server.url)
        """
        from headrace.spark.progress_metrics import MetricsServer  # noqa: PLC0415 - it needs prometheus-client

        return MetricsServer(self, port=port, host=host)


def advanced(start: Offset, end: Offset) -> int:
    """How many seqnos a batch went over; a vbucket that was rolled back is read from where it was rolled back to."""
    return sum(
        max(0, at.seqno - (end.rollbacks[vbucket].seqno if vbucket in end.rollbacks else start.of(vbucket).seqno))
        for vbucket, at in end.vbuckets.items()
    )


def _offset(text: str | None) -> Offset | None:
    """An offset of ours; None for another source's, or where Spark tells none."""
    if not text or MARK not in text:
        return None
    try:
        return Offset.from_json(json.loads(text))
    except (ValueError, OffsetError):
        return None


def _plain(number: float | None) -> float:
    """Spark gives no number where nothing was read, or in no time."""
    return number if number is not None and math.isfinite(number) else 0.0


__all__ = ["MEASURED", "ProgressListener", "measured"]
