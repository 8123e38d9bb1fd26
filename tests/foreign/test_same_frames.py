"""Random requests, frame by frame: our node answers what memcached answers, or keeps silent where it does.

Allowed differences; nothing else may differ:

| what                                   | memcached          | node                | why                              |
|----------------------------------------|--------------------|---------------------|----------------------------------|
| the number in a CAS                    | a counter          | a clock             | only 0 and equality have meaning |
| the words of an error                  | its own            | its own             | the status is the answer         |
| the key in an error answer to GETK     | echoed             | may be left out     | clients read the opaque          |
| extras of a successful TOUCH           | flags, 4 bytes     | none                | Couchbase sends none             |
| a counter that lost digits, when read  | spaces at its end  | none                | Couchbase sends none             |
| ADD with the CAS that the item has     | does what SET does | exists (2)          | not sent here                    |
| a CAS for a counter that would be made | makes it           | not found           | not sent here                    |
| stale CAS, value too short or too long | no number (6)      | exists (2)          | not sent here                    |
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ids import Cas, Opaque
from headrace.wire import Dialect, Frame, Request, catalogue, encode
from headrace.wire.codes import Status
from tests.foreign.raw import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.processes import Server

READS = (catalogue.Get, catalogue.GetQ, catalogue.GetK, catalogue.GetKQ)
REMOVALS = (catalogue.Delete, catalogue.DeleteQ)
ADDS = (catalogue.Add, catalogue.AddQ)
WRITES = (catalogue.Set, catalogue.SetQ, catalogue.Replace, catalogue.ReplaceQ)
EXTENSIONS = (catalogue.Append, catalogue.AppendQ, catalogue.Prepend, catalogue.PrependQ)
COUNTS = (catalogue.Increment, catalogue.IncrementQ, catalogue.Decrement, catalogue.DecrementQ)
TOUCHES = (catalogue.Touch, catalogue.GetAndTouch, catalogue.GetAndTouchQ)

TEXT_KEYS = (b"text a", b"text b" + b"-" * 230)
COUNTER_KEYS = (b"counter a", b"counter b")
TEXTS = (b"", b"a", b"bb ccc", b"\x00\xff\r\n", b'{"json": [1]}', b"long " * 2000)
NUMBERS = (b"0", b"5", b"100", b"18446744073709551615", b"18446744073709551616", b"x", b"-1")
DELTAS = (0, 1, 3, 95, (1 << 64) - 1)
PAST, FUTURE = 30 * 24 * 3600 + 1, 4_000_000_000
EXPIRIES = (0, 0, 1000, FUTURE, PAST)
NEVER_MAKE = 0xFFFF_FFFF
TOUCH = catalogue.Touch.spec.opcodes[Dialect.DCP]
NO_CAS_OF_ANYBODY = 0x0123_4567_89AB

EXAMPLE = itertools.count()  # each example has keys of its own


class Version(Enum):
    """Which CAS a request carries, told by what was answered before."""

    NONE = "none"
    NEWEST = "the newest seen"
    OLDEST = "the oldest seen"
    WRONG = "one that nobody gave"


NO_VERSION = st.just(Version.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request whose key and CAS are still to be filled in."""

    message: Callable[..., Request]
    key: bytes
    fields: dict[str, Any]
    version: Version = Version.NONE


def steps(versions: tuple[Version, ...]) -> st.SearchStrategy[Step]:
    """Any request; text is never made a number, and a number is never lengthened."""
    text, number = st.sampled_from(TEXT_KEYS), st.sampled_from(COUNTER_KEYS)
    flags, expiry = st.sampled_from((0, 1, 0xDEADBEEF)), st.sampled_from(EXPIRIES)
    delta, initial = st.sampled_from(DELTAS), st.sampled_from(DELTAS)
    version, stranger = st.sampled_from(versions), st.sampled_from((Version.NONE, Version.WRONG))

    def step(
        messages: tuple[type[Request], ...],
        key: st.SearchStrategy[bytes],
        version: st.SearchStrategy[Version] = NO_VERSION,
        **fields: st.SearchStrategy[Any],
    ) -> st.SearchStrategy[Step]:
        return st.builds(
            Step, message=st.sampled_from(messages), key=key, fields=st.fixed_dictionaries(fields), version=version
        )

    texts, numbers = st.sampled_from(TEXTS), st.sampled_from(NUMBERS)
    return st.one_of(
        step(READS, text | number),
        step(REMOVALS, text | number, version),
        step(TOUCHES, text | number, expiry=expiry),
        step(ADDS, text, stranger, flags=flags, expiry=expiry, value=texts),
        step(ADDS, number, stranger, flags=flags, expiry=expiry, value=numbers),
        step(WRITES, text, version, flags=flags, expiry=expiry, value=texts),
        step(WRITES, number, version, flags=flags, expiry=expiry, value=numbers),
        step(EXTENSIONS, text, version, value=texts),
        step(COUNTS, number, delta=delta, initial=initial, expiry=expiry | st.just(NEVER_MAKE)),
        step(COUNTS, number, version, delta=delta, initial=initial, expiry=st.just(NEVER_MAKE)),
        step(COUNTS, text, delta=delta, initial=initial, expiry=st.just(NEVER_MAKE)),
    )


class Versions:
    """The CAS numbers that one server gave for each key, oldest first."""

    def __init__(self) -> None:
        self._seen: dict[bytes, list[int]] = defaultdict(list)

    def cas(self, step: Step) -> int:
        """The number that a step means on this server."""
        seen = self._seen[step.key]
        match step.version:
            case Version.NONE:
                return 0
            case Version.NEWEST if seen:
                return seen[-1]
            case Version.OLDEST if len(seen) > 1:
                return seen[0]
            case _:
                return NO_CAS_OF_ANYBODY

    def note(self, step: Step, answers: list[Frame]) -> None:
        """Remember the CAS of an answer, once."""
        for answer in answers:
            seen = self._seen[step.key]
            if answer.header.specific == Status.SUCCESS and answer.header.cas and answer.header.cas not in seen:
                seen.append(answer.header.cas)


def request(step: Step, prefix: bytes, opaque: int, cas: int) -> bytes:
    """The frame of a step."""
    message = step.message(key=prefix + step.key, opaque=Opaque(opaque), cas=Cas(cas), **step.fields)
    return encode(message)


def compared(answer: Frame, counter: bool) -> dict[str, object]:
    """What must be equal of one answer, by the table above."""
    header = answer.header
    refused = header.specific != Status.SUCCESS
    touched = header.opcode == TOUCH
    return {
        "magic": header.magic,
        "opcode": header.opcode,
        "status": header.specific,
        "opaque": header.opaque,
        "datatype": header.datatype,
        "has a CAS": header.cas != 0,
        "extras": b"" if touched else answer.extras,
        "key": b"" if refused else answer.key,
        "value": b"" if refused else answer.value.rstrip(b" ") if counter else answer.value,
    }


@settings(max_examples=100)
@given(plan=st.lists(steps(tuple(Version)), min_size=1, max_size=20))
def test_answers_one_by_one(memcached: Server, node: Server, plan: list[Step]):
    """After each request of a random sequence both servers have answered the same, or both nothing."""
    prefix = b"%d " % next(EXAMPLE)
    theirs, ours = Versions(), Versions()
    with Connection(memcached) as their_connection, Connection(node) as our_connection:
        for opaque, step in enumerate(plan):
            found = []
            for versions, connection in ((theirs, their_connection), (ours, our_connection)):
                answers = connection.exchange(request(step, prefix, opaque, versions.cas(step)))
                versions.note(step, answers)
                found.append([compared(answer, step.key in COUNTER_KEYS) for answer in answers])
            assert found[1] == found[0], f"step {opaque}, {step}"


@settings(max_examples=100)
@given(plan=st.lists(steps((Version.NONE, Version.NONE, Version.WRONG)), min_size=1, max_size=40))
def test_answers_to_a_pipeline(memcached: Server, node: Server, plan: list[Step]):
    """A random sequence sent in one piece is answered by both in the same order with the same frames."""
    prefix = b"%d " % next(EXAMPLE)
    whole = b"".join(request(step, prefix, opaque, Versions().cas(step)) for opaque, step in enumerate(plan))
    found = []
    for server in (memcached, node):
        with Connection(server) as connection:
            answers = connection.exchange(whole)
        found.append([compared(answer, plan[answer.header.opaque].key in COUNTER_KEYS) for answer in answers])
    assert found[1] == found[0]
