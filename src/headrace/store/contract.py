"""What a store is, whoever keeps it: LMDB on disk, or dicts as the oracle.

A store has one writer and any number of snapshots. The writer takes whole vbuckets' worth of changes: all that
memory holds of a vbucket goes in one transaction, because memory has dropped the versions in between, and a part of it
would be a state that the vbucket never had. What `write` returned from is on disk. A snapshot sees the last
transaction before it was taken, and nothing after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.errors import HeadraceError
from headrace.ids import Cas, Seqno, VBucketId, VbUuid

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator, Sequence
    from contextlib import AbstractContextManager


class StoreError(HeadraceError):
    """The store could not do it; nothing of what was asked was kept, and all that was there still is."""


class FormatError(StoreError):
    """The files are of a format that this version does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VBucketRecord:
    """What is kept of a vbucket beside its items. `high_seqno` is, on disk, the persisted seqno."""

    state: int
    failover_log: tuple[tuple[VbUuid, Seqno], ...]
    high_seqno: Seqno = Seqno(0)
    purge_seqno: Seqno = Seqno(0)
    cas_max: Cas = Cas(0)
    live_items: int = 0
    snapshot_start: Seqno = Seqno(0)
    snapshot_end: Seqno = Seqno(0)
    """The snapshot in which `high_seqno` lies: of a replica that did not get the rest of it, it ends behind it."""
    whole_seqno: Seqno = Seqno(0)
    """The end of the last whole snapshot, where `high_seqno` is in the middle of one."""

    @property
    def is_whole(self) -> bool:
        """Whether this is a state that the vbucket had, and not a part of a snapshot."""
        return self.high_seqno >= self.snapshot_end

    @property
    def durable_seqno(self) -> Seqno:
        """The last seqno of what is whole."""
        return self.high_seqno if self.is_whole else self.whole_seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one vbucket gets in one transaction: records by ascending seqno, each key once; and what it is then."""

    vbucket: VBucketId
    records: Collection[bytes]
    now: VBucketRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiring:
    """An item whose time has come, as the index of expiries has it."""

    vbucket: VBucketId
    key: bytes
    expiry: int


class Writer(Protocol):
    """The one who may change the store. Every method is durable when it returns, and all or nothing."""

    def write(self, changes: Sequence[Changes]) -> None:
        """Put records and vbuckets; a record replaces the older one of its key."""
        ...

    def delete_vbucket(self, vbucket: VBucketId) -> None:
        """Forget a vbucket and all it holds; one that is not there is no error."""
        ...

    def rollback(self, vbucket: VBucketId, to: int) -> VBucketRecord:
        """Take a vbucket back to its newest whole boundary that is not above `to`, and give what it is then.

        Boundaries are the states between the last transactions (`undo`), but for those in the middle of a replica's
        snapshot. Without one the vbucket is emptied, and at seqno 0. Its state stays. To roll back again to where it is
        changes nothing.
        """
        ...

    def purge(self, vbucket: VBucketId | None = None, *, deleted_before: int, limit: int) -> dict[VBucketId, Seqno]:
        """Drop at most `limit` tombstones older than a time (seconds); give the new purge seqno of each vbucket.

        The purge seqno on disk rises with them. Fewer than `limit` gone means that no older ones are left. The record
        at a vbucket's high seqno stays, whatever it is.
        """
        ...

    def compact(self) -> None:
        """Give unused space back to the system, as far as the store can."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class Snapshot(Protocol):
    """One consistent state of the store, for as long as it is open. Used by one thread."""

    def vbucket(self, vbucket: VBucketId) -> VBucketRecord | None:
        """What is kept of a vbucket; None for one that is not there."""
        ...

    def vbuckets(self) -> dict[VBucketId, VBucketRecord]:
        """All of them, by ascending id."""
        ...

    def get(self, vbucket: VBucketId, key: bytes) -> bytes | None:
        """The newest record of a key, which may be a tombstone."""
        ...

    def records(self, vbucket: VBucketId, *, first: int = 0, last: int | None = None) -> Iterator[bytes]:
        """Records by ascending seqno, from `first` to `last`, both among them."""
        ...

    def keys(self, vbucket: VBucketId, *, after: bytes = b"", limit: int) -> list[tuple[bytes, Seqno]]:
        """Keys in byte order behind `after`, with the seqno of their newest record; tombstones among them."""
        ...

    def expired(self, *, now: int, limit: int, of: Container[int] | None = None) -> list[Expiring]:
        """Live items whose expiry is not after `now`, oldest first; of all vbuckets unless told of which."""
        ...


class Reader(Protocol):
    """Opens snapshots; may be in another process than the writer."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Take a snapshot of now."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...
