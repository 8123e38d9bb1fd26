"""Nothing enters the catalogue without golden bytes, a round trip and a golden explanation."""

import pytest

from headrace.wire import Request
from headrace.wire.dialects import DCP
from headrace.wire.fields import u32
from headrace.wire.message import layout, message
from tests.wire.entries import CLASSES, NOT_ANSWERED, Classes, catalogued, golden
from tests.wire.explained import sections
from tests.wire.strategies import ANSWERABLE, CASES


@message(
    "nowhere",
    layout(DCP, name="empty"),
    layout(DCP, "number", name="numbered"),
    opcode=0x7F,
    dialects=DCP,
)
class Invented(Request):
    """Stands in no document, no capture and no golden file."""

    number: int | None = u32("number", "any", default=None)


def missing(classes: Classes) -> list[str]:
    """What some classes lack, by entry and in words: empty when everything is there."""
    found = []
    drawn = {(case.cls, case.dialect) for case in CASES}
    explained = sections()
    for entry in catalogued(classes):
        if entry not in golden():
            found.append(f"{entry.id}: no vector and no captured frame")
        if entry.id not in explained:
            found.append(f"{entry.id}: no golden explanation")
    for cls in classes:
        spoken = [dialect for dialect in sorted(cls.spec.layouts) if ANSWERABLE.get((cls, dialect), True)]
        found += [f"{dialect}/{cls.spec.name}: no round trip" for dialect in spoken if (cls, dialect) not in drawn]
    return found


def test_every_catalogued_message_is_complete():
    """Each request in each dialect and layout, and each declared answer, has bytes, a round trip, an explanation."""
    assert missing(CLASSES) == []


def test_a_message_without_golden_bytes_is_noticed():
    """The same check over a catalogue with an invented class names all that this class lacks."""
    assert missing([*CLASSES, Invented]) == [
        "dcp/invented [empty]: no vector and no captured frame",
        "dcp/invented [empty]: no golden explanation",
        "dcp/invented [numbered]: no vector and no captured frame",
        "dcp/invented [numbered]: no golden explanation",
        "dcp/invented answered 0x00: no vector and no captured frame",
        "dcp/invented answered 0x00: no golden explanation",
        "dcp/invented: no round trip",
    ]


def test_entries_have_names_of_their_own():
    """No two entries share an id, so none hides behind another."""
    ids = [entry.id for entry in catalogued(CLASSES)]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", NOT_ANSWERED)
def test_what_is_not_answered_is_catalogued(name: str):
    """The list of requests without an answer names classes that exist."""
    assert name in {cls.__name__ for cls in CLASSES}
