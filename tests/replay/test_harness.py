"""The harness itself: a server that does as the capture is found without fault, one with a fault is found out."""

from collections.abc import Callable

import pytest

from headrace.wire.catalogue import SnapshotMarker
from tests.replay import player
from tests.replay.captures import read
from tests.replay.player import Player, Stage
from tests.replay.scripted import Scripted, Turns, turns_of

RELEASE = "4.1.2"
STATUS_AT, OPAQUE_AT, VALUE_AT = 7, 15, -1
START_AT, END_AT, FLAGS_AT = 31, 39, 43
"""The last bytes of the fields of a marker."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "PATIENCE_S", 0.3)
    monkeypatch.setattr(player, "NO_PATIENCE_S", 0.1)
    monkeypatch.setattr(player, "CAPTURED_S_MAX", 0.0)


def found(scenario: str, change: Callable[[Turns], object]) -> set[tuple[int, str, str]]:
    """Play a capture against what it says itself, changed; give line, message and field of what was noticed."""
    turns = turns_of(RELEASE, scenario)
    change(turns)
    with Scripted(turns) as server:
        deviations = Player(RELEASE, scenario, Stage([server]), {}).play()
    return {(one.line, one.message, one.field) for one in deviations}


def with_byte(wire: bytes, at: int, byte: int) -> bytes:
    """The same bytes but for one."""
    changed = bytearray(wire)
    changed[at] = byte
    return bytes(changed)


@pytest.mark.parametrize(
    "scenario",
    ["01a_dcp_memory_stream", "01c_dcp_disk_backfill", "02_dcp_resume", "08a2_tap_no_extras"],
)
def test_a_server_is_like_itself(scenario: str):
    """Nothing is found in what a capture says itself."""
    assert found(scenario, len) == set()


def test_a_status_is_noticed():
    """An answer with another status is found."""

    def change(turns: Turns) -> None:
        turns[0][0] = with_byte(turns[0][0], STATUS_AT, 4)

    assert (3, "answer to open", "status") in found("01c_dcp_disk_backfill", change)


def test_tap_messages_are_noticed():
    """Another TTL of a TAP message is found, one that is missing, and one that is out of its place."""
    ttl_at, missing, moved = 28, 10, 12

    def change(turns: Turns) -> None:
        (turn,) = turns
        turn[0] = with_byte(turn[0], ttl_at, 254)
        turn[moved], turn[moved + 1] = turn[moved + 1], turn[moved]
        del turn[missing]

    noticed = found("08a2_tap_no_extras", change)
    assert (3, "tap_opaque", "ttl") in noticed
    assert {("tap_mutation", "presence"), ("tap_mutation", "order")} <= {
        (message, field) for _, message, field in noticed
    }


def test_a_value_and_a_length_are_noticed():
    """Another value is found, and a longer one twice."""

    def change(turns: Turns) -> None:
        turns[2][2] = with_byte(turns[2][2], VALUE_AT, 0)
        turns[2][4] = with_byte(turns[2][4], 11, turns[2][4][11] + 1) + b"!"

    assert found("01c_dcp_disk_backfill", change) == {
        (9, "mutation", "value"),
        (11, "mutation", "body_length"),
        (11, "mutation", "value"),
    }


def test_a_lost_change_is_noticed():
    """A change that does not come is found."""
    assert found("01c_dcp_disk_backfill", lambda turns: turns[2].pop(4)) == {(11, "mutation", "presence")}


def test_a_lost_end_is_noticed():
    """A stream that does not end is found."""
    assert found("01c_dcp_disk_backfill", lambda turns: turns[2].pop()) == {(24, "stream_end", "presence")}


def test_changes_in_another_order_are_noticed():
    """A change that comes before an older one is found."""

    def change(turns: Turns) -> None:
        turns[2][4], turns[2][5] = turns[2][5], turns[2][4]

    seen = found("01c_dcp_disk_backfill", change)
    assert {name for _, _, name in seen} == {"place in its snapshot", "order"}


def test_a_message_too_many_is_noticed():
    """A message that nobody expects is found: behind all others too."""
    assert found("01c_dcp_disk_backfill", lambda turns: turns[2].append(turns[2][-1])) == {
        (24, "stream_end", "presence")
    }


def test_a_first_marker_is_compared():
    """The range and the flags of the first marker count."""

    def change(turns: Turns) -> None:
        turns[2][1] = with_byte(turns[2][1], FLAGS_AT, 1)

    assert found("01c_dcp_disk_backfill", change) == {(8, "snapshot_marker", "flags")}


def test_a_change_outside_its_marker_is_noticed():
    """A change that its marker does not cover is found."""

    def change(turns: Turns) -> None:
        turns[2][1] = with_byte(turns[2][1], END_AT, 24)

    assert {(8, "snapshot_marker", "end_seqno")} < found("01c_dcp_disk_backfill", change)


def test_another_uuid_is_noticed():
    """A uuid may be any, but one uuid stays one."""

    def change(turns: Turns) -> None:
        turns[2][0] = with_byte(turns[2][0], 31, 1)

    assert found("01c_dcp_disk_backfill", change) == {(7, "answer to stream_request", "vbuuid")}


def test_a_wrong_opaque_is_noticed():
    """A stream's messages have the opaque of their request."""

    def change(turns: Turns) -> None:
        turns[2][-1] = with_byte(turns[2][-1], OPAQUE_AT, 77)

    assert found("01c_dcp_disk_backfill", change) == {(24, "stream_end", "presence")}


def test_what_comes_too_early_is_noticed():
    """A producer that sends more than the window allows is found, though it sends what comes later anyway."""

    def change(turns: Turns) -> None:
        turns[2].append(turns[3].pop(0))

    assert (17, "mutation", "order") in found("06c_dcp_flow_control", change)


def test_live_changes_may_be_grouped_otherwise():
    """One marker may stand for several live ones, and a version that is replaced within it may be left out."""

    def change(turns: Turns) -> None:
        turn = turns[2]
        whole = next(number for number, wire in enumerate(turn) if _ends(wire) == 21)
        turn[whole] = with_byte(with_byte(turn[whole], START_AT, 22), END_AT, 23)
        del turn[whole + 1 : whole + 3]
        del turn[whole + 2]

    assert found("01a_dcp_memory_stream", change) == set()


@pytest.mark.parametrize(("start", "noticed"), [(20, "start_seqno of live markers"), (19, "start_seqno")])
def test_where_a_live_marker_starts_is_noticed(start: int, noticed: str):
    """A live marker that starts elsewhere than at its first change is found; the end of the one before has a name."""

    def change(turns: Turns) -> None:
        first = next(number for number, wire in enumerate(turns[2]) if _ends(wire) == 21)
        turns[2][first] = with_byte(turns[2][first], START_AT, start)

    seen = found("01a_dcp_memory_stream", change)
    assert {(message, name) for _, message, name in seen} == {("mutation", noticed)}


def test_a_lost_live_change_is_noticed():
    """A live change that nothing replaces is found when it does not come."""
    assert {(35, "mutation", "presence")} <= found("01a_dcp_memory_stream", lambda turns: turns[2].pop())


def _ends(wire: bytes) -> int | None:
    message = read(wire)
    return message.end_seqno if isinstance(message, SnapshotMarker) else None
