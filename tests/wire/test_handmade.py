"""Messages put together by hand from the sources of servers and clients, for what no document draws."""

import pytest

from headrace.wire import (
    Dialect,
    Kind,
    Malformed,
    Response,
    Unknown,
    decode,
    dissect,
    encode,
    inflate,
    split_collection,
    split_xattrs,
)
from headrace.wire.codes import Datatype
from headrace.wire.registry import kind_of, lookup
from tests.wire.located import places
from tests.wire.names import named_alike
from tests.wire.vectors import Field, Vector, handmade, spell

VECTORS = handmade()
CASES = [
    pytest.param(vector, dialect, id=f"{vector.id}-{dialect}") for vector in VECTORS for dialect in vector.dialects
]


def test_there_are_vectors_of_every_group():
    """The handmade vectors have names of their own, and cover plain commands, TAP, the draft, UPR and DCP."""
    assert len({vector.id for vector in handmade()}) == len(handmade()) > 300
    assert {vector.group for vector in handmade()} == {"kv", *Dialect}


@pytest.mark.parametrize(("vector", "dialect"), CASES)
def test_a_vector_decodes_and_comes_back(vector: Vector, dialect: Dialect):
    """The bytes are a known message of the class named, in each of its dialects, and come back as they were."""
    message = decode(vector.wire, dialect)
    assert not isinstance(message, Unknown | Malformed)
    found = lookup(kind_of(vector.wire[0]), vector.wire[1], dialect)
    assert found is not None
    assert found[0].__name__ == vector.message
    assert isinstance(message, Response) is (vector.kind in (Kind.RESPONSE, Kind.SERVER_RESPONSE))
    assert encode(message, dialect) == vector.wire


@pytest.mark.parametrize(("vector", "dialect"), CASES)
def test_a_vectors_fields_are_what_is_decoded(vector: Vector, dialect: Dialect):
    """Each field equals what is shown and carried at its place, under its name; parts of opaque fields lie within."""
    dissection = dissect(vector.wire, dialect)
    carried = places(decode(vector.wire, dialect), dialect)
    shown = {(view.offset, view.length): view.value for view in dissection.fields}
    labels = {(view.offset, view.length): view.label for view in dissection.fields}
    assert not dissection.problems
    for field in vector.fields:
        if field.place in shown:
            assert spell(shown[field.place], field.length) == field.spelled, field.label
            assert named_alike(field.label, labels[field.place]), (field.label, labels[field.place])
            if field.place in carried:
                assert spell(carried[field.place], field.length) == field.spelled, field.label
        else:
            assert any(holds(place, value, field) for place, value in shown.items()), field.label
            if field.encoding != "leb128":
                assert vector.wire[field.offset : field.offset + field.length] == field.spelled, field.label
    named = {field.place for field in vector.fields}
    assert {place for place, value in shown.items() if isinstance(value, int)} <= named


def holds(place: tuple[int, int], value: int | str | bytes, field: Field) -> bool:
    """Whether a field of bytes holds a finer one: a frame info, an xattr, a collection id, a path."""
    start, length = place
    return not isinstance(value, int) and start <= field.offset and field.offset + field.length <= start + length


@pytest.mark.parametrize("vector", [one for one in VECTORS if one.collections], ids=lambda one: one.id)
def test_a_collection_id_is_parted_from_its_key(vector: Vector):
    """The LEB128 prefix of a vector's key gives the collection and the key that the vector names."""
    prefix = next(field for field in vector.fields if field.encoding == "leb128")
    key = next(field for field in vector.fields if field.label == "Key")
    whole = vector.wire[prefix.offset : key.offset + key.length]
    assert split_collection(whole) == (prefix.value, key.spelled)


@pytest.mark.parametrize(
    "vector",
    [one for one in VECTORS if one.wire[5] & Datatype.SNAPPY and any(field.inflated for field in one.fields)],
    ids=lambda one: one.id,
)
def test_a_snappy_value_inflates(vector: Vector):
    """A value with the snappy bit inflates to what the vector says."""
    field = next(field for field in vector.fields if field.inflated)
    inflated = inflate(field.spelled)
    assert inflated == spell(field.inflated, len(inflated))


@pytest.mark.parametrize(
    "vector", [one for one in VECTORS if any(field.label == "pair" for field in one.fields)], ids=lambda one: one.id
)
def test_xattrs_are_parted_from_the_document(vector: Vector):
    """A value with the xattr bit parts into the pairs and the document that the vector names."""
    assert vector.wire[5] & Datatype.XATTR
    start = next(field.offset for field in vector.fields if field.label == "xattr section length")
    pairs, document = split_xattrs(vector.wire[start:])
    assert [name + b"\0" + text + b"\0" for name, text in pairs.items()] == [
        field.spelled for field in vector.fields if field.label == "pair"
    ]
    assert document == b"".join(field.spelled for field in vector.fields if field.label == "document")
