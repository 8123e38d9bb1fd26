"""A disk that is full or fails: old contents stay, the error names the cause, and work goes on when it can."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from headrace.ids import VBucketId
from headrace.store import DictStore, LmdbReader, LmdbWriter, StoreError, WriterProcess
from tests.store.builders import batch
from tests.store.consistency import assert_consistent, assert_same
from tests.store.test_writer_process import pid_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VB = VBucketId(0)
# The second is what LMDB says of a write that was cut short; then the room that is left tells the cause.
FULL = r"No space left on device|Input/output error \(the file system has 0 bytes free\)"

# Fails the calls that LMDB makes to get a transaction onto the disk, for as long as a file is there: `data` for syncing
# pages, `root` for writing the page that says which of them count, which LMDB opens with O_DSYNC.
FAILING_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_failing(const char *name) {
    char path[4096] = "";
    const char *directory = getenv("FAILING_DISK");
    if (!directory || strlen(directory) > 4000) return 0;
    strcpy(path, directory); strcat(path, "/"); strcat(path, name);
    return access(path, F_OK) == 0;
}

int fdatasync(int fd) {
    if (is_failing("data")) { errno = EIO; return -1; }
    return ((int (*)(int)) dlsym(RTLD_NEXT, "fdatasync"))(fd);
}

static ssize_t checked(const char *name, int fd, const void *bytes, size_t size, off_t at) {
    if ((fcntl(fd, F_GETFL) & O_DSYNC) && is_failing("root")) { errno = EIO; return -1; }
    return ((ssize_t (*)(int, const void *, size_t, off_t)) dlsym(RTLD_NEXT, name))(fd, bytes, size, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) { return checked("pwrite", fd, bytes, size, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t at) { return checked("pwrite64", fd, bytes, size, at); }
"""


@pytest.fixture
def failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory where a file `data` or `root` makes the disk of new child processes fail."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to stand in for a failing disk")
    switches = tmp_path / "failing"
    switches.mkdir()
    library, source = tmp_path / "failing.so", tmp_path / "failing.c"
    source.write_text(FAILING_DISK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAILING_DISK", str(switches))
    return switches


@pytest.mark.parametrize("call", ["data", "root"])
def test_a_failing_sync_keeps_nothing_of_the_write(tmp_path: Path, failing_disk: Path, call: str) -> None:
    """An error of the disk at commit is an error of the write; the same child goes on when the disk does."""
    oracle = DictStore()
    writer = WriterProcess(tmp_path / "store")
    reader = LmdbReader(tmp_path / "store")
    pid = writer.pid
    high = 0
    for _ in range(3):
        good = [batch(VB, high + 1, 100)]
        writer.write(good)
        oracle.write(good)
        high += 100
        (failing_disk / call).touch()
        for _ in range(2):
            with pytest.raises(
                StoreError, match=rf"cannot write to the store in {tmp_path}/store: .*Input/output error"
            ):
                writer.write([batch(VB, high + 1, 100)])
        (failing_disk / call).unlink()
        with reader.snapshot() as snapshot, oracle.snapshot() as expected:
            assert_same(snapshot, expected)
    writer.write([batch(VB, high + 1, 1)])
    assert writer.pid == pid
    with reader.snapshot() as snapshot:
        assert_consistent(snapshot)
    reader.close()
    writer.close()


def fill(writer: WriterProcess | LmdbWriter, oracle: DictStore, why: str) -> int:
    """Write until the store takes no more; give the high seqno of what it took."""
    high = 0
    while True:
        some = [batch(VB, high + 1, 500)]
        try:
            writer.write(some)
        except StoreError as error:
            assert re.search(why, str(error))  # noqa: PT017 - how many writes go well before it is not known
            return high
        oracle.write(some)
        high += 500


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """At the limit of a file's size the write fails, what was there stays, and more fits when the limit is lifted."""
    oracle = DictStore()
    writer = WriterProcess(tmp_path)
    reader = LmdbReader(tmp_path)
    _, hard = resource.prlimit(pid_of(writer), resource.RLIMIT_FSIZE)
    resource.prlimit(pid_of(writer), resource.RLIMIT_FSIZE, (2 << 20, hard))
    high = fill(writer, oracle, r"File too large|Input/output error")
    with reader.snapshot() as snapshot, oracle.snapshot() as expected:
        assert_same(snapshot, expected)
    resource.prlimit(pid_of(writer), resource.RLIMIT_FSIZE, (hard, hard))
    writer.write([batch(VB, high + 1, 5000)])
    with reader.snapshot() as snapshot:
        assert_consistent(snapshot)
    reader.close()
    writer.close()


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[None]:
    """A file system of its own, of a few megabytes."""
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("needs mount for a small file system")
    at.mkdir()
    done = subprocess.run([mount, "-t", "tmpfs", "-o", f"size={size}", "none", at], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("may not mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


@pytest.mark.parametrize("kind", [WriterProcess, LmdbWriter])
def test_a_full_disk(tmp_path: Path, kind: type[WriterProcess | LmdbWriter]) -> None:
    """A full disk fails the write and nothing else; when there is room again, the same write goes well."""
    disk = tmp_path / "disk"
    with small_disk(disk, "6m"):
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(3 << 20))
        oracle = DictStore()
        writer = kind(disk / "store")
        high = fill(writer, oracle, FULL)
        assert high > 0
        with pytest.raises(StoreError, match=FULL):
            writer.write([batch(VB, high + 1, 5000)])
        ballast.unlink()
        more = [batch(VB, high + 1, 500)]
        writer.write(more)
        oracle.write(more)
        writer.close()
        reader = LmdbReader(disk / "store")
        with reader.snapshot() as snapshot, oracle.snapshot() as expected:
            assert_same(snapshot, expected)
            assert_consistent(snapshot)
        reader.close()


def test_no_room_for_a_store(tmp_path: Path) -> None:
    """A store that cannot even be made says why."""
    with small_disk(tmp_path / "disk", "128k"), pytest.raises(StoreError, match=FULL):
        LmdbWriter(tmp_path / "disk" / "store")
