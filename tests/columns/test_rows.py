"""What a row says, shown on single messages."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.columns import Positions, Settings, decode_changes, schema, signed, unsigned
from headrace.errors import LocalProtocolError
from headrace.ids import CollectionId
from headrace.wire import Dialect, catalogue, deflate, encode, encode_collection, join_xattrs

c: Any = catalogue
NOVEMBER = 1_794_787_200_000_000_000


def mutation(**changed: Any) -> bytes:
    """A mutation with sane fields, but for those named."""
    usual: dict[str, Any] = {"by_seqno": 4, "rev_seqno": 1, "key": b"hello", "value": b"world", "vbucket": 528}
    return encode(c.Mutation(**usual | changed), Dialect.DCP)


def only_row(*frames: bytes, **settings: Any) -> dict[str, Any]:
    """The one row that these frames give."""
    changes = decode_changes(b"".join(frames), Settings(**settings), Positions())
    assert changes.error is None
    (row,) = changes.rows.to_pylist()
    return dict(row)


def refusal(*frames: bytes, **settings: Any) -> str:
    """Why the last of these frames is refused; the rows before it are given all the same."""
    changes = decode_changes(b"".join(frames), Settings(**settings), Positions())
    assert changes.error is not None
    assert changes.consumed_bytes == changes.error.offset == sum(map(len, frames[:-1]))
    assert changes.rows.num_rows == len(frames) - 1
    return changes.error.text


def test_documents_mutation():
    """The mutation drawn in dcp-mutation.md is the row that its legend tells."""
    drawn = bytes.fromhex(
        "805700051f000210000000290000121000000000000000000000000000000004"
        "000000000000000100000000000000000000000000000068656c6c6f776f726c64"
    )
    assert only_row(drawn) == dict.fromkeys(schema().names) | {
        "event": "mutation",
        "vbucket": 0x210,
        "vbuuid": 0,
        "seqno": 4,
        "rev": 1,
        "cas": 0,
        "key": "hello",
        "value": b"world",
        "datatype": 0,
        "flags": 0,
        "expiry": 0,
        "lock_time": 0,
        "scope": "_default",
        "collection": "_default",
    }


def test_rows_inherit_branch_and_snapshot():
    """A row carries the uuid that was set for its vbucket and the range of the last marker."""
    positions: Any = Positions()
    positions.set_vbuuid(528, 2**64 - 1)
    marker = encode(c.SnapshotMarker(vbucket=528, start_seqno=1, end_seqno=2**64 - 1, flags=0x02))
    row = decode_changes(marker + mutation(), Settings(), positions).rows.to_pylist()[0]
    told = row["vbuuid"], row["snapshot_start"], row["snapshot_end"], row["snapshot_type"]
    assert told == (-1, 1, -1, "disk")
    positions.forget(528)
    row = decode_changes(mutation(), Settings(), positions).rows.to_pylist()[0]
    assert (row["vbuuid"], row["snapshot_start"], row["snapshot_type"]) == (-1, None, None)


@pytest.mark.parametrize(
    ("flags", "name"), [(1, "memory"), (5, "memory"), (2, "disk"), (0x12, "history"), (4, "unknown")]
)
def test_snapshot_types_have_names(flags: int, name: str):
    """The flags of a marker become a word."""
    marker = encode(c.SnapshotMarker(vbucket=528, start_seqno=1, end_seqno=9, flags=flags))
    assert only_row(marker, mutation())["snapshot_type"] == name


def test_value_is_inflated_and_freed_of_xattrs():
    """Snappy and xattrs are undone, and the datatype tells of the value that the row has."""
    value = deflate(join_xattrs({b"_sync": b'{"rev":1}', b"t": b"2"}, b'{"a":1}'))
    row = only_row(mutation(value=value, datatype=7))
    assert row["value"] == b'{"a":1}'
    assert row["xattrs"] == [("_sync", '{"rev":1}'), ("t", "2")]
    assert row["datatype"] == 1


def test_cas_clock_becomes_a_time():
    """A CAS that is a clock gives the time of the change; one that counts gives none."""
    assert only_row(mutation(cas=NOVEMBER))["changed_at"] == datetime(2026, 11, 16, tzinfo=UTC)
    assert only_row(mutation(cas=77))["changed_at"] is None


def test_deletion_and_expiration_carry_their_time():
    """The newer forms of deletion and expiration tell when; the older ones do not."""
    for cls, event in ((c.Deletion, "deletion"), (c.Expiration, "expiration")):
        usual = {"by_seqno": 9, "rev_seqno": 2, "key": b"k"}
        row = only_row(encode(cls(**usual, delete_time=0xFFFFFFFF)))
        assert (row["event"], row["delete_time"], row["value"], row["flags"]) == (event, 0xFFFFFFFF, None, None)
        assert only_row(encode(cls(**usual)))["delete_time"] is None


def test_collections_are_named():
    """A key's collection id becomes scope and collection; an id that nobody named keeps its number."""
    names = {8: ("inventory", "hotel")}
    row = only_row(mutation(key=encode_collection(CollectionId(8)) + b"h1"), collections=names)
    assert (row["scope"], row["collection"], row["key"]) == ("inventory", "hotel", "h1")
    row = only_row(mutation(key=encode_collection(CollectionId(300)) + b"h1"), collections=names)
    assert (row["scope"], row["collection"]) == (None, "0x12c")


def test_what_cannot_be_read_is_refused_with_its_reason():
    """A key, a block or xattrs that cannot be read end the batch before their frame, and say why."""
    fine = mutation()
    assert "not UTF-8; read it with keys=binary" in refusal(fine, mutation(key=b"\xff\xfe"))
    assert "damaged" in refusal(fine, mutation(value=b"\x05\x00", datatype=2))
    assert "claims 1048576 bytes" in refusal(fine, mutation(value=b"\x80\x80\x40", datatype=2), inflated_bytes_max=99)
    assert "does not begin with its length" in refusal(fine, mutation(value=b"\x80" * 5, datatype=2))
    assert "xattrs of 9 bytes" in refusal(fine, mutation(value=b"\0\0\0\x09x", datatype=4))
    assert "not UTF-8" in refusal(fine, mutation(value=join_xattrs({b"\xff": b"1"}, b""), datatype=4))
    twice = join_xattrs({b"a": b"1"}, b"")
    doubled = (2 * (len(twice) - 4)).to_bytes(4) + 2 * twice[4:]
    assert "stands twice" in refusal(fine, mutation(value=doubled, datatype=4))
    assert "0x55 is no magic" in refusal(fine, b"\x55" + fine[1:])
    assert "a body of 4294967295 bytes" in refusal(fine, b"\x80\x57" + bytes(6) + b"\xff" * 4 + bytes(12))
    assert "no collection id" in refusal(
        mutation(key=b"\0k"), mutation(key=b"\xff\xff\xff\xff\xff\x01"), collections={}
    )


def test_too_many_xattrs_are_refused():
    """A value with more xattrs than any item may have is refused before their number costs anything."""
    many = b"".join(b"\0\0\0\x06" + b"%03d" % number + b"\x001\0" for number in range(513))
    block = len(many).to_bytes(4) + many
    assert "more than 512 xattrs" in refusal(mutation(), mutation(value=block, datatype=4))
    long = (4 + 132).to_bytes(4) + (132).to_bytes(4) + b"n" * 129 + b"\x001\0"
    assert "an xattr's name has 129 bytes" in refusal(mutation(), mutation(value=long, datatype=4))


def test_system_events_keep_their_value():
    """The value of a system event is its own: no bit of its datatype is undone."""
    frame = encode(c.SystemEvent(by_seqno=1, event=0, version=0, key=b"n", value=b"\xff\xff", datatype=6))
    assert only_row(frame)["value"] == b"\xff\xff"


def test_a_block_that_inflates_to_nothing_has_no_xattrs():
    """Xattrs are null where the inflated value is empty, also beside rows that have some."""
    empty = mutation(value=deflate(b""), datatype=6)
    full = mutation(value=join_xattrs({b"a": b"1"}, b""), datatype=4)
    rows = decode_changes(empty + full, Settings(), Positions()).rows.to_pylist()
    assert [row["xattrs"] for row in rows] == [None, [("a", "1")]]


def test_settings_that_arrow_cannot_hold_are_refused():
    """A limit past what Arrow's offsets can count, or of nothing, is the caller's mistake."""
    make: Any = Settings
    for name in ("body_bytes_max", "inflated_bytes_max", "rows_max", "value_bytes_max", "key_bytes_max"):
        for number in (0, 1 << 31):
            with pytest.raises(LocalProtocolError, match=name):
                make(**{name: number})
    with pytest.raises(LocalProtocolError, match="keys is 'hex'"):
        make(keys="hex")


def test_large_messages_beside_rows_can_be_read():
    """What the settings let in can be read, whatever the wire's own default is."""
    frame = encode(c.Set(key=b"k", value=bytes(31 << 20)))
    changes = decode_changes(frame, Settings(body_bytes_max=32 << 20), Positions())
    message: Any = changes.controls[0].message
    assert len(message.value) == 31 << 20


def test_flow_control_counts_stream_messages_alone():
    """Rows, markers and ends count for flow control; answers, noops and plain commands do not."""
    counted = [
        encode(c.SnapshotMarker(start_seqno=1, end_seqno=2, flags=1)),
        mutation(),
        encode(c.StreamEnd(reason=0)),
    ]
    free = [encode(c.DcpNoop()), encode(c.Noop()), encode(c.FailoverLog(opcode=0x54))]
    changes = decode_changes(b"".join(counted + free), Settings(), Positions())
    assert changes.flow_bytes == sum(map(len, counted))


def test_binary_keys_are_read_as_they_are():
    """With keys=binary a key may be any bytes."""
    assert only_row(mutation(key=b"\xff\xfe"), keys="binary")["key"] == b"\xff\xfe"


def test_messages_beside_rows_keep_their_order():
    """What is no change comes beside the rows, with the number of rows before it."""
    end = encode(c.StreamEnd(vbucket=528, reason=2))
    noop = encode(c.DcpNoop(opaque=5))
    changes = decode_changes(noop + mutation() + mutation() + end, Settings(), Positions())
    assert [(each.row, type(each.message).__name__) for each in changes.controls] == [(0, "DcpNoop"), (2, "StreamEnd")]
    assert [each.row for each in changes.controls[-1:]] == [2]
    with pytest.raises(IndexError):
        changes.controls[2]


def test_answer_to_a_stream_request_ends_the_batch():
    """Rows behind the answer to a stream request are of a branch that only the answer names: the batch ends there."""
    answer = encode(c.FailoverLog(opcode=0x53, entries=(c.FailoverEntry(7, 0),)))
    changes = decode_changes(mutation() + answer + mutation(), Settings(), Positions())
    assert (changes.rows.num_rows, changes.more, changes.consumed_bytes) == (1, True, len(mutation() + answer))


def test_batches_stay_within_their_limits():
    """A batch ends before it passes a limit; a value larger than the limit comes alone."""
    data = mutation(value=b"x" * 60) * 5
    assert decode_changes(data, Settings(rows_max=2), Positions()).rows.num_rows == 2
    assert decode_changes(data, Settings(value_bytes_max=130), Positions()).rows.num_rows == 2
    assert decode_changes(data, Settings(value_bytes_max=1), Positions()).rows.num_rows == 1
    assert decode_changes(data, Settings(key_bytes_max=12), Positions()).rows.num_rows == 2


def test_nothing_refers_to_the_received_bytes():
    """The buffer may be filled anew as soon as the batch is there."""
    buffer = bytearray(encode(c.Noop(opaque=9)) + mutation())
    changes = decode_changes(memoryview(buffer), Settings(), Positions())
    buffer[:] = bytes(len(buffer))
    assert changes.rows.to_pylist()[0]["value"] == b"world"
    assert changes.controls[0].message.opaque == 9


def test_unfinished_frame_is_left_for_later():
    """A frame that is not yet whole is not consumed, and is no error."""
    data = mutation()
    for cut in (0, 1, 23, 24, len(data) - 1):
        changes = decode_changes(data[:cut], Settings(), Positions())
        assert (changes.rows.num_rows, changes.consumed_bytes, changes.more, changes.error) == (0, 0, False, None)


def test_longs_have_the_bits_of_the_wire():
    """Unsigned numbers become longs with the same bits, and come back."""
    for number in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
        assert unsigned(signed(number)) == number
        assert only_row(mutation(by_seqno=number))["seqno"] == signed(number)


def test_errors_travel_between_processes():
    """An error that an executor raises reaches the driver whole."""
    error = decode_changes(b"\x55" * 24, Settings(), Positions()).error
    assert error is not None
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.text, copied.offset) == (error.text, error.offset)
