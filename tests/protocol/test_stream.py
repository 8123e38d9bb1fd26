"""A stream at its producer: markers, and the steps of a takeover."""

from __future__ import annotations

from itertools import product

import pytest

from headrace.errors import LocalProtocolError
from headrace.history import SnapshotRange, State
from headrace.history.snapshots import SEQNO_MAX
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.protocol.requests import Accepted
from headrace.protocol.stream import STEPS, Phase, ProducerStream, Step
from headrace.wire.codes import SnapshotFlag, StreamEndReason, StreamFlag


def stream(start: int = 0, end: int = SEQNO_MAX, *, flags: int = 0, snapshot: tuple[int, int] | None = None):
    """A stream of vbucket 3."""
    first, last = snapshot or (start, start)
    accepted = Accepted(
        start=Seqno(start),
        end=Seqno(end),
        snapshot=SnapshotRange(start=Seqno(first), end=Seqno(last)),
        flags=StreamFlag(flags),
    )
    return ProducerStream(VBucketId(3), Opaque(9), accepted)


def send(one: ProducerStream, end: int, *, disk: bool = False) -> tuple[int, int, int]:
    """Send a whole snapshot; gives what its marker says."""
    marker = one.begin(end, disk=disk)
    assert one.in_snapshot
    one.sent(end)
    one.finish_snapshot()
    assert (marker.vbucket, marker.opaque) == (3, 9)
    return marker.start_seqno, marker.end_seqno, marker.flags  # type: ignore[return-value]


def test_markers_join():
    """The first one starts at what was asked for, each later one where the one before it ended."""
    one = stream(5)
    memory, first = SnapshotFlag.MEMORY, SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT
    assert send(one, 10, disk=True) == (5, 10, SnapshotFlag.DISK)
    assert send(one, 12) == (10, 12, first)
    assert send(one, 20) == (12, 20, memory)
    assert send(one, 21, disk=True) == (20, 21, SnapshotFlag.DISK)


def test_the_first_marker_inside_a_snapshot():
    """A consumer that resumes inside a snapshot is told where that began (capture 02_dcp_resume)."""
    assert send(stream(16, snapshot=(10, 20)), 33, disk=True) == (10, 33, SnapshotFlag.DISK)


def test_a_snapshot_is_not_whole_before_the_one_that_was_resumed_is():
    """What a consumer misses of its snapshot's beginning is made good by its end alone; then markers join again."""
    one = stream(11, snapshot=(1, 26))
    assert send(one, 12, disk=True) == (1, 26, SnapshotFlag.DISK)
    assert one.cursor == 12
    assert send(one, 20, disk=True) == (1, 26, SnapshotFlag.DISK)
    assert send(one, 31, disk=True) == (1, 31, SnapshotFlag.DISK)
    assert send(one, 32, disk=True) == (31, 32, SnapshotFlag.DISK)


def test_a_consumer_with_nothing_of_its_snapshot_is_owed_nothing():
    """It stands between two snapshots, and what it is sent next is whole by itself."""
    assert send(stream(11, snapshot=(11, 26)), 12, disk=True) == (11, 12, SnapshotFlag.DISK)


def test_a_snapshot_is_sent_past_the_end():
    """The end seqno does not cut a snapshot; the stream is done behind it."""
    one = stream(0, end=3)
    one.begin(6, disk=False)
    one.sent(4)
    assert not one.is_done
    one.sent(6)
    one.finish_snapshot()
    assert one.is_done


def test_nothing_to_send_is_done_at_once():
    """0 to 0, and high to high, end at once."""
    assert stream(0, end=0).is_done
    assert stream(33, end=33).is_done
    assert not stream(33, end=34).is_done


def test_a_snapshot_whose_last_changes_are_gone():
    """What was purged is not sent, and the cursor is at the end of the snapshot all the same."""
    one = stream(0)
    one.begin(10, disk=True)
    one.sent(8)
    assert one.in_snapshot
    one.finish_snapshot()
    assert (one.cursor, one.last_sent) == (10, 8)


@pytest.mark.parametrize(("phase", "step"), list(product(Phase, Step)))
def test_every_step_is_legal_or_refused(phase: Phase, step: Step):
    """Each pair is in the table or raises; nothing leads out of the end."""
    one = stream()
    one.phase = phase
    if (phase, step) in STEPS:
        one.step(step)
        assert one.phase is STEPS[phase, step]
        assert phase is not Phase.ENDED
    else:
        with pytest.raises(LocalProtocolError, match=f"vbucket 3: a stream that is {phase}"):
            one.step(step)
        assert one.phase is phase


def test_a_takeover_step_by_step():
    """The order of 10b_takeover_two_servers, with the wait for the disk between."""
    one = stream(flags=StreamFlag.TAKEOVER)
    assert one.takes_over
    _, _, flags = send(one, 11)
    assert flags == SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT | SnapshotFlag.ACK
    assert not one.may_hand_over
    assert one.marker_acked()
    assert one.may_hand_over
    assert one.hand_over().state is State.PENDING
    assert (one.phase, one.sends, one.may_hand_over) == (Phase.OFFERED, False, False)
    one.step(Step.ACCEPTED)
    assert one.holds_vbucket
    one.step(Step.DEAD_ON_DISK)
    assert one.sends
    assert one.holds_vbucket
    assert send(one, 12)[2] == SnapshotFlag.MEMORY | SnapshotFlag.ACK
    assert not one.may_hand_over
    one.marker_acked()
    assert one.hand_over().state is State.ACTIVE
    assert not one.holds_vbucket
    one.step(Step.ACCEPTED)
    assert one.finish(StreamEndReason.OK).reason == 0


def test_a_disk_snapshot_is_not_acknowledged():
    """Only memory markers of a takeover ask for an answer; one that was not asked for counts nothing."""
    one = stream(flags=StreamFlag.TAKEOVER)
    assert send(one, 11, disk=True)[2] == SnapshotFlag.DISK
    assert not one.marker_acked()
    assert one.may_hand_over


def test_a_takeover_need_not_catch_up():
    """Behind a snapshot from memory it may offer the vbucket, though there is more to send by then."""
    one = stream(flags=StreamFlag.TAKEOVER)
    send(one, 5, disk=True)
    assert not one.may_offer
    send(one, 11)
    assert one.may_offer
    one.marker_acked()
    one.hand_over()
    assert not one.may_offer


def test_a_plain_stream_hands_nothing_over():
    """However caught up it is."""
    one = stream()
    assert not one.takes_over
    assert not one.may_hand_over


def test_an_end_says_why():
    """Ending is a step too, and the message carries the reason."""
    one = stream()
    told = one.finish(StreamEndReason.STATE_CHANGED)
    assert (told.reason, told.vbucket, told.opaque, one.phase) == (2, 3, 9, Phase.ENDED)
