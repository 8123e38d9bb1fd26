"""A connection that takes streams in: the rules of `protocol.consumer` joined to the vbuckets of a bucket.

A manager opens it and says by ADD_STREAM which vbuckets to copy; the producer at the other end of the same connection
sends them. `receive` takes every message; `receive_block` takes runs of items straight from the bytes, which is where
nearly all of them are. Both end in the same rules.

A step of a takeover is answered when the disk has it, together with all items before it. Nothing else waits: the copy
is in memory when an item is taken, and the connection is not read while the disk is too far behind.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.history import Cause, Position, SnapshotRange, State
from headrace.ids import Opaque, Seqno
from headrace.node import replies
from headrace.node.dcp.copies import Copies, Copy, Steps
from headrace.node.dcp.received import HEAD, KNOWN_DATATYPES, plain_record, record_of
from headrace.node.refused import Refused
from headrace.protocol.consumer import (
    CONTROLS,
    STATUSES,
    Accepted,
    Acks,
    RefusedBy,
    RollBackTo,
    Stream,
    StreamState,
    Verdict,
    Watch,
)
from headrace.store import StoreError
from headrace.store.records import DELETED, EXPIRED, LIVE, MUTATION_EXTRAS_BYTES
from headrace.wire import Dialect, Malformed, Request, Response, encode
from headrace.wire.catalogue import (
    AddStream,
    BufferAck,
    CloseStream,
    Control,
    DcpNoop,
    Deletion,
    Done,
    Expiration,
    Mutation,
    SetVBucketState,
    SnapshotMarker,
    StreamAdded,
    StreamEnd,
    StreamRequest,
)
from headrace.wire.codes import Magic, SnapshotFlag, Status
from headrace.wire.header import RESPONSE_MAGICS
from headrace.wire.limits import HEADER_BYTES, KEY_BYTES_MAX
from headrace.wire.registry import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.history import Transition
    from headrace.node.buckets import OpenBucket
    from headrace.node.dcp.ends import Line
    from headrace.node.vbucket import VBucket
    from headrace.wire import Message

log = logging.getLogger("headrace.node.dcp.consumer")

GIVEN_UP_MAX = 4096
"""So many requests may be given up before their producer answers one of them: each is remembered until then."""

_REQUEST = int(Magic.REQUEST)
_HEAD_BYTES = HEAD.size
_ITEMS = frozenset({LIVE, DELETED, EXPIRED})
_TEXTS = {
    Status.KEY_NOT_FOUND: "Not found",
    Status.KEY_EXISTS: "Data exists for key",
    Status.INVALID: "Invalid arguments",
    Status.OUT_OF_RANGE: "Outside range",
}
"""The words of the captures; the statuses that are not here have none."""


def _opcode(message: type[Request]) -> int:
    return message.spec.opcodes[Dialect.DCP]


_STREAM_REQUEST = _opcode(StreamRequest)
_CONTROL = _opcode(Control)
_MARKER = _opcode(SnapshotMarker)
_ADD = _opcode(AddStream)
_CLOSE = _opcode(CloseStream)
_NOOP = _opcode(DcpNoop)
_COUNTED = frozenset(
    cls.spec.opcodes[Dialect.DCP] for cls in REQUESTS if cls.spec.flow_controlled and Dialect.DCP in cls.spec.opcodes
)


class Consumer:
    """The consuming end of one connection, which asks for streams in DCP. `older_consumer` has those of other ages."""

    is_producer = False
    dialect = Dialect.DCP
    """What it asks and is sent in; its manager speaks DCP to any."""
    _record_of = staticmethod(record_of)

    def __init__(self, opened: OpenBucket, line: Line, name: str, now: float) -> None:
        self.name = name
        self.received_bytes = 0
        self.received_items = 0
        self._opened = opened
        self._bucket = opened.bucket
        self._flusher = opened.flusher
        self._line = line
        self._copies = Copies(opened.bucket)
        self._steps = Steps(opened.flusher, self._step_answered)
        self._given_up: set[int] = set()
        """Requests whose streams were closed before they were answered."""
        self._last_opaque = 0
        self._noop_opaque = 0
        self._controls_sent = False
        self._acks = Acks(now)
        self._watch = Watch(now)
        self._changing: Copy | None = None
        self._closed = False
        self.is_leaving = False
        """Whether nothing that comes is looked at any more."""
        self._receivers: dict[type[Request], Callable[..., None]] = {
            AddStream: self._add_stream,
            CloseStream: self._close_stream,
            SnapshotMarker: self._marker,
            Mutation: self._item,
            Deletion: self._item,
            Expiration: self._item,
            SetVBucketState: self._set_state,
            StreamEnd: self._stream_end,
            DcpNoop: self._noop,
        }
        self._bucket.state_watchers.append(self._state_changed)

    @property
    def has_asked(self) -> bool:
        """Whether a stream was asked for."""
        return self._last_opaque > 0

    def become(self, kind: type[Consumer], now: float) -> Consumer:
        """Leave the connection to a consumer of another dialect."""
        self.close()
        return kind(self._opened, self._line, self.name, now)

    # ------------------------------------------------------------------------------------------------ what comes in

    def receive(self, message: Message, now: float) -> None:
        """Take a request of the manager or the producer, or an answer of the producer."""
        if self.is_leaving:
            return
        self._watch.heard(now)
        if isinstance(message, Malformed):
            self._malformed(message)
        elif isinstance(message, Response):
            self._answered(message)
        else:
            receive = self._receivers.get(type(message))  # type: ignore[arg-type]  # what is no request is not in it
            if receive is None:
                self._leave(f"{message.spec.name} is not for a consumer")
                return
            if message.spec.flow_controlled and receive != self._item:
                self._count(len(encode(message, self.dialect)))
            receive(message)
        self._acknowledge(now)

    def receive_block(self, data: bytes, at: int, now: float) -> int:
        """Take the run of whole items that begins at `at`, and give where it ends: what stands there is for others."""
        bucket, copies = self._bucket, self._copies.by_opaque
        unpack, apply, begun, items = HEAD.unpack_from, bucket.apply, at, 0
        length = len(data)
        while at + _HEAD_BYTES <= length:
            magic, opcode, key_bytes, extras, datatype, vbucket, body, opaque, _, seqno = unpack(data, at)
            end = at + HEADER_BYTES + body
            if magic != _REQUEST or opcode not in _ITEMS or end > length or self.is_leaving:
                break
            copy = copies.get(opaque)
            # What is a record but for its opaque is taken here; all else goes the longer way.
            if (
                copy is None
                or copy.stream.vbucket != vbucket
                or extras != MUTATION_EXTRAS_BYTES
                or not 0 < key_bytes <= KEY_BYTES_MAX
                or key_bytes > body - extras
                or datatype > KNOWN_DATATYPES
                or (record := plain_record(data, at, end)) is None
            ):
                self._take_item(data, at, end)
            else:
                verdict = copy.stream.item(seqno)
                if verdict is Verdict.TAKE:
                    apply(copy.vb, record)
                else:
                    self._take(copy, verdict, record, opcode)
            items += 1
            at = end
        if at != begun:
            self.received_items += items
            self._count(at - begun)
            self._watch.heard(now)
            self._acknowledge(now)
        return at

    def _count(self, size: int) -> None:
        """Whatever becomes of a message, the producer has counted it."""
        self._acks.took(size)
        self.received_bytes += size
        bucket = self._bucket
        if bucket.trouble is not None and bucket.waiting_bytes > bucket.limits.dirty_bytes_max:
            # Clients are refused then; a producer cannot be. What it sent is asked for again when the disk works.
            self._leave(f"the disk takes nothing: {bucket.trouble}")

    def _malformed(self, message: Malformed) -> None:
        frame = message.frame
        if frame.header.magic in RESPONSE_MAGICS:
            if frame.header.opcode == _STREAM_REQUEST:  # capture 07b: a failover log of 7 bytes
                self._leave(f"an answer to a stream request that is none: {message.problem.text}")
            return
        if frame.header.opcode in _COUNTED:
            self._count(HEADER_BYTES + frame.header.body_length)
        if frame.header.opcode in _ITEMS and frame.header.magic == _REQUEST:
            data = frame.pack()
            if len(data) >= _HEAD_BYTES:
                self._take_item(data, 0, len(data))  # UPR's form of it may be good
                return
        self._refuse(frame.header.opcode, message.opaque, Status.INVALID)

    # ------------------------------------------------------------------------------------------- streams: ask for them

    def _add_stream(self, request: AddStream) -> None:
        vbuckets = self._bucket.vbuckets
        vb = vbuckets[request.vbucket] if request.vbucket < len(vbuckets) else None
        if vb is None or vb.state is State.ACTIVE:
            self._refuse(_ADD, request.opaque, Status.NOT_MY_VBUCKET)
            return
        if self._copies.is_fed(vb.id):
            self._refuse(_ADD, request.opaque, Status.KEY_EXISTS)
            return
        stream = Stream(vbucket=vb.id, opaque=self._next_opaque(), flags=request.flags)
        copy = Copy(vb, stream, request.opaque, vb.state)
        self._copies.add(copy)
        if not self._controls_sent:
            self._send_controls()
        self._request(copy)

    def _send_controls(self) -> None:
        self._controls_sent = self._watch.is_on = True
        for key, value in CONTROLS:
            opaque = self._next_opaque()
            if key == b"enable_noop":
                self._noop_opaque = opaque
            self._send(Control(key=key, value=value, opaque=opaque))

    def _request(self, copy: Copy) -> None:
        """Ask for a stream from where the vbucket is."""
        vb, stream = copy.vb, copy.stream
        snapshot = SnapshotRange(start=Seqno(vb.snapshot_start), end=Seqno(vb.snapshot_end))
        stream.begin(Position(vbuuid=vb.vbuuid, seqno=Seqno(vb.high_seqno), snapshot=snapshot))
        self._send(
            StreamRequest(
                vbucket=vb.id,
                opaque=stream.opaque,
                flags=stream.flags,
                start_seqno=Seqno(vb.high_seqno),
                vbuuid=vb.vbuuid,
                snapshot_start=snapshot.start,
                snapshot_end=snapshot.end,
            )
        )

    def _answered(self, answer: Response) -> None:
        """Take an answer of the producer; to what nobody asked, nothing can be built on."""
        if answer.opcode == _CONTROL:
            if answer.status and answer.opaque == self._noop_opaque:
                self._watch.is_on = False  # it will not send noops, so its silence means nothing
            return
        if answer.opcode == _STREAM_REQUEST:  # acks and noops have no answers that matter
            self._request_answered(answer)

    def _request_answered(self, answer: Response) -> None:
        """Take the answer to a stream request."""
        if answer.opaque in self._given_up:
            self._given_up.discard(answer.opaque)
            return
        copy = self._copies.by_opaque.get(answer.opaque)
        if copy is None:
            self._leave("an answer to a stream request that was not made")
            return
        outcome = copy.stream.answered(self._meaning(copy, answer))
        if isinstance(outcome, Accepted):
            self._bucket.adopt(copy.vb, outcome.log)
            self._added(copy, Status.SUCCESS)
        elif isinstance(outcome, RollBackTo):
            self._roll_back(copy, outcome.seqno)
        elif isinstance(outcome, RefusedBy):
            self._copies.forget(copy)
            self._added(copy, outcome.status)
        else:
            self._leave(outcome.why)

    def _meaning(self, copy: Copy, answer: Response) -> Response:
        """What an answer to a stream request means in the words of DCP."""
        del copy
        return answer

    def _roll_back(self, copy: Copy, to: int) -> None:
        """Take the vbucket back, then ask again with the same opaque (capture 07b)."""
        extra = {"connection": self.name, "vbucket": copy.vb.id, "from": copy.vb.high_seqno, "to": to}
        log.warning("the producer wants a rollback", extra=extra)

        def done(reached: int | StoreError) -> None:
            if self._closed or copy not in self._copies:
                return
            if isinstance(reached, StoreError):
                copy.stream.failed()
                self._copies.forget(copy)
                self._added(copy, Status.TEMPORARY_FAILURE)
            elif copy.stream.rolled_back():
                self._request(copy)

        self._flusher.roll_back(copy.vb, to, done)

    def _added(self, copy: Copy, status: int) -> None:
        """Answer ADD_STREAM, once."""
        if copy.asked_by is not None:
            self._send(StreamAdded(opcode=_ADD, opaque=copy.asked_by, status=status, stream_opaque=copy.stream.opaque))
            copy.asked_by = None

    # ------------------------------------------------------------------------------------------ streams: take them in

    def _marker(self, request: SnapshotMarker) -> None:
        copy = self._copies.find(request.opaque, request.vbucket)
        if copy is None:
            self._refuse(_MARKER, request.opaque, Status.KEY_NOT_FOUND)
            return
        start, end = request.start_seqno or 0, request.end_seqno or 0
        verdict = copy.stream.marker(start=start, end=end, flags=request.flags or 0)
        status = STATUSES.get(verdict)
        if status is not None:
            self._refuse(_MARKER, request.opaque, status)
            return
        if not copy.vb.high_seqno and (request.flags or 0) & SnapshotFlag.DISK:
            # The producer may have purged deletions, and its marker does not tell. Who was behind them and asks this
            # copy, once it is active, must not go on as if there had been none.
            copy.vb.purge_seqno = max(copy.vb.purge_seqno, end)
        self._bucket.begin_snapshot(copy.vb, copy.stream.snapshot_start, copy.stream.snapshot_end)
        if verdict is not Verdict.TAKE:
            self._end_snapshot(copy, verdict)

    def _item(self, request: Mutation | Deletion | Expiration) -> None:
        data = encode(request, self.dialect)
        self._count(len(data))
        self.received_items += 1
        self._take_item(data, 0, len(data))

    def _take_item(self, data: bytes, at: int, end: int) -> None:
        """Judge one item and take it, in whatever form it came."""
        _, opcode, _, _, datatype, vbucket, _, opaque, _, seqno = HEAD.unpack_from(data, at)
        self._bucket.clock.tick()
        record = self._record_of(data, at, end, now_s=self._bucket.clock.seconds)
        if record is None:
            self._refuse(opcode, Opaque(opaque), Status.INVALID)
            if datatype > KNOWN_DATATYPES and self.dialect is Dialect.DCP:  # capture 07b
                self._leave(f"datatype 0x{datatype:02x} was not agreed on")
            return
        copy = self._copies.find(opaque, vbucket)
        if copy is None:
            self._refuse(opcode, Opaque(opaque), Status.KEY_NOT_FOUND)
            return
        self._take(copy, copy.stream.item(seqno), record, opcode)

    def _take(self, copy: Copy, verdict: Verdict, record: bytes, opcode: int) -> None:
        """Do what the rules say of an item."""
        status = STATUSES.get(verdict)
        if status is not None:
            self._refuse(opcode, copy.stream.opaque, status)
        elif verdict is not Verdict.DROP:
            self._bucket.apply(copy.vb, record)
            if verdict is not Verdict.TAKE:
                self._end_snapshot(copy, verdict)

    def _end_snapshot(self, copy: Copy, verdict: Verdict) -> None:
        self._bucket.end_snapshot(copy.vb)
        self._bucket.changed()
        if verdict is Verdict.TAKE_LAST_AND_ANSWER:
            self._send(Done(opcode=_MARKER, opaque=copy.stream.opaque))

    # ---------------------------------------------------------------------------------------------- states and the end

    def _set_state(self, request: SetVBucketState) -> None:
        copy = self._copies.find(request.opaque, request.vbucket)
        if copy is None:  # capture 07b, as 4.1.2 does it: who thinks that we own it must not go on
            self._leave(f"a state for vbucket {request.vbucket}, which has no such stream")
            return
        if request.state == State.ACTIVE and copy.vb.state not in {State.PENDING, State.ACTIVE}:
            self._refuse(self._opcode(request), request.opaque, Status.INVALID)  # its manager took the first step back
            return
        state = copy.stream.told(request.state)
        if isinstance(state, Verdict):
            self._refuse(self._opcode(request), request.opaque, STATUSES[state])
            return
        if state is State.REPLICA:
            self._send(Done(opcode=self._opcode(request), opaque=request.opaque))
            return
        if copy.vb.state is not state:
            self._become(copy, state)
        self._steps.wait(copy, request.opaque, state)

    def _step_answered(self, opaque: Opaque, done: bool) -> None:  # noqa: FBT001 - of Steps
        """A step of a takeover has come to disk, or will not."""
        opcode = self._opcode(SetVBucketState)
        if done:
            self._send(Done(opcode=opcode, opaque=opaque))
        else:
            self._refuse(opcode, opaque, Status.INVALID)

    def _become(self, copy: Copy, state: State) -> None:
        self._changing = copy
        try:
            if copy.vb.state is State.DEAD:  # told by its manager to be no copy, and by its producer to become one
                self._bucket.set_state(copy.vb, State.REPLICA, Cause.SET_VBUCKET)
            self._bucket.set_state(copy.vb, state, Cause.TAKEOVER)
        finally:
            self._changing = None
            copy.state = copy.vb.state

    def _stream_end(self, request: StreamEnd) -> None:
        copy = self._copies.find(request.opaque, request.vbucket)
        if copy is None or copy.stream.ended() is Verdict.NO_STREAM:
            self._refuse(self._opcode(request), request.opaque, Status.KEY_NOT_FOUND)
        else:
            self._copies.forget(copy)

    def _close_stream(self, request: CloseStream) -> None:
        copy = self._copies.of_vbucket(request.vbucket)
        if copy is None:
            self._refuse(_CLOSE, request.opaque, Status.KEY_NOT_FOUND)
            return
        self._send(Done(opcode=_CLOSE, opaque=request.opaque))
        self._end(copy)

    def _noop(self, request: DcpNoop) -> None:
        self._send(Done(opcode=_NOOP, opaque=request.opaque))

    def _state_changed(self, vb: VBucket, _: Transition) -> None:
        """A manager set a state: what is an original, or is to vanish, is no copy any more.

        Nor does a stream go on that has brought more than the vbucket has: somebody rolled it back.
        """
        copy = self._copies.of_vbucket(vb.id)
        if copy is None or copy is self._changing or copy.vb is not vb:
            return
        was, copy.state = copy.state, vb.state
        is_other = vb.state is not was and vb.state in {State.ACTIVE, State.DEAD}
        stream = copy.stream
        is_behind = stream.state is not StreamState.ROLLING_BACK and vb.high_seqno < stream.last_seqno
        if is_other or is_behind or self._bucket.vbuckets[vb.id] is not vb:
            self._end(copy)

    def _end(self, copy: Copy) -> None:
        """End a stream from this side; the producer hears of it when it sends on."""
        if copy.stream.state is StreamState.ASKED:
            self._given_up.add(copy.stream.opaque)
            if len(self._given_up) > GIVEN_UP_MAX:
                self._leave(f"{len(self._given_up)} stream requests were given up, and none was answered")
        copy.stream.close()
        self._copies.forget(copy)
        self._added(copy, Status.KEY_NOT_FOUND)

    # ------------------------------------------------------------------------------------------------- what goes out

    @property
    def deadline(self) -> float | None:
        """When `pump` is to be called at the latest."""
        return min((at for at in (self._acks.deadline, self._watch.deadline) if at is not None), default=None)

    def pump(self, now: float) -> bool:
        """Ack what is due, and leave a producer that is gone; there is never more to send than that."""
        if self._watch.is_gone(now):
            self._leave("the producer was silent for too long")
        else:
            self._acknowledge(now)
        return False

    def _acknowledge(self, now: float) -> None:
        due = self._acks.due(now)
        if due and not self.is_leaving:
            self._send(BufferAck(opaque=self._next_opaque(), bytes_acked=due))

    def _next_opaque(self) -> Opaque:
        """Number streams, controls and acks in one row, as 4.1.2 does; in the wire's byte order, which it does not."""
        self._last_opaque = self._last_opaque % 0xFFFF_FFFF + 1
        while self._last_opaque in self._copies.by_opaque:
            self._last_opaque = self._last_opaque % 0xFFFF_FFFF + 1
        return Opaque(self._last_opaque)

    def _leave(self, why: str) -> None:
        """Close the connection without an answer; what came behind is not looked at."""
        self.is_leaving = True
        self._line.leave(why)

    def _opcode(self, message: Request | type[Request]) -> int:
        """How a message of the producer is numbered in the dialect."""
        return message.spec.opcodes[self.dialect]

    def _send(self, message: Message) -> None:
        """Send a question in the dialect that it is asked in; answers are the same in all."""
        self._line.send(encode(message, self.dialect if isinstance(message, Request) else Dialect.DCP))

    def _refuse(self, opcode: int, opaque: Opaque, status: Status) -> None:
        self._line.send(replies.error(opcode, opaque, Refused(status, _TEXTS.get(status, ""))))

    # ------------------------------------------------------------------------------------------------------ the rest

    def stats(self) -> Iterator[tuple[str, object]]:
        """What the stats of the connection tell."""
        yield "type", "consumer"
        yield "dialect", str(self.dialect)
        yield "total_bytes_received", self.received_bytes
        yield "total_items_received", self.received_items
        yield "unacked_bytes", self._acks.unacked_bytes
        for copy in self._copies:
            stream = copy.stream
            yield f"stream_{stream.vbucket}_state", str(stream.state)
            yield f"stream_{stream.vbucket}_opaque", stream.opaque
            yield f"stream_{stream.vbucket}_last_received_seqno", stream.last_seqno
            yield f"stream_{stream.vbucket}_cur_snapshot_start", stream.snapshot_start
            yield f"stream_{stream.vbucket}_cur_snapshot_end", stream.snapshot_end

    def close(self) -> None:
        """The connection is gone: the copies stay as they are, and others may go on with them."""
        if self._closed:
            return
        self._closed = self.is_leaving = True
        self._steps.clear()
        for copy in self._copies:
            copy.stream.close()
            self._copies.forget(copy)
        self._bucket.state_watchers.remove(self._state_changed)


__all__ = ["Consumer"]
