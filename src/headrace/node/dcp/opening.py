"""DCP OPEN, and what reaches a connection after it.

A connection becomes a producer or a consumer once, under a name; a name that is opened again in the same bucket closes
the connection that had it before. What comes before OPEN, or is not for the role, ends the connection without an
answer, as servers do (capture 03b_dcp_malformed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.node.dcp.consumer import Consumer
from headrace.node.dcp.producer import Producer
from headrace.node.dispatch import Who, answer, handles
from headrace.node.refused import Refused
from headrace.node.users import Role
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
    SnapshotMarker,
    StreamEnd,
    StreamRequest,
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
    else:
        end = Consumer(opened, line, name, session.now())
    session.end = end
    line.begin()
    session.ends = opened.ends
    session.ends[name] = session
    if opened.chaos is not None:
        opened.chaos.meet(session)
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
    Control,
    SystemEvent,
    Prepare,
    SeqnoAck,
    Commit,
    Abort,
    SeqnoAdvanced,
    OsoSnapshot,
    needs=Who.KNOWN,
)
def stream_message(session: Session, request: Request) -> None:
    """Give a message to the end that the connection is."""
    if session.end is None:
        session.leave(f"{request.spec.name} came before open")
    else:
        session.end.receive(request, session.now())
