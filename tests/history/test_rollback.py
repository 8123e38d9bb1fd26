"""What a verdict must bring about, on a model of vbucket and consumer; and the rules that no capture shows."""

from itertools import takewhile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.history import (
    FailoverLog,
    History,
    OutOfRange,
    Reason,
    Resume,
    ResumeRequest,
    RollBack,
    decide,
)
from headrace.ids import Seqno, VbUuid
from tests.history.world import Change, Consumer, VBucket

OLD, NEW, STRANGE = VbUuid(1), VbUuid(2), VbUuid(9)

# Few keys and short bursts between reads: most of what goes wrong needs a key that was replaced within one snapshot.
WRITES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", None])), max_size=6)
READS = st.tuples(st.sampled_from([None, 0, 1, 2]), st.booleans())
LOST = st.none() | st.integers(0, 5)
PURGED = st.none() | st.integers(50, 100)
LIVES = st.lists(st.tuples(WRITES, READS, WRITES, LOST, PURGED), min_size=1, max_size=10)
Written = list[tuple[str, str | None]]
Life = list[tuple[Written, tuple[int | None, bool], Written, int | None, int | None]]
"""Episodes: writes, how many items the consumer reads of them and under which marker, more writes, a crash, a purge."""


def request(
    start: int, *, vbuuid: VbUuid = NEW, snapshot: tuple[int, int] | None = None, strict: bool = False
) -> ResumeRequest:
    """A request from plain numbers; the consumer is between two snapshots unless told."""
    first, last = snapshot or (start, start)
    return ResumeRequest(
        vbuuid=vbuuid,
        start_seqno=Seqno(start),
        snapshot_start=Seqno(first),
        snapshot_end=Seqno(last),
        strict_vbuuid=strict,
    )


def history(*, high: int = 18, purge: int = 0, parted: int = 10) -> History:
    """Two branches, of which the newer begins at seqno 10 unless told."""
    log = FailoverLog.new(OLD).branch(vbuuid=NEW, seqno=Seqno(parted))
    return History(log=log, high_seqno=Seqno(high), purge_seqno=Seqno(purge))


def shared(ours: list[Change], theirs: list[Change]) -> int:
    """The last seqno up to which two histories are one."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(ours, theirs, strict=False)))


def check(consumer: Consumer, vbucket: VBucket) -> Resume | RollBack:
    """Hold one verdict against what both sides really have."""
    verdict = consumer.ask(vbucket)
    assert not isinstance(verdict, OutOfRange)
    position = consumer.position
    kept = verdict.to if isinstance(verdict, RollBack) else position.seqno
    # Nothing that the consumer may keep comes from a branch that was left.
    assert all(one is vbucket.changes[one.seqno - 1] for one in consumer.held.values() if one.seqno <= kept)
    # Nothing is given up without need, but for the two rules that go by less than the whole truth: purging, and a log
    # that has forgotten a branch or never had it. Then everything goes, though a part might have stayed.
    needed = position.seqno if position.seqno == position.snapshot.start else position.snapshot.end
    if isinstance(verdict, RollBack) and verdict.because not in {Reason.PURGED, Reason.UNKNOWN_VBUUID}:
        assert needed > shared(vbucket.changes, consumer.seen)
        assert verdict.to < position.seqno
    return verdict


def catch_up(consumer: Consumer, vbucket: VBucket) -> None:
    """Go back as often as the verdict says so."""
    while isinstance(verdict := check(consumer, vbucket), RollBack):
        consumer.go_back(verdict)


# Rarely drawn: the crash comes between a change and the one that replaces it, in a snapshot that is half read.
@example([([("a", "x"), ("b", "x"), ("a", "y")], (1, False), [], 1, None)])
@given(LIVES)
def test_consumer_ends_with_the_vbuckets_documents(life: Life):
    """A consumer that obeys every verdict has the vbucket's documents in the end, whatever was lost or purged."""
    vbucket, consumer = VBucket(), Consumer()
    for before, (items, later_marker), after, lost, purged in life:
        vbucket.write_all(before)
        catch_up(consumer, vbucket)
        consumer.read(vbucket, items=items, later_marker=later_marker)
        vbucket.write_all(after)
        if lost is not None:
            vbucket.crash(lost)
        if purged is not None:
            vbucket.purge(purged)
    catch_up(consumer, vbucket)
    consumer.read(vbucket)
    assert consumer.documents() == vbucket.documents()


def test_seqno_of_a_rollback_is_a_bound_and_no_place():
    """Cutting a copy at the seqno of a rollback loses documents that a later, lost change had replaced.

    Servers answer so, since they know only the last snapshot of a consumer: it goes back to a whole one of its own.
    """
    vbucket, naive, careful = VBucket(), Consumer(), Consumer()
    vbucket.write_all([("a", "kept"), ("b", "kept"), ("a", "lost")])
    naive.read(vbucket)
    careful.read(vbucket)
    vbucket.crash(lost=1)
    verdict = check(careful, vbucket)
    assert verdict == RollBack(to=Seqno(2), because=Reason.PAST_BRANCH)
    cut = {key: one for key, one in naive.held.items() if one.seqno <= 2}
    assert cut | {one.key: one for one in vbucket.snapshot(after=2)} != vbucket.newest()
    catch_up(careful, vbucket)
    careful.read(vbucket)
    assert careful.position.seqno == 2
    assert careful.documents() == vbucket.documents() == {"a": "kept", "b": "kept"}


# Later servers would let the second one go on: they compare the start seqno, not the start of the snapshot.
@pytest.mark.parametrize("asked", [request(9), request(12, snapshot=(9, 14))])
def test_purged_deletions_start_anew(asked: ResumeRequest):
    """Below the purge seqno, a consumer starts anew; within a snapshot, the snapshot's start counts."""
    assert decide(asked, history(purge=10)) == RollBack(to=Seqno(0), because=Reason.PURGED)


@pytest.mark.parametrize("asked", [request(10), request(12, snapshot=(9, 12)), request(10, snapshot=(10, 14))])
def test_consumer_at_the_purge_seqno_goes_on(asked: ResumeRequest):
    """A consumer that has everything up to the purge seqno has seen every deletion that is gone."""
    assert decide(asked, history(purge=10)) == Resume(because=Reason.SHARED_HISTORY)


def test_consumer_with_nothing_needs_no_deletions():
    """Purging is nothing to a consumer that starts from 0."""
    assert decide(request(0, vbuuid=STRANGE), history(purge=10)) == Resume(because=Reason.START_IS_ZERO)


def test_strict_uuid_must_be_known_even_at_zero():
    """With the flag, a UUID that is not zero is looked up though the start is zero."""
    unknown = RollBack(to=Seqno(0), because=Reason.UNKNOWN_VBUUID)
    assert decide(request(0, vbuuid=STRANGE, strict=True), history(purge=10)) == unknown
    assert decide(request(0, vbuuid=OLD, strict=True), history(purge=10)) == Resume(because=Reason.SHARED_HISTORY)
    assert decide(request(0, vbuuid=VbUuid(0), strict=True), history()) == Resume(because=Reason.START_IS_ZERO)


def test_replica_that_lags_behind_its_log_counts_its_high_seqno():
    """A replica knows branches beyond its changes: what it does not have, it does not promise."""
    lagging = history(high=5)
    assert decide(request(8, vbuuid=OLD), lagging) == RollBack(to=Seqno(5), because=Reason.PAST_HIGH_SEQNO)
    assert decide(request(5, vbuuid=OLD), lagging) == Resume(because=Reason.SHARED_HISTORY)


def test_whole_snapshot_across_the_parting_goes_back_to_it():
    """With all of a snapshot, the consumer's snapshot counts as passed: the parting point is the answer, not its start.

    kv_engine's failover-table.cc; in the captures both are one seqno.
    """
    crossing = decide(request(16, vbuuid=OLD, snapshot=(5, 16)), history())
    assert crossing == RollBack(to=Seqno(10), because=Reason.PAST_BRANCH)
