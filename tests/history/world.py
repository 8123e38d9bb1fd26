"""A model of a vbucket and of one consumer, plain enough to be seen to be right.

The vbucket keeps every change of its history in a list and knows what each seqno held. It crashes, which loses its last
changes and begins a branch, and it purges tombstones. It serves what servers serve: of each key the newest change, as
one snapshot up to the high seqno. The consumer reads some or all of it and keeps a copy of its documents at the end of
every snapshot, so that it can go back.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.history import (
    FailoverLog,
    History,
    Position,
    ResumeRequest,
    RollBack,
    SnapshotRange,
    Verdict,
    decide,
)
from headrace.ids import Seqno, VbUuid


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One change. It is equal to itself alone: two branches never share what both wrote."""

    seqno: int
    key: str
    value: str | None


@dataclass(slots=True)
class VBucket:
    """A history that can be cut."""

    changes: list[Change] = field(default_factory=list)
    log: FailoverLog = field(default_factory=lambda: FailoverLog.new(VbUuid(1)))
    purge_seqno: int = 0
    uuids_used: int = 1

    @property
    def high_seqno(self) -> int:
        """The last seqno; the changes of a branch have no gaps."""
        return len(self.changes)

    @property
    def history(self) -> History:
        """What it would tell `decide`."""
        return History(log=self.log, high_seqno=Seqno(self.high_seqno), purge_seqno=Seqno(self.purge_seqno))

    def write_all(self, changes: Iterable[tuple[str, str | None]]) -> None:
        """Store values under their keys; no value deletes a key."""
        for key, value in changes:
            self.changes.append(Change(self.high_seqno + 1, key, value))

    def crash(self, lost: int) -> None:
        """Lose the last changes, but none that compaction has seen: it works on what is on disk."""
        kept = max(self.high_seqno - lost, self.purge_seqno)
        del self.changes[kept:]
        self.uuids_used += 1
        self.log = self.log.branch(vbuuid=VbUuid(self.uuids_used), seqno=Seqno(kept))

    def purge(self, share: int) -> None:
        """Forget tombstones up to some percentage of the history, but never the last change, as servers do."""
        self.purge_seqno = max(self.purge_seqno, min(self.high_seqno * share // 100, self.high_seqno - 1), 0)

    def newest(self) -> dict[str, Change]:
        """The newest change of each key, tombstones that are purged left out."""
        found = {change.key: change for change in self.changes}
        return {
            key: change for key, change in found.items() if change.value is not None or change.seqno > self.purge_seqno
        }

    def snapshot(self, after: int) -> list[Change]:
        """What a stream from a seqno on brings."""
        return sorted((one for one in self.newest().values() if one.seqno > after), key=lambda one: one.seqno)

    def documents(self) -> dict[str, str]:
        """What a reader of the vbucket sees."""
        return {key: one.value for key, one in self.newest().items() if one.value is not None}


@dataclass(frozen=True, slots=True)
class Copy:
    """What the consumer had at the end of a snapshot."""

    position: Position
    held: dict[str, Change]


NOTHING = Copy(Position.beginning(), {})


@dataclass(slots=True)
class Consumer:
    """Reads one vbucket. `seen` is the vbucket's history as of its last snapshot, for the properties to look at."""

    position: Position = NOTHING.position
    held: dict[str, Change] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=lambda: [NOTHING])
    seen: list[Change] = field(default_factory=list)

    def ask(self, vbucket: VBucket) -> Verdict:
        """Ask to go on from here."""
        return decide(ResumeRequest.from_position(self.position), vbucket.history)

    def go_back(self, verdict: RollBack) -> None:
        """Take up the newest copy at the seqno of the rollback or below."""
        self.copies = [copy for copy in self.copies if copy.position.seqno <= verdict.to]
        self.position, self.held = self.copies[-1].position, dict(self.copies[-1].held)

    def read(self, vbucket: VBucket, *, items: int | None = None, later_marker: bool = False) -> None:
        """Read so many changes of a snapshot, or all. A later marker of a stream starts after the consumer's seqno."""
        changes = vbucket.snapshot(self.position.seqno)
        begun = self.position.seqno not in (self.position.snapshot.start, self.position.snapshot.end)
        start = self.position.snapshot.start if begun else self.position.seqno + later_marker
        taken = changes[:items]
        if later_marker and not taken:
            return
        self.held |= {change.key: change for change in taken}
        seqno = taken[-1].seqno if taken else self.position.seqno
        end = max(vbucket.high_seqno, seqno)
        snapshot = SnapshotRange(start=Seqno(min(start, seqno)), end=Seqno(end))
        self.position = Position(vbuuid=vbucket.log.latest.vbuuid, seqno=Seqno(seqno), snapshot=snapshot)
        self.seen = list(vbucket.changes)
        if seqno == end:
            self.copies.append(Copy(self.position, dict(self.held)))

    def documents(self) -> dict[str, str]:
        """What a reader of the copy sees."""
        return {key: one.value for key, one in self.held.items() if one.value is not None}
