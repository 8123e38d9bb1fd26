"""Nodes that are to be killed: quick to start, ended by their process id, and their writer known by its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

READY = re.compile(r"^headrace node ready on (\S+):(\d+)$", re.MULTILINE)
READY_S = 60.0
END_S = 60.0
LOOK_S = 0.003


class Launcher:
    """The process that nodes are forked from."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("launcher.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(END_S)
        self._process.stdout.close()

    def ask(self, **asked: object) -> Any:
        """One question, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, arguments: Sequence[str]) -> Node:
        """Start a node; it may not be ready yet."""
        self._count += 1
        output = self._scratch / f"node-{self._count}.log"
        output.unlink(missing_ok=True)
        pid = self.ask(do="start", arguments=["node", "--port", "0", *arguments], output=str(output))
        return Node(self, pid, output)


class Node:
    """One life of a node."""

    def __init__(self, launcher: Launcher, pid: int, output: Path) -> None:
        self._launcher = launcher
        self.pid = pid
        self._output = output
        self.port = 0
        self.writer_pid = 0
        self._code: int | None = None

    @property
    def said(self) -> str:
        """What it wrote."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def wait_ready(self) -> Self:
        """Wait until it serves."""
        end = time.monotonic() + READY_S
        while not (found := READY.search(self.said)):
            if (code := self._wait(0)) is not None:
                raise AssertionError(f"the node ended with {code} before it was ready:\n{self.said}")
            assert time.monotonic() < end, f"the node was not ready in {READY_S} s:\n{self.said}"
            time.sleep(LOOK_S)
        self.port = int(found[2])
        (self.writer_pid,) = children_of(self.pid)
        return self

    def kill(self) -> None:
        """End it as a crash would."""
        send_signal(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, self.said

    def stop(self) -> None:
        """Ask it to end, and see that it ends well."""
        send_signal(self.pid, signal.SIGTERM)
        code = self.wait()
        assert code == 0, f"exit code {code}:\n{self.said}"

    def wait(self) -> int:
        """Wait for its end and give the exit code."""
        code = self._wait(END_S)
        assert code is not None, f"{END_S} s after it should have ended, the node still ran:\n{self.said}"
        return code

    def discard(self) -> None:
        """Kill whatever is left of it, when a test gives up."""
        if self._code is None:
            send_signal(self.pid, signal.SIGKILL)
            self._wait(END_S)

    def _wait(self, seconds: float) -> int | None:
        if self._code is None:
            self._code = self._launcher.ask(do="wait", pid=self.pid, seconds=seconds)
        return self._code


def send_signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False when there is no such process any more."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def children_of(pid: int) -> list[int]:
    """The processes that a process started and that still are."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_gone(pid: int, seconds: float = END_S) -> None:
    """Wait for the end of a process that is nobody's child here."""
    end = time.monotonic() + seconds
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        assert time.monotonic() < end, f"process {pid} still ran after {seconds} s"
        time.sleep(LOOK_S)
