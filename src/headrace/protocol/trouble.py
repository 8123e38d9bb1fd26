"""What keeps a connection from running as it should: a rate that it may not pass, and a place where it is cut.

Both see the bytes of whole messages before they are sent. They are made when someone asks for trouble
(`faults`); a connection without trouble knows nothing of them.
"""

from __future__ import annotations

from headrace.wire.header import Header
from headrace.wire.limits import HEADER_BYTES

BURST_S = 0.1
"""For how long a connection may save up what it does not send: at most this much comes at once."""


class Throttle:
    """A token bucket. A message that is larger than what is left goes out whole, and the debt is waited for."""

    __slots__ = ("_left", "_now", "bytes_per_second")

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._left = self._burst
        self._now: float | None = None

    @property
    def _burst(self) -> float:
        return max(1.0, self.bytes_per_second * BURST_S)

    def advance(self, now: float) -> None:
        """Time goes on."""
        passed_s = 0.0 if self._now is None else max(0.0, now - self._now)
        self._left = min(self._burst, self._left + passed_s * self.bytes_per_second)
        self._now = now if self._now is None else max(self._now, now)

    @property
    def room(self) -> int:
        """How many bytes may be sent now; the message that reaches them may pass them."""
        return int(self._left) if self._left >= 1.0 else 0

    def sent(self, size: int) -> None:
        """Count what was sent."""
        self._left -= size

    @property
    def deadline(self) -> float | None:
        """When there is room again; None when there is some."""
        return None if self.room else (self._now or 0.0) + (self._burst - self._left) / self.bytes_per_second


class Cut:
    """Counts down to the place where a connection is cut.

    After `size` more bytes, wherever that falls; or after `messages` more messages, with half of the one that comes
    next where `mid_message` says so.
    """

    __slots__ = ("_is_mid", "_messages", "_size")

    def __init__(self, *, messages: int = 0, size: int | None = None, mid_message: bool = False) -> None:
        assert size is None or (not messages and not mid_message), "bytes are exact: they end where they end"
        self._messages = messages
        self._size = size
        self._is_mid = mid_message

    @property
    def is_now(self) -> bool:
        """Whether nothing more is to be sent, not even half a message."""
        return not self._size and not self._messages and not self._is_mid

    def take(self, block: bytes | memoryview) -> int | None:
        """Count whole messages that are to be sent; give where to cut them, or None when the cut comes later."""
        if self._size is not None:
            if len(block) < self._size:
                self._size -= len(block)
                return None
            return self._size
        at = 0
        while at < len(block) and self._messages:
            at = _end(block, at)
            self._messages -= 1
        if self._messages or (self._is_mid and at == len(block)):
            return None
        return at + (_end(block, at) - at) // 2 if self._is_mid else at


def _end(block: bytes | memoryview, at: int) -> int:
    """Where the message ends that begins there."""
    return at + HEADER_BYTES + Header.parse(block, at).body_length
