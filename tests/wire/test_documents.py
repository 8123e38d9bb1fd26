"""The 57 messages that the five documents draw, byte for byte."""

import re
from collections import Counter

import pytest

from headrace.errors import RemoteProtocolError
from headrace.wire import Kind, Malformed, Message, Response, Unknown, decode, dissect, encode, message_length
from headrace.wire.dissect import Dissection
from headrace.wire.registry import kind_of, lookup, reply_to
from tests.wire.located import places
from tests.wire.names import named_alike
from tests.wire.vectors import DOCUMENTS, ERRATA, Disagreement, Field, Vector, documents, spell

each_vector = pytest.mark.parametrize("vector", documents(), ids=lambda vector: vector.id)
INCONSISTENT = tuple(vector for vector in documents() if vector.error_offset is not None)
TOTAL_BODY_AT = 8
DISAGREEMENTS = tuple((vector, one) for vector in documents() for one in vector.disagreements)

# What a disagreement about words, and not about numbers, comes to in our tables: the label at its offset.
LABELS = {"checkpoint id": "Checkpoint", "vbucket 12": "Vbucket", "data type": "Data type"}
# The same for a caption or a title: the class of the decoded message.
CAPTIONS = {"failover log response": "FailoverLog", "flush": "DcpFlush"}


def shown_at(dissection: Dissection, field: Field) -> bytes | None:
    """What the dissector shows at a field's place, spelled as the wire spells it."""
    for view in dissection.fields:
        if (view.offset, view.length) == field.place:
            return spell(view.value, view.length)
    return None


def number_of(vector: Vector, field: Field, source: str) -> int | str:
    """A legend's value, or what a disagreement gives instead: its `truth` for the wire, its `picture` as drawn."""
    for one in vector.disagreements:
        instead = getattr(one, source)
        if (one.offset, one.field) == (field.offset, field.label) and isinstance(instead, int):
            return instead
    return field.value


def asked_class(vector: Vector, message: Message) -> type[Message]:
    """The class of the request: a message's own, or the one that an answer's opcode names."""
    if not isinstance(message, Response):
        return type(message)
    found = lookup(Kind.REQUEST, message.opcode, vector.dialect)
    assert found is not None
    assert type(message) is reply_to(found[0], message.status)
    return found[0]


def test_every_drawn_message_is_a_vector():
    """There are as many vectors of a document as it has drawings, each under a name of its own."""
    assert Counter(vector.document for vector in documents()) == DOCUMENTS
    assert len({vector.id for vector in documents()}) == 57


@each_vector
def test_decoding_gives_the_message_and_encoding_its_bytes(vector: Vector):
    """The wire bytes are a known message of the class named, and come back as they were."""
    message = decode(vector.wire, vector.dialect)
    assert not isinstance(message, Unknown | Malformed)
    assert asked_class(vector, message).__name__ == vector.message
    assert kind_of(vector.wire[0]) == vector.kind
    assert encode(message, vector.dialect) == vector.wire


@each_vector
def test_the_legend_is_what_is_decoded(vector: Vector):
    """Every legend value is shown at its place under its name, and is what the message carries; errata excepted."""
    message = decode(vector.wire, vector.dialect)
    dissection = dissect(vector.wire, vector.dialect)
    carried = places(message, vector.dialect)
    assert not dissection.problems
    for field in vector.fields:
        expected = spell(number_of(vector, field, "truth"), field.length)
        assert shown_at(dissection, field) == expected, field.label
        if field.place in carried:
            assert spell(carried[field.place], field.length) == expected, field.label
        labels = [view.label for view in dissection.fields if (view.offset, view.length) == field.place]
        assert [label for label in labels if named_alike(field.label, label)], (field.label, labels)
    assert carried.keys() <= {(view.offset, view.length) for view in dissection.fields}


@each_vector
def test_a_consistent_drawing_is_the_wire(vector: Vector):
    """The bytes drawn are the bytes sent, unless the drawing has another length than its header says."""
    assert (vector.wire == vector.drawn) is (vector.error_offset is None)


def test_thirteen_drawings_are_inconsistent():
    """As many drawings contradict their own lengths as the errata page says."""
    assert len(INCONSISTENT) == 13


@pytest.mark.parametrize("vector", INCONSISTENT, ids=lambda vector: vector.id)
def test_an_inconsistent_drawing_is_refused_and_explained(vector: Vector):
    """The codec refuses the drawn bytes; the dissector says what is wrong where, and still shows every field."""
    with pytest.raises(RemoteProtocolError) as refusal:
        decode(vector.drawn, vector.dialect)
    dissection = dissect(vector.drawn, vector.dialect)
    # The vector's error stands where header and bytes part; the blame is the header's, whose total body is at byte 8.
    stated = message_length(vector.drawn)
    assert stated is not None
    assert vector.error_offset == min(stated, len(vector.drawn)) != max(stated, len(vector.drawn))
    assert refusal.value.offset == TOTAL_BODY_AT
    assert TOTAL_BODY_AT in {problem.offset for problem in dissection.problems}
    for field in vector.fields:
        assert shown_at(dissection, field) == spell(number_of(vector, field, "picture"), field.length), field.label


@pytest.mark.parametrize(("vector", "one"), DISAGREEMENTS, ids=lambda part: getattr(part, "id", ""))
def test_the_codec_follows_what_the_vector_says(vector: Vector, one: Disagreement):
    """Where picture and legend disagree, the codec has the number, or the word, that the vector calls the truth."""
    dissection = dissect(vector.wire, vector.dialect)
    if isinstance(one.truth, int):
        view = next(view for view in dissection.fields if view.offset == one.offset)
        assert view.value == one.truth
        followed = {"picture": one.picture, "legend": one.legend}.get(one.follows, one.truth)
        assert followed == one.truth
    elif one.truth in LABELS:
        assert next(view.label for view in dissection.fields if view.offset == one.offset) == LABELS[one.truth]
    elif one.truth in CAPTIONS:
        assert type(decode(vector.wire, vector.dialect)).__name__ == CAPTIONS[one.truth]
    else:  # The 32nd byte of extras that one drawing's layout names and no message has.
        assert (vector.id, one.field, one.truth) == ("mutation-029", "clen", None)
        assert next(view.label for view in dissection.fields if view.offset == one.offset) == "Key"


def test_every_disagreement_is_on_the_errata_page():
    """Each disagreement names an erratum of the page; each erratum marked as a vector's is named by one."""
    page = ERRATA.read_text()
    anchors = set(re.findall(r'<a id="(E-[A-Z]+-\d+)">', page))
    marked = set(re.findall(r'<a id="(E-[A-Z]+-\d+)"></a>\1 \*vector\*', page))
    named = {one.erratum for _, one in DISAGREEMENTS}
    assert named <= anchors
    assert named == marked
