from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.history import (
    SEQNO_MAX,
    FailoverLog,
    History,
    Position,
    Reason,
    Resume,
    ResumeRequest,
    SnapshotRange,
    decide,
)
from headrace.ids import Opaque, Seqno, VBucketId, VbUuid
from headrace.protocol.subscription import (
    RETRY_S_FIRST,
    RETRY_S_MAX,
    TRANSITIONS,
    WHOLE_PLACES_MAX,
    Backoff,
    Input,
    Phase,
    Progress,
    Refusal,
    RolledBack,
    Subscription,
    Where,
    branch_of,
)
from headrace.wire.codes import Status, StreamEndReason

OLD, NEW = VbUuid(0xA), VbUuid(0xB)
LOG = [(OLD, Seqno(0))]
FORKED = [(NEW, Seqno(10)), (OLD, Seqno(0))]
"""As capture 04_failover_log_crash_rollback has it: everything after 10 was lost."""


def at(seqno: int, *, vbuuid: int = OLD, start: int | None = None, end: int | None = None) -> Position:
    """A position; between two snapshots unless told otherwise."""
    first, last = seqno if start is None else start, seqno if end is None else end
    return Position(
        vbuuid=VbUuid(vbuuid), seqno=Seqno(seqno), snapshot=SnapshotRange(start=Seqno(first), end=Seqno(last))
    )


def subscription(position: Position | None = None, *, end: int = SEQNO_MAX) -> Subscription:
    """One of vbucket 5."""
    given_position = Position.beginning() if position is None else position
    return Subscription(VBucketId(5), given_position, end_seqno=Seqno(end))


def streaming(position: Position | None = None, *, end: int = SEQNO_MAX) -> Subscription:
    """One whose stream runs."""
    made = subscription(position, end=end)
    made.request(Opaque(1))
    made.started(LOG)
    return made


def advance(made: Subscription, seqno: int, end: int, whole: int | None = None) -> bool:
    """Take in changes."""
    return made.advance(seqno=Seqno(seqno), end=Seqno(end), whole=None if whole is None else Seqno(whole))


def test_a_request_says_where_the_reader_stands():
    """Start, branch, snapshot and end of a request are those of the position."""
    asked = subscription(at(12, start=8, end=18), end=40).request(Opaque(7), flags=0x10, stream_filter=b"{}")
    assert (asked.vbucket, asked.opaque, asked.flags, asked.filter) == (5, 7, 0x10, b"{}")
    assert (asked.start_seqno, asked.end_seqno, asked.vbuuid) == (12, 40, OLD)
    assert (asked.snapshot_start, asked.snapshot_end) == (8, 18)


def test_changes_move_the_position_and_a_whole_snapshot_its_start():
    """Inside a snapshot a position begins where the reader was whole last, whatever the marker says."""
    made = streaming()
    assert not advance(made, 25, 25, whole=25)
    assert made.position == at(25)
    advance(made, 26, 28)  # a marker of 26 to 28, as captures have it
    assert made.position == at(26, start=25, end=28)
    advance(made, 28, 28, whole=28)
    assert made.position == at(28)


def test_a_marker_in_the_middle_extends_the_open_snapshot():
    """A producer that goes back to its disk sends the rest in the next snapshot: the reader is not whole between."""
    made = streaming()
    advance(made, 12, 20)
    advance(made, 15, 33)
    assert made.position == at(15, start=0, end=33)


def test_a_change_past_its_marker_is_believed():
    """A position never lies outside its snapshot."""
    made = streaming()
    advance(made, 12, 10)
    assert made.position == at(12, start=0, end=12)


def test_a_position_in_a_snapshot_that_lies_across_two_branches_names_the_newer():
    """A server wants the whole snapshot to lie within the branch that is named (capture 04, snapshot 5 to 12)."""
    made = subscription(at(8))
    made.request(Opaque(1))
    made.started(FORKED)
    advance(made, 9, 18)
    assert made.position == at(9, vbuuid=NEW, start=8, end=18)
    asked = ResumeRequest.from_position(made.position)
    log = FailoverLog.from_entries(FORKED)
    assert isinstance(decide(asked, History(log=log, high_seqno=Seqno(18))), Resume)


def test_a_position_before_the_fork_keeps_the_branch_it_was_read_on():
    """What lies on the older branch is named by it: a server that never heard of the newer one knows it."""
    made = subscription(at(8))
    made.request(Opaque(1))
    made.started(FORKED)
    advance(made, 9, 9, whole=9)
    assert made.position == at(9)
    advance(made, 12, 12, whole=12)
    assert made.position == at(12, vbuuid=NEW)


@pytest.mark.parametrize(("seqno", "expected"), [(0, OLD), (1, OLD), (10, OLD), (11, NEW)])
def test_a_branch_begins_after_its_seqno(seqno: int, expected: int):
    """The seqno of a branch is the last of the one before."""
    assert branch_of(FailoverLog.from_entries(FORKED), seqno) == expected


def test_a_bounded_reader_is_done_when_its_end_was_seen():
    """A seqno at the end or past it proves the range, and the position stays at the end, inside the snapshot."""
    made = streaming(end=12)
    assert not advance(made, 9, 34)
    assert advance(made, 34, 34, whole=34)
    assert made.phase is Phase.FINISHED
    assert made.position == at(12, start=0, end=34)
    assert made.ready_at is None


def test_a_whole_snapshot_within_the_bound_counts():
    """The place where the last snapshot before the end was whole stays the start of the position."""
    made = streaming(end=12)
    assert advance(made, 15, 18, whole=10)
    assert made.position == at(12, start=10, end=18)


def test_nothing_to_read_is_finished_at_once():
    """A vbucket without a change is not asked for."""
    made = subscription(end=0)
    assert made.phase is Phase.FINISHED
    with pytest.raises(LocalProtocolError, match="vbucket 5: no ask while finished"):
        made.request(Opaque(1))


@pytest.mark.parametrize("end", [0, 5, 7])
def test_a_reader_at_its_end_asks_all_the_same(end: int):
    """What it has may be no part of the history any more; the end of the stream proves that it is."""
    made = subscription(at(7), end=end)
    asked = made.request(Opaque(1))
    assert (asked.start_seqno, asked.end_seqno) == (7, 7)
    made.started(LOG)
    assert made.ended(StreamEndReason.OK, 1.0) is None
    assert made.phase is Phase.FINISHED
    assert made.position == at(7)


@pytest.mark.parametrize(("end", "phase"), [(0, Phase.FINISHED), (5, Phase.WAITING)])
def test_a_reader_past_its_end_that_is_rolled_back(end: int, phase: Phase):
    """It reads what there is now; where there is nothing, it is done."""
    made = subscription(at(7), end=end)
    assert rolled_back(made, min(end, 6), FORKED).whole == 0
    assert made.phase is phase


def test_an_end_of_the_stream_proves_an_empty_stretch():
    """A stream that ended well within a snapshot up to its end had no change there to send."""
    made = streaming(end=12)
    advance(made, 9, 15)
    assert made.ended(StreamEndReason.OK, 1.0, marked_end=15) is None
    assert made.phase is Phase.FINISHED
    assert made.position == at(12, start=0, end=15)


def test_an_early_end_is_no_proof():
    """A stream that says it is done before the range was seen is asked for again."""
    made = streaming(end=12)
    advance(made, 9, 9, whole=9)
    refusal = made.ended(StreamEndReason.OK, 1.0, marked_end=9)
    assert refusal == Refusal(
        where=Where.HERE, text="vbucket 5 after seqno 9: the stream ended before its end, seqno 12"
    )
    assert made.ready_at == 1.0 + RETRY_S_FIRST
    assert made.request(Opaque(2)).start_seqno == 9


@pytest.mark.parametrize(
    ("reason", "where"),
    [
        (StreamEndReason.CLOSED, Where.HERE),
        (StreamEndReason.STATE_CHANGED, Where.ELSEWHERE),
        (StreamEndReason.DISCONNECTED, Where.HERE),
        (StreamEndReason.TOO_SLOW, Where.HERE),
        (StreamEndReason.BACKFILL_FAILED, Where.HERE),
        (StreamEndReason.ROLLBACK, Where.HERE),
        (99, Where.ELSEWHERE),
    ],
)
def test_a_stream_that_ended_is_asked_for_again(reason: int, where: Where):
    """Whatever the server's reason, the reader goes on; where, the reason tells."""
    made = streaming(at(9))
    refusal = made.ended(reason, 1.0)
    assert refusal is not None
    assert refusal.where is where
    assert "vbucket 5 after seqno 9: the stream ended (" in refusal.text
    assert made.phase is Phase.WAITING


def test_ends_that_nothing_follows():
    """A filter without collections is done; a user without rights has failed, and is told so."""
    made = streaming()
    assert made.ended(StreamEndReason.FILTER_EMPTY, 1.0) is None
    assert made.phase is Phase.FINISHED
    made = streaming()
    refusal = made.ended(StreamEndReason.LOST_PRIVILEGES, 1.0)
    assert refusal is not None
    assert (refusal.where, made.phase) == (Where.NOWHERE, Phase.FAILED)
    assert "may no longer read" in refusal.text
    made.lost(2.0)
    assert made.phase is Phase.FAILED


@pytest.mark.parametrize(
    ("status", "where", "text"),
    [
        (Status.NOT_MY_VBUCKET, Where.ELSEWHERE, "status 0x07 (not my vbucket): it is at another node"),
        (Status.TEMPORARY_FAILURE, Where.HERE, "status 0x86 (temporary failure): it is tried again"),
        (Status.KEY_EXISTS, Where.ANEW, "the connection has another stream of it"),
        (Status.OUT_OF_RANGE, Where.NOWHERE, "start this vbucket from the beginning"),
        (Status.NO_ACCESS, Where.NOWHERE, "give it the role to"),
        (Status.KEY_NOT_FOUND, Where.NOWHERE, "is this a bucket with change streams?"),
        (0x7777, Where.NOWHERE, "it cannot be read"),
    ],
)
def test_a_refusal_says_where_else_and_the_way_out(status: int, where: Where, text: str):
    """A status decides whether to wait, to look elsewhere, to connect anew, or to give up."""
    made = subscription(at(9))
    made.request(Opaque(1))
    refusal = made.refused(status, 1.0)
    assert refusal.where is where
    assert text in refusal.text
    assert made.phase is (Phase.FAILED if where is Where.NOWHERE else Phase.WAITING)


def test_a_status_without_a_name_that_is_retried():
    """Nothing is assumed of a status but its number."""
    made = subscription(at(9))
    made.request(Opaque(1))
    assert "status 0x86" in made.refused(0x86, 1.0).text


def test_pauses_grow_and_begin_anew_with_the_first_change():
    """Each try waits twice as long as the one before, up to a bound; a change ends that."""
    made = subscription()
    now, pauses = 0.0, []
    for _ in range(10):
        made.request(Opaque(1))
        made.refused(Status.BUSY, now)
        assert made.ready_at is not None
        pauses.append(made.ready_at - now)
        now = made.ready_at
    assert pauses[:3] == pytest.approx([RETRY_S_FIRST, 2 * RETRY_S_FIRST, 4 * RETRY_S_FIRST])
    assert pauses[-1] == pytest.approx(RETRY_S_MAX)
    assert made.failing_s(now) == pytest.approx(now)
    made.request(Opaque(1))
    made.started(LOG)
    assert made.failing_s(now) == 0.0
    advance(made, 1, 1, whole=1)
    made.lost(now)
    assert made.ready_at == pytest.approx(now + RETRY_S_FIRST)


def test_a_lost_connection_asks_again_from_the_last_change():
    """Asked, rolling back or streaming: all is asked for again, from where the reader stands."""
    made = streaming()
    advance(made, 7, 9)
    made.lost(1.0)
    assert made.request(Opaque(2)).start_seqno == 7
    made.lost(2.0)
    made.request(Opaque(3))
    made.told_to_roll_back(Seqno(3))
    made.lost(3.0)
    assert made.request(Opaque(4)).start_seqno == 7


def test_a_loss_while_waiting_changes_no_pause():
    """A connection that breaks for others does not make a waiting vbucket wait longer; a node that is missing does."""
    made = subscription()
    made.lost(5.0)
    assert made.ready_at == 0.0
    made.missed(5.0)
    assert made.ready_at == 5.0 + RETRY_S_FIRST
    finished = subscription(end=0)
    finished.lost(1.0)
    assert finished.phase is Phase.FINISHED


def rolled_back(made: Subscription, to: int, log: list[tuple[VbUuid, Seqno]], *, to_zero: bool = False) -> RolledBack:
    """Ask, and be told to roll back."""
    made.request(Opaque(9))
    made.told_to_roll_back(Seqno(to))
    assert made.phase is Phase.ROLLING_BACK
    return made.roll_back(log, to_zero=to_zero)


def test_a_rollback_goes_to_the_last_whole_place_at_or_below():
    """Capture 04: 11 to 16 are lost. The reader was whole at 8 and 14; it goes on from 8 and says both."""
    made = streaming()
    advance(made, 8, 8, whole=8)
    advance(made, 14, 14, whole=14)
    advance(made, 16, 20)
    made.lost(1.0)
    event = rolled_back(made, 10, FORKED)
    assert event.asked == at(16, start=14, end=20)
    assert (event.to, event.whole, event.because) == (10, 8, Reason.PAST_BRANCH)
    assert event.log.latest.vbuuid == NEW
    assert made.position == at(8)
    assert made.ready_at == 0.0
    asked = made.request(Opaque(10))
    assert (asked.start_seqno, asked.vbuuid, asked.snapshot_start, asked.snapshot_end) == (8, OLD, 8, 8)


def test_a_rollback_without_a_known_place_goes_to_the_beginning():
    """A saved position knows one whole place; below it there is none."""
    event = rolled_back(subscription(at(16)), 10, FORKED)
    assert (event.to, event.whole) == (10, 0)
    event = rolled_back(subscription(at(16, start=9, end=20)), 10, FORKED)
    assert (event.to, event.whole, event.because) == (10, 9, Reason.SNAPSHOT_CUT)


def test_a_rollback_to_zero_when_the_reader_wants_it():
    """Who rebuilds gives everything up, whatever could be kept."""
    made = streaming()
    advance(made, 8, 8, whole=8)
    made.lost(1.0)
    event = rolled_back(made, 8, LOG, to_zero=True)
    assert event.whole == 0
    assert made.position.seqno == 0


@pytest.mark.parametrize(
    ("position", "to", "log", "because"),
    [
        (at(16), 10, FORKED, Reason.PAST_BRANCH),
        (at(16, vbuuid=0xDEAD), 0, FORKED, Reason.UNKNOWN_VBUUID),
        (at(8, start=5, end=12), 5, FORKED, Reason.SNAPSHOT_CUT),
        (at(16), 10, LOG, Reason.PAST_HIGH_SEQNO),
        (at(16, start=12, end=20), 12, LOG, Reason.SNAPSHOT_CUT),
        (at(16), 0, LOG, Reason.PURGED),
    ],
)
def test_the_reason_follows_from_the_log(position: Position, to: int, log: list[tuple[VbUuid, Seqno]], because: Reason):
    """What the log does not explain lies with the high or the purge seqno, which no answer tells."""
    assert rolled_back(subscription(position), to, log).because is because


def test_a_server_that_never_agrees_is_asked_less_each_time():
    """A rollback to where the reader stands already still goes below it, and one of nothing is refused."""
    made = streaming()
    for seqno in (3, 6, 9):
        advance(made, seqno, seqno, whole=seqno)
    made.lost(0.0)
    assert [rolled_back(made, 9, LOG).whole for _ in range(3)] == [6, 3, 0]
    made.request(Opaque(1))
    with pytest.raises(RemoteProtocolError, match="vbucket 5: a rollback to seqno 9 of a reader that has nothing"):
        made.told_to_roll_back(Seqno(9))


@pytest.mark.parametrize("entries", [[], [(VbUuid(0), Seqno(0))], [(OLD, Seqno(1)), (OLD, Seqno(0))]])
def test_a_log_that_is_none_is_the_servers_fault(entries: list[tuple[VbUuid, Seqno]]):
    """An empty log, a branch without a name, a branch twice."""
    made = subscription()
    made.request(Opaque(1))
    with pytest.raises(RemoteProtocolError, match="vbucket 5: no failover log"):
        made.started(entries)


def test_an_end_may_come_closer():
    """What a failover took away is not waited for; a stream that has it is done, one that was asked is not touched."""
    made = subscription(at(5), end=20)
    assert not made.bound(Seqno(10))
    assert made.request(Opaque(1)).end_seqno == 10
    assert not made.bound(Seqno(4))
    made.started(LOG)
    assert made.bound(Seqno(4))
    assert made.phase is Phase.FINISHED
    waiting = subscription(at(5), end=20)
    assert not waiting.bound(Seqno(3))
    assert waiting.request(Opaque(1)).end_seqno == 5
    empty = subscription(end=20)
    empty.bound(Seqno(0))
    assert empty.phase is Phase.FINISHED


def test_old_whole_places_are_thinned_not_forgotten():
    """However long a reader runs, it remembers few places, and of the far past still some."""
    progress = Progress(Position.beginning())
    for seqno in range(1, 2000):
        progress.advance(seqno=Seqno(seqno), end=Seqno(seqno), whole=Seqno(seqno))
    kept = {progress.whole_at_most(limit) for limit in range(2000)} - {0}
    assert len(kept) <= WHOLE_PLACES_MAX
    assert max(kept) == 1999
    assert min(kept) < 1000


def test_several_snapshots_at_once():
    """A batch may end many: all that it names are places to go back to, and none is taken twice."""
    made = streaming()
    for _ in range(2):
        made.advance(seqno=Seqno(9), end=Seqno(12), whole=Seqno(8), before=(Seqno(2), Seqno(5)))
    assert made.position == at(9, start=8, end=12)
    made.lost(1.0)
    assert [rolled_back(made, 9, LOG).whole for _ in range(4 - 1)] == [8, 5, 2]


def test_a_saved_position_is_a_whole_place():
    """Between two snapshots it is whole at its seqno, inside one at the snapshot's start."""
    assert Progress(at(7)).whole_at_most(7) == 7
    assert Progress(at(7, start=3, end=9)).whole_at_most(8) == 3
    assert Progress(at(7)).whole_at_most(6) == 0


def test_every_pair_is_legal_or_refused():
    """No input in any phase does something that the table does not say."""
    for phase, happened in product(Phase, Input):
        made = subscription()
        made._phase = phase
        expected = TRANSITIONS.get((phase, happened))
        if expected is None:
            with pytest.raises(LocalProtocolError):
                made._step(happened)
            assert made.phase is phase
        else:
            made._step(happened)
            assert made.phase is expected


def test_a_backoff_that_worked_has_not_failed():
    """Nothing fails before the first failure."""
    backoff = Backoff()
    assert backoff.failing_s(3.0) == 0.0
    backoff.failed(1.0)
    assert backoff.failing_s(3.0) == 2.0
    backoff.worked()
    assert backoff.failing_s(3.0) == 0.0


@st.composite
def snapshots(draw: st.DrawFn) -> list[list[int]]:
    """The seqnos of some snapshots, one after the other, with gaps where later changes replaced earlier ones."""
    last, made = 0, []
    for _ in range(draw(st.integers(1, 6))):
        steps = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
        made.append([last := last + step for step in steps])
    return made


@given(snapshots(), st.integers(0, 40), st.integers(0, 40))
def test_a_resumed_reader_sees_every_change_once(made: list[list[int]], cut: int, fork: int):
    """Cut anywhere and resumed, on a server that lost everything after a fork: what is kept and what comes is whole.

    The reader keeps what it has up to `whole`. A producer that has the same history up to the fork is asked for the
    rest; the verdict of the producer's rules on each request is obeyed.
    """
    every = [(seqno, snapshot[-1]) for snapshot in made for seqno in snapshot]
    reader = streaming()
    kept: list[int] = []
    for seqno, end in every[:cut]:
        advance(reader, seqno, end, whole=seqno if seqno == end else None)
        kept.append(seqno)
    reader.lost(0.0)
    high = min(fork, every[-1][0])
    log = FailoverLog.from_entries([(NEW, Seqno(high)), (OLD, Seqno(0))])
    history = History(log=log, high_seqno=Seqno(high))
    while True:
        request = reader.request(Opaque(1))
        assert request.snapshot_start is not None
        assert request.snapshot_end is not None
        verdict = decide(
            ResumeRequest(
                vbuuid=request.vbuuid,
                start_seqno=request.start_seqno,
                snapshot_start=request.snapshot_start,
                snapshot_end=request.snapshot_end,
            ),
            history,
        )
        if isinstance(verdict, Resume):
            break
        reader.told_to_roll_back(verdict.to)  # type: ignore[union-attr]
        event = reader.roll_back(log)
        kept = [seqno for seqno in kept if seqno <= event.whole]
    assert reader.progress.seqno == (kept[-1] if kept else 0)
    assert all(seqno <= high for seqno in kept)
    assert kept == [seqno for seqno, _ in every if seqno <= reader.progress.seqno]
