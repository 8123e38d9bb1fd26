"""What the HTTP port answers: health, metrics, a page to look at, and the REST routes that Couchbase's clients read.

On a node with users every route but /health wants HTTP Basic, checked as PLAIN is, and tells only of buckets in which
the user has a role. Everything is read; nothing is changed by HTTP. A route that fails is answered with 500 and logged,
and the node goes on.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace import __version__
from headrace.node.commands.session import VERSION
from headrace.node.metrics import BucketFigures, metrics_text, observe
from headrace.node.options import host_and_port
from headrace.node.page import index_page
from headrace.node.rest_documents import MapPlace, bucket_document, cluster_map, node_document
from headrace.node.sasl import PLAIN, SaslServer, Success
from headrace.node.stats import store_bytes
from headrace.node.users import Role, User

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from headrace.node.buckets import OpenBucket
    from headrace.node.services import Services

STREAMS_MAX = 64
"""Maps that are streamed at a time: fewer than connections, so that there is room for /health."""
LOOK_EVERY_S = 1.0
"""How soon a streamed map follows a change."""
HEAD_BYTES_MAX = 16 * 1024
"""The first line and the headers of a request."""
AUTHORIZATION_BYTES_MAX = 1024

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]{1,253})(:\d{1,5})?")
_REFUSES = "the disk refuses writes, and none is acknowledged"
_STOPPED = "persistence is stopped: changes stay in memory"
_MAP_END = b"\n\n\n\n"
"""What parts the documents of a stream, as Couchbase Server does it."""
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
}

log = logging.getLogger("headrace.node.http")


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """A route: its path, the method of `Rest` that answers, and a sentence."""

    path: str
    answers: str
    sentence: str


ROUTES = (
    RouteEntry("/", "index", "The buckets at a glance; as JSON with `Accept: application/json`."),
    RouteEntry("/health", "health", "Whether every write is acknowledged: 200, or 503 when one bucket's are not."),
    RouteEntry("/metrics", "metrics", "What the node counts and measures, for Prometheus."),
    RouteEntry("/whoami", "whoami", "Who asks, and the roles that go with it."),
    RouteEntry("/pools", "pools", "The version of the server whose protocol this is, and the one pool."),
    RouteEntry("/pools/default", "pool", "The pool: this node."),
    RouteEntry("/pools/default/buckets", "buckets", "Every bucket with its map."),
    RouteEntry("/pools/default/buckets/{bucket}", "bucket", "One bucket with its map."),
    RouteEntry("/pools/default/b/{bucket}", "terse_map", "The map of a bucket, as the KV port gives it."),
    RouteEntry("/pools/default/bs/{bucket}", "map_stream", "The same; kept open, with a new one after each change."),
    RouteEntry("/pools/default/bucketsStreaming/{bucket}", "bucket_stream", "One bucket with its map, likewise."),
)


def make_app(services: Services, closing: asyncio.Event) -> ASGIApp:
    """The application; streams end when `closing` is set."""
    rest = Rest(services, closing)
    routes = [Route(entry.path, getattr(rest, entry.answers), methods=["GET"]) for entry in ROUTES]
    starlette = Starlette(routes=routes, exception_handlers={HTTPException: _refusal, Exception: _failure})
    return _guarded(starlette)


def _guarded(app: ASGIApp) -> ASGIApp:
    """Log what a route failed of, and see to the headers of every answer."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        try:
            if _head_bytes(scope) > HEAD_BYTES_MAX:
                await _json({"error": "the head of the request is too long"}, 431)(scope, receive, send_with_headers)
            else:
                await app(scope, receive, send_with_headers)
        except Exception:  # starlette has answered with 500 by then
            log.exception("a route failed", extra={"path": scope.get("path")})

    return guarded


def _head_bytes(scope: Scope) -> int:
    """How long a head is. h11 bounds one that comes in pieces; one that comes at once may be as long as a read."""
    line = len(scope["raw_path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) for name, value in scope["headers"])


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content) + b"\n", status, headers, media_type="application/json")


async def _refusal(_: Request, error: Exception) -> Response:
    refused = cast("HTTPException", error)
    told: dict[str, Any] = {"error": refused.detail}
    if refused.status_code == 404 and refused.detail == "Not Found":  # noqa: PLR2004 - starlette's own words
        told = {"error": "there is nothing at this address", "routes": [entry.path for entry in ROUTES]}
    headers = dict(refused.headers) if refused.headers else None
    return _json(told, refused.status_code, headers)


async def _failure(_: Request, __: Exception) -> Response:
    return _json({"error": "this route failed; the node's log says why"}, 500)


class Rest:
    """The routes of one node."""

    def __init__(self, services: Services, closing: asyncio.Event) -> None:
        self._services = services
        self._closing = closing
        self._login = asyncio.Lock()
        """One password at a time is tried: guessing takes no more than one core from the rest."""
        self._streams = 0

    # ---------------------------------------------------------------------------------------------------------- who

    async def _who(self, request: Request) -> User:
        """Who asks; raises 401 for nobody."""
        user = self._services.open_user or await self._authenticated(request)
        if user is None:
            raise HTTPException(401, "authenticate first", {"WWW-Authenticate": 'Basic realm="headrace"'})
        return user

    async def _authenticated(self, request: Request) -> User | None:
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic" or len(text) > AUTHORIZATION_BYTES_MAX:
            return None
        try:
            name, _, password = base64.b64decode(text.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        async with self._login:
            challenge = b"\0" + name + b"\0" + password
            outcome = await asyncio.to_thread(SaslServer(self._services.users).auth, PLAIN, challenge)
        if isinstance(outcome, Success):
            return outcome.user
        self._services.counts.refused_logins += 1
        client = request.client
        peer = host_and_port(client.host, client.port) if client else ""
        log.warning("a login was refused", extra={"peer": peer, "user": getattr(outcome, "name", None), "by": "http"})
        return None

    def _buckets(self, user: User) -> list[OpenBucket]:
        """The buckets in which a user has a role, by name."""
        return sorted(
            (opened for opened in self._services.buckets if _may_see(user, opened.bucket.name)),
            key=lambda opened: opened.bucket.name,
        )

    async def _bucket(self, request: Request) -> OpenBucket:
        user, name = await self._who(request), request.path_params["bucket"]
        opened = self._services.buckets.get(name)
        if opened is None or not _may_see(user, name):
            raise HTTPException(404, f"there is no bucket {name}")
        return opened

    def _place(self, request: Request) -> MapPlace:
        """This node as the client reached it: what it dialled, it can dial again."""
        found = _HOST.fullmatch(request.headers.get("host", ""))
        host = found[1] if found else (request.scope.get("server") or (self._services.address.host,))[0]
        return MapPlace(host=host, address=self._services.address)

    # ------------------------------------------------------------------------------------------- for people, machines

    async def health(self, request: Request) -> Response:
        """Whether every bucket acknowledges writes. Anyone may ask; who may see a bucket learns of it by name."""
        services = self._services
        user = services.open_user
        if user is None and "authorization" in request.headers:
            user = await self._who(request)
        well = all(opened.bucket.trouble is None for opened in services.buckets)
        told = {
            "status": "ok" if well else "degraded",
            "uptime_s": round(time.time() - services.started_at, 3),
            "buckets": {opened.bucket.name: _health(opened) for opened in (self._buckets(user) if user else ())},
        }
        return _json(told, 200 if well else 503)

    async def metrics(self, request: Request) -> Response:
        """All that is counted, for Prometheus."""
        user = await self._who(request)
        figures = await observe(self._buckets(user))
        return Response(metrics_text(self._services, figures), media_type=CONTENT_TYPE_LATEST)

    async def index(self, request: Request) -> Response:
        """The buckets at a glance, for people or as JSON."""
        user = await self._who(request)
        address, services = self._services.address, self._services
        told = {
            "version": __version__,
            "address": f"{_in_url(address.host)}:{address.port}",
            "uptime_s": round(time.time() - services.started_at),
            "connections": len(services.connections),
            "buckets": [_glance(figures) for figures in await observe(self._buckets(user))],
        }
        if "application/json" in request.headers.get("accept", ""):
            return _json(told, headers={"Vary": "Accept"})
        return HTMLResponse(index_page(told), headers={"Vary": "Accept"})

    # ----------------------------------------------------------------------------------------------- for the clients

    async def whoami(self, request: Request) -> Response:
        """Who asks."""
        user = await self._who(request)
        roles = [{"role": role} for role in Role if role in user.roles]
        return _json({"id": user.name, "domain": "local", "roles": roles, "buckets": sorted(user.buckets)})

    async def pools(self, request: Request) -> Response:
        """Where clients begin: the version, and the one pool."""
        user = await self._who(request)
        told = {
            "pools": [{"name": "default", "uri": "/pools/default"}],
            "isAdminCreds": Role.ADMIN in user.roles,
            "implementationVersion": VERSION.decode(),
            "headraceVersion": __version__,
        }
        return _json(told)

    async def pool(self, request: Request) -> Response:
        """The one pool."""
        user = await self._who(request)
        names = [{"bucketName": opened.bucket.name} for opened in self._buckets(user)]
        told = {
            "name": "default",
            "clusterName": "headrace",
            "balanced": True,
            "rebalanceStatus": "none",
            "nodes": [node_document(self._place(request))],
            "buckets": {"uri": "/pools/default/buckets"},
            "bucketNames": names,
        }
        return _json(told)

    async def buckets(self, request: Request) -> Response:
        """Every bucket."""
        user, place = await self._who(request), self._place(request)
        told = []
        for opened in self._buckets(user):
            told.append(bucket_document(place, opened))
            await asyncio.sleep(0)
        return _json(told)

    async def bucket(self, request: Request) -> Response:
        """One bucket."""
        return _json(bucket_document(self._place(request), await self._bucket(request)))

    async def terse_map(self, request: Request) -> Response:
        """The map of a bucket."""
        found = cluster_map(self._place(request), await self._bucket(request))
        return Response(found + b"\n", media_type="application/json")

    async def map_stream(self, request: Request) -> Response:
        """The map of a bucket, again after each change."""
        return await self._streamed(request, cluster_map)

    async def bucket_stream(self, request: Request) -> Response:
        """One bucket, again after each change of its map."""
        return await self._streamed(request, lambda place, opened: msgspec.json.encode(bucket_document(place, opened)))

    async def _streamed(self, request: Request, spell: Callable[[MapPlace, OpenBucket], bytes]) -> Response:
        opened, place = await self._bucket(request), self._place(request)
        if self._streams >= STREAMS_MAX:
            raise HTTPException(503, f"{STREAMS_MAX} clients stream maps already; ask for /pools/default/b/ instead")
        return StreamingResponse(self._maps(opened, place, spell), media_type="application/json")

    async def _maps(
        self, opened: OpenBucket, place: MapPlace, spell: Callable[[MapPlace, OpenBucket], bytes]
    ) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            told = 0
            while self._services.buckets.get(opened.bucket.name) is opened and not self._closing.is_set():
                if opened.bucket.map_revision != told:
                    told = opened.bucket.map_revision
                    yield spell(place, opened) + _MAP_END
                await _pass(LOOK_EVERY_S, self._closing.wait())
        finally:
            self._streams -= 1


async def _pass(seconds: float, unless: Awaitable[object]) -> None:
    """Let time pass, unless something comes first."""
    try:
        async with asyncio.timeout(seconds):
            await unless
    except TimeoutError:
        pass


def _may_see(user: User, bucket: str) -> bool:
    """As with SELECT_BUCKET: any role will do."""
    return any(user.may(role, bucket) for role in Role)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _health(opened: OpenBucket) -> dict[str, str]:
    """A bucket in words that give nothing away: what the disk said is in the log."""
    if opened.bucket.trouble is not None:
        return {"status": "degraded", "why": _REFUSES}
    return {"status": "ok", "why": _STOPPED} if opened.flusher.stopped else {"status": "ok"}


def _glance(figures: BucketFigures) -> dict[str, Any]:
    opened, bucket = figures.opened, figures.opened.bucket
    return {
        "name": figures.name,
        "status": _health(opened)["status"],
        "why": bucket.trouble or _health(opened).get("why", ""),
        "items": figures.items,
        "vbuckets": figures.states,
        "persist_lag_seqnos": figures.lag_seqnos,
        "waiting_bytes": bucket.waiting_bytes,
        "resident_bytes": bucket.resident_bytes,
        "store_bytes": store_bytes(opened),
    }
