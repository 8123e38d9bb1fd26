"""A well-behaved client beside the hostile ones: it must be served all the while, by a node that does not grow."""

from __future__ import annotations

import resource
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client import KvConnection
from tests.processes import HOST, start_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.processes import Server

ROUND_TRIP_S_MAX = 2.0
MIB = 1 << 20
RSS_BYTES_MAX = 300 * MIB
"""What a node takes that holds next to nothing; a test that makes it hold more says how much."""
FILES = 8000


def rss_bytes(pid: int) -> int:
    """The resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has ended")


class Witness:
    """Sets and gets in a thread of its own, and writes down what it saw."""

    def __init__(self, node: Server, connect: Callable[[], KvConnection]) -> None:
        self.round_trips = 0
        self.slowest_s = 0.0
        self.rss_peak_bytes = 0
        self._failure: BaseException | None = None
        self._node = node
        self._connect = connect
        self._stop = threading.Event()
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._connect() as client:
                while not self._stop.is_set():
                    self._round_trip(client)
                    self._began.set()
                    self._stop.wait(0.005)
            began = time.monotonic()
            with self._connect() as client:  # and newcomers are let in
                client.set(b"witness", b"<last>")
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self._failure = error
        finally:
            self._began.set()

    def wait_begun(self) -> None:
        """Wait for the first round trip."""
        assert self._began.wait(60)

    def _round_trip(self, client: KvConnection) -> None:
        value = b"<%d>" % self.round_trips
        began = time.monotonic()
        client.set(b"witness", value)
        assert client.get(b"witness").value == value
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.round_trips += 1
        self.rss_peak_bytes = max(self.rss_peak_bytes, rss_bytes(self._node.pid))

    def end(self) -> None:
        """Stop, and raise what went wrong."""
        self._stop.set()
        self._thread.join(60)
        if self._failure is not None:
            raise self._failure
        assert not self._thread.is_alive(), "the witness still waits for an answer"


@contextmanager
def witnessed(
    node: Server, *, rss_bytes_max: int = RSS_BYTES_MAX, connect: Callable[[], KvConnection] | None = None
) -> Iterator[Witness]:
    """See that a node serves and stays small while something else goes on."""
    witness = Witness(node, connect or (lambda: KvConnection(HOST, node.port)))
    try:
        witness.wait_begun()
        yield witness
    finally:
        witness.end()
    saw = f"{witness.round_trips} round trips, {witness.slowest_s:.3f} s at most, {witness.rss_peak_bytes // MIB} MiB"
    sys.stdout.write(f"{saw}\n")
    assert node.running, node.said
    assert witness.round_trips > 0
    assert witness.slowest_s < ROUND_TRIP_S_MAX, saw
    assert witness.rss_peak_bytes < rss_bytes_max, saw


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    """A node that may have many files open; it must be alive at the end, and end well when told to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(FILES, hard)), hard))
    try:
        node = start_node("--vbuckets", "16", *arguments)
        try:
            yield node
            assert node.running, node.said
            code, said = node.stop(), node.said
            assert code == 0, f"exit code {code}:\n{said}"
            assert "Traceback" not in said, said
        finally:
            if node.running:
                node.kill()
            node.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(port: int, timeout_s: float = 30.0) -> socket.socket:
    """A plain connection."""
    return socket.create_connection((HOST, port), timeout=timeout_s)


def say(connection: socket.socket, *parts: bytes, is_all: bool = False) -> None:
    """Send, whether or not the other side still listens; `is_all` closes this half."""
    with suppress(OSError):
        for part in parts:
            connection.sendall(part)
        if is_all:
            connection.shutdown(socket.SHUT_WR)


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the other side closes, by whatever way."""
    parts = []
    try:
        while part := connection.recv(1 << 20):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)
