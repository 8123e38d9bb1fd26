"""What a session has after DCP OPEN: one end of a stream connection, and the line that it talks through.

An end knows neither sockets nor tasks, so that a simulation can run it too. Whoever owns it brings it messages, calls
`pump` when something may have changed, and at the latest at `deadline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.wire.message import Message


class Line(Protocol):
    """The way from an end to its peer."""

    peer: str
    """The other side, as logs and stats show it."""

    def begin(self) -> None:
        """The connection has become an end of streams."""
        ...

    def send(self, block: bytes | memoryview) -> None:
        """Send whole messages, behind all that was sent before."""
        ...

    def room_bytes(self) -> int:
        """How much may be sent now before the peer has to read; 0 or less for nothing."""
        ...

    def leave(self, why: str) -> None:
        """Close the connection without an answer."""
        ...

    def finish(self, why: str) -> None:
        """Close the connection when the peer has read all that was sent, however long that takes it."""
        ...

    def wake(self) -> None:
        """Have `pump` called soon: something may have changed."""
        ...


class DcpEnd(Protocol):
    """One end of a connection that was opened for streams."""

    name: str
    is_producer: bool

    @property
    def deadline(self) -> float | None:
        """When `pump` is to be called next at the latest; None for never."""
        ...

    def stats(self) -> Iterator[tuple[str, object]]:
        """What the stats of the connection tell, by name."""
        ...

    def receive(self, message: Message, now: float) -> None:
        """Take a DCP request or an answer from the peer."""
        ...

    def pump(self, now: float) -> bool:
        """Send what there is to send; True when there is more of it, and room for it."""
        ...

    def close(self) -> None:
        """The connection is gone."""
        ...
