"""The HTTP port of a node: uvicorn in the node's own event loop, held so short that it cannot hinder the KV port.

What is served is in rest.py. Here is what keeps it in bounds: so many connections, so large a request head, so much
time for it, and an end within seconds when the node stops. uvicorn has no timeout for a client that connects and says
nothing, or says it very slowly: the protocol below has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.node.rest import HEAD_BYTES_MAX, make_app

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

    from headrace.node.services import Services

CONNECTIONS_MAX = 256
"""HTTP connections at a time; one more is closed at once."""
IDLE_S_MAX = 15
"""How long a connection may go without a whole request."""
GOODBYE_S = 2
"""How long answers that are under way may take when the node stops."""

log = logging.getLogger("headrace.node.http")


class _Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a limit on connections and on the time between requests."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # Set here, not on uvicorn's own loggers: a program that embeds a node may run a uvicorn of its own.
        self.logger = log
        self.access_log = False
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
        else:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._idle = self.loop.call_later(IDLE_S_MAX, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state is h11.IDLE or self.conn.our_state is h11.SEND_RESPONSE:
            super().send_400_response(msg)
        else:  # in the middle of an answer there is no other to give
            self.transport.abort()


class _Server(uvicorn.Server):
    """uvicorn's server as a guest: signals are the host's business."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class HttpServer:
    """Serves HTTP beside a node. Made, it has its port; started, it answers."""

    def __init__(
        self, services: Services, kv_sockets: Sequence[socket.socket], port: int, tls: ssl.SSLContext | None
    ) -> None:
        self._sockets = _bind(kv_sockets, port)
        self.port: int = self._sockets[0].getsockname()[1]
        self._closing = asyncio.Event()
        config = uvicorn.Config(
            make_app(services, self._closing),
            http=_Protocol,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX + 1,
            timeout_keep_alive=IDLE_S_MAX,
            timeout_graceful_shutdown=GOODBYE_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="headrace-http")
        await self._server.listening.wait()
        log.info("HTTP is served", extra={"port": self.port})

    async def _run(self) -> None:
        try:
            await self._server.serve(self._sockets)
        except Exception:
            log.exception("the HTTP port is closed: its server failed")
        finally:
            self._server.listening.set()

    async def stop(self) -> None:
        """Stop; answers that never end are ended now, others have a moment."""
        self._closing.set()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        for one in self._sockets:
            one.close()


def _bind(kv_sockets: Sequence[socket.socket], port: int) -> list[socket.socket]:
    """Listen where the node listens, on one more port; 0 picks a free one. Raises OSError."""
    with contextlib.ExitStack() as stack:
        bound = []
        for kv in kv_sockets:
            one = stack.enter_context(socket.create_server((kv.getsockname()[0], port), family=kv.family))
            one.settimeout(0)
            bound.append(one)
            port = one.getsockname()[1]
        stack.pop_all()
        return bound
