"""What every producing end does: streams that take turns, each snapshot by snapshot, and that change hands or end.

`Producer` speaks DCP and UPR, `DraftProducer` the UPR draft. They read other messages and write them otherwise; what a
stream is, how far it may go and what it reads from is the same, and stands here.

Nothing is sent beyond the window that the consumer set, nor beyond what the line takes; so what waits here is one block
a stream, however much there is to stream.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.history import Cause, History, State
from headrace.ids import Seqno
from headrace.node import replies
from headrace.node.dcp.feed import Feed
from headrace.node.dcp.frames import Framer, Shape
from headrace.node.dcp.trouble import Trouble
from headrace.node.dcp.turns import ServedStream, Turns
from headrace.node.refused import Refused
from headrace.node.users import Role
from headrace.protocol.flow import Window
from headrace.protocol.requests import Declined, Offer, judge
from headrace.protocol.stream import Phase, Step
from headrace.store import StoreError
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import DcpFlush, Rollback
from headrace.wire.codes import Status, StreamEndReason, StreamFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.history import Transition
    from headrace.ids import VBucketId
    from headrace.node.buckets import OpenBucket
    from headrace.node.dcp.ends import Line
    from headrace.node.vbucket import VBucket
    from headrace.wire import Message, Request, Response
    from headrace.wire.catalogue import StreamRequest

log = logging.getLogger("headrace.node.dcp.sender")

TURN_BYTES = {"low": 64 << 10, "medium": 1280 << 10, "high": 1280 << 10}
"""What a stream sends before it is the turn of others, by the priority of its connection."""
PUMP_BYTES = 2560 << 10
"""What a connection sends, or reads to send less of it, before it is the turn of other connections."""
IDLE_S_MAX = 600.0
"""How long a consumer may leave the middle of a snapshot alone: until then memory, or pages of the disk, are kept."""
STARVED_S = 0.1
"""When a stream looks again whether it may read from disk."""
CONVERTED_BYTES = 1024
"""What a frame that is made anew counts as, beside its bytes: it takes about as long as to copy so many."""
BACKFILLS_MAX = 8
"""How many streams of a connection read from disk at a time: each keeps a read transaction open."""


class Sender:
    """The producing end of one connection, whatever it speaks."""

    is_producer = True

    def __init__(self, opened: OpenBucket, line: Line, name: str, dialect: Dialect, *, may_take_over: bool) -> None:
        self.name = name
        self.dialect = dialect
        self.window = Window()
        self.streams: dict[int, ServedStream] = {}
        self.sent_bytes = 0
        self._bucket = opened.bucket
        self._flusher = opened.flusher
        self._line = line
        self._may_take_over = may_take_over
        self._priority = "medium"
        self._is_notifier = False
        """Whether streams tell only that there is something new."""
        self._framer = Framer(self._shape())
        self._turns: Turns[ServedStream] = Turns(self._bucket.seqnos)
        self._closed = False
        self._moved_at: float | None = None
        """When something was last sent, while a stream is in the middle of a snapshot."""
        self._starved_until: float | None = None
        """When streams look again whether the disk has room for them."""
        self.trouble: Trouble | None = None
        """What keeps the connection from running as it should, where a test has asked for it."""
        self._bucket.change_watchers.add(line.wake)
        self._bucket.state_watchers.append(self._state_changed)

    # ------------------------------------------------------------------------------------------- what a dialect decides

    def receive(self, message: Message, now: float) -> None:
        """Take a request or an answer of the consumer."""
        raise NotImplementedError

    def _shape(self) -> Shape:
        """What items look like."""
        raise NotImplementedError

    def _accept(self, request: StreamRequest, vb: VBucket) -> None:
        """Say that a stream begins."""
        raise NotImplementedError

    def _begin_snapshot(self, stream: ServedStream, end: int, *, disk: bool) -> int:
        """Say that a snapshot begins, whose last change is at `end`; gives what was sent."""
        raise NotImplementedError

    def _snapshot_sent(self, stream: ServedStream) -> int:
        """All of a snapshot was sent, and its feed is closed; gives what is said of it."""
        del stream
        return 0

    def _reason(self, reason: int) -> int:
        """How the reason of an end is written."""
        return reason

    def _ask_for_life(self, now: float) -> None:
        """Ask an idle consumer whether it is there, where that can be asked."""

    def _asks_at(self) -> float | None:
        """When that is due."""
        return None

    # -------------------------------------------------------------------------------------------------------- requests

    def _reply(self, request: Request, reply: type[Response], **fields: object) -> None:
        answer = reply(opcode=self._opcode(request), opaque=request.opaque, **fields)  # type: ignore[arg-type]
        self._line.send(encode(answer))

    def _refuse(self, request: Request, status: Status, text: str) -> None:
        self._line.send(replies.error(self._opcode(request), request.opaque, Refused(status, text)))

    def _opcode(self, request: Request) -> int:
        opcodes = request.spec.opcodes
        return opcodes[self.dialect if self.dialect in opcodes else Dialect.DCP]

    def _open_stream(self, request: StreamRequest) -> ServedStream | None:
        """Open a stream, or say why not."""
        if not self._may_take_over and StreamFlag.TAKEOVER in StreamFlag(request.flags):
            self._refuse(request, Status.NO_ACCESS, f"a takeover takes the role {Role.ADMIN}")
            return None
        vb = self._bucket.vbuckets[request.vbucket] if request.vbucket < len(self._bucket.vbuckets) else None
        verdict = judge(request, self._offer(vb))
        if isinstance(verdict, Declined):
            self._decline(request, verdict)
            return None
        assert vb is not None
        self._accept(request, vb)
        feed = Feed(
            self._bucket,
            self._flusher,
            vb,
            disk_only=StreamFlag.DISK_ONLY in verdict.flags,
            ignores_purge=StreamFlag.IGNORE_PURGED_TOMBSTONES in verdict.flags,
        )
        stream = ServedStream(vb, request.opaque, verdict, feed)
        self.streams[vb.id] = stream
        self._make_ready(stream)
        return stream

    def _offer(self, vb: VBucket | None) -> Offer:
        if vb is None:
            return Offer(history=None)
        history = History(log=vb.failover_log, high_seqno=Seqno(vb.whole_seqno), purge_seqno=Seqno(vb.purge_seqno))
        return Offer(
            history=history,
            state=vb.state,
            persisted_seqno=Seqno(vb.persisted_seqno),
            has_stream=vb.id in self.streams,
        )

    def _decline(self, request: StreamRequest, verdict: Declined) -> None:
        log.info(
            "a stream was not begun",
            extra={"peer": self._line.peer, "vbucket": request.vbucket, "why": verdict.because},
        )
        if verdict.rollback_to is not None:
            self._reply(request, Rollback, status=Status.ROLLBACK, seqno=verdict.rollback_to)
        else:
            self._refuse(request, verdict.status, verdict.text)

    def _accepted(self, stream: ServedStream) -> None:
        """The consumer has taken a step of a takeover."""
        stream.step(Step.ACCEPTED)
        if stream.phase is Phase.ENDED:
            self._end(stream, StreamEndReason.OK)
            return
        self._bucket.set_state(stream.vb, State.DEAD, Cause.TAKEOVER)
        self._await_disk(stream)

    def _await_disk(self, stream: ServedStream) -> None:
        """Go on when the disk knows that the vbucket is dead."""

        def look() -> None:
            if self._closed or stream.phase is not Phase.STOPPING:
                return
            if stream.vb.state_on_disk is State.DEAD:
                stream.step(Step.DEAD_ON_DISK)
                self._make_ready(stream)
            else:
                self._await_disk(stream)

        self._flusher.after.append(look)
        self._flusher.hurry()

    # --------------------------------------------------------------------------------------------------------- to send

    @property
    def deadline(self) -> float | None:
        """When there is something to do though nothing has changed."""
        idle_at = None if self._moved_at is None else self._moved_at + IDLE_S_MAX
        wanted = (self._asks_at(), idle_at, self._starved_until)
        due = min((one for one in wanted if one is not None), default=None)
        return due if self.trouble is None else self.trouble.deadline(due)

    def pump(self, now: float) -> bool:
        """Send what may be sent now; True when there is more, and others are to have a turn first."""
        if self.trouble is not None and not self.trouble.advance(now):
            return False
        self._ask_for_life(now)
        turns = self._turns
        for vb_id in turns.changed():
            turns.put(self.streams[vb_id])
        turn = TURN_BYTES[self._priority]
        room = pump_room = min(self._line.room_bytes(), PUMP_BYTES)
        backfills = turns.disk_readers
        self._starved_until = None
        while room > 0 and self.window.room > 0 and not self._closed:
            may_begin = backfills < BACKFILLS_MAX
            stream = turns.take(disk_has_room=may_begin)
            if stream is None:
                break
            reads = stream.feed.reads_disk
            # A whole turn or none: to cut one to the room that is left would make two of it. A line that a test has
            # slowed is not to be overrun.
            budget = turn if self.trouble is None else min(turn, room)
            try:
                sent = self._serve(stream, budget, may_read_disk=reads or may_begin)
            except StoreError as error:
                log.exception("a stream cannot be read from disk", extra={"vbucket": stream.vbucket, "why": str(error)})
                self._end(stream, StreamEndReason.BACKFILL_FAILED)
                continue
            backfills += stream.feed.reads_disk - reads
            room -= sent
            if sent and stream.vbucket in self.streams:
                turns.put(stream)
            elif stream.sends:
                self._rest(stream, now, might_read=reads or may_begin)
        self._look_at_progress(now, moved=room < pump_room)
        return bool(turns) and self.window.room > 0 and self._line.room_bytes() > 0 and not self._closed

    def _rest(self, stream: ServedStream, now: float, *, might_read: bool) -> None:
        """A stream that had nothing to send waits for a change, or for its turn at the disk."""
        if stream.feed.is_starved:
            self._starved_until = now + STARVED_S
        elif not might_read and stream.vb.persisted_seqno > stream.cursor:
            self._turns.wait_for_disk(stream)
            return
        self._turns.rest(stream)
        if stream.feed.awaits_disk and not stream.awaits_flush:
            stream.awaits_flush = True
            self._flusher.after.append(lambda: self._look_again(stream))

    def _look_at_progress(self, now: float, *, moved: bool) -> None:
        """End what a consumer has begun and left alone: it may ask again, from where it is."""
        if moved or self._moved_at is None:
            self._moved_at = now if any(self._turns.begun()) else None
        elif now >= self._moved_at + IDLE_S_MAX:
            for stream in list(self._turns.begun()):
                self._end(stream, StreamEndReason.TOO_SLOW)
            self._moved_at = None

    def _look_again(self, stream: ServedStream) -> None:
        stream.awaits_flush = False
        if not self._closed and stream.phase is not Phase.ENDED:
            self._make_ready(stream)

    def _serve(self, stream: ServedStream, budget: int, *, may_read_disk: bool) -> int:
        """Send some of a stream; gives what that took, in bytes, and 0 when there is nothing to send now."""
        if not stream.sends:
            return 0
        sent = 0 if stream.in_snapshot else self._go_on(stream, may_read_disk=may_read_disk)
        if not stream.in_snapshot or self.window.room <= 0:
            return sent
        if not stream.feed.fill(min(budget, self.window.room)):
            stream.feed.close()
            stream.finish_snapshot()
            return max(sent + self._snapshot_sent(stream), 1)
        pieces, size, at = self._framer.take(
            stream.feed.block, stream.feed.at, min(budget, self.window.room), stream.opaque
        )
        read = stream.feed.advance(at)
        stream.sent(self._framer.last_seqno)
        self._send(b"".join(pieces) if len(pieces) > 1 else pieces[0])
        if stream.cursor >= stream.snapshot_end:
            stream.feed.close()  # a read transaction is not kept, nor asked again for the next snapshot
            sent += self._snapshot_sent(stream)
            if stream.is_done and self.window.room > 0:
                sent += self._end(stream, StreamEndReason.OK)
        return sent + max(size, read) + CONVERTED_BYTES * self._framer.converted

    def _go_on(self, stream: ServedStream, *, may_read_disk: bool) -> int:
        """Between two snapshots: begin the next one, end the stream, or take the next step of a takeover."""
        if stream.is_done:
            return self._end(stream, StreamEndReason.OK)
        if self._is_notifier:
            return self._notify(stream)
        if stream.may_offer:
            return self._send(encode(stream.hand_over(), self.dialect)) if stream.may_hand_over else 0
        opened = stream.feed.open(stream.cursor, may_read_disk=may_read_disk)
        if stream.feed.has_gap:  # asked again from where it is, the consumer is told how far to go back
            return self._end(stream, StreamEndReason.ROLLBACK)
        if opened is None:
            return self._caught_up(stream)
        end, disk = opened
        return self._begin_snapshot(stream, end, disk=disk)

    def _caught_up(self, stream: ServedStream) -> int:
        """Everything is sent: go on with a takeover, where this is one."""
        if stream.vb.whole_seqno > stream.cursor or not stream.may_hand_over:
            return 0
        return self._send(encode(stream.hand_over(), self.dialect))

    def _notify(self, stream: ServedStream) -> int:
        """A notifier's stream ends when there is something new; it shows no changes."""
        if stream.vb.whole_seqno > stream.cursor:
            return self._end(stream, StreamEndReason.OK)
        return 0

    def _send(self, block: bytes | memoryview) -> int:
        """Send stream messages, which count against the window."""
        size = len(block)
        self.window.sent(size)
        self.sent_bytes += size
        self._line.send(block)
        return size

    # ---------------------------------------------------------------------------------------------------------- to end

    def make_trouble(self) -> Trouble:
        """Put trouble between this end and its line; it does nothing before it is told to."""
        if self.trouble is None:
            self.trouble = self._line = Trouble(self._line)
        return self.trouble

    def end_stream(self, vb_id: int, reason: int) -> bool:
        """End the stream of a vbucket with any reason; False where there is none."""
        stream = self.streams.get(vb_id)
        if stream is not None:
            self._end(stream, reason)  # type: ignore[arg-type]  # what no server says may be tried, too
            self._line.wake()
        return stream is not None

    def _make_ready(self, stream: ServedStream) -> None:
        self._turns.put(stream)
        self._line.wake()

    def _end(self, stream: ServedStream, reason: StreamEndReason, *, is_refused: bool = False) -> int:
        """End a stream and say so. A vbucket that the consumer was told to serve is served here only if it refused."""
        held = stream.holds_vbucket or is_refused
        self._forget(stream)
        sent = self._send(encode(stream.finish(self._reason(reason)), self.dialect))
        if held:
            self._serve_again(stream)
        return sent

    def _drop(self, stream: ServedStream) -> None:
        """End a stream without a word."""
        held = stream.holds_vbucket
        self._forget(stream)
        stream.step(Step.END)
        if held:
            self._serve_again(stream)

    def _serve_again(self, stream: ServedStream) -> None:
        """A takeover ended before the consumer was told to be active: the vbucket is served here again."""
        if stream.vb.state is State.DEAD and self._bucket.vbuckets[stream.vbucket] is stream.vb:
            self._bucket.set_state(stream.vb, State.ACTIVE, Cause.TAKEOVER)

    def _forget(self, stream: ServedStream) -> None:
        self.streams.pop(stream.vbucket, None)
        self._turns.forget(stream)
        stream.feed.close()

    def _state_changed(self, vb: VBucket, transition: Transition) -> None:
        """A vbucket is in another state: its streams end, but for the takeover that brought it about."""
        stream = self.streams.get(vb.id)
        if stream is None or not transition.ends_streams:
            return
        is_there = self._bucket.vbuckets[vb.id] is vb
        if stream.phase is Phase.STOPPING and vb.state is State.DEAD and is_there:
            return
        self._end(stream, StreamEndReason.STATE_CHANGED)
        self._line.wake()

    def flushed(self, vb_id: VBucketId) -> None:
        """All items of a vbucket are being removed. The older have a message for it; DCP sees the deletions alone."""
        stream = self.streams.get(vb_id)
        if stream is not None and self.dialect is not Dialect.DCP:
            self._send(encode(DcpFlush(vbucket=vb_id, opaque=stream.opaque), self.dialect))

    def close(self) -> None:
        """The connection is gone."""
        if self._closed:
            return
        self._closed = True
        self._bucket.change_watchers.discard(self._line.wake)
        self._bucket.state_watchers.remove(self._state_changed)
        for stream in list(self.streams.values()):
            self._drop(stream)

    def stats(self) -> Iterator[tuple[str, object]]:
        """What the stats of the connection tell."""
        yield "type", "producer"
        yield "dialect", str(self.dialect)
        yield "max_buffer_bytes", self.window.limit_bytes
        yield "unacked_bytes", self.window.unacked
        yield "total_bytes_sent", self.sent_bytes
        yield "total_acked_bytes", self.window.acked_total
        yield "paused", str(self.window.room <= 0).lower()
        for vb_id, stream in sorted(self.streams.items()):
            yield f"stream_{vb_id}_opaque", int(stream.opaque)
            yield f"stream_{vb_id}_state", str(stream.phase)
            yield f"stream_{vb_id}_last_sent_seqno", stream.last_sent
            yield f"stream_{vb_id}_end_seqno", int(stream.end)
