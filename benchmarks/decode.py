"""Decoding, side by side in one run: the kernel, the plain codec, and memcpy of the same bytes.

    python benchmarks/decode.py [--megabytes 64] [--piece-megabytes 4] [--rounds 7]

A stream of DCP mutations is cut into pieces as a socket would give them. Each contender is run in turn, round by round,
and its best round counts, so that a busy machine disturbs all alike.

Memory decides what memcpy can do, so it and the kernel are each measured twice. "new memory": every result is kept, as
by somebody who still reads it, and lies in memory that the system gives anew. "warm memory": a result is dropped before
the next is made, and the next lies in the same memory, much of it in the processor's cache. Both take memory of numpy,
which takes it of malloc; malloc is told which of the two it is, since by itself it changes its mind.

The last lines start a new process with the compiled kernel on disk and time its first batch.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.columns import Positions, Settings, decode_changes
from headrace.columns.machine import cache_directory
from headrace.ids import Cas, Seqno, VBucketId
from headrace.wire import NEED_DATA, Dialect, FrameReader, decode, encode
from headrace.wire.catalogue import Mutation, SnapshotMarker

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE_BYTES = (16, 256, 2048)
PLAIN_BYTES = 4 * 1024 * 1024
FRESH_RUNS = 5

# malloc.h of glibc
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES, LARGEST_BYTES, KEEP_ALL = 1 << 20, 32 << 20, 1 << 30

FRESH_PROCESS = """
import time
began = time.perf_counter()
import sys
from headrace.columns import Positions, Settings, decode_changes
imported = time.perf_counter()
changes = decode_changes(sys.stdin.buffer.read(), Settings(), Positions())
ended = time.perf_counter()
assert changes.rows.num_rows > 0 and changes.error is None
assert "numba" not in sys.modules
print(imported - began, ended - imported)
"""


@dataclass(frozen=True)
class Stream:
    """The bytes of a stream, and how many frames they are."""

    data: bytes
    frames: int


def stream(value_bytes: int, total_bytes: int) -> Stream:
    """Mutations of one vbucket behind one marker: keys of 16 bytes, values of the size asked for."""
    value = (bytes(range(256)) * 8)[:value_bytes]
    frames = [encode(SnapshotMarker(start_seqno=Seqno(1), end_seqno=Seqno(1 << 40), flags=2, vbucket=VBucketId(7)))]
    size = len(frames[0])
    while size < total_bytes:
        number = len(frames)
        frames.append(
            encode(
                Mutation(
                    by_seqno=Seqno(number),
                    rev_seqno=1,
                    cas=Cas(1_790_000_000_000_000_000 + number),
                    vbucket=VBucketId(7),
                    key=b"key-%012d" % number,
                    value=value,
                )
            )
        )
        size += len(frames[-1])
    return Stream(b"".join(frames), len(frames))


def choose_memory(*, new: bool) -> None:
    """Tell glibc's malloc to fetch large blocks from the system each time, or to keep what it has."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES if new else LARGEST_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES if new else KEEP_ALL)


def run_kernel(data: bytes, piece: int, *, kept: bool) -> list[object]:
    """Decode all pieces; what a piece cuts off is given again with the next."""
    choose_memory(new=kept)
    settings, positions = Settings(), Positions()
    view = memoryview(data)
    results: list[object] = []
    start = 0
    while start < len(data):
        changes = decode_changes(view[start : start + piece], settings, positions)
        start += changes.consumed_bytes
        if kept:
            results.append(changes.rows)
        del changes
    return results


def run_memcpy(data: bytes, piece: int, *, kept: bool) -> list[object]:
    """Copy all pieces."""
    choose_memory(new=kept)
    source = np.frombuffer(data, np.uint8)
    results: list[object] = []
    again = np.empty(piece, np.uint8)
    for start in range(0, len(data), piece):
        part = source[start : start + piece]
        if kept:
            results.append(part.copy())
        else:
            again[: len(part)] = part
    return results


def run_plain(data: bytes) -> int:
    """Frame and decode with the plain codec."""
    reader = FrameReader()
    reader.receive(data)
    count = 0
    while (frame := reader.next_frame()) is not NEED_DATA:
        decode(frame, Dialect.DCP)
        count += 1
    return count


def best_seconds(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best round of each, taken in turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            began = time.perf_counter()
            result = run()
            best[name] = min(best[name], time.perf_counter() - began)
            del result
    return best


def measure(value_bytes: int, total_bytes: int, piece: int, rounds: int) -> None:
    """Print the table of one value size."""
    whole = stream(value_bytes, total_bytes)
    small = stream(value_bytes, PLAIN_BYTES)
    data = whole.data
    best = best_seconds(
        {
            "kernel, new memory": lambda: run_kernel(data, piece, kept=True),
            "memcpy, new memory": lambda: run_memcpy(data, piece, kept=True),
            "kernel, warm memory": lambda: run_kernel(data, piece, kept=False),
            "memcpy, warm memory": lambda: run_memcpy(data, piece, kept=False),
        },
        rounds,
    )
    plain = best_seconds({"plain": lambda: run_plain(small.data)}, max(1, rounds // 2))["plain"]
    plain_rate = small.frames / plain
    print(f"\nvalues of {value_bytes} bytes: {whole.frames} frames, {len(data) / 1e6:.0f} MB")
    print(f"  {'':20} {'frames/s':>13} {'MB/s':>8} {'of memcpy':>10} {'of plain':>9}")
    print(f"  {'plain codec':20} {plain_rate:13,.0f} {len(small.data) / plain / 1e6:8.0f} {'':10} {1:9.1f}")
    for name, seconds in best.items():
        rate = whole.frames / seconds
        memcpy = best["memcpy," + name.partition(",")[2]]
        print(
            f"  {name:20} {rate:13,.0f} {len(data) / seconds / 1e6:8.0f} "
            f"{memcpy / seconds:10.2f} {rate / plain_rate:9.1f}"
        )


def measure_fresh_process() -> None:
    """Time the first batch of new processes, with the compiled kernel on disk."""
    data = stream(256, 1 << 20).data
    runs = []
    for _ in range(FRESH_RUNS):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", FRESH_PROCESS], input=data, capture_output=True, check=True)
        runs.append((time.perf_counter() - began, *map(float, done.stdout.split())))
    whole, importing, decoding = min(runs)
    print(f"\nfirst batch of a new process, kernel on disk in {display(cache_directory())}: best of {FRESH_RUNS}")
    print(f"  import {importing:.3f} s + first batch {decoding:.3f} s = {importing + decoding:.3f} s")
    print(f"  {whole:.3f} s with the start and the end of Python itself")


def display(path: Path | None) -> str:
    """A path below the home directory as people write it."""
    return str(path).replace(str(Path.home()), "~", 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="size of each stream")
    parser.add_argument("--piece-megabytes", type=int, default=4, help="size of the pieces it comes in")
    parser.add_argument("--rounds", type=int, default=7, help="the best of how many rounds counts")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}")
    print(
        f"streams of {options.megabytes} MB in pieces of {options.piece_megabytes} MB, best of {options.rounds} rounds"
    )
    decode_changes(stream(16, 1024).data, Settings(), Positions())
    for value_bytes in VALUE_BYTES:
        measure(value_bytes, options.megabytes << 20, options.piece_megabytes << 20, options.rounds)
    measure_fresh_process()


if __name__ == "__main__":
    main()
