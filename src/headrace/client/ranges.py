"""Ranges of seqnos, each read once and whole, by connections that serve many of them one after the other.

A range was planned by someone who knew the newest branch of its vbucket then, its `head`. What can go wrong between the
plan and the reading:

- The vbucket moved, or a connection broke: the reader goes on wherever the vbucket is.
- The head was left: a failover. Then the planned end may not exist, or mean another change. Nothing more is given of
  the vbucket, and it is named in `left`. Whoever plans next sees a head that is no longer the newest, and goes back.
- The server wants a rollback though the head is its newest: deletions after the start were purged. `on_rollback` of the
  options says what then: `fail` raises, `rebuild` gives a rollback row with seqno 0 and the vbucket from its beginning.
  A `part` of a vbucket always raises: who reads what is before it gives those rows, too.

A range with `cut` off goes on to the end of the snapshot in which its end lies, as servers do by themselves. Without a
cut, every item that is there is among the rows, also one that is written all the time: a cut drops its newest version.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client.errors import ClientError, ConnectionLostError
from headrace.client.events import Batch, RolledBack, StreamEnded
from headrace.client.follower import Follower, RollbackError
from headrace.client.planning import Plan
from headrace.client.positions import Positions
from headrace.client.reader import Reader
from headrace.columns.rollback import rollback_row
from headrace.history import SEQNO_MAX, Position, SnapshotRange
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.protocol.subscription import Phase, branch_of
from headrace.wire.catalogue import CloseStream, FailoverLog
from headrace.wire.codes import StreamEndReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from headrace.client.link import Link
    from headrace.client.options import ChangeOptions
    from headrace.errors import HeadraceError
    from headrace.protocol.subscription import Subscription
    from headrace.wire.catalogue import StreamEnd
    from headrace.wire.message import Response


class PurgedError(ClientError):
    """Deletions that a range should have brought are gone at the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The changes of one vbucket after `start`, up to `end`; `vbuuid` is the branch at the start."""

    vbucket: int
    start: int
    end: int
    vbuuid: int = 0
    head: int = 0
    """The newest branch of the vbucket when this was planned; 0 to take whatever there is."""
    part: bool = False
    """Whether somebody else reads what is before it: it cannot be read anew from the beginning, only be refused."""

    @property
    def position(self) -> Position:
        """Where the range starts, between two snapshots: who planned it has seen to that."""
        at = Seqno(self.start)
        return Position(vbuuid=VbUuid(self.vbuuid), seqno=at, snapshot=SnapshotRange.at(at))


class _RangeFollower(Follower):
    """A follower that minds the branches that its ranges were planned on."""

    def __init__(self, options: ChangeOptions, plan: Plan, now: float) -> None:
        super().__init__(options, plan, now, wants_markers=False)
        self.heads: dict[VBucketId, VbUuid] = {}
        self.asked_ends: dict[VBucketId, Seqno] = {}
        """The ends of ranges that are not cut: the server is asked for those, and more is taken."""
        self.left: set[VBucketId] = set()
        self.parts: set[VBucketId] = set()
        self._began_at = now

    def lost(self, link: Link, error: HeadraceError, now: float) -> None:
        """Try the seeds again while none has answered yet: who planned the ranges has just spoken with one."""
        super().lost(link, error, now)
        limit = self.options.give_up_s
        patient = limit is None or now < self._began_at + limit
        if self.failure is error and self.nodes.cluster is None and patient and isinstance(error, ConnectionLostError):
            self.failure = None
            self.nodes.try_seeds_again()

    def _stream_answered(self, link: Link, subscription: Subscription, reply: Response) -> None:
        vbucket = subscription.vbucket
        head = self.heads.get(vbucket)
        newest = reply.entries[0].vbuuid if isinstance(reply, FailoverLog) and reply.entries else head
        if head and newest != head:
            link.ask(CloseStream(vbucket=vbucket), lambda _: None)
            self._leave(subscription)
        else:
            super()._stream_answered(link, subscription, reply)

    def _rollback_explained(self, subscription: Subscription, reply: Response) -> None:
        head = self.heads.get(subscription.vbucket)
        if head and isinstance(reply, FailoverLog) and reply.entries and reply.entries[0].vbuuid != head:
            self._leave(subscription)
        elif subscription.vbucket in self.parts and isinstance(reply, FailoverLog):
            raise RollbackError(subscription.roll_back(reply.entries, to_zero=True))
        else:
            super()._rollback_explained(subscription, reply)

    def _leave(self, subscription: Subscription) -> None:
        vbucket = subscription.vbucket
        del self._asked_at[vbucket]
        subscription.leave()
        self.left.add(vbucket)

    def stream_end_of(self, subscription: Subscription) -> Seqno:
        """The end that the server is asked for."""
        return self.asked_ends.get(subscription.vbucket, subscription.end_seqno)

    def link_ended(self, link: Link, message: StreamEnd, now: float) -> None:
        """A range that is not cut ends where the server says that its snapshot did."""
        vbucket = message.vbucket
        subscription = self._subscriptions.get(vbucket)
        wanted = self.asked_ends.get(vbucket)
        if subscription is not None and wanted is not None and message.reason == StreamEndReason.OK:
            came = max(subscription.progress.seqno, link.inherited.snapshot_end(vbucket))
            if subscription.phase is Phase.STREAMING and came >= wanted:
                subscription.end_seqno = subscription.progress.seqno
        super().link_ended(link, message, now)


class RangeReader(Reader):
    """Reads ranges as Arrow record batches; one thread, one reading at a time.

    >>> reader = RangeReader(ChangeOptions(connection="couchbase://127.0.0.1"))  # doctest: +SKIP
    ... for rows in reader.read([Range(vbucket=0, start=0, end=100)]):
    ...     print(rows.num_rows)

    A reading that was left in the middle closes the connections; the next one makes them anew.
    """

    _follower: _RangeFollower

    def __init__(self, options: ChangeOptions) -> None:
        super().__init__(dataclasses.replace(options, vbuckets=()))
        self.used_at = time.monotonic()
        """When a reading last ended."""

    def _follow(self, plan: Plan) -> _RangeFollower:
        return _RangeFollower(self.options, plan, time.monotonic())

    @property
    def left(self) -> frozenset[VBucketId]:
        """The vbuckets of the last reading whose head was left: what was given of them is not all."""
        return frozenset(self._follower.left)

    def read(self, ranges: Sequence[Range], *, cut: bool = True) -> Iterator[pa.RecordBatch]:
        """Give the changes of the ranges, of which no two are of one vbucket; a rollback is a row of its own."""
        some = [each for each in ranges if each.end > each.start]
        wanted = {VBucketId(each.vbucket): each for each in some}
        assert len(wanted) == len(some), "a vbucket stands twice"
        self._follower.left = set()
        if not wanted:
            return
        self._begin(wanted, cut=cut)
        done = False
        try:
            yield from self._rows(wanted)
            done = True
        finally:
            self.used_at = time.monotonic()
            if not done:
                self.close()

    def _begin(self, wanted: dict[VBucketId, Range], *, cut: bool) -> None:
        starts = {vbucket: each.position for vbucket, each in wanted.items()}
        ends = {vbucket: Seqno(each.end) for vbucket, each in wanted.items()}
        until: dict[int, int] = {vbucket: end if cut else SEQNO_MAX for vbucket, end in ends.items()}
        plan = Plan(Positions(bucket=self.options.bucket, vbuckets=starts), until)
        if self._closed or self._follower.nodes.cluster is None:
            self.options = dataclasses.replace(self.options, vbuckets=tuple(wanted))
            self._follower = self._follow(plan)
            self._closed = False
        else:
            self._follower.again(plan, tuple(wanted), time.monotonic())
        self._follower.heads = {vbucket: VbUuid(each.head) for vbucket, each in wanted.items()}
        self._follower.asked_ends = {} if cut else ends
        self._follower.parts = {vbucket for vbucket, each in wanted.items() if each.part}

    def _rows(self, wanted: dict[VBucketId, Range]) -> Iterator[pa.RecordBatch]:
        patience_s = self.options.give_up_s
        finished: set[VBucketId] = set()
        while True:
            try:
                event = self._wait(patience_s)
            except RollbackError as error:
                raise self._purged(error, wanted) from None
            if event is None:
                break
            self._follower.taken.take(event)
            self._flush()
            if isinstance(event, Batch) and event.rows.num_rows:
                yield event.rows
            elif isinstance(event, RolledBack):
                vbuuid = branch_of(event.log, event.whole)
                yield rollback_row(event.vbucket, vbuuid, event.whole, keys=self.options.keys)
            elif isinstance(event, StreamEnded) and event.finished:
                finished.add(event.vbucket)
        missing = wanted.keys() - finished - self._follower.left
        if missing or not self._follower.is_done:
            first = min(missing or wanted)
            came = self._follower.positions.vbuckets[first].seqno
            raise ConnectionLostError(
                f"vbucket {first} of bucket {self.options.bucket}: nothing came after seqno {came} for "
                f"{patience_s} s, and seqnos up to {wanted[first].end} were to come"
            )

    def _purged(self, error: RollbackError, wanted: dict[VBucketId, Range]) -> PurgedError:
        vbucket = error.rolled_back.vbucket
        return PurgedError(
            f"vbucket {vbucket} of bucket {self.options.bucket}: the changes after seqno {wanted[vbucket].start} "
            f"cannot be had any more ({error.rolled_back.because})"
        )


__all__ = ["PurgedError", "Range", "RangeReader"]
