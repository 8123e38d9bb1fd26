"""Which class a frame's magic, opcode and dialect stand for."""

from __future__ import annotations

from headrace.wire import catalogue
from headrace.wire.codes import Magic, Status
from headrace.wire.dialects import Dialect
from headrace.wire.header import REQUEST_MAGICS, RESPONSE_MAGICS, Header
from headrace.wire.message import Kind, Message, Request, Response, ServerRequest
from headrace.wire.plan import Plan


def _entered(base: type[Message]) -> tuple[type[Message], ...]:
    """The messages of the catalogue below a base, in the order in which they are written there."""
    found = [cls for cls in vars(catalogue).values() if isinstance(cls, type) and issubclass(cls, base)]
    return tuple(cls for cls in found if "spec" in vars(cls))


REQUESTS = _entered(Request)
RESPONSES = _entered(Response)
SERVER_REQUESTS = _entered(ServerRequest)

PLANS: dict[tuple[type[Message], Dialect], tuple[Plan, ...]] = {
    (cls, dialect): tuple(Plan(cls.spec, layout) for layout in layouts)
    for cls in (*REQUESTS, *RESPONSES, *SERVER_REQUESTS)
    for dialect, layouts in cls.spec.layouts.items()
}
"""Every layout of every message, made ready."""

_BY_OPCODE: dict[tuple[Kind, Dialect, int], type[Message]] = {
    (cls.spec.kind, dialect, opcode): cls
    for cls in (*REQUESTS, *SERVER_REQUESTS)
    for dialect, opcode in cls.spec.opcodes.items()
}

_ELSE = {
    Dialect.DCP: Dialect.TAP,
    Dialect.UPR: Dialect.TAP,
    Dialect.UPR_DRAFT: Dialect.TAP,
    Dialect.TAP: Dialect.DCP,
}
"""One port serves all: an opcode that a dialect lacks may be another's, as TAP connect on a fresh connection is."""

ANSWERS = frozenset({Kind.RESPONSE, Kind.SERVER_RESPONSE})
_ASKED_BY = {Kind.RESPONSE: Kind.REQUEST, Kind.SERVER_RESPONSE: Kind.SERVER_REQUEST}


def kind_of(magic: int) -> Kind:
    """Which way a frame goes."""
    if magic in REQUEST_MAGICS:
        return Kind.REQUEST
    if magic in RESPONSE_MAGICS:
        return Kind.RESPONSE
    return Kind.SERVER_REQUEST if magic == Magic.SERVER_REQUEST else Kind.SERVER_RESPONSE


def lookup(kind: Kind, opcode: int, dialect: Dialect) -> tuple[type[Message], Dialect] | None:
    """The request class of an opcode, and the dialect that it is spoken in; a response is found by its request."""
    asked = _ASKED_BY.get(kind, kind)
    for spoken in (dialect, _ELSE[dialect]):
        cls = _BY_OPCODE.get((asked, spoken, opcode))
        if cls is not None:
            return cls, spoken
    return None


def spoken_in(cls: type[Message], dialect: Dialect) -> Dialect | None:
    """The dialect in which a message goes out on a connection of a dialect; None when it cannot."""
    if (cls, dialect) in PLANS:
        return dialect
    other = _ELSE[dialect]
    if issubclass(cls, Response):  # it has the opcode of its request, which may be the other's
        return other if (cls, other) in PLANS else None
    opcode = cls.spec.opcodes.get(other)
    if opcode is not None and lookup(cls.spec.kind, opcode, dialect) == (cls, other):
        return other
    return None


def only_draft(header: Header) -> bool:
    """Whether a message that comes before any other of UPR or DCP can only be of the draft.

    An open has 8 bytes of extras, and what adds a stream comes after it and has 4.
    """
    return header.magic == Magic.REQUEST and (header.opcode, header.extras_length) in _ONLY_DRAFT


_ONLY_DRAFT = frozenset(
    (cls.spec.opcodes[Dialect.UPR_DRAFT], cls.spec.extras_size(cls.spec.layouts[Dialect.UPR_DRAFT][0]))
    for cls in (catalogue.StreamRequest, catalogue.GetFailoverLog)
)


def reply_to(request: type[Message], status: int) -> type[Response]:
    """The class of an answer."""
    if request.spec.kind is Kind.SERVER_REQUEST:
        return catalogue.ServerReply
    known = request.spec.replies.get(status)
    if known is not None:
        return known
    return catalogue.Done if status == Status.SUCCESS else catalogue.ErrorReply
