"""The examples as processes, and the servers that they are run against."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

import headrace.client
from tests.processes import HOST, Server

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
WAIT_S = 60.0
LOOK_S = 0.02


class Program:
    """An example that runs; a context manager that ends it by Ctrl-C, unless it was killed or waited for."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._is_over = False
        self._out = folder / f"{name}-{time.monotonic_ns()}"
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
            print(self.said)  # noqa: T201 - pytest shows it beside the failure
        elif not self._is_over:
            self._process.send_signal(signal.SIGINT)
            code = self.wait()
            assert code == 0, f"exit code {code}:\n{self.said}"
        assert kind is not None or "Traceback" not in self.said, self.said

    @property
    def said(self) -> str:
        """What it printed so far."""
        return self._out.read_text(errors="replace")

    @property
    def lines(self) -> list[str]:
        """The same, line by line."""
        return self.said.splitlines()

    def wait_for(self, text: str) -> None:
        """Wait until it says something."""
        self.wait_until(lambda: text in self.said, f"it never said {text!r}")

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for something that it does; bounded, and not for a program that has ended."""
        end = time.monotonic() + WAIT_S
        while not true():
            ended = self._process.poll()
            assert ended is None or true(), f"{what}; it ended with {ended}:\n{self.said}"
            assert time.monotonic() < end, f"{what}, within {WAIT_S:g} s:\n{self.said}"
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._is_over = True
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        """Wait for its end; give the exit code."""
        self._is_over = True
        try:
            return self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"it did not end:\n{self.said}") from None


def run_to_end(folder: Path, name: str, *arguments: str) -> tuple[int, list[str]]:
    """Run an example that ends by itself; give its exit code and what it said."""
    with Program(folder, name, *arguments) as program:
        return program.wait(), program.lines


def start_searchd(folder: Path) -> Server:
    """Start Sphinx with the configuration that is shipped, on a free port, with its files in a folder."""
    if shutil.which("searchd") is None:
        pytest.skip("searchd is not installed (Debian: apt-get install sphinxsearch)")
    pytest.importorskip("pymysql")
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    shipped = (EXAMPLES / "sphinx.conf").read_text()
    assert "127.0.0.1:9306:mysql41" in shipped
    (folder / "sphinx.conf").write_text(shipped.replace("127.0.0.1:9306:mysql41", f"{HOST}:{port}:mysql41"))

    def argv(_port: int | None) -> list[str]:
        return ["sh", "-c", 'cd "$1" && exec searchd --config sphinx.conf --nodetach', "searchd", str(folder)]

    def port_of(scratch: Path) -> int | None:
        return port if "accepting connections" in (scratch / "stdout").read_text() else None

    return Server(argv, port_of, {})


def source_of(server: Server, scheme: str) -> str:
    """Give the address of a node; skip what needs TAP where there is no reader of it."""
    if scheme == "tap" and not hasattr(headrace.client, "TapReader"):
        pytest.skip("this headrace has no reader of TAP")
    return f"{scheme}://{server.host}:{server.port}"
