"""Clients that keep a node busy with pipelined writes and hold it to every answer.

Each client owns its keys, so what a request must come to is known beforehand (`outcome`): the answer is compared with
it, and what was not answered when the node died goes to the model as what may have been.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.ids import Opaque, Seqno, VBucketId, VbUuid
from headrace.wire import FrameReader, NeedData, encode
from headrace.wire.catalogue import (
    Add,
    Append,
    Counting,
    Delete,
    DeleteQ,
    Extending,
    Hello,
    Increment,
    ObserveSeqno,
    OfItem,
    Prepend,
    Replace,
    SeqnoPersistence,
    Set,
    SetQ,
    Storing,
    Touch,
    Touching,
)
from headrace.wire.codes import Feature, Status
from tests.crash.model import Change, VBucketModel, Version

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from headrace.wire import Frame, Request

Write = Storing | OfItem | Extending | Counting | Touching

KEYS = 5
COUNTER_MASK = 2**64 - 1
EXPIRY_FROM = 4_000_000_000  # seconds of the epoch, far away: nothing ends while a test runs
QUIET = (SetQ, DeleteQ)
READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How the clients of one round behave."""

    clients: int
    window: int
    value_bytes_max: int
    vbuckets: tuple[int, ...]
    asks_persistence: bool = False
    may_be_refused: bool = False
    """Whether the node's writer may be away for a while."""


class Drawn(NamedTuple):
    """What chance gives for a request."""

    key: bytes
    vbucket: VBucketId
    opaque: Opaque
    value: bytes
    filler: bytes
    flags: int
    expiry: int
    touched: int


OF_COUNTERS: tuple[Callable[[Drawn], Write], ...] = (
    *3
    * (
        lambda d: Increment(
            key=d.key, delta=d.flags % 100, initial=7, expiry=d.expiry, vbucket=d.vbucket, opaque=d.opaque
        ),
    ),
    lambda d: Delete(key=d.key, vbucket=d.vbucket, opaque=d.opaque),
    lambda d: Touch(key=d.key, expiry=d.touched, vbucket=d.vbucket, opaque=d.opaque),
)
OF_TEXTS: tuple[Callable[[Drawn], Write], ...] = (
    *3 * (lambda d: _storing(Set, d),),
    lambda d: _storing(SetQ, d),
    lambda d: _storing(Add, d),
    lambda d: _storing(Replace, d),
    lambda d: Delete(key=d.key, vbucket=d.vbucket, opaque=d.opaque),
    lambda d: DeleteQ(key=d.key, vbucket=d.vbucket, opaque=d.opaque),
    lambda d: Append(key=d.key, value=d.value, vbucket=d.vbucket, opaque=d.opaque),
    lambda d: Prepend(key=d.key, value=d.value, vbucket=d.vbucket, opaque=d.opaque),
    lambda d: Touch(key=d.key, expiry=d.touched, vbucket=d.vbucket, opaque=d.opaque),
)


def _storing(kind: type[Storing], d: Drawn) -> Storing:
    value = d.value + d.filler
    return kind(key=d.key, value=value, flags=d.flags, expiry=d.expiry, vbucket=d.vbucket, opaque=d.opaque)


def outcome(request: Write, old: Version | None) -> tuple[Status, Version | None]:
    """What a request comes to: its status, and what its key then is; None when nothing changes."""
    there = old is not None and old.live
    revision = old.revision + 1 if old is not None else 1
    if isinstance(request, Storing):
        if isinstance(request, Add) and there:
            return Status.KEY_EXISTS, None
        if isinstance(request, Replace) and not there:
            return Status.KEY_NOT_FOUND, None
        return Status.SUCCESS, Version(True, request.value, request.flags, request.expiry, revision)
    if isinstance(request, Counting) and not there:
        return Status.SUCCESS, Version(True, b"%d" % request.initial, 0, request.expiry, revision)
    if old is None or not old.live:
        return Status.NOT_STORED if isinstance(request, Extending) else Status.KEY_NOT_FOUND, None
    return Status.SUCCESS, _changed(request, old, revision)


def _changed(request: Write, old: Version, revision: int) -> Version | None:
    match request:
        case Append():
            return old._replace(value=old.value + request.value, revision=revision)
        case Prepend():
            return old._replace(value=request.value + old.value, revision=revision)
        case Increment():
            number = (int(old.value) + request.delta) & COUNTER_MASK
            return old._replace(value=b"%d" % number, revision=revision)
        case Touch():
            return None if old.expiry == request.expiry else old._replace(expiry=request.expiry)
    return Version(False, revision=revision)


class Client:
    """One connection and the requests on it that are not answered."""

    def __init__(self, number: int, port: int, models: dict[int, VBucketModel], cas_floor: int) -> None:
        self.number = number
        self._models = models
        self._cas_floor = cas_floor
        self.cas_max = cas_floor
        self.answered = 0
        self._sent: deque[Write] = deque()
        self._opaque = 0
        self._out = b""
        self._reader = FrameReader()
        self.socket = connect(port)
        self.socket.setblocking(False)

    def send(self, random: Random, style: Style) -> None:
        """Fill the window, and write what the socket takes."""
        if not self._out and len(self._sent) <= style.window // 2:
            messages = [self._draw(random, style) for _ in range(style.window - len(self._sent))]
            self._sent.extend(messages)
            self._out = b"".join(map(encode, messages))
        if self._out:
            try:
                self._out = self._out[self.socket.send(self._out) :]
            except (BlockingIOError, ConnectionError):
                return

    def receive(self, style: Style) -> bool:
        """Take what is there; False when the node has gone."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        self._reader.receive(data)
        while not isinstance(frame := self._reader.next_frame(), NeedData):
            self._answer(frame, style)
        return bool(data)

    def drain(self, style: Style) -> None:
        """Take what the node said before it died; what it did not answer may have been done."""
        self.socket.setblocking(True)
        self.socket.settimeout(30)
        while self.receive(style):
            pass
        self.socket.close()
        while self._sent:
            self._done(self._sent.popleft())

    def _draw(self, random: Random, style: Style) -> Write:
        self._opaque += 1
        vbucket, index = VBucketId(random.choice(style.vbuckets)), random.randrange(KEYS)
        # A touch changes nothing but the expiry: no two give the same, so that a record tells which it has seen.
        touched = EXPIRY_FROM + self._opaque
        # Some values are JSON, which takes another way through the node.
        value = random.choice((b"<%d:%d>", b"[%d,%d]")) % (self.number, self._opaque)
        drawn = Drawn(
            key=b"key-%d-%d-%d" % (self.number, vbucket, index),
            vbucket=vbucket,
            opaque=Opaque(self._opaque),
            value=value,
            filler=b"." * random.randrange(style.value_bytes_max),
            flags=random.randrange(2**32),
            expiry=random.choice((0, 0, touched)),
            touched=touched,
        )
        return random.choice(OF_COUNTERS if index == 0 else OF_TEXTS)(drawn)

    def _answer(self, frame: Frame, style: Style) -> None:
        while True:
            request = self._sent.popleft()
            if request.opaque == frame.header.opaque:
                break
            assert isinstance(request, QUIET), f"{request} was not answered, and the next was"
            assert self._done(request) is Status.SUCCESS, f"{request} was to be refused, and was not answered"
        if frame.header.specific == Status.TEMPORARY_FAILURE and style.may_be_refused:
            return
        self.answered += 1
        expected = self._done(request, frame)
        told = Status(frame.header.specific)
        assert told is expected, f"{request} got {told!r} {frame.body!r}, not {expected!r}"

    def _done(self, request: Write, frame: Frame | None = None) -> Status:
        model = self._models[request.vbucket]
        status, version = outcome(request, model.now.get(request.key))
        if version is None:
            return status
        change = Change(key=request.key, version=version, answered=frame is not None)
        if frame is not None and frame.header.specific == Status.SUCCESS:
            change.cas = frame.header.cas
            if not isinstance(request, Touch):
                assert change.cas > self.cas_max, f"{request} got CAS {change.cas}; {self.cas_max} was before"
                self.cas_max = change.cas
                vbuuid, change.seqno = int.from_bytes(frame.extras[:8]), int.from_bytes(frame.extras[8:])
                assert vbuuid == model.log[0][0], f"{request} is of branch {vbuuid}, the log is {model.log}"
        model.changed(self.number, change)
        return status


@dataclass(slots=True)
class Watcher:
    """A connection that asks what is on disk, one question after the other."""

    socket: socket.socket
    models: dict[int, VBucketModel]
    reader: FrameReader = field(default_factory=FrameReader)
    asked: tuple[int, int | None] | None = None
    answers: int = 0

    def send(self, random: Random, style: Style) -> None:
        """Ask, unless an answer is awaited."""
        if self.asked is not None:
            return
        number = random.choice(style.vbuckets)
        model = self.models[number]
        request: Request = ObserveSeqno(vbucket=VBucketId(number), vbuuid=VbUuid(model.log[0][0]))
        seqno = None
        if style.asks_persistence and model.seqnos and random.random() < 0.5:
            seqno = random.choice((max(model.seqnos), min(model.seqnos)))
            request = SeqnoPersistence(vbucket=VBucketId(number), seqno=Seqno(seqno))
        self.asked = number, seqno
        try:
            self.socket.send(encode(request))
        except ConnectionError:
            return

    def receive(self, style: Style) -> bool:
        """Take an answer; False when the node has gone."""
        del style
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        self.reader.receive(data)
        while not isinstance(frame := self.reader.next_frame(), NeedData):
            assert frame.header.specific == Status.SUCCESS, frame
            assert self.asked is not None
            number, seqno = self.asked
            if seqno is None:
                _, _, persisted, current = _observed(frame.body)
                assert persisted <= current
                self.models[number].told_persisted(persisted)
            else:
                self.models[number].told_persisted(max(seqno, self.models[number].persisted))
            self.asked = None
            self.answers += 1
        return bool(data)

    def drain(self, style: Style) -> None:
        """Take what the node said before it died."""
        self.socket.setblocking(True)
        self.socket.settimeout(30)
        while self.receive(style):
            pass
        self.socket.close()


def _observed(body: bytes) -> tuple[int, int, int, int]:
    assert body[0] == 0, "no failover came between"
    number = int.from_bytes
    return number(body[1:3]), number(body[3:11]), number(body[11:19]), number(body[19:27])


def connect(port: int) -> socket.socket:
    """Connect, and agree to be told seqnos."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(encode(Hello(agent=b"crash", features=(Feature.MUTATION_SEQNO,))))
    answer = b""
    while len(answer) < 26:
        answer += connection.recv(26 - len(answer))
    assert answer[-2:] == Feature.MUTATION_SEQNO.to_bytes(2), answer
    return connection


def drive(
    random: Random, style: Style, clients: list[Client], watcher: Watcher, *, seconds: float, watched: int | None = None
) -> None:
    """Keep the node busy for a time, or until so many questions of the watcher were answered."""
    end = time.monotonic() + seconds
    goal = None if watched is None else watcher.answers + watched
    with selectors.DefaultSelector() as selector:
        everyone: list[Client | Watcher] = [*clients, watcher]
        for one in everyone:
            one.send(random, style)
            selector.register(one.socket, selectors.EVENT_READ, one)
        while (left := end - time.monotonic()) > 0 and (goal is None or watcher.answers < goal):
            for key, _ in selector.select(min(left, 0.01)):
                assert key.data.receive(style), "the node closed a connection"
            for one in everyone:
                one.send(random, style)
