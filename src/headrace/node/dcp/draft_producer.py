"""A connection that streams out in the UPR draft.

The draft has no open, no window, no noop and no close: the first stream request makes the connection a producer, what
is sent is bounded by what the line takes, and a stream that its consumer does not want any more ends with the
connection, or when the consumer answers a message of it with an error. What is answered here:

    0x50 stream request   OK without a body, then stream start and the snapshots; not my vbucket; rollback to a seqno
    0x51 failover log     by the command of that name, as in every dialect
    0x5a set vbucket      is sent in a takeover, and answered by the consumer: the next step waits for that

A request names no snapshot, so its consumer stands between two: at the end of one that it has whole.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from headrace.node.dcp.frames import Shape
from headrace.node.dcp.sender import Sender
from headrace.protocol.stream import Phase
from headrace.wire import Dialect, Response, encode
from headrace.wire.catalogue import (
    DcpFlush,
    Deletion,
    Expiration,
    FailoverLog,
    Mutation,
    SetVBucketState,
    SnapshotEnd,
    SnapshotStart,
    StreamEnd,
    StreamRequest,
    StreamStart,
)
from headrace.wire.codes import Status, StreamEndReason, UprStreamEndReason
from headrace.wire.limits import KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.node.buckets import OpenBucket
    from headrace.node.dcp.ends import Line
    from headrace.node.dcp.turns import ServedStream
    from headrace.node.vbucket import VBucket
    from headrace.wire import Message

DRAFT = Dialect.UPR_DRAFT
_SENT = (StreamStart, StreamEnd, SnapshotStart, SnapshotEnd, Mutation, Deletion, Expiration, DcpFlush, SetVBucketState)
_ANSWERABLE = frozenset(message.spec.opcodes[DRAFT] for message in _SENT)
_SET_STATE = SetVBucketState.spec.opcodes[DRAFT]
_INVALID = "Invalid arguments"


class DraftProducer(Sender):
    """The producing end of one connection that speaks the draft."""

    def __init__(self, opened: OpenBucket, line: Line, *, may_take_over: bool) -> None:
        self._groups: dict[int, str] = {}
        # The draft names streams and no connections, and two streams may have one name.
        super().__init__(opened, line, f"{DRAFT}:{line.peer}", DRAFT, may_take_over=may_take_over)

    def _shape(self) -> Shape:
        return Shape(dialect=DRAFT, expiry_opcode=True)

    def receive(self, message: Message, now: float) -> None:
        """Take a stream request, or an answer of the consumer."""
        del now
        if self.trouble is not None and self.trouble.answers(message):
            return
        if isinstance(message, Response):
            self._answered(message)
        elif isinstance(message, StreamRequest):
            self._request(message)
        else:
            self._line.leave(f"{message.spec.name} is not for a producer")

    def _request(self, request: StreamRequest) -> None:
        """Open a stream; the bare header that the document draws with this opcode asks for nothing."""
        if request.high_seqno is None or len(request.group) > KEY_BYTES_MAX:
            self._refuse(request, Status.INVALID, _INVALID)
            return
        start = request.start_seqno
        between = dataclasses.replace(request, snapshot_start=start, snapshot_end=start)
        if self._open_stream(between) is not None:
            self._groups[request.vbucket] = request.group.decode(errors="backslashreplace")

    def _accept(self, request: StreamRequest, vb: VBucket) -> None:
        self._reply(request, FailoverLog)
        self._send(encode(StreamStart(vbucket=vb.id, opaque=request.opaque), DRAFT))

    def _begin_snapshot(self, stream: ServedStream, end: int, *, disk: bool) -> int:
        stream.begin(end, disk=disk)
        stream.marker_acked()  # in a takeover a marker asks to be answered; a start cannot
        return self._send(encode(SnapshotStart(vbucket=stream.vbucket, opaque=stream.opaque), DRAFT))

    def _snapshot_sent(self, stream: ServedStream) -> int:
        return self._send(encode(SnapshotEnd(vbucket=stream.vbucket, opaque=stream.opaque), DRAFT))

    def _reason(self, reason: int) -> int:
        """The draft knows two: all was sent, or ask again."""
        is_ok = reason == StreamEndReason.OK
        return UprStreamEndReason.OK if is_ok else UprStreamEndReason.STATE_CHANGED

    def _answered(self, response: Response) -> None:
        """Take an answer: the steps of a takeover are answered, and who refuses anything else wants no more of it."""
        if response.opcode not in _ANSWERABLE:
            self._line.leave(f"an answer to 0x{response.opcode:02x}, which was not asked")
            return
        stream = next((one for one in self.streams.values() if one.opaque == response.opaque), None)
        if stream is None:
            return
        is_step = response.opcode == _SET_STATE
        if response.status != Status.SUCCESS and is_step:
            # Only a refusal of "be active" itself says that the consumer is not.
            self._end(stream, StreamEndReason.CLOSED, is_refused=stream.phase is Phase.HANDED)
        elif response.status != Status.SUCCESS:
            if stream.phase is not Phase.HANDED:  # else its answer to "be active" is on its way, and decides
                self._drop(stream)
        elif is_step and stream.phase in {Phase.OFFERED, Phase.HANDED}:
            self._accepted(stream)

    def _forget(self, stream: ServedStream) -> None:
        super()._forget(stream)
        self._groups.pop(stream.vbucket, None)

    def stats(self) -> Iterator[tuple[str, object]]:
        """What the stats of the connection tell; the group is the name of a stream."""
        yield from super().stats()
        for vb_id, group in sorted(self._groups.items()):
            yield f"stream_{vb_id}_group", group
