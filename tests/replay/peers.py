"""The client's side of a replay: connections that are read all at once, and what their streams have brought.

How a server groups live items into snapshots differs from run to run of one server. So of the markers after the first
one of a stream only this is kept: each item lies within the marker before it, and which flags markers had.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.wire import Frame, FrameReader, Header, Message, NeedData
from headrace.wire.catalogue import SnapshotMarker
from headrace.wire.codec import decode
from tests.replay.matching import ITEMS, Item, identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NEW_CHECKPOINT = 0x04
"""The flag of a marker that says how its server groups items: two runs of one server differ in it."""
_CONNECT_S = 10.0


@dataclass(slots=True)
class Got:
    """A message of our node that no line of the capture has claimed yet."""

    number: int
    """Which message of its connection it is."""
    wire: bytes
    message: Message
    overtaken: bool = False
    """A later message was claimed first, or the line where it came had no place for it: told once."""


@dataclass(slots=True)
class Stream:
    """What one stream of our node has brought, by what it said."""

    markers: int = 0
    end: int = 0
    previous_end: int = 0
    last: int = 0
    expects_first: bool = False
    start: int = 0
    live_flags: set[int] = field(default_factory=set)
    newest: dict[bytes, int] = field(default_factory=dict)
    """The last seqno of each key."""

    @property
    def is_live(self) -> bool:
        """Whether the first snapshot is over."""
        return self.markers > 1

    def mark(self, marker: SnapshotMarker) -> None:
        """A snapshot begins."""
        assert marker.start_seqno is not None
        assert marker.end_seqno is not None
        self.markers += 1
        self.previous_end = self.end
        self.start, self.end, self.expects_first = marker.start_seqno, marker.end_seqno, True
        if self.is_live:
            self.live_flags.add((marker.flags or 0) & ~NEW_CHECKPOINT)

    def take(self, item: Item) -> Iterable[tuple[str, object, object]]:
        """A change comes; give what is wrong with its place, and where its snapshot does not begin with it."""
        if self.is_live and self.expects_first and self.start != item.by_seqno:
            ours = self.start == self.previous_end
            yield "start_seqno of live markers" if ours else "start_seqno", item.by_seqno, self.start
        if not self.start <= item.by_seqno <= self.end or item.by_seqno <= self.last:
            yield "place in its snapshot", f"after {self.last}, in {self.start}..{self.end}", item.by_seqno
        self.expects_first = False
        self.last = item.by_seqno
        self.newest[item.key] = item.by_seqno


class Peer:
    """One connection to our node."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.socket = socket.create_connection((host, port), timeout=_CONNECT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        self.waiting: list[Got] = []
        self.streams: dict[int, Stream] = {}
        self._reader = FrameReader()
        self._count = 0

    def send(self, wire: bytes) -> bool:
        """Send bytes; false where the node has closed the connection."""
        try:
            self.socket.sendall(wire)
        except OSError:
            self.closed = True
        return not self.closed

    def receive(self) -> list[Got]:
        """Take in what has come."""
        try:
            data = self.socket.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        self._reader.receive(data)
        got = []
        while not isinstance(frame := self._reader.next_frame(), NeedData):
            self._count += 1
            got.append(Got(self._count, _wire(frame), decode(frame)))
        return got

    def claim(self, wanted: tuple[object, ...]) -> Got | None:
        """Take out the first message of an identity."""
        for position, got in enumerate(self.waiting):
            if identity(got.message, Header.parse(got.wire).opaque) == wanted:
                return self.waiting.pop(position)
        return None

    def close(self) -> None:
        """Close the connection from here."""
        self.closed = True
        self.socket.close()


def _wire(frame: Frame) -> bytes:
    return frame.header.pack() + bytes(frame.body)


class Peers:
    """All connections of a replay. Whatever is waited for, all of them are read."""

    def __init__(self, on_message: Callable[[Peer, Got], None]) -> None:
        self.by_name: dict[str, Peer] = {}
        self._on_message = on_message

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Read until something is so; false when the time is over."""
        end = time.monotonic() + seconds
        while not until():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._read(left)
        return True

    def forget(self, peer: Peer) -> None:
        """Close a connection whose name may be used again."""
        peer.close()
        del self.by_name[peer.name]

    def settle(self, seconds: float) -> None:
        """Read for a while."""
        self.wait(lambda: False, seconds)

    def close(self) -> None:
        """Close all."""
        for peer in self.by_name.values():
            with contextlib.suppress(OSError):
                peer.close()

    def _read(self, seconds: float) -> None:
        sockets = {peer.socket: peer for peer in self.by_name.values() if not peer.closed}
        if not sockets:
            time.sleep(min(seconds, 0.01))
            return
        ready, _, _ = select.select(list(sockets), [], [], seconds)
        for one in ready:
            for got in sockets[one].receive():
                self._on_message(sockets[one], got)


def place_of(peer: Peer, got: Got) -> Iterable[tuple[str, object, object]]:
    """Enter a message in the stream that it belongs to; give what is wrong with its place."""
    message = got.message
    if isinstance(message, SnapshotMarker):
        peer.streams.setdefault(message.opaque, Stream()).mark(message)
    elif isinstance(message, ITEMS):
        yield from peer.streams.setdefault(message.opaque, Stream()).take(message)
