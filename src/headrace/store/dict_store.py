"""The same store on dicts: the oracle for tests, and a store for who needs none on disk. Plain and obvious.

Nothing here is fast or durable. A snapshot is a copy.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.store import layout
from headrace.store.contract import Changes, Expiring, StoreError, VBucketRecord
from headrace.store.records import Record, unpack
from headrace.store.undo import is_kept, keeps_boundary, rolled_back, share_bytes
from headrace.store.writing import check_advance, merged

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from headrace.ids import Seqno, VBucketId


@dataclass
class Before:
    """A vbucket as it was before a transaction, and how much that transaction replaced."""

    vbucket: VBucketRecord
    by_key: dict[bytes, bytes]
    replaced_bytes: int


@dataclass
class DictSnapshot:
    """Vbuckets, and for each its newest record by key, and what it was before its last transactions."""

    of_vbuckets: dict[VBucketId, VBucketRecord] = field(default_factory=dict)
    by_key: dict[VBucketId, dict[bytes, bytes]] = field(default_factory=dict)
    history: dict[VBucketId, list[Before]] = field(default_factory=dict)

    def copy(self) -> DictSnapshot:
        """The same, from now on apart."""
        return DictSnapshot(
            dict(self.of_vbuckets),
            {vbucket: dict(of) for vbucket, of in self.by_key.items()},
            {
                vbucket: [replace(before, by_key=dict(before.by_key)) for before in of]
                for vbucket, of in self.history.items()
            },
        )

    def vbucket(self, vbucket: VBucketId) -> VBucketRecord | None:
        """What is kept of a vbucket; None for one that is not there."""
        return self.of_vbuckets.get(vbucket)

    def vbuckets(self) -> dict[VBucketId, VBucketRecord]:
        """All of them, by ascending id."""
        return dict(sorted(self.of_vbuckets.items()))

    def get(self, vbucket: VBucketId, key: bytes) -> bytes | None:
        """The newest record of a key, which may be a tombstone."""
        return self.by_key.get(vbucket, {}).get(key)

    def records(self, vbucket: VBucketId, *, first: int = 0, last: int | None = None) -> Iterator[bytes]:
        """Records by ascending seqno, from `first` to `last`, both among them."""
        for record in sorted(self.by_key.get(vbucket, {}).values(), key=lambda record: unpack(record).seqno):
            if first <= unpack(record).seqno and (last is None or unpack(record).seqno <= last):
                yield record

    def keys(self, vbucket: VBucketId, *, after: bytes = b"", limit: int) -> list[tuple[bytes, Seqno]]:
        """Keys in byte order behind `after`, with the seqno of their newest record; tombstones among them."""
        found = [(key, unpack(record).seqno) for key, record in self.by_key.get(vbucket, {}).items() if key > after]
        return sorted(found)[: max(limit, 0)]

    def expired(self, *, now: int, limit: int, of: Container[int] | None = None) -> list[Expiring]:
        """Live items whose expiry is not after `now`, oldest first; of all vbuckets unless told of which."""
        found = [
            Expiring(vbucket=record.vbucket, key=record.key, expiry=record.expiry)
            for record in self.everything()
            if record.live and 0 < record.expiry <= now and (of is None or record.vbucket in of)
        ]
        return sorted(found, key=lambda one: (one.expiry, one.vbucket, one.key))[: max(limit, 0)]

    def everything(self) -> list[Record]:
        """All records of all vbuckets."""
        return [unpack(record) for of in self.by_key.values() for record in of.values()]


class DictStore:
    """Writer and reader in one."""

    def __init__(self) -> None:
        self._now = DictSnapshot()

    def write(self, changes: Sequence[Changes]) -> None:
        """Put records and vbuckets; a record replaces the older one of its key."""
        after = self._now.copy()
        bytes_max = share_bytes(len(after.of_vbuckets))
        for change in changes:
            before = after.of_vbuckets.get(change.vbucket)
            newest = check_advance(change, before)
            of = after.by_key.setdefault(change.vbucket, {})
            was = dict(of)
            keys = set()
            for packed in change.records:
                record = unpack(packed)
                if record.vbucket != change.vbucket or not newest < record.seqno <= change.now.high_seqno:
                    raise StoreError(f"a record of vbucket {record.vbucket} with seqno {record.seqno} behind {newest}")
                if not 0 < len(record.key) <= layout.KEY_BYTES_MAX or record.key in keys:
                    raise StoreError(f"vbucket {record.vbucket}: a key of {len(record.key)} bytes, or one twice")
                newest = record.seqno
                keys.add(record.key)
                of[record.key] = packed
            after.of_vbuckets[change.vbucket] = merged(before, change.now)
            if before is not None and keeps_boundary(before, change.now):
                history = after.history.setdefault(change.vbucket, [])
                history.append(Before(before, was, sum(len(was[key]) for key in keys if key in was)))
                while history and not self._is_kept(history, bytes_max, change.now):
                    del history[0]
        self._now = after

    @staticmethod
    def _is_kept(history: list[Before], bytes_max: int, now: VBucketRecord) -> bool:
        size = sum(before.replaced_bytes for before in history)
        return is_kept(history[0].vbucket.high_seqno, len(history), size, bytes_max, now)

    def delete_vbucket(self, vbucket: VBucketId) -> None:
        """Forget a vbucket and all it holds; one that is not there is no error."""
        after = self._now.copy()
        after.of_vbuckets.pop(vbucket, None)
        after.by_key.pop(vbucket, None)
        after.history.pop(vbucket, None)
        self._now = after

    def rollback(self, vbucket: VBucketId, to: int) -> VBucketRecord:
        """Take a vbucket back to its newest whole boundary that is not above `to`, and give what it is then."""
        after = self._now.copy()
        now = after.of_vbuckets.get(vbucket)
        if now is None:
            raise StoreError(f"vbucket {vbucket} is not there and cannot be rolled back")
        if now.is_whole and now.high_seqno <= to:
            return now
        history = after.history.pop(vbucket, [])
        while history and not (history[-1].vbucket.is_whole and history[-1].vbucket.high_seqno <= to):
            history.pop()
        if history:
            before = history.pop()
            after.history[vbucket] = history
            after.by_key[vbucket] = before.by_key
            now = rolled_back(now, before.vbucket.high_seqno, before.vbucket.live_items)
        else:
            after.by_key[vbucket] = {}
            now = rolled_back(now, 0, 0)
        after.of_vbuckets[vbucket] = now
        self._now = after
        return now

    def purge(self, vbucket: VBucketId | None = None, *, deleted_before: int, limit: int) -> dict[VBucketId, Seqno]:
        """Drop at most `limit` tombstones older than a time, oldest first; give each vbucket's new purge seqno."""
        after = self._now.copy()
        tombstones = [
            record
            for record in after.everything()
            if not record.live
            and record.delete_time < deleted_before
            and vbucket in {None, record.vbucket}
            and record.seqno != after.of_vbuckets[record.vbucket].high_seqno
        ]
        tombstones.sort(key=lambda record: (record.delete_time, record.vbucket, record.seqno))
        purged: dict[VBucketId, Seqno] = {}
        for record in tombstones[: max(limit, 0)]:
            packed = after.by_key[record.vbucket].pop(record.key)
            for of in after.history.get(record.vbucket, []):
                if of.by_key.get(record.key) == packed:
                    del of.by_key[record.key]
            before = after.of_vbuckets[record.vbucket]
            purged[record.vbucket] = max(before.purge_seqno, record.seqno)
            after.of_vbuckets[record.vbucket] = replace(before, purge_seqno=purged[record.vbucket])
        self._now = after
        return purged

    def compact(self) -> None:
        """Nothing to give back."""

    def close(self) -> None:
        """Nothing to let go of."""

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[DictSnapshot]:
        """Take a snapshot of now."""
        yield self._now
