"""The records of a vbucket straight from the pages of LMDB's file, for streams from disk.

A cursor makes an object of each record, and those objects are joined again to be sent: a third of a microsecond each,
most of what a stream costs. A read transaction keeps every page that is reachable from its root as it is, so a compiled
loop can walk the tree in a map of its own and copy the records one behind the other. The loop (`node.pages_kernel`) is
given by `use`; without it, and wherever it meets something that it does not expect, the cursor does the same.

A page of LMDB (version 1 of its format, numbers in the machine's order):

    header  16 bytes: page number 8, unused 2, flags 2 (branch 1, leaf 2, overflow 4), end of the pointers 2, ...
    pointers  2 bytes each: where a node begins
    node    8 bytes and the key: size or page number in 4 (and 2) bytes, flags 2, key length 2, key, value

A value that does not fit into a page is in pages of its own, one behind the other; its node has their number. What is
kept of a database is 48 bytes: the depth of its tree stands at 6, the number of its root at 40.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from array import array
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import lmdb

    from headrace.store.environment import Environment

(
    A_MAP,
    A_MAP_BYTES,
    A_PAGE_BYTES,
    A_ROOT,
    A_DEPTH,
    A_FIRST,
    A_STACK,
    A_IS_BEGUN,
    A_OUT,
    A_OUT_BYTES,
    A_SIZE,
    A_OUTCOME,
    ARGUMENTS,
) = range(13)
"""The kernel's arguments: one block of 64-bit numbers, addresses among them."""

MORE, END, BAD, TOO_LARGE = range(4)
"""How the kernel stopped: no room for the next record, nothing left, a page that is none, a record above all room."""

PAGE_HEADER_BYTES = 16
PAGE_FLAGS_AT = 10
POINTERS_END_AT = 12
NODE_HEADER_BYTES = 8
IS_BRANCH, IS_LEAF, IS_OVERFLOW = 1, 2, 4
IS_LARGE = 1
DEPTH_MAX = 16

_DATABASE = Struct("=4xHH32xQ")
_NO_PAGE = (1 << 64) - 1
_CHAR = ctypes.c_char


class _Map(NamedTuple):
    """A map of the file, and where it begins. It has all that the transaction with the id has, and those before it."""

    view: mmap.mmap
    address: int
    size: int
    page_bytes: int
    txn_id: int


class _Kernel:
    """The compiled loop, once somebody has given it."""

    walk: Callable[[int], None] | None = None


def use(walk: Callable[[int], None]) -> None:
    """Have streams from disk use the compiled loop from now on."""
    if sys.byteorder == "little":
        _Kernel.walk = staticmethod(walk)


_maps: weakref.WeakKeyDictionary[Environment, _Map] = weakref.WeakKeyDictionary()


def _map_of(environment: Environment, txn_id: int) -> _Map:
    """The file, mapped as far as a transaction goes. An older, shorter map lives for as long as somebody walks in it.

    The file grows by transactions alone: what was mapped for one need not be measured again for the next stream.
    """
    known = _maps.get(environment)
    if known is not None and known.txn_id >= txn_id:
        return known
    path = environment.data_file
    size = path.stat().st_size
    if known is not None and known.size >= size:
        made = known._replace(txn_id=txn_id)
    else:
        with path.open("rb") as file:
            view = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        made = _Map(view, address_of(view), size, environment.lmdb.stat()["psize"], txn_id)
    _maps[environment] = made
    return made


def address_of(view: mmap.mmap) -> int:
    """Where a map that cannot be written to begins: ctypes gives the address of what can be written alone."""
    import numpy as np  # noqa: PLC0415 - the writer's process, which imports this package, has no use for it

    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


class PageWalk:
    """A walk over the records of one database, from a seqno on. Its transaction must stay open until its end."""

    def __init__(self, walk: Callable[[int], None], mapped: _Map, arguments: dict[int, int]) -> None:
        self._walk = walk
        self._mapped = mapped
        self._stack = array("q", bytes(16 * DEPTH_MAX))
        self._args = array("q", bytes(8 * ARGUMENTS))
        self._address = self._args.buffer_info()[0]
        for place, number in arguments.items():
            self._args[place] = number
        self._args[A_MAP], self._args[A_MAP_BYTES] = mapped.address, mapped.size
        self._args[A_STACK] = self._stack.buffer_info()[0]
        self.outcome = MORE

    def fill(self, room: bytearray, bytes_max: int) -> int:
        """Copy records to a room, `bytes_max` of them at most; gives how many bytes that are, and sets `outcome`.

        With TOO_LARGE it gives how much room the next record takes.
        """
        args = self._args
        pin = _CHAR.from_buffer(room)
        args[A_OUT], args[A_OUT_BYTES] = ctypes.addressof(pin), bytes_max
        self._walk(self._address)
        del pin
        self.outcome = args[A_OUTCOME]
        return args[A_SIZE]


def walk_from(environment: Environment, txn: lmdb.Transaction[bytes], database: bytes, first: int) -> PageWalk | None:
    """A walk from a seqno on through a database as a transaction sees it; None where the cursor has to do."""
    walk = _Kernel.walk
    if walk is None:
        return None
    described = txn.get(database)
    if described is None or len(described) != _DATABASE.size:
        return None
    flags, depth, root = _DATABASE.unpack(described)
    if flags or not 0 < depth <= DEPTH_MAX or root == _NO_PAGE:
        return None
    mapped = _map_of(environment, txn.id())
    arguments = {
        A_PAGE_BYTES: mapped.page_bytes,
        A_ROOT: root,
        A_DEPTH: depth,
        A_FIRST: first,
    }
    return PageWalk(walk, mapped, arguments)
