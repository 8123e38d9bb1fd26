"""What a message is: the base classes, the decorator that enters a class in the catalogue, and its layouts.

A message is a frozen value. Its class says once which opcode it has in each dialect, who sends it, what answers it and
which layouts its body may have. A layout names fields in the order of the wire; one message has several where
dialects or versions differ in what they carry. Decoding tries a dialect's layouts in their order; encoding takes the
one that a message was decoded from, or else the one that carries all its fields with the least padding.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, TypeVar, dataclass_transform

from headrace.ids import Cas, Opaque, VBucketId
from headrace.wire import fields
from headrace.wire.dialects import ALL, Dialect
from headrace.wire.fields import DERIVED, FieldSpec, Integer, Rule, Section

T = TypeVar("T", bound="type[Message]")
_SHOWN_BYTES = 64


class Kind(StrEnum):
    """Which way a message goes through a connection, as its magic tells."""

    REQUEST = "request"
    RESPONSE = "response"
    SERVER_REQUEST = "server_request"
    SERVER_RESPONSE = "server_response"


class Direction(StrEnum):
    """Who sends a request."""

    CLIENT = "client to server"
    SERVER = "server to client"
    CONSUMER = "consumer to producer"
    PRODUCER = "producer to consumer"
    MANAGER = "manager to consumer"
    EITHER = "either side"


class Answered(StrEnum):
    """When a request is answered."""

    ALWAYS = "always"
    UNLESS_MISSED = "unless the item is missing"
    WHEN_REFUSED = "only when it is refused"
    WHEN_ASKED = "where its flags ask for it, and when it is refused"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way in which a message's body is laid out, as names of fields."""

    name: str
    dialects: frozenset[Dialect]
    extras: tuple[str, ...]
    engine: tuple[str, ...] = ()
    key: str = ""
    value: tuple[str, ...] = ()
    meta: str = ""
    constants: Mapping[str, int] = dataclasses.field(default_factory=dict)
    read_only: bool = False

    @property
    def carried(self) -> frozenset[str]:
        """The attributes that this layout sends."""
        names = (*self.extras, *self.engine, self.key, *self.value, self.meta)
        return frozenset(name for name in names if name and name not in DERIVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The catalogue's entry for one class of message."""

    name: str
    kind: Kind
    opcodes: Mapping[Dialect, int]
    direction: Direction
    answered: Answered
    replies: Mapping[int, type[Response]]
    flow_controlled: bool
    changes: bool
    sentence: str
    source: str
    fields: Mapping[str, FieldSpec]
    defaults: Mapping[str, Any]
    layouts: Mapping[Dialect, tuple[Layout, ...]]

    @property
    def dialects(self) -> frozenset[Dialect]:
        """The dialects that have this message."""
        return frozenset(self.opcodes) if self.opcodes else frozenset(self.layouts)

    @property
    def family(self) -> str:
        """`kv` for what all dialects share, else empty."""
        return "kv" if self.dialects == ALL else ""

    def extras_size(self, layout: Layout) -> int:
        """The extras length that a layout needs."""
        return sum(self.integer(name).size for name in layout.extras)

    def extras_offset(self, layout: Layout, name: str) -> int:
        """Where a field stands, counted from the start of the extras; -1 where the layout lacks it."""
        if name not in layout.extras:
            return -1
        before = layout.extras[: layout.extras.index(name)]
        return sum(self.integer(other).size for other in before)

    def integer(self, name: str) -> Integer:
        """The width of an integer field."""
        kind = self.field(name).kind
        assert isinstance(kind, Integer)
        return kind

    def field(self, name: str) -> FieldSpec:
        """The declaration of a field, or of a length that stands for one."""
        return DERIVED[name][1] if name in DERIVED else self.fields[name]


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(
        fields.u8,
        fields.u16,
        fields.u32,
        fields.u64,
        fields.octets,
        fields.key,
        fields.value,
        fields.rows,
        dataclasses.field,
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Message:
    """What every message has. `framing` is None under a classic header, else the flexible header's extras.

    `layout` names the layout that the bytes had, so that they go out as they came; empty lets encoding choose.
    """

    spec: ClassVar[Spec]

    opaque: Opaque = Opaque(0)
    cas: Cas = Cas(0)
    datatype: int = 0
    framing: bytes | None = None
    layout: str = dataclasses.field(default="", compare=False, repr=False)

    def _content(self) -> dict[str, Any]:
        """Every field by name, but for the layout, which is a matter of bytes and not of meaning."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.compare}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash((type(self), *self._content().values()))

    def __repr__(self) -> str:
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        told = [name for name, content in self._content().items() if content != defaults[name]]
        return f"{type(self).__name__}({', '.join(f'{name}={self.shown(name)}' for name in told)})"

    def shown(self, name: str) -> str:
        """A field as errors and logs may show it: no secrets, and no more of a value than a line holds."""
        content = getattr(self, name)
        declared = self.spec.fields.get(name)
        if declared is not None and declared.secret:
            return f"<{len(content)} bytes>"
        if isinstance(content, bytes) and len(content) > _SHOWN_BYTES:
            return f"{content[:_SHOWN_BYTES]!r}... ({len(content)} bytes)"
        if isinstance(content, tuple) and len(content) > _SHOWN_BYTES:
            return f"{content[:4]!r}... ({len(content)} rows)"
        return repr(content)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Request(Message):
    """A message that asks, or that tells what changed."""

    vbucket: VBucketId = VBucketId(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Response(Message):
    """A message that answers the request of the same opcode and opaque."""

    opcode: int
    status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ServerRequest(Message):
    """A request that the server starts (magic 0x82); its opcodes are a set of their own."""

    vbucket: VBucketId = VBucketId(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ServerResponse(Response):
    """An answer to what the server asked (magic 0x83)."""


Replies = Mapping[int, type[Response]]
"""What answers a request, by status."""


def layout(
    dialects: frozenset[Dialect],
    extras: str = "",
    *,
    name: str = "",
    engine: str = "",
    key: str = "",
    value: str = "",
    meta: str = "",
    read_only: bool = False,
    **constants: int,
) -> Layout:
    """Write a layout down: fields by name, in the order of the wire.

    A constant picks the layout by its number. A read-only layout is understood, and written only by a message that came
    in it.
    """
    return Layout(
        name=name or extras or value or "empty",
        dialects=dialects,
        extras=tuple(extras.split()),
        engine=tuple(engine.split()),
        key=key,
        value=tuple(value.split()),
        meta=meta,
        constants=constants,
        read_only=read_only,
    )


# Equality, hash and repr come from Message: to generate them for each of 120 classes would double the import.
_value = dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False, match_args=False)


def shape(cls: T) -> T:
    """Make a class a frozen value that messages are built on; it is no message itself, and has no entry."""
    made: T = _value(cls)  # type: ignore[assignment]  # the same class, slotted
    return made


def message(
    source: str,
    *layouts: Layout,
    opcode: int | Mapping[Dialect, int] | None = None,
    dialects: frozenset[Dialect] = ALL,
    direction: Direction = Direction.CLIENT,
    answered: Answered = Answered.ALWAYS,
    replies: Replies | None = None,
    flow_controlled: bool = False,
    changes: bool = False,
) -> Callable[[T], T]:
    """Make a class a frozen value and give it its entry; its docstring is the catalogue's sentence."""

    def enter(cls: T) -> T:
        made = shape(cls)
        known_fields = [f for f in dataclasses.fields(made) if "spec" in f.metadata]
        declared = {f.name: f.metadata["spec"] for f in known_fields}
        opcodes = dict.fromkeys(dialects, opcode) if isinstance(opcode, int) else dict(opcode or {})
        known = frozenset(opcodes) or dialects
        chosen = layouts or (_declared_layout(known, declared),)
        made.spec = Spec(
            name=snake(cls.__name__),
            kind=_kind(cls),
            opcodes=opcodes,
            direction=direction,
            answered=answered,
            replies=replies or {},
            flow_controlled=flow_controlled,
            changes=changes,
            sentence=(cls.__doc__ or "").strip(),
            source=source,
            fields=declared,
            defaults={f.name: f.default for f in known_fields},
            layouts={each: tuple(one for one in chosen if each in one.dialects) for each in Dialect if each in known},
        )
        return made

    return enter


def _kind(cls: type[Message]) -> Kind:
    if issubclass(cls, ServerResponse):
        return Kind.SERVER_RESPONSE
    if issubclass(cls, Response):
        return Kind.RESPONSE
    return Kind.SERVER_REQUEST if issubclass(cls, ServerRequest) else Kind.REQUEST


def _declared_layout(dialects: frozenset[Dialect], declared: Mapping[str, FieldSpec]) -> Layout:
    """The layout of a message that has but one: its fields as they were declared."""

    def of(section: Section) -> tuple[str, ...]:
        return tuple(name for name, spec in declared.items() if spec.section is section)

    return Layout(
        name="only",
        dialects=dialects,
        extras=of(Section.EXTRAS),
        key="".join(of(Section.KEY)),
        value=of(Section.VALUE),
    )


def snake(name: str) -> str:
    """GetAllVBSeqnos -> get_all_vb_seqnos, as explain and the metrics spell it."""
    plain = name.replace("VBucket", "Vbucket")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", plain).lower()


def key_rule(spec: Spec, chosen: Layout) -> Rule:
    """Whether a layout has a key."""
    return spec.fields[chosen.key].rule if chosen.key else Rule.MUST_NOT
