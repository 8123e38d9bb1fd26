"""The CAS clock: a hybrid logical clock in nanoseconds.

The upper 48 bits are the time of day, the lower 16 count changes within one tick. It never goes back, whatever the
system's clock does: a CAS is greater than every CAS given out or seen before. `tick` is called once for a block of
requests and `next` for each change, so the system's clock is read once a block.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGICAL_BITS = 0xFFFF
_AHEAD_NS_MAX = 24 * 3600 * 1_000_000_000


class CasClock:
    """Gives every change of a bucket its CAS; `seconds` is the time of the last tick."""

    __slots__ = ("_now_ns", "last", "seconds")

    def __init__(self, last: int = 0, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.last = last
        self.seconds = 0
        self._now_ns = now_ns
        self.tick()

    def tick(self, now_ns: int | None = None) -> None:
        """Look at the system's clock."""
        now_ns = self._now_ns() if now_ns is None else now_ns
        self.seconds = now_ns // 1_000_000_000
        self.last = max(self.last, now_ns & ~_LOGICAL_BITS)

    def next(self) -> int:
        """Give the CAS of one more change."""
        self.last += 1
        return self.last

    def see(self, cas: int) -> None:
        """Stay ahead of a CAS that came from elsewhere, unless it is from a clock that is days off."""
        if self.last < cas < self._now_ns() + _AHEAD_NS_MAX:
            self.last = cas
