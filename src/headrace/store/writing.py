"""The writer of an LMDB store. Every method is one transaction: on disk when it returns, or nothing was changed.

This file and what it imports know records by `Places` only; see there.
"""

from __future__ import annotations

from dataclasses import replace
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, TypeVar

import lmdb

from headrace.ids import Seqno, VBucketId
from headrace.store import layout, residency
from headrace.store.contract import Changes, StoreError, VBucketRecord
from headrace.store.environment import Environment, prepare_directory, store_errors
from headrace.store.undo import UndoIndex, keeps_boundary, rolled_back, share_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headrace.store.places import Places

T = TypeVar("T")
Pair = tuple[bytes, bytes]

NO_EXPIRY = bytes(4)
WRITES_BETWEEN_CHECKS = 256
"""Readers that died are struck off LMDB's table this often: their snapshots keep old pages from being used again."""


class StoreWriter:
    """Writes to the store in a directory, and makes it if there is none. One per store, among all processes."""

    def __init__(
        self,
        path: Path,
        places: Places,
        *,
        map_bytes: int | None = None,
        environment: Environment | None = None,
    ) -> None:
        if environment is None:
            prepare_directory(path)
            environment = Environment(path, readonly=False, map_bytes=map_bytes)
        self._path = path
        self.places = places
        self._head = Struct(places.head)
        self._environment = environment
        self._writes = 0
        self._is_open = True

    def write(self, changes: Sequence[Changes], *, token: bytes = b"") -> None:
        """Put records and vbuckets; a record replaces the older one of its key.

        A token is kept with the changes and found again by `token` until the next write has one: who did not hear
        the answer can tell whether the write was done.
        """

        def work(txn: lmdb.Transaction[bytes]) -> None:
            undo = self._undo(txn)
            undo_bytes_max = share_bytes(txn.stat(self._environment.handles.vbuckets)["entries"])
            for change in changes:
                before, replaced = self._put(txn, change)
                if before is not None and keeps_boundary(before, change.now):
                    undo.keep(change.vbucket, before, change.now, replaced, undo_bytes_max)
            if token:
                txn.put(layout.META_TOKEN, token, db=self._environment.handles.meta)

        self._transact("write to", work)
        self._environment.trim()
        self._writes += 1
        if self._writes % WRITES_BETWEEN_CHECKS == 0:
            self.compact()

    def token(self) -> bytes:
        """The token of the last write that had one."""
        txn = self._environment.begin_read()
        try:
            return txn.get(layout.META_TOKEN, b"", db=self._environment.handles.meta)
        finally:
            txn.abort()

    def delete_vbucket(self, vbucket: VBucketId) -> None:
        """Forget a vbucket and all it holds; one that is not there is no error."""
        self._require_vbucket(vbucket)
        self._transact("delete a vbucket of", lambda txn: self._delete_vbucket(txn, vbucket))

    def rollback(self, vbucket: VBucketId, to: int) -> VBucketRecord:
        """Take a vbucket back to its newest whole boundary that is not above `to`, and give what it is then.

        Without such a boundary that is nothing at all, at seqno 0. Its state stays.
        """
        self._require_vbucket(vbucket)
        return self._transact("roll back a vbucket of", lambda txn: self._rollback(txn, vbucket, to))

    def purge(self, vbucket: VBucketId | None = None, *, deleted_before: int, limit: int) -> dict[VBucketId, Seqno]:
        """Drop at most `limit` tombstones older than a time, oldest first; give each vbucket's new purge seqno."""
        return self._transact("purge", lambda txn: self._purge(txn, vbucket, deleted_before, limit))

    def compact(self) -> None:
        """Strike readers that died off the table, so that the pages which only they could see are used again.

        The file does not get smaller: LMDB uses free pages for what comes next and never returns them. To shrink it,
        copy it while no process has it open (`mdb_copy -c` of the LMDB tools).
        """
        with store_errors("check the readers of", self._path):
            self._environment.lmdb.reader_check()

    def shrink(self) -> None:
        """Let go of the memory that LMDB keeps for the next transaction; nobody may have a snapshot open here."""
        self._environment.reopen()
        residency.return_heap()

    def close(self) -> None:
        """Let go of the files."""
        if self._is_open:
            self._is_open = False
            self._environment.close()

    def _transact(self, what: str, work: Callable[[lmdb.Transaction[bytes]], T]) -> T:
        if not self._is_open:
            raise StoreError(f"cannot {what} the store in {self._path}: it is closed")
        with store_errors(what, self._path):
            while True:
                try:
                    with self._environment.begin_write() as txn:
                        return work(txn)
                except lmdb.MapFullError:
                    self._environment.grow()

    def _require_vbucket(self, vbucket: int) -> None:
        if not 0 <= vbucket < layout.VBUCKETS_MAX:
            raise StoreError(f"vbucket {vbucket} is not among the {layout.VBUCKETS_MAX} that a store holds")

    def _undo(self, txn: lmdb.Transaction[bytes]) -> UndoIndex:
        undo = self._environment.handles.undo
        assert undo is not None, "who writes has opened it"
        return UndoIndex(txn, undo)

    def _put(self, txn: lmdb.Transaction[bytes], change: Changes) -> tuple[VBucketRecord | None, list[bytes]]:
        """Put what one vbucket gets; give what was kept of it before, and the records that were replaced."""
        vbucket = change.vbucket
        self._require_vbucket(vbucket)
        handles = self._environment.handles
        key = layout.VBUCKET.pack(vbucket)
        stored = txn.get(key, db=handles.vbuckets)
        before = layout.decode_vbucket(stored) if stored else None
        by_seqno, by_key, timed = self._checked(change, before)
        replaced: list[bytes] = []
        if by_seqno:
            # In the order of keys, most of them are on the page of the one before, and the tree is not walked again.
            keys = sorted(by_key)
            key_cursor = txn.cursor(handles.by_key[vbucket])
            replaced = self._drop_older(txn, vbucket, key_cursor.getmulti(keys))
            _, added = txn.cursor(handles.by_seqno[vbucket]).putmulti(by_seqno, append=True)
            if added != len(by_seqno):
                raise StoreError(f"vbucket {vbucket} has a record at or behind seqno {_seqno(by_seqno[0][0])} already")
            key_cursor.putmulti(list(zip(keys, map(by_key.__getitem__, keys), strict=True)))
            self._index(txn, vbucket, timed)
        txn.put(key, layout.encode_vbucket(merged(before, change.now)), db=handles.vbuckets)
        return before, replaced

    def _checked(
        self, change: Changes, before: VBucketRecord | None
    ) -> tuple[list[Pair], dict[bytes, bytes], list[Pair]]:
        """Each record looked at: records by seqno, seqnos by key, and keys with the records that have a time."""
        places = self.places
        unpack, header_bytes, magic, kinds = (
            self._head.unpack_from,
            places.header_bytes,
            places.magic,
            places.extras_bytes,
        )
        seqno_at, seqno_end, live = places.seqno_at, places.seqno_at + 8, places.live
        expiry_at, expiry_end = places.expiry_at, places.expiry_at + 4
        vbucket = change.vbucket
        newest = check_advance(change, before)
        by_seqno: list[Pair] = []
        by_key: dict[bytes, bytes] = {}
        timed: list[Pair] = []
        for record in change.records:
            try:
                its_magic, opcode, key_bytes, extras_bytes, its_vbucket, body_bytes, seqno = unpack(record)
            except struct_error:
                raise StoreError(f"vbucket {vbucket}: {len(record)} bytes are no record") from None
            if its_magic != magic or kinds.get(opcode) != extras_bytes or len(record) != header_bytes + body_bytes:
                raise StoreError(
                    f"vbucket {vbucket}: no record at seqno {seqno}, opcode {opcode:#04x}, {len(record)} bytes"
                )
            if its_vbucket != vbucket or not newest < seqno:
                raise StoreError(
                    f"vbucket {vbucket}, behind seqno {newest}: a record of vbucket {its_vbucket} with seqno {seqno}"
                )
            key_at = header_bytes + extras_bytes
            if not 0 < key_bytes <= layout.KEY_BYTES_MAX or key_at + key_bytes > len(record):
                raise StoreError(f"vbucket {vbucket}, seqno {seqno}: a key of {key_bytes} bytes")
            newest = seqno
            place = record[seqno_at:seqno_end]
            by_seqno.append((place, record))
            key = record[key_at : key_at + key_bytes]
            by_key[key] = place
            if opcode != live or record[expiry_at:expiry_end] != NO_EXPIRY:
                timed.append((key, record))
        if len(by_key) != len(by_seqno):
            raise StoreError(
                f"vbucket {vbucket}: a key is there twice among {len(by_seqno)} records of one transaction"
            )
        if newest > change.now.high_seqno:
            raise StoreError(
                f"vbucket {vbucket}: a record with seqno {newest} above the high seqno {change.now.high_seqno}"
            )
        return by_seqno, by_key, timed

    def _drop_older(self, txn: lmdb.Transaction[bytes], vbucket: int, older: list[Pair]) -> list[bytes]:
        """Drop the records that new ones of the same keys replace, and give them."""
        by_seqno = self._environment.handles.by_seqno[vbucket]
        pop = txn.pop
        replaced = []
        for key, seqno in older:
            record = pop(seqno, db=by_seqno)
            if record is None:
                raise StoreError(f"vbucket {vbucket}: key {key!r} has seqno {_seqno(seqno)}, where no record is")
            self._drop_entry(txn, vbucket, key, record)
            replaced.append(record)
        return replaced

    def _drop_entry(self, txn: lmdb.Transaction[bytes], vbucket: int, key: bytes, record: bytes) -> None:
        """Drop what the indexes of times have of a record."""
        places = self.places
        if record[1] == places.live:
            expiry = record[places.expiry_at : places.expiry_at + 4]
            if expiry != NO_EXPIRY:
                txn.delete(expiry + layout.VBUCKET.pack(vbucket) + key, db=self._environment.handles.expiries)
            return
        txn.delete(self._tombstone_key(vbucket, record), db=self._environment.handles.tombstones)

    def _tombstone_key(self, vbucket: int, record: bytes) -> bytes:
        places = self.places
        return (
            record[places.delete_time_at : places.delete_time_at + 4]
            + layout.VBUCKET.pack(vbucket)
            + record[places.seqno_at : places.seqno_at + 8]
        )

    def _index(self, txn: lmdb.Transaction[bytes], vbucket: int, timed: list[Pair]) -> None:
        """Put what the indexes of times have of new records."""
        places = self.places
        place = layout.VBUCKET.pack(vbucket)
        expiries: list[Pair] = []
        tombstones: list[Pair] = []
        for key, record in timed:
            if record[1] == places.live:
                expiries.append((record[places.expiry_at : places.expiry_at + 4] + place + key, b""))
            else:
                tombstones.append((self._tombstone_key(vbucket, record), key))
        for entries, database in (
            (expiries, self._environment.handles.expiries),
            (tombstones, self._environment.handles.tombstones),
        ):
            if entries:
                entries.sort()
                txn.cursor(database).putmulti(entries)

    def _key(self, record: bytes) -> bytes:
        _, _, key_bytes, extras_bytes, *_ = self._head.unpack_from(record)
        key_at = self.places.header_bytes + extras_bytes
        return record[key_at : key_at + key_bytes]

    def _delete_vbucket(self, txn: lmdb.Transaction[bytes], vbucket: VBucketId) -> None:
        self._empty(txn, vbucket)
        txn.delete(layout.VBUCKET.pack(vbucket), db=self._environment.handles.vbuckets)

    def _empty(self, txn: lmdb.Transaction[bytes], vbucket: VBucketId) -> None:
        """Drop all records of a vbucket, and what could bring older ones back."""
        handles = self._environment.handles
        for record in txn.cursor(handles.by_seqno[vbucket]).iternext(keys=False, values=True):
            self._drop_entry(txn, vbucket, self._key(record), record)
        txn.drop(handles.by_seqno[vbucket], delete=False)
        txn.drop(handles.by_key[vbucket], delete=False)
        self._undo(txn).forget(vbucket)

    def _rollback(self, txn: lmdb.Transaction[bytes], vbucket: VBucketId, to: int) -> VBucketRecord:
        place = layout.VBUCKET.pack(vbucket)
        stored = txn.get(place, db=self._environment.handles.vbuckets)
        if stored is None:
            raise StoreError(f"vbucket {vbucket} is not there and cannot be rolled back")
        before = layout.decode_vbucket(stored)
        if before.is_whole and before.high_seqno <= to:
            return before
        undo = self._undo(txn)
        boundary = undo.boundary(vbucket, to)
        if boundary is None:
            self._empty(txn, vbucket)
            now = rolled_back(before, 0, 0)
        else:
            now = rolled_back(before, boundary.seqno, undo.live_items(boundary))
            self._drop_above(txn, vbucket, boundary.seqno)
            for record in undo.take_back(boundary, self.places):
                self._put_back(txn, vbucket, record)
        txn.put(place, layout.encode_vbucket(now), db=self._environment.handles.vbuckets)
        return now

    def _drop_above(self, txn: lmdb.Transaction[bytes], vbucket: int, seqno: int) -> None:
        """Drop every record above a seqno."""
        handles = self._environment.handles
        cursor = txn.cursor(handles.by_seqno[vbucket])
        found = cursor.set_range(layout.SEQNO.pack(seqno + 1))
        while found:
            record = cursor.value()
            key = self._key(record)
            self._drop_entry(txn, vbucket, key, record)
            txn.delete(key, db=handles.by_key[vbucket])
            cursor.delete()
            found = bool(cursor.key())

    def _put_back(self, txn: lmdb.Transaction[bytes], vbucket: int, record: bytes) -> None:
        """Make a record that was replaced the newest of its key again."""
        places, handles = self.places, self._environment.handles
        key, place = self._key(record), record[places.seqno_at : places.seqno_at + 8]
        txn.put(place, record, db=handles.by_seqno[vbucket])
        txn.put(key, place, db=handles.by_key[vbucket])
        if record[1] != places.live or record[places.expiry_at : places.expiry_at + 4] != NO_EXPIRY:
            self._index(txn, vbucket, [(key, record)])

    def _high_seqno(self, txn: lmdb.Transaction[bytes], vbucket: int) -> int:
        """The newest change on disk. Its record is never purged: a snapshot of the disk ends with it."""
        stored = txn.get(layout.VBUCKET.pack(vbucket), db=self._environment.handles.vbuckets)
        if stored is None:
            raise StoreError(f"vbucket {vbucket} has tombstones and is not there")
        return layout.decode_vbucket(stored).high_seqno

    def _purge(
        self, txn: lmdb.Transaction[bytes], vbucket: VBucketId | None, deleted_before: int, limit: int
    ) -> dict[VBucketId, Seqno]:
        handles = self._environment.handles
        doomed: list[tuple[bytes, bytes, int, int]] = []
        for entry, key in txn.cursor(handles.tombstones):
            delete_time, its_vbucket, seqno = layout.TOMBSTONE.unpack(entry)
            if delete_time >= deleted_before or len(doomed) >= limit:
                break
            if (vbucket is None or its_vbucket == vbucket) and seqno != self._high_seqno(txn, its_vbucket):
                doomed.append((entry, key, its_vbucket, seqno))
        purged: dict[VBucketId, Seqno] = {}
        for entry, key, its_vbucket, seqno in doomed:
            txn.delete(entry, db=handles.tombstones)
            txn.delete(entry[-8:], db=handles.by_seqno[its_vbucket])
            txn.delete(key, db=handles.by_key[its_vbucket])
            purged[VBucketId(its_vbucket)] = max(purged.get(VBucketId(its_vbucket), Seqno(0)), Seqno(seqno))
        for its_vbucket, seqno in purged.items():
            place = layout.VBUCKET.pack(its_vbucket)
            stored = txn.get(place, db=handles.vbuckets)
            if stored is None:
                raise StoreError(f"vbucket {its_vbucket} has tombstones and is not there")
            before = layout.decode_vbucket(stored)
            purged[its_vbucket] = max(before.purge_seqno, seqno)
            after = replace(before, purge_seqno=purged[its_vbucket])
            txn.put(place, layout.encode_vbucket(after), db=handles.vbuckets)
        return purged


def check_advance(change: Changes, before: VBucketRecord | None) -> Seqno:
    """Refuse a vbucket that would go back; give the seqno behind which its new records are."""
    high = before.high_seqno if before else Seqno(0)
    if change.now.high_seqno < high:
        raise StoreError(f"vbucket {change.vbucket} would go back from seqno {high} to {change.now.high_seqno}")
    return high


def merged(before: VBucketRecord | None, now: VBucketRecord) -> VBucketRecord:
    """What is kept of a vbucket: what it is now, but a purge seqno that rose meanwhile does not fall again."""
    if before is None or before.purge_seqno <= now.purge_seqno:
        return now
    return replace(now, purge_seqno=before.purge_seqno)


def _seqno(place: bytes) -> int:
    seqno: int = layout.SEQNO.unpack(place)[0]
    return seqno
