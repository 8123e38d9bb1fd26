"""A blocking socket that never stops reading: bytes out, frames in.

While it writes, it takes in what the server answers. A server that answers many requests of one long write would else
wait for us to read while we wait for it to read, until both time out.

Foreign exceptions end here: a caller sees `ConnectionLostError`, and `RemoteProtocolError` for bytes that are no frame.
"""

from __future__ import annotations

import math
import select
import socket
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from headrace.client.errors import ConnectionLostError, told_of
from headrace.wire import Frame, FrameReader

if TYPE_CHECKING:
    import ssl  # its users have imported it: an open connection does without
    from collections.abc import Iterator

    from headrace.client.address import Address

_READ_BYTES = 256 * 1024

TIMEOUT_S_MAX = 86_400.0
"""Nobody waits for longer than a day; poll() counts milliseconds in 31 bits, and sockets refuse infinity."""


class Transport:
    """One connection. `timeout_s` bounds the wait for the server to take or give a byte, not a whole exchange."""

    def __init__(self, address: Address, *, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s = min(timeout_s, TIMEOUT_S_MAX)
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._waits: tuple[type[OSError], ...] = (BlockingIOError,)
        with self._translated("cannot connect"):
            plain = socket.create_connection((address.host, address.port), timeout=timeout_s)
        try:
            with self._translated("cannot connect"):
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket = plain if tls is None else self._wrap(plain, tls)
                self._socket.setblocking(False)  # noqa: FBT003 - the socket's own name for it
        except BaseException:
            plain.close()
            raise

    def _wrap(self, plain: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        import ssl  # noqa: PLC0415 - 15 ms that an open connection need not wait

        self._waits = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        return tls.wrap_socket(plain, server_hostname=self._address.host)

    def send(self, data: bytes | bytearray) -> None:
        """Write it all; what arrives meanwhile waits for `next_frame`."""
        rest = memoryview(data)
        with self._translated("the connection broke"):
            while rest:
                sent = self._write(rest)
                rest = rest[sent:]
                arrived = self._fill()
                if rest and not sent and not arrived:
                    self._wait(writing=True)

    def next_frame(self) -> Frame:
        """Wait for the next frame."""
        self._await_frame()
        return self._frames.popleft()

    def next_frames(self) -> list[Frame]:
        """Wait for the next frame, and take all that came with it."""
        self._await_frame()
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def _await_frame(self) -> None:
        with self._translated("the connection broke"):
            while not self._frames:
                if not self._fill():
                    self._wait(writing=False)

    # -- bytes, for who carries them elsewhere; not to be mixed with frames

    def fileno(self) -> int:
        """What to poll."""
        return self._socket.fileno()

    def read(self) -> bytes:
        """Bytes that are there; empty for none now."""
        with self._translated("the connection broke"):
            return self._receive()

    def write(self, data: memoryview) -> int:
        """Send as much as goes now, and give how much."""
        with self._translated("the connection broke"):
            return self._write(data)

    def close(self) -> None:
        """Close; what was not read is lost."""
        with suppress(OSError):
            self._socket.close()

    def _write(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except self._waits:
            return 0

    def _fill(self) -> bool:
        """Take in what is there, and cut it into frames; tell if there was something."""
        data = self._receive()
        if data:
            self._reader.receive(data)
            while isinstance(frame := self._reader.next_frame(), Frame):
                self._frames.append(frame)
        return bool(data)

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(_READ_BYTES)
        except self._waits:
            return b""
        if not data:
            raise ConnectionLostError(f"{self._address}: the server closed the connection")
        return data

    def _wait(self, *, writing: bool) -> None:
        # Not select(), which refuses a descriptor past 1023: a busy process has more files open.
        ready = select.poll()
        ready.register(self._socket, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
        if not ready.poll(math.ceil(self._timeout_s * 1000)):
            raise ConnectionLostError(f"{self._address}: no answer within {self._timeout_s:g} s")

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise ConnectionLostError(f"{self._address}: no answer within {self._timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:  # ssl's errors are OSErrors, too; a resolver's may be either
            raise ConnectionLostError(f"{self._address}: {what}: {told_of(error)}") from error
