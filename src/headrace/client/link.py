"""One connection to one node, for streams: bytes in, bytes out, and nobody's socket.

It opens (hello, SCRAM, bucket, cluster config, DCP open, controls), then carries requests and their answers, batches of
changes, signs of life and acknowledgements. Whoever owns the socket does this and nothing more:

    room() -> where to receive to        received(n, now)          out -> what to send; take bytes off its front
    deadline -> when to call tick(now)

What comes of it goes to its owner (`LinkOwner`). An error that is raised here ends the connection.

Bytes wait in one buffer until they are decoded, all whole messages at once; a message that is larger than the buffer
gets a buffer of its own size for as long as it needs it.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from headrace.client.cluster_map import ClusterMap
from headrace.client.errors import (
    ConnectionLostError,
    InvalidError,
    NotFoundError,
    NotSupportedError,
    ServerAnswerError,
    StatusError,
    UnknownCommandError,
    error_of,
)
from headrace.client.manifest import Collections, ask_collections
from headrace.client.opening import Ask, opening
from headrace.client.sifting import Streams
from headrace.columns import Controls, Settings, decode_changes
from headrace.columns import Positions as Inherited
from headrace.errors import RemoteProtocolError
from headrace.ids import Opaque
from headrace.wire import Frame, Header, Malformed, Unknown, decode, encode
from headrace.wire.catalogue import (
    BufferAck,
    Control,
    DcpNoop,
    Done,
    ErrorReply,
    GetAllVBSeqnos,
    GetClusterConfig,
    GetCollectionsManifest,
    Noop,
    Open,
    Seqnos,
    SnapshotMarker,
    StreamEnd,
    Text,
)
from headrace.wire.codes import Feature, Magic
from headrace.wire.dialects import Dialect
from headrace.wire.limits import HEADER_BYTES
from headrace.wire.message import Response, ServerRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    import pyarrow as pa

    from headrace.client.address import Address
    from headrace.client.options import ChangeOptions
    from headrace.columns import Beside, Changes
    from headrace.wire.message import Message, Request

ACK_SHARE = 2
"""Acknowledgements go out after this part of the window: a half, as gocbcore does."""

_OPAQUE_BIT = 0x8000_0000
_OPAQUES = 0x7FFF_FFFF
_MARKER_OPCODE = SnapshotMarker.spec.opcodes[Dialect.DCP]
_NOOP_OPCODE = DcpNoop.spec.opcodes[Dialect.DCP]
_END_OPCODE = StreamEnd.spec.opcodes[Dialect.DCP]
_TOLERATED = (InvalidError, NotSupportedError, NotFoundError, UnknownCommandError)


class LinkState(StrEnum):
    """How far a link is."""

    CONNECTING = "connecting"
    OPENING = "opening"
    READY = "ready"
    CLOSED = "closed"


class LinkOwner(Protocol):
    """Who is told what comes of a link."""

    wants_markers: bool

    def link_ready(self, link: Link, cluster: ClusterMap, now: float) -> None:
        """Streams may be asked for."""

    def link_changes(self, link: Link, rows: pa.RecordBatch, flow_bytes: int, beside: list[Any]) -> None:
        """Some changes came; `beside` are the snapshot markers among them, if the owner wants those."""

    def link_ended(self, link: Link, message: StreamEnd, now: float) -> None:
        """A stream ended; all its changes were handed over."""


class Link:
    """One connection to one node."""

    def __init__(self, address: Address, options: ChangeOptions, owner: LinkOwner, *, name: str, now: float) -> None:
        self.address = address
        self.state = LinkState.CONNECTING
        self.out = bytearray()
        self.streams = Streams(0)
        self.inherited = Inherited()
        self._options = options
        self._owner = owner
        self._name = name
        self._settings = Settings(keys=options.keys, body_bytes_max=options.body_bytes_max)
        self.collections: Collections | None = None
        self.stream_filter = b""
        self._buffer = bytearray(options.buffer_bytes)
        self._filled = 0
        self._steps: Generator[Ask, Any, ClusterMap] = self._open()
        self._waiting: dict[int, tuple[float, Callable[[Response], None]]] = {}
        """What is to be done with the answer to each request, and when it was asked, the oldest first."""
        self._opaque = 0
        self._window_bytes = 0
        self._unacked_bytes = 0
        self.untaken_bytes = 0
        """What was handed to the owner, and not worked off."""
        self._is_held = False
        self._heard_at = now
        self._probed_at: float | None = None
        self._probing = False
        self._began_at = now
        self._now = now

    def __repr__(self) -> str:
        return f"Link({self.address}, {self.state})"

    # -- the shell's side

    def connected(self, now: float) -> None:
        """The socket is there."""
        self.state = LinkState.OPENING
        self._heard_at = self._began_at = self._now = now
        self._step(lambda: next(self._steps))

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return memoryview(self._buffer)[self._filled :]

    def received(self, count: int, now: float) -> None:
        """So many bytes were put there."""
        self._now = self._heard_at = now
        self._probed_at = None
        self._filled += count
        self._decode()

    @property
    def deadline(self) -> float:
        """When `tick` has something to do, if nothing comes before."""
        if self.state is not LinkState.READY:
            return self._began_at + self._options.timeout_s
        if self._probed_at is not None:
            return self._probed_at + self._options.timeout_s
        times = [self._heard_at + self._options.idle_s]
        if self._waiting and not self._probing and not self._is_held:
            times.append(next(iter(self._waiting.values()))[0] + self._options.timeout_s)
        return min(times)

    def tick(self, now: float) -> None:
        """Ask a server that is idle, or owes an answer, for a sign of life; raise when a server takes too long."""
        self._now = now
        if self._is_held:
            self._heard_at = now
        if now < self.deadline:
            return
        if self.state is not LinkState.READY or self._probed_at is not None:
            what = "to open" if self.state is not LinkState.READY else "as a sign of life"
            raise ConnectionLostError(f"{self.address}: no answer within {self._options.timeout_s:g} s {what}")
        self._probed_at = now
        self._probing = True
        oldest = next(iter(self._waiting), None)
        self.ask(Noop(), lambda _: self._sign_of_life(oldest))

    def _sign_of_life(self, oldest: int | None) -> None:
        """Servers answer in order. What was asked long before the sign of life, and has no answer, gets none.

        The clock alone would not do: an answer may wait behind changes that nobody takes for a while.
        """
        self._probing = False
        timeout_s = self._options.timeout_s
        if oldest in self._waiting and self._now >= self._waiting[oldest][0] + timeout_s:
            raise ConnectionLostError(f"{self.address}: no answer within {timeout_s:g} s to a request")

    def hold(self, *, held: bool) -> None:
        """Nothing is received for a while, or again: then the server's silence means nothing."""
        self._is_held = held
        self._heard_at, self._probed_at = self._now, None

    def lived_s(self, now: float) -> float:
        """For how long it was connected, or tried to."""
        return now - self._began_at

    # -- the owner's side

    def ask(
        self,
        message: Request,
        answered: Callable[[Response], None],
        *,
        opaque: Opaque | None = None,
        now: float | None = None,
    ) -> None:
        """Send a request; `answered` gets what comes back, be it a refusal.

        Whoever asks because of something else than this link gives the time: the link's own may be old.
        """
        if opaque is None:
            self._opaque = (self._opaque + 1) & _OPAQUES
            opaque = Opaque(_OPAQUE_BIT | self._opaque)
        self._waiting[opaque] = (self._now if now is None else now, answered)
        self.out += encode(message if message.opaque == opaque else dataclasses.replace(message, opaque=opaque))

    def worked_off(self, flow_bytes: int) -> None:
        """So many bytes of stream messages were taken by whom they are for; the server hears it at half a window."""
        self.untaken_bytes -= flow_bytes
        if not self._window_bytes or self.state is not LinkState.READY:
            return
        self._unacked_bytes += flow_bytes
        if self._unacked_bytes * ACK_SHARE >= self._window_bytes:
            self.out += encode(BufferAck(bytes_acked=self._unacked_bytes))
            self._unacked_bytes = 0

    def close(self) -> None:
        """Be no more; what was received and not decoded is dropped."""
        self.state = LinkState.CLOSED
        self._waiting.clear()
        self.out.clear()
        self._filled = 0
        self._steps.close()

    # -- opening

    def _open(self) -> Generator[Ask, Any, ClusterMap]:
        options = self._options
        wanted = [Feature.SELECT_BUCKET, Feature.JSON]
        if options.compression:
            wanted.append(Feature.SNAPPY)
        if options.xattrs:
            wanted.append(Feature.XATTR)
        if options.collections is not None:
            wanted.append(Feature.COLLECTIONS)
        granted = yield from opening(options.login(self.address), tuple(wanted))
        cluster = yield from self._cluster_map()
        if options.collections is not None:
            self.collections = yield from ask_collections(self.address, granted, options.collections)
        if self.collections is not None:
            self.stream_filter = self.collections.stream_filter(options.collections or (), source=str(self.address))
            self._settings = dataclasses.replace(self._settings, collections=self.collections.names)
        self.streams = Streams(len(cluster.copies))
        yield Ask(Open(name=self._name.encode(), flags=options.open_flags), Response, f"streams at {self.address}")
        for key, value in self._controls():
            try:
                yield Ask(Control(key=key, value=value), Response)
            except _TOLERATED:
                continue
            if key == b"connection_buffer_size":
                self._window_bytes = options.window_bytes
        return cluster

    def _cluster_map(self) -> Generator[Ask, Any, ClusterMap]:
        try:
            config = yield Ask(GetClusterConfig(), Text, f"the cluster config of {self.address}")
        except (UnknownCommandError, NotFoundError):
            config = None
        if config is not None and config.value:
            return ClusterMap.parse(config.value, dialled=self.address)
        held = yield Ask(GetAllVBSeqnos(), Seqnos, f"the vbuckets of {self.address}")
        return ClusterMap.alone_with(self.address, held.seqnos)

    def learn_collections(self, now: float | None = None) -> None:
        """Ask for the names again: a collection came or went, or may have while nobody read."""

        def answered(reply: Response) -> None:
            if isinstance(reply, Text) and self.collections is not None:
                self.collections.names.update(Collections.parse(reply.value, source=str(self.address)).names)

        self.ask(GetCollectionsManifest(), answered, now=now)

    def _controls(self) -> list[tuple[bytes, bytes]]:
        options = self._options
        controls = [
            (b"enable_noop", b"true"),
            (b"set_noop_interval", b"%d" % options.noop_interval_s),
            (b"send_stream_end_on_client_close_stream", b"true"),
        ]
        if options.delete_times:
            controls.append((b"enable_expiry_opcode", b"true"))
        if options.priority is not None:
            controls.append((b"set_priority", options.priority.encode()))
        if options.window_bytes:
            controls.append((b"connection_buffer_size", b"%d" % options.window_bytes))
        return controls

    def _step(self, go_on: Callable[[], Ask]) -> None:
        """Take the next step of opening, or be ready."""
        try:
            ask = go_on()
        except StopIteration as done:
            self.state = LinkState.READY
            self._owner.link_ready(self, done.value, self._now)
            return
        self.ask(ask.message, lambda reply: self._answered(ask, reply))

    def _answered(self, ask: Ask, reply: Response) -> None:
        named = ask.asked or f"{ask.message.spec.name} at {self.address}"
        if isinstance(reply, ErrorReply):
            error = error_of(named, reply.status, reply.value)
            self._step(lambda: self._steps.throw(error))
        elif not isinstance(reply, ask.kind):
            raise ServerAnswerError(f"{self.address}: {ask.message.spec.name} was answered by {reply.spec.name}")
        else:
            self._step(lambda: self._steps.send(reply))

    # -- what comes

    def _decode(self) -> None:
        start, more = 0, True
        with memoryview(self._buffer) as data:
            while more and start < self._filled and self.state is not LinkState.CLOSED:
                # A bucket has a thousand streams, and their answers come one behind the other: no batch is made of one.
                answer_bytes = self._answer_bytes(data[start : self._filled])
                if answer_bytes:
                    answer = bytes(data[start : start + answer_bytes])
                    start += answer_bytes
                    frame = Frame(Header.parse(answer), answer[HEADER_BYTES:])
                    self._take_message(decode(frame, self._settings.dialect))
                    continue
                changes = decode_changes(data[start : self._filled], self._settings, self.inherited)
                start += changes.consumed_bytes
                more = changes.more
                self._take(changes)
        if self.state is LinkState.CLOSED:
            return
        rest = self._filled - start
        if start and rest:
            self._buffer[:rest] = self._buffer[start : self._filled]
        self._filled = rest
        self._fit()

    def _answer_bytes(self, data: memoryview) -> int:
        """How many bytes the answer has that stands here; 0 when none does, or it is not all there, or too large."""
        if data[0] != Magic.RESPONSE or len(data) < HEADER_BYTES:
            return 0
        header = Header.parse(data)
        size = HEADER_BYTES + header.body_length
        return size if size <= len(data) and header.problem(self._settings.body_bytes_max) is None else 0

    def _fit(self) -> None:
        """Have room for the message that waits, and no more than asked for once it went."""
        wanted = self._options.buffer_bytes
        if self._filled >= HEADER_BYTES:
            wanted = max(wanted, HEADER_BYTES + Header.parse(self._buffer).body_length)
        if len(self._buffer) != wanted and self._filled < wanted:
            buffer = bytearray(wanted)
            buffer[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = buffer

    def _take(self, changes: Changes) -> None:
        """Hand on the rows, then what stood beside them: a stream's end comes after its last row."""
        controls = changes.controls
        self.untaken_bytes += changes.flow_bytes
        if isinstance(controls, Controls) and not self._owner.wants_markers:
            beside: list[Beside] = []
            messages = self._of_use(controls)
        else:
            beside = list(controls)
            messages = (each.message for each in beside)
        self._owner.link_changes(self, changes.rows, changes.flow_bytes, beside)
        for message in messages:
            if self.state is LinkState.CLOSED:
                return
            self._take_message(message)
        if changes.error is not None:
            raise ServerAnswerError(f"{self.address}: {changes.error}") from changes.error

    def _of_use(self, controls: Controls) -> Iterator[Message]:
        """The messages among the rows but markers, and the ends of streams of which everything was read before."""
        for place in controls.without(_MARKER_OPCODE):
            header = controls.header(place)
            is_end = header.magic == Magic.REQUEST and header.opcode == _END_OPCODE
            if not (is_end and self.streams.is_idle(header.specific)):
                yield controls[place].message

    def _take_message(self, message: Message) -> None:
        match message:
            case SnapshotMarker() | ServerRequest():
                pass
            case DcpNoop():
                self.out += encode(Done(opcode=_NOOP_OPCODE, opaque=message.opaque))
            case StreamEnd():
                self._owner.link_ended(self, message, self._now)
            case Response():
                asked = self._waiting.pop(message.opaque, None)
                if asked is None:
                    raise ServerAnswerError(f"{self.address}: an answer that nothing asked for: {message!r}")
                asked[1](message)
            case Malformed() | Unknown():
                raise ServerAnswerError(f"{self.address}: a message that cannot be read: {message!r}")
            case _:
                raise ServerAnswerError(f"{self.address}: a message that no reader is sent: {message!r}")


__all__ = ["Link", "LinkOwner", "LinkState", "RemoteProtocolError", "StatusError"]
