"""Any bytes -> what the documents print of them: each field with its place, its number and what the number means.

`dissect` is total. It reads with the codec's own plans; where a header contradicts its bytes, as 13 of the messages
drawn in the documents do, it lays out the fields that the bytes have room for and says what is wrong at which byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import RemoteProtocolError
from headrace.wire.codes import Datatype, Magic, RequestFrameInfo, ResponseFrameInfo, Status, names_of, words
from headrace.wire.dialects import Dialect
from headrace.wire.fields import FieldSpec, Integer, Octets, Rows, Rule, Section, machine_name
from headrace.wire.frame_info import split_frame_infos
from headrace.wire.header import FLEXIBLE_MAGICS, MAGICS, Header
from headrace.wire.limits import HEADER_BYTES
from headrace.wire.message import Kind
from headrace.wire.plan import Misfit, Plan, brought, part_length, read_first, rows_of
from headrace.wire.registry import ANSWERS, PLANS, kind_of, lookup, reply_to

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from headrace.wire.message import Message, Spec

_STREAM_OPCODES = range(0x40, 0x68)
_MISDRAWN = (Dialect.UPR_DRAFT, Kind.RESPONSE, 0x5A)
"""Set vbucket state, which upr-transport-draft.md:830 draws as a response that has a vbucket (E-DRAFT-14)."""

_EXTRAS_LENGTH_AT = 4
_COUNT_BYTES = 2
_LISTED = "# listed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldView:
    """One row of the table: `Key length (2,3) : 0x0005`. Offsets count from the start of the message."""

    name: str
    label: str
    offset: int
    length: int
    value: int | str | bytes
    meaning: str = ""
    depth: int = 0

    @property
    def width(self) -> int:
        """How many hex digits the number has on paper."""
        return 2 * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong, and at which byte of the message."""

    offset: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dissection:
    """One message, taken apart."""

    dialect: str
    message: str
    kind: str
    opcode: int
    title: str
    sentence: str
    data: bytes
    fields: tuple[FieldView, ...]
    problems: tuple[Problem, ...]
    known: bool


def message_length(data: bytes) -> int | None:
    """How long the first message is by its own header; None when there is no whole header."""
    return HEADER_BYTES + int.from_bytes(data[8:12]) if len(data) >= HEADER_BYTES else None


def fits(data: bytes, dialect: Dialect) -> bool:
    """Whether these bytes are a known message of a dialect with nothing wrong."""
    found = dissect(data, dialect)
    return found.known and not found.problems


def dissect(data: bytes, dialect: Dialect) -> Dissection:
    """Take one message apart; never raises, whatever the bytes.

    >>> from headrace.wire.dialects import Dialect
    >>> dissect(bytes.fromhex("800a00000000000000000000000000070000000000000000"), Dialect.DCP).title
    'NOOP command'
    """
    if len(data) < HEADER_BYTES or data[0] not in MAGICS:
        return _no_message(data, dialect)
    header = Header.parse(data)
    kind = kind_of(header.magic)
    problems = _header_problems(header, data)
    if (dialect, kind, header.opcode) == _MISDRAWN and len(data) > HEADER_BYTES:
        kind = Kind.REQUEST
        problems.append(Problem(offset=0, text="the magic of a response over the fields of a request"))
    found = lookup(kind, header.opcode, dialect)
    if found is None:
        name, spec = "unknown", None
        family = str(dialect) if header.opcode in _STREAM_OPCODES else "kv"
        body, sentence = list(_raw_body(header, data)), ""
    else:
        cls, spoken = found
        name, spec, family = cls.spec.name, cls.spec, cls.spec.family or str(spoken)
        answer: type[Message] = reply_to(cls, header.specific) if kind in ANSWERS else cls
        sentence = answer.spec.sentence.partition("\n")[0]
        body, more = _known_body(answer, spoken, header, data)
        problems += more
    return Dissection(
        dialect=family,
        message=name,
        kind=kind,
        opcode=header.opcode,
        title=_title(family, name, kind, header.opcode),
        sentence=sentence,
        data=data,
        fields=(*_header_fields(header, kind, spec, family), *_framing_fields(header, kind, data), *body),
        problems=tuple(sorted(problems, key=lambda problem: problem.offset)),
        known=spec is not None,
    )


def _title(family: str, name: str, kind: Kind, opcode: int) -> str:
    prefix = "" if family == "kv" else family.upper().replace("-", "_") + "_"
    plain = name.removeprefix("tap_").removeprefix("dcp_")
    spelled = f"OPCODE 0x{opcode:02x}" if name == "unknown" else plain.upper()
    return f"{prefix}{spelled} {'response' if kind in ANSWERS else 'command'}"


def _no_message(data: bytes, dialect: Dialect) -> Dissection:
    """Bytes that are no message: too few for a header, or without a magic."""
    if data and data[0] not in MAGICS:
        problem = Problem(offset=0, text=f"0x{data[0]:02x} is no magic of this protocol")
    else:
        problem = Problem(offset=len(data), text=f"{len(data)} bytes; a header has {HEADER_BYTES}")
    rest = (_octets("bytes", "Bytes", 0, data),) if data else ()
    return Dissection(
        dialect=str(dialect),
        message="unknown",
        kind="unknown",
        opcode=data[1] if len(data) > 1 else 0,
        title="NO MESSAGE",
        sentence="",
        data=data,
        fields=rest,
        problems=(problem,),
        known=False,
    )


def _header_problems(header: Header, data: bytes) -> list[Problem]:
    problems = []
    stated = HEADER_BYTES + header.body_length
    if stated != len(data):
        problems.append(
            Problem(
                offset=8,
                text=f"total body says {header.body_length} bytes, {len(data) - HEADER_BYTES} follow the header",
            )
        )
    named = header.framing_length + header.extras_length + header.key_length
    if named > header.body_length:
        problems.append(
            Problem(offset=8, text=f"total body says {header.body_length} bytes, extras and key alone have {named}")
        )
    return problems


def _header_fields(header: Header, kind: Kind, spec: Spec | None, family: str) -> Iterator[FieldView]:
    def row(label: str, offset: int, length: int, number: int, meaning: str = "") -> FieldView:
        name = label.lower().replace(" ", "_")
        return FieldView(name=name, label=label, offset=offset, length=length, value=number, meaning=meaning)

    yield row("Magic", 0, 1, header.magic, words(Magic(header.magic).name))
    yield row("Opcode", 1, 1, header.opcode, words(spec.name) if spec else "")
    if header.magic in FLEXIBLE_MAGICS:
        yield row("Framing length", 2, 1, header.framing_length)
        yield row("Key length", 3, 1, header.key_length)
    else:
        yield row("Key length", 2, 2, header.key_length)
    yield row("Extra length", 4, 1, header.extras_length)
    # The draft once had the type of a request here, and draws it still: no bit of it is a datatype.
    bits = 0 if family == Dialect.UPR_DRAFT else header.datatype
    yield row("Data type", 5, 1, header.datatype, names_of(Datatype, bits))
    if kind in ANSWERS:
        yield row("Status", 6, 2, header.specific, names_of(Status, header.specific))
    else:
        yield row("Vbucket", 6, 2, header.specific)
    yield row("Total body", 8, 4, header.body_length)
    yield row("Opaque", 12, 4, header.opaque)
    yield row("CAS", 16, 8, header.cas)


def _framing_fields(header: Header, kind: Kind, data: bytes) -> Iterator[FieldView]:
    """The framing extras: bytes, and what they say."""
    framing = data[HEADER_BYTES : HEADER_BYTES + header.framing_length]
    if not framing:
        return
    names = ResponseFrameInfo if kind in ANSWERS else RequestFrameInfo
    try:
        told = [(names_of(names, info.id) or f"0x{info.id:x}", info.data) for info in split_frame_infos(framing)]
    except RemoteProtocolError as error:
        told = [(error.text, b"")]
    yield FieldView(
        name="framing_extras",
        label="Framing extras",
        offset=HEADER_BYTES,
        length=len(framing),
        value=framing,
        meaning=", ".join(f"{name} 0x{data.hex()}" if data else name for name, data in told),
        depth=1,
    )


def _raw_body(header: Header, data: bytes) -> Iterator[FieldView]:
    """The parts of a message whose fields nobody knows."""
    at = HEADER_BYTES + header.framing_length
    for label, length in (("Extras", header.extras_length), ("Key", header.key_length), ("Value", len(data))):
        part = data[at : at + length]
        if part:
            yield _octets(label.lower(), label, at, part, depth=0 if label != "Extras" else 1)
        at += len(part)


def _known_body(
    cls: type[Message], dialect: Dialect, header: Header, data: bytes
) -> tuple[list[FieldView], list[Problem]]:
    """The fields of a known message: by the plan that fits, or else by the one that leaves the least over."""
    plans = PLANS[cls, dialect]
    body = data[HEADER_BYTES:]
    consistent = header.problem(len(body)) is None and header.body_length == len(body)
    misfit: Misfit | None = None
    if consistent:
        read = read_first(plans, header, body)
        if not isinstance(read, Misfit):
            return list(_Walk(read[0], dialect, header, body, consistent=True).fields()), []
        misfit = read
    walks = [_Walk(plan, dialect, header, body, consistent=consistent) for plan in plans]
    views = [(walk, list(walk.fields())) for walk in walks]

    def rank(walk: _Walk) -> tuple[bool, int, bool]:
        """Extras of the right length show which layout was meant, unless the header lies."""
        return consistent and not walk.extras_agree, walk.left_over, not walk.extras_agree

    walk, fields = min(views, key=lambda pair: rank(pair[0]))
    if misfit:
        return fields, [Problem(offset=misfit.offset, text=misfit.text)]
    if not walk.extras_agree:
        text = f"extra length says {header.extras_length} bytes, the fields take {walk.extras_size}"
        walk.problems.append(Problem(offset=_EXTRAS_LENGTH_AT, text=text))
    return fields, walk.problems


class _Walk:
    """Lays a plan's fields over a body, whether or not the header agrees with them, or with itself."""

    def __init__(self, plan: Plan, dialect: Dialect, header: Header, body: bytes, *, consistent: bool) -> None:
        self.plan = plan
        self.consistent = consistent
        self.dialect = dialect
        self.header = header
        self.body = body
        self.extras_size = header.extras_length if plan.raw_extras else plan.extras.size
        self.extras_agree = self.extras_size == header.extras_length
        self.left_over = 0
        self.problems: list[Problem] = []
        self._numbers: dict[str, int] = {}

    def fields(self) -> Iterator[FieldView]:
        """Every field that the body has bytes for, then the bytes that no field explains."""
        layout = self.plan.layout
        at = yield from self._extras(self.header.framing_length)
        engine = self._numbers.get("engine_length", 0) if layout.engine else 0
        meta = self._numbers.get("meta_length", 0) if layout.meta else 0
        stated = self._numbers.get("engine_length", 0)
        if stated != engine:
            text = f"engine length says {stated} bytes; laid out so, this message has no engine-specific part"
            self._wrong(self.header.framing_length, text)
        yield from self._parts(Section.ENGINE, at, at + engine)
        at += engine
        keyed = self.consistent or self.plan.key_rule is not Rule.MUST_NOT
        key_end = at + (self.header.key_length if keyed else 0)
        if layout.key:
            yield from self._part(layout.key, at, key_end)
        elif self.body[at:key_end]:
            yield _octets("key", "Key", HEADER_BYTES + at, self.body[at:key_end])
        end = max(key_end, len(self.body) - meta)
        yield from self._parts(Section.VALUE, key_end, end)
        if layout.meta:
            yield from self._part(layout.meta, end, end + meta)

    def _extras(self, start: int) -> Generator[FieldView, None, int]:
        """The fields of the extras; where they end, by a header that can be believed or by the fields themselves."""
        end = start + (self.header.extras_length if self.consistent else self.extras_size)
        if self.plan.raw_extras:
            yield from self._part(self.plan.raw_extras, start, end)
            return end
        at = start
        for name in self.plan.layout.extras:
            size = self.plan.spec.integer(name).size
            if at + size > end:
                break
            yield from self._part(name, at, at + size)
            at += size
        if at < end:
            yield _octets("unexplained", "Unexplained", HEADER_BYTES + at, self.body[at:end])
        return end

    def _parts(self, section: Section, start: int, end: int) -> Iterator[FieldView]:
        data = self.body[start:end]
        at = whole = 0
        for name in self.plan.parts(section):
            spec = self.plan.spec.field(name)
            if not brought(spec, self._numbers.get("flags"), len(data) - at):
                continue
            length = part_length(spec, data, min(at, len(data)))
            if length < 0:
                assert isinstance(spec.kind, Rows)
                size = spec.kind.packer.size
                length = min((len(data) - at) // size, spec.kind.rows_max) * size
            yield from self._part(name, start + at, start + at + length, end)
            at += length
            whole = at if at <= len(data) else whole
        extra = data[whole:]
        if extra:
            if whole == at:  # else these are the first bytes of a field that is cut, and that was said
                self.left_over += len(extra)
                self._wrong(start + at, f"{len(extra)} bytes that no field explains")
            yield _octets("unexplained", "Unexplained", HEADER_BYTES + start + whole, extra)

    def _part(self, name: str, start: int, end: int, limit: int | None = None) -> Iterator[FieldView]:
        """One field; what the body, or its part up to the limit, is too short for is counted as missing."""
        spec = self.plan.spec.field(name)
        data = self.body[start : end if limit is None else min(end, limit)]
        missing = end - start - len(data)
        if missing:
            self.left_over += missing
            self._wrong(min(start, len(self.body)), f"{spec.label} needs {end - start} bytes, {len(data)} are there")
        if not data or (missing and not isinstance(spec.kind, Octets)):
            return
        if isinstance(spec.kind, Integer):
            number = int.from_bytes(data)
            self._numbers[name] = number
            yield self._number(spec, start, len(data), number)
        elif isinstance(spec.kind, Octets):
            yield _octets(spec.name, spec.label, HEADER_BYTES + start, data)
        else:
            yield from self._rows(spec, start, data)

    def _rows(self, spec: FieldSpec, start: int, data: bytes) -> Iterator[FieldView]:
        kind = spec.kind
        assert not isinstance(kind, Integer | Octets)
        at = start
        if kind.counted:
            count = int.from_bytes(data[:_COUNT_BYTES])
            yield self._number(spec, at, _COUNT_BYTES, count, label=_LISTED)
            at += _COUNT_BYTES
        sizes = [Integer({"B": 1, "H": 2, "I": 4, "Q": 8}[code]).size for code in kind.layout]
        for row in rows_of(kind, data):
            numbers = (row,) if len(kind.columns) == 1 else row
            for label, size, number in zip(kind.columns, sizes, numbers, strict=True):
                yield self._number(spec, at, size, number, label=label)
                at += size

    def _number(self, spec: FieldSpec, start: int, length: int, number: int, *, label: str = "") -> FieldView:
        """An integer; under a label of its own it is a column or a count, and a count has no names."""
        shown = label or spec.label
        names = None if label.endswith(_LISTED) else spec.names_in(self.dialect)
        meaning = names_of(names, number) if names else ""
        return FieldView(
            name=machine_name(shown),
            label=shown,
            offset=HEADER_BYTES + start,
            length=length,
            value=number,
            meaning=meaning or (spec.zero if number == 0 else ""),
            depth=1,
        )

    def _wrong(self, at: int, text: str) -> None:
        self.problems.append(Problem(offset=HEADER_BYTES + at, text=text))


def _octets(name: str, label: str, offset: int, data: bytes, depth: int = 0) -> FieldView:
    """Bytes as text where they are readable."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    return FieldView(
        name=name,
        label=label,
        offset=offset,
        length=len(data),
        value=text if text and text.isprintable() else data,
        depth=depth,
    )
