"""Every frame of the captures: what two real servers and their clients said."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError
from headrace.wire import NEED_DATA, Dialect, Frame, FrameReader, Malformed, Unknown, decode, encode, fits
from tests.wire.vectors import Captured, captures

BOTH = ("3.0.3", "4.1.2")
NEWER = ("4.1.2",)

# What the captures' author sent wrong on purpose, to see what the servers do: (servers, scenario, line) with the byte
# at which our codec finds it wrong, and its words.
MALFORMED: dict[tuple[tuple[str, ...], str, int], tuple[int, str]] = {
    (BOTH, "03b_dcp_malformed", 17): (2, "a key of 0 bytes"),  # open with an empty name
    (BOTH, "03b_dcp_malformed", 20): (4, "extras of 4 bytes; it takes 8"),  # open with short extras
    (BOTH, "03b_dcp_malformed", 25): (4, "extras of 40 bytes; it takes 48"),  # UPR's stream request
    (BOTH, "03b_dcp_malformed", 30): (2, "a key of 3 bytes"),  # stream request with a key
    (BOTH, "03b_dcp_malformed", 91): (4, "extras of 0 bytes; it takes 13"),  # 0x5f, then still without a meaning
    (BOTH, "06a_dcp_control", 47): (2, "a key of 0 bytes"),  # control without a key
    (BOTH, "06a_dcp_control", 49): (4, "extras of 4 bytes; it takes 0"),  # control with extras
    (BOTH, "06c_dcp_flow_control", 90): (4, "extras of 8 bytes; it takes 4"),  # buffer ack with long extras
    (BOTH, "08b3_tap_backfill_short", 2): (34, "Backfill date needs 8 bytes, 0 are left"),
    (BOTH, "08b3_tap_backfill_short", 4): (34, "Backfill date needs 8 bytes, 4 are left"),
    (BOTH, "08e_tap_list_vbuckets", 43): (42, "VBucket list needs 12 bytes, 4 are left"),  # count without its list
    (BOTH, "08l_tap_consumer", 47): (32, "VB State needs 4 bytes, 0 are left"),  # engine length 0, state as value
    (BOTH, "08l_tap_consumer", 50): (32, "VB State needs 4 bytes, 0 are left"),
    (BOTH, "08l_tap_consumer", 53): (32, "VB State needs 4 bytes, 0 are left"),
    (BOTH, "08l_tap_consumer", 56): (32, "VB State needs 4 bytes, 0 are left"),
    (BOTH, "11_seqnos", 17): (4, "extras of 2 bytes; it takes 0 or 4 or 8"),
    (BOTH, "11_seqnos", 29): (24, "vb UUID needs 8 bytes, 4 are left"),  # observe seqno with half a uuid
    (NEWER, "07b_consumer_errors", 89): (4, "extras of 30 bytes; it takes 31"),  # UPR's mutation
    (NEWER, "07b_consumer_errors", 92): (2, "a key of 0 bytes"),  # mutation without a key
    (NEWER, "07b_consumer_errors", 95): (4, "extras of 20 bytes; it takes 18 or 21"),  # deletion
    (NEWER, "07b_consumer_errors", 103): (4, "extras of 16 bytes; it takes 1 or 20"),  # snapshot marker
    (NEWER, "07b_consumer_errors", 109): (4, "extras of 4 bytes; it takes 1"),  # set vbucket state
    (NEWER, "07b_consumer_errors", 135): (4, "extras of 0 bytes; it takes 4"),  # stream end without a reason
    (NEWER, "07b_consumer_errors", 209): (24, "7 bytes are no failover log"),
}
WRONG = {
    f"{server}/{scenario}:{line}": problem
    for (servers, scenario, line), problem in MALFORMED.items()
    for server in servers
}
NO_MAGIC = frozenset({"3.0.3/03b_dcp_malformed:109", "4.1.2/03b_dcp_malformed:109"})
"""Frames that begin with 0x55. Both servers hung up on them."""


def well_formed() -> list[Captured]:
    """The frames that nobody sent wrong on purpose."""
    return [one for one in captures() if one.id not in WRONG and one.id not in NO_MAGIC]


def directions() -> list[tuple[str, bytes, list[bytes]]]:
    """Each direction of each connection: its name, all its bytes, its frames."""

    def flow(one: Captured) -> tuple[str, str, str, str]:
        return one.server, one.scenario, one.connection, one.direction

    sane = sorted((one for one in captures() if one.id not in NO_MAGIC), key=flow)
    grouped = [("/".join(name), [one.wire for one in group]) for name, group in groupby(sane, key=flow)]
    return [(name, b"".join(frames), frames) for name, frames in grouped]


FLOWS = directions()


def test_both_servers_are_there():
    """The captures hold what the issue asks for: thousands of frames, of two servers, in both directions."""
    assert {one.server for one in captures()} == set(BOTH)
    assert {one.direction for one in captures()} == {"c2s", "s2c"}
    assert len(captures()) == 3967
    assert len(WRONG) == 41
    assert set(WRONG) | NO_MAGIC <= {one.id for one in captures()}


@pytest.mark.parametrize("server", BOTH)
def test_every_frame_is_known_and_comes_back(server: str):
    """A frame that was not sent wrong on purpose decodes to a known message, and encodes to the same bytes."""
    for one in well_formed():
        if one.server == server:
            message = decode(one.wire, Dialect.DCP)
            assert not isinstance(message, Unknown | Malformed), one.id
            assert encode(message, Dialect.DCP) == one.wire, one.id
            assert fits(one.wire, Dialect.DCP), one.id


@pytest.mark.parametrize("one", [one for one in captures() if one.id in WRONG], ids=lambda one: one.id)
def test_what_was_wrong_on_purpose_is_named(one: Captured):
    """A body that is wrong is Malformed, with the byte and the reason, and still comes back as it was."""
    message = decode(one.wire, Dialect.DCP)
    assert isinstance(message, Malformed)
    offset, text = WRONG[one.id]
    assert message.problem.offset == offset
    assert message.problem.text.startswith(text)
    assert encode(message, Dialect.DCP) == one.wire
    assert not fits(one.wire, Dialect.DCP)


@pytest.mark.parametrize("one", [one for one in captures() if one.id in NO_MAGIC], ids=lambda one: one.id)
def test_a_wrong_magic_ends_the_connection(one: Captured):
    """Bytes on which the real server hung up raise RemoteProtocolError."""
    with pytest.raises(RemoteProtocolError, match="0x55 is no magic"):
        decode(one.wire, Dialect.DCP)


@given(data=st.data())
def test_a_direction_in_any_pieces_gives_its_frames(data: st.DataObject):
    """All bytes of one direction of a connection, cut anywhere, come out as the frames that went in."""
    name, whole, frames = data.draw(st.sampled_from(FLOWS))
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=40).map(sorted))
    reader = FrameReader()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        reader.receive(whole[start:end])
        while (frame := reader.next_frame()) is not NEED_DATA:
            assert isinstance(frame, Frame)
            found.append(frame.pack())
    assert found == frames, name
    assert reader.buffered_bytes == 0
    assert reader.offset == len(whole)
