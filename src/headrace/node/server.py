"""The node itself: opens its data, listens, and stops so that nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from headrace.errors import HeadraceError
from headrace.node import commands  # noqa: F401 - enters the commands
from headrace.node.buckets import Buckets
from headrace.node.cluster_config import Address
from headrace.node.connection import Connection
from headrace.node.limits import NodeLimits
from headrace.node.runs import load_in_background
from headrace.node.services import Services
from headrace.node.users import Users

log = logging.getLogger("headrace.node")

VBUCKETS_MAX = 1024
BACKLOG = 4096
_CHECK_EVERY_S = 1.0
_GOODBYE_S = 2.0


class NodeError(HeadraceError):
    """A node cannot start as it was told to; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How a node is started. Every field is also an option of `headrace node`."""

    host: str = "127.0.0.1"
    port: int = 11210
    data: Path | None = None
    vbuckets: int = VBUCKETS_MAX
    buckets: tuple[str, ...] = ("default",)
    users: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    http: int | None = None
    sync_every_write: bool = False
    limits: NodeLimits = field(default_factory=NodeLimits)

    def __post_init__(self) -> None:
        if not 1 <= self.vbuckets <= VBUCKETS_MAX or self.vbuckets & (self.vbuckets - 1):
            raise NodeError(f"{self.vbuckets} vbuckets: a power of two from 1 to {VBUCKETS_MAX} is needed")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise NodeError("TLS takes both a certificate and a key: --tls-cert and --tls-key")
        if self.users is None and not _is_loopback(self.host):
            raise NodeError(
                f"{self.host} is open to other machines, and without users everyone may do everything: "
                "name a users file (--users FILE, made by `headrace user add`), or listen on 127.0.0.1"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AsyncNode:
    """A node in the running event loop.

    >>> async def main() -> None:
    ...     async with AsyncNode(NodeOptions(port=0, vbuckets=4)) as node:
    ...         print(node.address.host)
    >>> asyncio.run(main())
    127.0.0.1
    """

    def __init__(self, options: NodeOptions | None = None) -> None:
        self.options = options or NodeOptions()
        self.services: Services
        self._stack = contextlib.AsyncExitStack()

    @property
    def address(self) -> Address:
        """Where the node listens."""
        return self.services.address

    async def start(self) -> None:
        """Open the data and listen; raise NodeError, or what else hinders it, with nothing left behind."""
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        options = self.options
        users = Users.load(options.users) if options.users is not None else None
        for warning in users.warnings if users is not None else ():
            log.warning(warning)
        context = self._tls_context()
        data = options.data
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-node-")))
        buckets = await asyncio.to_thread(Buckets, data, vbuckets=options.vbuckets, limits=options.limits)
        stack.push_async_callback(buckets.close)
        await buckets.open_all(options.buckets)
        services = Services(buckets, users=users, limits=options.limits, sync_every_write=options.sync_every_write)
        self.services = services
        stack.push_async_callback(services.close)
        loop = asyncio.get_running_loop()
        try:
            host = options.host
            if options.port == 0:  # one address, so that there is one port: localhost may be two
                host = str((await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM))[0][4][0])
            server = await loop.create_server(
                lambda: Connection(services), host, options.port, ssl=context, backlog=BACKLOG
            )
        except OSError as error:
            raise NodeError(f"cannot listen on {options.host}:{options.port}: {error.strerror or error}") from error
        stack.push_async_callback(self._stop_listening, server)
        host, port = server.sockets[0].getsockname()[:2]
        services.address = Address(host=host, port=port, tls=context is not None)
        if options.http is not None:
            await self._start_http(stack, server, options.http, context)
        services.background(self._check())
        load_in_background()

    async def _start_http(
        self, stack: contextlib.AsyncExitStack, kv: asyncio.Server, port: int, context: ssl.SSLContext | None
    ) -> None:
        from headrace.node.http import HttpServer  # noqa: PLC0415 - a node without HTTP need not load a web server

        try:
            http = HttpServer(self.services, kv.sockets, port, context)
        except OSError as error:
            raise NodeError(
                f"cannot listen on {self.options.host}:{port} (--http): {error.strerror or error}"
            ) from error
        stack.push_async_callback(http.stop)
        self.services.address = replace(self.services.address, http_port=http.port)
        await http.start()

    def _tls_context(self) -> ssl.SSLContext | None:
        if self.options.tls_cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.options.tls_cert, self.options.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise NodeError(f"cannot use the certificate {self.options.tls_cert}: {error}") from error
        return context

    async def _check(self) -> None:
        """Look after connections that do nothing."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            for connection in list(self.services.connections):
                connection.check(loop.time())

    async def _stop_listening(self, server: asyncio.Server) -> None:
        server.close()
        for connection in list(self.services.connections):
            connection.close()
        deadline = asyncio.get_running_loop().time() + _GOODBYE_S
        # Connections leave one by one, and each in its own time.
        while self.services.connections and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop serving, bring everything to disk, and leave the data directory."""
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
