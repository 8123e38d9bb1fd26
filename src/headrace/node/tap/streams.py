"""A vbucket on a TAP connection, and where its stream begins.

A client that named a checkpoint which is still known goes on there, and one that is registered where it was left; both
only if nothing behind that was lost or purged. Everybody else gets old items first, unless they asked for later changes
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.history import History
from headrace.ids import Seqno
from headrace.node.dcp.feed import Feed
from headrace.node.tap.checkpoints import checkpoints_of
from headrace.protocol.tap import Phase, Reached, TapStream, goes_on
from headrace.wire.codes import TapConnectFlag

if TYPE_CHECKING:
    from headrace.node.buckets import OpenBucket
    from headrace.node.vbucket import VBucket
    from headrace.protocol.tap import Wish


class ServedTap(TapStream):
    """A stream and what it reads from."""

    __slots__ = ("awaits_flush", "feed", "had_backfill", "has_old", "number", "since_ns", "vb", "vbuuid")

    def __init__(
        self,
        vb: VBucket,
        feed: Feed,
        *,
        cursor: int,
        backfill_end: int | None = None,
        since_ns: int = 0,
        takes_over: bool = False,
    ) -> None:
        super().__init__(vb.id, cursor=cursor, backfill_end=backfill_end, takes_over=takes_over)
        self.vb = vb
        self.vbuuid = vb.vbuuid
        """The branch that is sent."""
        self.feed = feed
        self.since_ns = since_ns
        """Old items that were changed before this are left out."""
        self.had_backfill = self.phase is Phase.BACKFILLING
        """Whether it began with old items."""
        self.has_old = False
        """Whether the client of a takeover has acknowledged all old items: before that the vbucket is not stopped."""
        self.awaits_flush = False
        """Whether it is looked at after the next flush."""
        self.number = 0
        """Which stream of its connection it is."""


class Beginnings:
    """Where the streams of one connection begin."""

    def __init__(self, opened: OpenBucket, wish: Wish, now_s: int) -> None:
        self._opened = opened
        self._wish = wish
        self._backfills = wish.backfills(now_s)
        self._since_ns = wish.since_ns(now_s)

    def stream(self, vb: VBucket, reached: Reached | None, *, joins: bool) -> ServedTap:
        """The stream of a vbucket with which the client is so far, or has nothing of it.

        A vbucket that joins a connection later has old items that are new to the client, whatever it asked for.
        """
        wish, opened = self._wish, self._opened
        feed = Feed(opened.bucket, opened.flusher, vb, disk_only=False)
        takes_over = wish.has(TapConnectFlag.TAKEOVER_VBUCKETS)
        start = None if wish.is_dump else self._known(vb, reached, joins=joins)
        if start is None and not joins and not self._backfills:
            start = Reached(vb.vbuuid, vb.whole_seqno, vb.whole_seqno)
        if start is not None:
            stream = ServedTap(vb, feed, cursor=start.seqno, takes_over=takes_over)
            stream.whole_at = max(start.seqno, start.whole_at)
            return stream
        since_ns = 0 if joins else self._since_ns
        return ServedTap(vb, feed, cursor=0, backfill_end=vb.whole_seqno, since_ns=since_ns, takes_over=takes_over)

    def _known(self, vb: VBucket, reached: Reached | None, *, joins: bool) -> Reached | None:
        """How far the client is with a vbucket, where that can be relied on."""
        named = None if joins else self._wish.checkpoints.get(vb.id)
        if named is not None:
            began = checkpoints_of(self._opened, vb).start_of(named)
            reached = None if began is None else Reached(vb.vbuuid, began, began)
        if reached is None or (not reached.seqno and self._backfills):  # who has nothing begins at the beginning
            return None
        history = History(log=vb.failover_log, high_seqno=Seqno(vb.whole_seqno), purge_seqno=Seqno(vb.purge_seqno))
        return reached if goes_on(history, reached) else None
