"""The store, side by side in one run with what it stands on: a plain file, and memcpy of the same bytes.

    python benchmarks/store.py [--items 2000000] [--batch-megabytes 64] [--directory DIR] [--quick]

Flush: batches as the node makes them go through the writer process, with random keys and values of 256 bytes, over 1024
vbuckets and over one; a batch counts when it is on disk. Beside it, the same bytes in a file with a sync after each
batch, which is what the disk can do. Making the batches is not counted.

Read: all records of all vbuckets in the order of seqnos, joined to blocks, in one thread. Beside it, memcpy of the same
bytes in blocks of the same size.

Memory: what the writer process and this one hold after a tenth of the items and after all. Anonymous memory is what a
process really has. The writer's follows the batch and the pages that a batch touches, which LMDB keeps copies of and
takes again for the next: random keys touch the more of them the larger the store is, until LMDB's bound of 131071 pages
(512 MB). File-backed memory is the part of the system's cache that a process has looked at through the map; beyond
256 MB it is let go of.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.store import Changes, LmdbReader, VBucketRecord, WriterProcess
from headrace.store.records import LIVE, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUE_BYTES = 256
BLOCK_BYTES = 1 << 20
QUICK_ITEMS = 200_000
QUICK_MEGABYTES = 8
READ_ROUNDS = 3


@dataclass
class Flush:
    """What a run of flushes took."""

    items: int = 0
    record_bytes: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0


class Source:
    """Makes batches: random keys, so that nearly all are new, spread evenly."""

    def __init__(self, vbuckets: int, batch_bytes: int) -> None:
        self.random = random.Random(1)  # noqa: S311 - the same keys on every run
        self.seqnos = [0] * vbuckets
        self.value = self.random.randbytes(VALUE_BYTES)
        self.per_vbucket = max(1, batch_bytes // len(self.record(0)) // vbuckets)

    def record(self, vbucket: int) -> bytes:
        """The next record of a vbucket."""
        self.seqnos[vbucket] += 1
        seqno = self.seqnos[vbucket]
        key = b"key-%016x" % self.random.getrandbits(64)
        return Record(LIVE, VBucketId(vbucket), key, self.value, 0, Cas(seqno), Seqno(seqno), rev_seqno=1).pack()

    def batch(self) -> list[Changes]:
        """As much as the node holds in memory before it flushes."""
        changes = []
        for vbucket, _ in enumerate(self.seqnos):
            records = [self.record(vbucket) for _ in range(self.per_vbucket)]
            high = Seqno(self.seqnos[vbucket])
            log = ((VbUuid(0x1234_5678_9ABC_DEF0), Seqno(0)),)
            now = VBucketRecord(state=1, failover_log=log, high_seqno=high, live_items=high)
            changes.append(Changes(vbucket=VBucketId(vbucket), records=records, now=now))
        return changes


def run_flushes(writer: WriterProcess, source: Source, items: int, plain: Path) -> Flush:
    """Write so many items to the store, and the same bytes to a plain file."""
    total = Flush()
    fd = os.open(plain, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while total.items < items:
            batch = source.batch()
            began = time.perf_counter()
            writer.write(batch)
            total.seconds += time.perf_counter() - began
            block = b"".join(record for changes in batch for record in changes.records)
            began = time.perf_counter()
            os.write(fd, block)
            os.fdatasync(fd)
            total.plain_seconds += time.perf_counter() - began
            total.items += sum(len(changes.records) for changes in batch)
            total.record_bytes += len(block)
    finally:
        os.close(fd)
        plain.unlink()
    return total


def print_flush(name: str, flush: Flush) -> None:
    """One line of the table."""
    megabytes = flush.record_bytes / 1e6
    print(
        f"  {name:24} {flush.items / flush.seconds:11,.0f} items/s {megabytes / flush.seconds:6.0f} MB/s; "
        f"plain file {megabytes / flush.plain_seconds:6.0f} MB/s; ratio {flush.plain_seconds / flush.seconds:.2f}"
    )


def blocks_of(reader: LmdbReader, vbuckets: int) -> Iterator[bytes]:
    """All records of all vbuckets, joined."""
    with reader.snapshot() as snapshot:
        for vbucket in range(vbuckets):
            yield from snapshot.records_joined(VBucketId(vbucket), chunk_bytes=BLOCK_BYTES)


def measure_read(reader: LmdbReader, vbuckets: int, items: int) -> None:
    """Print how fast records come from disk in order; the first round meets pages that this process never saw."""
    for number in range(READ_ROUNDS):
        began = time.perf_counter()
        record_bytes = sum(map(len, blocks_of(reader, vbuckets)))
        seconds = time.perf_counter() - began
        source = memoryview(bytes(BLOCK_BYTES))
        target = bytearray(BLOCK_BYTES)
        began = time.perf_counter()
        for _ in range(record_bytes // BLOCK_BYTES):
            target[:] = source
        copied = time.perf_counter() - began
        name = "first time" if number == 0 else "again"
        print(
            f"  {name:24} {items / seconds:11,.0f} items/s {record_bytes / seconds / 1e6:6.0f} MB/s; "
            f"memcpy {record_bytes / copied / 1e6:6.0f} MB/s; ratio {copied / seconds:.2f}"
        )


def memory(pid: int | None) -> str:
    """The resident memory of a process, in megabytes."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    anonymous, backed = (int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
    return f"{anonymous:5.0f} MB anonymous, {backed:6.0f} MB file-backed"


def measure(vbuckets: int, items: int, batch_bytes: int, directory: Path) -> None:
    """Flush, read and print, with so many vbuckets."""
    path = directory / f"store-{vbuckets}"
    writer = WriterProcess(path)
    reader = LmdbReader(path)
    source = Source(vbuckets, batch_bytes)
    print(f"\n{vbuckets} vbuckets, batches of {source.per_vbucket * vbuckets} items of {VALUE_BYTES} bytes")
    done = 0
    for share, name in ((items // 10, "flush, the first tenth"), (items - items // 10, "flush, the rest")):
        flush = run_flushes(writer, source, share, directory / "plain")
        done += flush.items
        print_flush(name, flush)
        read_bytes = sum(map(len, blocks_of(reader, vbuckets)))
        gc.collect()
        print(f"    with {done} items, {read_bytes / 1e6:.0f} MB of records, all read once:")
        print(f"      writer {memory(writer.pid)}")
        print(f"      reader {memory(os.getpid())}")
    measure_read(reader, vbuckets, done)
    reader.close()
    writer.close()
    size = (path / "data.mdb").stat().st_size
    print(f"  the file has {size / 1e6:.0f} MB, {size / done:.0f} bytes per item")
    for file in path.iterdir():
        file.unlink()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2_000_000, help="how many items each store gets")
    parser.add_argument("--batch-megabytes", type=int, default=64, help="how much a flush takes at a time")
    parser.add_argument("--directory", type=Path, default=None, help="on which disk; a new temporary one unless told")
    parser.add_argument("--quick", action="store_true", help="a tenth of it, to see that it runs")
    options = parser.parse_args()
    items = QUICK_ITEMS if options.quick else options.items
    batch_bytes = (QUICK_MEGABYTES if options.quick else options.batch_megabytes) << 20
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, lmdb {lmdb.__version__}, "
        f"LMDB {'.'.join(map(str, lmdb.version()))}"
    )
    gc.disable()  # as the writer process does: the batches made here are large lists
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.directory) as directory:
        for vbuckets in (1024, 1):
            measure(vbuckets, items, batch_bytes, Path(directory))


if __name__ == "__main__":
    main()
