"""Sets and gets, side by side in one run: our node, Debian's memcached, and a sink that only reads.

    python benchmarks/kv.py [--quick] [--rows burst sustained gets round-trips] [--connections 1 8] [--rounds 3]

One sender for all: a process for each connection writes blocks of frames that were encoded before the clock started.
Each block ends with a NOOP, and only a few blocks may be unanswered, so that nothing counts as done that is still in a
socket buffer. The sink reads the same bytes and answers the same NOOPs without looking at them: more than this the
sender cannot do on this machine, and a server near it is faster than this table can say. Single round trips have none:
there most of the time is the system's, waking one process and then the other.

The contenders take turns, each round with new keys, and the best round counts. Before a round begins, the node has
everything on disk that was written before; how long that takes after the last answer is measured in the row "until on
disk". memcached has no disk: the ratio compares our rate with its rate from memory.

Keys have their vbucket of 1024 for the node, as Couchbase's clients choose it, and vbucket 0 for memcached; the bytes
are equal otherwise. Nothing here is a test: the targets are printed, not asserted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from headrace.ids import Opaque, Seqno, VBucketId
from headrace.wire import NEED_DATA, FrameReader, Header, Request, Response, catalogue, decode, encode
from headrace.wire.codes import Status
from headrace.wire.limits import HEADER_BYTES

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.processes import HOST, Server, start_memcached, start_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

    from numpy.typing import NDArray

VALUE = bytes(range(256))
KEY_FORMAT = b"key-%012d"
VBUCKETS = 1024
BLOCK_BYTES = 128 * 1024
UNANSWERED_BLOCKS_MAX = 8
GETS_IN_A_BLOCK = 256
PERSISTED_S_MAX = 600
ROWS = ("burst", "sustained", "gets", "round-trips")
MEMCACHED = ("-m", "4096", "-t", "2")

fork = multiprocessing.get_context("fork")  # the children share the encoded blocks


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes to send, and how many come back; the last of those are the answer to its NOOP."""

    requests: memoryview
    reply_bytes: int
    opaque: int


@dataclass(frozen=True, slots=True)
class Size:
    """How much each row does."""

    burst: int = 300_000
    sustained: int = 3_000_000
    gets: int = 300_000
    round_trips: int = 20_000


QUICK = Size(burst=60_000, sustained=300_000, gets=60_000, round_trips=2_000)


@dataclass
class Taken:
    """How long a contender needed, at best, until the last answer, and until all was on disk."""

    answered_s: float = float("inf")
    on_disk_s: float = float("inf")


@dataclass
class Line:
    """A line of the table: operations a second by contender."""

    name: str
    rates: dict[str, float] = field(default_factory=dict)
    target: float | None = None

    @property
    def ratio(self) -> float:
        """Our rate, measured in memcached's."""
        return self.rates["node"] / self.rates["memcached"]


# ---------------------------------------------------------------------------------------------------------------------
# Frames
# ---------------------------------------------------------------------------------------------------------------------


def frames(make: Callable[[bytes, int], Request], numbers: range, *, vbuckets: bool) -> NDArray[np.uint8]:
    """One frame a row: the same request for many keys, each in its vbucket if the server has them."""
    key = KEY_FORMAT % 0
    one = encode(make(key, 0))
    other = encode(make(key, 0xFFFF))
    (place, last) = (index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
    assert last == place + 1
    rows = np.tile(np.frombuffer(one, np.uint8), (len(numbers), 1))
    keys = [KEY_FORMAT % number for number in numbers]
    start = one.index(key)
    rows[:, start : start + len(key)] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, len(key))
    if vbuckets:
        ids = np.fromiter((zlib.crc32(key) >> 16 & 0x7FFF & VBUCKETS - 1 for key in keys), ">u2", len(keys))
        rows[:, place : place + 2] = ids.view(np.uint8).reshape(-1, 2)
    return rows


def blocks(rows: NDArray[np.uint8], in_a_block: int, reply_bytes: int) -> list[Block]:
    """Cut frames into blocks, with a NOOP behind each; each frame is answered by so many bytes."""
    found = []
    for opaque, start in enumerate(range(0, len(rows), in_a_block)):
        part = rows[start : start + in_a_block]
        noop = encode(catalogue.Noop(opaque=Opaque(opaque)))
        found.append(Block(memoryview(part.tobytes() + noop), len(part) * reply_bytes + HEADER_BYTES, opaque))
    return found


def set_blocks(numbers: range, *, vbuckets: bool) -> list[Block]:
    """Quiet sets: no answer but the one to the NOOP."""
    rows = frames(
        lambda key, vb: catalogue.SetQ(key=key, value=VALUE, vbucket=VBucketId(vb)), numbers, vbuckets=vbuckets
    )
    return blocks(rows, BLOCK_BYTES // rows.shape[1], 0)


def get_blocks(numbers: range, *, vbuckets: bool) -> list[Block]:
    """Quiet gets: each answered, since nothing is missing, by header, flags and value."""
    rows = frames(lambda key, vb: catalogue.GetQ(key=key, vbucket=VBucketId(vb)), numbers, vbuckets=vbuckets)
    return blocks(rows, GETS_IN_A_BLOCK, HEADER_BYTES + 4 + len(VALUE))


def single_sets(numbers: range, *, vbuckets: bool) -> list[Block]:
    """Sets, each on its own."""
    rows = frames(
        lambda key, vb: catalogue.Set(key=key, value=VALUE, vbucket=VBucketId(vb)), numbers, vbuckets=vbuckets
    )
    return [Block(memoryview(row.tobytes()), HEADER_BYTES, 0) for row in rows]


def single_gets(numbers: range, *, vbuckets: bool) -> list[Block]:
    """Gets, each on its own."""
    rows = frames(lambda key, vb: catalogue.Get(key=key, vbucket=VBucketId(vb)), numbers, vbuckets=vbuckets)
    return [Block(memoryview(row.tobytes()), HEADER_BYTES + 4 + len(VALUE), 0) for row in rows]


# ---------------------------------------------------------------------------------------------------------------------
# Sender and sink
# ---------------------------------------------------------------------------------------------------------------------


def connect(port: int) -> socket.socket:
    """Open a connection as a client would."""
    opened = socket.create_connection((HOST, port), timeout=PERSISTED_S_MAX)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def read_exactly(source: socket.socket, into: memoryview) -> None:
    """Fill a buffer."""
    while into:
        count = source.recv_into(into)
        if not count:
            raise ConnectionError("the server closed the connection")
        into = into[count:]


def send(port: int, work: list[Block], window: int, start: Barrier, report: Connection) -> None:
    """Send all blocks over one connection, in a process of its own; tell when it began and when it ended."""
    with connect(port) as server:
        buffer = memoryview(bytearray(max(block.reply_bytes for block in work)))

        def take(block: Block) -> None:
            reply = buffer[: block.reply_bytes]
            read_exactly(server, reply)
            if window > 1:
                last = decode(bytes(reply[-HEADER_BYTES:]))
                if not isinstance(last, catalogue.Done) or last.status or last.opaque != block.opaque:
                    raise ValueError(f"not the answer that was expected: {last}")
            elif Header.parse(reply).specific != Status.SUCCESS:
                raise ValueError(f"refused: {Header.parse(reply)}")

        start.wait()
        began = time.perf_counter()
        for place, block in enumerate(work):
            server.sendall(block.requests)
            if place >= window - 1:
                take(work[place - window + 1])
        for block in work[max(0, len(work) - window + 1) :]:
            take(block)
        report.send((began, time.perf_counter()))


def sink(listener: socket.socket, work: list[Block]) -> None:
    """Read one connection's blocks and send answers of the right length, in a process of its own."""
    client, _ = listener.accept()
    with client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = memoryview(bytearray(max(len(block.requests) for block in work)))
        for block in work:
            read_exactly(client, buffer[: len(block.requests)])
            reply = encode(catalogue.Done(opcode=0x0A, status=0, opaque=Opaque(block.opaque)))
            client.sendall(reply.rjust(block.reply_bytes, b"\0"))


def timed(port: int, shares: list[list[Block]], window: int) -> tuple[float, float]:
    """Send each share over a connection of its own; when the first began and when the last was answered."""
    start = fork.Barrier(len(shares))
    pipes = [fork.Pipe(duplex=False) for _ in shares]
    senders = [
        fork.Process(target=send, args=(port, share, window, start, pipe[1]))
        for share, pipe in zip(shares, pipes, strict=True)
    ]
    for sender in senders:
        sender.start()
    for _, report in pipes:
        report.close()  # a sender that fails then ends its pipe
    try:
        times = [pipe[0].recv() for pipe in pipes]
    except EOFError:
        for sender in senders:
            sender.terminate()
        raise SystemExit("a sender failed; what it said is above") from None
    finally:
        for sender in senders:
            sender.join()
        for pipe in pipes:
            pipe[0].close()
    return min(began for began, _ in times), max(ended for _, ended in times)


def timed_sink(shares: list[list[Block]], window: int) -> float:
    """The seconds that the sender needs when nobody looks at what it sends."""
    with socket.create_server((HOST, 0), backlog=len(shares)) as listener:
        readers = [fork.Process(target=sink, args=(listener, share)) for share in shares]
        for reader in readers:
            reader.start()
        began, ended = timed(listener.getsockname()[1], shares, window)
        for reader in readers:
            reader.join()
    return ended - began


# ---------------------------------------------------------------------------------------------------------------------
# The node's disk
# ---------------------------------------------------------------------------------------------------------------------


def responses(server: socket.socket, count: int) -> Iterator[Response]:
    """So many answers, whatever they are."""
    reader = FrameReader()
    while count:
        frame = reader.next_frame()
        if frame is NEED_DATA:
            piece = server.recv(1 << 16)
            if not piece:
                raise ConnectionError("the node closed the connection")
            reader.receive(piece)
        else:
            message = decode(frame)
            assert isinstance(message, Response), message
            yield message
            count -= 1


def wait_until_on_disk(port: int) -> float:
    """Return when every vbucket has on disk what it has in memory, and say when that was."""
    with connect(port) as server:
        server.sendall(encode(catalogue.GetAllVBSeqnos()))
        (found,) = responses(server, 1)
        assert isinstance(found, catalogue.Seqnos), found
        waiting = {vbucket: seqno for vbucket, seqno in found.seqnos if seqno}
        while waiting:
            questions = (
                catalogue.SeqnoPersistence(seqno=Seqno(seqno), vbucket=VBucketId(vbucket), opaque=Opaque(vbucket))
                for vbucket, seqno in waiting.items()
            )
            server.sendall(b"".join(map(encode, questions)))
            for answer in responses(server, len(waiting)):
                if answer.status == Status.SUCCESS:
                    del waiting[answer.opaque]
                elif answer.status != Status.TEMPORARY_FAILURE:  # it waited for long enough: ask again
                    raise ValueError(f"vbucket {answer.opaque}: {answer}")
        return time.perf_counter()


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


class Run:
    """Both servers, started for one row, and the keys that were not yet used on them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._unused = 0
        self._data = tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.data)
        self.memcached = start_memcached(*MEMCACHED)
        self.node = start_node("--data", self._data.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.memcached, self.node):
            if server.running:
                server.stop()
                server.close()
        self._data.cleanup()

    def new_keys(self, count: int) -> range:
        """Numbers of keys that no round had."""
        self._unused += count
        return range(self._unused - count, self._unused)

    def servers(self) -> Iterator[tuple[str, Server]]:
        """The contenders, in the order of their turns."""
        yield "memcached", self.memcached
        yield "node", self.node

    def compare(
        self,
        make: Callable[..., list[Block]],
        rounds: list[range],
        *,
        connections: int,
        window: int,
    ) -> dict[str, Taken]:
        """Let the contenders take turns, round by round with these keys; the best round of each."""
        best = {"memcached": Taken(), "node": Taken()}
        if window > 1:
            best["bare sink"] = Taken()
        for numbers in rounds:
            parts = [numbers[place::connections] for place in range(connections)]
            shares = [make(part, vbuckets=False) for part in parts]
            if window > 1:
                best["bare sink"].answered_s = min(best["bare sink"].answered_s, timed_sink(shares, window))
            for name, server in self.servers():
                if server is self.node:
                    shares = [make(part, vbuckets=True) for part in parts]
                    wait_until_on_disk(server.port)
                began, ended = timed(server.port, shares, window)
                best[name].answered_s = min(best[name].answered_s, ended - began)
                if server is self.node:
                    written = wait_until_on_disk(server.port)
                    best[name].on_disk_s = min(best[name].on_disk_s, written - began)
        return best


def line(name: str, count: int, best: dict[str, Taken], target: float | None = None) -> Line:
    """Rates until the last answer."""
    return Line(name, {who: count / taken.answered_s for who, taken in best.items()}, target)


def sets(options: argparse.Namespace, name: str, count: int, target: float, rounds: int) -> Iterator[tuple[int, Line]]:
    """Quiet sets of new keys, until answered and until on disk; the targets are for the full sizes."""
    wanted = None if options.quick else target
    for connections in options.connections:
        with Run(options) as run:
            keys = [run.new_keys(count) for _ in range(rounds)]
            best = run.compare(set_blocks, keys, connections=connections, window=UNANSWERED_BLOCKS_MAX)
        yield connections, line(f"quiet sets, {name}", count, best, wanted)
        best["node"].answered_s = best["node"].on_disk_s
        del best["bare sink"]
        yield connections, line("  until on disk", count, best, wanted if name.startswith("sustained") else None)


def gets(options: argparse.Namespace, count: int) -> Iterator[tuple[int, Line]]:
    """Quiet gets of keys that are there."""
    for connections in options.connections:
        with Run(options) as run:
            keys = run.new_keys(count)
            for _, server in run.servers():
                load = set_blocks(keys, vbuckets=server is run.node)
                timed(server.port, [load], UNANSWERED_BLOCKS_MAX)
            rounds = [keys] * options.rounds
            best = run.compare(get_blocks, rounds, connections=connections, window=UNANSWERED_BLOCKS_MAX)
        yield connections, line("quiet gets", count, best)


def round_trips(options: argparse.Namespace, count: int) -> Iterator[tuple[int, Line]]:
    """Sets and gets that wait for their answer, one by one on each connection."""
    for connections in options.connections:
        with Run(options) as run:
            rounds = [run.new_keys(count)] * options.rounds
            for name, make in (("set round trips", single_sets), ("get round trips", single_gets)):
                best = run.compare(make, rounds, connections=connections, window=1)
                yield connections, line(name, count, best)


def lines(options: argparse.Namespace) -> Iterator[tuple[int, Line]]:
    """All lines that were asked for."""
    size = QUICK if options.quick else Size()
    if "burst" in options.rows:
        yield from sets(options, f"burst of {size.burst // 1000} k", size.burst, 0.5, options.rounds)
    if "sustained" in options.rows:
        yield from sets(options, f"sustained {size.sustained / 1e6:g} M", size.sustained, 0.25, 1)
    if "gets" in options.rows:
        yield from gets(options, size.gets)
    if "round-trips" in options.rows:
        yield from round_trips(options, size.round_trips)


def show(connections: int, found: list[Line]) -> None:
    """Print the table of one number of connections."""
    print(f"\n{connections} connection{'s' if connections > 1 else ''}, operations a second")
    print(f"  {'':28} {'bare sink':>12} {'memcached':>12} {'node':>12} {'of memcached':>13} {'target':>11}")
    for each in found:
        rates = [
            f"{each.rates[who]:12,.0f}" if who in each.rates else " " * 12 for who in ("bare sink", "memcached", "node")
        ]
        target = "" if each.target is None else f"{each.target:.2f} {'yes' if each.ratio >= each.target else 'no'}"
        print(f"  {each.name:28} {' '.join(rates)} {each.ratio:13.2f} {target:>11}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth or a tenth of the work, and no targets")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="which rows to measure")
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 8], help="with how many connections")
    parser.add_argument("--rounds", type=int, default=3, help="the best of how many rounds counts; one for sustained")
    parser.add_argument("--data", type=Path, help="where the node's files go; else where temporary files go")
    options = parser.parse_args()
    if shutil.which("memcached") is None:
        raise SystemExit("memcached is not installed; as root on Debian, tools/system-deps installs it")
    version = subprocess.run(["memcached", "-V"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{version} {' '.join(MEMCACHED)}; values of {len(VALUE)} bytes, keys of {len(KEY_FORMAT % 0)}")
    print(f"blocks of {BLOCK_BYTES // 1024} KiB, at most {UNANSWERED_BLOCKS_MAX} unanswered; best of {options.rounds}")
    tables: dict[int, list[Line]] = {connections: [] for connections in options.connections}
    for connections, each in lines(options):
        tables[connections].append(each)
    for connections, found in tables.items():
        show(connections, found)


if __name__ == "__main__":
    main()
