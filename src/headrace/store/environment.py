"""One LMDB environment: opening, the size of its map, its handles, and LMDB's errors as ours.

LMDB must not be open twice in one process for the same files, so a writer and a reader of one process share one of
these (`open_store`); a writer in a process of its own and a reader in another each have theirs.

The map. LMDB maps the file into memory at a size chosen when it is opened, and cannot write past it. A map costs
address space, not memory, so it is made as large as the file system: the disk is full before the map is. Where that is
not so (a limit on address space, a file system that grew) the writer doubles the map when a transaction does not fit
and repeats the transaction; a reader that finds the file larger than its map adopts the new size. Neither may be done
while this process has a transaction open, because the map may move. A reader makes its map larger than any writer's to
begin with, so that it does not come to that; if it does, it refuses new snapshots until the old ones are closed.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

import lmdb

from headrace import __version__
from headrace.spares import Spares
from headrace.store import layout, residency
from headrace.store.contract import FormatError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Database = lmdb._Database  # noqa: SLF001 - the class has no other name

READERS_MAX = 2048
"""Snapshots open at the same time, in all processes."""
MAP_BYTES_MIN = 1 << 20
MAP_BYTES_MAX = 1 << 45
READER_MAP_FACTOR = 4
BLOCKS_KEPT = 12
"""Blocks of what streams read that are used again: as many as wait for a socket, and one more."""
TRIM_BYTES = 64 << 20
"""After how much that was read the process looks at how many pages it has mapped."""


class Handles(NamedTuple):
    """The databases of a store, opened."""

    meta: Database
    vbuckets: Database
    expiries: Database
    tombstones: Database
    by_seqno: list[Database]
    by_key: list[Database]
    undo: Database | None
    """For writers alone: a reader of version 1 would find none."""


class Environment:
    """The files of a store, opened by this process. `lmdb` and `handles` change when it must be opened again."""

    def __init__(self, path: Path, *, readonly: bool, map_bytes: int | None = None) -> None:
        self.path = path
        self.data_file = path / layout.DATA_FILE
        self.readonly = readonly
        self.open_snapshots: set[object] = set()
        self.before_remap: Callable[[], None] = lambda: None
        """Called before the map may move: whoever holds a transaction that may be begun anew lets go of it."""
        self._map_bytes = map_bytes or _file_system_bytes(path) * (READER_MAP_FACTOR if readonly else 1)
        self._users = 1
        self._seen_bytes = 0
        self.blocks = Spares(bytearray, BLOCKS_KEPT)
        """Memory for what streams read."""
        self.lmdb, self.handles = self._open()

    def _open(self) -> tuple[lmdb.Environment, Handles]:
        with store_errors("open", self.path):
            opened = self._map()
        try:
            with store_errors("open", self.path):
                opened.reader_check()
                if not self.readonly:
                    _make_store(opened)
                return opened, _handles(opened, self.path, readonly=self.readonly)
        except BaseException:
            opened.close()
            raise

    def _map(self) -> lmdb.Environment:
        size = min(max(self._map_bytes, MAP_BYTES_MIN), MAP_BYTES_MAX)
        while True:
            try:
                opened = lmdb.Environment(
                    str(self.path),
                    map_size=size,
                    readonly=self.readonly,
                    create=False,
                    max_dbs=layout.DATABASES_MAX,
                    max_readers=READERS_MAX,
                )
            except lmdb.MemoryError:
                if size <= MAP_BYTES_MIN:
                    raise
                size //= 2
            else:
                self._map_bytes = size
                return opened

    def begin_write(self) -> lmdb.Transaction[bytes]:
        """Start to write; opened again first when LMDB has given up on itself after a failed write of its root."""
        try:
            return self.lmdb.begin(write=True)
        except lmdb.PanicError:
            self.reopen()
            return self.lmdb.begin(write=True)

    def begin_read(self) -> lmdb.Transaction[bytes]:
        """Start to read what was committed last."""
        with store_errors("read", self.path):
            try:
                return self.lmdb.begin()
            except lmdb.MapResizedError:
                self._remap(0)
                return self.lmdb.begin()
            except lmdb.PanicError:
                self.reopen()
                return self.lmdb.begin()

    def grow(self) -> None:
        """Make the map twice as large, for a transaction that did not fit."""
        if self._map_bytes >= MAP_BYTES_MAX:
            raise StoreError(f"the store in {self.path} is larger than {MAP_BYTES_MAX} bytes")
        self._remap(2 * self._map_bytes)

    def _remap(self, size: int) -> None:
        if self.open_snapshots:
            raise StoreError(
                f"the store in {self.path} has outgrown its map of {self._map_bytes} bytes, which cannot be moved "
                f"while {len(self.open_snapshots)} snapshots are open in this process; try again when they are closed"
            )
        self.before_remap()
        try:
            self.lmdb.set_mapsize(size)
        except lmdb.Error as error:
            self.reopen()
            raise StoreError(
                f"the store in {self.path} needs a map larger than {self._map_bytes} bytes: {error}"
            ) from error
        self._map_bytes = self.lmdb.info()["map_size"]

    def reopen(self) -> None:
        """Close and open again; snapshots that were open are of no more use, and say so."""
        self.before_remap()
        self.lmdb.close()
        self.lmdb, self.handles = self._open()

    def seen(self, size: int) -> None:
        """So many bytes were read from mapped pages: after many of them, see how much is mapped."""
        self._seen_bytes += size
        if self._seen_bytes >= TRIM_BYTES:
            self.trim()

    def trim(self) -> None:
        """Let go of mapped pages when they are many."""
        self._seen_bytes = 0
        residency.trim(self.data_file)

    def share(self) -> Environment:
        """One user more; the files are closed when each has closed."""
        self._users += 1
        return self

    def close(self) -> None:
        """One user less."""
        self._users -= 1
        if self._users == 0:
            self.lmdb.close()


@contextlib.contextmanager
def store_errors(what: str, path: Path) -> Iterator[None]:
    """Say LMDB's errors, and the system's, as ours.

    With the room on the file system: LMDB calls it an input/output error when a write was cut short by a full disk.
    """
    try:
        yield
    except (lmdb.Error, OSError) as error:
        try:
            system = os.statvfs(path)
        except OSError:
            room = ""
        else:
            room = f" (the file system has {system.f_bavail * system.f_frsize} bytes free)"
        raise StoreError(f"cannot {what} the store in {path}: {error}{room}") from error


def prepare_directory(path: Path) -> None:
    """Make the directory of a store that is to be; one that cannot be written to is refused here, by name."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(f"{path} is not a directory, so no store can be in it") from error
    except OSError as error:
        raise StoreError(f"cannot make the directory {path} for a store: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StoreError(f"the directory {path} is not writable, so no store can be kept in it")


def require_store(path: Path) -> None:
    """Refuse a place where no store is."""
    if not path.is_dir():
        raise StoreError(f"there is no store in {path}: it is not a directory")
    if not (path / layout.DATA_FILE).is_file():
        raise StoreError(f"there is no store in {path}: it has no file {layout.DATA_FILE}")


def _file_system_bytes(path: Path) -> int:
    with store_errors("open", path):
        system = os.statvfs(path)
    return system.f_blocks * system.f_frsize


def _make_store(opened: lmdb.Environment) -> None:
    """Make all databases, unless some are there: a store is made in one transaction or not at all."""
    with opened.begin(write=True) as txn:
        if txn.stat()["entries"]:
            _upgrade(opened, txn)
            return
        meta = opened.open_db(layout.META, txn=txn)
        for name in (*layout.database_names(), layout.UNDO_DATABASE):
            opened.open_db(name, txn=txn)
        txn.put(layout.META_FORMAT, b"%d" % layout.FORMAT_VERSION, db=meta)
        txn.put(layout.META_MADE_BY, f"headrace {__version__}".encode(), db=meta)
        txn.put(layout.META_MADE_AT, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode(), db=meta)


def _upgrade(opened: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> None:
    """Give a store of version 1 what version 2 has besides; whatever else it may be is refused by who reads it."""
    try:
        meta = opened.open_db(layout.META, txn=txn, create=False)
    except (lmdb.NotFoundError, lmdb.IncompatibleError):
        return
    if txn.get(layout.META_FORMAT, db=meta) == b"1":
        opened.open_db(layout.UNDO_DATABASE, txn=txn)
        txn.put(layout.META_FORMAT, b"%d" % layout.FORMAT_VERSION, db=meta)


def _handles(opened: lmdb.Environment, path: Path, *, readonly: bool) -> Handles:
    """Check the format and open every database.

    Each in a transaction of its own: py-lmdb keeps no handle that was opened in a read transaction given to it.
    """
    _check_format(opened, path)
    databases = [opened.open_db(name, create=False) for name in layout.database_names()]
    meta, vbuckets, expiries, tombstones, *of_vbuckets = databases
    return Handles(
        meta=meta,
        vbuckets=vbuckets,
        expiries=expiries,
        tombstones=tombstones,
        by_seqno=of_vbuckets[: layout.VBUCKETS_MAX],
        by_key=of_vbuckets[layout.VBUCKETS_MAX :],
        undo=None if readonly else opened.open_db(layout.UNDO_DATABASE, create=False),
    )


def _check_format(opened: lmdb.Environment, path: Path) -> None:
    try:
        meta = opened.open_db(layout.META, create=False)
    except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
        raise StoreError(f"{path} holds an LMDB environment that is no store of headrace") from error
    with opened.begin() as txn:
        version = txn.get(layout.META_FORMAT, db=meta)
    if version is None or not version.isdigit():
        raise StoreError(f"{path} holds an LMDB environment that is no store of headrace: it names no format")
    if int(version) not in layout.FORMATS_KNOWN:
        known = ", ".join(map(str, layout.FORMATS_KNOWN))
        raise FormatError(
            f"the store in {path} has format {int(version)}, and headrace {__version__} knows {known}. "
            f"Open it with the version of headrace that wrote it or a newer one, or start with an empty directory."
        )
