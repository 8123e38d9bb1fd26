"""Which vbuckets had acknowledged changes that were not on disk yet, as far as anybody can know after a crash.

The node acknowledges from memory and flushes behind. When it ends without flushing, a vbucket that had something to
flush may have lost it and needs a new UUID, so that who saw the lost changes is told to roll back. A vbucket that had
nothing to flush has lost nothing, and a new UUID for it would make all its consumers ask for nothing. So the node marks
a vbucket before it acknowledges, and clears the mark when all it acknowledged is on disk.

A mark is one byte in a mapped file, because it is set on the path of every write: to store a byte costs nothing, and
what was stored in a mapped file survives the process, however it ended: the pages are the system's, not the process's.
They do not survive the machine, though, unless synced. Hence the header, which is synced when the file is opened and
when it is closed::

    0   8  magic "hrunfl01"
    8   4  number of vbuckets, big-endian
   12   1  clean: 1 after a close that synced all marks, 0 while in use
   13   3  nothing
   16  36  the boot id of the kernel under which it was opened, in text; zeros where the system has none
   52   4  CRC-32 of what is before
   56   8  nothing
   64   n  the marks, one byte per vbucket

At the next opening, a clean file and one left by a process that died under the same kernel say the truth: what is
marked may have lost changes. With another boot id the machine went down, marks may be lost with it, and any vbucket may
have lost changes. The same holds when the file is missing beside a store or cannot be read.

A mark found at opening stays, because the loss is not dealt with yet: who gives the vbucket its new UUID clears it when
that is on disk. If the process dies before, the mark is found again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import zlib
from pathlib import Path
from struct import Struct

from headrace.ids import VBucketId
from headrace.store.contract import StoreError
from headrace.store.layout import DATA_FILE

UNFLUSHED_FILE = "unflushed"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")

MAGIC = b"hrunfl01"
_FACTS = Struct(">8sIB3x36s")
_CRC = Struct(">I")
MARKS_AT = 64


def boot_id() -> bytes:
    """What changes whenever the machine starts; empty where the system does not say."""
    try:
        return BOOT_ID_FILE.read_bytes().strip()[:36]
    except OSError:
        return b""


class Unflushed:
    """The marks of the vbuckets in a data directory. `marks[vbucket] = 1` and `= 0` are all that a hot path needs."""

    def __init__(self, path: str | os.PathLike[str], vbuckets: int) -> None:
        directory = Path(path)
        self._vbuckets = vbuckets
        self._boot_id = boot_id().ljust(36, b"\0")
        size = MARKS_AT + vbuckets
        file = directory / UNFLUSHED_FILE
        everything = b"\1" * vbuckets
        try:
            directory.mkdir(parents=True, exist_ok=True)
            is_there = file.exists()
            has_store = any(True for pattern in (DATA_FILE, f"*/{DATA_FILE}") for _ in directory.glob(pattern))
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                found = self._trusted(os.pread(fd, size + 1, 0)) if is_there else None
                if found is None:
                    found = everything if is_there or has_store else bytes(vbuckets)
                # Blocks are taken now: a mapped page without one ends the process when the disk is full.
                os.ftruncate(fd, size)
                os.pwrite(fd, found, MARKS_AT)
                self._header(fd, clean=False)
                self._map = mmap.mmap(fd, size)
            finally:
                os.close(fd)
            _sync_directory(directory)
        except OSError as error:
            raise StoreError(f"cannot keep marks in {file}: {error.strerror}") from error
        self._file = file
        self.marks = memoryview(self._map)[MARKS_AT:size]
        """One byte per vbucket: other than 0 while it has acknowledged changes that are not on disk."""
        self.may_have_lost = frozenset(VBucketId(vbucket) for vbucket in range(vbuckets) if found[vbucket])
        """The vbuckets that may have lost acknowledged changes before this opening."""

    def mark(self, vbucket: VBucketId) -> None:
        """Say that a change is about to be acknowledged that is not on disk."""
        self.marks[vbucket] = 1

    def clear(self, vbucket: VBucketId) -> None:
        """Say that all that was acknowledged is on disk."""
        self.marks[vbucket] = 0

    def close(self, *, clean: bool = True) -> None:
        """Sync the marks and say that they can be trusted; not `clean` leaves the file as a crash would."""
        if self._map.closed:
            return
        self.marks.release()
        try:
            if clean:
                self._map.flush()
                with contextlib.closing(self._map), self._file.open("r+b") as file:
                    self._header(file.fileno(), clean=True)
        except OSError as error:
            raise StoreError(f"cannot close the marks in {self._file}: {error.strerror}") from error
        finally:
            self._map.close()

    def _header(self, fd: int, *, clean: bool) -> None:
        facts = _FACTS.pack(MAGIC, self._vbuckets, clean, self._boot_id)
        os.pwrite(fd, facts + _CRC.pack(zlib.crc32(facts)), 0)
        os.fsync(fd)

    def _trusted(self, content: bytes) -> bytes | None:
        """The marks in a file, if they can be believed."""
        if len(content) != MARKS_AT + self._vbuckets:
            return None
        facts = content[: _FACTS.size]
        magic, vbuckets, clean, boot = _FACTS.unpack(facts)
        if magic != MAGIC or _CRC.pack(zlib.crc32(facts)) != content[_FACTS.size : _FACTS.size + _CRC.size]:
            return None
        same_kernel = boot == self._boot_id and any(boot)
        if vbuckets != self._vbuckets or not (clean or same_kernel):
            return None
        return content[MARKS_AT:]


def _sync_directory(directory: Path) -> None:
    """Make a new file's name durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
