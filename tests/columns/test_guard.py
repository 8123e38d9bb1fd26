"""The kernel reads by address: nothing stops it but its own care. Here a page that may not be touched does."""

from __future__ import annotations

import subprocess
import sys

import pytest

GUARDED = """
import ctypes, mmap, random, sys
from headrace.columns import Positions, Settings, decode_changes
from headrace.wire import Dialect, deflate, encode, encode_collection, join_xattrs
from headrace.wire.catalogue import Deletion, DcpFlush, Mutation, SnapshotMarker

PAGE = mmap.PAGESIZE
area = mmap.mmap(-1, 17 * PAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(start + 16 * PAGE), ctypes.c_size_t(PAGE), 0) == 0

draw = random.Random(int(sys.argv[1]))
document = join_xattrs({b"_sync": b"{}", b"b": b"1"}, b"x" * 40)
frames = [
    encode(Mutation(by_seqno=1, rev_seqno=1, key=b"k" * size, value=value, datatype=datatype))
    for size in (1, 7, 8, 9, 16, 17, 40)
    for value, datatype in ((b"", 0), (b"v" * 9, 1), (deflate(b"ab" * 50), 2), (document, 4), (deflate(document), 6))
]
frames += [encode(Deletion(by_seqno=1, rev_seqno=1, key=b"\\0k")), encode(DcpFlush())]
frames += [encode(SnapshotMarker(start_seqno=1, end_seqno=2, flags=1))]
for _ in range(4000):
    stream = bytearray(b"".join(draw.choices(frames, k=draw.randint(1, 5))))
    for _ in range(draw.randint(0, 4)):
        stream[draw.randrange(len(stream))] = draw.choice((0, 1, 2, 8, 31, 127, 128, 255, draw.randrange(256)))
    stream = bytes(stream[: draw.randint(0, len(stream))])
    area[16 * PAGE - len(stream) : 16 * PAGE] = stream
    held = memoryview(area)[16 * PAGE - len(stream) : 16 * PAGE]
    settings = Settings(collections=draw.choice((None, {})), keys=draw.choice(("text", "binary")))
    decode_changes(held, settings, Positions()).rows.validate(full=True)
    held.release()
print("all read")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="guards memory with Linux's mprotect")
@pytest.mark.parametrize("seed", [1, 2])
def test_kernel_reads_nothing_behind_its_input(seed: int):
    """Streams, right and damaged, that end where readable memory ends are decoded without touching what lies behind."""
    done = subprocess.run([sys.executable, "-c", GUARDED, str(seed)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "all read"), done.stderr[-2000:]
