"""What the catalogue holds, entry by entry, and the golden bytes that stand for each.

An entry is one layout of a request in one dialect (`kv` for what all share), one declared answer of a request, or one
layout of an answer. A layout that two dialects share is one thing: a frame of it stands for both.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from headrace.errors import RemoteProtocolError
from headrace.wire import Dialect, Malformed, Message, Response, Unknown, decode
from headrace.wire.codes import Status
from headrace.wire.message import Layout
from headrace.wire.registry import REQUESTS, RESPONSES, SERVER_REQUESTS, kind_of, lookup
from tests.wire.vectors import captures, documents, handmade

Classes = Iterable[type[Message]]
CLASSES: tuple[type[Message], ...] = (*REQUESTS, *SERVER_REQUESTS, *RESPONSES)

NOT_ANSWERED = {
    "BufferAck": "the producer answers only what is wrong (capture 06c_dcp_flow_control)",
    "SeqnoAck": "the active node answers only what is wrong (kv: dcp_seqno_acknowledged_executor.cc)",
    "TapConnect": "the stream begins instead; only an error is answered (capture 08a_tap_flags0)",
    "QuitQ": "the server closes",
    "FlushQ": "quiet",
    "SetQ": "quiet",
    "AddQ": "quiet",
    "ReplaceQ": "quiet",
    "DeleteQ": "quiet",
    "IncrementQ": "quiet",
    "DecrementQ": "quiet",
    "AppendQ": "quiet",
    "PrependQ": "quiet",
    "SetWithMetaQ": "quiet",
    "DeleteWithMetaQ": "quiet",
}
"""Requests whose success has no answer, with the reason. Those under flow control, a producer's, have none either."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Entry:
    """One thing of the catalogue that needs a golden frame."""

    group: str
    name: str
    status: int = -1
    layout: str = ""

    @property
    def id(self) -> str:
        """How golden files call it."""
        status = f" answered 0x{self.status:02x}" if self.status >= 0 else ""
        layout = f" [{self.layout}]" if self.layout else ""
        return f"{self.group}/{self.name}{status}{layout}"

    @property
    def dialect(self) -> Dialect:
        """The dialect to show it in."""
        return Dialect(self.group) if self.group in set(map(str, Dialect)) else Dialect.DCP


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Golden bytes, where they are kept, and the dialect in which they were written."""

    origin: str
    wire: bytes
    dialect: Dialect


def groups_of(cls: type[Message]) -> tuple[str, ...]:
    """The dialects of a request, or `kv` for all of them."""
    return ("kv",) if cls.spec.family else tuple(sorted(cls.spec.opcodes))


def catalogued(classes: Classes) -> Iterator[Entry]:
    """Every entry of some classes."""
    for cls in classes:
        spec = cls.spec
        if issubclass(cls, Response):
            for layout_name in dict.fromkeys(one.name for _, some in sorted(spec.layouts.items()) for one in some):
                yield Entry(group="answer", name=spec.name, layout=layout_name)
            continue
        for group in groups_of(cls):
            dialect = Dialect.DCP if group == "kv" else Dialect(group)
            for layout in spec.layouts[dialect]:
                yield Entry(group=group, name=spec.name, layout=layout.name)
            for status in answered(cls):
                yield Entry(group=group, name=spec.name, status=status)


def answered(cls: type[Message]) -> list[int]:
    """The statuses that a request's answers have by the catalogue, errors apart."""
    silent = cls.spec.flow_controlled or cls.__name__ in NOT_ANSWERED or cls in SERVER_REQUESTS
    success = set[int]() if silent else {int(Status.SUCCESS)}
    return sorted(success | {int(status) for status in cls.spec.replies if status or not silent})


def shown_by(sample: Sample) -> Iterator[Entry]:
    """The entries that golden bytes stand for."""
    try:
        message = decode(sample.wire, sample.dialect)
    except RemoteProtocolError:
        return
    if isinstance(message, Unknown | Malformed):
        return
    found = lookup(kind_of(sample.wire[0]), sample.wire[1], sample.dialect)
    assert found is not None
    asked, spoken = found
    layout = next(one for one in message.spec.layouts[spoken] if one.name == message.layout)
    for group in groups_of(asked):
        if group == "kv" or shared(asked, layout, spoken, Dialect(group)):
            if isinstance(message, Response):
                yield Entry(group=group, name=asked.spec.name, status=message.status)
            else:
                yield Entry(group=group, name=asked.spec.name, layout=message.layout)
    if isinstance(message, Response):
        yield Entry(group="answer", name=message.spec.name, layout=message.layout)


def shared(asked: type[Message], layout: Layout, spoken: Dialect, other: Dialect) -> bool:
    """Whether two dialects spell a message alike."""
    opcodes = asked.spec.opcodes
    return other in layout.dialects and opcodes[spoken] == opcodes[other]


def samples() -> Iterator[Sample]:
    """All golden bytes: what documents draw, then what was made by hand, then what was captured."""
    for vector in (*documents(), *handmade()):
        yield Sample(origin=vector.id, wire=vector.wire, dialect=vector.dialect)
    for one in captures():
        yield Sample(origin=one.id, wire=one.wire, dialect=Dialect.DCP)


@cache
def golden() -> dict[Entry, Sample]:
    """The first golden bytes of every entry that has some."""
    found: dict[Entry, Sample] = {}
    for sample in samples():
        for entry in shown_by(sample):
            found.setdefault(entry, sample)
    return found
