"""A bare connection to any server of this family: requests out, whatever frames come back."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Self

from headrace.ids import Opaque
from headrace.wire import Frame, FrameReader, catalogue, encode

if TYPE_CHECKING:
    from tests.processes import Server

ANSWER_S = 30
PIECE_BYTES = 1 << 16
LAST = 0xFFFF_FFFF


class Connection:
    """One socket. As a context manager it is closed at the end."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection((server.host, server.port), timeout=ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def exchange(self, requests: bytes) -> list[Frame]:
        """Send frames with a NOOP behind them, and give all that is answered before the NOOP is."""
        self._socket.sendall(requests + encode(catalogue.Noop(opaque=Opaque(LAST))))
        frames: list[Frame] = []
        while True:
            frame = self._reader.next_frame()
            if not isinstance(frame, Frame):
                piece = self._socket.recv(PIECE_BYTES)
                assert piece, f"the server closed the connection after {frames}"
                self._reader.receive(piece)
            elif frame.header.opaque == LAST:
                assert (frame.header.opcode, frame.header.specific, frame.body) == (0x0A, 0, b"")
                return frames
            else:
                frames.append(frame)
