"""A server that says what a capture says: the harness must find no fault with it, and find each fault put into it."""

from __future__ import annotations

import socket
import threading
from typing import Self

from headrace.wire import FrameReader, NeedData
from tests.replay.captures import Kind, script

Turns = list[list[bytes]]
"""What is sent after each message of the client."""


def turns_of(release: str, scenario: str) -> Turns:
    """The turns of a capture that has one connection."""
    turns: Turns = []
    for line in script(release, scenario):
        if line.kind is Kind.SENT:
            turns.append([])
        elif line.kind is Kind.RECEIVED:
            turns[-1].append(line.wire)
    return turns


class Scripted:
    """Answers one connection by turns."""

    def __init__(self, turns: Turns) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.host: str
        self.port: int
        self.host, self.port = self._listening.getsockname()
        self._turns = turns
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self._listening.close()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        reader = FrameReader()
        with connection:
            for turn in self._turns:
                while isinstance(reader.next_frame(), NeedData):
                    data = connection.recv(1 << 16)
                    if not data:
                        return
                    reader.receive(data)
                connection.sendall(b"".join(turn))
            connection.recv(1)

    def restart(self) -> None:
        """Never asked for; nor are the others."""
        raise NotImplementedError

    kill = start = expire = close = restart
