"""The store on LMDB, as other packages use it: a writer, a reader, or both of one process.

How the parts share the work: `layout` says what is on disk, `environment` opens it, `writing` changes it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from headrace.ids import Seqno, VBucketId
from headrace.store import layout
from headrace.store.backfill import Backfill
from headrace.store.contract import Expiring, StoreError, VBucketRecord
from headrace.store.environment import Environment, prepare_directory, require_store
from headrace.store.records import PLACES, SEQNO_AT, SEQNO_END
from headrace.store.writing import StoreWriter

if TYPE_CHECKING:
    import os
    from collections.abc import Container, Iterator

BLOCK_BYTES = 1 << 20
"""What a stream from disk takes at a time, unless told."""
TRIM_BYTES = 64 << 20
"""After how much of a stream the process looks at how many pages it has mapped."""


class LmdbWriter(StoreWriter):
    """Writes to the store in a directory from this process, and makes it if there is none.

    `map_bytes` is the size of the map to begin with; by default that of the file system.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        map_bytes: int | None = None,
        *,
        environment: Environment | None = None,
    ) -> None:
        super().__init__(Path(path), PLACES, map_bytes=map_bytes, environment=environment)


class LmdbSnapshot:
    """One state of the store. Closed by the `with` of `LmdbReader.snapshot`; it keeps old pages from being reused."""

    def __init__(self, environment: Environment) -> None:
        self._path = environment.path
        self._trim = environment.trim
        self._handles = environment.handles
        self._txn = environment.begin_read()

    def close(self) -> None:
        """Let go of the state; nothing can be read after."""
        self._txn.abort()
        self._trim()

    def vbucket(self, vbucket: VBucketId) -> VBucketRecord | None:
        """What is kept of a vbucket; None for one that is not there."""
        try:
            value = self._txn.get(layout.VBUCKET.pack(vbucket), db=self._handles.vbuckets)
        except lmdb.Error as error:
            raise self._failure(error) from error
        return None if value is None else self._decoded(vbucket, value)

    def vbuckets(self) -> dict[VBucketId, VBucketRecord]:
        """All of them, by ascending id."""
        try:
            found = {layout.vbucket_id(key): value for key, value in self._txn.cursor(self._handles.vbuckets)}
        except lmdb.Error as error:
            raise self._failure(error) from error
        return {vbucket: self._decoded(vbucket, value) for vbucket, value in found.items()}

    def get(self, vbucket: VBucketId, key: bytes) -> bytes | None:
        """The newest record of a key, which may be a tombstone."""
        if not 0 < len(key) <= layout.KEY_BYTES_MAX or not 0 <= vbucket < layout.VBUCKETS_MAX:
            return None
        try:
            seqno = self._txn.get(key, db=self._handles.by_key[vbucket])
            if seqno is None:
                return None
            record = self._txn.get(seqno, b"", db=self._handles.by_seqno[vbucket])
        except lmdb.Error as error:
            raise self._failure(error) from error
        damage = PLACES.damage(record, vbucket=vbucket, key=key, seqno=seqno)
        if damage:
            raise StoreError(
                f"the store in {self._path} is damaged: the record of key {key!r} in vbucket {vbucket}, "
                f"seqno {int.from_bytes(seqno)}: {damage}"
            )
        return record

    def records(self, vbucket: VBucketId, *, first: int = 0, last: int | None = None) -> Iterator[bytes]:
        """Records by ascending seqno, from `first` to `last`, both among them."""
        end = layout.SEQNO.pack(layout.SEQNO_MAX if last is None else max(0, min(last, layout.SEQNO_MAX)))
        try:
            for record in self._from(vbucket, first):
                if record[SEQNO_AT:SEQNO_END] > end:
                    return
                yield record
        except lmdb.Error as error:
            raise self._failure(error) from error

    def records_joined(
        self,
        vbucket: VBucketId,
        first: int = 0,
        last: int | None = None,
        chunk_bytes: int = BLOCK_BYTES,
    ) -> Iterator[bytes]:
        """The same records in blocks: whole records, as many as pass `chunk_bytes`, one behind the other."""
        block: list[bytes] = []
        append = block.append
        size = since_trim = 0
        for record in self.records(vbucket, first=first, last=last):
            append(record)
            size += len(record)
            if size >= chunk_bytes:
                yield b"".join(block)
                block.clear()
                since_trim += size
                size = 0
                if since_trim >= TRIM_BYTES:
                    self._trim()
                    since_trim = 0
        if block:
            yield b"".join(block)

    def keys(self, vbucket: VBucketId, *, after: bytes = b"", limit: int) -> list[tuple[bytes, Seqno]]:
        """Keys in byte order behind `after`, with the seqno of their newest record; tombstones among them."""
        found: list[tuple[bytes, Seqno]] = []
        if not 0 <= vbucket < layout.VBUCKETS_MAX:
            return found
        try:
            cursor = self._txn.cursor(self._handles.by_key[vbucket])
            # No key is between `after` and `after` with a zero byte behind it.
            if cursor.set_range(after + b"\0"):
                for key, seqno in cursor:
                    if len(found) >= limit:
                        break
                    found.append((key, Seqno(layout.SEQNO.unpack(seqno)[0])))
        except lmdb.Error as error:
            raise self._failure(error) from error
        return found

    def expired(self, *, now: int, limit: int, of: Container[int] | None = None) -> list[Expiring]:
        """Live items whose expiry is not after `now`, oldest first; of all vbuckets unless told of which."""
        found: list[Expiring] = []
        try:
            for entry in self._txn.cursor(self._handles.expiries).iternext(keys=True, values=False):
                expiry, vbucket = layout.EXPIRY_HEAD.unpack_from(entry)
                if expiry > now or len(found) >= limit:
                    break
                if of is None or vbucket in of:
                    key = entry[layout.EXPIRY_HEAD.size :]
                    found.append(Expiring(vbucket=VBucketId(vbucket), key=key, expiry=expiry))
        except lmdb.Error as error:
            raise self._failure(error) from error
        return found

    def _from(self, vbucket: int, first: int) -> Iterator[bytes]:
        if not 0 <= vbucket < layout.VBUCKETS_MAX or first > layout.SEQNO_MAX:
            return iter(())
        cursor = self._txn.cursor(self._handles.by_seqno[vbucket])
        if not cursor.set_range(layout.SEQNO.pack(max(first, 0))):
            return iter(())
        return cursor.iternext(keys=False, values=True)

    def _decoded(self, vbucket: int, value: bytes) -> VBucketRecord:
        try:
            return layout.decode_vbucket(value)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the store in {self._path} is damaged: its vbucket {vbucket} is {value!r}") from error

    def _failure(self, error: lmdb.Error) -> StoreError:
        return StoreError(f"cannot read the store in {self._path}: {error}")


class LmdbReader:
    """Reads the store in a directory, which a writer has made.

    Its own methods are called from one thread; a snapshot that it gives may be used in another.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        map_bytes: int | None = None,
        *,
        environment: Environment | None = None,
    ) -> None:
        self._path = Path(path)
        if environment is None:
            require_store(self._path)
            environment = Environment(self._path, readonly=True, map_bytes=map_bytes)
        self._environment = environment
        self._latest: LmdbSnapshot | None = None
        self._is_open = True
        environment.before_remap = self._drop_latest

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[LmdbSnapshot]:
        """Take a snapshot of now."""
        self._require_open()
        snapshot = LmdbSnapshot(self._environment)
        self._environment.open_snapshots.add(snapshot)
        try:
            yield snapshot
        finally:
            self._environment.open_snapshots.discard(snapshot)
            snapshot.close()

    def backfill(self, vbucket: VBucketId, after: int) -> Backfill:
        """Take a snapshot of now for one stream of one vbucket; whoever takes it closes it."""
        self._require_open()
        return Backfill(self._environment, vbucket, after)

    @property
    def latest(self) -> LmdbSnapshot:
        """A snapshot for single lookups that stays open, and moves when `refresh` says so."""
        if self._latest is None:
            self._require_open()
            self._latest = LmdbSnapshot(self._environment)
        return self._latest

    def refresh(self) -> None:
        """Move `latest` to what was committed last; the snapshot that it gave before is closed."""
        self._drop_latest()
        self._require_open()
        self._latest = LmdbSnapshot(self._environment)

    def close(self) -> None:
        """Let go of the files; all snapshots end with them."""
        if self._is_open:
            self._is_open = False
            self._drop_latest()
            self._environment.close()

    def _drop_latest(self) -> None:
        if self._latest is not None:
            self._latest.close()
            self._latest = None

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreError(f"cannot read the store in {self._path}: it is closed")


def open_store(path: str | os.PathLike[str], map_bytes: int | None = None) -> tuple[LmdbWriter, LmdbReader]:
    """A writer and a reader in one process, which share what LMDB lets a process open but once. Close both."""
    prepare_directory(Path(path))
    environment = Environment(Path(path), readonly=False, map_bytes=map_bytes)
    return (
        LmdbWriter(path, environment=environment),
        LmdbReader(path, environment=environment.share()),
    )
