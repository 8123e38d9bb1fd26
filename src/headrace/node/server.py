"""The node itself: opens its data, listens, and stops so that nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.node import commands  # noqa: F401 - enters the commands
from headrace.node.buckets import Buckets
from headrace.node.cluster_config import Address
from headrace.node.connection import Connection
from headrace.node.extra import needs_extra
from headrace.node.kernels import load_in_background
from headrace.node.options import (
    VBUCKETS_DEFAULT,
    NodeError,
    NodeKeywords,
    NodeOptions,
    Reachable,
    check_vbuckets,
    host_and_port,
)
from headrace.node.services import Services
from headrace.node.tls import HANDSHAKE_S_MAX, server_context
from headrace.node.users import Users

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine
    from typing import Any, Unpack

log = logging.getLogger("headrace.node")

BACKLOG = 4096
_CHECK_EVERY_S = 1.0
_GOODBYE_S = 2.0


class AsyncNode(Reachable):
    """A node in the running event loop, for as long as an `async with` lasts.

    It takes the fields of `NodeOptions` by name, and then a free port by default; or `NodeOptions` ready-made.

    >>> async def main() -> None:
    ...     async with AsyncNode(vbuckets=4) as node:
    ...         print(node.host)
    >>> asyncio.run(main())
    127.0.0.1
    """

    def __init__(self, options: NodeOptions | None = None, /, **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(options, **keywords)
        self.services: Services
        self._stack = contextlib.AsyncExitStack()
        self._runs = False
        self._started_at = 0.0

    async def start(self) -> None:
        """Open the data and listen; raise NodeError, or what else hinders it, with nothing left behind.

        Cancelled, it ends when the opening of the data has ended: threads do it, and a thread cannot be stopped.
        """
        if self._runs:
            raise NodeError(f"the node runs already, on {host_and_port(self.host, self.port)}")
        self._runs = True
        try:
            async with contextlib.AsyncExitStack() as stack:
                await self._start(stack)
                self._stack = stack.pop_all()
        except BaseException:
            self._runs = False
            raise

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        options = self.options
        self._started_at = time.monotonic()
        users = Users.load(options.users) if options.users is not None else None
        for warning in users.warnings if users is not None else ():
            log.warning(warning)
        context = None
        if options.tls_cert is not None and options.tls_key is not None:
            context = server_context(options.tls_cert, options.tls_key)
        data = options.data
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-node-")))
        buckets = await _to_the_end(self._open(stack, data))
        services = Services(buckets, users=users, limits=options.limits, sync_every_write=options.sync_every_write)
        services.dialect = options.forced_dialect
        self.services = services
        stack.push_async_callback(services.close)
        server = await self._listen(stack, context)
        if options.http is not None:
            await self._start_http(stack, server, options.http, context)
        self._address = services.address
        services.background(self._check())
        load_in_background()
        self._tell_start(data)

    async def _open(self, stack: contextlib.AsyncExitStack, data: Path) -> Buckets:
        options = self.options
        try:
            vbuckets = options.vbuckets
            if vbuckets is None:
                vbuckets = await asyncio.to_thread(_vbuckets_of, data)
            buckets = await asyncio.to_thread(Buckets, data, vbuckets=vbuckets, limits=options.limits)
            stack.push_async_callback(buckets.close)
            log.debug("the data directory is ours", extra={"data": str(data), "vbuckets": vbuckets})
            await buckets.open_all(options.buckets)
        except OSError as error:
            raise NodeError(f"the directory {data} cannot be used for data: {error.strerror or error}") from error
        took_s = round(time.monotonic() - self._started_at, 3)
        log.debug("the buckets are open", extra={"buckets": ",".join(buckets.names()), "took_s": took_s})
        return buckets

    async def _listen(self, stack: contextlib.AsyncExitStack, context: ssl.SSLContext | None) -> asyncio.Server:
        loop, options, services = asyncio.get_running_loop(), self.options, self.services
        try:
            host = options.host
            if options.port == 0:  # one address, so that there is one port: localhost may be two
                host = str((await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM))[0][4][0])
            server = await loop.create_server(
                lambda: Connection(services),
                host,
                options.port,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S_MAX if context is not None else None,
                backlog=BACKLOG,
            )
        except OSError as error:
            where = host_and_port(options.host, options.port)
            raise NodeError(f"cannot listen on {where}: {error.strerror or error}") from error
        stack.push_async_callback(self._stop_listening, server)
        host, port = server.sockets[0].getsockname()[:2]
        services.address = Address(host=host, port=port, tls=context is not None)
        return server

    async def _start_http(
        self, stack: contextlib.AsyncExitStack, kv: asyncio.Server, port: int, context: ssl.SSLContext | None
    ) -> None:
        with needs_extra():
            from headrace.node.http import HttpServer  # noqa: PLC0415 - a node without HTTP need not load a web server

        try:
            http = HttpServer(self.services, kv.sockets, port, context)
        except OSError as error:
            where = host_and_port(self.options.host, port)
            raise NodeError(f"cannot listen on {where} (--http): {error.strerror or error}") from error
        stack.push_async_callback(http.stop)
        self.services.address = replace(self.services.address, http_port=http.port)
        await http.start()

    def _tell_start(self, data: Path) -> None:
        options, buckets = self.options, self.services.buckets
        log.info(
            "the node serves",
            extra={
                "address": host_and_port(self.host, self.port),
                "data": str(data),
                "temporary": _yes_or_no(options.data is None),
                "buckets": ",".join(buckets.names()),
                "vbuckets": buckets.vbuckets,
                "sync": options.sync,
                "users": _yes_or_no(options.users is not None),
                "tls": _yes_or_no(options.tls_cert is not None),
                "dialect": options.dialect,
                "connections_max": options.limits.connections_max,
                "files_max": files_max(),
            },
        )

    async def _check(self) -> None:
        """Look after connections that do nothing and locks that ran out, and do so as long as the node runs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            for connection in list(self.services.connections):
                _survive(lambda connection=connection: connection.check(loop.time()))  # type: ignore[misc]
            for opened in self.services.buckets:
                _survive(opened.bucket.sweep_locks)

    async def _stop_listening(self, server: asyncio.Server) -> None:
        log.debug("connections are closed", extra={"connections": len(self.services.connections)})
        server.close()
        for connection in list(self.services.connections):
            connection.close()
        await self._part(_GOODBYE_S)
        # A client that is idle does not answer a farewell by TLS.
        for connection in list(self.services.connections):
            connection.abort()
        await self._part(_GOODBYE_S)

    async def _part(self, seconds: float) -> None:
        """Wait for connections to leave, one by one and each in its own time."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self.services.connections and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop serving, bring everything to disk, and leave the data directory.

        Raises a HeadraceError when something acknowledged could not be brought to disk. A node that does not run stays
        as it is.
        """
        if not self._runs:
            return
        began = time.monotonic()
        clean = False
        try:
            await self._stack.aclose()
            clean = True
        finally:
            self._runs = False
            now = time.monotonic()
            log.log(
                logging.INFO if clean else logging.ERROR,
                "the node stopped",
                extra={
                    "clean": _yes_or_no(clean),
                    "took_s": round(now - began, 3),
                    "served_s": round(began - self._started_at, 3),
                },
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def files_max() -> int:
    """How many files, connections among them, this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _yes_or_no(value: bool) -> str:  # noqa: FBT001 - it spells a boolean
    return "yes" if value else "no"


def _survive(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        log.exception("a check that is made each second failed")


async def _to_the_end(work: Coroutine[Any, Any, Buckets]) -> Buckets:
    """Wait for work that threads do, and when this is cancelled, until it has ended: a thread cannot be stopped."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("what was cancelled had failed", exc_info=error)
        raise


def _vbuckets_of(data: Path) -> int:
    """How many vbuckets the buckets of a directory have; what a file does not tell, its bucket will complain of."""
    for path in sorted(data.glob("buckets/*/bucket.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return check_vbuckets(json.loads(path.read_bytes())["vbuckets"], f"{path}: ")
    return VBUCKETS_DEFAULT


__all__ = ["AsyncNode", "NodeError", "NodeOptions", "files_max"]
