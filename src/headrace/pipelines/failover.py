"""Failover: a replica becomes the owner, on a new branch of history.

Nothing is asked of the old owner: it is gone, or whoever promotes a replica says so. What the replica has of an
unfinished snapshot is dropped, since half a snapshot is no state that the vbucket ever had.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.history import State
from headrace.pipelines.lines import Line
from headrace.pipelines.replicate import RefusedError
from headrace.pipelines.servers import Server, Vbuckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What a failover did to one vbucket: the branch that it is on now, and what that cost."""

    vbucket: int
    was: State
    vbuuid: int
    seqno: int
    """Where the branch begins."""
    dropped: int
    """How many seqnos of an unfinished snapshot went."""

    @property
    def is_first_copy_lost(self) -> bool:
        """Whether the first copy of the vbucket was unfinished, so that nothing of it is left."""
        return self.dropped > 0 and self.seqno == 0


def promote(server: Server, vb: int, *, force: bool = False) -> Promotion:
    """Make a server the owner of a vbucket of which it has a replica."""
    with Vbuckets(server) as vbuckets:
        was = vbuckets.state(vb)
        if was is None:
            raise RefusedError(f"{server} has no vbucket {vb}")
        if was in {State.ACTIVE, State.DEAD} and not force:
            why = "owns it already" if was is State.ACTIVE else "gave it up: another may own it"
            raise RefusedError(f"vbucket {vb} is {was.name.lower()} at {server}, which {why}; --force does it anyhow")
        high = vbuckets.seqno(vb, was)
        vbuckets.set_state(vb, State.ACTIVE)
    with Line.to_producer(server, f"headrace-failover:{vb}") as line:
        branch = line.failover_log(vb).latest
    dropped = 0 if was is State.ACTIVE else max(0, high - branch.seqno)
    return Promotion(vbucket=vb, was=was, vbuuid=branch.vbuuid, seqno=branch.seqno, dropped=dropped)


__all__ = ["Promotion", "promote"]
