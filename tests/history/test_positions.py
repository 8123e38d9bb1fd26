"""Snapshots and positions as values, and the plain form of positions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError
from headrace.history import SEQNO_MAX, VBUUID_MAX, Position, ResumeRequest, SnapshotRange
from headrace.ids import Seqno, VbUuid

PLAIN = {"vbuuid": 7, "seqno": 12, "snapshot_start": 10, "snapshot_end": 14}


def position(vbuuid: int = 7, seqno: int = 12, start: int = 10, end: int = 14) -> Position:
    """A position from plain numbers."""
    snapshot = SnapshotRange(start=Seqno(start), end=Seqno(end))
    return Position(vbuuid=VbUuid(vbuuid), seqno=Seqno(seqno), snapshot=snapshot)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    """Any position that has something."""
    start, seqno, end = sorted(draw(st.tuples(*[st.integers(0, SEQNO_MAX)] * 3)))
    return position(vbuuid=draw(st.integers(1, VBUUID_MAX)), seqno=seqno, start=start, end=end)


def test_snapshot_holds_both_its_ends():
    """A snapshot holds its first and its last seqno, and none beside them."""
    snapshot = SnapshotRange(start=Seqno(10), end=Seqno(12))
    assert [seqno for seqno in range(20) if seqno in snapshot] == [10, 11, 12]
    assert SnapshotRange.at(Seqno(5)) == SnapshotRange(start=Seqno(5), end=Seqno(5))


@pytest.mark.parametrize(("start", "end"), [(5, 4), (-1, 4), (0, SEQNO_MAX + 1)])
def test_wrong_snapshots_are_refused(start: int, end: int):
    """A snapshot neither ends before it starts nor leaves 64 bits."""
    with pytest.raises(LocalProtocolError, match=f"from seqno {start} to {end}"):
        SnapshotRange(start=Seqno(start), end=Seqno(end))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seqno": 9}, "seqno 9 is outside its snapshot 10 to 14"),
        ({"seqno": 15}, "seqno 15 is outside"),
        ({"vbuuid": -1}, "vb UUID -1 does not fit"),
        ({"vbuuid": VBUUID_MAX + 1}, "does not fit 64 bits"),
        ({"vbuuid": 0}, "seqno 12 without a vb UUID"),
    ],
)
def test_wrong_positions_are_refused(wrong: dict[str, int], words: str):
    """A position lies in its snapshot and names its branch."""
    with pytest.raises(LocalProtocolError, match=words):
        position(**wrong)


def test_beginning_has_nothing():
    """The beginning is seqno 0 of no branch."""
    assert Position.beginning() == position(vbuuid=0, seqno=0, start=0, end=0)


def test_plain_form_is_named_integers():
    """The plain form is what people and offsets see, so its names stay."""
    assert position().as_dict() == PLAIN


@given(positions())
def test_plain_form_survives_json(one: Position):
    """JSON gives back the position that went in, in all 64 bits."""
    assert Position.from_dict(json.loads(json.dumps(one.as_dict()))) == one


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        (None, "a position has vbuuid, seqno, snapshot_start, snapshot_end and nothing else; this is None"),
        ([7, 12, 10, 14], "nothing else"),
        ({}, "nothing else"),
        (PLAIN | {"extra": 1}, "nothing else"),
        (PLAIN | {"seqno": "12"}, "seqno of a position is an integer, not '12'"),
        (PLAIN | {"vbuuid": True}, "vbuuid of a position is an integer, not True"),
        (PLAIN | {"snapshot_start": 10.0}, "snapshot_start of a position is an integer"),
        (PLAIN | {"snapshot_end": None}, "snapshot_end of a position is an integer"),
        (PLAIN | {"snapshot_end": 11}, "outside its snapshot"),
        (PLAIN | {"snapshot_end": 2**64}, "from seqno 10 to"),
    ],
)
def test_what_is_no_plain_form_is_refused(plain: Any, words: str):
    """Whatever else comes is refused, in words that name what is wrong."""
    with pytest.raises(LocalProtocolError, match=words):
        Position.from_dict(plain)


def test_position_becomes_a_request():
    """A request from a position asks for what comes after it, without an end unless one is given."""
    asked = ResumeRequest.from_position(position())
    assert (asked.vbuuid, asked.start_seqno, asked.snapshot_start, asked.snapshot_end) == (7, 12, 10, 14)
    assert asked.end_seqno == SEQNO_MAX
    assert ResumeRequest.from_position(position(), end_seqno=Seqno(20)).end_seqno == 20
