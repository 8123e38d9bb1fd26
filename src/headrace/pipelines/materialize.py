"""Keeps a table equal to a bucket, by a streaming query of Spark.

Spark keeps in its checkpoint which changes were read, plans micro-batches and reads them in parallel. Each batch comes
to this process as Arrow, and is committed to the table here (`tables.delta`, `tables.change_log`): at most once,
since the table knows the last batch that it holds, and at least once, since Spark plays a batch again that it does not
know to be done. What a failover takes back comes as a `rollback` row with the whole vbucket behind it, in one batch.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.columns import TEXT_KEYS
from headrace.columns.schema import EVENTS, ROLLBACK
from headrace.pipelines.tables import Kind, Place, TableError
from headrace.pipelines.unwrapping import is_of_spark, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_CHANGES = 200_000
"""So many seqnos a micro-batch takes at most."""

MAX_BYTES = 128 << 20
"""So many bytes of changes it takes at most, by the mean size of some: they go through the driver's memory."""

HISTORY_S = 600
LOOK_S = 0.25
_LOCK = "headrace.lock"
_NOTE = "headrace.json"
_SCOPE = ("scope", "collections", "vbuckets")
"""Options that a checkpoint is bound to."""


class Target(Protocol):
    """What takes the batches."""

    columns: Sequence[str]
    """Which columns of a change it wants."""

    def take(self, application: str, batch: int, rows: pa.Table) -> bool:
        """Take a batch; False when it was there already, or there was nothing to do."""

    def tidy(self, *, now: bool = False) -> None:
        """Do what keeps it small, if it is time for that."""


def open_target(place: Place, *, keys: str = TEXT_KEYS, history_s: int = HISTORY_S) -> Target:
    """Open a table, or make it."""
    if place.kind is Kind.PARQUET:
        return _LogTarget(place.path, keys)
    try:
        return _DeltaTarget(place.path, keys, history_s)
    except ImportError as error:
        if (error.name or "").split(".")[0] != "deltalake":
            raise
        raise TableError("a Delta table needs the package deltalake: pip install 'headrace[delta]'") from None


class _DeltaTarget:
    def __init__(self, path: str, keys: str, history_s: int) -> None:
        from headrace.pipelines.tables.delta import DeltaSink  # noqa: PLC0415 - an extra
        from headrace.pipelines.tables.folding import ITEM  # noqa: PLC0415

        self._sink = DeltaSink(path, keys=keys, history_s=history_s)
        self.columns: Sequence[str] = ("event", *ITEM)

    def take(self, application: str, batch: int, rows: pa.Table) -> bool:
        return self._sink.commit(application, batch, rows).version is not None

    def tidy(self, *, now: bool = False) -> None:
        self._sink.clean(now=now)


class _LogTarget:
    def __init__(self, path: str, keys: str) -> None:
        from headrace.columns import schema  # noqa: PLC0415
        from headrace.pipelines.tables.change_log import ChangeLog  # noqa: PLC0415

        self._log = ChangeLog(path, keys=keys)
        self.columns: Sequence[str] = tuple(schema().names)

    def take(self, application: str, batch: int, rows: pa.Table) -> bool:
        return self._log.append(application, batch, rows)

    def tidy(self, *, now: bool = False) -> None:
        """A log only grows."""


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    batches: int = 0
    """Micro-batches that came."""
    commits: int = 0
    """Those that changed the table."""
    rows: int = 0
    """Rows that they brought."""
    rollbacks: int = 0
    """Vbuckets that were read anew since a failover took changes back."""
    seqnos: int = 0
    """How many seqnos of the bucket the table has gone through, all vbuckets together."""
    lag: int | None = None
    """How many seqnos of the bucket the table is behind, as of the last batch; None when nobody knows."""
    seconds: float = 0.0


class _NotCommittedError(Exception):
    """Tells Spark that a batch is not done. The reason stays here.

    Spark looks for causes in the text of an exception by a regular expression that overflows Java's stack on a long
    one, as that of a job which was broken off when the query was stopped.
    """


class Materialization:
    """One run: a query, and what it writes to. `options` are those of the format `dcp`."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], target: Target, checkpoint: Path) -> None:
        self.progress = Progress()
        self._spark = spark
        self._options = {
            "maxOffsetsPerTrigger": str(MAX_CHANGES),
            "maxBytesPerTrigger": str(MAX_BYTES),
            **options,
            "onRollback": "rebuild",
            "failOnDataLoss": "false",  # what cannot be had any more is read anew: then it is no loss for a table
        }
        self._target = target
        self._checkpoint = checkpoint
        self._application = ""
        self._started = threading.Event()
        self._committing = threading.Lock()
        self._stopping = False
        self._failure: BaseException | None = None

    def run(
        self,
        stop: Callable[[], bool] = lambda: False,
        *,
        once: bool = False,
        every_s: float = 1.0,
        tell: Callable[[Progress], None] = lambda _: None,
    ) -> Progress:
        """Run until what was there at the beginning is in the table (`once`), or until `stop` says so.

        A batch that is being committed then is finished; one that is not is left to the next run.
        """
        began = time.monotonic()
        with held(self._checkpoint):
            self._check_scope()
            with self._translated():
                query = self._start(once=once, every_s=every_s)
            try:
                while not self._wait(query):
                    self.progress.seconds = time.monotonic() - began
                    tell(self.progress)
                    if stop():
                        break
            finally:
                with self._translated():
                    self._end(query)
            self._target.tidy(now=True)
        self.progress.seconds = time.monotonic() - began
        return self.progress

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn what comes out of Spark into an error of ours; what went wrong in a commit is told in its place."""
        try:
            yield
        except Exception as error:
            failure = self._failure or error
            if is_of_spark(failure):
                raise unwrapped(failure) from error
            raise failure from None

    def _wait(self, query: StreamingQuery) -> bool:
        """Wait a moment, and look how far it is; whether the query has ended."""
        with self._translated():
            ended = query.awaitTermination(LOOK_S)  # type: ignore[arg-type]
            last = query.lastProgress
        if last is not None and last.sources:
            self.progress.seqnos, self.progress.lag = _positions(last.sources[0])
        return bool(ended)

    def _check_scope(self) -> None:
        """Refuse to go on with other collections: of a new one, what is older than the checkpoint would be missing."""
        wanted = {name: self._options.get(name) for name in _SCOPE}
        note = self._checkpoint / _NOTE
        try:
            began = (self._checkpoint / "offsets").is_dir() and note.exists()
            found = json.loads(note.read_text(encoding="utf-8")) if began else wanted
            if not began:
                note.write_text(json.dumps(wanted) + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            raise TableError(f"{note}: cannot be read or written: {error}") from None
        if found != wanted:
            raise TableError(
                f"{self._checkpoint}: this checkpoint was begun with {_told(found)}, and is not to go on with "
                f"{_told(wanted)}: give another one, which reads the bucket from its beginning"
            )

    def _start(self, *, once: bool, every_s: float) -> StreamingQuery:
        rows = self._spark.readStream.format("dcp").options(**self._options).load()
        writer = rows.select(*self._target.columns).writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._checkpoint)).queryName("headrace materialize")
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=_interval(every_s))
        query = writer.start()
        self._application = f"headrace-{query.id}"
        self._started.set()
        return query

    def _take(self, frame: DataFrame, batch: int) -> None:
        """Commit one batch; Spark calls it on the driver, in a thread of its own, one batch after the other."""
        self._started.wait()
        try:
            self._commit(batch, frame.toArrow())
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._failure = error
            raise _NotCommittedError from None

    def _commit(self, batch: int, rows: pa.Table) -> None:
        with self._committing:
            if self._stopping:
                raise _NotCommittedError
            self.progress.commits += self._target.take(self._application, batch, rows)
            self._target.tidy()
        self.progress.batches += 1
        self.progress.rows += rows.num_rows
        self.progress.rollbacks += _count(rows, EVENTS[ROLLBACK])

    def _end(self, query: StreamingQuery) -> None:
        with self._committing:  # a commit is not broken off; the reading of a batch is
            self._stopping = True
        query.stop()


def _told(scope: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in scope.items() if value) or "the default collection"


def _interval(every_s: float) -> str:
    return f"{max(int(every_s * 1000), 1)} milliseconds"


def _count(rows: pa.Table, event: str) -> int:
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc.sum(pc.equal(rows["event"], event)).as_py() or 0


def _positions(source: Any) -> tuple[int, int | None]:
    """Where the last batch ended, and how many seqnos there were when it was planned that were not in it."""
    from headrace.spark.offsets import Offset, OffsetError  # noqa: PLC0415

    try:
        newest, end = (Offset.from_json(json.loads(text)) for text in (source.latestOffset, source.endOffset))
    except (OffsetError, TypeError, ValueError):
        return 0, None
    behind = sum(max(at.seqno - end.of(vbucket).seqno, 0) for vbucket, at in newest.vbuckets.items())
    return sum(at.seqno for at in end.vbuckets.values()), behind


@contextmanager
def held(checkpoint: Path) -> Iterator[None]:
    """Hold a checkpoint for one run at a time."""
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        number = os.open(checkpoint / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise TableError(f"{checkpoint}: a checkpoint cannot be kept there: {error.strerror}") from None
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TableError(f"{checkpoint}: another run is using this checkpoint") from None
        yield
    finally:
        with suppress(OSError):
            os.close(number)


__all__ = ["HISTORY_S", "MAX_BYTES", "MAX_CHANGES", "Materialization", "Progress", "Target", "held", "open_target"]
