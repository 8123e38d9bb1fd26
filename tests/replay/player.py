"""Plays one capture against our nodes, line by line, and tells every deviation.

A frame of the client is sent; a frame of the server is waited for. Frames of one connection come in the captured order:
one that another overtook is a deviation. Where the capture listened for a while and heard nothing, so do we.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.wire import Header, Message, Request, Response
from headrace.wire.catalogue import AddStream, BufferAck, Control, Noop, Open, SnapshotMarker, StatEntry
from tests.node.talk import Talk
from tests.replay.captures import Kind, Line, read, script
from tests.replay.matching import (
    ITEMS,
    TAP_CHECKPOINTS,
    TAP_ITEMS,
    Renaming,
    as_ours,
    chosen_by_server,
    differences,
    identity,
    label,
)
from tests.replay.peers import NEW_CHECKPOINT, Got, Peer, Peers, Stream, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.replay.servers import Served

PATIENCE_S = 8.0
"""How long a message is waited for, beside the time that it took when it was captured."""
NO_PATIENCE_S = 0.4
"""The same once a message did not come: the rest of the scenario is off the track anyway."""
CLOSING_S = 2.0
CAPTURED_S_MAX = 6.0
LISTENED_S = 0.25
"""A client of the captures that waited this long before it went on has heard all there was."""
LISTEN_S = 0.02
END_S = 0.08

_OPEN, _ADD_STREAM, _GET_FAILOVER_LOG, _STAT = 0x50, 0x51, 0x54, 0x10
_OF_THE_CLIENT = frozenset({_OPEN, _ADD_STREAM, _GET_FAILOVER_LOG})
"""What a proxy asks for itself; it passes everything else on."""


Cue = str | bytes | tuple[bytes, int] | tuple[str, int]
"""Words of a note; the key or the name of a frame, which is then the first that has it; a key at a seqno; the kind of a
frame, and which of its kind it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One place where our node does other than the captured server."""

    scenario: str
    release: str
    line: int
    connection: str
    message: str
    field: str
    captured: object
    got: object

    def __str__(self) -> str:
        where = f"{self.release}/{self.scenario}:{self.line}" + (f" {self.connection}" if self.connection else "")
        return f"{where}: {self.message}: {self.field}: captured {self.captured!r}, got {self.got!r}"


@dataclass(slots=True)
class Stage:
    """Our nodes, and how a stage direction reaches them."""

    servers: Sequence[Served]
    uuids: dict[int, int] = field(default_factory=dict)
    """What our nodes call the uuids of the captured servers."""
    player: Player | None = None
    """Who plays now."""

    def talk(self, server: int = 0) -> Talk:
        """A connection that is not part of the capture."""
        return Talk(self.servers[server])  # type: ignore[arg-type]  # it takes whatever has a host and a port


@dataclass(slots=True)
class _Captured:
    """What the capture's server has brought on one stream so far."""

    markers: int = 0
    live_flags: set[int] = field(default_factory=set)
    newest: dict[bytes, int] = field(default_factory=dict)
    told: set[tuple[object, ...]] = field(default_factory=set)
    """The items of a TAP stream."""


@dataclass(slots=True)
class Owed:
    """What a consumer has to acknowledge, by connection.

    Servers acknowledge after a fifth of their buffer, and by a clock when there is less. The first is asked for here;
    of the second only that nothing is acknowledged which was not sent.
    """

    buffers: dict[str, int] = field(default_factory=dict)
    bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def sent(self, connection: str, message: Message | None, size: int) -> None:
        """A stream message went to the consumer."""
        if isinstance(message, Request) and message.spec.flow_controlled:
            self.bytes[connection] += size

    def acked(self, connection: str, size: int) -> bool:
        """The consumer acknowledges; false when it is more than it was sent."""
        self.bytes[connection] -= size
        return self.bytes[connection] >= 0

    def is_due(self, connection: str) -> bool:
        """Whether the consumer has to acknowledge without a clock."""
        return self.bytes[connection] > self.buffers.get(connection, 0) // 5


class Player:
    """One capture, played once."""

    def __init__(
        self,
        release: str,
        scenario: str,
        stage: Stage,
        cues: Mapping[Cue, Callable[[Stage], None]],
        relayed: tuple[str, str] | None = None,
    ) -> None:
        self.deviations: list[Deviation] = []
        self._release, self._scenario, self._stage = release, scenario, stage
        self._lines = script(release, scenario)
        self._directions = {cue_line(self._lines, cue): direction for cue, direction in cues.items()}
        self._relayed = relayed
        self._patience_s = PATIENCE_S
        self._at = 0
        self._captured: defaultdict[tuple[str, int], _Captured] = defaultdict(_Captured)
        self._names = Renaming(stage.uuids, {})
        self._asked: dict[tuple[str, int], str] = {}
        self._owed = Owed()
        self._peers = Peers(self._came)

    def play(self) -> list[Deviation]:
        """Play it all; give what deviates."""
        self._stage.player = self
        try:
            before = 0.0
            for line in self._lines:
                self._at = line.number
                if line.number in self._directions:
                    self._directions[line.number](self._stage)
                self._play(line, line.time_s - before)
                before = before if line.kind is Kind.REMARK else line.time_s
            self._peers.settle(END_S)
            self._end()
        finally:
            self._peers.close()
        return self.deviations

    def hang_up(self, connection: str) -> None:
        """Close a connection from the client's side, as the capture tells."""
        peer = self._peer(connection)
        self._tell_unclaimed(peer)
        peer.waiting.clear()
        peer.close()

    def send(self, connection: str, wire: bytes) -> None:
        """Send what the capture tells of and does not show."""
        message = read(wire)
        self._owed.sent(connection, message, len(wire))
        self._peer(connection).send(as_ours(wire, message, self._line_of(connection), self._names))

    # ------------------------------------------------------------------------------------------------------- the lines

    def _play(self, line: Line, after_s: float) -> None:
        if line.kind is Kind.SENT:
            self._send(line, listened=after_s >= LISTENED_S)
        elif line.kind is Kind.RECEIVED:
            self._expect(line, after_s)
        elif line.kind is Kind.CLOSED:
            peer = self._peer(line.connection)
            if not self._peers.wait(lambda: peer.closed, CLOSING_S + min(after_s, CAPTURED_S_MAX)):
                self._deviates(line.connection, "connection", "closed", captured=True, got=False)
            self._tell_unclaimed(peer)
            self._peers.forget(peer)  # what is sent under this name from here on is sent on a new connection

    def _send(self, line: Line, *, listened: bool) -> None:
        message = line.message
        if self._relayed and line.connection in self._relayed and not isinstance(message, Open | AddStream):
            return  # the proxy has passed on what came from the other server
        peer = self._peer(line.connection)
        if listened:
            self._peers.settle(LISTEN_S)
            self._tell_unclaimed(peer)
        wire = as_ours(line.wire, message, self._line_of(line.connection), self._names)
        what = label(message) if message is not None else "bytes that are no frame"
        self._asked[line.connection, Header.parse(line.wire).opaque] = what
        self._owed.sent(line.connection, message, len(wire))
        if not peer.send(wire):
            self._deviates(line.connection, what, "connection", captured="open", got="closed")

    def _expect(self, line: Line, after_s: float) -> None:
        message, peer = line.message, self._peer(line.connection)
        assert message is not None, f"line {line.number}: a server sends frames"
        theirs = Header.parse(line.wire).opaque
        opaque = self._names.opaque(self._line_of(line.connection), theirs)
        captured = self._captured[line.connection, opaque]
        if isinstance(message, SnapshotMarker):
            captured.markers += 1
            if captured.markers > 1:
                captured.live_flags.add((message.flags or 0) & ~NEW_CHECKPOINT)
                return
        if isinstance(message, ITEMS):
            captured.newest[message.key] = message.by_seqno
        if isinstance(message, BufferAck) and not self._owed.is_due(line.connection):
            return  # it came by the clock
        if self._is_repeated(line.connection, message, opaque):
            self._deviates(line.connection, self._label(peer, message), "repeated", captured=message, got=None)
            return
        got = self._claim(peer, message, opaque, after_s)
        if got is not None:
            self._compare(line, message, got)
        elif not self._was_replaced(peer, message, opaque):
            self._patience_s = NO_PATIENCE_S
            self._deviates(line.connection, self._label(peer, message), "presence", captured=message, got=None)

    def _compare(self, line: Line, message: Message, got: Got) -> None:
        """Hold a message of our node against the captured one."""
        peer, theirs = self._peer(line.connection), Header.parse(line.wire).opaque
        if isinstance(got.message, Control) and got.message.key == b"connection_buffer_size":
            self._owed.buffers[line.connection] = int(got.message.value)
        if chosen_by_server(message):
            self._names.learn_opaque(self._line_of(line.connection), theirs, Header.parse(got.wire).opaque)
        pair = (line.wire, message), (got.wire, got.message)
        for name, wanted, found in differences(*pair, self._names, self._line_of(line.connection)):
            self._deviates(line.connection, self._label(peer, message), name, captured=wanted, got=found)

    def _is_repeated(self, connection: str, message: Message, opaque: int) -> bool:
        """Whether a TAP server sends a version of an item a second time on one connection."""
        if not isinstance(message, TAP_ITEMS):
            return False
        told, item = self._captured[connection, 0].told, identity(message, opaque)
        is_repeated = item in told
        told.add(item)
        return is_repeated

    # --------------------------------------------------------------------------------------------- what our node sends

    def _came(self, peer: Peer, got: Got) -> None:
        for name, wanted, found in place_of(peer, got):
            self._deviates(peer.name, label(got.message), name, captured=wanted, got=found)
        if isinstance(got.message, BufferAck) and not self._owed.acked(peer.name, got.message.bytes_acked):
            self._deviates(peer.name, "buffer_ack", "bytes_acked", captured="what was sent", got=got.message)
        live_marker = isinstance(got.message, SnapshotMarker) and peer.streams[got.message.opaque].is_live
        if not live_marker:
            peer.waiting.append(got)
        if self._relayed and peer.name in self._relayed and not _asked_by_proxy(got.message):
            first, second = self._relayed
            other = second if peer.name == first else first
            self._owed.sent(other, got.message, len(got.wire))
            self._peer(other).send(got.wire)

    def _claim(self, peer: Peer, message: Message, opaque: int, after_s: float) -> Got | None:
        wanted = identity(message, opaque)
        claimed: list[Got] = []

        def came() -> bool:
            found = peer.claim(wanted)
            claimed.extend([found] if found else [])
            return bool(claimed) or peer.closed or self._cannot_come(peer, message, opaque)

        self._wait(came, after_s)
        if not claimed:
            return None
        for earlier in peer.waiting:
            if not earlier.overtaken and earlier.number < claimed[0].number:
                earlier.overtaken = True
                self._tell_out_of_place(peer, earlier)
        return claimed[0]

    def _cannot_come(self, peer: Peer, message: Message, opaque: int) -> bool:
        """Whether it need not be waited for: the last stat was told, or the stream is behind the seqno."""
        if isinstance(message, StatEntry):
            last = identity(StatEntry(opcode=_STAT), opaque)
            return any(_identity_of(got) == last for got in peer.waiting)
        if isinstance(message, TAP_CHECKPOINTS):
            later = [got.message for got in peer.waiting if isinstance(got.message, TAP_CHECKPOINTS)]
            return any(one.vbucket == message.vbucket and one.checkpoint > message.checkpoint for one in later)
        return isinstance(message, ITEMS) and peer.streams.get(opaque, Stream()).last >= message.by_seqno

    def _was_replaced(self, peer: Peer, message: Message, opaque: int) -> bool:
        """Whether a live version of an item is missing because a newer one came in the same snapshot."""
        if not isinstance(message, ITEMS) or self._captured[peer.name, opaque].markers < 2:
            return False
        stream = peer.streams.get(opaque, Stream())
        return stream.newest.get(message.key, 0) > message.by_seqno

    def _is_extra_version(self, peer: Peer, got: Got) -> bool:
        """Whether it is a live version of an item that the captured server has left out for a newer one."""
        message = got.message
        if not isinstance(message, ITEMS):
            return False
        later = [line for line in self._lines if line.connection == peer.name and line.kind is Kind.RECEIVED]
        return any(
            isinstance(line.message, ITEMS)
            and line.message.key == message.key
            and line.message.opaque == message.opaque
            and line.message.by_seqno > message.by_seqno
            for line in later
        )

    def _tell_unclaimed(self, peer: Peer) -> None:
        for got in peer.waiting:
            if not got.overtaken:
                got.overtaken = True
                self._tell_out_of_place(peer, got)

    def _tell_out_of_place(self, peer: Peer, got: Got) -> None:
        """A message came that has no place here: because it has one later on, or because it has none at all."""
        message = got.message
        if isinstance(message, BufferAck | Noop) or self._is_extra_version(peer, got):  # the first two come by a clock
            return
        wanted = _identity_of(got)
        later = any(
            line.number > self._at and line.connection == peer.name and self._identity(line) == wanted
            for line in self._lines
            if line.kind is Kind.RECEIVED
        )
        name = "order" if later else "presence"
        self._deviates(peer.name, self._label(peer, message), name, captured="later" if later else None, got=message)

    def _identity(self, line: Line) -> tuple[object, ...]:
        assert line.message is not None
        opaque = self._names.opaque(self._line_of(line.connection), Header.parse(line.wire).opaque)
        return identity(line.message, opaque)

    def _label(self, peer: Peer, message: Message) -> str:
        return label(message, self._asked.get((peer.name, message.opaque), ""))

    def _end(self) -> None:
        for name, peer in self._peers.by_name.items():
            self._tell_unclaimed(peer)
            for opaque, stream in peer.streams.items():
                captured = self._captured[name, opaque].live_flags
                if stream.live_flags and captured != stream.live_flags:
                    what = "flags of live markers"
                    self._deviates(name, "snapshot_marker", what, captured=captured, got=stream.live_flags)

    # ------------------------------------------------------------------------------------------------------------ small

    def _line_of(self, connection: str) -> str:
        """Two connections that a proxy joins share the opaques that a server chose."""
        return self._relayed[0] if self._relayed and connection in self._relayed else connection

    def _peer(self, name: str) -> Peer:
        if name not in self._peers.by_name:
            second = name == "cons" or name.endswith("-n2")
            server = self._stage.servers[1 if second else 0]
            self._peers.by_name[name] = Peer(name, server.host, server.port)
        return self._peers.by_name[name]

    def _wait(self, until: Callable[[], bool], after_s: float) -> bool:
        return self._peers.wait(until, self._patience_s + min(after_s, CAPTURED_S_MAX))

    def _deviates(self, connection: str, message: str, name: str, *, captured: object, got: object) -> None:
        self.deviations.append(
            Deviation(
                scenario=self._scenario,
                release=self._release,
                line=self._at,
                connection=connection,
                message=message,
                field=name,
                captured=captured,
                got=got,
            )
        )


def _identity_of(got: Got) -> tuple[object, ...]:
    return identity(got.message, Header.parse(got.wire).opaque)


def _asked_by_proxy(message: Message) -> bool:
    return isinstance(message, Response) and message.opcode in _OF_THE_CLIENT


def cue_line(lines: Sequence[Line], cue: Cue) -> int:
    """The number of the line before which a cue is given; a change of an item is announced by its marker."""
    if isinstance(cue, str):
        return next(line.number for line in lines if cue in line.remark)
    if isinstance(cue, tuple) and isinstance(cue[0], str):
        named = [line.number for line in lines if line.message is not None and label(line.message) == cue[0]]
        return named[cue[1] - 1]
    key, seqno = cue if isinstance(cue, tuple) else (cue, None)
    number = next(
        number
        for number, line in enumerate(lines)
        if line.named == key and seqno in {None, getattr(line.message, "by_seqno", None)}
    )
    while number and isinstance(lines[number - 1].message, SnapshotMarker):
        number -= 1
    return lines[number].number
