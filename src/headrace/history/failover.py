"""The failover log: the branches of a vbucket's history, newest first.

    newest   (0xc0, 18)    seqnos from 19 on
             (0xb0, 10)    seqnos 11 to 18
    oldest   (0xa0,  0)    seqnos  1 to 10

A branch is named by a vb UUID and begins after its seqno, where the next older one was left. What the older one had
beyond that point is no part of this history, and nor is a branch that began beyond it. Two branches may begin at one
seqno: nothing was written in between.

A log is a value; whoever changes it makes a new one. UUIDs come in as arguments.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from headrace.errors import LocalProtocolError
from headrace.history.snapshots import SEQNO_MAX
from headrace.ids import Seqno, VbUuid

BRANCHES_MAX = 25
"""How many branches a log keeps; the oldest are forgotten. kv_engine's max_failover_entries has the same default."""

VBUUID_MAX = VbUuid(2**64 - 1)
"""The largest vb UUID."""


class Branch(NamedTuple):
    """One branch: its name, and the last seqno before it. It has the shape of the wire's failover entry."""

    vbuuid: VbUuid
    seqno: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverLog:
    """At least one branch and at most `BRANCHES_MAX`, newest first.

    No UUID is zero, since zero means "none" in a stream request; none stands twice; no branch begins after a newer one.
    """

    entries: tuple[Branch, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.entries) <= BRANCHES_MAX:
            raise LocalProtocolError(f"a failover log of {len(self.entries)} branches: wanted 1 to {BRANCHES_MAX}")
        for vbuuid, seqno in self.entries:
            if not (0 < vbuuid <= VBUUID_MAX and 0 <= seqno <= SEQNO_MAX):
                raise LocalProtocolError(
                    f"no failover log has a branch {vbuuid} at {seqno}: UUIDs are 1 to 2**64-1, seqnos 0 to 2**64-1"
                )
        if len(self.entries) == 1:  # as most are
            return
        if len({branch.vbuuid for branch in self.entries}) < len(self.entries):
            raise LocalProtocolError(f"a branch stands twice in the failover log {self}")
        if any(newer.seqno < older.seqno for newer, older in pairwise(self.entries)):
            raise LocalProtocolError(f"a branch begins after a newer one in the failover log {self}")

    @classmethod
    def new(cls, vbuuid: VbUuid) -> "FailoverLog":
        """Begin the log of a vbucket that was just made."""
        return cls(entries=(Branch(vbuuid, Seqno(0)),))

    @classmethod
    def from_entries(cls, entries: Iterable[tuple[VbUuid, Seqno]]) -> "FailoverLog":
        """Take over a log as a peer or a disk has it, newest first; what exceeds `BRANCHES_MAX` is forgotten."""
        return cls(entries=tuple(Branch(*entry) for entry in entries)[:BRANCHES_MAX])

    @property
    def latest(self) -> Branch:
        """The branch that is written now."""
        return self.entries[0]

    def branch(self, *, vbuuid: VbUuid, seqno: Seqno) -> "FailoverLog":
        """Begin a branch after `seqno`, the end of the last snapshot that the vbucket holds whole.

        After a crash that is the last snapshot on disk. It is less than the high seqno for a replica that is promoted
        in the middle of a snapshot: its copy of that snapshot misses what later changes had replaced.
        """
        kept = (branch for branch in self.entries if branch.seqno <= seqno)
        return FailoverLog.from_entries((Branch(vbuuid, seqno), *kept))

    def prune(self, *, above: Seqno) -> "FailoverLog":
        """Forget the branches that began above a seqno, to which the vbucket itself was rolled back."""
        kept = tuple(branch for branch in self.entries if branch.seqno <= above)
        if not kept:
            raise LocalProtocolError(
                f"nothing is left of the failover log {self} at seqno {above}: the vbucket must begin a new one"
            )
        return FailoverLog(entries=kept)

    def find(self, vbuuid: VbUuid) -> Branch | None:
        """Look a branch up by its name."""
        return next((branch for branch in self.entries if branch.vbuuid == vbuuid), None)

    def end_of(self, vbuuid: VbUuid) -> Seqno | None:
        """Give the last seqno of a branch, where the next newer one begins; None for the newest, which goes on."""
        if vbuuid == self.latest.vbuuid:
            return None
        for newer, older in pairwise(self.entries):
            if older.vbuuid == vbuuid:
                return newer.seqno
        raise LocalProtocolError(f"the failover log {self} has no branch {vbuuid}")

    def __iter__(self) -> Iterator[Branch]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return ", ".join(f"{vbuuid} at {seqno}" for vbuuid, seqno in self.entries)


__all__ = ["BRANCHES_MAX", "VBUUID_MAX", "Branch", "FailoverLog"]
