from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from headrace.store import DirectoryLock, StoreError, WriterProcess

if TYPE_CHECKING:
    from pathlib import Path


def test_a_second_node_is_refused(tmp_path: Path) -> None:
    """The error names the directory and the process that has it."""
    lock = DirectoryLock(tmp_path / "new" / "data", wait_s=0)
    with pytest.raises(StoreError, match=rf"data is in use by the node with process id {os.getpid()} "):
        DirectoryLock(tmp_path / "new" / "data", wait_s=0.05)
    lock.close()
    lock.close()
    DirectoryLock(tmp_path / "new" / "data", wait_s=0).close()


def test_who_comes_second_waits(tmp_path: Path) -> None:
    """A lock that is let go in time is taken."""
    first = DirectoryLock(tmp_path)
    timer = threading.Timer(0.1, first.close)
    timer.start()
    began = time.monotonic()
    second = DirectoryLock(tmp_path, wait_s=30)
    assert 0.05 < time.monotonic() - began < 20
    second.close()
    timer.join()


def test_the_writer_process_holds_the_lock_too(tmp_path: Path) -> None:
    """The directory is free when node and writer are gone, not before."""
    lock = DirectoryLock(tmp_path)
    writer = WriterProcess(tmp_path, lock.fd)
    lock.close()
    with pytest.raises(StoreError, match="in use"):
        DirectoryLock(tmp_path, wait_s=0)
    writer.close()
    DirectoryLock(tmp_path, wait_s=0).close()


def test_a_dead_process_holds_no_lock(tmp_path: Path) -> None:
    """What a killed node leaves behind is free."""
    code = (
        "import os, sys; from headrace.store import DirectoryLock; DirectoryLock(sys.argv[1]); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert (tmp_path / "lock").exists()
    DirectoryLock(tmp_path, wait_s=0).close()


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    """The error says so."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="not a directory"):
            DirectoryLock(path)
