"""How far a change that came by TAP may still go, so that servers which feed each other in a ring come to rest.

Every TAP message has a TTL that is counted down at each server that passes it on (tap.md: "a TTL to avoid replication
loops"). An item does not keep it; what is kept is which seqnos came with which TTL, as runs, since what comes by one
stream comes one after the other with the same. The oldest runs are forgotten: they go out as own changes do.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

TTL_MAX = 0xFF
"""What a server gives its own changes."""
RUNS_MAX = 256
"""How many runs are kept of a vbucket."""


class _Run(NamedTuple):
    first: int
    last: int
    ttl: int


class Hops:
    """The TTLs of all vbuckets of a bucket."""

    def __init__(self) -> None:
        self._runs: dict[int, list[_Run]] = {}

    def note(self, vbucket: int, seqno: int, ttl: int) -> None:
        """A change came by TAP and has this seqno here; seqnos of a vbucket rise, or its history was changed."""
        runs = self._runs.setdefault(vbucket, [])
        while runs and runs[-1].last >= seqno:  # the vbucket was rolled back, or begun anew
            run = runs.pop()
            if run.first < seqno:
                runs.append(run._replace(last=seqno - 1))
        if runs and runs[-1].last == seqno - 1 and runs[-1].ttl == ttl:
            runs[-1] = runs[-1]._replace(last=seqno)
            return
        runs.append(_Run(seqno, seqno, ttl))
        del runs[:-RUNS_MAX]

    def left(self, vbucket: int, seqno: int) -> int:
        """The TTL that a change goes out with; 0 for one that goes no further."""
        runs = self._runs.get(vbucket)
        if not runs:
            return TTL_MAX
        at = bisect_right(runs, seqno, key=_first) - 1
        if at < 0 or runs[at].last < seqno:
            return TTL_MAX
        return runs[at].ttl - 1

    def forget(self, vbucket: int) -> None:
        """A vbucket is gone, or rolled back: what has its seqnos now is something else."""
        self._runs.pop(vbucket, None)


def _first(run: _Run) -> int:
    return run.first
