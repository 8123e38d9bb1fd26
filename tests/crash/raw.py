"""A blocking connection on which requests are sent as they are and answers looked at as they come."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Self

from headrace.wire import FrameReader, NeedData, encode
from headrace.wire.catalogue import Stat
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from headrace.wire import Frame, Request

TIMEOUT_S = 60.0
READ_BYTES = 256 * 1024


class GoneError(Exception):
    """The node closed the connection."""


class Raw:
    """One connection; a context manager that closes it."""

    def __init__(self, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request: Request) -> Frame:
        """Send a request and give its answer, whatever it says."""
        self.socket.sendall(encode(request))
        return self.receive()

    def ask(self, request: Request) -> Frame:
        """Send a request that must succeed."""
        frame = self.send(request)
        assert frame.header.specific == Status.SUCCESS, (request, frame)
        return frame

    def receive(self) -> Frame:
        """Wait for the next answer."""
        while isinstance(frame := self._reader.next_frame(), NeedData):
            try:
                data = self.socket.recv(READ_BYTES)
            except ConnectionError as error:
                raise GoneError from error
            if not data:
                raise GoneError
            self._reader.receive(data)
        return frame

    def stats(self, group: bytes = b"") -> dict[str, str]:
        """A group of statistics."""
        self.socket.sendall(encode(Stat(key=group)))
        found = {}
        while (frame := self.receive()).body:
            assert frame.header.specific == Status.SUCCESS, frame
            found[frame.key.decode()] = frame.value.decode()
        return found
