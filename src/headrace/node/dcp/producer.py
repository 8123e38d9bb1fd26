"""A connection that streams out in DCP or UPR: the rules of `protocol` joined to the changes of a bucket.

What every producing end does is in `sender`. Here is what these two dialects have beside it: controls, the window,
noops, a close of a stream, markers with a range.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.ids import Opaque
from headrace.node.dcp.frames import Framer, Shape
from headrace.node.dcp.sender import Sender
from headrace.protocol.controls import Settings, control
from headrace.protocol.liveness import Due, Liveness
from headrace.protocol.stream import Phase
from headrace.wire import Dialect, Response, encode
from headrace.wire.catalogue import (
    BufferAck,
    CloseStream,
    Control,
    DcpNoop,
    Done,
    FailoverEntry,
    FailoverLog,
    OsoSnapshot,
    Prepare,
    SeqnoAdvanced,
    SetVBucketState,
    SnapshotMarker,
    StreamRequest,
    SystemEvent,
)
from headrace.wire.codes import OpenFlag, Status, StreamEndReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.buckets import OpenBucket
    from headrace.node.dcp.ends import Line
    from headrace.node.dcp.turns import ServedStream
    from headrace.node.vbucket import VBucket
    from headrace.wire import Message, Request

log = logging.getLogger("headrace.node.dcp.producer")

_NOOP = DcpNoop.spec.opcodes[Dialect.DCP]
_MARKER = SnapshotMarker.spec.opcodes[Dialect.DCP]
_SET_STATE = SetVBucketState.spec.opcodes[Dialect.DCP]
_LATER_COMMANDS = (SystemEvent, SeqnoAdvanced, OsoSnapshot, Prepare)
_INVALID = "Invalid arguments"


class Producer(Sender):
    """The producing end of one connection that was opened by DCP OPEN.

    A stream request says which dialect it is in, where none is forced: UPR's has 40 bytes, DCP's 48.
    """

    def __init__(
        self,
        opened: OpenBucket,
        line: Line,
        name: str,
        flags: OpenFlag,
        *,
        snappy: bool,
        may_take_over: bool = True,
    ) -> None:
        self.flags = flags
        self.settings = Settings()
        self.liveness = Liveness()
        self._snappy = snappy
        self._forced: Dialect | None = None
        super().__init__(opened, line, name, Dialect.DCP, may_take_over=may_take_over)
        self._is_notifier = bool(flags & OpenFlag.NOTIFIER)
        self._receivers: dict[type[Request], Callable[..., None]] = {
            StreamRequest: self._request,
            CloseStream: self._close_stream,
            BufferAck: self._ack,
            Control: self._control,
        }

    def force(self, dialect: Dialect) -> None:
        """Speak one dialect, whatever is asked: UPR takes both forms of a request, DCP refuses the older one."""
        self._forced = self.dialect = dialect
        self._framer = Framer(self._shape())

    def _shape(self) -> Shape:
        settings, flags = self.settings, self.flags
        return Shape(
            dialect=self.dialect,
            # Expirations carry the time of their delete, so who wants them told apart gets times with deletions too.
            delete_times=bool(flags & OpenFlag.INCLUDE_DELETE_TIMES) or settings.expiry_opcode,
            expiry_opcode=settings.expiry_opcode,
            xattrs=bool(flags & OpenFlag.INCLUDE_XATTRS),
            snappy=self._snappy,
            no_value=bool(flags & (OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_DATATYPE)),
            keeps_datatype=bool(flags & OpenFlag.NO_VALUE_WITH_DATATYPE),
            ext_metadata=settings.ext_metadata,
            force_compression=settings.force_compression,
        )

    # ------------------------------------------------------------------------------------------------------- messages

    def receive(self, message: Message, now: float) -> None:
        """Take a request or an answer of the consumer."""
        if self.trouble is not None and self.trouble.answers(message):
            return
        if isinstance(message, Response):
            self._answered(message)
            return
        receive = self._receivers.get(type(message))  # type: ignore[arg-type]  # what is no request is not in it
        if receive is not None:
            receive(message)
        elif isinstance(message, _LATER_COMMANDS):
            # Releases that know these commands send them; a producer that gets one does not know it (capture 03b).
            self._refuse(message, Status.UNKNOWN_COMMAND, "")
        else:
            self._line.leave(f"{message.spec.name} is not for a producer")
        del now

    def _request(self, request: StreamRequest) -> None:
        """Open a stream in the dialect that it is asked for in."""
        if not self._speaks(request):
            self._refuse(request, Status.INVALID, _INVALID)
            return
        self._open_stream(request)

    def _speaks(self, request: StreamRequest) -> bool:
        """Speak the dialect of a request from now on; False where that cannot be."""
        is_upr = request.snapshot_start is None
        if self._forced is not None:
            return self._forced is Dialect.UPR or not is_upr
        if is_upr != (self.dialect is Dialect.UPR):
            if self.streams:
                return False
            self.dialect = Dialect.UPR if is_upr else Dialect.DCP
            self._framer = Framer(self._shape())
            log.info("a consumer speaks %s", self.dialect, extra={"peer": self._line.peer, "connection": self.name})
        return True

    def _accept(self, request: StreamRequest, vb: VBucket) -> None:
        entries = tuple(FailoverEntry(*branch) for branch in vb.failover_log)
        self._reply(request, FailoverLog, entries=entries)

    def _begin_snapshot(self, stream: ServedStream, end: int, *, disk: bool) -> int:
        return self._send(encode(stream.begin(end, disk=disk), self.dialect))

    def _close_stream(self, request: CloseStream) -> None:
        stream = self.streams.get(request.vbucket)
        if stream is None:
            self._refuse(request, Status.KEY_NOT_FOUND, "Not found")
            return
        self._reply(request, Done)
        if self.settings.stream_end_on_close:
            self._end(stream, StreamEndReason.CLOSED)
        else:
            self._drop(stream)

    def _ack(self, request: BufferAck) -> None:
        self.window.acked(request.bytes_acked)
        self._line.wake()

    def _control(self, request: Control) -> None:
        status = control(self.settings, request.key, request.value, snappy=self._snappy)
        if status is not Status.SUCCESS:
            self._refuse(request, status, _INVALID if status is Status.INVALID else "Not supported")
            return
        settings = self.settings
        self.window.limit_bytes = settings.buffer_bytes
        self.liveness.enabled = settings.noop
        self.liveness.interval_s = settings.noop_interval_s
        self._priority = settings.priority
        self._framer = Framer(self._shape())
        self._reply(request, Done)
        self._line.wake()

    def _answered(self, response: Response) -> None:
        """Take an answer to what was asked of the consumer."""
        if response.opcode == _NOOP:
            if not self.liveness.answered(response.opaque):
                self._line.leave("a noop was answered that was not asked")
            return
        if response.opcode not in {_MARKER, _SET_STATE}:
            if response.opcode not in _STREAM_OPCODES:
                self._line.leave(f"an answer to 0x{response.opcode:02x}, which was not asked")
            return  # a consumer that refuses a change says so; it is its own affair
        stream = next((one for one in self.streams.values() if one.opaque == response.opaque), None)
        if stream is None:
            return
        if response.status != Status.SUCCESS:
            # Only a refusal of "be active" itself says that the consumer is not.
            refused = stream.phase is Phase.HANDED and response.opcode == _SET_STATE
            self._end(stream, StreamEndReason.CLOSED, is_refused=refused)
        elif response.opcode == _MARKER:
            if stream.marker_acked():
                self._make_ready(stream)
        elif stream.phase in {Phase.OFFERED, Phase.HANDED}:
            self._accepted(stream)

    def _asks_at(self) -> float | None:
        return self.liveness.deadline(streams=len(self.streams))

    def _ask_for_life(self, now: float) -> None:
        due = self.liveness.due(now, streams=len(self.streams))
        if due is Due.NOOP:
            self._line.send(encode(DcpNoop(opaque=Opaque(self.liveness.opaque))))
        elif due is Due.DEAD:
            self._line.leave("the consumer gave no sign of life")


_STREAM_OPCODES = frozenset(range(0x53, 0x66))
"""What a consumer may answer though it was not asked."""
