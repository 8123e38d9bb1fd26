"""A layout made ready to read and write bodies: structs, sizes and the order of the parts.

A body is framing extras, extras, engine-specific bytes, key, value, metadata. A plan reads all but the first, which
belongs to the header. What does not fit is answered with a `Misfit` that names the byte, counted from the start of the
message; reading never raises.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from headrace.errors import LocalProtocolError
from headrace.wire.fields import DERIVED, FieldSpec, Integer, Octets, Rows, Rule, Section
from headrace.wire.limits import HEADER_BYTES
from headrace.wire.message import Layout, Message, Spec, key_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.wire.header import Header

_COUNT = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a body does not have a layout: the byte, and the reason."""

    offset: int
    text: str


def _getter(names: tuple[str, ...]) -> Callable[[Message], tuple[Any, ...]]:
    """What gives some fields of a message, in one call where there are several."""
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda message: (get(message),)


class Plan:
    """One layout of one message, ready for use."""

    def __init__(self, spec: Spec, layout: Layout) -> None:
        self.spec = spec
        self.layout = layout
        self.carried = layout.carried
        self.key_rule = key_rule(spec, layout)
        self.raw_extras = next((name for name in layout.extras if self._is_octets(name)), "")
        self.extras = struct.Struct(">" + "".join(self._code(name) for name in layout.extras))
        # A value that is one run of bytes needs no walk: this is the path of every mutation.
        self.plain_value = layout.value[0] if len(layout.value) == 1 and self._is_octets(layout.value[0]) else ""
        self._plain_rows = self._rows_alone()
        self._is_short = not (
            self.raw_extras or layout.engine or layout.meta or layout.constants or DERIVED.keys() & set(layout.extras)
        )
        """Whether there are numbers, a key and a value alone: most messages, and those of streams among them."""
        self._constants = tuple((name, layout.constants[name]) for name in self.carried if name in layout.constants)
        self._absent = tuple(name for name in spec.fields if name not in self.carried)
        self._absent_of, self._carried_of = _getter(self._absent), _getter(tuple(self.carried))
        self._constants_of = _getter(tuple(name for name, _ in self._constants))
        self._extras_of = _getter(layout.extras if self._is_short else ())
        self._defaults = tuple(spec.defaults[name] for name in self._absent)
        self._numbers = tuple(number for _, number in self._constants)

    def _rows_alone(self) -> Rows | None:
        """The rows that are all of the value, as many as it has room for: a failover log is that."""
        fields = [self.spec.field(name) for name in self.layout.value]
        if len(fields) != 1 or fields[0].when:
            return None
        kind = fields[0].kind
        return kind if isinstance(kind, Rows) and not kind.counted else None

    def _is_octets(self, name: str) -> bool:
        return isinstance(self.spec.field(name).kind, Octets)

    def _code(self, name: str) -> str:
        return "" if self._is_octets(name) else self.spec.integer(name).code

    def read(self, header: Header, body: bytes) -> dict[str, Any] | Misfit:
        """Give the fields of a body by name, or say why it is not of this layout."""
        at = header.framing_length + header.extras_length
        if self._is_short and header.extras_length == self.extras.size and not self._key_misfits(header.key_length):
            return self._read_short(header.framing_length, at, at + header.key_length, body)
        if self.raw_extras:
            values: dict[str, Any] = {self.raw_extras: body[header.framing_length : at]}
        elif header.extras_length != self.extras.size:
            return Misfit(4, f"extras of {header.extras_length} bytes; these fields take {self.extras.size}")
        else:
            numbers = self.extras.unpack_from(body, header.framing_length)
            values = dict(zip(self.layout.extras, numbers, strict=True))
        engine_end = at + values.pop("engine_length", 0)
        key_end = engine_end + header.key_length
        value_end = len(body) - values.pop("meta_length", 0)
        if key_end > value_end:
            needed = key_end + len(body) - value_end
            return Misfit(8, f"engine bytes, key and metadata need {needed} of {len(body)} bytes")
        if self._key_misfits(header.key_length):
            return Misfit(2, f"a key of {header.key_length} bytes; this message {self.key_rule.value} a key")
        if self.layout.key:
            values[self.layout.key] = body[engine_end:key_end]
        if self.layout.meta:
            values[self.layout.meta] = body[value_end:]
        misfit = self._read_parts(Section.ENGINE, body[at:engine_end], at, values)
        if self.plain_value:
            values[self.plain_value] = body[key_end:value_end]
        else:
            misfit = misfit or self._read_parts(Section.VALUE, body[key_end:value_end], key_end, values)
        return misfit or self._constants_misfit(header, values) or values

    def _read_short(self, start: int, key_at: int, value_at: int, body: bytes) -> dict[str, Any] | Misfit:
        layout = self.layout
        values: dict[str, Any] = dict(zip(layout.extras, self.extras.unpack_from(body, start), strict=True))
        if layout.key:
            values[layout.key] = body[key_at:value_at]
        if self.plain_value:
            values[self.plain_value] = body[value_at:]
        elif (rows := self._plain_rows) is not None and are_rows(rows, len(body) - value_at):
            values[layout.value[0]] = tuple(rows_of(rows, body[value_at:]))
        elif layout.value or value_at < len(body):
            return self._read_parts(Section.VALUE, body[value_at:], value_at, values) or values
        return values

    def _constants_misfit(self, header: Header, values: dict[str, Any]) -> Misfit | None:
        """Hold the numbers that tell layouts apart against this one's; they stand first in extras or value."""
        for name, number in self.layout.constants.items():
            if values[name] != number:
                before = 0 if name in self.layout.extras else header.extras_length
                at = HEADER_BYTES + header.framing_length + before
                return Misfit(at, f"{name} {values[name]} is not the {number} of this layout")
        return None

    def _key_misfits(self, length: int) -> bool:
        return length == 0 if self.key_rule is Rule.MUST else length > 0 and self.key_rule is Rule.MUST_NOT

    def parts(self, section: Section) -> tuple[str, ...]:
        """The fields of the engine-specific bytes or of the value."""
        return self.layout.engine if section is Section.ENGINE else self.layout.value

    def _read_parts(self, section: Section, data: bytes, start: int, values: dict[str, Any]) -> Misfit | None:
        at = 0
        for name in self.parts(section):
            spec = self.spec.field(name)
            left = len(data) - at
            if not brought(spec, values.get("flags"), left):
                continue
            length = part_length(spec, data, at)
            if length > left:
                return Misfit(HEADER_BYTES + start + at, f"{spec.label} needs {length} bytes, {left} are left")
            if length < 0:
                return Misfit(HEADER_BYTES + start + at, f"{left} bytes are no {spec.label}: {rows_rule(spec)}")
            values[name] = part_value(spec, data[at : at + length])
            at += length
        if at < len(data):
            return Misfit(HEADER_BYTES + start + at, f"{len(data) - at} bytes that no field explains")
        return None

    def fits(self, message: Message) -> bool:
        """Whether a message has just the fields of this layout: nothing is dropped, and nothing is padded."""
        return (
            self._absent_of(message) == self._defaults
            and None not in self._carried_of(message)
            and self._constants_of(message) == self._numbers
        )

    def carries(self, message: Message) -> bool:
        """Whether every field that says something, and may not be dropped, has a place here."""
        return all(self.says(message, name) for name in self._absent) and all(
            getattr(message, name) in (None, number) for name, number in self._constants
        )

    def says(self, message: Message, name: str) -> bool:
        """Whether nothing is lost of a field: it has a place here that can hold its number, or it says nothing."""
        content = getattr(message, name)
        if name in self.carried:
            return content is None or content == self.layout.constants.get(name, content)
        return self.spec.fields[name].ignorable or content == self.spec.defaults[name]

    def dropped(self, message: Message) -> int:
        """How many ignorable fields say something and have no place here."""
        return sum(getattr(message, name) != self.spec.defaults[name] for name in self._absent)

    def padding(self, message: Message) -> int:
        """How many fields of the layout the message has nothing for."""
        return sum(getattr(message, name) is None for name in self.carried)

    def write(self, message: Message) -> tuple[bytes, bytes, bytes]:
        """Give extras, key, and the body behind the framing extras that includes them both."""
        numbers: Sequence[int | None]
        if self._is_short and None not in (numbers := self._extras_of(message)):
            return self._write_short(message, numbers)
        engine = self._write_parts(Section.ENGINE, message)
        meta = (getattr(message, self.layout.meta) or b"") if self.layout.meta else b""
        key = self._key(message)
        lengths = {"engine_length": len(engine), "meta_length": len(meta)}
        if self.raw_extras:
            extras = getattr(message, self.raw_extras)
        else:
            numbers = [lengths[name] if name in DERIVED else self._number(message, name) for name in self.layout.extras]
            extras = self._pack(self.extras, numbers)
        value = self._write_parts(Section.VALUE, message)
        return extras, key, b"".join((extras, engine, key, value, meta))

    def _write_short(self, message: Message, numbers: Sequence[int | None]) -> tuple[bytes, bytes, bytes]:
        extras = self._pack(self.extras, numbers)
        key = self._key(message)
        value = self._write_parts(Section.VALUE, message) if self.layout.value else b""
        return extras, key, extras + key + value

    def _key(self, message: Message) -> bytes:
        key = (getattr(message, self.layout.key) or b"") if self.layout.key else b""
        if self._key_misfits(len(key)):
            raise LocalProtocolError(f"{self.spec.name} {self.key_rule.value} a key")
        return key

    def _number(self, message: Message, name: str) -> int:
        number: int | None = getattr(message, name)
        return self.layout.constants.get(name, 0) if number is None else number

    def _pack(self, packer: struct.Struct, numbers: Sequence[int | None]) -> bytes:
        try:
            return packer.pack(*numbers)
        except struct.error as error:
            raise LocalProtocolError(f"{self.spec.name} cannot carry {list(numbers)}: {error}") from error

    def _write_parts(self, section: Section, message: Message) -> bytes:
        written = []
        for name in self.parts(section):
            spec = self.spec.field(name)
            content = getattr(message, name)
            if spec.when:
                asked = bool((getattr(message, "flags", None) or 0) & spec.when)
                if asked == (content is None) and not (asked and spec.optional):
                    raise LocalProtocolError(
                        f"{self.spec.name}: flag 0x{spec.when:02x} and {spec.label} come together or not at all"
                    )
                if content is None:
                    continue
            written.append(self._write_part(spec, content, self.layout.constants.get(name, 0)))
        return b"".join(written)

    def _write_part(self, spec: FieldSpec, content: Any, otherwise: int) -> bytes:
        if isinstance(spec.kind, Integer):
            return self._pack(struct.Struct(">" + spec.kind.code), [otherwise if content is None else content])
        if isinstance(spec.kind, Octets):
            return content or b""
        rows = content or ()
        single = len(spec.kind.columns) == 1
        packed = [self._pack(spec.kind.packer, [row] if single else list(row)) for row in rows]
        if spec.kind.counted:
            packed.insert(0, self._pack(_COUNT, [len(packed)]))
        return b"".join(packed)


def read_first(plans: tuple[Plan, ...], header: Header, body: bytes) -> tuple[Plan, dict[str, Any]] | Misfit:
    """Read a body by the first plan that it fits, or say why it fits none.

    Extras of the right length show which layout was meant: its reason is the one to tell.
    """
    meant: Misfit | None = None
    for plan in plans:
        values = plan.read(header, body)
        if not isinstance(values, Misfit):
            return plan, values
        if plan.extras.size == header.extras_length:
            meant = meant or values
    sizes = sorted({plan.extras.size for plan in plans})
    return meant or Misfit(4, f"extras of {header.extras_length} bytes; it takes {' or '.join(map(str, sizes))}")


def brought(spec: FieldSpec, flags: int | None, left: int) -> bool:
    """Whether a field is there: always, or because of its flag; an optional one only where bytes for it are."""
    if not spec.when:
        return True
    return bool((flags or 0) & spec.when) and not (spec.optional and left < _COUNT.size)


def rows_rule(spec: FieldSpec) -> str:
    """What rows have to be, in words."""
    assert isinstance(spec.kind, Rows)
    return f"at most {spec.kind.rows_max} rows of {spec.kind.packer.size} bytes"


def are_rows(kind: Rows, length: int) -> bool:
    """Whether so many bytes are rows of a table without a count, and no more of them than it may have."""
    size = kind.packer.size
    return length % size == 0 and length <= size * kind.rows_max


def part_length(spec: FieldSpec, data: bytes, at: int) -> int:
    """How many bytes a field takes at this place; more than are left when it is cut, -1 when they are no rows."""
    left = len(data) - at
    if isinstance(spec.kind, Integer):
        return spec.kind.size
    if isinstance(spec.kind, Octets):
        return left
    size = spec.kind.packer.size
    if not spec.kind.counted:
        return left if are_rows(spec.kind, left) else -1
    if left < _COUNT.size:
        return _COUNT.size
    return int(_COUNT.size + size * _COUNT.unpack_from(data, at)[0])


def part_value(spec: FieldSpec, data: bytes) -> Any:
    """Read one field of the value or of the engine-specific bytes."""
    if isinstance(spec.kind, Integer):
        return int.from_bytes(data)
    if isinstance(spec.kind, Octets):
        return data
    return tuple(rows_of(spec.kind, data))


def rows_of(kind: Rows, data: bytes) -> list[Any]:
    """The rows of a table, without its count."""
    content = data[_COUNT.size :] if kind.counted else data
    single = len(kind.columns) == 1
    return [numbers[0] if single else kind.row(*numbers) for numbers in kind.packer.iter_unpack(content)]
