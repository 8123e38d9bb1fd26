"""Connections that were opened for streams, by someone who stands between producer and consumer.

A `Line` opens as every client does, then becomes a producer or a consumer at its server by DCP OPEN. Until it is joined
to another it asks and waits; after that it gives and takes raw bytes, and never blocks.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, Any, Self

from headrace.client.errors import ServerAnswerError, StatusError, error_of
from headrace.client.opening import opening
from headrace.client.transport import Transport
from headrace.history import FailoverLog
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.pipelines.servers import Vbuckets
from headrace.wire import Dialect, Response, decode, encode
from headrace.wire.catalogue import Control, ErrorReply, GetFailoverLog, Open, StreamRequest
from headrace.wire.catalogue import FailoverLog as FailoverLogReply
from headrace.wire.codes import Feature, OpenFlag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.opening import Steps
    from headrace.pipelines.servers import Server
    from headrace.wire.message import Request

NAME_BYTES_MAX = 200
FEATURES = (Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON, Feature.SNAPPY, Feature.XATTR, Feature.ALT_REQUEST)
"""What a consumer may be able to take. A producer is asked only for what its consumer granted."""


class Line(Transport):
    """One end of a relay: a connection to a producer or to a consumer."""

    def __init__(self, server: Server, features: Iterable[int] = FEATURES) -> None:
        super().__init__(server.address, tls=server.tls, timeout_s=server.timeout_s)
        self.server = server
        self.sends_delete_times = False
        """Whether it was agreed that deletions carry their time."""
        self._last_opaque = 0
        self.dialect = Dialect.DCP
        """How what is asked by it is written."""
        try:
            self.features: frozenset[int] = self._go_through(opening(server.login, tuple(features)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def to_consumer(cls, server: Server, name: str, dialect: Dialect = Dialect.DCP) -> Line:
        """Make a server a consumer, which waits to be told what to ask for; in an older dialect a headrace node can."""
        line = cls(server)
        line.become(OpenFlag(0), name)
        if dialect is not Dialect.DCP:
            line.set(b"dialect", dialect.encode())
        return line

    @classmethod
    def to_producer(
        cls,
        server: Server,
        name: str,
        dialect: Dialect = Dialect.DCP,
        *,
        granted: frozenset[int] = frozenset(FEATURES),
    ) -> Line:
        """Make a server a producer, for a consumer that knows these features. In the draft, its first message does.

        Delete times came to Couchbase with snappy, expirations as such with alternative headers: a consumer that has
        the one has the other.
        """
        if dialect is Dialect.UPR_DRAFT:
            line = cls(server, _ALWAYS)
            line.dialect = dialect
            return line
        line = cls(server, [feature for feature in FEATURES if feature in granted or feature in _ALWAYS])
        flags = OpenFlag.PRODUCER
        if Feature.XATTR in granted:
            flags |= OpenFlag.INCLUDE_XATTRS
        if Feature.SNAPPY in granted and Feature.SNAPPY in line.features:
            flags |= OpenFlag.INCLUDE_DELETE_TIMES
            line.sends_delete_times = True
        line.become(flags, name)
        if Feature.ALT_REQUEST in granted:
            line.wish(b"enable_expiry_opcode")
        return line

    def become(self, flags: OpenFlag, name: str) -> None:
        """Give the server its role, and the connection its name."""
        try:
            self.ask(
                Open(flags=flags, name=name.encode()[:NAME_BYTES_MAX]), asked=f"a stream connection to {self.server}"
            )
        except BaseException:
            self.close()
            raise

    def wish(self, key: bytes) -> None:
        """Set what is good to have: a server that does not know it does without."""
        self.set(key, b"true", must=False)

    def set(self, key: bytes, value: bytes, *, must: bool = True) -> None:
        """Set something for the connection."""
        try:
            self.ask(Control(key=key, value=value))
        except BaseException as error:
            if must or not isinstance(error, StatusError):
                self.close()
                raise

    # -- questions, before the line is joined

    def ask(self, message: Request, *, asked: str = "") -> Response:
        """Send a request and wait for its answer; a status of failure is raised."""
        self._last_opaque += 1
        opaque = Opaque(self._last_opaque)
        self.send(encode(dataclasses.replace(message, opaque=opaque), self.dialect))
        frame = self.next_frame()
        reply = decode(frame, self.dialect)
        if frame.header.opaque != opaque or not isinstance(reply, Response):
            raise ServerAnswerError(f"{self.server}: {message.spec.name} was answered by {reply!r}")
        if isinstance(reply, ErrorReply):
            raise error_of(asked or f"{message.spec.name} at {self.server}", reply.status, reply.value)
        return reply

    def failover_log(self, vb: int) -> FailoverLog:
        """The branches of a vbucket."""
        asked = f"the failover log of vbucket {vb} at {self.server}"
        reply = self.ask(GetFailoverLog(vbucket=VBucketId(vb)), asked=asked)
        if not isinstance(reply, FailoverLogReply):
            raise ServerAnswerError(f"{asked}: {reply!r}")
        return FailoverLog.from_entries(reply.entries)

    def _go_through(self, steps: Steps) -> Any:
        """Ask what the steps ask, and tell them what was answered."""
        try:
            ask = next(steps)
            while True:
                try:
                    reply = self.ask(ask.message, asked=ask.asked)
                    if not isinstance(reply, ask.kind):
                        raise ServerAnswerError(f"{self.server}: {ask.message.spec.name} was answered by {reply!r}")
                except StatusError as error:
                    ask = steps.throw(error)
                else:
                    ask = steps.send(reply)
        except StopIteration as done:
            return done.value


_ALWAYS = frozenset({Feature.SELECT_BUCKET, Feature.XERROR, Feature.JSON})


def are_one(source: Server, target: Server, dialect: Dialect = Dialect.DCP) -> bool:
    """Whether two addresses are of one bucket of one server: what is opened by the one is seen by the other.

    A server may go by many names, so that to compare those is not enough.
    """
    if (source.address, source.bucket) == (target.address, target.bucket):
        return True
    name = f"headrace-who:{secrets.token_hex(8)}"
    if dialect is Dialect.UPR_DRAFT:
        return _is_seen_as_group(source, target, name)
    with Line.to_producer(source, name), Vbuckets(target) as seen:
        return name in seen.connections()


def _is_seen_as_group(source: Server, target: Server, name: str) -> bool:
    """The draft names no connections, but streams."""
    with Vbuckets(source) as asked, Vbuckets(target) as seen, Line.to_producer(source, name, Dialect.UPR_DRAFT) as line:
        for vb in list(asked.seqnos())[:1]:
            line.ask(StreamRequest(vbucket=VBucketId(vb), high_seqno=Seqno(0), group=name.encode()))
        return name in seen.connections()


__all__ = ["FEATURES", "NAME_BYTES_MAX", "Line", "are_one"]
