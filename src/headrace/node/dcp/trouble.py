"""Trouble between a producer and its line, where a test has asked for it: a slow, a cut, a frozen connection.

A `Trouble` is the line of its producer: what the producer sends goes through it. Beside that the producer asks it
before it takes a message (`answers`) and before it sends (`advance`). A producer without trouble has none of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ids import Seqno
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import ErrorReply, Rollback, StreamRequest
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.dcp.ends import Line
    from headrace.protocol.trouble import Cut, Throttle
    from headrace.wire import Message

_DRAFT_LAYOUT = StreamRequest.spec.layouts[Dialect.UPR_DRAFT][0].name
WHY_CUT = "it was cut on purpose (chaos)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How a stream request is refused on purpose."""

    status: int
    seqno: int

    def reply(self, request: StreamRequest) -> bytes:
        """The bytes of the answer; a request with a group is the draft's."""
        of_draft = request.layout == _DRAFT_LAYOUT
        opcode = request.spec.opcodes[Dialect.UPR_DRAFT if of_draft else Dialect.DCP]
        if self.status == Status.ROLLBACK:
            back = Rollback(opcode=opcode, opaque=request.opaque, status=self.status, seqno=Seqno(self.seqno))
            return encode(back)
        return encode(ErrorReply(opcode=opcode, opaque=request.opaque, status=self.status))


class Trouble:
    """A line that is not as it should be."""

    def __init__(self, line: Line) -> None:
        self.peer = line.peer
        self.wake = line.wake  # the same one: whoever has it as a watcher forgets it by its name
        self.throttle: Throttle | None = None
        self.cut: Cut | None = None
        self.refusal_of: Callable[[StreamRequest], Refusal | None] | None = None
        """Asked for every stream request: whether it is refused, and how."""
        self._line = line
        self._held: list[bytes] | None = None
        self._is_cut = False

    # ------------------------------------------------------------------------------------------- asked by the producer

    def answers(self, message: Message) -> bool:
        """Whether a message was answered here, so that the producer has nothing to do with it."""
        if self.refusal_of is None or not isinstance(message, StreamRequest):
            return False
        refusal = self.refusal_of(message)
        if refusal is None:
            return False
        self.send(refusal.reply(message))
        return True

    def advance(self, now: float) -> bool:
        """Time goes on; False when nothing may be sent, whatever there is."""
        if self.throttle is not None:
            self.throttle.advance(now)
        return self._held is None and not self._is_cut

    def deadline(self, due: float | None) -> float | None:
        """When the producer is to be asked again, if it is to be asked at `due` for its own sake."""
        if self._held is not None or self._is_cut:
            return None
        room_at = self.throttle.deadline if self.throttle is not None else None
        if due is None or room_at is None:
            return due if room_at is None else room_at
        return min(due, room_at)

    # ---------------------------------------------------------------------------------------------------- as its line

    def begin(self) -> None:
        """The connection has become an end of streams."""
        self._line.begin()

    def room_bytes(self) -> int:
        """How much may be sent now."""
        if self._held is not None or self._is_cut:
            return 0
        room = self._line.room_bytes()
        return room if self.throttle is None else min(room, self.throttle.room)

    def send(self, block: bytes | memoryview) -> None:
        """Send whole messages, as far as the trouble lets them."""
        if self._is_cut:
            return
        if self._held is not None:
            self._held.append(bytes(block))
            return
        if self.throttle is not None:
            self.throttle.sent(len(block))
        end = None if self.cut is None else self.cut.take(block)
        if end is None:
            self._line.send(block)
            return
        if end:
            self._line.send(block[:end])
        self.leave(WHY_CUT)

    def leave(self, why: str) -> None:
        """Close the connection without an answer; what comes after that goes nowhere."""
        self._is_cut = True
        self._line.leave(why)

    def finish(self, why: str) -> None:
        """Close the connection when the peer has read all."""
        if not self._is_cut:
            self._line.finish(why)

    # ---------------------------------------------------------------------------------------------------- told by chaos

    @property
    def is_frozen(self) -> bool:
        """Whether everything is held back."""
        return self._held is not None

    def freeze(self) -> None:
        """Hold everything back from now on."""
        if self._held is None:
            self._held = []

    def thaw(self) -> None:
        """Let go of what was held back, and go on."""
        held, self._held = self._held or [], None
        for block in held:
            self.send(block)
        self.wake()

    def arm(self, cut: Cut | None) -> None:
        """Cut the connection where this says; None takes an earlier order back."""
        self.cut = cut
        if cut is not None and cut.is_now:
            self.leave(WHY_CUT)
