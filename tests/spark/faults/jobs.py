"""Starts `job.py`, and ends it: by a clean stop, or by killing what belongs to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.spark.faults.copies import REBUILD, StoredCopy, difference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.spark.faults.buckets import Document

WAIT_S = 120.0
ROOT = Path(__file__).parents[3]


class Job:
    """A query in another process; a context manager that ends all of its processes."""

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, object],
        environment: Mapping[str, str],
        conf: Mapping[str, str],
        *,
        master: str = "local[2]",
        keep: str = "first",
        wrong: Mapping[str, str] | None = None,
    ) -> None:
        self.copy = StoredCopy(folder / "copy", str(options.get("onRollback", REBUILD)))
        (folder / "copy").mkdir(exist_ok=True)
        self._log = folder / "log.txt"
        given = {
            "master": master,
            "conf": {**conf},
            "options": {name: str(value) for name, value in options.items()},
            "copy": str(folder / "copy"),
            "checkpoint": str(folder / "checkpoint"),
            "keep": keep,
            "wrong": wrong,
        }
        path = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.faults.job"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environment, "PYTHONPATH": path},
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(given).encode() + b"\n")
        self._process.stdin.flush()
        self.printed = ""
        while not self.printed.rpartition("\n")[2].startswith("running"):
            line = self._process.stdout.readline()
            assert line, f"the job ended: {self.said}"
            self.printed = f"{self.printed}\n{line.decode().rstrip()}"
        self.pages = self.printed.split()[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def said(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """Kill the driver and everything that it started: Java, the workers, executors; as when a machine dies."""
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def stop(self) -> None:
        """Let it end."""
        printed, _ = self._process.communicate(timeout=60)
        self.printed += printed.decode()
        assert self._process.returncode == 0, self.said

    def executors(self) -> list[int]:
        """The process ids of its executors, those that started first before the others."""
        return executors_of(self._process.pid)

    def _processes(self) -> list[int]:
        """All that it started."""
        return processes_of(self._process.pid)

    def until(self, holds: Callable[[], object], what: str, *, within_s: float = WAIT_S) -> None:
        """Wait until something holds; the job must not end meanwhile."""
        end = time.monotonic() + within_s
        while not holds():
            assert self._process.poll() is None, f"the job ended, and still not: {what}\n{self.said}"
            assert time.monotonic() < end, f"not in {within_s} s: {what}\n{self.said}"
            time.sleep(0.05)

    def until_rows(self, rows: int) -> None:
        """Wait until so many rows are in the copy."""

        def enough() -> bool:
            self.copy.load()
            return self.copy.rows >= rows

        self.until(enough, f"{rows} rows")

    def ends_equal(self, truth: Mapping[str, Document], *, within_s: float = WAIT_S) -> None:
        """Wait until the copy is the bucket, item by item, as long as rows still come."""
        end, rows = time.monotonic() + within_s, 0
        while (wrong := difference(self.copy.documents(), truth)) and time.monotonic() < end:
            assert self._process.poll() is None, f"the job ended\n{self.said}"
            if self.copy.rows > rows:
                end, rows = time.monotonic() + within_s, self.copy.rows
            time.sleep(0.2)
        assert not wrong, f"{wrong}\n{self.said}"


def processes_of(driver: int) -> list[int]:
    """All that a driver started: they are in its session, if it has one of its own, and nobody else is."""
    return [pid for pid in _all_processes() if _session_of(pid) == driver]


def executors_of(driver: int) -> list[int]:
    """The executors of a driver, those that started first before the others."""
    return [pid for pid in processes_of(driver) if _is_executor(_command_of(pid))]


def _all_processes() -> list[int]:
    return sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_executor(command: bytes) -> bool:
    return command.split(b"\0")[0].endswith(b"java") and b"CoarseGrainedExecutorBackend" in command
