"""A connection that sends by TAP: the rules of `protocol` joined to the changes of a bucket.

Nothing is sent beyond the window of acks, nor beyond what the line takes, and what is read to be sent is let go when
the client does not go on reading: what a connection costs is its cursors and what waits in its socket, however much
there is to send.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.history import Cause, State
from headrace.node.dcp.sender import BACKFILLS_MAX, PUMP_BYTES, STARVED_S
from headrace.node.dcp.trouble import Trouble
from headrace.node.tap.sending import Sending
from headrace.protocol.tap import Cue, Kind, Pace, Phase, Reached, Step
from headrace.store import StoreError
from headrace.wire import Response, encode
from headrace.wire.catalogue import Noop
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from headrace.history import Transition
    from headrace.node.buckets import OpenBucket
    from headrace.node.dcp.ends import Line
    from headrace.node.tap.registered import Cursors
    from headrace.node.tap.streams import ServedTap
    from headrace.node.vbucket import VBucket
    from headrace.protocol.tap import Wish
    from headrace.protocol.tap_acks import Part
    from headrace.wire import Message

log = logging.getLogger("headrace.node.tap.producer")

RELEASE_S = 2.0
"""How long a client may leave alone what was begun: then memory and pages of the disk that are kept for it are let go.

It costs nothing but to look for the place again: TAP has no snapshots that would have to be whole.
"""
_TAP_OPCODES = frozenset(range(0x41, 0x48))
_TEMPORARY = frozenset({Status.OUT_OF_MEMORY, Status.BUSY, Status.TEMPORARY_FAILURE})
_TURN_BYTES = 1 << 20


class TapProducer(Sending):
    """The sending end of one TAP connection."""

    is_producer = True

    def __init__(  # noqa: PLR0913 - what a connection is made of
        self,
        opened: OpenBucket,
        line: Line,
        name: str,
        wish: Wish,
        *,
        pace: Pace,
        cursors: Cursors | None,
        now: float,
    ) -> None:
        super().__init__(opened, line, name, wish, pace)
        self.refusals = 0
        self.trouble: Trouble | None = None
        """What keeps the connection from running as it should, where a test has asked for it."""
        self._pace = pace
        self._cursors = cursors
        self._flush_due = False
        self._closed = self._is_over = False
        self._disk_readers = 0
        self._spoke_at = self._heard_at = now
        self._paused_until: float | None = None
        self._starved_until: float | None = None
        self._stuck_since: float | None = None
        self._begin()

    def _begin(self) -> None:
        """Write the script of the connection."""
        kinds = [Kind.ACKS] if self.log.acks else []
        self._script.begin(*kinds, *([Kind.CHECKPOINTS] if self._tells_checkpoints else []))
        self._join(self._wanted(), joins=False)
        self._bucket.change_watchers.add(self._line.wake)
        self._bucket.state_watchers.append(self._state_changed)
        self._line.wake()

    # ------------------------------------------------------------------------------------------------------ vbuckets

    def _state_changed(self, vb: VBucket, transition: Transition) -> None:
        """A vbucket is in another state, or was rolled back, or is gone: its stream ends, and may begin anew."""
        stream = self.streams.get(vb.id)
        if stream is None or not transition.ends_streams:
            return
        is_there = self._bucket.vbuckets[vb.id] is vb
        if stream.phase is Phase.STOPPING and vb.state is State.DEAD and is_there:
            return
        if self._ends_by_itself:  # and cannot come to its end any more
            self._line.leave(f"vbucket {vb.id} is {vb.state.name.lower()} here now")
        self._left[vb.id] = Reached(stream.vbuuid, stream.cursor, stream.whole_at)
        self._forget(stream)
        self._seen_revision = None
        self._line.wake()

    # ---------------------------------------------------------------------------------------------------------- acks

    def receive(self, message: Message, now: float) -> None:
        """Take an ack. Its key and body mean nothing (errata; spymemcached sends 36 bytes), nor do answers to noops."""
        if not isinstance(message, Response):
            self._line.leave(f"{message.spec.name} is not for a TAP connection")
        elif message.opcode in _TAP_OPCODES and self.log.acks:
            self._heard_at = now
            self._answered(message, now)
            self._line.wake()

    def _answered(self, response: Response, now: float) -> None:
        if response.status == Status.SUCCESS:
            self._arrived(self.log.acked(response.opaque) or [])
            self._go_on_with_takeover()
            return
        refused = self.log.refused(response.opaque)
        if refused is None:
            return
        self.refusals += 1
        self._arrived(refused[0])
        if response.status in _TEMPORARY:
            self._send_again(refused[1])
            self._paused_until = now + self._pace.pause_s
            return
        first = refused[1][0].what
        stream = self.streams.get(first.vbucket)
        if first.kind is Kind.ACTIVE and stream is not None:
            stream.step(Step.PUT_OFF)  # it says itself that it is not active: the vbucket is served here again
        self._line.leave(f"the client refused {first.kind} with status 0x{response.status:02x}")

    def _arrived(self, parts: list[Part[Cue]]) -> None:
        for cue, _, last in parts:
            stream = self.streams.get(cue.vbucket)
            if stream is None or cue.stream != stream.number:  # what an earlier stream sent says nothing of this one
                continue
            if cue.kind is Kind.ITEMS:
                self._keep(stream, last)
            elif cue.kind is Kind.CLOSE:
                self._keep(stream, cue.number)
                stream.has_old = True
            elif cue.kind is Kind.PENDING:
                stream.has_old = not stream.had_backfill
            elif cue.kind is Kind.ACTIVE and stream.phase is Phase.HANDED:
                stream.step(Step.ACCEPTED)
                self._forget(stream)

    def _send_again(self, parts: list[Part[Cue]]) -> None:
        """Go back to the first of what the client could not take."""
        places = [part.what.place for part in parts if part.what.place >= 0]
        if places:
            self._script.go_back(min(places))
        for cue, first, _ in reversed(parts):  # the first of each vbucket is the one that stays
            stream = self.streams.get(cue.vbucket)
            if cue.kind is Kind.FLUSH:
                self._flush_due = True
            elif stream is not None:
                self._go_back(stream, cue, first)
            elif cue.kind is Kind.ITEMS and (left := self._left.get(cue.vbucket)) is not None:
                self._left[cue.vbucket] = left._replace(seqno=min(left.seqno, first - 1))

    def _go_back(self, stream: ServedTap, cue: Cue, seqno: int) -> None:
        if cue.kind is Kind.ITEMS:
            self._let_go(stream)
            stream.rewind(seqno - 1)
        elif cue.kind is Kind.CHECKPOINT_START:
            stream.checkpoint = None
        elif cue.kind is Kind.CHECKPOINT_END:
            stream.checkpoint = cue.number
        elif cue.kind is Kind.ACTIVE:
            stream.step(Step.PUT_OFF)
        if stream.sends:
            self._turns.put(stream)

    # ------------------------------------------------------------------------------------------------------- to send

    @property
    def deadline(self) -> float | None:
        """When there is something to do though nothing has changed."""
        if self._closed or self._is_over:
            return None
        wanted = (
            self._spoke_at + self._pace.noop_s,
            self._heard_at + self._pace.ack_grace_s if self.log.awaits_ack else None,
            self._paused_until,
            self._starved_until,
            None if self._stuck_since is None else self._stuck_since + RELEASE_S,
        )
        due = min(one for one in wanted if one is not None)
        return due if self.trouble is None else self.trouble.deadline(due)

    def pump(self, now: float) -> bool:
        """Send what may be sent now; True when there is more, and others are to have a turn first."""
        if self._closed or self._is_over or (self.trouble is not None and not self.trouble.advance(now)):
            return False
        if self.log.awaits_ack and now >= self._heard_at + self._pace.ack_grace_s:
            self._line.leave("the client did not acknowledge what it was sent")
            return False
        self._look_at_vbuckets()
        awaited, room = self.log.awaits_ack, min(self._line.room_bytes(), PUMP_BYTES)
        sent_before, left = self.sent_bytes, room
        if self._paused_until is None or now >= self._paused_until:
            self._paused_until = None
            left = self._send_some(room, now)
        if self.log.awaits_ack and not awaited:
            self._heard_at = now
        self._look_at_progress(now, moved=left < room)
        self._finish_or_live(now, spoke=self.sent_bytes > sent_before)
        return left <= 0 < min(self._line.room_bytes(), self.log.room) and not self._is_over

    def _send_some(self, room: int, now: float) -> int:
        """Send as much as there is room for; gives how much room is left, which is more than 0 when nothing more is."""
        for vb_id in self._turns.changed():
            self._turns.put(self.streams[vb_id])
        self._disk_readers = self._turns.disk_readers
        self._starved_until = None
        while room > 0 and self.log.room > 0 and not self._closed:
            cost = self._next(min(room, _TURN_BYTES), now)
            if not cost:
                break
            room -= cost
        return room

    def _look_at_progress(self, now: float, *, moved: bool) -> None:
        """Let go of what was begun when the client has left it alone for a while."""
        if moved or not self._begun:
            self._stuck_since = now if self._begun else None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now >= self._stuck_since + RELEASE_S:
            for stream in tuple(self._begun):
                self._let_go(stream)
            self._stuck_since = None

    def _finish_or_live(self, now: float, *, spoke: bool) -> None:
        """End a connection that has come to its end, or give a sign of life where there was none for long."""
        is_done = self._script.now is None and not self.log.unacked
        if is_done and (self.wish.is_dump or (self._ends_by_itself and not self.streams)):
            self._is_over = True
            self._line.finish("everything that was asked for was sent")
        elif spoke:
            self._spoke_at = now
        elif now >= self._spoke_at + self._pace.noop_s:
            self._spoke_at = now
            if self._line.room_bytes() > 0:
                self._line.send(encode(Noop()))

    def _next(self, budget: int, now: float) -> int:
        """Send the next thing; gives what that took, in bytes, and 0 when there is nothing to send now."""
        if self._flush_due:
            self._flush_due = False
            return self._tell(Cue(Kind.FLUSH))
        cue = self._script.now
        try:
            if cue is not None:
                return self._play(cue, budget, now)
            if not self.log.unacked:
                self._script.forget()
            return 0 if self.wish.is_dump else self._serve_next(budget, now)
        except StoreError as error:
            log.exception("a TAP stream cannot be read from disk", extra={"connection": self.name, "why": str(error)})
            self._line.leave("the disk cannot be read")
            return 0

    def _play(self, cue: Cue, budget: int, now: float) -> int:
        """Send a line of the script."""
        if cue.kind is Kind.ITEMS:
            return self._play_items(cue, budget, now)
        self._script.done()
        if cue.kind is Kind.CLOSE:
            stream = self.streams[cue.vbucket]
            stream.step(Step.BACKFILLED)
            if stream.sends:
                self._turns.put(stream)
            cue = cue._replace(number=stream.cursor)
        return self._tell(cue)

    def _play_items(self, cue: Cue, budget: int, now: float) -> int:
        stream = self.streams[cue.vbucket]
        cost = 0 if stream.is_backfilled else self._send_items(stream, cue, budget, may_read_disk=True)
        if cost:
            return cost
        if stream.is_backfilled or stream.vb.whole_seqno <= stream.cursor:
            self._script.done()
            return 1
        self._await_disk(stream, now)
        return 0

    def _serve_next(self, budget: int, now: float) -> int:
        """Send later changes of the vbucket whose turn it is."""
        turns = self._turns
        while True:
            may_begin = self._disk_readers < BACKFILLS_MAX
            stream = turns.take(disk_has_room=may_begin)
            if stream is None:
                return 0
            reads = stream.feed.reads_disk
            cost = self._serve(stream, budget, may_read_disk=reads or may_begin)
            self._disk_readers += stream.feed.reads_disk - reads
            if cost:
                if self.streams.get(stream.vbucket) is stream:
                    turns.put(stream)
                return cost
            if not (reads or may_begin) and stream.vb.persisted_seqno > stream.cursor:
                turns.wait_for_disk(stream)
            else:
                turns.rest(stream)
                self._await_disk(stream, now)

    def _serve(self, stream: ServedTap, budget: int, *, may_read_disk: bool) -> int:
        """Send some changes of a vbucket, or take the next step of a takeover."""
        if not stream.sends:
            return 0
        if (stream.has_old or not self.log.acks) and stream.may_stop(stream.vb.whole_seqno - stream.cursor):
            self._stop(stream)
            return 1
        cost = self._send_items(stream, Cue(Kind.ITEMS, stream.vbucket), budget, may_read_disk=may_read_disk)
        if cost or stream.vb.whole_seqno > stream.cursor:
            return cost
        if self._tells_checkpoints and (cost := self._tell_checkpoint(stream, None)):
            return cost
        return self._hand_over(stream) if stream.phase is Phase.DRAINING else 0

    def _await_disk(self, stream: ServedTap, now: float) -> None:
        """Look again at a stream that had nothing to send, though there is something, when the disk has it."""
        if stream.feed.is_starved:
            self._starved_until = now + STARVED_S
        if stream.feed.awaits_disk and not stream.awaits_flush:
            stream.awaits_flush = True
            self._opened.flusher.after.append(lambda: self._look_again(stream))

    def _look_again(self, stream: ServedTap) -> None:
        stream.awaits_flush = False
        if not self._closed and self.streams.get(stream.vbucket) is stream:
            if stream.sends:
                self._turns.put(stream)
            self._line.wake()

    # ------------------------------------------------------------------------------------------------------ takeover

    def _stop(self, stream: ServedTap) -> None:
        """Serve a vbucket no more, so that there is an end of its changes, and go on when the disk knows that."""
        stream.step(Step.STOP)
        self._bucket.set_state(stream.vb, State.DEAD, Cause.TAKEOVER)
        self._await_dead(stream)

    def _await_dead(self, stream: ServedTap) -> None:
        def look() -> None:
            if self._closed or stream.phase is not Phase.STOPPING:
                return
            if stream.vb.state_on_disk is State.DEAD:
                stream.step(Step.DEAD_ON_DISK)
                self._turns.put(stream)
                self._line.wake()
            else:
                self._await_dead(stream)

        self._opened.flusher.after.append(look)
        self._opened.flusher.hurry()

    def _go_on_with_takeover(self) -> None:
        """Look again at what had to wait for acks."""
        if self._ends_by_itself:
            for stream in self.streams.values():
                if stream.takes_over and stream.sends:
                    self._turns.put(stream)

    def _hand_over(self, stream: ServedTap) -> int:
        """Tell the client to be active, when it has acknowledged the rest; without acks it is taken at no word."""
        if self.log.unacked:
            return 0
        stream.step(Step.HAND_OVER)
        cost = self._tell(Cue(Kind.ACTIVE, stream.vbucket))
        if not self.log.acks:
            stream.step(Step.ACCEPTED)
            self._forget(stream)
        return cost

    # -------------------------------------------------------------------------------------------------------- to end

    def flushed(self, vbuckets: Collection[int]) -> None:
        """All items of some vbuckets are being removed; the deletions follow in any case.

        The message is for a whole bucket: who sees only a part of it, or something that stays, is sent none.
        """
        stays = any(one.vb.live_items and one.vbucket not in vbuckets for one in self.streams.values())
        if not self.wish.vbuckets and not self._ends_by_itself and not stays:
            self._flush_due = True
            self._line.wake()

    def make_trouble(self) -> Trouble:
        """Put trouble between this end and its line; it does nothing before it is told to."""
        if self.trouble is None:
            self.trouble = self._line = Trouble(self._line)
        return self.trouble

    def close(self) -> None:
        """The connection is gone. A vbucket that nobody was told to serve is served here again."""
        if self._closed:
            return
        self._closed = True
        self._bucket.change_watchers.discard(self._line.wake)
        self._bucket.state_watchers.remove(self._state_changed)
        for stream in list(self.streams.values()):
            held, vb = stream.holds_vbucket, stream.vb
            self._forget(stream)
            if held and vb.state is State.DEAD and self._bucket.vbuckets[vb.id] is vb:
                self._bucket.set_state(vb, State.ACTIVE, Cause.TAKEOVER)

    def stats(self) -> Iterator[tuple[str, object]]:
        """What the stats of the connection tell."""
        backlog = sum(max(0, one.vb.whole_seqno - one.cursor) for one in self.streams.values())
        yield "type", "producer"
        yield "connected", "true"
        yield "flags", f"0x{int(self.wish.flags):x}"
        yield "supports_ack", str(self.log.acks).lower()
        yield "registered", str(self._cursors is not None).lower()
        yield "vb_filters", len(self.wish.vbuckets)
        yield "total_backlog_size", backlog
        yield "backfill_completed", str(self._script.now is None).lower()
        yield "ack_log_size", self.log.unacked
        yield "ack_window_full", str(self.log.room <= 0).lower()
        yield "ack_seqno", self.log.last
        yield "num_nack", self.refusals
        yield "total_bytes_sent", self.sent_bytes
        yield "total_items_sent", self.sent_items
        yield "suspended", str(self._paused_until is not None).lower()
