"""One authenticated connection to one bucket of one node, for items: get, set, delete, and many sets at once.

It opens in this order, each step only where it has a meaning: hello, SCRAM, select bucket, cluster config. Plain
memcached knows none of them and is served all the same: it has no buckets, and everything is in vbucket 0.

Calls block, and one thread at a time may use a connection. After an error that is no `StatusError` it is closed.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any, Self

from headrace.client.address import Address
from headrace.client.errors import ServerAnswerError, StatusError, UnknownCommandError, error_of
from headrace.client.opening import DEFAULT_BUCKET, Login, Steps, opening
from headrace.client.transport import Transport
from headrace.client.vbuckets import count_vbuckets, vbucket_of
from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.ids import Cas, Opaque, VBucketId
from headrace.wire import Response, decode, encode
from headrace.wire.catalogue import (
    Delete,
    ErrorReply,
    Get,
    GetClusterConfig,
    Item,
    Mutated,
    Set,
    Text,
)
from headrace.wire.codes import Feature
from headrace.wire.limits import KEY_BYTES_MAX

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Iterator
    from typing import TypeVar

    from headrace.wire import Frame, Request

    R = TypeVar("R", bound=Response)

TIMEOUT_S = 10.0
FEATURES = (Feature.MUTATION_SEQNO, Feature.SELECT_BUCKET, Feature.JSON)
"""What hello asks for: what is used here, and no more."""
_ASKED_BYTES = 4096
"""How much of many requests is sent at a time."""
_OPAQUE, _OPAQUE_AT = Struct(">I"), 12
"""The opaque and its place in the header, as wire.header draws it."""


class NodeConnection:
    """A connection to one node, opened as far as a bucket; a context manager that closes it.

    The password is used to open the connection and not kept. It goes over the wire only inside TLS, and only to a
    server that has no SCRAM.
    """

    def __init__(  # noqa: PLR0913 - what a connection is made of
        self,
        host: str,
        port: int,
        *,
        username: str | None = None,
        password: str | None = None,
        bucket: str = DEFAULT_BUCKET,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if (username is None) != (password is None):
            raise LocalProtocolError("a user name needs a password, and a password a user name")
        self.address = Address(host=host, port=port, tls=tls is not None)
        self.bucket = bucket
        self.features: frozenset[int] = frozenset()
        self._opaque = 0
        self._transport = Transport(self.address, tls=tls, timeout_s=timeout_s)
        try:
            self._open(username, password)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address}, bucket={self.bucket!r})"

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    # -- messages

    def request(self, message: Request, *, asked: str = "") -> Response:
        """Send one request and wait for its answer; a status of failure is raised, named by what was `asked`."""
        opaque = self._next_opaque()
        self.send(encode(dataclasses.replace(message, opaque=opaque)))
        frame = self.next_frame()
        if frame.header.opaque != opaque:
            self.close()
            raise ServerAnswerError(f"{self.address}: an answer to another request than {message.spec.name}")
        reply = decode(frame)
        if isinstance(reply, ErrorReply):
            raise error_of(asked or self._named(message), reply.status, reply.value)
        if not isinstance(reply, Response):
            self.close()
            raise ServerAnswerError(f"{self.address}: the answer to {message.spec.name} is none: {reply!r}")
        return reply

    def ask_all(self, messages: Iterable[Request]) -> list[Response]:
        """Send requests at once and wait for all answers, refusals too; what the server asks meanwhile is dropped."""
        waiting: dict[int, int] = {}
        frames = bytearray()
        for place, message in enumerate(messages):
            opaque = self._next_opaque()
            waiting[opaque] = place
            start = len(frames)
            frames += encode(message)
            _OPAQUE.pack_into(frames, start + _OPAQUE_AT, opaque)
            if len(frames) > _ASKED_BYTES:  # the server answers these while the next ones are made
                self.send(frames)
                frames.clear()
        replies: list[Response | None] = [None] * len(waiting)
        self.send(frames)
        while waiting:
            for frame in self._next_frames():
                reply = decode(frame)
                if not isinstance(reply, Response):
                    continue
                place_of = waiting.pop(frame.header.opaque, None)
                if place_of is None:
                    self.close()
                    raise ServerAnswerError(f"{self.address}: an answer that nothing asked for: {reply!r}")
                replies[place_of] = reply
        return [reply for reply in replies if reply is not None]

    def send(self, frames: bytes | bytearray) -> None:
        """Send ready-made frames. Whoever does so takes all their answers by `next_frame`."""
        with self._closing():
            self._transport.send(frames)

    def next_frame(self) -> Frame:
        """Wait for the next answer, whatever it answers."""
        with self._closing():
            return self._transport.next_frame()

    def _next_frames(self) -> list[Frame]:
        """Wait for an answer, and take all that came with it."""
        with self._closing():
            return self._transport.next_frames()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Close when something goes wrong. Bytes that are no answer may come while a request is still being sent."""
        try:
            yield
        except RemoteProtocolError as error:
            self.close()
            raise ServerAnswerError(f"{self.address}: this is no server of the binary protocol: {error}") from error
        except BaseException:
            self.close()
            raise

    def _next_opaque(self) -> Opaque:
        self._opaque = (self._opaque + 1) & 0xFFFF_FFFF
        return Opaque(self._opaque)

    def _named(self, message: Request) -> str:
        key = getattr(message, "key", b"")
        of = f" {key.decode(errors='backslashreplace')}" if key else ""
        return f"{message.spec.name}{of} at {self.address}"

    def _expect(self, kind: type[R], message: Request, *, asked: str = "") -> R:
        reply = self.request(message, asked=asked)
        if not isinstance(reply, kind):
            self.close()
            raise ServerAnswerError(f"{self.address}: {message.spec.name} was answered by {reply.spec.name}")
        return reply

    # -- opening

    def _open(self, username: str | None, password: str | None) -> None:
        login = Login(address=self.address, bucket=self.bucket, username=username, password=password)
        self.features = self._go_through(opening(login, FEATURES))

    def _go_through(self, steps: Steps) -> Any:
        """Ask what the steps ask, and tell them what was answered."""
        try:
            ask = next(steps)
            while True:
                try:
                    reply = self._expect(ask.kind, ask.message, asked=ask.asked)
                except StatusError as error:
                    ask = steps.throw(error)
                else:
                    ask = steps.send(reply)
        except StopIteration as done:
            return done.value


class KvConnection(NodeConnection):
    """A connection for items; a context manager that closes it.

    >>> with KvConnection("127.0.0.1", 11210) as node:  # doctest: +SKIP
    ...     node.set(b"hello", b"world")
    ...     node.get(b"hello").value
    b'world'
    """

    vbuckets: int | None = None
    """How many vbuckets the bucket has; None where the server has none, as memcached."""

    # -- items

    def get(self, key: bytes) -> Item:
        """Fetch an item; `NotFoundError` when there is none."""
        return self._expect(Item, Get(key=_checked(key), vbucket=self.vbucket_of(key)))

    def set(
        self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, cas: int = 0, datatype: int = 0
    ) -> Mutated:
        """Store an item; with a CAS only over that version, else `KeyExistsError` or `NotFoundError`.

        `expiry` is as on the wire: up to 30 days in seconds from now, beyond that seconds of the epoch.
        """
        vbucket = self.vbucket_of(key)
        message = Set(
            key=_checked(key),
            value=value,
            flags=flags,
            expiry=expiry,
            cas=Cas(cas),
            datatype=datatype,
            vbucket=vbucket,
        )
        return self._expect(Mutated, message)

    def delete(self, key: bytes, *, cas: int = 0) -> Mutated:
        """Remove an item; `NotFoundError` when there is none."""
        return self._expect(Mutated, Delete(key=_checked(key), cas=Cas(cas), vbucket=self.vbucket_of(key)))

    def vbucket_of(self, key: bytes) -> VBucketId:
        """Give the vbucket under which this server has a key."""
        return VBucketId(0) if self.vbuckets is None else vbucket_of(key, self.vbuckets)

    def _open(self, username: str | None, password: str | None) -> None:
        super()._open(username, password)
        try:
            config = self._expect(Text, GetClusterConfig(), asked=f"the cluster config of {self.address}")
        except UnknownCommandError:
            return
        self.vbuckets = count_vbuckets(config.value, source=str(self.address))


def _checked(key: bytes) -> bytes:
    if not 0 < len(key) <= KEY_BYTES_MAX:  # some servers close the connection over it
        raise LocalProtocolError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
    return key


__all__ = ["DEFAULT_BUCKET", "FEATURES", "TIMEOUT_S", "KvConnection", "NodeConnection", "StatusError"]
