"""What is shown of bytes that are no message, or none of ours: as much as can be read, and what is wrong where."""

import pytest

from headrace.wire import Dialect, Malformed, Unknown, decode, dissect, encode
from headrace.wire.dissect import Dissection

UNKNOWN = bytes.fromhex("80ee00030200000000000009000000070000000000000000") + b"\1\2" + b"key" + b"text"


def labels(shown: Dissection) -> list[str]:
    """The names of the fields behind the header."""
    return [view.label for view in shown.fields if view.offset >= 24]


def problems(shown: Dissection) -> list[tuple[int, str]]:
    """Where something is wrong, and what."""
    return [(problem.offset, problem.text) for problem in shown.problems]


def test_an_unknown_opcode_is_shown_in_its_parts():
    """A command that nobody knows has extras, key and value; it decodes to Unknown and goes out as it came."""
    shown = dissect(UNKNOWN, Dialect.DCP)
    assert (shown.known, shown.title, shown.dialect) == (False, "OPCODE 0xee command", "kv")
    assert labels(shown) == ["Extras", "Key", "Value"]
    assert [view.value for view in shown.fields[-3:]] == [b"\1\2", "key", "text"]
    message = decode(UNKNOWN)
    assert isinstance(message, Unknown)
    assert message.opaque == 7
    assert encode(message) == UNKNOWN


def test_an_unknown_stream_opcode_is_called_after_its_dialect():
    """An opcode of the range in which dialects differ is unknown to one dialect, and not to all."""
    header = bytes.fromhex("816600000000000000000000000000000000000000000000")
    shown = dissect(header, Dialect.DCP)
    assert (shown.title, shown.dialect, labels(shown)) == ("DCP_OPCODE 0x66 response", "dcp", [])


@pytest.mark.parametrize(
    ("data", "offset", "text"),
    [
        (b"", 0, "0 bytes; a header has 24"),
        (b"\x80" + bytes(20), 21, "21 bytes; a header has 24"),
        (b"\x55" + bytes(40), 0, "0x55 is no magic of this protocol"),
    ],
)
def test_what_is_no_message_is_shown_as_bytes(data: bytes, offset: int, text: str):
    """Bytes without a header or a magic are shown as they are."""
    shown = dissect(data, Dialect.TAP)
    assert (shown.title, shown.kind, shown.known) == ("NO MESSAGE", "unknown", False)
    assert problems(shown) == [(offset, text)]
    assert [(view.label, view.length) for view in shown.fields] == ([("Bytes", len(data))] if data else [])


def test_lengths_that_lie_are_named():
    """A total body that is shorter than its parts is named at its byte, beside what else it contradicts."""
    set_with_short_body = bytes.fromhex("800100010800000000000004000000000000000000000000") + bytes(8) + b"k"
    assert problems(dissect(set_with_short_body, Dialect.DCP)) == [
        (8, "total body says 4 bytes, 9 follow the header"),
        (8, "total body says 4 bytes, extras and key alone have 9"),
    ]


def test_engine_bytes_and_metadata_must_fit():
    """An engine length or a metadata length that is greater than the body makes the message malformed."""
    tap = bytes.fromhex("804200010800000000000009000000000000000000000000") + b"\x00\x09\0\0\xff\0\0\0" + b"k"
    message = decode(tap, Dialect.TAP)
    assert isinstance(message, Malformed)
    assert (message.problem.offset, message.problem.text) == (8, "engine bytes, key and metadata need 18 of 9 bytes")
    deletion = bytes.fromhex("805800011200000000000013000000000000000000000000") + bytes(16) + b"\x00\x05" + b"k"
    message = decode(deletion)
    assert isinstance(message, Malformed)
    assert (message.problem.offset, message.problem.text) == (8, "engine bytes, key and metadata need 24 of 19 bytes")


def test_a_field_that_is_cut_leaves_its_bytes_to_see():
    """The first bytes of a field that is not all there are shown, and said to be too few; what follows is not read."""
    connect = bytes.fromhex("80400000040000000000000800000000000000000000000000000001") + b"\1\2\3\4"
    shown = dissect(connect, Dialect.TAP)
    assert labels(shown) == ["Flags", "Unexplained"]
    assert problems(shown) == [(28, "Backfill date needs 8 bytes, 4 are left")]
    opaque = bytes.fromhex("80440000080000000000000c00000000000000000000000000040000ff000000") + b"\1\2"
    shown = dissect(opaque, Dialect.TAP)
    assert labels(shown)[-1] == "Unexplained"
    assert problems(shown) == [
        (8, "total body says 12 bytes, 10 follow the header"),
        (32, "Opaque code needs 4 bytes, 2 are there"),
    ]


def test_no_byte_is_shown_twice():
    """A state that stands outside the engine-specific bytes is unexplained, and not also a state."""
    vbucket_set = bytes.fromhex("80450000080000020000000c00000010000000000000000000000001ff00000000000002")
    shown = dissect(vbucket_set, Dialect.TAP)
    assert labels(shown)[-1] == "Unexplained"
    assert problems(shown) == [(32, "VB State needs 4 bytes, 0 are left")]
    assert sum(view.length for view in shown.fields) == len(vbucket_set)


def test_rows_that_do_not_divide_are_shown_as_far_as_they_go():
    """Whole entries of a failover log are read, the rest is unexplained."""
    log = bytes.fromhex("815400000000000000000013000000000000000000000000") + bytes(range(19))
    shown = dissect(log, Dialect.DCP)
    assert labels(shown) == ["vb UUID", "vb seqno", "Unexplained"]
    assert problems(shown) == [(24, "19 bytes are no failover log: at most 1024 rows of 16 bytes")]
