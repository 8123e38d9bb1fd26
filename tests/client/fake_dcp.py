"""Servers of change streams that a test can lead: a model of nodes, without a socket.

A shell joins them to a `Follower` under a clock of its own; `served` puts them behind sockets. The nodes answer as the
captures of 4.1.2 do: the end seqno cuts no snapshot, markers after the first start at the first seqno that they bring,
a stream that was closed by its reader ends without a word.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.client.address import Address
from headrace.client.errors import ConnectionLostError
from headrace.client.events import Batch, Event
from headrace.client.follower import Follower
from headrace.client.link import Link, LinkState
from headrace.client.options import ChangeOptions
from headrace.client.planning import Plan, Start, Until
from headrace.history import (
    FailoverLog,
    History,
    OutOfRange,
    ResumeRequest,
    RollBack,
    decide,
)
from headrace.ids import Cas, Opaque, Seqno, VBucketId, VbUuid
from headrace.wire import Frame, FrameReader, Message, Response, decode, encode
from headrace.wire import catalogue as w
from headrace.wire.codes import SnapshotFlag, Status, StreamEndReason

HOST = "127.0.0.1"


@dataclass
class FakeVBucket:
    """A history: the newest change of each key, in snapshots of the test's choice."""

    log: list[tuple[int, int]] = field(default_factory=lambda: [(0xA0, 0)])
    changes: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    snapshot_size: int = 3
    persisted: int | None = None
    """On disk up to here; everything by default."""
    node: int = 0
    """The place of the node where it is active."""
    replicas: tuple[int, ...] = ()

    @property
    def high(self) -> int:
        return self.changes[-1][0] if self.changes else 0

    def add(self, *keys: str) -> None:
        """Store items."""
        for key in keys:
            self.changes.append((self.high + 1, key.encode(), f"value of {key}".encode()))

    def delete(self, key: str) -> None:
        """Remove one."""
        self.changes.append((self.high + 1, key.encode(), None))

    def lose(self, after: int, vbuuid: int) -> None:
        """Crash: what is after a seqno is gone, and a branch begins."""
        self.changes = [each for each in self.changes if each[0] <= after]
        self.log.insert(0, (vbuuid, after))


class FakeCluster:
    """Some nodes, and the vbuckets that are on them."""

    def __init__(self, vbuckets: int = 4, nodes: int = 1) -> None:
        self.vbuckets = [FakeVBucket() for _ in range(vbuckets)]
        self.nodes = [Address(host=HOST, port=10_000 + place) for place in range(nodes)]
        self.revision = 1
        self.requests: list[tuple[int, Message]] = []
        self.answers: dict[type[Message], Callable[[FakeConnection, Message], list[Message] | None]] = {}
        """What to answer in place of what is right; None for what is right."""
        self.connections: list[FakeConnection] = []
        self.down: set[int] = set()
        self.overshoots = True
        self.has_map = True
        self.serves_dead = False

    def connect(self, node: int) -> "FakeConnection":
        """Take a connection at a node."""
        return FakeConnection(self, node)

    def config(self) -> bytes:
        if not self.has_map:
            return b""
        rows = [[vb.node, *vb.replicas] for vb in self.vbuckets]
        document = {
            "rev": self.revision,
            "uuid": "cluster",
            "nodesExt": [{"services": {"kv": each.port}, "hostname": each.host} for each in self.nodes],
            "vBucketServerMap": {
                "serverList": [str(each) for each in self.nodes],
                "vBucketMap": rows,
                "numReplicas": max(len(row) for row in rows) - 1,
            },
        }
        return json.dumps(document).encode()

    def move(self, vbucket: int, node: int) -> None:
        """Make another node the one where a vbucket is active; its streams end."""
        self.vbuckets[vbucket].node = node
        self.revision += 1
        for connection in self.connections:
            connection.end(vbucket, StreamEndReason.STATE_CHANGED)

    def asked(self, kind: type[Message]) -> list[Any]:
        """The requests of a kind, in order."""
        return [message for _, message in self.requests if isinstance(message, kind)]

    def pump(self) -> None:
        for connection in self.connections:
            connection.pump()


@dataclass
class _Stream:
    opaque: int
    after: int
    end: int
    snapshot_start: int
    first: bool = True
    snapshot_end: int = 0


class FakeConnection:
    """One connection at one node."""

    def __init__(self, cluster: FakeCluster, node: int) -> None:
        self.cluster = cluster
        self.node = node
        self.out = bytearray()
        self.streams: dict[int, _Stream] = {}
        self.controls: dict[bytes, bytes] = {}
        self.unacked = 0
        self.received: list[Message] = []
        self.closed = False
        self._reader = FrameReader()
        cluster.connections.append(self)

    @property
    def window(self) -> int:
        return int(self.controls.get(b"connection_buffer_size", b"0"))

    def receive(self, data: bytes) -> None:
        self._reader.receive(data)
        while isinstance(frame := self._reader.next_frame(), Frame):
            self._take(decode(frame))
        self.pump()

    def send(self, *messages: Message) -> None:
        for message in messages:
            data = encode(message)
            if message.spec.flow_controlled:
                self.unacked += len(data)
            self.out += data

    def _take(self, message: Message) -> None:
        self.received.append(message)
        self.cluster.requests.append((self.node, message))
        if isinstance(message, Response):
            return
        chosen = self.cluster.answers.get(type(message))
        answers = chosen(self, message) if chosen is not None else None
        self.send(*(self._answer(message) if answers is None else answers))

    def _reply(self, request: Message, kind: type[Response] = w.Done, **fields: object) -> Response:
        opcode = next(iter(request.spec.opcodes.values())) if len(request.spec.opcodes) == 1 else 0
        opcode = opcode or encode(request)[1]
        return kind(opcode=opcode, opaque=request.opaque, **fields)  # type: ignore[arg-type]

    def refuse(self, request: Message, status: int, value: bytes = b"") -> Response:
        """The answer that it was not done."""
        return self._reply(request, w.ErrorReply, status=status, value=value)

    def _answer(self, request: Message) -> list[Message]:  # noqa: C901, PLR0911 - one case a request
        vbs = self.cluster.vbuckets
        match request:
            case w.Hello():
                return [self._reply(request, w.HelloReply, features=request.features)]
            case w.GetClusterConfig():
                if not self.cluster.has_map:
                    return [self.refuse(request, Status.UNKNOWN_COMMAND)]
                return [self._reply(request, w.Text, value=self.cluster.config())]
            case w.Control():
                self.controls[request.key] = request.value
                return [self._reply(request)]
            case w.BufferAck():
                self.unacked = max(self.unacked - request.bytes_acked, 0)
                return []
            case w.GetAllVBSeqnos():
                rows = [w.VBucketSeqno(n, Seqno(vb.high)) for n, vb in enumerate(vbs) if vb.node == self.node]
                return [self._reply(request, w.Seqnos, seqnos=tuple(rows))]
            case w.GetFailoverLog():
                return [self._reply(request, w.FailoverLog, entries=self._log(request.vbucket))]
            case w.ObserveSeqno():
                vb = vbs[request.vbucket]
                persisted = vb.high if vb.persisted is None else vb.persisted
                return [
                    self._reply(
                        request,
                        w.Observed,
                        format=0,
                        vbucket=request.vbucket,
                        vbuuid=VbUuid(vb.log[0][0]),
                        persisted_seqno=Seqno(persisted),
                        current_seqno=Seqno(vb.high),
                    )
                ]
            case w.StreamRequest():
                return [self._stream(request)]
            case w.CloseStream():
                gone = self.streams.pop(request.vbucket, None)
                return [self._reply(request) if gone else self.refuse(request, Status.KEY_NOT_FOUND)]
            case _:
                return [self._reply(request)]

    def _log(self, vbucket: int) -> tuple[w.FailoverEntry, ...]:
        return tuple(w.FailoverEntry(VbUuid(u), Seqno(s)) for u, s in self.cluster.vbuckets[vbucket].log)

    def _stream(self, request: w.StreamRequest) -> Response:
        vb = self.cluster.vbuckets[request.vbucket]
        if vb.node != self.node and not self.cluster.serves_dead:
            return self.refuse(request, Status.NOT_MY_VBUCKET)
        assert request.snapshot_start is not None
        assert request.snapshot_end is not None
        if request.vbucket in self.streams:
            return self.refuse(request, Status.KEY_EXISTS)
        verdict = decide(
            ResumeRequest(
                vbuuid=request.vbuuid,
                start_seqno=request.start_seqno,
                snapshot_start=request.snapshot_start,
                snapshot_end=request.snapshot_end,
                end_seqno=request.end_seqno,
            ),
            History(log=FailoverLog.from_entries(self._log(request.vbucket)), high_seqno=Seqno(vb.high)),
        )
        if isinstance(verdict, OutOfRange):
            return self.refuse(request, Status.OUT_OF_RANGE, b"Outside range")
        if isinstance(verdict, RollBack):
            return self._reply(request, w.Rollback, status=Status.ROLLBACK, seqno=verdict.to)
        self.streams[request.vbucket] = _Stream(
            request.opaque, request.start_seqno, request.end_seqno, request.snapshot_start
        )
        return self._reply(request, w.FailoverLog, entries=self._log(request.vbucket))

    def end(self, vbucket: int, reason: int) -> None:
        """End a stream."""
        stream = self.streams.pop(vbucket, None)
        if stream is not None:
            self.send(w.StreamEnd(opaque=Opaque(stream.opaque), vbucket=VBucketId(vbucket), reason=reason))

    def pump(self) -> None:
        """Send what the window lets pass."""
        for vbucket, stream in list(self.streams.items()):
            while self.streams.get(vbucket) is stream and (not self.window or self.unacked < self.window):
                if not self._one(vbucket, stream):
                    break

    def _one(self, vbucket: int, stream: _Stream) -> bool:
        vb = self.cluster.vbuckets[vbucket]
        if stream.after >= stream.end and (stream.after >= stream.snapshot_end or not self.cluster.overshoots):
            self.end(vbucket, StreamEndReason.OK)
            return False
        left = [each for each in vb.changes if each[0] > stream.after]
        if not left:
            return False
        common = {"opaque": Opaque(stream.opaque), "vbucket": VBucketId(vbucket)}
        if stream.after >= stream.snapshot_end:
            stream.snapshot_end = left[: vb.snapshot_size][-1][0]
            start = stream.snapshot_start if stream.first else left[0][0]
            stream.first = False
            flags = SnapshotFlag.MEMORY
            self.send(
                w.SnapshotMarker(
                    start_seqno=Seqno(start),
                    end_seqno=Seqno(stream.snapshot_end),
                    flags=flags,
                    **common,  # type: ignore[arg-type]
                )
            )
        stream.after = left[0][0]
        self.show(vbucket, stream, left[0])
        return True

    def show(self, vbucket: int, stream: _Stream, change: tuple[int, bytes, bytes | None]) -> None:
        """Send one change."""
        common = {"opaque": Opaque(stream.opaque), "vbucket": VBucketId(vbucket)}
        seqno, key, value = change
        item = {"by_seqno": Seqno(seqno), "rev_seqno": 1, "key": key, "cas": Cas(seqno), **common}
        if value is None:
            self.send(w.Deletion(**item))  # type: ignore[arg-type]
        else:
            self.send(w.Mutation(value=value, nru=0, **item))  # type: ignore[arg-type]


class Shell:
    """A `Follower` joined to a cluster in memory; time passes only when nothing else happens."""

    def __init__(
        self, cluster: FakeCluster, *, start: Start = "beginning", until: Until = None, **options: object
    ) -> None:
        self.cluster = cluster
        self.now = 0.0
        given = {
            "connection": f"couchbase://{cluster.nodes[0]}",
            "keys": "binary",
            "buffer_bytes": 4096,
            **options,
        }
        self.options = ChangeOptions(**given)  # type: ignore[arg-type]
        self.follower = Follower(self.options, Plan(start, until), self.now)
        self.peers: dict[Link, FakeConnection] = {}
        self.events: list[Event] = []
        self.cuts: list[int | None] = []
        """After how many bytes each new connection breaks; None for never."""
        self._budget: dict[Link, int | None] = {}
        self.piece_bytes = 1 << 20
        self.takes = True

    def run(self, *, until: Callable[[], bool] | None = None, seconds: float = 200.0) -> None:
        """Let things happen until a condition holds, everything was read, or it failed."""
        end = self.now + seconds
        while self.now <= end:
            if until is not None and until():
                return
            if self.follower.failure is not None or self.follower.is_done:
                return
            if not self.step():
                due = self.follower.deadline()
                if due is None:
                    return
                self.now = max(due, self.now) + 1e-6
        raise AssertionError(f"nothing came of it in {seconds} s; events: {self.events[-5:]}")

    def step(self) -> bool:
        """Do what can be done without waiting; whether there was something."""
        self.follower.tick(self.now)
        moved = self._open_and_close()
        for link, peer in list(self.peers.items()):
            moved = self._carry(link, peer) or moved
        while self.takes and self.follower.events:
            event = self.follower.events.popleft()
            self.events.append(event)
            self.follower.taken.take(event)
            moved = True
        return moved

    def _open_and_close(self) -> bool:
        nodes, moved = self.follower.nodes, False
        while nodes.to_close:
            peer = self.peers.pop(nodes.to_close.pop(), None)
            if peer is not None:
                self.cluster.connections.remove(peer)
            moved = True
        while nodes.to_connect:
            link = nodes.to_connect.pop()
            moved = True
            place = self.cluster.nodes.index(link.address)
            if place in self.cluster.down:
                self.lose(link, "cannot connect")
                continue
            self.peers[link] = self.cluster.connect(place)
            self._budget[link] = self.cuts.pop(0) if self.cuts else None
            self.follower.connected(link, self.now)
        return moved

    def _carry(self, link: Link, peer: FakeConnection) -> bool:
        if link.state is LinkState.CLOSED:
            return False
        moved = bool(link.out)
        sent, link.out[:] = bytes(link.out), b""
        peer.receive(sent)
        data = bytes(peer.out[: self.piece_bytes])
        budget = self._budget[link]
        if budget is not None:
            data = data[:budget]
            self._budget[link] = budget - len(data)
        room = link.room()
        data = data[: len(room)]
        del peer.out[: len(data)]
        if data:
            room[: len(data)] = data
            room.release()
            self.follower.received(link, len(data), self.now)
        if self._budget[link] == 0 or peer.closed:
            self.lose(link, "the connection broke")
            return True
        return moved or bool(data)

    def lose(self, link: Link, why: str) -> None:
        """Break a link."""
        self.follower.lost(link, ConnectionLostError(f"{link.address}: {why}"), self.now)

    @property
    def rows(self) -> list[tuple[int, int, bytes, bytes | None]]:
        """Every change that was handed on: vbucket, seqno, key, value."""
        found: list[tuple[int, int, bytes, bytes | None]] = []
        for event in self.events:
            if isinstance(event, Batch):
                columns = (event.rows.column(name).to_pylist() for name in ("vbucket", "seqno", "key", "value"))
                found.extend(zip(*columns, strict=True))
        return found

    def of(self, vbucket: int) -> list[tuple[int, bytes, bytes | None]]:
        """Every change of one vbucket that was handed on."""
        return [row[1:] for row in self.rows if row[0] == vbucket]


@contextmanager
def served(cluster: FakeCluster) -> Iterator[FakeCluster]:
    """Let the nodes of a cluster listen on sockets, one thread for each connection."""
    listeners = [socket.create_server((HOST, 0)) for _ in cluster.nodes]
    cluster.nodes = [Address(host=HOST, port=each.getsockname()[1]) for each in listeners]
    lock, threads = threading.Lock(), []
    ended = threading.Event()

    def serve(connection: socket.socket, place: int) -> None:
        with lock:
            peer = cluster.connect(place)
        with connection, suppress(OSError):
            connection.settimeout(0.02)
            while not ended.is_set() and not peer.closed:
                with suppress(TimeoutError):
                    data = connection.recv(1 << 16)
                    if not data:
                        break
                    with lock:
                        peer.receive(data)
                with lock:
                    peer.pump()
                    out, peer.out[:] = bytes(peer.out), b""
                connection.settimeout(5)
                connection.sendall(out)
                connection.settimeout(0.02)
        with lock:
            cluster.connections.remove(peer)

    def accept(listener: socket.socket, place: int) -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(connection, place), daemon=True)
            threads.append(thread)
            thread.start()

    for place, listener in enumerate(listeners):
        thread = threading.Thread(target=accept, args=(listener, place), daemon=True)
        threads.append(thread)
        thread.start()
    try:
        yield cluster
    finally:
        ended.set()
        for listener in listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in threads:
            thread.join(10)
