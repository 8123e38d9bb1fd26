"""Blocks of memory that are used again once nobody has them any more.

The system clears every page of new memory before it gives it away: for a block that is written once, sent or handed on,
and forgotten, that costs as much as the writing. Whether a block is free is told by its count of references: an Arrow
buffer, a numpy view and a memoryview each hold one on what they lie over.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

BlockT = TypeVar("BlockT", bound="Sized")

KEPT = 2
"""Blocks that are kept, if nobody says otherwise: one that somebody has, and one that is being filled."""
WORTH_BYTES = 256 << 10
"""A smaller block is not worth being kept, and would have a larger one forgotten."""
WASTE_MAX = 4
"""A block that is larger than so many times what is wanted is left alone."""
_UNSHARED = 2
"""What `getrefcount` says of a block that only a list has: one for the list, and one for asking."""


class Spares(Generic[BlockT]):
    """Gives blocks of at least a size; `make` makes a new one. One thread at a time asks."""

    def __init__(self, make: Callable[[int], BlockT], kept: int = KEPT) -> None:
        self._make = make
        self._kept = kept
        self._blocks: list[BlockT] = []

    def take(self, size: int) -> BlockT:
        """A block with room for `size`, with whatever stands in it."""
        if size < WORTH_BYTES:
            return self._make(size)
        for place in range(len(self._blocks)):
            if size <= len(self._blocks[place]) <= WASTE_MAX * size and self._is_free(place):
                return self._blocks[place]
        made = self._make(size + size // 8)  # the next one may be a little larger
        self._blocks = [*self._blocks[1 - self._kept :], made]
        return made

    def _is_free(self, place: int) -> bool:
        return sys.getrefcount(self._blocks[place]) <= _UNSHARED
