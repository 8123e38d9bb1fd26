"""Frames <-> messages, by the catalogue alone.

Decoding is total: an opcode that a dialect does not have gives `Unknown`, a body that fits no layout gives `Malformed`.
Both keep their bytes and go out again as they came in; what to answer is the connection's business. Only bytes that no
frame can be made of raise, in framing.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from headrace.errors import LocalProtocolError
from headrace.ids import Cas, Opaque, VBucketId
from headrace.wire.codes import Magic
from headrace.wire.dialects import Dialect
from headrace.wire.header import FLEXIBLE_MAGICS, Frame, Header, whole_frame
from headrace.wire.limits import BODY_BYTES_MAX
from headrace.wire.message import Kind, Message, Response, Spec
from headrace.wire.plan import Misfit, Plan, read_first
from headrace.wire.registry import ANSWERS, PLANS, kind_of, lookup, reply_to, spoken_in

_MAGIC_OF: dict[Kind, tuple[Magic, Magic | None]] = {
    Kind.REQUEST: (Magic.REQUEST, Magic.FLEXIBLE_REQUEST),
    Kind.RESPONSE: (Magic.RESPONSE, Magic.FLEXIBLE_RESPONSE),
    Kind.SERVER_REQUEST: (Magic.SERVER_REQUEST, None),  # the two of the server have no flexible form
    Kind.SERVER_RESPONSE: (Magic.SERVER_RESPONSE, None),
}
_MESSAGE_FIELDS = frozenset(field.name for field in dataclasses.fields(Message))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Unknown(Message):
    """A frame whose opcode the dialect does not have; kept as it came."""

    frame: Frame

    @property
    def opcode(self) -> int:
        """The opcode that nobody knows."""
        return self.frame.header.opcode

    def __repr__(self) -> str:
        return f"Unknown({self.frame.header})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Malformed(Message):
    """A frame of a known command whose body fits none of its layouts: `problem` says at which byte, and why."""

    command: Spec
    frame: Frame
    problem: Misfit

    @property
    def opcode(self) -> int:
        """The opcode of the command."""
        return self.frame.header.opcode

    def __repr__(self) -> str:
        return f"Malformed({self.command.name}, {self.problem}, {self.frame.header})"


def decode(data: bytes | Frame, dialect: Dialect = Dialect.DCP) -> Message:
    """Read one message.

    >>> decode(bytes.fromhex("800a00000000000000000000000000070000000000000000")).opaque
    7
    """
    frame = data if isinstance(data, Frame) else whole_frame(data, body_bytes_max=BODY_BYTES_MAX)
    header = frame.header
    common: dict[str, Any] = {"opaque": Opaque(header.opaque), "cas": Cas(header.cas), "datatype": header.datatype}
    if header.magic in FLEXIBLE_MAGICS:
        common["framing"] = frame.framing
    kind, found = _asked(header.magic, header.opcode, dialect)
    if found is None:
        return Unknown(frame=frame, **common)
    cls, spoken = found
    if kind in ANSWERS:
        cls = reply_to(cls, header.specific)
        common |= {"opcode": header.opcode, "status": header.specific}
    else:
        common["vbucket"] = VBucketId(header.specific)
    read = read_first(PLANS[cls, spoken], header, frame.body)
    if isinstance(read, Misfit):
        kept = {name: content for name, content in common.items() if name in _MESSAGE_FIELDS}
        return Malformed(command=found[0].spec, frame=frame, problem=read, **kept)
    plan, values = read
    return cls(layout=plan.layout.name, **common, **values)


@cache
def _asked(magic: int, opcode: int, dialect: Dialect) -> tuple[Kind, tuple[type[Message], Dialect] | None]:
    """Which way a frame goes, and which request it is, or answers; there are not many to remember."""
    kind = kind_of(magic)
    return kind, lookup(kind, opcode, dialect)


def encode(message: Message, dialect: Dialect = Dialect.DCP) -> bytes:
    """Write one message; what the dialect cannot say is refused, except fields that are marked as ignorable."""
    if isinstance(message, Unknown | Malformed):
        return message.frame.pack()
    plans, opcode, magics = _spoken(type(message), dialect)  # type: ignore[arg-type] # a class can be hashed
    plan = _choose(message, plans, dialect)
    try:
        extras, key, rest = plan.write(message)
    except TypeError as error:
        raise LocalProtocolError(f"{message.spec.name} has a field of the wrong type: {error}") from error
    framing = message.framing
    magic = magics[framing is not None]
    if magic is None:
        raise LocalProtocolError(f"{message.spec.name} has no header with framing extras")
    if opcode is None:
        assert isinstance(message, Response)
        opcode, specific = message.opcode, message.status
    else:
        specific = getattr(message, "vbucket", 0)
    before = framing or b""
    body = before + rest if before else rest
    # In the order of the header's fields: to name ten of them takes as long as to write them.
    numbers = (len(before), len(key), len(extras), message.datatype, specific, len(body), message.opaque, message.cas)
    return Header(magic, opcode, *numbers).pack() + body


@cache
def _spoken(cls: type[Message], dialect: Dialect) -> tuple[tuple[Plan, ...], int | None, tuple[Magic, Magic | None]]:
    """How a message goes out: its plans, its opcode, which an answer has from its request, and its magics."""
    spoken = spoken_in(cls, dialect)
    if spoken is None:
        raise LocalProtocolError(f"the {dialect} dialect has no {cls.spec.name}")
    opcode = None if issubclass(cls, Response) else cls.spec.opcodes[spoken]
    return PLANS[cls, spoken], opcode, _MAGIC_OF[cls.spec.kind]


def _choose(message: Message, plans: tuple[Plan, ...], dialect: Dialect) -> Plan:
    """The plan that a message was read by, if it still holds it; else the first of those that hold it best."""
    if message.layout:
        for plan in plans:
            if plan.layout.name == message.layout and plan.carries(message):
                return plan
    for plan in plans:
        if not plan.layout.read_only and plan.fits(message):
            return plan
    able = [plan for plan in plans if not plan.layout.read_only and plan.carries(message)]
    if able:
        return min(able, key=lambda plan: (plan.dropped(message), plan.padding(message)))
    unsent = [
        f"{name}={message.shown(name)}"
        for name in message.spec.fields
        if not any(plan.says(message, name) for plan in plans)
    ]
    raise LocalProtocolError(
        f"the {dialect} dialect has no {message.spec.name} with "
        + (", ".join(unsent) if unsent else "these fields together")
    )
