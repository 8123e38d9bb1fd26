"""A bucket on one node or on several that share its vbuckets, written and read by plain items commands.

What is read here is the truth that copies are compared with, so it knows nothing of DCP: each key is asked for by GET
and GET_META at every node, and exactly one of them has to own it.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from headrace.client import Address, ClientError, ConnectionLostError, KvConnection, NotFoundError, vbucket_of
from headrace.client.errors import NotMyVBucketError
from headrace.history import State
from headrace.pipelines.servers import Server, Vbuckets
from headrace.testing import LiveNode
from headrace.wire.catalogue import Delete, Get, GetMeta, Item, Meta, Set
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Protocol

    from headrace.ids import VBucketId
    from headrace.wire import Request, Response

    class Reachable(Protocol):
        """A node, in this program or as a process."""

        @property
        def host(self) -> str: ...
        @property
        def port(self) -> int: ...


ASKED_AT_ONCE = 500
AWAY_S_MAX = 40.0
LIVE_KEYS = 400


class Document(NamedTuple):
    """What a copy has to have of an item."""

    value: bytes
    cas: int
    rev: int
    flags: int
    expiry: int


class Bucket:
    """The bucket `default` of some nodes; one thread, and a context manager that closes its connections."""

    def __init__(self, *nodes: Reachable) -> None:
        self._nodes = nodes
        self._lines: dict[int, KvConnection] = {}
        self._owners: dict[int, int] = {}
        self.vbuckets = self._line(0).vbuckets or 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    @property
    def servers(self) -> list[Server]:
        """The nodes as `headrace.pipelines` takes them."""
        return [Server(address=Address(host=each.host, port=each.port), timeout_s=20.0) for each in self._nodes]

    def share(self) -> None:
        """Give each node its part of the vbuckets: those whose number has the node's place as its rest."""
        for place, server in enumerate(self.servers):
            with Vbuckets(server) as vbuckets:
                for vb in range(self.vbuckets):
                    if vb % len(self._nodes) != place:
                        vbuckets.set_state(vb, State.DEAD)

    # -- writes

    def set(self, key: str, value: bytes, *, flags: int = 0, expiry: int = 0) -> None:
        """Store an item at whichever node owns it; waits while nobody does."""
        self._ask_owner(Set(key=key.encode(), value=value, flags=flags, expiry=expiry, vbucket=self.vbucket_of(key)))

    def delete(self, key: str) -> None:
        """Remove an item, if it is there."""
        with suppress(NotFoundError):
            self._ask_owner(Delete(key=key.encode(), vbucket=self.vbucket_of(key)))

    def fill(self, keys: Iterable[str], *, value: str = "first") -> None:
        """Store many small items."""
        for number, key in enumerate(keys):
            self.set(key, f'{{"{value}": {number}}}'.encode(), flags=number % 7)

    def vbucket_of(self, key: str) -> VBucketId:
        """Where clients put a key."""
        return vbucket_of(key.encode(), self.vbuckets)

    def _line(self, place: int) -> KvConnection:
        if place not in self._lines:
            self._lines[place] = KvConnection(self._nodes[place].host, self._nodes[place].port)
        return self._lines[place]

    def _ask_owner(self, message: Request) -> Response:
        end = time.monotonic() + AWAY_S_MAX
        while True:
            place = self._owners.get(message.vbucket, message.vbucket % len(self._nodes))
            try:
                reply = self._line(place).request(message)
            except NotFoundError:
                self._owners[message.vbucket] = place
                raise
            except NotMyVBucketError:
                self._owners[message.vbucket] = (place + 1) % len(self._nodes)
                error: ClientError | None = None
            except (ConnectionLostError, OSError) as lost:
                gone = self._lines.pop(place, None)
                if gone is not None:
                    gone.close()
                error = lost if isinstance(lost, ClientError) else None
            else:
                self._owners[message.vbucket] = place
                return reply
            assert time.monotonic() < end, f"vbucket {message.vbucket} has no owner that answers: {error}"
            time.sleep(0.01)

    # -- the truth

    def documents(self, keys: Iterable[str]) -> dict[str, Document]:
        """Read all items of these keys, and see to it that there are no others."""
        found = self.some(keys)
        held = sum(self._count(server) for server in self.servers)
        assert held == len(found), f"the bucket has {held} items, and {len(found)} of the keys that are known"
        return found

    def some(self, keys: Iterable[str]) -> dict[str, Document]:
        """Read all items of these keys; others may be there, and be written just now."""
        self.close()  # a node may have been started anew
        found: dict[str, Document] = {}
        asked = sorted(set(keys))
        for start in range(0, len(asked), ASKED_AT_ONCE):
            found |= self._ask_all(asked[start : start + ASKED_AT_ONCE])
        return found

    def _ask_all(self, keys: Sequence[str]) -> dict[str, Document]:
        owned: dict[str, list[Document | None]] = {key: [] for key in keys}
        for place in range(len(self._nodes)):
            gets: list[Request] = [Get(key=key.encode(), vbucket=self.vbucket_of(key)) for key in keys]
            metas: list[Request] = [GetMeta(key=key.encode(), vbucket=self.vbucket_of(key)) for key in keys]
            replies = self._line(place).ask_all([*gets, *metas])
            for key, item, meta in zip(keys, replies[: len(keys)], replies[len(keys) :], strict=True):
                if item.status != Status.NOT_MY_VBUCKET:
                    owned[key].append(_document(key, item, meta))
        for key, found in owned.items():
            assert len(found) == 1, f"{key} of vbucket {self.vbucket_of(key)} has {len(found)} owners"
        return {key: found[0] for key, found in owned.items() if found[0] is not None}

    def _count(self, server: Server) -> int:
        with Vbuckets(server) as vbuckets:
            told = vbuckets.stats("vbucket-details")
        return sum(int(told[f"{name}:num_items"]) for name, state in told.items() if state == "active")


@contextmanager
def live_nodes(count: int, vbuckets: int) -> Iterator[list[LiveNode]]:
    """So many nodes in this program, which share the vbuckets of one bucket."""
    with ExitStack() as ends:
        started = [ends.enter_context(LiveNode(vbuckets=vbuckets)) for _ in range(count)]
        with Bucket(*started) as bucket:
            bucket.share()
        yield started


def _document(key: str, item: Response, meta: Response) -> Document | None:
    if item.status == Status.KEY_NOT_FOUND:
        return None
    assert isinstance(item, Item), f"{key}: {item}"
    assert isinstance(meta, Meta), f"{key}: {meta}"
    return Document(item.value, item.cas, meta.rev_seqno, item.flags, meta.expiry)


class Writers:
    """Threads that set and delete items of a few keys, again and again, until they are stopped.

    `keys` are all that they may ever have touched. They wait while a node is away and go on when it is back.
    """

    def __init__(
        self, *nodes: Reachable, count: int = 1, pause_s: float = 0.002, deletes: float = 0.2, seed: int = 1
    ) -> None:
        self.keys = {f"live-{number}" for number in range(LIVE_KEYS)}
        self.writes = 0
        self._nodes, self._pause_s, self._deletes = nodes, pause_s, deletes
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {each}"),), name=f"writer-{each}")
            for each in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Let them end; what one of them failed with is raised."""
        self.__exit__()
        if self._failures:
            raise self._failures[0]

    def wait(self, writes: int) -> None:
        """Wait until so many more writes were done."""
        wanted, end = self.writes + writes, time.monotonic() + AWAY_S_MAX
        while self.writes < wanted:
            assert not self._failures, self._failures
            assert time.monotonic() < end, f"{wanted - self.writes} writes are missing"
            time.sleep(0.01)

    def _run(self, chance: random.Random) -> None:
        names = sorted(self.keys)
        try:
            with Bucket(*self._nodes) as bucket:
                while not self._over.is_set():
                    key = chance.choice(names)
                    if chance.random() < self._deletes:
                        bucket.delete(key)
                    else:
                        text = f'{{"n": {self.writes}, "pad": "{"x" * chance.randrange(60)}"}}'
                        bucket.set(key, text.encode(), flags=chance.randrange(1 << 32))
                    self.writes += 1
                    time.sleep(self._pause_s)
        except BaseException as error:  # noqa: BLE001 - it is raised where the test can see it
            self._failures.append(error)
