"""A vbucket read from disk for a stream: its records behind a seqno, in blocks, as one snapshot has them.

A stream sends records as they lie on disk, so nothing here looks at one of them: they are copied from the pages, or,
where that cannot be (see pages.py), taken by a cursor some at a time and joined. How many make a block is guessed then
from those before. A guess may be wrong by the largest record there is, so where there may be large ones few are taken
at a time.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import lmdb

from headrace.store import layout, pages
from headrace.store.contract import StoreError, VBucketRecord
from headrace.store.pages import PageWalk, walk_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.ids import VBucketId
    from headrace.store.environment import Environment

RECORD_BYTES_GUESS = 512
"""What a record may have, before one was seen."""
SMALL_AT_ONCE = 4096
LARGE_AT_ONCE = 4
"""How many records are taken before their size is looked at: LMDB tells whether there are any above 2 KB."""


class Backfill:
    """The records of one vbucket behind a seqno. Keeps old pages of the store from being used again until closed.

    `vbucket` is what the disk had of the vbucket then. If that is not whole (`is_whole`), a replica is in the middle of
    a snapshot, and what is on disk is no state that its producer ever had.
    """

    def __init__(self, environment: Environment, vbucket: VBucketId, after: int) -> None:
        self._environment = environment
        self._path = environment.path
        self._has_begun = False
        self._record_bytes = RECORD_BYTES_GUESS
        self._at_once = LARGE_AT_ONCE
        self._txn: lmdb.Transaction[bytes] | None = environment.begin_read()
        environment.open_snapshots.add(self)
        try:
            self.vbucket = self._vbucket(vbucket)
            self._id, self._first = vbucket, after + 1
            self._records: Iterator[bytes] | None = None
            self._walk = walk_from(environment, self._txn, layout.by_seqno_name(vbucket), after + 1)
        except BaseException:
            self.close()
            raise

    @property
    def high_seqno(self) -> int:
        """The seqno up to which the blocks tell all that changed."""
        return self.vbucket.high_seqno

    @property
    def is_whole(self) -> bool:
        """Whether what is on disk is a state that the vbucket had."""
        return self.vbucket.is_whole

    def block(self, bytes_max: int) -> bytearray | memoryview:
        """Whole records by ascending seqno, about so many bytes of them and at least one; nothing at the end.

        Nobody else writes to them for as long as somebody has them.
        """
        if self._txn is None:
            raise StoreError(f"cannot read the store in {self._path}: the backfill is closed")
        block = self._joined(bytes_max) if self._walk is None else self._walked(self._walk, bytes_max)
        self._environment.seen(len(block))
        return block

    def _walked(self, walk: PageWalk, bytes_max: int) -> bytearray | memoryview:
        """A block from the pages themselves."""
        if walk.outcome == pages.END:
            return bytearray()
        room = self._environment.blocks.take(bytes_max)
        size = walk.fill(room, bytes_max)
        if walk.outcome == pages.TOO_LARGE:
            room, bytes_max = bytearray(size), size
            size = walk.fill(room, bytes_max)
        if walk.outcome == pages.BAD and not size and not self._has_begun:
            self._walk = None  # LMDB's own cursor has to say what is wrong, if anything is
            return self._joined(bytes_max)
        if walk.outcome == pages.BAD:
            raise StoreError(f"the store in {self._path} is damaged: a page of a vbucket cannot be read")
        self._has_begun = True
        return memoryview(room)[:size]

    def _joined(self, bytes_max: int) -> bytearray:
        """A block by a cursor."""
        parts: list[bytes] = []
        size = 0
        if self._records is None:
            self._records = self._from(self._id, self._first)
        try:
            while not parts or size + self._record_bytes <= bytes_max:
                count = min(self._at_once, max(1, (bytes_max - size) // self._record_bytes))
                records = list(islice(self._records, count))
                if not records:
                    break
                part = b"".join(records)
                parts.append(part)
                size += len(part)
                self._record_bytes = len(part) // len(records)
        except lmdb.Error as error:
            raise StoreError(f"cannot read the store in {self._path}: {error}") from error
        return bytearray().join(parts)

    def close(self) -> None:
        """Let go of the state; may be called twice."""
        txn, self._txn = self._txn, None
        if txn is not None:
            self._records = iter(())
            self._environment.open_snapshots.discard(self)
            txn.abort()

    def _vbucket(self, vbucket: VBucketId) -> VBucketRecord:
        assert self._txn is not None
        try:
            value = self._txn.get(layout.VBUCKET.pack(vbucket), db=self._environment.handles.vbuckets)
            if value is None:
                raise StoreError(f"the store in {self._path} has no vbucket {vbucket}")
            return layout.decode_vbucket(value)
        except lmdb.Error as error:
            raise StoreError(f"cannot read the store in {self._path}: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the store in {self._path} is damaged: its vbucket {vbucket} is {value!r}") from error

    def _from(self, vbucket: VBucketId, first: int) -> Iterator[bytes]:
        assert self._txn is not None
        if first > layout.SEQNO_MAX:
            return iter(())
        try:
            database = self._environment.handles.by_seqno[vbucket]
            if not self._txn.stat(database)["overflow_pages"]:
                self._at_once = SMALL_AT_ONCE
            cursor = self._txn.cursor(database)
            if not cursor.set_range(layout.SEQNO.pack(first)):
                return iter(())
        except lmdb.Error as error:
            raise StoreError(f"cannot read the store in {self._path}: {error}") from error
        return cursor.iternext(keys=False, values=True)
