"""How the catalogue writes a field down: where it stands, how wide it is, what its numbers mean, what it is for.

    by_seqno: Seqno = u64("by seqno", "the place of this change in its vbucket")

Each function gives a dataclass field whose metadata is a `FieldSpec`. A field with the default None is one that only
some layouts carry. `ignorable` marks what may be dropped silently when the dialect cannot carry it; anything else that
cannot be carried is refused.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.wire.dialects import Dialect

Names = type[IntEnum] | type[IntFlag]
_REQUIRED: Any = dataclasses.MISSING


class Section(Enum):
    """The parts of a body, in the order of the wire. A field names its usual one; a layout may put it in another."""

    EXTRAS = "extras"
    ENGINE = "engine"
    KEY = "key"
    VALUE = "value"
    META = "meta"


class Rule(Enum):
    """Whether a key or a value has to be there, in the documents' words."""

    MUST = "must have"
    MAY = "may have"
    MUST_NOT = "must not have"


@dataclass(frozen=True, slots=True)
class Integer:
    """A big-endian unsigned integer."""

    size: int

    @property
    def code(self) -> str:
        """The letter that `struct` has for it."""
        return {1: "B", 2: "H", 4: "I", 8: "Q"}[self.size]


@dataclass(frozen=True, slots=True)
class Octets:
    """All the bytes that are left in the section."""


@cache
def _packer(layout: str) -> struct.Struct:
    return struct.Struct(">" + layout)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of integers: as many as a 16-bit count says, or as the section has room for, up to `rows_max`.

    `columns` are the labels of one row, `row` makes a row of the numbers (a NamedTuple, or int for one column).
    """

    layout: str
    columns: tuple[str, ...]
    row: Any
    rows_max: int = 1 << 16
    counted: bool = False

    @property
    def packer(self) -> struct.Struct:
        """The struct of one row."""
        return _packer(self.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """Everything that is known of a field, written once.

    `when` is the flag that brings a field along, `optional` marks one that may be missing even then. What is `secret`
    is never shown by `repr`, so that no log has it.
    """

    section: Section
    kind: Integer | Octets | Rows
    label: str
    sentence: str
    names: Names | Mapping[Dialect, Names] | None = None
    zero: str = ""
    ignorable: bool = False
    when: int = 0
    optional: bool = False
    secret: bool = False
    rule: Rule = Rule.MAY

    def names_in(self, dialect: Dialect) -> Names | None:
        """The enum for this field's numbers in a dialect."""
        if isinstance(self.names, Mapping):
            return self.names[dialect]
        return self.names

    @property
    def name(self) -> str:
        """The label as a machine-readable name."""
        return machine_name(self.label)


@cache
def machine_name(label: str) -> str:
    """`by seqno` -> `by_seqno`, `Engine priv.` -> `engine_priv`."""
    return "_".join("".join(c if c.isalnum() else " " for c in label).lower().split())


def _integer(size: int, label: str, sentence: str, default: Any, **more: Any) -> Any:
    section = more.pop("section", Section.EXTRAS)
    spec = FieldSpec(section=section, kind=Integer(size), label=label, sentence=sentence, **more)
    return dataclasses.field(default=default, metadata={"spec": spec})


def u8(label: str, sentence: str, *, default: Any = _REQUIRED, **more: Any) -> Any:
    """Declare an integer of 8 bits."""
    return _integer(1, label, sentence, default, **more)


def u16(label: str, sentence: str, *, default: Any = _REQUIRED, **more: Any) -> Any:
    """Declare an integer of 16 bits."""
    return _integer(2, label, sentence, default, **more)


def u32(label: str, sentence: str, *, default: Any = _REQUIRED, **more: Any) -> Any:
    """Declare an integer of 32 bits."""
    return _integer(4, label, sentence, default, **more)


def u64(label: str, sentence: str, *, default: Any = _REQUIRED, **more: Any) -> Any:
    """Declare an integer of 64 bits."""
    return _integer(8, label, sentence, default, **more)


def octets(section: Section, label: str, sentence: str, *, default: Any = _REQUIRED, **more: Any) -> Any:
    """Declare bytes that fill what is left of their section."""
    spec = FieldSpec(section=section, kind=Octets(), label=label, sentence=sentence, **more)
    return dataclasses.field(default=default, metadata={"spec": spec})


def key(sentence: str, *, label: str = "Key", default: Any = _REQUIRED) -> Any:
    """Declare the key; without a default it has to be there."""
    rule = Rule.MUST if default is _REQUIRED else Rule.MAY
    return octets(Section.KEY, label, sentence, default=default, rule=rule)


def value(sentence: str, *, label: str = "Value", default: Any = b"", secret: bool = False) -> Any:
    """Declare a value that is opaque to the protocol."""
    return octets(Section.VALUE, label, sentence, default=default, secret=secret)


def rows(label: str, sentence: str, kind: Rows, *, default: Any = _REQUIRED, **more: Any) -> Any:
    """Declare rows of integers in the value."""
    spec = FieldSpec(section=Section.VALUE, kind=kind, label=label, sentence=sentence, **more)
    return dataclasses.field(default=default, metadata={"spec": spec})


ENGINE_LENGTH = FieldSpec(
    section=Section.EXTRAS,
    kind=Integer(2),
    label="Engine priv.",
    sentence="length of the engine-specific bytes between extras and key",
)
META_LENGTH = FieldSpec(
    section=Section.EXTRAS, kind=Integer(2), label="nmeta", sentence="length of the metadata behind the value"
)
DERIVED: Mapping[str, tuple[Section, FieldSpec]] = {
    "engine_length": (Section.ENGINE, ENGINE_LENGTH),
    "meta_length": (Section.META, META_LENGTH),
}
"""Lengths that a layout names among its extras and the codec computes; no message has an attribute for them."""
