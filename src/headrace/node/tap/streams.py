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
from headrace.protocol.tap import TapStream, goes_on
from headrace.wire.codes import TapConnectFlag

if TYPE_CHECKING:
    from headrace.node.buckets import OpenBucket
    from headrace.node.vbucket import VBucket
    from headrace.protocol.tap import Wish


class ServedTap(TapStream):
    """A stream and what it reads from."""

    __slots__ = ("awaits_flush", "feed", "has_old", "since_ns", "vb", "vbuuid")

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
        self.has_old = False
        """Whether the client of a takeover has acknowledged all old items: before that the vbucket is not stopped."""
        self.awaits_flush = False
        """Whether it is looked at after the next flush."""


class Beginnings:
    """Where the streams of one connection begin."""

    def __init__(self, opened: OpenBucket, wish: Wish, now_s: int) -> None:
        self._opened = opened
        self._wish = wish
        self._backfills = wish.backfills(now_s)
        self._since_ns = wish.since_ns(now_s)

    def stream(self, vb: VBucket, cursor: tuple[int, int] | None, *, joins: bool) -> ServedTap:
        """The stream of a vbucket of which the client has a branch up to a seqno, or nothing.

        A vbucket that joins a connection later has old items that are new to the client, whatever it asked for.
        """
        wish, opened = self._wish, self._opened
        feed = Feed(opened.bucket, opened.flusher, vb, disk_only=False)
        takes_over = wish.has(TapConnectFlag.TAKEOVER_VBUCKETS)
        start = None if wish.is_dump else self._known(vb, cursor, joins=joins)
        if start is None and not joins and not self._backfills:
            start = vb.whole_seqno
        if start is not None:
            return ServedTap(vb, feed, cursor=start, takes_over=takes_over)
        since_ns = 0 if joins else self._since_ns
        return ServedTap(vb, feed, cursor=0, backfill_end=vb.whole_seqno, since_ns=since_ns, takes_over=takes_over)

    def _known(self, vb: VBucket, cursor: tuple[int, int] | None, *, joins: bool) -> int | None:
        """The seqno up to which the client has a vbucket, where that can be relied on."""
        named = None if joins else self._wish.checkpoints.get(vb.id)
        if named is not None:
            began = checkpoints_of(self._opened, vb).start_of(named)
            cursor = None if began is None else (vb.vbuuid, began)
        if cursor is None or (not cursor[1] and self._backfills):  # who has nothing begins at the beginning
            return None
        history = History(log=vb.failover_log, high_seqno=Seqno(vb.whole_seqno), purge_seqno=Seqno(vb.purge_seqno))
        return cursor[1] if goes_on(history, *cursor) else None
