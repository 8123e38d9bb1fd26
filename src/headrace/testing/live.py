"""A node for the tests of a consumer: `headrace.Node` with ways to fill it, and to make trouble."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.connection import KvConnection
from headrace.client.items import beside
from headrace.node.embedded import Node
from headrace.testing.chaos import Chaos
from headrace.wire.catalogue import GetAllVBSeqnos, Seqnos

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_WAIT_S = 60.0


class Written(NamedTuple):
    """One change: where it stands in the history of its vbucket."""

    key: str
    vbucket: int
    vbuuid: int
    seqno: int


class LiveNode(Node):
    """A node for as long as a `with` lasts. It takes what `headrace.Node` takes.

    >>> with LiveNode(vbuckets=4) as node:
    ...     written = node.write(10)
    ...     gone = node.delete("key-0")
    ...     node.count()
    9

    The helpers are for a node without users, bucket `default`.
    """

    @cached_property
    def items(self) -> KvConnection:
        """A connection to the node, for whatever the helpers do not do."""
        return KvConnection(self.host, self.port)

    @cached_property
    def chaos(self) -> Chaos:
        """Ways to make trouble."""
        return Chaos(self)

    def stop(self) -> None:
        """Stop the node, with everything on disk."""
        opened: KvConnection | None = self.__dict__.pop("items", None)
        if opened is not None:
            opened.close()
        self.__dict__.pop("chaos", None)  # the next start may have another port
        super().stop()

    def write(self, what: int | Mapping[str, Any], *, prefix: str = "key-") -> list[Written]:
        """Set items: so many with keys of a prefix and a number, or those of a mapping.

        A value that is neither `bytes` nor `str` is stored as JSON.
        """
        items = what if isinstance(what, Mapping) else {f"{prefix}{number}": {"n": number} for number in range(what)}
        return [self._set(key, value) for key, value in items.items()]

    def _set(self, key: str, value: Any) -> Written:
        if isinstance(value, bytes | str):
            content = value if isinstance(value, bytes) else value.encode()
        else:
            content = json.dumps(value).encode()
        flags, datatype = beside(content, self.items.features)
        done = self.items.set(key.encode(), content, flags=flags, datatype=datatype)
        return self._written(key, done.vbuuid, done.seqno)

    def delete(self, *keys: str) -> list[Written]:
        """Remove items."""
        found = []
        for key in keys:
            done = self.items.delete(key.encode())
            found.append(self._written(key, done.vbuuid, done.seqno))
        return found

    def _written(self, key: str, vbuuid: int | None, seqno: int | None) -> Written:
        assert vbuuid is not None, "hello agreed on seqnos"
        assert seqno is not None
        return Written(key, self.items.vbucket_of(key.encode()), vbuuid, seqno)

    def get(self, key: str) -> bytes:
        """Fetch the value of an item; `headrace.client.NotFoundError` when there is none."""
        return self.items.get(key.encode()).value

    def count(self) -> int:
        """Count the items that there are."""
        found: int = self._on_loop(lambda: self._bucket().live_items)
        return found

    def high_seqnos(self) -> dict[int, int]:
        """Tell the high seqno of each vbucket."""
        reply = self.items.request(GetAllVBSeqnos())
        assert isinstance(reply, Seqnos)
        return {entry.vbucket: entry.seqno for entry in reply.seqnos}

    def flush(self) -> None:
        """Wait until everything that was written is on disk."""
        opened = self.running.services.buckets.get("default")
        assert opened is not None
        self._on_loop(opened.flusher.on_disk)

    def _bucket(self) -> Any:
        opened = self.running.services.buckets.get("default")
        assert opened is not None
        return opened.bucket

    def _on_loop(self, work: Callable[[], Any] | Callable[[], Awaitable[Any]]) -> Any:
        """Do something where the state of the node may be touched."""

        async def run() -> Any:
            result = work()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(_WAIT_S)
