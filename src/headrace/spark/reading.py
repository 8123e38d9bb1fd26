"""What a task does on an executor: read its share, prove that it is whole, and keep its connections for the next task.

Rows go from the socket to the JVM as Arrow batches; nothing here looks at a single change. Memory is bounded by the
window of a connection and one batch, however long the ranges are.

A Python worker serves many tasks, one after the other. Its readers wait in `_idle`, by what they were made with, so
that a micro-batch need not connect and authenticate anew.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

from headrace.client import ConnectionLostError
from headrace.client.options import OnRollback
from headrace.client.ranges import PurgedError, RangeReader
from headrace.columns.rollback import rollback_row
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.spark.planning import DataLossError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headrace.client.options import ChangeOptions
    from headrace.client.ranges import Range
    from headrace.spark.filters import Wanted
    from headrace.spark.sharing import Share

IDLE_S_MAX = 60.0
"""A server closes a connection whose signs of life nobody answers; one that was idle for so long is made anew."""

_idle: dict[ChangeOptions, list[RangeReader]] = defaultdict(list)


@cache
def settle() -> None:
    """Have all that pyspark has made be left out when garbage is looked for: it lives as long as the process.

    To look through it again and again was a twelfth of a task's time.
    """
    gc.freeze()


def take_reader(options: ChangeOptions) -> RangeReader:
    """Take a reader out of those that wait, or make one."""
    settle()
    waiting = _idle[options]
    while waiting:
        reader = waiting.pop()
        if time.monotonic() < reader.used_at + IDLE_S_MAX:
            return reader
        reader.close()
    return RangeReader(options)


def give_back(options: ChangeOptions, reader: RangeReader) -> None:
    """Let a reader wait for the next task."""
    _idle[options].append(reader)


def read_share(
    options: ChangeOptions, share: Share, wanted: Wanted, *, may_leave: bool = True
) -> Iterator[pa.RecordBatch]:
    """Give the rows of a share: rollbacks first, then the changes of its ranges.

    With `may_leave`, as in a stream, a vbucket whose history branched since the plan is left where it is: the next plan
    sees it.
    """
    for vbucket, to in share.rollbacks:
        yield rollback_row(VBucketId(vbucket), VbUuid(to.vbuuid), Seqno(to.seqno), keys=options.keys)
    reader = take_reader(options)
    try:
        for some in rounds(share.ranges):
            for rows in reader.read(some):
                kept = wanted.of(rows)
                if kept.num_rows:
                    yield kept
            if reader.left and not may_leave:
                give_back(options, reader)
                raise ConnectionLostError(
                    f"vbucket {min(reader.left)} of bucket {options.bucket} failed over while it was read: read again"
                )
    except PurgedError as error:
        raise DataLossError(f"{error}. {_way_out(options, in_stream=may_leave)}") from None
    give_back(options, reader)


def _way_out(options: ChangeOptions, *, in_stream: bool) -> str:
    if options.on_rollback is OnRollback.REBUILD:  # a part of a vbucket: a new plan does not cut it there
        return "Several tasks were to read the vbucket: start again, and one reads it anew from its beginning"
    also = ", and onRollback to rebuild or event," if in_stream else ""
    return f"Set failOnDataLoss to false{also} to read the vbucket anew from its beginning, after a rollback row"


def rounds(ranges: tuple[Range, ...]) -> list[list[Range]]:
    """Part ranges so that no vbucket stands twice in one reading: pieces of one go one after the other."""
    made: list[list[Range]] = []
    seen: dict[int, int] = defaultdict(int)
    for each in ranges:
        place = seen[each.vbucket]
        seen[each.vbucket] += 1
        if place == len(made):
            made.append([])
        made[place].append(each)
    return made


__all__ = ["IDLE_S_MAX", "give_back", "read_share", "rounds", "settle", "take_reader"]
