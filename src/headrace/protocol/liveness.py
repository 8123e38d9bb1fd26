"""Whether the consumer of a connection still lives: noops that it must answer.

A producer that was told to (`enable_noop`) asks once an interval, as long as there is a stream. A noop that is not
answered by the time of the next one, or answered with another opaque, ends the connection (capture 06b_dcp_noop).
"""

from __future__ import annotations

from enum import Enum

FIRST_OPAQUE = 10_000_000
"""The number before that of the first noop: servers count from here, far from what consumers choose."""
INTERVAL_S_DEFAULT = 180.0
_OPAQUE_MAX = 0xFFFF_FFFF


class Due(Enum):
    """What it is time for."""

    NOTHING = "nothing"
    NOOP = "ask for a sign of life"
    DEAD = "the consumer did not answer"


class Liveness:
    """The noops of one connection."""

    __slots__ = ("_asked_at", "_opaque", "_unanswered", "enabled", "interval_s")

    def __init__(self) -> None:
        self.enabled = False
        self.interval_s = INTERVAL_S_DEFAULT
        self._opaque = FIRST_OPAQUE
        self._asked_at: float | None = None
        self._unanswered = False

    @property
    def opaque(self) -> int:
        """The opaque of the last noop."""
        return self._opaque

    def deadline(self, *, streams: int) -> float | None:
        """When `due` is to be asked again; None when nothing will be due."""
        if not self.enabled or (not streams and not self._unanswered):
            return None
        return 0.0 if self._asked_at is None else self._asked_at + self.interval_s

    def due(self, now: float, *, streams: int) -> Due:
        """What is to be done now. The first interval begins when the first stream is seen."""
        if not self.enabled or (not streams and not self._unanswered):
            self._asked_at = None
            return Due.NOTHING
        if self._asked_at is None:
            self._asked_at = now
            return Due.NOTHING
        if now < self._asked_at + self.interval_s:
            return Due.NOTHING
        if self._unanswered:
            return Due.DEAD
        self._asked_at = now
        self._unanswered = True
        self._opaque = self._opaque % _OPAQUE_MAX + 1
        return Due.NOOP

    def answered(self, opaque: int) -> bool:
        """Take the answer to a noop; False when it answers none. Some consumers turn the bytes of an opaque round."""
        swapped = int.from_bytes(self._opaque.to_bytes(4, "big"), "little")
        if not self._unanswered or opaque not in {self._opaque, swapped}:
            return False
        self._unanswered = False
        return True
