"""A client for tests: messages of the catalogue over a socket, one at a time or many at once."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.ids import Opaque
from headrace.wire import Frame, FrameReader, NeedData, decode, encode
from headrace.wire.catalogue import Hello, SaslAuth, Stat, StatEntry
from headrace.wire.message import Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node import Node
    from headrace.wire.codes import Feature

R = TypeVar("R", bound=Response)
TIMEOUT_S = 20.0


class Talk:
    """One connection to a node."""

    def __init__(self, node: Node, *features: Feature) -> None:
        self.socket = socket.create_connection((node.host, node.port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._opaque = 0
        if features:
            self.ask(Hello(agent=b"tests", features=features))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def log_in(self, name: str, password: str) -> Response:
        """Authenticate by PLAIN."""
        return self.ask(SaslAuth(mechanism=b"PLAIN", challenge=f"\0{name}\0{password}".encode()))

    def send(self, *messages: Request) -> list[int]:
        """Send requests in one write; gives their opaques."""
        opaques, blocks = [], []
        for message in messages:
            self._opaque += 1
            opaques.append(self._opaque)
            frame = bytearray(encode(message))
            frame[12:16] = self._opaque.to_bytes(4, "big")
            blocks.append(bytes(frame))
        self.socket.sendall(b"".join(blocks))
        return opaques

    def receive_raw(self) -> Frame:
        """Wait for the next frame."""
        while isinstance(frame := self._reader.next_frame(), NeedData):
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the node closed the connection")
            self._reader.receive(data)
        return frame

    def receive(self) -> Response:
        """Wait for the next answer."""
        reply = decode(self.receive_raw())
        assert isinstance(reply, Response), reply
        return reply

    def ask(self, message: Request) -> Response:
        """Send a request and wait for its answer."""
        (opaque,) = self.send(message)
        reply = self.receive()
        assert reply.opaque == Opaque(opaque)
        return reply

    def get(self, message: Request, reply: type[R]) -> R:
        """Ask, and expect an answer of a class."""
        answer = self.ask(message)
        assert isinstance(answer, reply), answer
        assert answer.status == 0, answer
        return answer

    def status(self, message: Request) -> int:
        """Ask, and look at the status alone."""
        return self.ask(message).status

    def ends(self) -> bool:
        """Whether the node has closed the connection."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def stats(self, group: bytes = b"") -> dict[str, str]:
        """A group of statistics."""
        self.send(Stat(key=group))
        told: dict[str, str] = {}
        while True:
            entry = self.receive()
            assert isinstance(entry, StatEntry), entry
            if not entry.key:
                return told
            told[entry.key.decode()] = entry.value.decode()


def on_loop(node: Node, work: Callable[[], Any]) -> Any:
    """Run something in the event loop of a node, where its state may be touched; wait for what it awaits."""

    async def run() -> Any:
        result = work()
        return await result if asyncio.iscoroutine(result) else result

    return asyncio.run_coroutine_threadsafe(run(), node.loop).result(TIMEOUT_S)
