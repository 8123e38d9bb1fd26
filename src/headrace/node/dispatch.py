"""One request, by the catalogue: decode it, see that it may be, do it, answer it as its entry says.

A handler is a function of session and message. It gives an answer, several, none, or something to wait for that gives
those; it raises `Refused` for the rest. Whether an answer is sent at all is the catalogue's business (`answered`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace.errors import HeadraceError, RemoteProtocolError
from headrace.node import replies
from headrace.node.refused import Refused
from headrace.node.users import Role
from headrace.wire import Dialect, Frame, Malformed, Unknown, decode, encode
from headrace.wire.catalogue import GetFailoverLog, StreamRequest, TapVBucketSet
from headrace.wire.codes import RequestFrameInfo, Status
from headrace.wire.frame_info import FrameInfo, split_frame_infos
from headrace.wire.header import REQUEST_MAGICS
from headrace.wire.message import Answered, Message, Request, Response
from headrace.wire.registry import REQUESTS, only_draft

if TYPE_CHECKING:
    from headrace.node.session import Session

log = logging.getLogger("headrace.node.dispatch")

Answer = Response | Iterable[Response] | None
Result = Answer | Awaitable[Answer]
R = TypeVar("R", bound=Response)

STREAM_OPCODES = frozenset(range(0x50, 0x66))
"""What UPR and DCP added to the protocol."""


class Who(Enum):
    """Who may send what takes no role."""

    ANYONE = "also who is not known yet"
    KNOWN = "everyone who authenticated"


@dataclass(frozen=True, slots=True)
class Handler:
    """What serves a message: the function, the right that it takes, and whether a bucket must be selected."""

    serve: Callable[[Session, Any], Result]
    needs: Role | Who
    also: Role | None
    """Another role that does as well."""
    bucket: bool
    malformed: Callable[[Session, Malformed], None] | None = None
    """What serves one whose body fits no layout, where that is not answered as it is elsewhere."""


HANDLERS: dict[str, Handler] = {}
"""By the name of the message. Filled by the modules in headrace.node.commands."""


def handles(
    *messages: type[Request],
    needs: Role | Who,
    also: Role | None = None,
    bucket: bool = True,
    malformed: Callable[[Session, Malformed], None] | None = None,
) -> Callable[[Callable[[Session, Any], Result]], Callable[[Session, Any], Result]]:
    """Enter a function as what serves these messages."""

    def enter(serve: Callable[[Session, Any], Result]) -> Callable[[Session, Any], Result]:
        for message in messages:
            HANDLERS[message.spec.name] = Handler(serve, needs, also, bucket, malformed)
        return serve

    return enter


def answer(request: Request, reply: type[R], **fields: object) -> R:
    """An answer to a request: its opcode and opaque are the request's."""
    opcode = request.spec.opcodes[Dialect.DCP]
    return reply(opcode=opcode, opaque=request.opaque, **cast("dict[str, Any]", fields))


def dispatch(session: Session, frame: Frame) -> None:
    """Serve one request."""
    if not session.is_dialect_told and frame.header.opcode in STREAM_OPCODES:
        session.is_dialect_told = True
        if only_draft(frame.header):
            session.dialect = Dialect.UPR_DRAFT
    message = decode(frame, session.dialect)
    if frame.header.magic not in REQUEST_MAGICS:
        _take_answer(session, frame, message)
        return
    if isinstance(message, Malformed):
        message = _read_again(session, frame, message)
    if isinstance(message, Malformed) and message.command is TapVBucketSet.spec:  # capture 08l_tap_consumer
        session.leave(f"a state of a vbucket that cannot be read: {message.problem.text}")
        return
    try:
        result = _serve(session, message)
    except Exception as error:  # noqa: BLE001 - a fault of ours is answered, and told, as one
        _refuse(session, frame, error)
        return
    if isinstance(message, Malformed):
        return
    assert isinstance(message, Request)
    if isinstance(result, Awaitable):
        session.pending = _wait(session, frame, message, result)
    else:
        _send(session, message, result)


def _read_again(session: Session, frame: Frame, message: Malformed) -> Message:
    """Read what another dialect has on the same connection, where it is that."""
    if message.command is StreamRequest.spec and session.dialect is Dialect.DCP:
        return decode(frame, Dialect.UPR)  # which has a shorter form of it
    takes_draft = session.dialect is Dialect.UPR_DRAFT and session.end is not None and not session.end.is_producer
    if message.command is GetFailoverLog.spec and takes_draft:
        return decode(frame, Dialect.DCP)  # its manager tells it by ADD_STREAM what to ask for
    return message


def _take_answer(session: Session, frame: Frame, message: Message) -> None:
    """Give an answer to the end of streams that asked; elsewhere, to answer an answer could go on for ever."""
    if session.end is None:
        session.fault = f"magic 0x{frame.header.magic:02x} where a request is expected"
    elif isinstance(message, Response):
        try:
            session.end.receive(message, session.now())
        except Exception:
            log.exception("an answer met a fault of ours", extra={"peer": session.peer})
            session.leave("a fault of the node")
    else:
        session.leave(f"an answer that cannot be read: {message!r}")


async def _wait(session: Session, frame: Frame, message: Request, result: Awaitable[Answer]) -> None:
    try:
        _send(session, message, await result)
    except Exception as error:  # noqa: BLE001 - as above
        _refuse(session, frame, error)


def _serve(session: Session, message: Message) -> Result:
    if isinstance(message, Unknown):
        _check_known(session)
        raise Refused(Status.UNKNOWN_COMMAND, f"0x{message.opcode:02x} is no command of this protocol")
    spec = message.command if isinstance(message, Malformed) else message.spec
    handler = HANDLERS.get(spec.name)
    if handler is None or handler.needs is not Who.ANYONE:
        _check_known(session)
    if isinstance(message, Malformed) and handler is not None and handler.malformed is not None:
        handler.malformed(session, message)
        return None
    if isinstance(message, Malformed):
        # Those who speak DCP know these two words (capture 03b_dcp_malformed).
        told = "Invalid arguments" if message.opcode in STREAM_OPCODES else None
        raise Refused(Status.INVALID, told or f"{spec.name}: {message.problem.text}")
    assert isinstance(message, Request)
    if handler is None:
        raise Refused(Status.NOT_SUPPORTED, f"{spec.name} is not served by this node")
    if handler.bucket and session.bucket is None:
        raise Refused(Status.NO_BUCKET, "no bucket is selected")
    also = handler.also is not None and session.may(handler.also)
    if isinstance(handler.needs, Role) and not session.may(handler.needs) and not also:
        raise Refused(Status.NO_ACCESS, f"{spec.name} takes the role {handler.needs}")
    if message.framing:
        _check_framing(message.framing)
    return handler.serve(session, message)


def _check_known(session: Session) -> None:
    if session.user is None:
        raise Refused(Status.AUTH_ERROR, "authenticate first")


def _check_framing(framing: bytes) -> None:
    """Refuse what the framing extras ask for and nobody does; what is served reads them for itself."""
    for info in frame_infos(framing):
        if info.id == RequestFrameInfo.DURABILITY:
            raise Refused(Status.NOT_SUPPORTED, "hello did not agree on durable writes")
        if info.id not in {RequestFrameInfo.BARRIER, RequestFrameInfo.PRESERVE_EXPIRY}:
            raise Refused(Status.UNKNOWN_FRAME_INFO, f"frame info {info.id} is not known here")


def frame_infos(framing: bytes) -> tuple[FrameInfo, ...]:
    """The objects in the framing extras of a request."""
    try:
        return split_frame_infos(framing)
    except RemoteProtocolError as error:
        raise Refused(Status.INVALID, error.text) from error


def _send(session: Session, message: Request, result: Answer) -> None:
    if result is None or message.spec.answered in {Answered.NEVER, Answered.WHEN_REFUSED}:
        return
    for reply in (result,) if isinstance(result, Response) else result:
        session.send(encode(reply, Dialect.DCP))


def _refuse(session: Session, frame: Frame, error: Exception) -> None:
    """Answer with an error, but for a miss that the command keeps silent about."""
    opcode, opaque = frame.header.opcode, frame.header.opaque
    refused = error if isinstance(error, Refused) else Refused(Status.TEMPORARY_FAILURE, str(error))
    if not isinstance(error, HeadraceError):
        log.error("a request met a fault of ours", exc_info=error, extra={"peer": session.peer, "opcode": opcode})
        refused = Refused(Status.INTERNAL_ERROR, "a fault of the node: its log says more")
    if refused.status is Status.KEY_NOT_FOUND and opcode in _SILENT_MISSES:
        return
    session.send(replies.error(opcode, opaque, session.worded(refused)))


_SILENT_MISSES = frozenset(
    cls.spec.opcodes[Dialect.DCP]
    for cls in REQUESTS
    if cls.spec.answered is Answered.UNLESS_MISSED and Dialect.DCP in cls.spec.opcodes
)
"""The quiet forms of get."""
