"""One message of the catalogue as a section of a page: who sends it, what answers it, how it is laid out."""

from collections.abc import Iterator, Sequence
from inspect import cleandoc

from headrace.wire import catalogue
from headrace.wire.codes import Status, words
from headrace.wire.dialects import Dialect
from headrace.wire.fields import FieldSpec, Integer, Octets, Rows, Rule, Section
from headrace.wire.limits import HEADER_BYTES
from headrace.wire.message import Answered, Kind, Layout, Message, Response, Spec, key_rule
from tools.reference.markdown import anchor, bullets, either, fenced, link, picture, table

NEWEST_FIRST = (Dialect.DCP, Dialect.UPR, Dialect.UPR_DRAFT, Dialect.TAP)
_UPPER = frozenset({"q", "k", "kq", "vb", "db", "sasl", "oso", "tap"})
_COLUMN_BYTES = {"B": 1, "H": 2, "I": 4, "Q": 8}


def title(spec: Spec) -> str:
    """`get_all_vb_seqnos` -> `Get all VB seqnos`; a request's page says of which dialect it is."""
    plain = spec.name if spec.kind is Kind.RESPONSE else spec.name.removeprefix("tap_").removeprefix("dcp_")
    spelled = [word.upper() if word in _UPPER else word for word in plain.split("_")]
    return " ".join([spelled[0][:1].upper() + spelled[0][1:], *spelled[1:]])


def heading(spec: Spec, dialect: Dialect) -> str:
    """The heading of a request: `0x57 Mutation`."""
    return f"0x{spec.opcodes[dialect]:02x} {title(spec)}"


def page_of(spec: Spec, dialect: Dialect) -> str:
    """The file that describes a request in a dialect."""
    return f"{spec.family or dialect}.md"


def request_link(spec: Spec, dialect: Dialect | None = None, text: str = "") -> str:
    """A link to a request, in the newest dialect that has it unless one is named."""
    chosen = dialect or next(each for each in NEWEST_FIRST if each in spec.opcodes)
    return link(text or heading(spec, chosen), f"{page_of(spec, chosen)}#{anchor(heading(spec, chosen))}")


def response_link(cls: type[Response]) -> str:
    """A link to the shape of an answer."""
    return link(title(cls.spec).lower(), f"responses.md#{anchor(title(cls.spec))}")


def section(cls: type[Message], dialect: Dialect) -> str:
    """The whole section of a request."""
    spec = cls.spec
    facts = [
        f"**Sent by** {spec.direction}",
        f"**Answer** {answer(cls)}",
        f"**Flow control** {'its bytes count' if spec.flow_controlled else 'its bytes do not count'}",
        f"**Body** {body_rules(spec, spec.layouts[dialect])}",
        f"**Names** `{spec.name}` in explain, `{cls.__name__}` in Python",
        f"**Source** {spec.source}",
    ]
    parts = [f"### {heading(spec, dialect)}", cleandoc(spec.sentence), bullets(facts)]
    pictures: set[str] = set()
    return "\n\n".join([*parts, *(described(spec, layout, dialect, pictures) for layout in spec.layouts[dialect])])


def answer(cls: type[Message]) -> str:
    """What answers a request, and when."""
    spec = cls.spec
    refusal = response_link(catalogue.ErrorReply)
    if spec.answered is Answered.NEVER:
        return "not answered"
    if spec.answered is Answered.WHEN_REFUSED:
        return f"not answered; one that is refused gets {refusal}"
    replies = spec.replies or {Status.SUCCESS: catalogue.Done}
    statuses: dict[type[Response], list[str]] = {}
    for status, reply in replies.items():
        statuses.setdefault(reply, []).append(words(Status(status).name))
    named = ", ".join(f"{response_link(reply)} ({either(each)})" for reply, each in statuses.items())
    prefix = "" if spec.answered is Answered.ALWAYS else f"{spec.answered}: "
    return f"{prefix}{named}; otherwise {refusal}"


def body_rules(spec: Spec, layouts: Sequence[Layout]) -> str:
    """`must have extras, must have key, may have value`, over all layouts."""
    extras = [Rule.MUST if layout.extras else Rule.MUST_NOT for layout in layouts]
    if any(_is_octets(spec, name) for layout in layouts for name in layout.extras):
        extras = [Rule.MAY]
    keys = [key_rule(spec, layout) for layout in layouts]
    values = [_value_rule(spec, layout) for layout in layouts]
    return ", ".join(
        f"{_common(rules).value} {part}" for part, rules in (("extras", extras), ("key", keys), ("value", values))
    )


def _common(rules: Sequence[Rule]) -> Rule:
    return rules[0] if len(set(rules)) == 1 else Rule.MAY


def _is_octets(spec: Spec, name: str) -> bool:
    return isinstance(spec.field(name).kind, Octets)


def _value_rule(spec: Spec, layout: Layout) -> Rule:
    if not layout.value:
        return Rule.MUST_NOT
    for field in map(spec.field, layout.value):
        if isinstance(field.kind, Integer) and not field.when:
            return Rule.MUST
    return spec.field(layout.value[0]).rule


def described(spec: Spec, layout: Layout, dialect: Dialect, pictures: set[str], note: str = "") -> str:
    """One layout: a line, the table of its fields, and the picture of its extras unless it was drawn before."""
    rows = list(_rows(spec, layout, dialect))
    raw = any(_is_octets(spec, name) for name in layout.extras)
    size = "any" if raw else str(spec.extras_size(layout))
    name = "" if layout.name in ("only", "any") else f" `{layout.name}`"
    notes = [f"`{field}` is {number}" for field, number in layout.constants.items()]
    notes += ["read, and written only by a message that came so"] if layout.read_only else []
    notes += [note] if note else []
    line = f"Layout{name}, extras of {size} bytes" + "".join(f"; {each}" for each in notes)
    if not rows:
        return f"{line}: the header is all there is."
    parts = [f"{line}:", table(["field", "offset", "bytes", "what it is", "names"], rows)]
    if layout.extras and not raw:
        cells = [(spec.field(each).label, spec.integer(each).size) for each in layout.extras]
        drawn = picture(cells)
        parts += [] if drawn in pictures else [fenced(drawn)]
        pictures.add(drawn)
    return "\n\n".join(parts)


def _rows(spec: Spec, layout: Layout, dialect: Dialect) -> Iterator[list[str]]:
    """The fields in the order of the wire; `at` is known until the first field of no fixed length."""
    at: int | None = HEADER_BYTES
    before = ""
    parts = (*layout.extras, *layout.engine, *((layout.key,) if layout.key else ()), *layout.value)
    for name in (*parts, *((layout.meta,) if layout.meta else ())):
        field = spec.field(name)
        place = f"after {before}" if at is None else str(at)
        if field.section is Section.META:
            place = "at the end"
        what = field.sentence + _condition(spec, field, dialect)
        yield [field.label, place, _length(field, layout), what, _names(field, dialect)]
        fixed = isinstance(field.kind, Integer) and not field.when
        at = at + spec.integer(name).size if at is not None and fixed else None
        before = field.label


def _length(field: FieldSpec, layout: Layout) -> str:
    if isinstance(field.kind, Integer):
        return str(field.kind.size)
    if isinstance(field.kind, Rows):
        sizes = [_COLUMN_BYTES[code] for code in field.kind.layout]
        columns = ", ".join(f"{label} {size}" for label, size in zip(field.kind.columns, sizes, strict=True))
        return f"{'2 for the count, then ' if field.kind.counted else ''}{sum(sizes)} a row: {columns}"
    return {
        Section.EXTRAS: "extras length",
        Section.ENGINE: "as Engine priv. says",
        Section.KEY: "key length",
        Section.VALUE: "the rest, less the metadata" if layout.meta else "the rest",
        Section.META: "as nmeta says",
    }[field.section]


def _condition(spec: Spec, field: FieldSpec, dialect: Dialect) -> str:
    if not field.when:
        return ""
    flags = spec.field("flags").names_in(dialect)
    assert flags is not None
    return f"; only with flag `{words(flags(field.when).name or '')}`"


def _names(field: FieldSpec, dialect: Dialect) -> str:
    names = field.names_in(dialect)
    found = [link(names.__name__, f"codes.md#{anchor(names.__name__)}")] if names else []
    return "; ".join(found + ([f"0: {field.zero}"] if field.zero else []))


def is_entry(cls: type[Message]) -> bool:
    """Whether a class stands for a message: some only hold what others share."""
    return bool(cls.spec.opcodes) or cls.spec.kind is Kind.RESPONSE
