"""A way to a server that breaks after some bytes, so many times, and then holds."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
PIECE_BYTES = 16 << 10
LOOK_S = 0.05


class Cutter:
    """Listens on a port of its own and passes bytes to a server, both ways; a context manager that ends it.

    Once told to, it cuts the connections that there are and the next ones, each after a number of bytes that a seed
    decides, in the middle of whatever goes by.
    """

    def __init__(self, port: int, *, seed: int, bytes_max: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._bytes_max = bytes_max
        self._left = 0
        self.cuts = 0
        """How many connections were cut."""
        self._ended = threading.Event()
        self._listener = socket.create_server((HOST, 0))
        self._listener.settimeout(LOOK_S)
        self.host, self.port = HOST, self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def cut(self, connections: int) -> None:
        """Cut so many connections from now on."""
        self._left = connections

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            try:
                server = socket.create_connection((HOST, self._port))
            except OSError:
                client.close()
                continue
            self._start(self._pass, client, server)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        budget = self._random.randrange(64, self._bytes_max)
        with client, server, selectors.DefaultSelector() as ready, contextlib.suppress(OSError):
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while not self._ended.is_set():
                for key, _ in ready.select(LOOK_S):
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(PIECE_BYTES)
                    if self._left > 0:
                        data, budget = data[:budget], budget - len(data)
                    key.data.sendall(data)
                    if budget <= 0 and self._left > 0:
                        self._left -= 1
                        self.cuts += 1
                        return
                    if not data:
                        return
