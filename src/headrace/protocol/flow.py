"""How much of a stream may be on its way: the window of a connection.

Every stream message counts with its header and its body, answers and noops do not. A producer stops once what is not
acknowledged has reached the limit, so the last message may pass it (capture 06c_dcp_flow_control: 349 bytes of 300).
"""

from __future__ import annotations

UNBOUNDED = 1 << 62


class Window:
    """What a producer has sent and its consumer has not acknowledged. A limit of 0 means no window."""

    __slots__ = ("acked_total", "limit_bytes", "unacked")

    def __init__(self) -> None:
        self.limit_bytes = 0
        self.unacked = 0
        self.acked_total = 0

    @property
    def room(self) -> int:
        """How many bytes may be sent; the message that reaches them may pass them."""
        return self.limit_bytes - self.unacked if self.limit_bytes else UNBOUNDED

    def sent(self, size: int) -> None:
        """Count a message."""
        if self.limit_bytes:
            self.unacked += size

    def acked(self, size: int) -> None:
        """The consumer has worked off so much; who acknowledges more than it got has acknowledged all."""
        self.acked_total += size
        self.unacked = max(0, self.unacked - size)
