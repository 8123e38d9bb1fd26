"""How a connection becomes an end of streams, and what reaches it after that.

By DCP OPEN a connection becomes a producer or a consumer once, under a name; a name that is opened again in the same
bucket closes the connection that had it before. The UPR draft has no OPEN: its first stream request makes a producer. A
consumer may be told, before its first stream, to ask for streams in an older dialect. What comes before OPEN, or is not
for the role, ends the connection without an answer, as servers do (capture 03b_dcp_malformed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.node.dcp.consumer import Consumer
from headrace.node.dcp.draft_consumer import DraftConsumer
from headrace.node.dcp.draft_producer import DraftProducer
from headrace.node.dcp.older_consumer import UprConsumer
from headrace.node.dcp.producer import Producer
from headrace.node.dispatch import Who, answer, handles
from headrace.node.refused import Refused
from headrace.node.users import Role
from headrace.wire import Dialect
from headrace.wire.catalogue import (
    Abort,
    AddStream,
    BufferAck,
    CloseStream,
    Commit,
    Control,
    DcpFlush,
    DcpNoop,
    Deletion,
    Done,
    Expiration,
    Mutation,
    Open,
    OsoSnapshot,
    Prepare,
    SeqnoAck,
    SeqnoAdvanced,
    SetVBucketState,
    SnapshotEnd,
    SnapshotMarker,
    SnapshotStart,
    StreamEnd,
    StreamRequest,
    StreamStart,
    SystemEvent,
)
from headrace.wire.codes import Feature, OpenFlag, Status
from headrace.wire.limits import KEY_BYTES_MAX

if TYPE_CHECKING:
    from headrace.node.dcp.ends import DcpEnd
    from headrace.node.session import Session
    from headrace.wire import Request

_INVALID = "Invalid arguments"


@handles(Open, needs=Who.KNOWN)
def open_connection(session: Session, request: Open) -> Done | None:
    """Make the connection an end of streams."""
    if session.end is not None:
        session.leave("it was opened a second time")
        return None
    if request.datatype:
        session.close_after_reply = True
    if request.datatype or not 0 < len(request.name) <= KEY_BYTES_MAX:
        raise Refused(Status.INVALID, _INVALID)
    flags = OpenFlag(request.flags)
    needed = Role.STREAM if flags & OpenFlag.PRODUCER else Role.ADMIN
    if not session.may(needed):
        raise Refused(Status.NO_ACCESS, f"open takes the role {needed}")
    opened, line = session.opened, session.line
    assert opened is not None
    assert line is not None
    name = request.name.decode(errors="backslashreplace")
    older = opened.ends.get(name)
    if older is not None:
        older.leave("its name was opened again")
    end: DcpEnd
    if flags & OpenFlag.PRODUCER:
        end = Producer(
            opened, line, name, flags, snappy=Feature.SNAPPY in session.features, may_take_over=session.may(Role.ADMIN)
        )
        if session.services.dialect is not None:
            end.force(session.services.dialect)
    else:
        kind = Consumer if session.services.dialect is None else _CONSUMERS[str(session.services.dialect).encode()]
        end = kind(opened, line, name, session.now())
    _become(session, end)
    return answer(request, Done)


def _become(session: Session, end: DcpEnd) -> None:
    """Make the connection an end of streams of the bucket that is selected."""
    opened, line = session.opened, session.line
    assert opened is not None
    assert line is not None
    session.end = end
    line.begin()
    session.ends = opened.ends
    session.ends[end.name] = session
    if opened.chaos is not None:
        opened.chaos.meet(session)


def _become_draft(session: Session) -> None:
    """Make the connection a producer of the draft, which its first stream request does."""
    if not session.may(Role.STREAM):
        raise Refused(Status.NO_ACCESS, f"a stream takes the role {Role.STREAM}")
    opened, line = session.opened, session.line
    assert opened is not None
    assert line is not None
    _become(session, DraftProducer(opened, line, may_take_over=session.may(Role.ADMIN)))


DIALECT = b"dialect"
"""What a manager sets at a consumer, by CONTROL, to have it ask for streams in an older dialect."""
_CONSUMERS: dict[bytes, type[Consumer]] = {
    str(kind.dialect).encode(): kind for kind in (Consumer, UprConsumer, DraftConsumer)
}


@handles(Control, needs=Who.KNOWN)
def control(session: Session, request: Control) -> Done | None:
    """Set something for the connection: a consumer knows the dialect alone, and that before its first stream."""
    end = session.end
    if not isinstance(end, Consumer) or request.key != DIALECT:
        stream_message(session, request)
        return None
    kind, forced = _CONSUMERS.get(request.value), session.services.dialect
    if kind is None or end.has_asked or forced not in {None, kind.dialect}:
        raise Refused(Status.INVALID, _INVALID)
    session.end = end.become(kind, session.now())
    session.dialect = kind.dialect
    return answer(request, Done)


@handles(
    AddStream,
    CloseStream,
    StreamRequest,
    StreamEnd,
    SnapshotMarker,
    Mutation,
    Deletion,
    Expiration,
    DcpFlush,
    SetVBucketState,
    DcpNoop,
    BufferAck,
    SystemEvent,
    Prepare,
    SeqnoAck,
    Commit,
    Abort,
    SeqnoAdvanced,
    OsoSnapshot,
    StreamStart,
    SnapshotStart,
    SnapshotEnd,
    needs=Who.KNOWN,
)
def stream_message(session: Session, request: Request) -> None:
    """Give a message to the end that the connection is."""
    if session.end is None and session.dialect is Dialect.UPR_DRAFT and isinstance(request, StreamRequest):
        _become_draft(session)
    if session.end is None:
        session.leave(f"{request.spec.name} came before open")
    else:
        session.end.receive(request, session.now())
