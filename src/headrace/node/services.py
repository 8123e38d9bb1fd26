"""What all connections of a node share."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from headrace.node.cluster_config import Address
from headrace.node.users import Role, User, Users

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from headrace.node.buckets import Buckets
    from headrace.node.connection import Connection
    from headrace.node.limits import NodeLimits
    from headrace.wire import Dialect

OPEN_USER = "Administrator"
OPEN_PASSWORD = "password"  # noqa: S105 - no secret: a node without users lets everyone in, and only on loopback
"""Couchbase's SDKs insist on SCRAM with some name and password: on a node without users, with these."""


LOGINS_AT_ONCE = 2


class ServerCounts:
    """What happened to connections since the node started."""

    __slots__ = ("accepted", "closed_for", "refused_connections", "refused_logins", "requests")

    def __init__(self) -> None:
        self.accepted = self.refused_connections = self.refused_logins = self.requests = 0
        self.closed_for: dict[str, int] = {}
        """How many connections the node itself ended, by reason."""


class Services:
    """Buckets, users, limits, and who is connected."""

    def __init__(self, buckets: Buckets, *, users: Users | None, limits: NodeLimits, sync_every_write: bool) -> None:
        self.buckets = buckets
        self.limits = limits
        self.sync_every_write = sync_every_write
        self.counts = ServerCounts()
        self.connections: set[Connection] = set()
        self.logins = asyncio.Semaphore(LOGINS_AT_ONCE)
        """Passwords in the clear that are being checked: each takes ten milliseconds of a core."""
        self.owns_process = False
        """Whether the process is the node's alone, as under `headrace node`: chaos may kill it then."""
        self.unread_bytes = 0
        """What clients that do not read are owed, over all connections."""
        self.half_frame_bytes = 0
        """What begun messages hold in memory, over all connections."""
        self.dialect: Dialect | None = None
        """What every connection speaks; None leaves it to its first message."""
        self.started_at = time.time()
        self.address = Address(host="127.0.0.1", port=0)
        self.open_user: User | None = None
        """Who everyone is, where no users are asked for."""
        if users is None:
            everyone = User.create(OPEN_USER, OPEN_PASSWORD, {Role.ADMIN}, iterations=4096)
            self.open_user, users = everyone, Users([everyone])
        self.users = users
        self._background: set[asyncio.Task[None]] = set()

    def leave_bucket(self, name: str) -> None:
        """Take a bucket that is about to go away from whoever uses it."""
        for connection in self.connections:
            session = connection.session
            if session.bucket is not None and session.bucket.name == name:
                session.select(None)

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the connections."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """End what runs beside."""
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
