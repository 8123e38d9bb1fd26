"""TAP frames from an old server to a server that takes them, as they are; acks back, once the disk has the items.

    source --> frames cut by their lengths --> target
    source <-- acks, held until durable <----- target
                        ^
              barrier: a second connection that asks the target what it has on disk

Items are not decoded. What says something of the stream (backfills, states, refusals) is looked at. Signs of life are
given here: a target that waits for its disk is no reason for the source to give up.

**An ack means the disk.** The source forgets what was acknowledged, and a registered client is not sent it again; a
target that crashes forgets what was in memory alone. So acks wait for the target's disk, as many as have gathered.

A way takes no more in while `WAITING_BYTES_MAX` wait to go out, so that a slow side slows the other down and nothing
gathers here; the source stops by itself when its window of unacknowledged messages is used up.
"""

from __future__ import annotations

import select
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING

from headrace.client.errors import ConnectionLostError, ServerAnswerError
from headrace.client.tap_intake import Progress, refusal
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.pipelines.lines import Line
from headrace.pipelines.relay import Way, read, register
from headrace.wire import Dialect, decode, encode
from headrace.wire.catalogue import (
    Done,
    ErrorReply,
    GetAllVBSeqnos,
    Noop,
    SeqnoPersistence,
    Seqnos,
    TapDelete,
    TapFlush,
    TapMutation,
    TapRequest,
    TapVBucketSet,
)
from headrace.wire.codes import Feature, Magic, Status, TapFlag
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from headrace.client.tap_node import TapConnection
    from headrace.pipelines.servers import Server
    from headrace.wire.message import Request

FEATURES = (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON, Feature.SNAPPY, Feature.XATTR)
"""What is agreed on with a target: whatever datatype an old server names, it may name."""

LATER = frozenset({Status.TEMPORARY_FAILURE, Status.BUSY, Status.OUT_OF_MEMORY})
"""What a target refuses for now: the source sends it again."""


def _opcode(message: type[Request]) -> int:
    return message.spec.opcodes[Dialect.TAP]


_ITEMS = frozenset(map(_opcode, (TapMutation, TapDelete, TapFlush)))
_FLUSH, _NOOP = _opcode(TapFlush), _opcode(Noop)
_REQUEST, _RESPONSE = int(Magic.REQUEST), int(Magic.RESPONSE)
_NOTHING: frozenset[int] = frozenset()
_SPECIFIC, _OPAQUE = Struct(">H"), Struct(">I")
_TAP_FLAGS_AT = HEADER_BYTES + TapMutation.spec.integer("engine_length").size
_ITEM_BYTES_MIN = _TAP_FLAGS_AT + _SPECIFIC.size
"""What is shorter has no flags, and is no item."""
EVERY = 1 << 16
"""Stands for all vbuckets, where a flush is told."""
_CANNOT = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})


class Barrier:
    """Waits, without blocking, until a target has on disk what it took.

    One wait at a time: it asks for the seqnos that vbuckets have, then for word that each is on disk. A target that
    does not know these questions is believed.
    """

    def __init__(self, server: Server) -> None:
        self.line = Line(server, FEATURES)
        self._in, self._out = Way(self._look, _NOTHING), Way(_all, _NOTHING)
        self._asked: Collection[int] = ()
        self._waiting: dict[int, int] = {}
        self.is_waiting = False
        self._knows = True

    def begin(self, vbuckets: Collection[int]) -> None:
        """Begin to wait for some vbuckets."""
        self.is_waiting = self._knows and bool(vbuckets)
        if self.is_waiting:
            self._asked = vbuckets
            self._out.put(encode(GetAllVBSeqnos()))

    def register(self, ready: select.poll) -> None:
        """Have its line polled."""
        register(ready, self.line, reading=True, writing=self._out.waiting_bytes > 0)

    def move(self) -> bool:
        """Send and take in; tell if something moved."""
        return self._out.give(self.line) | read(self.line, self._in)

    def _look(self, data: bytes, at: int, stop: int) -> bool:
        reply = decode(data[at:stop])
        if isinstance(reply, ErrorReply):
            self._refused(reply)
        elif isinstance(reply, Seqnos):
            self._waiting = {row.vbucket: row.seqno for row in reply.seqnos if row.vbucket in self._asked and row.seqno}
            for vb in self._waiting:
                self._ask(vb)
            self.is_waiting = bool(self._waiting)
        else:
            self._waiting.pop(reply.opaque, None)
            self.is_waiting = bool(self._waiting)
        return False

    def _refused(self, reply: ErrorReply) -> None:
        if reply.status in _CANNOT:
            self._knows = self.is_waiting = False
            self._waiting.clear()
        elif reply.status in LATER and reply.opaque in self._waiting:
            self._ask(reply.opaque)
        else:  # the vbucket is gone: nothing of it is to be waited for, and what follows is refused anyway
            self._waiting.pop(reply.opaque, None)
            self.is_waiting = bool(self._waiting)

    def _ask(self, vb: int) -> None:
        asked = SeqnoPersistence(vbucket=VBucketId(vb), seqno=Seqno(self._waiting[vb]), opaque=Opaque(vb))
        self._out.put(encode(asked))

    def close(self) -> None:
        """Close its line."""
        self.line.close()


class TapRelay:
    """Joins a connection to a source, which has yet to be asked, and a target; a context manager closes all lines.

    `ends` tells if the source is to come to an end by itself; where it is not, a line that is closed is a broken one.
    """

    def __init__(
        self,
        source: TapConnection,
        target: Server,
        *,
        expected: Collection[int] | None = None,
        ends: bool = True,
        state_sent: Callable[[int, int, str | None], None] = lambda _vb, _state, _missing: None,
    ) -> None:
        self.source = source
        self.target = Line(target, FEATURES)
        try:
            self._barrier = Barrier(target)
        except BaseException:
            self.target.close()
            raise
        self.progress = Progress(expected)
        self.refusal: tuple[int, int] | None = None
        """The opcode and status of a message that the target does not take."""
        self.is_over = False
        """Whether the source has said all, and closed its line."""
        self._ends = ends
        self._state_sent = state_sent
        self._down = Way(self._look_down, _NOTHING)
        self._up = Way(self._look_up, _NOTHING)
        self._acks = Way(_all, _NOTHING)
        self._since: set[int] = set()
        """The vbuckets that were sent items since the last message that asked for an ack."""
        self._marks: deque[tuple[int, int, frozenset[int]]] = deque()
        """The messages that asked for one, by opcode and opaque, and the vbuckets of the items before them."""
        self._held = bytearray()
        self._to_sync: set[int] = set()
        """The vbuckets of the items that the acks which are held are of."""
        self._covered = b""
        """What goes back when the barrier is passed."""
        self._fence = 0

    def close(self) -> None:
        """Close all lines but the source's, which is another's."""
        self.target.close()
        self._barrier.close()

    @property
    def items(self) -> int:
        """How many items went to the target."""
        return self.progress.items

    @property
    def total_bytes(self) -> int:
        """How much came from the source."""
        return self._down.total_bytes

    @property
    def is_settled(self) -> bool:
        """Whether all that came was taken by the target, and is on its disk."""
        waits = self._down.waiting_bytes or self._fence or self._held or self._covered or self._to_sync or self._since
        return not waits and not self._barrier.is_waiting

    def tell_source(self, frames: bytes) -> None:
        """Send messages of one's own to the source."""
        self._acks.put(frames)

    def step(self, timeout_s: float) -> bool:
        """Move what can be moved, else wait for something to move; False when nothing came in that time."""
        if self.move():
            return True
        ready = select.poll()
        self.register(ready)
        if ready.poll(max(0, int(timeout_s * 1000))):
            return self.move()
        return False

    def register(self, ready: select.poll) -> None:
        """Have all lines polled."""
        if not self.is_over:
            reading = not self._down.is_full and not self._acks.is_full
            register(ready, self.source, reading=reading, writing=self._acks.waiting_bytes > 0)
        register(ready, self.target, reading=not self._is_stuffed, writing=self._down.waiting_bytes > 0)
        self._barrier.register(ready)

    @property
    def _is_stuffed(self) -> bool:
        """Whether more acks wait than a source should ever have asked for."""
        return self._acks.is_full

    def move(self) -> bool:
        """Move what can be moved; tell if something was."""
        moved = self._read_source()
        moved |= self._down.give(self.target)
        if not self._is_stuffed:
            moved |= read(self.target, self._up)
        moved |= self._barrier.move()
        self._release()
        if not self.is_over:
            moved |= self._acks.give(self.source)
        return moved

    def _read_source(self) -> bool:
        if self.is_over or self._acks.is_full:
            return False
        try:
            return read(self.source, self._down)
        except ConnectionLostError:
            if not self._ends or self.progress.missing is not None:
                raise
            self.is_over = True
            self.fence()
            return True

    def fence(self) -> None:
        """Ask the target for a sign that it has served all that was sent before."""
        self._down.put(encode(Noop()))
        self._fence += 1

    # -- what is looked at

    def _look_down(self, data: bytes, at: int, stop: int) -> bool:
        opcode = data[at + 1]
        if opcode in _ITEMS and data[at] == _REQUEST and stop - at >= _ITEM_BYTES_MIN:
            self.progress.items += 1
            self._since.add(EVERY if opcode == _FLUSH else _SPECIFIC.unpack_from(data, at + 6)[0])
            self._mark(data, at)
            return True
        message = decode(data[at:stop], Dialect.TAP)
        if isinstance(message, Noop):
            self._acks.put(encode(Done(opcode=_NOOP, opaque=message.opaque)))
            self.progress.take(message)
            return False
        if not isinstance(message, TapRequest):
            raise refusal(self.source, message)
        self.progress.take(message)
        self._mark(data, at)
        if isinstance(message, TapVBucketSet):
            self._state_sent(message.vbucket, message.state, self.progress.missing)
        return True

    def _mark(self, data: bytes, at: int) -> None:
        """Remember what an ack will be of, where a message asks for one."""
        if _SPECIFIC.unpack_from(data, at + _TAP_FLAGS_AT)[0] & TapFlag.ACK:
            self._marks.append((data[at + 1], _OPAQUE.unpack_from(data, at + 12)[0], frozenset(self._since)))
            self._since.clear()

    def _look_up(self, data: bytes, at: int, stop: int) -> bool:
        """Hold an ack back until it may go."""
        if data[at] != _RESPONSE:
            raise ServerAnswerError(f"{self.target.server}: a request where acks are expected")
        opcode, status = data[at + 1], _SPECIFIC.unpack_from(data, at + 6)[0]
        if opcode == _NOOP:
            self._fence -= 1
            return False
        if status and status not in LATER and self.refusal is None:
            self.refusal = opcode, status
        named = opcode, _OPAQUE.unpack_from(data, at + 12)[0]
        if any(mark[:2] == named for mark in self._marks):  # else it is a refusal that nobody asked for
            while self._marks[0][:2] != named:
                self._to_sync |= self._marks.popleft()[2]
            self._to_sync |= self._marks.popleft()[2]
        self._held += data[at:stop]
        return False

    def _release(self) -> None:
        """Let acks go whose items are on disk, and see to those behind them."""
        if self._barrier.is_waiting:
            return
        if self._covered:
            self._acks.put(self._covered)
            self._covered = b""
        if self.is_over and not self._fence:  # all was served, also what nobody asked an ack for
            self._to_sync |= self._since.union(*(mark[2] for mark in self._marks))
            self._since.clear()
            self._marks.clear()
        if self._held or self._to_sync:
            # The target acknowledges in order: what it was sent before these acks is in its seqnos by now.
            self._covered = bytes(self._held)
            self._held.clear()
            self._barrier.begin(range(EVERY) if EVERY in self._to_sync else frozenset(self._to_sync))
            self._to_sync.clear()


def _all(data: bytes, at: int, stop: int) -> bool:
    del data, at, stop
    return True


__all__ = ["FEATURES", "LATER", "Barrier", "TapRelay"]
