"""What a vbucket may hold after a crash, exactly.

Every key is written by one connection, and a node serves a connection's requests in order. So the requests of a
connection to a vbucket make one list of changes, of which the disk holds the first so many and no other; and since a
change takes one seqno, the numbers of all connections add up to the persisted seqno. What was answered tells more: a
change with a known seqno is on disk exactly if its seqno is not above the persisted one.

    sent:       a1 a2 a3 a4 | a5 a6          answered up to a4, then the node was killed
    on disk:    a1 a2 a3                     a4 is lost: the vbucket must have a new branch, at its persisted seqno
    or:         a1 a2 a3 a4   a5             nothing is lost; a5 was never answered, and is there all the same
    never:      a1    a3, or anything else
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.history.failover import BRANCHES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.store import VBucketRecord
    from headrace.store.records import Record

Log = tuple[tuple[int, int], ...]


class Version(NamedTuple):
    """An item, or the tombstone of one, as the commands make it."""

    live: bool
    value: bytes = b""
    flags: int = 0
    expiry: int = 0
    revision: int = 0


@dataclass(slots=True)
class Change:
    """One change of one key; `seqno` and `cas` are as the answer told them, and None where it did not."""

    key: bytes
    version: Version
    seqno: int | None = None
    cas: int | None = None
    answered: bool = False


@dataclass(slots=True)
class VBucketModel:
    """One vbucket since the node was last started: what it had then, and what each connection changed since."""

    number: int
    log: Log
    start_seqno: int = 0
    base: dict[bytes, Record] = field(default_factory=dict)
    changes: dict[int, list[Change]] = field(default_factory=dict)
    now: dict[bytes, Version] = field(default_factory=dict)
    persisted: int = 0
    """What the node told to be on disk."""
    seqnos: set[int] = field(default_factory=set)

    def changed(self, connection: int, change: Change) -> None:
        """Append a change."""
        changes = self.changes.setdefault(connection, [])
        if change.seqno is not None:
            before = next((one.seqno for one in reversed(changes) if one.seqno is not None), self.start_seqno)
            assert change.seqno > before, f"vbucket {self.number}: {change} came after seqno {before}"
            assert change.seqno not in self.seqnos, f"vbucket {self.number}: {change}, and its seqno was given before"
            self.seqnos.add(change.seqno)
        changes.append(change)
        self.now[change.key] = change.version

    def told_persisted(self, seqno: int) -> None:
        """The node said that all up to a seqno is on disk."""
        assert seqno >= self.persisted, f"vbucket {self.number}: on disk was {self.persisted}, now {seqno}"
        self.persisted = seqno

    def is_settled(self) -> bool:
        """Whether the last change of every connection is known to be on disk, so that a crash can lose nothing."""
        last = [changes[-1].seqno for changes in self.changes.values() if changes]
        return all(seqno is not None and seqno <= self.persisted for seqno in last)


@dataclass(slots=True)
class Verdict:
    """What a check found, for the sums that a run prints."""

    answered: int = 0
    lost: int = 0
    kept_unanswered: int = 0
    branched: int = 0


def check(model: VBucketModel, kept: VBucketRecord, records: list[Record], *, clean: bool, starts: int) -> Verdict:
    """See that what is on disk can be, and is marked as what it is; `starts` is how often a node was started since."""
    where = f"vbucket {model.number}, persisted {kept.high_seqno}"
    assert kept.high_seqno >= model.persisted, f"{where}: {model.persisted} was told to be on disk"
    assert kept.live_items == sum(record.live for record in records), where
    found = {record.key: record for record in records}
    sent = {change.key for changes in model.changes.values() for change in changes}
    for key in found.keys() | model.base.keys():
        if key not in sent:
            assert found.get(key) == model.base.get(key), f"{where}: {key!r} changed, and nobody changed it"
    verdict = Verdict()
    written = 0
    for connection, changes in model.changes.items():
        count = _count_on_disk(f"{where}, connection {connection}", model, changes, found)
        _check_seqnos(f"{where}, connection {connection}", changes, count, kept.high_seqno)
        written += count
        verdict.answered += sum(change.answered for change in changes)
        verdict.lost += sum(change.answered for change in changes[count:])
        verdict.kept_unanswered += sum(not change.answered for change in changes[:count])
    assert written == kept.high_seqno - model.start_seqno, f"{where}: {written} changes since {model.start_seqno}"
    _check_log(where, model, kept, must=verdict.lost > 0, may=not clean and not model.is_settled(), starts=starts)
    assert not (clean and verdict.lost), f"{where}: {verdict.lost} lost by a clean stop"
    verdict.branched = int(kept.failover_log != model.log)
    return verdict


def _count_on_disk(where: str, model: VBucketModel, changes: list[Change], found: dict[bytes, Record]) -> int:
    """How many of a connection's changes are on disk: the first so many, and nothing else of its keys."""
    by_key: dict[bytes, list[int]] = {}
    for index, change in enumerate(changes):
        by_key.setdefault(change.key, []).append(index)
    count = 0
    for key, indexes in by_key.items():
        record = found.get(key)
        if record is None or record == model.base.get(key):
            continue
        match = [index for index in indexes if _is(changes[index], record)]
        assert match, f"{where}: {record} was never written; {[changes[index] for index in indexes][-5:]}"
        count = max(count, match[-1] + 1)
    for key, indexes in by_key.items():
        last = max((index for index in indexes if index < count), default=None)
        record = found.get(key)
        if last is None:
            assert record == model.base.get(key), f"{where}: {key!r} is {record}, and none of {count} changes made it"
        else:
            assert record is not None, f"{where}: {changes[last]} is missing among the first {count}"
            assert _is(changes[last], record), f"{where}: {record} where {changes[last]} should be"
    return count


def _is(change: Change, record: Record) -> bool:
    return (
        change.version == version_of(record)
        and change.cas in {None, record.cas}
        and change.seqno in {None, record.seqno}
    )


def version_of(record: Record) -> Version:
    """A record without its place in the history."""
    return Version(record.live, record.value, record.flags, record.expiry, record.rev_seqno)


def _check_seqnos(where: str, changes: list[Change], count: int, persisted: int) -> None:
    for index, change in enumerate(changes):
        if change.seqno is not None:
            assert (change.seqno <= persisted) == (index < count), f"{where}: {change} with {count} on disk"


def _check_log(where: str, model: VBucketModel, kept: VBucketRecord, *, must: bool, may: bool, starts: int) -> None:
    log: Log = kept.failover_log
    more = next(more for more in range(len(log) + 1) if log[more:] == model.log[: len(log) - more])
    where = f"{where}: the failover log {log} was {model.log}"
    assert len(log) == min(len(model.log) + more, BRANCHES_MAX), where
    assert not must or more, f"{where}, and an answered change is lost"
    assert not more or may, f"{where}, and nothing can have been lost"
    assert more <= starts, where
    assert all(seqno == kept.high_seqno for _, seqno in log[:more]), where


def fresh(number: int, kept: VBucketRecord, records: list[Record]) -> VBucketModel:
    """The model of a vbucket as it is on disk, with no change since."""
    return VBucketModel(
        number=number,
        log=kept.failover_log,
        start_seqno=kept.high_seqno,
        base={record.key: record for record in records},
        now={record.key: version_of(record) for record in records},
        persisted=kept.high_seqno,
    )


def all_changes(models: dict[int, VBucketModel]) -> Iterator[Change]:
    """Every change of every vbucket."""
    for model in models.values():
        for changes in model.changes.values():
            yield from changes
