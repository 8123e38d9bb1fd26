"""The streams of one TAP connection: which vbuckets there are, and how their items and checkpoints go out.

When something is sent, and what acks mean for it, is said in producer.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.history import SEQNO_MAX, State
from headrace.node.dcp.sender import CONVERTED_BYTES
from headrace.node.dcp.turns import Turns
from headrace.node.tap.checkpoints import checkpoints_of
from headrace.node.tap.frames import TapFramer
from headrace.node.tap.messages import message_of
from headrace.node.tap.streams import Beginnings, ServedTap
from headrace.protocol.tap import Cue, Kind, Phase, Reached, Script, Step
from headrace.protocol.tap_acks import OPAQUE_BITS, AckLog
from headrace.store.records import SEQNO_AT, SEQNO_END
from headrace.wire.codes import TapConnectFlag

if TYPE_CHECKING:
    from headrace.node.buckets import OpenBucket
    from headrace.node.dcp.ends import Line
    from headrace.node.tap.registered import Cursors
    from headrace.node.vbucket import VBucket
    from headrace.protocol.tap import Pace, Wish

log = logging.getLogger("headrace.node.tap.sending")


class Sending:
    """What is sent on one connection."""

    def __init__(self, opened: OpenBucket, line: Line, name: str, wish: Wish, pace: Pace) -> None:
        self.name = name
        self.wish = wish
        self.streams: dict[int, ServedTap] = {}
        self.log: AckLog[Cue] = AckLog(
            interval=pace.ack_interval, window=pace.ack_window, acks=wish.has(TapConnectFlag.SUPPORT_ACK)
        )
        self.sent_bytes = self.sent_items = 0
        self._opened = opened
        self._bucket = opened.bucket
        self._line = line
        self._cursors: Cursors | None = None
        """How far the client is, where it is registered."""
        self._beginnings = Beginnings(opened, wish, opened.bucket.clock.seconds)
        self._tells_checkpoints = wish.has(TapConnectFlag.CHECKPOINT)
        self._ends_by_itself = wish.is_dump or wish.has(TapConnectFlag.TAKEOVER_VBUCKETS)
        self._script = Script()
        self._framer = TapFramer(wish, self.log, opened.bucket.hops)
        self._turns: Turns[ServedTap] = Turns(opened.bucket.seqnos)
        self._begun: set[ServedTap] = set()
        """The streams that keep memory or pages of the disk."""
        self._begun_streams = 0
        self._left: dict[int, Reached] = {}
        """How far the client was sent vbuckets whose streams ended, and that may join again."""
        self._seen_revision: int | None = opened.bucket.map_revision

    # ------------------------------------------------------------------------------------------------------ vbuckets

    def _wanted(self) -> list[VBucket]:
        """The vbuckets to send: those that were listed, or all that are served here.

        A node that owns none is a copy of another, kept for old clients: they get what it has.
        """
        listed = self.wish.vbuckets
        there = [self._bucket.vbuckets[vb_id] for vb_id in listed] if listed else self._bucket.vbuckets
        found = [vb for vb in there if vb is not None and vb.state is not State.DEAD]
        if not listed:
            found = [vb for vb in found if vb.state is State.ACTIVE] or found
        # A dump does not mention what never had an item (capture 08c_tap_dump), nor what it will not send.
        return [vb for vb in found if vb.high_seqno] if self.wish.is_dump else found

    def _join(self, vbs: list[VBucket], *, joins: bool) -> None:
        backfilled = []
        takes_over = self.wish.has(TapConnectFlag.TAKEOVER_VBUCKETS)
        for vb in vbs:
            stream = self._beginnings.stream(vb, self._cursor_of(vb), joins=joins)
            if self.wish.is_dump and stream.phase is Phase.STREAMING:
                continue  # later changes alone, of which a dump has none
            self._begun_streams += 1
            stream.number = self._begun_streams
            self.streams[vb.id] = stream
            self._keep(stream, stream.cursor)
            if stream.phase is Phase.BACKFILLING:
                backfilled.append(vb.id)
            else:
                self._turns.put(stream)
        self._script.backfill(backfilled, pending=[vb.id for vb in vbs] if takes_over else ())

    def _cursor_of(self, vb: VBucket) -> Reached | None:
        left = self._left.pop(vb.id, None)
        return self._cursors.get(vb.id) if left is None and self._cursors is not None else left

    def _keep(self, stream: ServedTap, seqno: int) -> None:
        """Remember for a registered client how far it is."""
        if self._cursors is not None:
            self._cursors.put(stream.vbucket, Reached(stream.vbuuid, min(seqno, stream.cursor), stream.whole_at))

    def _look_at_vbuckets(self) -> None:
        """Let vbuckets join that are served since a while ago."""
        if self._seen_revision == self._bucket.map_revision or self._ends_by_itself:
            return
        self._seen_revision = self._bucket.map_revision
        new = [vb for vb in self._wanted() if vb.id not in self.streams]
        if new:
            self._join(new, joins=True)

    def _begin_anew(self, stream: ServedTap) -> int:
        """Deletions behind the cursor were purged: only with all items again does the client have what is there.

        Not while the vbucket is stopped for it: it is served here again, and the client may ask once more.
        """
        if stream.holds_vbucket:
            self._line.leave(f"deletions of vbucket {stream.vbucket} were purged that the client does not have")
            return 0
        log.info("a TAP client is sent a vbucket anew", extra={"connection": self.name, "vbucket": stream.vbucket})
        self._forget(stream)
        self._join([stream.vb], joins=True)
        return 1

    def _forget(self, stream: ServedTap) -> None:
        self.streams.pop(stream.vbucket, None)
        self._script.drop(stream.vbucket)
        self._turns.forget(stream)
        self._let_go(stream)
        if stream.phase is not Phase.ENDED:
            stream.step(Step.END)

    def _let_go(self, stream: ServedTap) -> None:
        """Keep nothing that was read."""
        stream.feed.close()
        stream.abandon()
        self._begun.discard(stream)

    # --------------------------------------------------------------------------------------------------------- items

    def _send_items(self, stream: ServedTap, cue: Cue, budget: int, *, may_read_disk: bool) -> int:
        """Send some items of a vbucket; gives what that took, and 0 when there are none now."""
        feed = stream.feed
        if not stream.in_snapshot:
            opened = feed.open(stream.cursor, may_read_disk=may_read_disk)
            if feed.has_gap:
                return self._begin_anew(stream)
            if opened is None:
                return 0
            stream.begin(opened[0])
            self._begun.add(stream)
        if not feed.fill(budget):
            stream.finish_snapshot()
            self._let_go(stream)
            return 1
        seqno_max: int = SEQNO_MAX
        if self._tells_checkpoints and stream.phase is not Phase.BACKFILLING:
            cost = self._tell_checkpoint(stream, _next_seqno(feed.block, feed.at))
            if cost:
                return cost
            seqno_max = self._checkpoint_end(stream)
        return self._send_block(stream, cue, budget, seqno_max)

    def _send_block(self, stream: ServedTap, cue: Cue, budget: int, seqno_max: int) -> int:
        feed = stream.feed
        since_ns = stream.since_ns if stream.phase is Phase.BACKFILLING else 0
        high_seqno = stream.vb.whole_seqno
        taken = self._framer.take(
            feed.block, feed.at, budget, seqno_max=seqno_max, high_seqno=high_seqno, since_ns=since_ns
        )
        assert taken.looked, "there is room, and a record that may be sent"
        feed.advance(taken.at)
        stream.sent(taken.last_seqno)
        if taken.seqnos:
            self.log.sent(cue._replace(stream=stream.number), taken.seqnos, asked=taken.asked)
            self.sent_items += len(taken.seqnos)
            self._send(b"".join(taken.pieces))
        if not self.log.acks:
            self._keep(stream, stream.cursor)
        if not stream.in_snapshot:
            self._let_go(stream)
        return taken.size + CONVERTED_BYTES * taken.looked

    def _tell(self, cue: Cue) -> int:
        """Send a message that is no item."""
        block = message_of(cue, self.log.last + 1 & OPAQUE_BITS, acks=self.log.acks)
        stream = self.streams.get(cue.vbucket)
        self.log.sent(cue if stream is None else cue._replace(stream=stream.number), asked=0)
        return self._send(block)

    def _send(self, block: bytes) -> int:
        self.sent_bytes += len(block)
        self._line.send(block)
        return len(block)

    # --------------------------------------------------------------------------------------------------- checkpoints

    def _tell_checkpoint(self, stream: ServedTap, next_seqno: int | None) -> int:
        """Tell that another checkpoint begins with the next change, or that one has begun which has none yet."""
        table = checkpoints_of(self._opened, stream.vb)
        wanted = table.open if next_seqno is None else table.holding(next_seqno)
        told = stream.checkpoint
        if wanted is None or wanted == told:
            return 0
        if told is None:
            stream.checkpoint = wanted
            return self._tell(Cue(Kind.CHECKPOINT_START, stream.vbucket, wanted))
        stream.checkpoint = None
        return self._tell(Cue(Kind.CHECKPOINT_END, stream.vbucket, told))

    def _checkpoint_end(self, stream: ServedTap) -> int:
        if stream.checkpoint is None:
            return SEQNO_MAX
        end = checkpoints_of(self._opened, stream.vb).end_of(stream.checkpoint)
        return SEQNO_MAX if end is None else end

    def checkpointed(self, vb_id: int) -> None:
        """A vbucket has another open checkpoint."""
        stream = self.streams.get(vb_id)
        if self._tells_checkpoints and stream is not None and stream.sends:
            self._turns.put(stream)
            self._line.wake()


def _next_seqno(block: bytes | bytearray | memoryview, at: int) -> int:
    return int.from_bytes(block[at + SEQNO_AT : at + SEQNO_END], "big")
