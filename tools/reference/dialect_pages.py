"""The index, one page per dialect, and the page of the answers."""

from collections.abc import Iterable
from inspect import cleandoc

from headrace.wire import catalogue
from headrace.wire.codes import Status, words
from headrace.wire.dialects import ALL, Dialect
from headrace.wire.message import Message, Response, Spec
from headrace.wire.registry import REQUESTS, RESPONSES, SERVER_REQUESTS
from tools.reference.markdown import anchor, either, link, page, table
from tools.reference.messages import (
    NEWEST_FIRST,
    body_rules,
    described,
    heading,
    is_entry,
    request_link,
    section,
    title,
)

CATALOGUE = "src/headrace/wire/catalogue.py"
ENTRIES = tuple(cls for cls in (*REQUESTS, *SERVER_REQUESTS) if is_entry(cls))
OLDEST_FIRST = tuple(reversed(NEWEST_FIRST))
_KV_DIALECT = Dialect.DCP
"""In which dialect the plain commands are read for their page: all read them alike."""

_SHORT = {Dialect.TAP: "TAP", Dialect.UPR_DRAFT: "draft", Dialect.UPR: "UPR", Dialect.DCP: "DCP"}
_NAMES = {Dialect.TAP: "TAP", Dialect.UPR_DRAFT: "The UPR draft", Dialect.UPR: "UPR", Dialect.DCP: "DCP"}
_ABOUT = {
    Dialect.TAP: """The oldest dialect. A client turns its connection into a stream with TAP connect, and the server
pushes. There are no seqnos. Each message has an engine-specific part between extras and key, whose length is the first
field of the extras.""",
    Dialect.UPR_DRAFT: """The first numbering of what became UPR. Its opcodes collide with those of UPR and DCP: 0x50 is
the stream request here, and opens a connection there. headrace knows it from its document alone.""",
    Dialect.UPR: """The dialect of the UPR document. A connection is opened by name, and streams are asked for one
vbucket at a time. It differs from DCP in the lengths of some extras.""",
    Dialect.DCP: """UPR under its lasting name, with what was added since: datatypes, collections, durable writes, new
forms of deletion and snapshot marker.""",
}
_READING = """## How to read the pages

Each message has a heading with its opcode, a sentence, and a list of facts. *Flow control* tells whether its bytes
count against the window that a consumer gives and refills with buffer acks. *Body* is in the words of the protocol
documents: must, may or must not have extras, key, value. *Source* names a document with its line, a capture, or a
file of Couchbase's kv_engine (`kv:`).

A layout is one way in which the body may stand. A message has several where dialects or versions differ. Decoding
takes the first that fits. In the tables an *offset* counts from the start of the message under a classic header; a
flexible header puts its framing extras in between. A picture shows the extras alone and counts from their start. Where
two layouts of a message have the same extras, it is drawn once. All integers are unsigned and big-endian. *names* links
to the words for a field's numbers."""


def index() -> str:
    """docs/protocol/README.md."""
    streams = [cls for cls in ENTRIES if not cls.spec.family]
    plain = [cls for cls in ENTRIES if cls.spec.family]
    head = ["message", *(_SHORT[dialect] for dialect in OLDEST_FIRST), "who sends it", "flow", "extras in bytes"]
    pages = [
        *([link(f"{dialect}.md", f"{dialect}.md"), _ABOUT[dialect]] for dialect in OLDEST_FIRST),
        [link("kv.md", "kv.md"), "The plain commands of memcached and Couchbase, which all four dialects share."],
        [link("responses.md", "responses.md"), "The shapes of answers, shared by the commands that they answer."],
        [link("header.md", "header.md"), "The 24-byte header, datatypes, limits, collection prefix, xattrs."],
        [link("codes.md", "codes.md"), "Every number with a name: statuses, flags, states, reasons, features."],
        [link("errata.md", "errata.md"), "Where the documents contradict themselves, and what headrace does."],
    ]
    return page(
        "Protocol reference",
        CATALOGUE,
        f"{len(ENTRIES)} requests and {len(RESPONSES)} shapes of answer, in four dialects of one protocol. "
        "[Dialects](../concepts/dialects.md) tells them apart; the [glossary](../concepts/glossary.md) has the words.",
        table(["page", "what is in it"], pages),
        _READING,
        "## Coverage: streams\n\nEach opcode links to the message's section. A dialect without the message has a dash.",
        table(head, (_coverage_row(cls.spec) for cls in streams)),
        "## Coverage: plain commands\n\nThe same in every dialect. *server* marks opcodes of magic 0x82.",
        table(["opcode", "message", "who sends it", "extras in bytes", "what it does"], map(_plain_row, plain)),
    )


def _coverage_row(spec: Spec) -> list[str]:
    cells = [
        request_link(spec, dialect, f"0x{spec.opcodes[dialect]:02x}") if dialect in spec.opcodes else "-"
        for dialect in OLDEST_FIRST
    ]
    name = f"TAP {title(spec).lower()}" if spec.name.startswith("tap_") else title(spec)
    return [name, *cells, str(spec.direction), "yes" if spec.flow_controlled else "no", _sizes(spec)]


def _sizes(spec: Spec) -> str:
    """The extras lengths by dialect, or once where all are alike."""
    by_dialect = {
        dialect: either(list(dict.fromkeys(str(spec.extras_size(each)) for each in spec.layouts[dialect])))
        for dialect in OLDEST_FIRST
        if dialect in spec.layouts
    }
    if len(set(by_dialect.values())) == 1:
        return next(iter(by_dialect.values()))
    return "; ".join(f"{_SHORT[dialect]} {sizes}" for dialect, sizes in by_dialect.items())


def _plain_row(cls: type[Message]) -> list[str]:
    spec = cls.spec
    opcode = f"0x{spec.opcodes[_KV_DIALECT]:02x}" + (" server" if cls in SERVER_REQUESTS else "")
    return [request_link(spec, text=opcode), title(spec), str(spec.direction), _sizes(spec), _first_line(spec)]


def _first_line(spec: Spec) -> str:
    return cleandoc(spec.sentence).splitlines()[0]


def dialect_page(dialect: Dialect) -> str:
    """The page of a dialect's own messages."""
    name, about = _NAMES[dialect], _ABOUT[dialect]
    own = sorted(
        (cls for cls in ENTRIES if dialect in cls.spec.opcodes and not cls.spec.family),
        key=lambda cls: cls.spec.opcodes[dialect],
    )
    more = "Plain commands work beside these: [kv.md](kv.md). Contradictions of the documents: [errata](errata.md)."
    return page(
        f"{name}: messages", CATALOGUE, about, more, _contents(own, dialect), *(section(cls, dialect) for cls in own)
    )


def kv_page() -> str:
    """The page of the commands that all dialects share."""
    plain = sorted(
        (cls for cls in ENTRIES if cls.spec.family and cls not in SERVER_REQUESTS),
        key=lambda cls: cls.spec.opcodes[_KV_DIALECT],
    )
    return page(
        "Plain commands",
        CATALOGUE,
        "What memcached and Couchbase clients say beside the streams. Every dialect reads these alike.",
        _contents(plain, _KV_DIALECT),
        *(section(cls, _KV_DIALECT) for cls in plain),
        "## Requests of the server\n\nMagic 0x82. Their opcodes are a set of their own.",
        *(section(cls, _KV_DIALECT) for cls in SERVER_REQUESTS),
    )


def _contents(classes: Iterable[type[Message]], dialect: Dialect) -> str:
    rows = [
        [
            link(heading(cls.spec, dialect), f"#{anchor(heading(cls.spec, dialect))}"),
            str(cls.spec.direction),
            _first_line(cls.spec),
        ]
        for cls in classes
    ]
    return table(["message", "who sends it", "what it does"], rows)


def responses_page() -> str:
    """The page of the answers."""
    return page(
        "Answers",
        CATALOGUE,
        "An answer has magic 0x81 or 0x18, and the opcode and opaque of its request. It has no vbucket: the two bytes "
        f"hold a [status](codes.md#{anchor(Status.__name__)}). One shape serves many commands.",
        *(_response_section(cls) for cls in RESPONSES if issubclass(cls, Response)),
    )


def _response_section(cls: type[Response]) -> str:
    spec = cls.spec
    layouts = list({each.name: each for dialect in NEWEST_FIRST for each in spec.layouts.get(dialect, ())}.values())
    facts = "\n".join(
        [
            f"- **Answers** {_answered_by(cls)}",
            f"- **Body** {body_rules(spec, layouts)}",
            f"- **Names** `{cls.__name__}` in Python",
            f"- **Source** {spec.source}",
        ]
    )
    drawn: set[str] = set()
    shown = (described(spec, each, _one_of(each.dialects), drawn, _where(each.dialects)) for each in layouts)
    return "\n\n".join([f"### {title(spec)}", cleandoc(spec.sentence), facts, *shown])


def _answered_by(cls: type[Response]) -> str:
    if cls is catalogue.Done:
        return "every answered request that names no other shape, with status success"
    if cls is catalogue.ErrorReply:
        return "every request, with each status that the request does not name"
    asked = []
    for entry in ENTRIES:
        statuses = [words(Status(status).name) for status, reply in entry.spec.replies.items() if reply is cls]
        if statuses:
            asked.append(request_link(entry.spec) + (f" ({', '.join(statuses)})" if statuses != ["success"] else ""))
    return ", ".join(asked)


def _one_of(dialects: frozenset[Dialect]) -> Dialect:
    return next(each for each in NEWEST_FIRST if each in dialects)


def _where(dialects: frozenset[Dialect]) -> str:
    return "" if dialects == ALL else "in " + ", ".join(_SHORT[each] for each in OLDEST_FIRST if each in dialects)
