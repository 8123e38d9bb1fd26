"""Which messages of a TAP connection are not acknowledged yet, and what an ack or its refusal means for them.

Every message has a number, its opaque. A client that supports acks answers those that ask for it, and an answer is for
all that was sent before, too. A refusal is for its own message; what came before it has arrived (ep-engine's
tapconnection.cc, capture 08f2_tap_ack_live). What is kept of a message is eight bytes, and there is a bound for them.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
OPAQUE_BITS = 0xFFFF_FFFF


class Part(NamedTuple, Generic[T]):
    """Some messages that were sent one after the other, of one kind: what, and from which seqno to which.

    What has no seqnos has 0 for both.
    """

    what: T
    first: int
    last: int


@dataclass(slots=True)
class _Run(Generic[T]):
    what: T
    seqnos: array[int]


class AckLog(Generic[T]):
    """Numbers the messages of a connection and, where they are acknowledged, remembers them until then."""

    def __init__(self, *, interval: int, window: int, acks: bool) -> None:
        self.acks = acks
        self.last = 0
        """The number of the last message."""
        self._interval = interval
        self._most = interval * window
        self._runs: deque[_Run[T]] = deque()
        self.unacked = 0
        """How many messages are not acknowledged."""
        self._since_asked = 0
        """How many of these came after the last one that asked for an ack."""

    @property
    def room(self) -> int:
        """How many messages may be sent before an ack must come."""
        return self._most - self.unacked if self.acks else self._most

    @property
    def awaits_ack(self) -> bool:
        """Whether the client was asked for an ack, and owes it."""
        return self.unacked > self._since_asked

    def asks(self, opaque: int) -> bool:
        """Whether a message asks for an ack by its number."""
        return self.acks and opaque % self._interval == 0

    def sent(self, what: T, seqnos: Sequence[int] = (0,), *, asked: int | None = None) -> None:
        """Messages were sent, with the next numbers; `asked` is the place of the last of them that asks for an ack."""
        self.last = (self.last + len(seqnos)) & OPAQUE_BITS
        if not self.acks:
            return
        self.unacked += len(seqnos)
        self._since_asked = self._since_asked + len(seqnos) if asked is None else len(seqnos) - 1 - asked
        newest = self._runs[-1] if self._runs else None
        if newest is not None and newest.what == what:
            newest.seqnos.extend(seqnos)
        else:
            self._runs.append(_Run(what, array("Q", seqnos)))

    def acked(self, opaque: int) -> list[Part[T]] | None:
        """Take an ack; gives what has arrived with it, and None when there is no such message (any more)."""
        before = self._before(opaque)
        return None if before is None else self._take(before + 1)

    def refused(self, opaque: int) -> tuple[list[Part[T]], list[Part[T]]] | None:
        """Take a refusal; gives what has arrived before it, and what is to be sent again: nothing waits after that."""
        before = self._before(opaque)
        return None if before is None else (self._take(before), self._take(self.unacked))

    def _before(self, opaque: int) -> int | None:
        """How many messages that are not acknowledged were sent before one."""
        back = (self.last - opaque) & OPAQUE_BITS
        return self.unacked - 1 - back if back < self.unacked else None

    def _take(self, count: int) -> list[Part[T]]:
        parts: list[Part[T]] = []
        self.unacked -= count
        self._since_asked = min(self._since_asked, self.unacked)
        while count:
            run = self._runs[0]
            taken = run.seqnos[:count]
            parts.append(Part(run.what, taken[0], taken[-1]))
            if len(taken) == len(run.seqnos):
                self._runs.popleft()
            else:
                del run.seqnos[: len(taken)]
            count -= len(taken)
        return parts
