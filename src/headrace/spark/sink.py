"""Writes of format `dcp`: rows of changes, or documents, into a bucket.

    driver      batch_writer, stream_writer     columns and options are checked, and become a `SinkPlan`
    executor    SinkPlan.write                  one task: batches of rows -> BucketWriter -> counts
    driver      commit                          the counts of all tasks, added up and logged

A task ends well only when each of its rows is written and on disk at its node, or as new there already, or put aside.
To run it again does no harm. So a micro-batch that was not committed is written again as it was.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.client import BucketWriter, OptionError
from headrace.client.writing_lanes import key_shown
from headrace.spark import sink_documents
from headrace.spark.options import CHANGES, DOCUMENTS
from headrace.spark.sink_changes import SIGNS, changes_for
from headrace.spark.sink_documents import documents_for
from headrace.spark.sink_letters import DeadLetters, folder_of
from headrace.spark.sink_rows import RowError, Skipped
from headrace.spark.told import told

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.client import ChangeOptions, StatusError
    from headrace.spark.options import Options
    from headrace.spark.sink_rows import Rows

log = logging.getLogger("headrace.spark.sink")


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What became of the rows of a task, or of all tasks."""

    written: int = 0
    deleted: int = 0
    kept: int = 0
    """What the bucket has is as new or newer."""
    skipped: int = 0
    """Rows that are no change of an item: seqno advances, system events."""
    unapplied: int = 0
    """Flushes and rollbacks, which take something back that is not taken back here."""
    dead: int = 0
    """Put aside with a reason."""
    dead_letters: tuple[str, ...] = ()
    """The files where they are."""

    def __add__(self, other: Written) -> Written:
        mine, theirs = asdict(self), asdict(other)
        return Written(**{name: mine[name] + theirs[name] for name in mine})

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in asdict(self).items() if isinstance(count, int))


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """All that a task needs to know. It is pickled to the executors; its repr shows no password."""

    target: ChangeOptions
    rows: Rows
    retry_s: float
    dead_letters: str | None

    @classmethod
    def of(cls, options: Options, schema: StructType, *, overwrite: bool) -> SinkPlan:
        """Put columns and options together, on the driver, or tell what does not fit."""
        if overwrite:
            raise OptionError(
                'a write adds and replaces documents and never empties the bucket first: use mode("append"), or for a '
                'stream outputMode("append"); totals that change are written by foreachBatch with mode("append")'
            )
        letters = options.dead_letter_path
        return cls(
            target=options.change_options(),
            rows=rows_for(options, schema),
            retry_s=options.retry,
            dead_letters=folder_of(letters) if letters is not None else None,
        )

    def check_reachable(self) -> None:
        """Connect once, so that a wrong address, password or bucket is told before tasks run."""
        BucketWriter(self.target, retry_s_max=0.0).close()

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task, on an executor. A task without rows connects to nobody."""
        task = _Task(self)
        try:
            for batch in batches:
                task.put(batch)
            return task.finish()
        finally:
            task.close()


def rows_for(options: Options, schema: StructType) -> Rows:
    """Tell from columns and options what the rows are, or what is wrong with them."""
    names = [field.name for field in schema.fields]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise OptionError(f"two columns are called {twice}: a write knows columns by their names")
    of_documents = [option for option in sink_documents.OPTIONS if option in options.given]
    mode = options.mode if "mode" in options.given else DOCUMENTS if of_documents else _mode_of(names)
    if mode == DOCUMENTS:
        return documents_for(options, schema)
    if of_documents:
        raise OptionError(f"option {of_documents[0]} is of documents, and option mode says that the rows are changes")
    return changes_for(options, schema)


def _mode_of(names: list[str]) -> str:
    missing = SIGNS - set(names)
    if not missing:
        return CHANGES
    if len(missing) == 1 and "event" not in missing:  # somebody dropped a column of changes
        raise OptionError(
            f"these rows look like changes without their {min(missing)}: keep that column, or set option mode to "
            f"{DOCUMENTS}"
        )
    return DOCUMENTS


class _Task:
    """The rows of one task, while it runs."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._rows = plan.rows.begin()
        self._skipped = Skipped()
        self._letters = DeadLetters(plan.dead_letters) if plan.dead_letters is not None else None
        self._writer: BucketWriter | None = None

    def put(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._writer is None:
            plan = self._plan
            self._writer = BucketWriter(plan.target, refused=self._refused, retry_s_max=plan.retry_s)
        self._rows.put(batch, self._writer, self._wrong, self._skipped)

    def finish(self) -> Written:
        if self._writer is None:
            return Written()
        self._writer.finish()
        counts = self._writer.counts
        letters = self._letters.finish() if self._letters is not None else None
        return Written(
            written=counts.written,
            deleted=counts.deleted,
            kept=counts.kept,
            skipped=self._skipped.skipped,
            unapplied=self._skipped.unapplied,
            dead=self._letters.count if self._letters is not None else 0,
            dead_letters=(letters,) if letters is not None else (),
        )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._letters is not None:
            self._letters.discard()

    def _refused(self, row: Any, key: bytes, error: StatusError) -> None:
        batch, place = row
        self._wrong(batch, place, key, str(error))

    def _wrong(self, batch: pa.RecordBatch, place: int, key: bytes | None, reason: str) -> None:
        if self._letters is None:
            shown = "without a key" if key is None else f"with key {key_shown(key)}"
            raise RowError(
                f"the row {shown} cannot be written to bucket {self._plan.target.bucket}: {reason}; with option "
                "deadLetterPath such rows are put aside and the others written"
            )
        self._letters.add(batch, place, key, reason)


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame; made on the driver, pickled to each task, and asked to commit on the driver again."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task; called on an executor, once for each task."""
        with told():
            return self.plan.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell what became of all rows; called on the driver."""
        _tell(f"bucket {self.plan.target.bucket}", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell what the tasks wrote that came to an end; called on the driver. It stays written."""
        _tell(f"bucket {self.plan.target.bucket}, and other tasks failed", messages, is_whole=False)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream; else as `BatchSink`."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task; called on an executor, once for each task of a micro-batch."""
        with told():
            return self.plan.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Tell what became of the rows of a micro-batch; called on the driver."""
        _tell(f"bucket {self.plan.target.bucket}, batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Tell what was written of a micro-batch that failed; called on the driver. It will be written again."""
        _tell(f"bucket {self.plan.target.bucket}, batch {batchId}, and other tasks failed", messages, is_whole=False)


def batch_writer(options: Options, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
    """Make what writes a DataFrame, on the driver; what cannot be is an `OptionError` or says who does not answer."""
    with told():
        plan = SinkPlan.of(options, schema, overwrite=overwrite)
        plan.check_reachable()
        return BatchSink(plan)


def stream_writer(options: Options, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001
    """Make what writes a stream, on the driver.

    Spark makes one for each micro-batch and one for each commit, and tells neither whether it is the first: a node that
    is away for a moment must not matter, so nobody is connected to. The first task with rows tells what is wrong.
    """
    with told():
        return StreamSink(SinkPlan.of(options, schema, overwrite=overwrite))


def _tell(where: str, messages: list[WriterCommitMessage | None], *, is_whole: bool = True) -> None:
    total = sum((each for each in messages if isinstance(each, Written)), Written())
    if log.level == logging.NOTSET:  # Spark's processes for Python have nobody who would configure it
        log.setLevel(logging.INFO)
    log.log(logging.INFO if is_whole else logging.WARNING, "%s: %s", where, total)
    if total.dead:
        files = ", ".join(total.dead_letters[:3]) + (", …" if len(total.dead_letters) > 3 else "")  # noqa: PLR2004
        log.warning("%s: %d rows were put aside, see %s", where, total.dead, files)
    if total.unapplied:
        log.warning(
            "%s: %d rows say that a flush or a rollback took changes back; that is not undone here",
            where,
            total.unapplied,
        )


__all__ = ["BatchSink", "SinkPlan", "StreamSink", "Written", "batch_writer", "stream_writer"]
