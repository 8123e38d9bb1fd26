"""One node per data directory.

The lock is a flock on the file `lock`, which holds the id of the process that took it, for people and for the error
below. A flock belongs to the open file, not to the process: the writer process inherits it, and the directory is free
only when both are gone, however they ended. The file itself stays; to delete it would let two processes lock two files
of one name.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from headrace.store.contract import StoreError

LOCK_FILE = "lock"
POLL_S = 0.02
PID_BYTES_MAX = 20


class DirectoryLock:
    """Held from here to `close`. Who comes second waits: a killed node's writer may still be finishing."""

    def __init__(self, path: str | os.PathLike[str], wait_s: float = 10.0) -> None:
        directory = Path(path)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{directory} is not a directory, so no data can be in it") from error
        except OSError as error:
            raise StoreError(f"cannot lock the directory {directory}: {error.strerror}") from error
        try:
            self._take(fd, directory, wait_s)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            os.close(fd)
            raise StoreError(f"cannot lock the directory {directory}: {error.strerror}") from error
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        """For a child to inherit."""

    def close(self) -> None:
        """Let go of the lock here; a child that has it holds it still."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @staticmethod
    def _take(fd: int, directory: Path, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(fd, PID_BYTES_MAX, 0).decode("ascii", "replace").strip() or "unknown"
                    raise StoreError(
                        f"the directory {directory} is in use by the node with process id {holder} or by its writer; "
                        f"stop it, or choose another directory"
                    ) from None
                time.sleep(POLL_S)
            else:
                return
