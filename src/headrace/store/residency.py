"""Keeps a process from seeming to hold the whole store in memory.

Every page of the file that a process looks at through the map counts as its resident memory until the system takes it
back, which the system does only when memory runs short. All of it is the system's cache, but limits and alarms look at
the sum. So when more than a bound is mapped, the process says that it needs none of it (MADV_DONTNEED): the pages leave
its account and stay in the cache, and the next look brings back those that are wanted, at the price of a minor fault.
This is safe at any time and beside any reader: LMDB's map is shared and never written through.

Linux only; elsewhere nothing is done.

The same for memory of its own: LMDB keeps every page that the largest transaction so far has touched, for the next
one, and that grows with the store. A process that only writes can let go of it between two transactions.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

MAPPED_BYTES_MAX = max(256 << 20, os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 8)
"""How much of files a process may have mapped and seen before it lets go of what it saw of the store.

An eighth of the machine's memory: to see a page again after that costs as much as to copy it, and a stream from disk
sees every page.
"""

STATM = Path("/proc/self/statm")
MAPS = Path("/proc/self/maps")
RESIDENT_FIELD = 1
SHARED_FIELD = 2


def trim(data_file: Path) -> None:
    """Let go of the pages of a mapped file, if this process has many pages of files."""
    try:
        pages = int(STATM.read_bytes().split()[SHARED_FIELD])
        if pages * mmap.PAGESIZE <= MAPPED_BYTES_MAX:
            return
        lines = MAPS.read_bytes().splitlines()
    except OSError:
        return
    name = os.fsencode(data_file.resolve())
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in lines:
        if line.endswith(name):
            start, end = (int(address, 16) for address in line.split(maxsplit=1)[0].split(b"-"))
            # That it fails is no harm: the pages stay until the system wants them.
            madvise(start, end - start, mmap.MADV_DONTNEED)


def anonymous_bytes() -> int:
    """How much memory of its own this process has; 0 where the system does not say."""
    try:
        fields = STATM.read_bytes().split()
    except OSError:
        return 0
    return (int(fields[RESIDENT_FIELD]) - int(fields[SHARED_FIELD])) * mmap.PAGESIZE


def return_heap() -> None:
    """Give freed memory back to the system, where the C library can."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
