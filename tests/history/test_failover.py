"""The failover log as a value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError
from headrace.history import BRANCHES_MAX, SEQNO_MAX, VBUUID_MAX, Branch, FailoverLog
from headrace.ids import Seqno, VbUuid
from headrace.wire.catalogue import FailoverEntry


def log_of(*entries: tuple[int, int]) -> FailoverLog:
    """A log from plain numbers, newest first."""
    return FailoverLog.from_entries((VbUuid(vbuuid), Seqno(seqno)) for vbuuid, seqno in entries)


def branched(log: FailoverLog, vbuuid: int, seqno: int) -> FailoverLog:
    """The log with one more branch."""
    return log.branch(vbuuid=VbUuid(vbuuid), seqno=Seqno(seqno))


def test_new_log_has_one_branch_at_zero():
    """A vbucket that was just made has one branch, which holds everything."""
    log = FailoverLog.new(VbUuid(7))
    assert log.entries == (Branch(VbUuid(7), Seqno(0)),)
    assert log.latest == (7, 0)
    assert log.end_of(VbUuid(7)) is None


def test_entries_have_the_shape_of_the_wire():
    """A log goes to the wire and comes back as it was."""
    log = log_of((3, 18), (2, 10), (1, 0))
    sent = tuple(FailoverEntry(*branch) for branch in log)
    assert [(one.vbuuid, one.seqno) for one in sent] == [(3, 18), (2, 10), (1, 0)]
    assert FailoverLog.from_entries(sent) == log


def test_branch_ends_where_the_next_newer_begins():
    """The last seqno of a branch is the one that the next newer branch begins after."""
    log = log_of((4, 18), (3, 18), (2, 10), (1, 0))
    assert [log.end_of(branch.vbuuid) for branch in log] == [None, 18, 18, 10]
    assert len(log) == 4


def test_branch_is_found_by_its_uuid():
    """A UUID gives its branch, or nothing."""
    log = log_of((2, 10), (1, 0))
    assert log.find(VbUuid(1)) == Branch(VbUuid(1), Seqno(0))
    assert log.find(VbUuid(9)) is None


def test_unknown_branch_has_no_end():
    """Asking for the end of a branch that is not there is a mistake, not "it goes on"."""
    with pytest.raises(LocalProtocolError, match="2 at 10, 1 at 0 has no branch 9"):
        log_of((2, 10), (1, 0)).end_of(VbUuid(9))


def test_new_branch_drops_those_that_began_after_it():
    """A branch that began beyond the new one's start is no part of this history."""
    log = branched(log_of((3, 18), (2, 10), (1, 0)), 4, 12)
    assert log == log_of((4, 12), (2, 10), (1, 0))
    assert branched(log, 5, 10) == log_of((5, 10), (2, 10), (1, 0))


def test_new_branch_before_all_others_stands_alone():
    """When the oldest known branch began later, nothing of the old log is left."""
    assert branched(log_of((2, 10)), 3, 4) == log_of((3, 4))


def test_oldest_branches_are_forgotten():
    """A log keeps so many branches and no more, however it is made."""
    log = FailoverLog.new(VbUuid(1))
    for number in range(2, BRANCHES_MAX + 3):
        log = branched(log, number, number)
    assert len(log) == BRANCHES_MAX
    assert log.entries[-1] == (3, 3)
    assert log_of(*((100 - number, 100 - number) for number in range(99))).entries[-1] == (76, 76)


def test_prune_forgets_what_began_above():
    """A vbucket that is rolled back keeps the branches that began at that seqno or before."""
    log = log_of((3, 18), (2, 10), (1, 0))
    assert log.prune(above=Seqno(18)) == log
    assert log.prune(above=Seqno(17)) == log_of((2, 10), (1, 0))
    assert log.prune(above=Seqno(0)) == log_of((1, 0))


def test_prune_never_leaves_nothing():
    """Below its oldest branch, a log cannot say anything: the vbucket needs a new one."""
    with pytest.raises(LocalProtocolError, match="at seqno 9: the vbucket must begin a new one"):
        log_of((2, 10)).prune(above=Seqno(9))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((), "a failover log of 0 branches"),
        (((0, 5),), "a branch 0 at 5"),
        (((VBUUID_MAX + 1, 5),), "UUIDs are 1 to"),
        (((1, SEQNO_MAX + 1),), "seqnos 0 to"),
        (((1, -1),), "a branch 1 at -1"),
        (((1, 10), (2, 5), (1, 0)), "stands twice"),
        (((2, 5), (1, 6)), "begins after a newer one"),
    ],
)
def test_wrong_logs_are_refused(entries: tuple[tuple[int, int], ...], words: str):
    """No log is empty, has no UUID, has one twice, or begins an older branch after a newer one."""
    with pytest.raises(LocalProtocolError, match=words):
        log_of(*entries)


def test_too_long_a_log_is_refused():
    """A log that was not cut is no log."""
    entries = tuple(Branch(VbUuid(number), Seqno(0)) for number in range(1, BRANCHES_MAX + 2))
    with pytest.raises(LocalProtocolError, match="of 26 branches: wanted 1 to 25"):
        FailoverLog(entries=entries)


@given(st.lists(st.integers(0, 40), max_size=60))
def test_branches_tile_the_history(starts: list[int]):
    """Whatever happens, each branch ends where the next begins, and the newest goes on."""
    log = FailoverLog.new(VbUuid(1))
    for vbuuid, seqno in enumerate(starts, start=2):
        log = branched(log, vbuuid, seqno)
        assert log.latest == (vbuuid, seqno)
        ends = [log.end_of(branch.vbuuid) for branch in log]
        assert ends == [None, *(branch.seqno for branch in log)][:-1]
