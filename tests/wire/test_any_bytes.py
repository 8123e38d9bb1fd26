"""Whatever bytes come, in whatever pieces and dialect: messages, or one RemoteProtocolError, and nothing else."""

import importlib.util
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.properties import check_dissection, check_reader, one_input
from headrace.errors import RemoteProtocolError
from headrace.wire import Dialect, FrameReader, Message, decode, dissect, encode, message_length
from headrace.wire.catalogue import StreamAdded
from headrace.wire.codes import Status
from headrace.wire.header import MAGICS, Header
from headrace.wire.message import Kind
from headrace.wire.registry import PLANS, lookup, reply_to, spoken_in
from tests.wire.entries import samples
from tests.wire.strategies import any_message, unsigned
from tests.wire.vectors import TESTS

ROOT = TESTS.parent
GOLDEN = sorted({(sample.wire, sample.dialect) for sample in samples()})
LENGTHS = {"key": (2, 2), "extras": (4, 1), "body": (8, 4)}
each_dialect = pytest.mark.parametrize("dialect", Dialect)
many = settings(max_examples=80)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draw a frame whose lengths agree, of any opcode, with any body."""
    framing, extras, key = draw(st.integers(0, 3)), draw(st.integers(0, 50)), draw(st.integers(0, 20))
    magic = draw(st.sampled_from(sorted(MAGICS)))
    flexible = magic in (0x08, 0x18)
    body = draw(st.binary(min_size=framing + extras + key, max_size=framing + extras + key + 60))
    header = Header(
        magic=magic,
        opcode=draw(st.integers(0, 0x65) | unsigned(8)),
        framing_length=framing if flexible else 0,
        key_length=key,
        extras_length=extras,
        datatype=draw(unsigned(8)),
        specific=draw(st.sampled_from([0, 0, 1, 0x21, 0x23]) | unsigned(16)),
        body_length=len(body),
        opaque=draw(unsigned(32)),
        cas=draw(unsigned(64)),
    )
    return header.pack() + body


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw golden bytes or a drawn message, with bits flipped, bytes cut or put in, or a length that lies."""
    wire, _ = draw(st.sampled_from(GOLDEN))
    if draw(st.booleans()):
        case, message = draw(any_message())
        wire = encode(message, case.dialect)
    data = bytearray(wire)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(data)))
        what = draw(st.sampled_from(["flip", "cut", "insert", *LENGTHS]))
        if what in LENGTHS:
            at, size = LENGTHS[what]
            lie = draw(st.integers(0, 90) | unsigned(8 * size))
            data[at : at + size] = lie.to_bytes(size)
        elif what == "cut":
            del data[place:]
        elif what == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=9))
        elif place < len(data):
            data[place] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


any_bytes = st.binary(max_size=120) | frames() | damaged()
streams = st.lists(any_bytes, max_size=5).map(b"".join)


def pieces(data: st.DataObject, whole: bytes) -> list[bytes]:
    """Cut bytes wherever hypothesis likes."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@each_dialect
@many
@given(data=st.data())
def test_any_bytes_in_any_pieces_give_messages_or_one_error(dialect: Dialect, data: st.DataObject):
    """A reader gives messages that go back to their bytes, until one error that then stays; cuts change nothing."""
    whole = data.draw(streams)
    found = check_reader(pieces(data, whole), dialect)
    assert found == check_reader([whole], dialect)


@each_dialect
@many
@given(data=any_bytes)
def test_any_bytes_can_be_taken_apart(dialect: Dialect, data: bytes):
    """The dissector is total; its fields stand in order within the data and spell it, and it agrees with the codec."""
    check_dissection(data, dialect)


@settings(max_examples=100)
@given(drawn=any_message(), dialect=st.sampled_from(Dialect))
def test_a_valid_message_is_taken_apart_whole(drawn: tuple[object, Message], dialect: Dialect):
    """The fields of a message that fits cover every one of its bytes."""
    case, message = drawn
    wire = encode(message, getattr(case, "dialect", dialect))
    check_dissection(wire, dialect)
    shown = dissect(wire, getattr(case, "dialect", dialect))
    assert shown.known
    assert not shown.problems


@given(data=st.binary(max_size=80))
def test_the_fuzz_target_takes_any_input(data: bytes):
    """The function that the fuzzer calls holds for short and long inputs alike."""
    one_input(data)


def test_golden_bytes_damaged_bit_by_bit():
    """Each bit of a mutation's header flipped gives a message, an error or more to wait for, and never a surprise."""
    wire = next(wire for wire, dialect in GOLDEN if wire[1] == 0x57 and len(wire) < 80)
    for bit in range(8 * 24):
        data = bytearray(wire)
        data[bit // 8] ^= 1 << bit % 8
        check_reader([bytes(data)], Dialect.DCP)
        check_dissection(bytes(data), Dialect.DCP)


def test_a_header_alone_tells_its_length():
    """The length of a message is known from its header, and unknown before that is whole."""
    assert message_length(bytes(23)) is None
    assert message_length(bytes(8) + bytes([0, 0, 1, 0]) + bytes(12)) == 24 + 256


def test_no_bytes_are_no_error():
    """A reader that was fed nothing waits, and a dissection of nothing says so."""
    assert check_reader([b""], Dialect.DCP) == []
    assert dissect(b"", Dialect.DCP).title == "NO MESSAGE"
    reader = FrameReader()
    reader.receive(b"\x55" * 24)
    with pytest.raises(RemoteProtocolError):
        reader.next_frame()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this platform")
def test_the_fuzzer_runs():
    """The fuzz target starts under libFuzzer and finds nothing in its first inputs."""
    run = subprocess.run(
        [sys.executable, "fuzz/decode.py", "-runs=2000", "-max_len=4096", "-seed=1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "Done 2000" in run.stderr


@each_dialect
def test_each_answer_that_can_be_read_can_be_written(dialect: Dialect):
    """An answer goes out on every connection on which its request may come: also where that is another dialect's."""
    elsewhere = 0
    for opcode in range(256):
        found = lookup(Kind.RESPONSE, opcode, dialect)
        for status in (Status.SUCCESS, Status.ROLLBACK, *(found[0].spec.replies if found else ())):
            if found:
                reply, spoken = reply_to(found[0], status), found[1]
                assert (reply, spoken) in PLANS
                assert spoken_in(reply, dialect) is not None, f"{reply.spec.name} to {found[0].spec.name}"
                elsewhere += spoken is not dialect
    assert elsewhere
    assert spoken_in(StreamAdded, Dialect.UPR_DRAFT) is None
    frame = bytes.fromhex("81510000040000000000000400000000000000000000000000000000")
    assert encode(decode(frame, dialect), dialect) == frame
