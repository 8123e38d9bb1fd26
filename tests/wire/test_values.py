"""What stands inside keys and values, the names of numbers, and the errors themselves."""

import contextlib
import pickle
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, LocalProtocolError, RemoteProtocolError
from headrace.ids import CollectionId
from headrace.wire import (
    Dialect,
    Frame,
    Header,
    deflate,
    encode_collection,
    inflate,
    join_xattrs,
    split_collection,
    split_xattrs,
    xattrs,
)
from headrace.wire.codes import Datatype, Feature, Magic, SnapshotFlag, Status, StreamEndReason, names_of, words
from headrace.wire.fields import machine_name
from headrace.wire.limits import XATTR_PAIRS_MAX
from headrace.wire.snappy import inflated_length

HEADER = Header(
    magic=0x80,
    opcode=1,
    framing_length=0,
    key_length=5,
    extras_length=8,
    datatype=0,
    specific=3,
    body_length=18,
    opaque=7,
    cas=9,
)


# tests/unsigned_leb128/unsigned_leb128_test.cc of kv_engine, and our own ends of the range
@pytest.mark.parametrize(
    ("collection", "spelled"),
    [
        (0x00, "00"),
        (0x01, "01"),
        (0x7F, "7f"),
        (0x80, "8001"),
        (0x555, "d50a"),
        (0x7FFF, "ffff01"),
        (0xBFFF, "ffff02"),
        (0xFFFF, "ffff03"),
        (0x8000, "808002"),
        (0x5555, "d5aa01"),
        (0xCAFEF00, "80debf65"),
        (0xCAFEF00D, "8de0fbd70c"),
        (0xFFFFFFFF, "ffffffff0f"),
    ],
)
def test_collection_ids_are_spelled_as_the_server_does(collection: int, spelled: str):
    """The server's own examples of LEB128 go both ways."""
    assert encode_collection(CollectionId(collection)).hex() == spelled
    assert split_collection(bytes.fromhex(spelled) + b"key") == (collection, b"key")


@given(collection=st.integers(0, 0xFFFF_FFFF), key=st.binary(max_size=20))
def test_a_collection_id_comes_back(collection: int, key: bytes):
    """Any 32-bit id in front of any key is parted from it again, and takes at most five bytes."""
    prefix = encode_collection(CollectionId(collection))
    assert len(prefix) <= 5
    assert split_collection(prefix + key) == (collection, key)


@given(key=st.binary(max_size=12))
def test_any_key_has_one_collection_or_an_error(key: bytes):
    """What is taken for an id has only that spelling; anything else is the peer's fault."""
    try:
        collection, rest = split_collection(key)
    except RemoteProtocolError:
        return
    assert encode_collection(collection) + rest == key


@pytest.mark.parametrize(
    ("key", "offset", "problem"),
    [
        ("", 0, "no collection id ends within 0 bytes"),
        ("80", 0, "no collection id ends within 1 bytes"),
        ("808080808001", 0, "no collection id ends within 5 bytes"),
        ("8000", 1, "padded with zero bits"),
        ("ff8000", 2, "padded with zero bits"),
        ("ffffffff10", 4, "more than 32 bits"),
    ],
)
def test_a_collection_id_of_another_spelling_is_refused(key: str, offset: int, problem: str):
    """An id that does not end, is longer than needed or has more than 32 bits raises."""
    with pytest.raises(RemoteProtocolError, match=problem) as refusal:
        split_collection(bytes.fromhex(key))
    assert refusal.value.offset == offset


@pytest.mark.parametrize("collection", [-1, 1 << 32])
def test_a_collection_id_out_of_range_is_refused(collection: int):
    """An id that does not fit in 32 bits is the caller's mistake."""
    with pytest.raises(LocalProtocolError, match="does not fit in 32 bits"):
        encode_collection(CollectionId(collection))


texts = st.binary(max_size=20).map(lambda drawn: drawn.replace(b"\0", b"0"))


@given(pairs=st.dictionaries(texts, texts, max_size=5), document=st.binary(max_size=40))
def test_xattrs_come_back(pairs: dict[bytes, bytes], document: bytes):
    """Pairs in front of a document are parted from it again, in their order."""
    found, rest = split_xattrs(join_xattrs(pairs, document))
    assert list(found.items()) == list(pairs.items())
    assert rest == document


@given(value=st.binary(max_size=60))
def test_any_value_has_xattrs_or_an_error(value: bytes):
    """What is taken for xattrs is spelled only so; anything else is the peer's fault."""
    try:
        pairs, document = split_xattrs(value)
    except RemoteProtocolError:
        return
    assert join_xattrs(pairs, document) == value


def pair(content: bytes) -> bytes:
    """A pair behind its length."""
    return struct.pack(">I", len(content)) + content


def block(*pairs: bytes) -> bytes:
    """Pairs behind their length."""
    return pair(b"".join(pairs))


@pytest.mark.parametrize(
    ("value", "offset", "problem"),
    [
        (b"\0\0\0", 3, "no room for their length"),
        (b"\0\0\0\5abcd", 0, "xattrs of 5 bytes in a value of 8"),
        (block(b"\0\0\0"), 4, "a pair has no room for its length|no room for its length"),
        (block(b"\0\0\0\7a\0b\0"), 4, "a pair of 7 bytes leads out|leads out of its block"),
        (block(pair(b"a\0b")), 8, "not name, zero, text, zero"),
        (block(pair(b"a\0b\0c")), 8, "not name, zero, text, zero"),
        (block(pair(b"a\0b\0c\0")), 8, "not name, zero, text, zero"),
        (block(pair(b"")), 8, "not name, zero, text, zero"),
        (block(pair(b"a\0b\0"), pair(b"a\0c\0")), 16, "b'a' stands twice"),
    ],
)
def test_broken_xattrs_are_refused(value: bytes, offset: int, problem: str):
    """Each way in which a block of xattrs can be broken raises, at the byte where it breaks."""
    with pytest.raises(RemoteProtocolError, match=problem) as refusal:
        split_xattrs(value)
    assert refusal.value.offset == offset


def test_too_many_xattrs_are_refused():
    """An item has as many attributes as the limit says, and not one more."""
    pairs = {str(number).encode(): b"1" for number in range(XATTR_PAIRS_MAX)}
    assert len(split_xattrs(join_xattrs(pairs, b""))[0]) == XATTR_PAIRS_MAX
    with pytest.raises(RemoteProtocolError, match=f"more than {XATTR_PAIRS_MAX} xattrs"):
        split_xattrs(block(*(pair(name + b"\0\0") for name in (*pairs, b"one more"))))


def test_xattrs_that_cannot_be_sent_are_refused(monkeypatch: pytest.MonkeyPatch):
    """A zero byte in a name or text, or more than the limit, is the caller's mistake."""
    for pairs in ({b"a\0": b"b"}, {b"a": b"\0b"}):
        with pytest.raises(LocalProtocolError, match="holds a zero byte"):
            join_xattrs(pairs, b"")
    monkeypatch.setattr(xattrs, "XATTR_BYTES_MAX", 7)
    with pytest.raises(LocalProtocolError, match="xattrs of 8 bytes; at most 7"):
        join_xattrs({b"a": b"b"}, b"")


@given(value=st.binary(max_size=300) | st.integers(0, 5000).map(bytes))
def test_a_value_deflated_inflates(value: bytes):
    """Compression loses nothing, and the block tells its length."""
    block = deflate(value)
    assert inflate(block) == value
    assert inflated_length(block) == len(value)


@given(block=st.binary(max_size=40))
def test_any_block_inflates_or_is_refused(block: bytes):
    """Bytes that are no snappy raise RemoteProtocolError and nothing else."""
    with contextlib.suppress(RemoteProtocolError):
        assert len(inflate(block, inflated_bytes_max=1 << 16)) == inflated_length(block)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (b"", "does not begin with its length"),
        (b"\xff\xff\xff\xff\xff", "does not begin with its length"),
        (b"\xff\xff\xff\xff\x0f", "claims 4294967295 bytes"),  # four gigabytes in five bytes
        (b"\x05\x00", "is damaged"),
        (deflate(b"abcdef")[:-1], "is damaged"),
    ],
)
def test_a_damaged_or_boastful_block_is_refused(block: bytes, problem: str):
    """A block without its length, with too great a one or with wrong bytes behind it raises."""
    with pytest.raises(RemoteProtocolError, match=problem):
        inflate(block)


def test_the_limit_of_inflating_is_exact():
    """A value of exactly the limit is taken, one byte more is not."""
    block = deflate(bytes(100))
    assert inflate(block, inflated_bytes_max=100) == bytes(100)
    with pytest.raises(RemoteProtocolError, match="claims 100 bytes; at most 99 are taken"):
        inflate(block, inflated_bytes_max=99)


def test_a_block_that_holds_less_than_it_claims_is_refused(monkeypatch: pytest.MonkeyPatch):
    """The length is checked again behind the library, which is not ours."""

    class Careless:
        @staticmethod
        def decompress_raw(block: bytes) -> bytes:
            return block[:1]

    monkeypatch.setattr(cramjam, "snappy", Careless)
    with pytest.raises(RemoteProtocolError, match="claims 3 bytes and holds 1"):
        inflate(b"\x03abc")


@pytest.mark.parametrize(
    ("codes", "number", "spelled"),
    [
        (Status, 0x07, "not my vbucket"),
        (Status, 0x7777, ""),
        (StreamEndReason, 2, "state changed"),
        (SnapshotFlag, 0x05, "memory, checkpoint"),
        (SnapshotFlag, 0, ""),
        (SnapshotFlag, 0x8000_0001, "memory, 0x80000000"),
        (Datatype, 0x07, "json, snappy, xattr"),
        (Feature, 0x12, "collections"),
    ],
)
def test_numbers_are_spelled_in_words(codes: type, number: int, spelled: str):
    """An enum gives one name, flags all of theirs, and what has no name gives nothing."""
    assert names_of(codes, number) == spelled


def test_names_are_words():
    """Names of enums are said with spaces, labels become names with underscores."""
    assert words("NOT_MY_VBUCKET") == "not my vbucket"
    assert machine_name("Engine priv.") == "engine_priv"
    assert machine_name("# listed") == "listed"


def test_an_error_keeps_its_offset_on_a_journey():
    """A RemoteProtocolError is the same on the other side of a pickle, as between executor and driver."""
    error = RemoteProtocolError("a body of 9 bytes", offset=8)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "byte 8: a body of 9 bytes"
    assert (again.text, again.offset) == ("a body of 9 bytes", 8)
    assert isinstance(again, HeadraceError)


def test_messages_travel_too():
    """Frames and dialects are plain values that a pickle carries."""
    frame = Frame(HEADER, bytes(18))
    assert pickle.loads(pickle.dumps((frame, Dialect.UPR))) == (frame, Dialect.UPR)


@pytest.mark.parametrize(
    ("name", "number"),
    [("opcode", 256), ("key_length", 1 << 16), ("extras_length", 256), ("body_length", 1 << 32), ("opaque", -1)],
)
def test_a_header_refuses_what_it_cannot_hold(name: str, number: int):
    """A number too large for its place, or negative, is the caller's mistake."""
    with pytest.raises(LocalProtocolError, match="the header cannot hold"):
        HEADER._replace(**{name: number}).pack()


def test_the_flexible_header_splits_the_key_length():
    """Under magics 0x08 and 0x18 byte 2 is the framing length and byte 3 the key's, which has one byte only."""
    flexible = HEADER._replace(magic=Magic.FLEXIBLE_REQUEST, framing_length=3, body_length=21)
    packed = flexible.pack()
    assert packed[2:4] == b"\x03\x05"
    assert Header.parse(packed) == flexible
    with pytest.raises(LocalProtocolError):
        flexible._replace(key_length=256).pack()


def test_a_frame_knows_its_parts():
    """Framing extras, extras, key and value of a frame stand behind each other."""
    flexible = HEADER._replace(magic=Magic.FLEXIBLE_REQUEST, framing_length=3, body_length=21)
    frame = Frame(flexible, b"abc" + b"EXTRAS.." + b"hello" + b"world")
    assert (frame.framing, frame.extras, frame.key, frame.value) == (b"abc", b"EXTRAS..", b"hello", b"world")
    assert frame.pack() == flexible.pack() + frame.body
