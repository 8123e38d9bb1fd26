"""Streams from a node to a client, side by side in one run with a plain socket that copies the same bytes.

    python benchmarks/stream.py [--quick] [--rounds 3] [--no-java] [--no-memory]

One node process holds 1 M items of 256 bytes in 64 vbuckets: on disk in the one part, in memory with persistence
stopped in the other. Clients are processes of their own, one for each connection, that share the vbuckets.

    plain     a process sends as many bytes from one buffer, in blocks of 256 KiB; the clients only receive
    drained   the clients ask for all streams and only receive: what the node can do
    decoded   the clients are `headrace.client.BatchReader`: every change becomes a row of an Arrow batch

The contenders take turns, and the best round counts. The clock of a client starts before it connects and stops behind
the last change. Then the node's memory while it is drained from disk, with 1 M and with 5 M items, and the official
Java client (the newest, by the interface that costs it least) beside ours, each draining over one connection with a
window of 16 MiB. Nothing here is a test: the targets are printed, not asserted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import shutil
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from headrace.client import BatchReader, ChangeOptions
from headrace.columns import machine
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.node import Node, NodeLimits, NodeOptions, kernels
from headrace.wire import catalogue, encode
from headrace.wire.codes import OpenFlag, StreamFlag
from headrace.wire.limits import HEADER_BYTES

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.kv import connect, responses, wait_until_on_disk
from tests.processes import HOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

VALUE = bytes(range(256))
KEY_FORMAT = b"key-%012d"
VBUCKETS = 64
BLOCK_BYTES = 256 << 10
WINDOW_BYTES = 16 << 20
GIB = 1 << 30
ITEM_BYTES = len(encode(catalogue.Mutation(by_seqno=Seqno(1), rev_seqno=1, nru=0, key=KEY_FORMAT % 0, value=VALUE)))
LOAD_BLOCK = 4096
TARGET_OF_PLAIN = 0.25

fork = multiprocessing.get_context("fork")


# ---------------------------------------------------------------------------------------------------------------------
# The node
# ---------------------------------------------------------------------------------------------------------------------


def serve(data: str, pipe: Connection, *, dirty_bytes_max: int) -> None:
    """Run a node until told to stop."""
    kernels.load()
    limits = NodeLimits(dirty_bytes_max=dirty_bytes_max)
    with Node(NodeOptions(vbuckets=VBUCKETS, data=Path(data), port=0, limits=limits)) as node:
        pipe.send(node.port)
        pipe.recv()


class Running:
    """A node process with items in it."""

    def __init__(self, directory: str | None, dirty_bytes_max: int = NodeLimits().dirty_bytes_max) -> None:
        self._data = tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=directory)
        self._pipe, theirs = fork.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(self._data.name, theirs), kwargs={"dirty_bytes_max": dirty_bytes_max}
        )
        self._process.start()
        self.port: int = self._pipe.recv()
        self.items = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send("stop")
        self._process.join()
        self._data.cleanup()

    @property
    def pid(self) -> int:
        """The process of the node."""
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, message: catalogue.StopPersistence | catalogue.StartPersistence) -> None:
        """Have one request answered."""
        with connect(self.port) as server:
            server.sendall(encode(message))
            (answer,) = responses(server, 1)
            assert answer.status == 0, answer

    def load(self, count: int) -> None:
        """Have so many items in all, spread over the vbuckets."""
        one = encode(catalogue.SetQ(key=KEY_FORMAT % 0, value=VALUE))
        key_at = one.index(KEY_FORMAT % 0)
        key_bytes = len(KEY_FORMAT % 0)
        with connect(self.port) as server:
            for first in range(self.items, count, LOAD_BLOCK):
                numbers = range(first, min(count, first + LOAD_BLOCK))
                rows = np.tile(np.frombuffer(one, np.uint8), (len(numbers), 1))
                keys = b"".join(KEY_FORMAT % number for number in numbers)
                rows[:, key_at : key_at + key_bytes] = np.frombuffer(keys, np.uint8).reshape(-1, key_bytes)
                rows[:, 7] = np.arange(first, first + len(numbers)) % VBUCKETS
                server.sendall(rows.tobytes() + encode(catalogue.Noop()))
                next(responses(server, 1))
        self.items = count

    def memory(self) -> tuple[int, int]:
        """Memory of its own, and all that counts as resident, in bytes."""
        told = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if ":" in line
        )
        return int(told["RssAnon"].split()[0]) * 1024, int(told["VmRSS"].split()[0]) * 1024


# ---------------------------------------------------------------------------------------------------------------------
# Clients, each in a process of its own
# ---------------------------------------------------------------------------------------------------------------------


def receive(port: int, size: int, start: Barrier, report: Connection) -> None:
    """Only receive, from a plain sender."""
    room = bytearray(1 << 20)
    start.wait()
    began = time.perf_counter()
    with socket.create_connection((HOST, port)) as sender:
        while size > 0:
            count = sender.recv_into(room)
            assert count, "the sender closed too early"
            size -= count
    report.send((began, time.perf_counter()))


def drain(port: int, share: list[int], items: int, start: Barrier, report: Connection) -> None:
    """Ask for streams, and only receive."""
    room = bytearray(1 << 20)
    size = items * ITEM_BYTES
    flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
    asked = [encode(catalogue.Open(name=b"drain-%d" % share[0], flags=flags))]
    for vb in share:
        request = catalogue.StreamRequest(
            vbucket=VBucketId(vb), opaque=Opaque(vb), flags=StreamFlag.TO_LATEST,
            snapshot_start=Seqno(0), snapshot_end=Seqno(0),
        )  # fmt: skip
        asked.append(encode(request))
    start.wait()
    began = time.perf_counter()
    with connect(port) as node:
        node.sendall(b"".join(asked))
        while size > 0:
            count = node.recv_into(room)
            assert count, "the node closed the connection"
            size -= count
    report.send((began, time.perf_counter()))


def decode(port: int, share: list[int], items: int, start: Barrier, report: Connection) -> None:
    """Read changes as Arrow batches."""
    machine.kernel()
    options = ChangeOptions(connection=f"couchbase://{HOST}:{port}", vbuckets=tuple(share), window_bytes=WINDOW_BYTES)
    start.wait()
    began = time.perf_counter()
    rows = 0
    with BatchReader(options, until="now") as batches:
        for batch in batches:
            rows += batch.num_rows
    ended = time.perf_counter()
    assert rows == items, f"{rows} rows of {items} items"
    report.send((began, ended))


def send_plainly(listener: socket.socket, sizes: list[int]) -> None:
    """Send each client its bytes, from one process, as a node does."""
    block = memoryview(os.urandom(BLOCK_BYTES))

    def send(client: socket.socket, size: int) -> None:
        with client:
            while size > 0:
                client.sendall(block[:size])
                size -= len(block)

    threads = [threading.Thread(target=send, args=(listener.accept()[0], size)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def timed(work: Callable[..., None], arguments: list[tuple[object, ...]]) -> float:
    """Run a client with each of the arguments; the seconds from the first start to the last end."""
    start = fork.Barrier(len(arguments))
    pipes = [fork.Pipe(duplex=False) for _ in arguments]
    clients = [
        fork.Process(target=work, args=(*each, start, pipe[1])) for each, pipe in zip(arguments, pipes, strict=True)
    ]
    for client in clients:
        client.start()
    for _, report in pipes:
        report.close()
    try:
        times: list[tuple[float, float]] = [pipe[0].recv() for pipe in pipes]
    except EOFError:
        raise SystemExit("a client failed; what it said is above") from None
    finally:
        for client in clients:
            client.join()
    return max(ended for _, ended in times) - min(began for began, _ in times)


def shares(connections: int) -> list[list[int]]:
    """The vbuckets of each connection."""
    return [list(range(first, VBUCKETS, connections)) for first in range(connections)]


def timed_plain(items: int, connections: int) -> float:
    """The seconds that a plain socket takes for the bytes of so many items."""
    sizes = [items * ITEM_BYTES // connections] * connections
    with socket.create_server((HOST, 0), backlog=connections) as listener:
        sender = fork.Process(target=send_plainly, args=(listener, sizes))
        sender.start()
        took = timed(receive, [(listener.getsockname()[1], size) for size in sizes])
        sender.join()
    return took


def timed_node(work: Callable[..., None], node: Running, connections: int) -> float:
    """The seconds that clients take for all items of a node."""
    each = node.items // connections
    return timed(work, [(node.port, share, each) for share in shares(connections)])


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """Seconds by contender, the best of all rounds."""

    source: str
    connections: int
    items: int
    seconds: dict[str, float] = field(default_factory=dict)

    def take(self, contender: str, seconds: float) -> None:
        """Keep the best."""
        self.seconds[contender] = min(seconds, self.seconds.get(contender, seconds))

    def lines(self) -> list[str]:
        """The row as lines of a table."""
        plain = self.seconds["plain"]
        return [
            f"| {self.source} | {self.connections} | {name} | {self.items / took / 1e6:.2f} M | "
            f"{self.items * ITEM_BYTES / took / 1e6:.0f} | {plain / took:.2f} |"
            for name, took in self.seconds.items()
        ]


def measure(node: Running, source: str, rounds: int) -> list[Row]:
    """Both numbers of connections, all contenders in turn."""
    rows = [Row(source, connections, node.items) for connections in (1, 2)]
    for _ in range(rounds):
        for row in rows:
            row.take("plain", timed_plain(row.items, row.connections))
            row.take("drained", timed_node(drain, node, row.connections))
            row.take("decoded", timed_node(decode, node, row.connections))
    return rows


def peak_memory(node: Running) -> tuple[int, int]:
    """The most memory that a node has while all its items are decoded from disk over two connections."""
    peak = node.memory()
    done = threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.wait(0.01):
            own, resident = node.memory()
            peak = max(peak[0], own), max(peak[1], resident)

    looking = threading.Thread(target=look)
    looking.start()
    timed_node(decode, node, 2)
    done.set()
    looking.join()
    return peak


def timed_java(node: Running, rounds: int) -> tuple[float, float] | str:
    """The seconds that the Java client and ours take over one connection, or why there is no Java client."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        return "java or mvn is not installed"
    from tests.foreign.witness import Witness, java_program  # noqa: PLC0415 - only where it is wanted

    theirs = ours = float("inf")
    witness = Witness(java_program())
    try:
        for _ in range(rounds):
            told = witness.client().do("drain", host=HOST, port=node.port, flow_bytes=WINDOW_BYTES, seconds_max=300)
            assert told["mutations"] == node.items, told
            theirs = min(theirs, told["seconds"])
            ours = min(ours, timed_node(decode, node, 1))
    finally:
        witness.close()
    return theirs, ours


def main() -> None:
    """Run what was asked for, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the items")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each row; the best counts (3)")
    parser.add_argument("--data", help="where the node keeps its items (the system's temporary directory)")
    parser.add_argument("--no-java", action="store_true", help="leave the Java client out")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory at five times the items out")
    options = parser.parse_args()
    items = 102_400 if options.quick else 1_024_000
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {ITEM_BYTES} bytes an item"
    )
    print(f"\n| from | connections | contender | items/s | MB/s | of plain (target {TARGET_OF_PLAIN}) |")
    print("|---|---|---|---|---|---|", flush=True)
    with Running(options.data, 4 * GIB) as node:  # nothing of it is to go to disk
        node.tell(catalogue.StopPersistence())
        node.load(items)
        for row in measure(node, "memory", options.rounds):
            print("\n".join(row.lines()), flush=True)
        node.tell(catalogue.StartPersistence())
    with Running(options.data) as node:
        node.load(items)
        wait_until_on_disk(node.port)
        for row in measure(node, "disk", options.rounds):
            print("\n".join(row.lines()), flush=True)
        if not options.no_java:
            java = timed_java(node, options.rounds)
            if isinstance(java, str):
                print(f"\nThe Java client was left out: {java}.")
            else:
                rates = [items / seconds / 1e6 for seconds in java]
                print(
                    f"\nJava {rates[0]:.2f} M items/s, ours {rates[1]:.2f} M: {rates[1] / rates[0]:.1f} times as fast."
                )
        if not options.no_memory:
            print("\n| items | node's own memory, peak MB | resident, peak MB |\n|---|---|---|")
            for count in (items, 5 * items):
                node.load(count)
                wait_until_on_disk(node.port)
                own, resident = peak_memory(node)
                print(f"| {count} | {own / 1e6:.0f} | {resident / 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    assert HEADER_BYTES < ITEM_BYTES
    main()
