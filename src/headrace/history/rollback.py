"""Whether a consumer may go on from where it stands: the verdict on a stream request, with its reason.

`decide` is the one place that knows the rules. A producer asks it before it answers; a consumer may ask it with a log
that it fetched. In the order in which servers check:

out of range  start past the end; start outside its snapshot
resume        start is 0: the consumer has nothing that could be wrong
roll back     to 0: deletions since the start may be purged; no branch named; the branch is not in the failover log
resume        the consumer's snapshot ends within what this history shares with the consumer's branch
roll back     to where the branches part, or to the start of the snapshot that lies across that point

A producer that already has a stream of the vbucket on the connection refuses a request that is in range before it
considers a rollback (capture 03a_dcp_stream_req_errors).

The seqno of a rollback is the most that the consumer may keep, not a place where its copy is whole. Its copy may have
the parting point inside an older snapshot, in which later changes replaced earlier ones: dropping the later ones leaves
a gap. A consumer goes back to the end of a snapshot that it has whole, at that seqno or below it.

Sources: captures 02_dcp_resume, 03a_dcp_stream_req_errors, 04_failover_log_crash_rollback and 09a_flush_dcp; for what
they do not show, kv_engine's failover-table.cc.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.history.failover import FailoverLog
from headrace.history.positions import Position
from headrace.history.snapshots import SEQNO_MAX
from headrace.ids import Seqno, VbUuid


class Reason(StrEnum):
    """Why a verdict is what it is, in words for logs and rollback rows; each stands in one kind of verdict."""

    START_IS_ZERO = "the consumer has nothing yet"
    SHARED_HISTORY = "the consumer's snapshot lies within this history"
    PURGED = "deletions that the consumer has not seen may be purged"
    NO_VBUUID = "the consumer names no branch"
    UNKNOWN_VBUUID = "the consumer's branch is not in the failover log"
    PAST_HIGH_SEQNO = "the consumer has more than this history"
    PAST_BRANCH = "the consumer's branch was left before its snapshot"
    SNAPSHOT_CUT = "this history ends or parts inside the consumer's snapshot"
    START_PAST_END = "the start seqno is past the end seqno"
    START_OUTSIDE_SNAPSHOT = "the start seqno is outside its snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """Where a consumer stands and how far it wants to go, as its stream request says it: nothing of it was checked.

    A request in the form without a snapshot has its start as both ends of it. `end_seqno` is what a stream flag made of
    it, if one sets it.
    """

    vbuuid: VbUuid
    start_seqno: Seqno
    snapshot_start: Seqno
    snapshot_end: Seqno
    end_seqno: Seqno = SEQNO_MAX
    strict_vbuuid: bool = False
    """The stream flag of that name: a UUID that is not zero must be known even when the start is."""

    @classmethod
    def from_position(cls, position: Position, *, end_seqno: Seqno = SEQNO_MAX) -> "ResumeRequest":
        """Ask to go on from a position."""
        return cls(
            vbuuid=position.vbuuid,
            start_seqno=position.seqno,
            snapshot_start=position.snapshot.start,
            snapshot_end=position.snapshot.end,
            end_seqno=end_seqno,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a producer knows of its vbucket.

    `purge_seqno` is 0 where the consumer asked to ignore purged tombstones. The log of a replica may know branches
    beyond the high seqno: it has the log of its producer before it has the changes.
    """

    log: FailoverLog
    high_seqno: Seqno
    purge_seqno: Seqno = Seqno(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The stream goes on after the start seqno."""

    because: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """The consumer has to give up everything after seqno `to`, and ask again."""

    to: Seqno
    because: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """The request contradicts itself."""

    because: Reason


Verdict = Resume | RollBack | OutOfRange


def decide(request: ResumeRequest, history: History) -> Verdict:
    """Judge one stream request.

    >>> log = FailoverLog.new(VbUuid(7))
    >>> ahead = ResumeRequest(
    ...     vbuuid=VbUuid(7), start_seqno=Seqno(12), snapshot_start=Seqno(12), snapshot_end=Seqno(12)
    ... )
    >>> decide(ahead, History(log=log, high_seqno=Seqno(10))).to
    10
    """
    start = request.start_seqno
    if start > request.end_seqno:
        return OutOfRange(because=Reason.START_PAST_END)
    if not request.snapshot_start <= start <= request.snapshot_end:
        return OutOfRange(because=Reason.START_OUTSIDE_SNAPSHOT)
    if start == 0 and not (request.strict_vbuuid and request.vbuuid):
        return Resume(because=Reason.START_IS_ZERO)
    return _compare(request, history)


def _compare(request: ResumeRequest, history: History) -> Resume | RollBack:
    """Judge a consumer that has something, or says on which branch its nothing is."""
    start, snapshot_start, snapshot_end = request.start_seqno, request.snapshot_start, request.snapshot_end
    # With nothing of its snapshot, or with all of it, a consumer stands between two snapshots.
    if start == snapshot_start:
        snapshot_end = start
    elif start == snapshot_end:
        snapshot_start = start
    # Servers of the captures' age compare the start of the snapshot, later ones the start seqno. The older rule rolls
    # back more: a consumer that is past the purge seqno within a snapshot that begins below it.
    if start and snapshot_start < history.purge_seqno:
        return RollBack(to=Seqno(0), because=Reason.PURGED)
    if not request.vbuuid:
        return RollBack(to=Seqno(0), because=Reason.NO_VBUUID)
    if history.log.find(request.vbuuid) is None:
        return RollBack(to=Seqno(0), because=Reason.UNKNOWN_VBUUID)
    limit, past = _limit(request.vbuuid, history)
    if snapshot_end <= limit:
        return Resume(because=Reason.SHARED_HISTORY)
    if snapshot_start > limit:
        return RollBack(to=limit, because=past)
    return RollBack(to=snapshot_start, because=Reason.SNAPSHOT_CUT)


def _limit(vbuuid: VbUuid, history: History) -> tuple[Seqno, Reason]:
    """Give the last seqno that this history shares with a branch of its log, and what it means to be past it.

    kv_engine lets the next branch alone set the limit of an older one. That is the same but for a replica that has not
    got there yet; taking the lower one keeps the consumer from waiting for changes that may never come.
    """
    end = history.log.end_of(vbuuid)
    if end is None or end > history.high_seqno:
        return history.high_seqno, Reason.PAST_HIGH_SEQNO
    return end, Reason.PAST_BRANCH


__all__ = ["History", "OutOfRange", "Reason", "Resume", "ResumeRequest", "RollBack", "Verdict", "decide"]
