"""Two ends of a stream connection, joined in memory: what one sends the other receives, in pieces, late, or not at all.

    end A --send--> line A --pieces, delays--> frames, decoded as a node does it --receive--> end B      and back

A line is what an end talks through (`headrace.node.dcp.ends.Line`): it calls `pump` soon after `wake`, at the latest at
`deadline`, and when the peer has read after there was no room. A cut takes effect at any byte of either direction; each
end hears of it on its own, as it is with real connections, or never. All that is random comes from the generator that
is given, and time from the loop: with a `SimLoop` two runs are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.wire import Dialect, Frame, Malformed, Unknown, decode
from headrace.wire.catalogue import StreamRequest
from headrace.wire.header import REQUEST_MAGICS, Header
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from random import Random

    from headrace.node.dcp.ends import DcpEnd
    from headrace.wire import Message

WAKE_S = 0.002
"""How long changes gather before an end is asked to send them, as at a node."""
BLOCK_SHARE = 0.5
"""How often a piece is given to an end as a block, where it takes blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How bytes travel: the delay of a piece, its largest size, and what may be on its way before there is no room."""

    delay_s: float = 0.001
    piece_bytes_max: int = 1 << 16
    room_bytes: int = 1 << 20


class MemoryLine:
    """One end's line: it sends into one direction of the link and receives from the other."""

    def __init__(self, link: Link, peer: str, rng: Random) -> None:
        self.peer = peer
        self.end: DcpEnd | None = None
        self.other: MemoryLine
        self.dialect = Dialect.DCP
        """What this end may receive: UPR is a choice of the reader."""
        self.is_open = True
        """Whether this end still believes in the connection."""
        self.divert: Callable[[bytes], bool] | None = None
        """Looks at each message that is sent; True takes it out of the link. For a manager's answers."""
        self._link = link
        self._rng = rng
        self._way: list[bytes] = []
        self._way_bytes = 0
        self._moves = False
        self._rest = b""
        self._wakes: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._was_full = False

    # ------------------------------------------------------------------------------------------- what the end calls

    def begin(self) -> None:
        """Nothing to prepare."""

    def send(self, block: bytes | memoryview) -> None:
        """Put whole messages on their way."""
        data = bytes(block)
        if not self.is_open or (self.divert is not None and self.divert(data)):
            return
        self._way.append(data)
        self._way_bytes += len(data)
        self._move()

    def room_bytes(self) -> int:
        """How much may be sent before the peer has to read."""
        room = self._link.pace.room_bytes - self._way_bytes
        self._was_full = room <= 0
        return room

    def leave(self, why: str) -> None:
        """Close the connection; the end itself hears of it when it is done with what it does now."""
        self._link.closed(self, why)

    def finish(self, why: str) -> None:
        """Close the connection; what was sent before still arrives."""
        self._link.closed(self, why)

    def wake(self) -> None:
        """Have `pump` called soon."""
        if self._wakes is None and self.is_open:
            self._wakes = self._link.loop.call_later(WAKE_S * (0.5 + self._rng.random()), self.pump)

    # ------------------------------------------------------------------------------------------------ what is moved

    def pump(self) -> None:
        """Let the end send what it has."""
        if self._wakes is not None:
            self._wakes.cancel()
            self._wakes = None
        if not self.is_open or self.end is None:
            return
        if self.end.pump(self._link.loop.time()):
            self.wake()
        self.arm()

    def arm(self) -> None:
        """See to it that the end is asked at its deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.end.deadline if self.end is not None and self.is_open else None
        if at is not None:
            self._timer = self._link.loop.call_at(max(at, self._link.loop.time() + WAKE_S), self.pump)

    def _move(self) -> None:
        """Let the next piece arrive after a while."""
        if self._way and not self._moves and not self._link.is_cut:
            self._moves = True
            delay_s = self._link.pace.delay_s * (0.1 + 2 * self._rng.random())
            self._link.loop.call_later(delay_s, self._arrive)

    def _arrive(self) -> None:
        self._moves = False
        if self._link.is_cut or not self._way:
            return
        joined = b"".join(self._way)
        size = min(len(joined), self._rng.randint(1, self._link.pace.piece_bytes_max))
        self._way = [joined[size:]] if size < len(joined) else []
        self._way_bytes -= size
        self.other.take(joined[:size])
        if self._was_full and self.is_open:
            self.wake()
        self._move()

    def take(self, piece: bytes) -> None:
        """Receive bytes: whole frames go to the end, the rest is kept."""
        data, at = self._rest + piece, 0
        loop, end = self._link.loop, self.end
        # A node gives runs of items to its consumer as bytes; one by one must come to the same.
        take_block = getattr(end, "receive_block", None) if self._rng.random() < BLOCK_SHARE else None
        while end is not None and self._listens():
            if take_block is not None:
                at = take_block(data, at, loop.time())
            if at + HEADER_BYTES > len(data) or not self._listens():
                break
            header = Header.parse(data, at)
            stop = at + HEADER_BYTES + header.body_length
            if stop > len(data):
                break
            self._receive(end, Frame(header, data[at + HEADER_BYTES : stop]), loop.time())
            at = stop
        self._rest = data[at:]
        self.arm()

    def _listens(self) -> bool:
        return self.is_open

    def _receive(self, end: DcpEnd, frame: Frame, now: float) -> None:
        """Decode a frame as a node does it."""
        message: Message = decode(frame, Dialect.DCP)
        if isinstance(message, Malformed) and (message.command is StreamRequest.spec or self.dialect is Dialect.UPR):
            message = decode(frame, Dialect.UPR)  # which has shorter forms of requests and items
        if isinstance(message, Unknown) or (isinstance(message, Malformed) and end.is_producer):
            kind = "request" if frame.header.magic in REQUEST_MAGICS else "answer"
            self.leave(f"{kind} 0x{frame.header.opcode:02x} cannot be read: {message!r}")
            return
        end.receive(message, now)

    def cut_link(self, here_s: float | None, there_s: float | None) -> None:
        """Cut the link of this line; this end and the other one hear of it after so long."""
        ours, others = (here_s, there_s) if self is self._link.a else (there_s, here_s)
        self._link.cut(a_hears_s=ours, b_hears_s=others)

    def hang_up(self) -> None:
        """The connection is gone for this end, and it hears of it."""
        if self.is_open:
            self.forget()
            if self.end is not None:
                self.end.close()

    def forget(self) -> None:
        """The connection is gone for this end, and nobody is there to hear of it: its node has crashed."""
        self.is_open = False
        for timer in (self._wakes, self._timer):
            if timer is not None:
                timer.cancel()


class Link:
    """A connection between two ends; `join` sets them on their lines."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: Random,
        *,
        pace: Pace | None = None,
        names: tuple[str, str] = ("a", "b"),
    ) -> None:
        self.loop = loop
        self.pace = pace or Pace()
        self.is_cut = False
        """Whether no more bytes arrive anywhere."""
        self.why = ""
        """Why the link ended, once it has."""
        self._rng = rng
        self.a = MemoryLine(self, names[1], rng)
        self.b = MemoryLine(self, names[0], rng)
        self.a.other, self.b.other = self.b, self.a

    def join(self, a: DcpEnd, b: DcpEnd) -> None:
        """Give each line its end."""
        self.a.end, self.b.end = a, b
        self.a.wake()
        self.b.wake()

    @property
    def is_open(self) -> bool:
        """Whether bytes still travel, and both ends believe in it."""
        return not self.is_cut and self.a.is_open and self.b.is_open

    def closed(self, line: MemoryLine, why: str) -> None:
        """One end has closed the connection: what it sent before still arrives, then the other end hears of it."""
        if not line.is_open:
            return
        self.why = self.why or why
        line.is_open = False  # takes and sends nothing from here on
        self.loop.call_soon(self._closed, line)

    def _closed(self, line: MemoryLine) -> None:
        line.is_open = True
        line.hang_up()
        self._drain(line)

    def _drain(self, line: MemoryLine) -> None:
        """Let the last bytes arrive before the end of them is heard."""
        if line._way and not self.is_cut and line.other.is_open:  # noqa: SLF001 - a line is a part of its link
            self.loop.call_later(self.pace.delay_s, self._drain, line)
        else:
            self.loop.call_later(self.pace.delay_s * (0.1 + self._rng.random()), line.other.hang_up)

    def cut(self, *, a_hears_s: float | None = 0.0, b_hears_s: float | None = 0.0, why: str = "cut") -> None:
        """Lose all that is on its way, now. Each end hears of it after so long; None: not from the link."""
        self.is_cut = True
        self.why = self.why or why
        for line, hears_s in ((self.a, a_hears_s), (self.b, b_hears_s)):
            if hears_s is not None:
                self.loop.call_later(hears_s, line.hang_up)
