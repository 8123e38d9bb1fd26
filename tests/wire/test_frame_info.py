"""What stands in framing extras, what a log may show, and the mistakes of our own callers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire import (
    Dialect,
    FrameInfo,
    Limits,
    Malformed,
    Unknown,
    decode,
    dissect,
    encode,
    join_frame_infos,
    join_xattrs,
    split_frame_infos,
    split_xattrs,
)
from headrace.wire.catalogue import Hello, Noop, SaslAuth, Set, TapConnect

INFOS = st.builds(FrameInfo, st.integers(0, 270), st.binary(max_size=30) | st.just(bytes(270)))


@given(st.lists(INFOS))
def test_frame_infos_come_back(infos: list[FrameInfo]):
    """Framing extras part into the objects that they were spelled from, with and without escapes."""
    assert split_frame_infos(join_frame_infos(infos)) == tuple(infos)


def test_frame_infos_of_the_server_are_read():
    """A stream id, preserve expiry as the Python SDK sends it, and an escaped id and length."""
    assert split_frame_infos(b"\x22\x00\x07\x50") == (FrameInfo(2, b"\x00\x07"), FrameInfo(5, b""))
    assert split_frame_infos(b"\xff\x01\x00" + b"x" * 15) == (FrameInfo(16, b"x" * 15),)


@pytest.mark.parametrize("framing", [b"\x22\x00", b"\xf0", b"\x0f", b"\xff\x01", b"\x00\x21"])
def test_frame_infos_that_are_cut_are_refused(framing: bytes):
    """An object that does not end within the framing extras cannot be read."""
    with pytest.raises(RemoteProtocolError, match="frame info"):
        split_frame_infos(framing)


@pytest.mark.parametrize("info", [FrameInfo(271, b""), FrameInfo(-1, b""), FrameInfo(1, bytes(271))])
def test_frame_infos_too_large_are_refused(info: FrameInfo):
    """An id or a length that even an escape cannot spell is the caller's mistake."""
    with pytest.raises(LocalProtocolError, match="cannot be spelled"):
        join_frame_infos([info])


def test_framing_extras_are_explained():
    """The dissector says what framing extras hold, and what is wrong with those that hold nothing."""
    told = {}
    for framing in (b"\x22\x00\x07\x50", b"\xe0", b"\x22"):
        fields = dissect(encode(Noop(framing=framing)), Dialect.DCP).fields
        told[framing] = next(field.meaning for field in fields if field.name == "framing_extras")
    assert list(told.values()) == ["stream id 0x0007, preserve expiry", "0xe", "frame info 2 has 2 bytes, 0 are left"]


def test_xattrs_that_nobody_reads_are_not_sent():
    """Too many attributes, or a name too long for a reader, are the caller's mistake."""
    with pytest.raises(LocalProtocolError, match="513 xattrs"):
        join_xattrs({b"%d" % number: b"1" for number in range(513)}, b"")
    with pytest.raises(LocalProtocolError, match="129 bytes"):
        join_xattrs({b"n" * 129: b"1"}, b"")


def test_xattr_names_have_a_limit():
    """A name longer than any reader takes is refused: names are compared with each other."""
    pair = b"n" * 129 + b"\x001\0"
    block = (4 + len(pair)).to_bytes(4) + len(pair).to_bytes(4) + pair
    with pytest.raises(RemoteProtocolError, match="an xattr's name has 129 bytes"):
        split_xattrs(block)


@pytest.mark.parametrize("rest", [b"", b"\x01"])
def test_tap_clients_may_leave_their_checkpoints_out(rest: bytes):
    """The flag for checkpoints without a list is what some clients send; a byte behind it is no list either."""
    wire = encode(TapConnect(flags=0xC0, name=b"n", rest=rest), Dialect.TAP)
    message = decode(wire, Dialect.TAP)
    assert isinstance(message, TapConnect)
    assert (message.checkpoints, message.rest) == (None, rest)
    assert encode(message, Dialect.TAP) == wire
    assert not dissect(wire, Dialect.TAP).problems


def test_limits_have_to_hold_a_frame():
    """A buffer smaller than a frame that it lets in would never give it out."""
    with pytest.raises(LocalProtocolError, match="never holds a frame"):
        Limits(body_bytes_max=1000, buffered_bytes_max=1023)


def test_reprs_are_short_and_keep_secrets():
    """What a log may show of a message: no password, no megabyte, and the header of what could not be read."""
    secret = repr(SaslAuth(mechanism=b"PLAIN", challenge=b"\0admin\0s3cret"))
    assert "s3cret" not in secret
    assert "<13 bytes>" in secret
    assert "(1000 bytes)" in repr(Set(key=b"k", value=bytes(1000)))
    assert "(100 rows)" in repr(Hello(features=tuple(range(100))))
    assert repr(Hello(features=(1, 2))) == "Hello(features=(1, 2))"
    unknown, malformed = decode(b"\x80\xee" + bytes(22)), decode(b"\x80\x00" + bytes(22))
    assert isinstance(unknown, Unknown)
    assert isinstance(malformed, Malformed)
    assert (unknown.opcode, malformed.opcode) == (0xEE, 0)
    assert repr(unknown).startswith("Unknown(Header(magic=128, opcode=238")
    assert repr(malformed).startswith("Malformed(get, Misfit(offset=2")


def test_fields_of_the_wrong_type_are_our_own_mistake():
    """A text where bytes belong is named as such."""
    wrong: Any = Set
    with pytest.raises(LocalProtocolError, match="set has a field of the wrong type"):
        encode(wrong(key="text"))
