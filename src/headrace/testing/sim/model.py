"""What really happened: every change under its branch and seqno, and from that the state at any place of any history.

A *place* is a vb UUID and a seqno: all changes of that branch up to the seqno, and of the branches that it came from up
to where it left them. The model is told of each change when an active vbucket makes it, and of each branch when it
begins; it believes nothing that a copy says. So it can tell

- whether a copy is a state that the vbucket had at that place, and not a part of one (`differences`),
- whether one place is in the history of another (`contains`): what was durable must be in that of the owner,
- whether a branch gives a seqno twice, or leaves one out: then two nodes made history at a time.

Tombstones may be missing from a copy where they were purged anywhere: `purged` rises with every purge.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.history import FailoverLog
    from headrace.store.records import Record


class BrokenError(AssertionError):
    """A promise was broken; the text says which, where and by what."""


class Place(NamedTuple):
    """A place in the history of a vbucket."""

    vbuuid: int
    seqno: int

    def __str__(self) -> str:
        return f"{self.vbuuid:x}:{self.seqno}"


NOWHERE = Place(0, 0)
"""Where a vbucket is that has nothing."""


class Shown(NamedTuple):
    """An item as every copy of it must show it. When it was removed is not among it: messages may leave that out."""

    is_live: bool
    value: bytes
    datatype: int
    cas: int
    seqno: int
    rev_seqno: int
    flags: int
    expiry: int

    @classmethod
    def of(cls, record: Record) -> Shown:
        """Take what counts from a record."""
        return cls(
            record.live,
            record.value,
            record.datatype,
            record.cas,
            record.seqno,
            record.rev_seqno,
            record.flags,
            record.expiry,
        )


Copy = dict[bytes, Shown]
"""What somebody has of a vbucket, by key; tombstones too."""


@dataclass
class _Branch:
    begins_after: int
    parent: int | None
    changes: list[tuple[bytes, Shown]] = field(default_factory=list)
    """Those with the seqnos from `begins_after + 1` on, one after the other."""

    @property
    def high(self) -> int:
        return self.begins_after + len(self.changes)


class Model:
    """The history of all vbuckets of one simulated cluster."""

    def __init__(self) -> None:
        self._branches: dict[tuple[int, int], _Branch] = {}
        self.purged: dict[int, int] = defaultdict(int)
        """By vbucket: up to which seqno tombstones may be gone somewhere."""

    def branched(self, vb_id: int, log: FailoverLog) -> None:
        """A vbucket has a history; where its newest branch is not known yet, it begins here."""
        vbuuid, seqno = log.latest
        if (vb_id, vbuuid) in self._branches:
            return
        parent = log.entries[1].vbuuid if len(log.entries) > 1 else None
        if parent is not None and (vb_id, parent) not in self._branches:
            raise BrokenError(f"vbucket {vb_id}: a failover log names branch {parent:x} that nobody began: {log}")
        self._branches[vb_id, vbuuid] = _Branch(seqno, parent)

    def wrote(self, vb_id: int, vbuuid: int, record: Record, where: str) -> None:
        """An active vbucket has made a change."""
        branch = self._branches[vb_id, vbuuid]
        if record.seqno != branch.high + 1:
            raise BrokenError(
                f"vbucket {vb_id} at {where}: seqno {record.seqno} of branch {vbuuid:x} comes after {branch.high}: "
                f"within a branch each seqno is given once, and none is left out"
            )
        branch.changes.append((record.key, Shown.of(record)))

    def _lineage(self, vb_id: int, place: Place) -> Iterator[tuple[int, _Branch, int]]:
        """The branches of a place, newest first, each with the last seqno of it that counts."""
        vbuuid: int | None = place.vbuuid or None
        last = place.seqno
        while vbuuid is not None:
            branch = self._branches[vb_id, vbuuid]
            yield vbuuid, branch, last
            last = min(last, branch.begins_after)
            vbuuid = branch.parent

    def contains(self, vb_id: int, place: Place, older: Place) -> bool:
        """Whether a place lies in the history of another."""
        if not older.seqno:
            return True
        branch = self._branches[vb_id, older.vbuuid]
        if older.seqno <= branch.begins_after:  # it stands for a place of an older branch
            if branch.parent is None:
                return False
            return self.contains(vb_id, place, Place(branch.parent, older.seqno))
        return any(vbuuid == older.vbuuid and older.seqno <= last for vbuuid, _, last in self._lineage(vb_id, place))

    def state(self, vb_id: int, place: Place) -> Copy:
        """The items of a vbucket at a place, its tombstones among them."""
        found: Copy = {}
        for vbuuid, branch, last in self._lineage(vb_id, place):
            if last > branch.high:
                raise BrokenError(f"vbucket {vb_id}: branch {vbuuid:x} has no seqno {last}, its last is {branch.high}")
            for key, shown in reversed(branch.changes[: max(0, last - branch.begins_after)]):
                found.setdefault(key, shown)
        return found

    def differences(self, vb_id: int, place: Place, copy: Mapping[bytes, Shown]) -> list[str]:
        """How a copy differs from what the vbucket was at a place; nothing where it does not."""
        wanted = self.state(vb_id, place)
        purged = self.purged[vb_id]
        told: list[str] = []
        for key in sorted(wanted.keys() | copy.keys()):
            one, other = wanted.get(key), copy.get(key)
            if one == other or (other is None and one is not None and not one.is_live and one.seqno <= purged):
                continue
            told.append(f"{key!r} should be {one}, is {other}")
        return told

    def require_copy(self, vb_id: int, place: Place, copy: Mapping[bytes, Shown], where: str) -> None:
        """Refuse a copy that is no state of the vbucket at a place."""
        told = self.differences(vb_id, place, copy)
        if told:
            lines = "\n  ".join(told[:8])
            raise BrokenError(f"vbucket {vb_id} at {where} is not what it was at {place}:\n  {lines}")
