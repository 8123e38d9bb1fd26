"""What a micro-batch reads: pure functions of the offset, of what the servers tell, and of the limits.

`judge` says for one vbucket whether its position still lies on the server's history, and if not, what may be kept.
`plan` puts the vbuckets together into the next offset. Neither asks anybody anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.client import ClientError
from headrace.client.options import OnRollback
from headrace.history import Reason
from headrace.ids import Seqno, VbUuid
from headrace.protocol.subscription import branch_of
from headrace.spark.offsets import Offset, Place, RolledBackTo, Root, VBucketOffset, with_place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.history import FailoverLog

_TOLD_MAX = 5
_PAST_LOSS = (
    "Set failOnDataLoss to false to read these vbuckets anew from their beginning, after a rollback row; or begin with "
    "a new checkpoint"
)
_PAST_ROLLBACK = "Set onRollback to rebuild or event to go on with a rollback row; or begin with a new checkpoint"


class RollbackFoundError(ClientError):
    """A vbucket's history is not the one that was read, and the query was told to stop then."""


class DataLossError(ClientError):
    """Changes that a query has not read cannot be had any more, and it was told to stop then."""


class Seen(NamedTuple):
    """What a server tells of a vbucket."""

    high: int
    log: FailoverLog
    refused: bool = False
    """Whether it would refuse to go on from the position, which its failover log does not explain: a purge."""
    proof: Place | None = None
    """An earlier look at this position, on the branch that was the newest then."""
    cap: int | None = None
    """Up to where a batch may go, if that is not `high`. It says nothing of what the history holds: a change after it
    hides an older one before it all the same."""

    @property
    def end(self) -> int:
        """Up to where a batch may go."""
        return self.high if self.cap is None else min(self.high, self.cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Where to go on, with the places that still hold; `because` is set when that is a rollback."""

    seqno: int
    places: tuple[Place, ...] = ()
    because: Reason | None = None
    lost: bool = False
    """Whether something cannot be had any more that no failover took away."""


def judge(at: VBucketOffset, seen: Seen) -> Verdict:
    """Judge the position of one vbucket."""
    if not at.seqno:
        return Verdict(seqno=0)
    if seen.refused:
        return Verdict(seqno=0, because=Reason.PURGED, lost=True)
    log, high = seen.log, Seqno(seen.high)
    if at.head == log.latest.vbuuid:
        if at.seqno > high:
            return _keep(at.places, at.seqno, high, Reason.PAST_HIGH_SEQNO)
        reach = high if seen.proof is None else min(high, seen.proof.reach)
        return Verdict(seqno=at.seqno, places=with_place(at.places, Place(at.seqno, reach)))
    limit = _limit(at, log, high)
    if limit is None:
        return Verdict(seqno=0, because=Reason.UNKNOWN_VBUUID, lost=True)
    places = at.places if seen.proof is None else with_place(at.places, seen.proof)
    return _keep(places, at.seqno, limit, Reason.PAST_BRANCH if at.seqno > limit else Reason.SNAPSHOT_CUT)


def _limit(at: VBucketOffset, log: FailoverLog, high: Seqno) -> int | None:
    """Give the last seqno that the server's history shares with the one that was read; None when there is none."""
    for vbuuid in (VbUuid(at.head), VbUuid(at.vbuuid)):
        if log.find(vbuuid) is not None:
            end = log.end_of(vbuuid)
            return high if end is None else min(end, high)
    # A failover to before a branch began takes the branch out of the log. The oldest one is still there then.
    if at.root is not None and log.find(VbUuid(at.root.vbuuid)) is not None:
        end = log.end_of(VbUuid(at.root.vbuuid))
        return min(at.root.end, high) if end is None else min(at.root.end, end, high)
    return None


def _root(log: FailoverLog, vbuuid: int) -> Root | None:
    oldest = log.entries[-1].vbuuid
    end = log.end_of(oldest)
    return None if end is None or oldest == vbuuid else Root(oldest, end)


def _keep(places: tuple[Place, ...], seqno: int, limit: int, because: Reason) -> Verdict:
    """Go back to the last place that holds, if the history holds up to `limit`; the position may be that place."""
    kept = tuple(place for place in places if place.reach <= limit)
    to = kept[-1].seqno if kept else 0
    return Verdict(seqno=to, places=kept, because=because if to < seqno else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a micro-batch is bound by, and what it does about a rollback."""

    on_rollback: OnRollback = OnRollback.REBUILD
    fail_on_data_loss: bool = True
    seqnos: int | None = None
    way_out: str | None = None
    """What is told to do by who cannot do what a stream can."""


def plan(start: Offset, seen: Mapping[int, Seen], limits: Limits) -> Offset:
    """Give the offset at which the next batch ends; `start` itself when there is nothing to do.

    A vbucket that is not in `seen` stays where it is. One that is read anew from its beginning is read whole: a table
    then replaces its rows in one commit. When the limit leaves no room for all of those, some wait for a later batch.
    """
    verdicts = {vbucket: judge(start.of(vbucket), found) for vbucket, found in seen.items()}
    _refuse(start, verdicts, limits)
    if limits.on_rollback is OnRollback.REBUILD:
        verdicts = {
            vbucket: replace(verdict, seqno=0, places=()) if verdict.because is not None else verdict
            for vbucket, verdict in verdicts.items()
        }
    ends = _ends({vbucket: (verdict, seen[vbucket].end) for vbucket, verdict in verdicts.items()}, limits.seqnos)
    moved = {vbucket for vbucket, end in ends.items() if end != verdicts[vbucket].seqno}
    back = {vbucket for vbucket in ends if verdicts[vbucket].because is not None}
    if not moved and not back:
        return start
    vbuckets = dict(start.vbuckets)
    rollbacks = {}
    for vbucket, end in ends.items():
        verdict, log = verdicts[vbucket], seen[vbucket].log
        branch = branch_of(log, end)
        vbuckets[vbucket] = VBucketOffset(branch, end, log.latest.vbuuid, verdict.places, _root(log, branch))
        if vbucket in back:
            rollbacks[vbucket] = RolledBackTo(verdict.seqno, branch_of(log, verdict.seqno))
    return Offset(start.bucket, vbuckets, rollbacks)


def _refuse(start: Offset, verdicts: Mapping[int, Verdict], limits: Limits) -> None:
    """Stop where the options say so, and tell of which vbuckets, from where, and what to do."""
    lost = {vbucket: verdict for vbucket, verdict in verdicts.items() if verdict.lost}
    if lost and limits.fail_on_data_loss:
        way_out = limits.way_out or _PAST_LOSS
        raise DataLossError(f"{_told(start, lost)}: changes after that cannot be had any more. {way_out}")
    back = {vbucket: verdict for vbucket, verdict in verdicts.items() if verdict.because is not None}
    if back and limits.on_rollback is OnRollback.FAIL:
        raise RollbackFoundError(
            f"{_told(start, back)}: what was read after that is no part of the bucket's history any more. "
            f"{limits.way_out or _PAST_ROLLBACK}"
        )


def _told(start: Offset, verdicts: Mapping[int, Verdict]) -> str:
    """Name some vbuckets, where each stands, and up to where it holds."""
    shown = [
        f"vbucket {vbucket} stands at seqno {start.of(vbucket).seqno}, holds up to {verdict.seqno} ({verdict.because})"
        for vbucket, verdict in sorted(verdicts.items())[:_TOLD_MAX]
    ]
    more = len(verdicts) - len(shown)
    return "bucket " + start.bucket + ": " + "; ".join(shown) + (f"; and {more} more vbuckets" if more else "")


def _ends(found: Mapping[int, tuple[Verdict, int]], limit: int | None) -> dict[int, int]:
    """Give each vbucket its part of the limit, by its backlog; what is read anew goes first, and whole."""
    ends: dict[int, int] = {}
    room = limit
    anew = [vbucket for vbucket, (verdict, _) in sorted(found.items()) if verdict.because and not verdict.seqno]
    for vbucket in anew:
        high = found[vbucket][1]
        if room is None or high <= room or not ends:
            ends[vbucket] = high
            room = None if room is None else max(room - high, 0)
    others = {vbucket: each for vbucket, each in found.items() if vbucket not in anew}
    backlog = {vbucket: max(high - verdict.seqno, 0) for vbucket, (verdict, high) in others.items()}
    shares = _shares(backlog, room)
    ends.update({vbucket: verdict.seqno + shares[vbucket] for vbucket, (verdict, _) in others.items()})
    return ends


def _shares(backlog: Mapping[int, int], room: int | None) -> dict[int, int]:
    total = sum(backlog.values())
    if room is None or total <= room:
        return dict(backlog)
    shares = {vbucket: waiting * room // total for vbucket, waiting in backlog.items()}
    left = room - sum(shares.values())
    for vbucket in sorted(backlog, key=lambda each: shares[each] - backlog[each]):
        if left and shares[vbucket] < backlog[vbucket]:
            shares[vbucket] += 1
            left -= 1
    return shares


__all__ = ["DataLossError", "Limits", "RollbackFoundError", "Seen", "Verdict", "judge", "plan"]
