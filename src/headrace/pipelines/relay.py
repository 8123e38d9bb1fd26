"""Bytes between a producer and a consumer, both ways, by someone who told the consumer what to ask for.

    producer --> frames cut by their lengths --> consumer        but for answers to what the relay asked itself
    producer <-- frames cut by their lengths <-- consumer

Items are never decoded: of them, only the header's length and opcode are looked at. What says something of a stream
(requests, markers, states, ends, refusals) is told to a `Watcher`. A way takes no more in while `WAITING_BYTES_MAX`
wait to go out, so that a slow side slows the other down and nothing gathers here.

One wish of a consumer is not passed on: extended metadata, to a producer that sends delete times. Such a deletion has
no place for it, and a headrace node sends items as they are kept when nobody asks for it.
"""

from __future__ import annotations

import select
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from headrace.client.errors import ServerAnswerError
from headrace.ids import Opaque, VBucketId
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import (
    AddStream,
    CloseStream,
    Control,
    Deletion,
    Done,
    Expiration,
    Mutation,
    SetVBucketState,
    SnapshotMarker,
    StreamEnd,
    StreamRequest,
)
from headrace.wire.codes import Magic
from headrace.wire.limits import BODY_BYTES_MAX, HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.pipelines.lines import Line
    from headrace.wire.message import Request

WAITING_BYTES_MAX = 1 << 20
"""How much may wait in one direction before no more is read for it."""

READS_MAX = 4
"""How often a side is read before the other has its turn."""


def _opcode(message: type[Request]) -> int:
    return message.spec.opcodes[Dialect.DCP]


_ITEMS = frozenset(map(_opcode, (Mutation, Deletion, Expiration)))
_ADD, _CLOSE, _REQUEST = _opcode(AddStream), _opcode(CloseStream), _opcode(StreamRequest)
_MARKER, _STATE, _END = _opcode(SnapshotMarker), _opcode(SetVBucketState), _opcode(StreamEnd)
_CONTROL = _opcode(Control)
_UNWANTED = b"enable_ext_metadata"
_OF_STREAMS = _ITEMS | {_MARKER, _STATE, _END}
_OURS = frozenset({_ADD, _CLOSE})
_MARKER_BYTES = SnapshotMarker.spec.extras_size(SnapshotMarker.spec.layouts[Dialect.DCP][0])
_RESPONSE, _MAGIC_REQUEST = int(Magic.RESPONSE), int(Magic.REQUEST)

_LENGTH = Struct(">I")
_SPECIFIC = Struct(">H")
_OPAQUE = Struct(">I")
_RANGE = Struct(">QQ")


class Watcher(Protocol):
    """Who is told what happens to the streams."""

    def asked(self, vb: int, opaque: int) -> None:
        """The consumer asks the producer for a stream."""
        ...

    def added(self, opaque: int, status: int) -> None:
        """ADD_STREAM was answered."""
        ...

    def marked(self, vb: int, start: int, end: int) -> None:
        """The producer began a snapshot."""
        ...

    def state_sent(self, vb: int, state: int) -> None:
        """The producer tells the consumer to put its vbucket in a state."""
        ...

    def ended(self, vb: int, reason: int) -> None:
        """The producer ended a stream."""
        ...

    def refused(self, opaque: int, opcode: int, status: int) -> None:
        """The consumer refused a message of a stream."""
        ...


class End(Protocol):
    """One side of a relay: it gives and takes bytes, and never blocks."""

    def fileno(self) -> int:
        """What to poll."""
        ...

    def read(self) -> bytes:
        """What is there; empty for nothing now."""
        ...

    def write(self, data: memoryview) -> int:
        """Send as much as goes now, and give how much."""
        ...


class Way:
    """One direction. `items` are the opcodes of messages that are counted, and not looked at."""

    __slots__ = ("_items", "_look", "_queue", "_rest", "_wanted_bytes", "items", "total_bytes", "waiting_bytes")

    def __init__(self, look: Callable[[bytes, int, int], bool], items: frozenset[int]) -> None:
        self._look = look
        self._items = items
        self._rest = bytearray()
        self._wanted_bytes = HEADER_BYTES
        self._queue: deque[memoryview] = deque()
        self.waiting_bytes = 0
        self.total_bytes = 0
        self.items = 0

    @property
    def is_full(self) -> bool:
        """Whether no more is to be taken in."""
        return self.waiting_bytes >= WAITING_BYTES_MAX

    def put(self, frames: bytes) -> None:
        """Add frames of one's own: only whole ones stand in the queue."""
        self._push(memoryview(frames))

    def take(self, data: bytes) -> None:
        """Cut what came into frames, and queue them but for those that are not for the other side."""
        self.total_bytes += len(data)
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted_bytes:
                return
            data = bytes(self._rest)
            self._rest.clear()
        self._cut(data)

    def _cut(self, data: bytes) -> None:
        at = begun = 0
        end, items, length_of, counted = len(data), 0, _LENGTH.unpack_from, self._items
        self._wanted_bytes = HEADER_BYTES
        while end - at >= HEADER_BYTES:
            (body,) = length_of(data, at + 8)
            stop = at + HEADER_BYTES + body
            if stop > end:
                if body > BODY_BYTES_MAX:
                    raise ServerAnswerError(f"a message of {body} bytes: this is no stream connection")
                self._wanted_bytes = HEADER_BYTES + body
                break
            if data[at + 1] in counted and data[at] != _RESPONSE:
                items += 1
            elif not self._look(data, at, stop):
                self._push(memoryview(data)[begun:at])
                begun = stop
            at = stop
        self._push(memoryview(data)[begun:at])
        self._rest += data[at:]
        self.items += items

    def _push(self, block: memoryview) -> None:
        if block:
            self._queue.append(block)
            self.waiting_bytes += len(block)

    def give(self, line: End) -> bool:
        """Send what goes; tell if something did."""
        sent_any = False
        while self._queue:
            sent = line.write(self._queue[0])
            if not sent:
                break
            sent_any = True
            self.waiting_bytes -= sent
            if sent == len(self._queue[0]):
                self._queue.popleft()
            else:
                self._queue[0] = self._queue[0][sent:]
        return sent_any


def register(ready: select.poll, line: End, *, reading: bool, writing: bool) -> None:
    """Have a side polled for what can be done there."""
    # With TLS, to read may mean to write: what is wanted then is not known here, and the next step tries all.
    wanted = (select.POLLIN if reading else 0) | (select.POLLOUT if writing else 0)
    if wanted:  # else a side that hung up would be told of for ever
        ready.register(line.fileno(), wanted)


def read(line: End, way: Way) -> bool:
    """Take in what has come from a side, as far as there is room for it; tell if something did."""
    for reads in range(READS_MAX):
        data = b"" if way.is_full else line.read()
        if not data:
            return reads > 0
        way.take(data)
    return True


class Relay:
    """Joins a line to a producer and one to a consumer, which speak UPR or DCP to each other."""

    passed = _ITEMS
    """What comes from the producer and is counted as an item, and not looked at."""
    request = _REQUEST
    """What the consumer asks for a stream by."""
    of_streams = _OF_STREAMS
    """What the producer sends of a stream; the consumer may refuse it."""
    ours = _OURS
    """What is asked of either by the relay's owner: its answers go no further."""

    def __init__(self, producer: Line, consumer: Line, watcher: Watcher) -> None:
        self._producer = producer
        self._consumer = consumer
        self._watcher = watcher
        self._down = Way(self._look_down, self.passed)
        self._up = Way(self._look_up, frozenset())

    @property
    def items(self) -> int:
        """How many items went to the consumer."""
        return self._down.items

    @property
    def total_bytes(self) -> int:
        """How much came from the producer."""
        return self._down.total_bytes

    def tell_consumer(self, frames: bytes) -> None:
        """Send messages of one's own to the consumer."""
        self._down.put(frames)

    def tell_producer(self, frames: bytes) -> None:
        """Send messages of one's own to the producer."""
        self._up.put(frames)

    def close_stream(self, vb: int) -> None:
        """Tell the producer that a stream is not wanted any more."""
        self.tell_producer(encode(CloseStream(vbucket=VBucketId(vb), opaque=Opaque(vb))))

    def step(self, timeout_s: float) -> bool:
        """Move what can be moved, else wait for something to move; False when nothing came in that time."""
        if self._move():
            return True
        ready = select.poll()
        register(ready, self._producer, reading=not self._down.is_full, writing=self._up.waiting_bytes > 0)
        register(ready, self._consumer, reading=not self._up.is_full, writing=self._down.waiting_bytes > 0)
        if ready.poll(max(0, int(timeout_s * 1000))):
            return self._move()
        return False

    def _move(self) -> bool:
        moved = read(self._producer, self._down)
        moved |= self._down.give(self._consumer)
        moved |= read(self._consumer, self._up)
        moved |= self._up.give(self._producer)
        return moved

    # -- what is looked at

    def _look_down(self, data: bytes, at: int, stop: int) -> bool:
        """Look at a message of the producer that is no item; False for one that is not for the consumer."""
        magic, opcode = data[at], data[at + 1]
        if magic == _RESPONSE:
            return opcode not in self.ours
        (vb,) = _SPECIFIC.unpack_from(data, at + 6)
        body = at + HEADER_BYTES
        if opcode == _MARKER and stop - body >= _MARKER_BYTES:
            self._watcher.marked(vb, *_RANGE.unpack_from(data, body))
        elif opcode == _STATE and stop > body:
            self._watcher.state_sent(vb, data[body])
        elif opcode == _END and stop - body >= _LENGTH.size:
            self._watcher.ended(vb, _LENGTH.unpack_from(data, body)[0])
        return True

    def _look_up(self, data: bytes, at: int, stop: int) -> bool:
        """Look at a message of the consumer; False for one that is not for the producer."""
        magic, opcode = data[at], data[at + 1]
        (specific,) = _SPECIFIC.unpack_from(data, at + 6)
        (opaque,) = _OPAQUE.unpack_from(data, at + 12)
        if magic == _MAGIC_REQUEST:
            if opcode == self.request:
                self._watcher.asked(specific, opaque)
            return not (opcode == _CONTROL and self._is_unwanted(data[at:stop], opaque))
        if opcode in self.ours:
            if opcode == _ADD:
                self._watcher.added(opaque, specific)
            return False
        if specific and opcode in self.of_streams:
            self._watcher.refused(opaque, opcode, specific)
        return True

    def _is_unwanted(self, frame: bytes, opaque: int) -> bool:
        """Answer a wish that the producer is not to hear of."""
        if not self._producer.sends_delete_times or not frame[HEADER_BYTES:].startswith(_UNWANTED):
            return False
        self._down.put(encode(Done(opcode=_CONTROL, opaque=Opaque(opaque))))
        return True


__all__ = ["WAITING_BYTES_MAX", "End", "Relay", "Watcher", "Way", "read", "register"]
