"""Messages of any class, dialect and layout, drawn from the catalogue alone.

A `Case` is one layout of one class in one dialect; `messages(case)` draws what fits it. Nothing here knows a message:
a class that enters the catalogue is drawn the same day.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from headrace.wire import Dialect, Message, Response
from headrace.wire.codes import Status
from headrace.wire.fields import FieldSpec, Integer, Rows, Rule, Section
from headrace.wire.message import Kind, Layout
from headrace.wire.registry import REQUESTS, RESPONSES, SERVER_REQUESTS, lookup, reply_to

_BITS = {"B": 8, "H": 16, "I": 32, "Q": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One layout of one class in one dialect."""

    cls: type[Message]
    dialect: Dialect
    layout: Layout

    @property
    def id(self) -> str:
        """What pytest calls it."""
        return f"{self.dialect}-{self.cls.__name__}-{self.layout.name.replace(' ', '_')}"


def unsigned(bits: int) -> st.SearchStrategy[int]:
    """Numbers of a width, with its ends drawn often."""
    return st.sampled_from([0, 1, 2**bits - 1]) | st.integers(0, 2**bits - 1)


def _answerable(cls: type[Message], dialect: Dialect) -> list[tuple[int, int]]:
    found = []
    for kind in (Kind.RESPONSE, Kind.SERVER_RESPONSE):
        for opcode in range(0x100):
            asked = lookup(kind, opcode, dialect)
            if asked and kind is cls.spec.kind:
                found += [(opcode, int(status)) for status in Status if reply_to(asked[0], status) is cls]
    return found


ANSWERABLE = {(cls, dialect): _answerable(cls, dialect) for cls in RESPONSES for dialect in Dialect}
"""The opcodes and statuses by which an answer of a class is told from others in a dialect."""

CASES = tuple(
    Case(cls=cls, dialect=dialect, layout=layout)
    for cls in (*REQUESTS, *SERVER_REQUESTS, *RESPONSES)
    for dialect, layouts in sorted(cls.spec.layouts.items())
    for layout in layouts
    # The draft has no add stream, and so no answer to it.
    if not issubclass(cls, Response) or ANSWERABLE[cls, dialect]
)


def content(case: Case, spec: FieldSpec) -> st.SearchStrategy[Any]:
    """Draw what one field may hold."""
    if isinstance(spec.kind, Integer):
        return unsigned(8 * spec.kind.size)
    if isinstance(spec.kind, Rows):
        return rows(spec.kind)
    if spec is case.cls.spec.fields.get(case.layout.key):
        return st.binary(min_size=int(spec.rule is Rule.MUST), max_size=40)
    if spec.section is Section.ENGINE and case.layout.name == "other engine":
        # Bytes of these lengths, or none, are what the layouts before this one read.
        taken = {sum(case.cls.spec.integer(name).size for name in one.engine) for one in _before(case)}
        return st.binary(max_size=30).filter(lambda drawn: len(drawn) not in taken)
    return st.binary(max_size=60)


def _before(case: Case) -> tuple[Layout, ...]:
    layouts = case.cls.spec.layouts[case.dialect]
    return layouts[: layouts.index(case.layout)]


def rows(kind: Rows) -> st.SearchStrategy[Any]:
    """Draw a table."""
    numbers = st.tuples(*(unsigned(_BITS[code]) for code in kind.layout))
    single = len(kind.columns) == 1
    return st.lists(numbers.map(lambda row: row[0] if single else kind.row(*row)), max_size=6).map(tuple)


def _has_twin(case: Case) -> bool:
    layouts = case.cls.spec.layouts[case.dialect]
    return sum(other.carried == case.layout.carried for other in layouts) > 1


def sample(case: Case, number: int = 0) -> Message:
    """One message of a case, the same each time: one number everywhere, no text and no row but a key that must be."""
    spec = case.cls.spec
    values: dict[str, Any] = {}
    if issubclass(case.cls, Response):
        values["opcode"], values["status"] = ANSWERABLE[case.cls, case.dialect][-1]
    for name in case.layout.carried:
        field = spec.fields[name]
        if name in case.layout.constants:
            values[name] = case.layout.constants[name]
        elif field.when:
            values[name] = None
        elif isinstance(field.kind, Integer):
            values[name] = number
        elif isinstance(field.kind, Rows):
            values[name] = ()
        else:
            values[name] = b"k" if name == case.layout.key and field.rule is Rule.MUST else b""
    return case.cls(layout=case.layout.name, **values)


@st.composite
def messages(draw: st.DrawFn, case: Case) -> Message:
    """Draw a message that fits a case: header, then each field that its layout carries."""
    spec, layout = case.cls.spec, case.layout
    values: dict[str, Any] = {
        "opaque": draw(unsigned(32)),
        "cas": draw(unsigned(64)),
        "datatype": draw(unsigned(8)),
        # A read-only layout, or one of two that carry the same fields, goes out only from a message that came in it.
        "layout": layout.name if layout.read_only or _has_twin(case) else "",
    }
    if spec.kind in (Kind.REQUEST, Kind.RESPONSE):
        values["framing"] = draw(st.none() | st.binary(max_size=20))
    if issubclass(case.cls, Response):
        values["opcode"], values["status"] = draw(st.sampled_from(ANSWERABLE[case.cls, case.dialect]))
    else:
        values["vbucket"] = draw(unsigned(16))
    for name in sorted(layout.carried, key=list(spec.fields).index):
        field = spec.fields[name]
        if name in layout.constants:
            values[name] = layout.constants[name]
        elif not field.when or values["flags"] & field.when:
            values[name] = draw(content(case, field))
    return case.cls(**values)


def any_message() -> st.SearchStrategy[tuple[Case, Message]]:
    """Draw a message of whatever class, with its case."""
    return st.sampled_from(CASES).flatmap(lambda case: st.tuples(st.just(case), messages(case)))


__all__ = ["ANSWERABLE", "CASES", "Case", "any_message", "messages", "sample", "unsigned"]
