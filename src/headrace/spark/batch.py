"""`spark.read.format("dcp")`: what a bucket holds, or the changes that it still knows, up to the moment of the plan."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader

from headrace.client import OptionError
from headrace.client.options import OnRollback
from headrace.client.ranges import Range
from headrace.columns import TEXT_KEYS
from headrace.spark.documents import read_documents
from headrace.spark.filters import Wanted, push
from headrace.spark.offsets import Offset
from headrace.spark.options import DOCUMENTS, EARLIEST, LATEST
from headrace.spark.planning import Limits, Seen, plan
from headrace.spark.reading import read_share, settle
from headrace.spark.sharing import Share, share_out, tasks_for
from headrace.spark.starting import resolve, starting_offset
from headrace.spark.told import told
from headrace.spark.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition

    from headrace.spark.options import Options

_WAY_OUT = "Give startingOffsets that the bucket has; or set failOnDataLoss to false to read these vbuckets from 0 on"


class _Push:
    """`pushFilters` of a reader that also works where the session has filter pushdown turned off.

    Spark refuses a reader that overrides `pushFilters` then; it looks at `__func__` to find out. With pushdown off it
    never calls this, and filters the rows itself.
    """

    def __init__(self, reader: DcpBatchReader) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.take_filters(filters)


class DcpBatchReader(DataSourceReader):
    """Reads a bucket once. Spark makes one on the driver for a query, plans with it, and pickles it for the tasks."""

    def __init__(self, options: Options) -> None:
        if options.mode == DOCUMENTS and options.starting_offsets != EARLIEST:
            raise OptionError("option startingOffsets has no meaning with mode documents: a document may be older")
        self._options = options
        lost = OnRollback.FAIL if options.fail_on_data_loss else OnRollback.REBUILD
        self._reading = options.change_options(on_rollback=lost)
        self._wanted = Wanted(since_s=options.starting_timestamp)

    def __getattribute__(self, name: str) -> Any:
        return _Push(self) if name == "pushFilters" else super().__getattribute__(name)

    def take_filters(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Take over what can be done before rows go to the JVM; called on the driver, before `partitions`."""
        self._wanted, left = push(self._wanted, filters, text_keys=self._options.keys == TEXT_KEYS)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the servers where everything is and how far, and share it out to tasks; called once, on the driver."""
        settle()
        with told():
            watch = Watch(self._reading, self._options.vbuckets)
            try:
                return self._shares(watch) or [Share(())]
            finally:
                watch.close()

    def _shares(self, watch: Watch) -> list[Share]:
        ranges = self._ranges(watch)
        nodes = {int(vbucket): each.node for vbucket, each in watch.sighted.items()}
        seqnos = sum(each.end - each.start for each in ranges)
        tasks = tasks_for(seqnos, wanted=self._options.min_partitions, cores=os.cpu_count() or 1)
        # Who looks for the newest version of a document has to have its whole vbucket.
        return share_out(ranges, nodes, tasks, None if self._options.mode == DOCUMENTS else watch.may_begin)

    def _ranges(self, watch: Watch) -> list[Range]:
        options, wanted = self._options, self._wanted
        start = starting_offset(options, watch)
        ends = Offset(options.bucket)
        if options.ending_offsets != LATEST:
            ends = resolve("endingOffsets", options.ending_offsets, options.bucket, watch)
        sighted = watch.sighted
        logs = watch.logs(set(sighted))
        vbuckets = watch.scout.vbuckets
        seen = {
            int(vbucket): Seen(int(sighted[vbucket].high), log)
            for vbucket, log in logs.items()
            if wanted.may_hold(vbucket, vbuckets, hashed=options.hashed_keys)
        }
        # A batch has nobody who could go back: a position that is off the history is an error, or the beginning.
        on_rollback = OnRollback.FAIL if options.fail_on_data_loss else OnRollback.REBUILD
        limits = Limits(on_rollback=on_rollback, fail_on_data_loss=options.fail_on_data_loss, way_out=_WAY_OUT)
        planned = plan(start, seen, limits)
        found = []
        for vbucket in seen:
            low = 0 if vbucket in planned.rollbacks else start.of(vbucket).seqno
            high = planned.of(vbucket).seqno
            if vbucket in ends.vbuckets:
                high = min(high, ends.of(vbucket).seqno)
            found.append(self._range(vbucket, low, high, start, planned))
        return [each for each in found if each.end > each.start]

    def _range(self, vbucket: int, low: int, high: int, start: Offset, planned: Offset) -> Range:
        vbuuid, head = start.of(vbucket).vbuuid, planned.of(vbucket).head
        if self._options.mode != DOCUMENTS:  # a document's row may be of any seqno
            floor = self._wanted.seqno_from - 1
            if floor > low:
                low, vbuuid = floor, head
            high = min(high, self._wanted.seqno_to)
        return Range(vbucket=vbucket, start=low, end=high, vbuuid=vbuuid if low else 0, head=head)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one share, on an executor."""
        assert isinstance(partition, Share)
        with told():
            if self._options.mode == DOCUMENTS:
                yield from read_documents(self._reading, partition, self._wanted)
            else:
                yield from read_share(self._reading, partition, self._wanted, may_leave=False)


__all__ = ["DcpBatchReader"]
