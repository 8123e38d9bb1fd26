"""Real servers as processes on free loopback ports: ours, and Debian's memcached as the one to compare it with.

A server writes into files, not pipes: nobody has to read along, and what it said can be shown when a test fails. It is
ended by its process id and is always waited for; one that a failing caller forgot ends with the caller.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HOST = "127.0.0.1"
READY_S = 60  # a first start may compile; a machine may be busy
STOP_S = 30
LOOK_S = 0.01
NODE_READY = re.compile(r"^headrace node ready on (\S+):(\d+)$", re.MULTILINE)
MEMCACHED_READY = re.compile(r"^TCP INET: (\d+)$", re.MULTILINE)


class Server:
    """A process that listens on `host`:`port`.

    `argv` makes its command from the port to ask for: None the first time, when the system chooses; the same port as
    before when it is started again. `port_of` reads the port out of the directory that the server writes into.
    """

    def __init__(
        self,
        argv: Callable[[int | None], Sequence[str]],
        port_of: Callable[[Path], int | None],
        environment: Mapping[str, str],
    ) -> None:
        self.host = HOST
        self.port = 0
        self._argv = argv
        self._port_of = port_of
        self._environment = dict(environment)
        self._scratch = tempfile.TemporaryDirectory(prefix="headrace-test-")
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._forgotten)
        self.start()

    @property
    def pid(self) -> int:
        """The process id; a server that was stopped has none."""
        assert self._process is not None, "the server was stopped"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """What the process last started wrote to stdout and stderr."""
        return "".join(self._file(name).read_text(errors="replace") for name in ("stdout", "stderr"))

    def start(self) -> None:
        """Start the process and wait until it listens."""
        assert self._process is None, "the server is running"
        for name in ("stdout", "stderr", "port"):
            self._file(name).unlink(missing_ok=True)
        environment = {**os.environ, "MEMCACHED_PORT_FILENAME": str(self._file("port")), **self._environment}
        with self._file("stdout").open("wb") as stdout, self._file("stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                self._argv(self.port or None), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment
            )
        end = time.monotonic() + READY_S
        while (port := self._port_of(Path(self._scratch.name))) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                said = self.said
                code = self.kill()
                self.close()
                raise AssertionError(f"the server never was ready (exit code {code}):\n{said}")
            time.sleep(LOOK_S)
        self.port = port

    def stop(self) -> int:
        """Ask the process to end with SIGTERM, wait, and give its exit code: 0 when it ended cleanly."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End the process at once, as a crash would, and give its exit code."""
        return self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port, after a clean stop if nobody stopped or killed it before."""
        if self._process is not None:
            code = self.stop()
            assert code == 0, f"exit code {code}:\n{self.said}"
        self.start()

    def close(self) -> None:
        """Remove what was written; the process must have ended."""
        assert self._process is None, "the server is running"
        atexit.unregister(self._forgotten)
        self._scratch.cleanup()

    def _forgotten(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        assert process is not None, "the server was stopped"
        process.send_signal(number)  # does nothing when it has already ended
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{STOP_S} s after {number.name} the server still ran:\n{self.said}") from None

    def _file(self, name: str) -> Path:
        return Path(self._scratch.name) / name


def start_node(*arguments: str, environment: Mapping[str, str] | None = None) -> Server:
    """Start `headrace node` with these options; with no `--data` a restart begins with an empty store."""

    def argv(port: int | None) -> list[str]:
        return [sys.executable, "-m", "headrace", "node", "--host", HOST, "--port", str(port or 0), *arguments]

    return Server(argv, _port_of_node, environment or {})


def start_memcached(*arguments: str) -> Server:
    """Start memcached, which must be installed."""
    program = shutil.which("memcached")
    assert program, "memcached is not installed"

    def argv(port: int | None) -> list[str]:
        usual = ["-l", HOST, "-p", str(port or -1), "-U", "0", "-m", "1024"]
        as_root = ["-u", "root"] if os.geteuid() == 0 else []
        return [program, *usual, *as_root, *arguments]

    return Server(argv, _port_of_memcached, {})


def _port_of_node(scratch: Path) -> int | None:
    found = NODE_READY.search((scratch / "stdout").read_text())
    return int(found[2]) if found else None


def _port_of_memcached(scratch: Path) -> int | None:
    # With port -1 it takes a free one, and tells it in the file that MEMCACHED_PORT_FILENAME names.
    path = scratch / "port"
    found = MEMCACHED_READY.search(path.read_text()) if path.exists() else None
    return int(found[1]) if found else None
