"""Dumps of old servers: as captured, cut short, refused."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import (
    ConnectionLostError,
    NotSupportedError,
    ServerAnswerError,
    StatusError,
    UnknownCommandError,
)
from headrace.client.tap_dump import Progress, TapDump, TapPart
from headrace.client.tap_rows import TapRows
from headrace.columns import BINARY_KEYS, TEXT_KEYS, schema
from headrace.ids import Cas, Opaque, VBucketId
from headrace.wire import Dialect, Frame, Header, deflate, encode
from headrace.wire.catalogue import (
    Noop,
    TapAck,
    TapCheckpointStart,
    TapDelete,
    TapFlush,
    TapMutation,
    TapOpaque,
    TapRequest,
    TapVBucketSet,
)
from headrace.wire.codes import Datatype, Feature, Status, TapConnectFlag, TapFlag, TapOpaqueCode
from tests.client.tap_server import (
    CLOCK,
    DUMPS,
    RELEASES,
    Rows,
    TapServer,
    captured,
    details,
    dump,
    item,
    items_of,
    opaque,
    options,
    playing,
    read,
    whole,
)
from tests.wire.strategies import CASES, Case, messages

SHAPES = [case for case in CASES if case.cls is TapMutation]


def expected_rows(frames: Sequence[bytes]) -> Rows:
    """The rows of captured frames, by the codec; the captures' clients did not ask for flags in network order."""
    rows: Rows = []
    for message in map(read, frames):
        if isinstance(message, TapMutation | TapDelete):
            row: dict[str, Any] = dict.fromkeys(schema().names)
            row |= {"vbucket": message.vbucket, "key": message.key.decode(), "cas": message.cas}
            row |= {"rev": message.rev_seqno, "scope": "_default", "collection": "_default", "event": "deletion"}
            if isinstance(message, TapMutation):
                flags = int.from_bytes(message.item_flags.to_bytes(4, "little"), "big")
                row |= {"event": "mutation", "value": message.value, "flags": flags, "expiry": message.expiry}
            rows.append(row)
    return rows


def without_time(rows: Rows) -> Rows:
    """Rows but for what is computed from the CAS."""
    return [{**row, "changed_at": None} for row in rows]


# -- as captured


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("scenario", "connection"), DUMPS)
def test_captured_dumps(release: str, scenario: str, connection: str):
    """A dump gives each item and tombstone that the server sent, in order, and null for what TAP does not tell."""
    frames = captured(release, scenario, connection)
    held = items_of(frames)
    with playing(TapServer(frames, statistics=lambda: details(held))) as server:
        rows = dump(server)
        expected = expected_rows(frames)
        assert without_time(rows) == expected
        assert {row["event"] for row in rows} == {"mutation", "deletion"}
        assert all(int(row["changed_at"].timestamp() * 1e6) == row["cas"] // 1000 for row in rows)
        assert 0xDEADBEEF in {row["flags"] for row in rows}
        assert len(expected) > 5
    connect = server.connects[0]
    assert connect.flags == 0x112 | TapConnectFlag.LIST_VBUCKETS
    assert connect.vbuckets == tuple(held)


@pytest.mark.parametrize("release", RELEASES)
def test_acks(release: str):
    """Every message that asks for an ack gets one, with its opcode and opaque, and no other does."""
    frames = captured(release, "08f_tap_ack")
    asking = [
        message for message in map(read, frames) if isinstance(message, TapRequest) and message.tap_flags & TapFlag.ACK
    ]
    with playing(TapServer(frames)) as server:
        dump(server)
    assert len(asking) > 10
    assert [(ack.opcode, ack.opaque, ack.status) for ack in server.acks if isinstance(ack, TapAck)] == [
        (message.spec.opcodes[Dialect.TAP], message.opaque, 0) for message in asking
    ]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("scenario", ["08c_tap_dump", "08f_tap_ack"])
def test_a_cut_at_any_place(release: str, scenario: str):
    """A dump that ends before its last backfill was closed raises and names vbuckets, also within a message."""
    frames = captured(release, scenario)
    ends = [sum(map(len, frames[:count])) for count in range(len(frames) + 1)]
    held = items_of(frames)
    for cut in {place + more for place in ends[:-1] for more in (0, 1, 30)} - {ends[-1]}:
        told = TapServer(frames, statistics=lambda: details(held), cut_bytes=cut)
        with playing(told) as server, pytest.raises(ConnectionLostError, match=r"not whole: vbuckets? \d"):
            dump(server)
    untold = TapServer(frames, cut_bytes=0)
    with playing(untold) as server, pytest.raises(ConnectionLostError, match="nothing was sent at all"):
        dump(server)


def test_the_cut_is_told():
    """The error of a cut says what was seen: how many items, and which vbuckets are not whole."""
    frames = captured("4.1.2", "08c_tap_dump")
    with (
        playing(TapServer(frames, cut_bytes=sum(map(len, frames[:-2])))) as server,
        pytest.raises(ConnectionLostError) as caught,
    ):
        dump(server)
    told = "the server closed the connection, after 16 items of a dump, which is not whole: vbuckets 2, 3 are not sent"
    assert told in str(caught.value)


# -- messages that captures of dumps do not have


def test_what_is_skipped_and_answered():
    """Signs of life are answered; checkpoints, states and unknown control messages are acknowledged and skipped."""
    checkpoint = TapCheckpointStart(key=b"checkpoint_start", checkpoint=7, tap_flags=TapFlag.ACK, opaque=Opaque(9))
    beside = [Noop(opaque=Opaque(5)), checkpoint, TapVBucketSet(state=1, tap_flags=TapFlag.ACK)]
    every = [opaque(code) for code in TapOpaqueCode if code not in {1, 8}]
    odd = TapOpaque(code=99, tap_flags=TapFlag.ACK)
    with playing(TapServer(whole(item(b"a"), *beside, *every, odd, item(b"b")))) as server:
        assert [row["key"] for row in dump(server)] == ["a", "b"]
    assert [ack.opcode for ack in server.acks if isinstance(ack, TapAck)].count(0x44) == 3 + len(every) + 1
    assert [(ack.opaque, type(ack).__name__) for ack in server.acks if ack.opaque in {5, 9}] == [
        (5, "Done"),
        (9, "TapAck"),
    ]


def test_rows_of_all_kinds():
    """Flags are in the order that the message tells, values are inflated, and what is not known is null."""
    sent = [
        item(b"network", item_flags=0x01020304, expiry=1_900_000_000),
        item(b"machine", item_flags=0x01020304, tap_flags=0),
        item(b"no-value", b"", tap_flags=TapFlag.NO_VALUE | TapFlag.NETWORK_BYTE_ORDER),
        item(b"packed", deflate(b"[1, 2]"), datatype=Datatype.SNAPPY | Datatype.JSON),
        item(b"other", rev_seqno=None, nru=None, engine=b"abc"),
        item(b"counted", cas=Cas(17), rev_seqno=2**64 - 1),
        TapDelete(key=b"gone", rev_seqno=4),
        TapDelete(key=b"bare"),
        TapFlush(vbucket=VBucketId(0)),
    ]
    with playing(TapServer(whole(*sent))) as server:
        rows = {row["key"]: row for row in dump(server)}
    told = {key: (row["event"], row["value"], row["flags"], row["rev"], row["datatype"]) for key, row in rows.items()}
    assert told == {
        "network": ("mutation", b"1", 0x01020304, 1, None),
        "machine": ("mutation", b"1", 0x04030201, 1, None),
        "no-value": ("mutation", None, 0, 1, None),
        "packed": ("mutation", b"[1, 2]", 0, 1, 1),
        "other": ("mutation", b"1", 0, None, None),
        "counted": ("mutation", b"1", 0, -1, None),
        "gone": ("deletion", None, None, 4, None),
        "bare": ("deletion", None, None, None, None),
        None: ("flush", None, None, None, None),
    }
    assert rows["network"]["expiry"] == 1_900_000_000
    assert rows["network"]["changed_at"].timestamp() == CLOCK / 1e9
    assert rows["counted"]["changed_at"] is None


def test_datatypes_that_were_agreed_on():
    """Where hello agreed on datatypes, a plain value is known to be one."""
    sent = whole(item(b"plain"), item(b"json", datatype=Datatype.JSON))
    with playing(TapServer(sent, features=[Feature.JSON])) as server:
        assert {row["key"]: row["datatype"] for row in dump(server)} == {"plain": 0, "json": 1}


@given(data=st.data(), keys=st.sampled_from([BINARY_KEYS, TEXT_KEYS]))
@pytest.mark.parametrize("case", SHAPES, ids=lambda case: case.id)
def test_the_short_way_is_the_long_way(case: Case, keys: str, data: st.DataObject):
    """An item read from its bytes is the row that the codec gives, and only the usual layout is read so."""
    message = data.draw(messages(case))
    assert isinstance(message, TapMutation)
    wire = encode(message, Dialect.TAP)
    frame = Frame(Header.parse(wire), wire[24:])
    outcomes = []
    for way in ("short", "long"):
        rows = TapRows(keys=keys, bytes_max=1 << 20)
        try:
            tap_flags = rows.add_frame(frame) if way == "short" else message.tap_flags
            if tap_flags is None:
                assert case.layout.name != "revision and nru" or frame.header.magic != 0x80
                rows.add(message)
            elif way == "long":
                rows.add(message)
            else:
                assert tap_flags == message.tap_flags
            outcomes.append(rows.batch().to_pylist())
        except Exception as error:  # noqa: BLE001 - both ways are to fail alike
            outcomes.append(repr(error))
    assert outcomes[0] == outcomes[1]


def test_batches_are_bounded():
    """A batch ends at the size that was asked for, and rows are the same however they are cut."""
    sent = whole(*(item(b"key-%d" % number, bytes(1000)) for number in range(100)))
    with playing(TapServer(sent)) as server:
        how = options(server, buffer_bytes=8192)
        with TapDump(how, TapPart(how.seeds[0])) as found:
            sizes = [batch.num_rows for batch in found]
    assert sum(sizes) == 100
    assert max(sizes) == 8
    assert all(size >= 7 for size in sizes[:-1])


def test_keys_that_are_no_text():
    """A key that is not UTF-8 is an error that says what to do; as bytes it comes through."""
    sent = whole(item(b"\xff\x00"), TapDelete(key=b"\xfe"))
    with playing(TapServer(sent)) as server, pytest.raises(ServerAnswerError, match="keys=binary"):
        dump(server)
    with playing(TapServer(sent)) as server:
        assert [row["key"] for row in dump(server, keys=BINARY_KEYS)] == [b"\xff\x00", b"\xfe"]


def test_what_no_dump_has():
    """Bytes that are no TAP message are an error that names the server."""
    for wrong in (b"\x80\x41" + bytes(22), b"\x80\x00" + bytes(22), b"HTTP/1.1 200 OK" + bytes(40)):
        frames = [*whole()[:2], wrong]
        with playing(TapServer(frames)) as server, pytest.raises(ServerAnswerError, match=str(server.port)):
            dump(server)


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (Status.UNKNOWN_COMMAND, UnknownCommandError, "have no TAP: read them by DCP"),
        (Status.NOT_SUPPORTED, NotSupportedError, "have no TAP: read them by DCP"),
        (Status.TEMPORARY_FAILURE, StatusError, "No"),
    ],
)
def test_refused(status: int, kind: type[StatusError], said: str):
    """A server that refuses a dump is quoted, and one without TAP is told what to read it by."""
    with playing(TapServer(refusal=status)) as server, pytest.raises(kind, match=said):
        dump(server)


def test_progress():
    """A backfill that is opened anew is open, whatever was closed before; without a word nothing is missing or all."""
    progress = Progress(expected={1})
    assert progress.missing == "vbucket 1 is not sent, and not empty"
    for code, missing in ((1, True), (8, False), (1, True), (8, False)):
        progress.take(opaque(TapOpaqueCode(code), 1))
        assert (progress.missing is not None) is missing
    many = Progress(expected=range(20))
    assert many.missing == "vbuckets 0, 1, 2, 3, 4, 5, 6, 7 and 12 more are not sent, and not empty"
    assert Progress(expected=set()).missing is None
    assert Progress(expected=None).missing == "nothing was sent at all"
