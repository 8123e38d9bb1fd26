"""`spark.readStream.format("dcp")`: the driver plans micro-batches, the executors read them.

Everything but `read` runs in one Python process beside the driver for as long as the query lives. It may be started
anew at any moment, with an offset out of the checkpoint and nothing else: what it keeps between calls saves questions,
or a rollback that was not needed, and never decides what is right.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.client.options import OnRollback
from headrace.client.ranges import Range
from headrace.spark.filters import Wanted
from headrace.spark.offsets import Offset, VBucketOffset
from headrace.spark.planning import Limits, plan
from headrace.spark.reading import read_share, settle
from headrace.spark.sharing import Share, share_out, tasks_for
from headrace.spark.starting import starting_offset
from headrace.spark.told import told
from headrace.spark.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from headrace.ids import VBucketId
    from headrace.spark.options import Options


IDLE_S = 0.05
"""Spark asks a quiet query for news every 10 ms; to answer that often would keep a core busy with 1024 vbuckets."""


class DcpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of a bucket as a stream. Spark pickles it for the executors, before it has asked anybody."""

    def __init__(self, options: Options) -> None:
        # A purge that a task finds is a rollback to 0, if it may go on at all.
        stops = options.fail_on_data_loss or options.on_rollback == OnRollback.FAIL
        lost = OnRollback.FAIL if stops else OnRollback.REBUILD
        self._options = options
        self._reading = options.change_options(on_rollback=lost)
        self._caps: dict[VBucketId, int] | None = None
        self._watch: Watch | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_watch": None}

    @property
    def _watching(self) -> Watch:
        if self._watch is None:
            settle()
            options = self._options
            self._watch = Watch(self._reading, options.vbuckets, mitigated=options.rollback_mitigation)
        return self._watch

    # -- on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Say where a query without a checkpoint begins."""
        with told():
            return starting_offset(self._options, self._watching).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Say how much a micro-batch may take."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at what there is now; the first thing that Spark asks of such a query, be it new or not."""
        with told():
            sighted = self._watching.look(all_of_them=True, patient=False)
            self._caps = {vb: each.high for vb, each in sighted.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Plan the next batch: its end, within the limits, and what is to be rolled back before it."""
        with told():
            at = Offset.from_json(start, bucket=self._options.bucket)
            seen = self._watching.seen(at, self._caps)
            limits = Limits(
                on_rollback=OnRollback(self._options.on_rollback),
                fail_on_data_loss=self._options.fail_on_data_loss,
                seqnos=None if isinstance(limit, ReadAllAvailable) else self._seqnos(at, seen),
            )
            end = plan(at, seen, limits)
            if end is at:
                time.sleep(IDLE_S)
                return start
            return end.to_json()

    def _seqnos(self, at: Offset, seen: dict[int, Any]) -> int | None:
        options = self._options
        found = [] if options.max_offsets_per_trigger is None else [options.max_offsets_per_trigger]
        if options.max_bytes_per_trigger is not None:
            mean = self._watching.mean_bytes(at, seen)
            if mean:
                found.append(max(int(options.max_bytes_per_trigger / mean), 1))
        return min(found, default=None)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Tell the high seqnos, for Spark's progress."""
        if self._watch is None or not self._watch.sighted:
            return None
        newest = {vb: (self._watch.newest_branch(vb), each.high) for vb, each in self._watch.sighted.items()}
        highs = {int(vb): VBucketOffset(branch, high, branch) for vb, (branch, high) in newest.items()}
        return Offset(self._options.bucket, highs).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Share a batch out to tasks."""
        with told():
            bucket = self._options.bucket
            return self._shares(Offset.from_json(start, bucket=bucket), Offset.from_json(end, bucket=bucket))

    def _shares(self, start: Offset, end: Offset) -> list[Share]:
        ranges = ranges_between(start, end)
        watch = self._watching
        if ranges and not watch.sighted:  # a batch of before a restart
            watch.look()
        nodes = {int(vb): each.node for vb, each in watch.sighted.items()}
        seqnos = sum(each.end - each.start for each in ranges)
        tasks = tasks_for(seqnos, wanted=self._options.min_partitions, cores=os.cpu_count() or 1)
        shares = share_out(ranges, nodes, tasks, watch.may_begin)
        if end.rollbacks:
            shares = _with_rollbacks(shares, end)
        return shares or [Share(())]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a batch that is done."""

    def stop(self) -> None:
        """Close the connections of the driver."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # -- on an executor

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one share."""
        assert isinstance(partition, Share)
        with told():
            yield from read_share(self._reading, partition, Wanted(since_s=self._options.starting_timestamp))


def ranges_between(start: Offset, end: Offset) -> list[Range]:
    """Give what lies between two offsets, after the rollbacks at the end's beginning."""
    found = []
    for vbucket, to in end.vbuckets.items():
        here, back = start.of(vbucket), end.rollbacks.get(vbucket)
        low, vbuuid = (here.seqno, here.vbuuid) if back is None else (back.seqno, back.vbuuid)
        if to.seqno > low:
            found.append(Range(vbucket=vbucket, start=low, end=to.seqno, vbuuid=vbuuid if low else 0, head=to.head))
    return found


def _with_rollbacks(shares: list[Share], end: Offset) -> list[Share]:
    """Give each rollback row to a task that reads its vbucket; those of vbuckets with nothing to read to one more."""
    left = dict(end.rollbacks)
    given = []
    for share in shares:
        mine = [(each.vbucket, left.pop(each.vbucket)) for each in share.ranges if each.vbucket in left]
        given.append(Share(share.ranges, tuple(mine)))
    return [*given, Share((), tuple(left.items()))] if left else given


__all__ = ["DcpStreamReader", "ranges_between"]
