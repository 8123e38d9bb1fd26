"""Every dialect into every other: a bucket goes from node to node, and is the same at each, item by item.

A first node is written to by KV and copied to a second by one dialect; then the second is the owner, is written to, and
is copied to a third by another. Writes, deletes, expirations and a flush go on while the copies run, and the lines are
cut at random places on both sides of the carrier.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import ChangeOptions, NotFoundError
from headrace.history import State
from headrace.pipelines.failover import promote
from headrace.pipelines.replicate import Replication
from headrace.pipelines.servers import Vbuckets
from headrace.pipelines.tap_replicate import TapReplication
from headrace.testing import LiveNode
from headrace.wire import Dialect
from headrace.wire.catalogue import Flush
from tests.pairings.cutting import Cutter
from tests.replication.nodes import dump, eventually, running, server_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.pipelines.servers import Server
    from tests.replication.nodes import Job

VBUCKETS = 4
KEYS = 120
CUTS = 4
FUTURE = 4_000_000_000
_NAMES = ("kind", "cas", "datatype", "seqno", "revision", "flags", "expiry", "delete_time", "value")
_NEVER = frozenset({"delete_time"})
"""When an item was removed is told by DCP alone, and only to who asked."""
_CARRIED = {
    Dialect.TAP: frozenset(_NAMES) - _NEVER - {"seqno"},
    Dialect.UPR_DRAFT: frozenset(_NAMES) - _NEVER,
    Dialect.UPR: frozenset(_NAMES) - _NEVER,
    Dialect.DCP: frozenset(_NAMES) - _NEVER,
}
_TELLS_EXPIRATIONS = frozenset({Dialect.UPR_DRAFT, Dialect.DCP})
"""The others tell of an item that expired as of one that was removed."""
Items = dict[bytes, dict[str, Any]]


class Writer:
    """Changes a bucket at random, by a seed."""

    def __init__(self, node: LiveNode, seed: int) -> None:
        self._node = node
        self._random = random.Random(seed)

    def write(self, count: int) -> None:
        """Do some changes, of all kinds."""
        kv = self._node.items
        for _ in range(count):
            key = b"key-%d" % self._random.randrange(KEYS)
            kind = self._random.random()
            if kind < 0.15:
                try:
                    kv.delete(key)
                except NotFoundError:
                    continue
            elif kind < 0.2:
                kv.set(key, b"gone in a moment", expiry=1, flags=self._random.getrandbits(32))
            else:
                value = b'{"n": %d}' % self._random.getrandbits(30) if kind < 0.6 else self._random.randbytes(300)
                expiry = FUTURE if kind > 0.9 else 0
                kv.set(key, value, expiry=expiry, flags=self._random.getrandbits(32))

    def flush(self) -> None:
        """Remove everything."""
        self._node.items.request(Flush())

    def cut(self) -> None:
        """Cut whoever is sent a stream, some bytes later and in the middle of whatever goes by then."""
        try:
            self._node.chaos.cut(after_bytes=self._random.randrange(1, 4000))
        except NotFoundError:  # nobody is connected just now
            return


def items_of(server: Server) -> Items:
    """Everything that a node has, tombstones too, by key."""
    found: Items = {}
    for vb in range(VBUCKETS):
        found.update({key: dict(zip(_NAMES, shown, strict=True)) for key, shown in dump(server, vb).items()})
    return found


def seen_by(dialect: Dialect, items: Items) -> Items:
    """Items as far as a dialect carries them."""
    shown: Items = {}
    for key, fields in items.items():
        kept = {name: content for name, content in fields.items() if name in _CARRIED[dialect]}
        if dialect not in _TELLS_EXPIRATIONS and kept["kind"] == "expiration":
            kept["kind"] = "deletion"
        shown[key] = kept
    return shown


def difference(here: Items, there: Items) -> str:
    """What the two differ in, some of it; empty when they are equal."""
    missing, extra = here.keys() - there.keys(), there.keys() - here.keys()
    wrong = {
        key: {name: (each, there[key][name]) for name, each in here[key].items() if there[key][name] != each}
        for key in here.keys() & there.keys()
        if here[key] != there[key]
    }
    if not missing and not extra and not wrong:
        return ""
    return f"missing {sorted(missing)[:5]}, extra {sorted(extra)[:5]}, {len(wrong)} wrong: {list(wrong.items())[:2]}"


@contextmanager
def copying(dialect: Dialect, source: LiveNode, target: Server) -> Iterator[list[str]]:
    """Carry a bucket for as long as a `with` lasts; gives what was told."""
    told: list[str] = []

    def tell(event: object, text: str) -> None:
        told.append(f"{event}: {text}")

    if dialect is Dialect.TAP:
        options = ChangeOptions(connection=f"couchbase://{source.host}:{source.port}")
        job: Job = TapReplication(options, target, tell=tell)
    else:
        job = Replication(server_at(source.host, source.port), target, dialect=dialect, force=True, tell=tell)
    with running(job):
        yield told


def copy(dialect: Dialect, source: LiveNode, target: LiveNode, seed: int) -> None:
    """Copy a bucket with everything going on, until both are equal."""
    writer = Writer(source, seed)
    here, there = server_at(source.host, source.port), server_at(target.host, target.port)
    writer.write(2 * KEYS)
    with Cutter(target.port, seed=seed, bytes_max=2000) as cutter:
        with copying(dialect, source, server_at(cutter.host, cutter.port)) as told:
            eventually(lambda: any(each.startswith("joined") for each in told), "the carrier has joined both")
            cutter.cut(CUTS)
            for part in range(6):
                writer.write(KEYS // 2)
                writer.cut()
                if part == 3:
                    writer.flush()
                time.sleep(0.1)  # so that some of it is sent as it happens; what holds does not depend on it
            writer.write(KEYS)
            source.chaos.calm()
            wrong = "not compared"

            def is_equal() -> bool:
                nonlocal wrong
                wrong = difference(seen_by(dialect, items_of(here)), seen_by(dialect, items_of(there)))
                return not wrong

            try:
                eventually(is_equal, "both nodes are equal")
            except AssertionError as error:
                raise AssertionError(f"{error}: {wrong}; {told[-5:]}") from None
        assert cutter.cuts, "nothing was cut at the target"
    kinds = {fields["kind"] for fields in items_of(there).values()}
    assert kinds >= {"mutation", "deletion"}


@pytest.mark.slow
@pytest.mark.parametrize("second", Dialect, ids=str)
@pytest.mark.parametrize("first", Dialect, ids=str)
def test_every_dialect_into_every_other(first: Dialect, second: Dialect):
    """What was written by KV is the same at a second node and at a third, as far as the dialects between carry it."""
    seed = 100 * list(Dialect).index(first) + list(Dialect).index(second)
    with ExitStack() as nodes:
        one, two, three = (nodes.enter_context(LiveNode(vbuckets=VBUCKETS)) for _ in range(3))
        copy(first, one, two, seed)
        server = server_at(two.host, two.port)
        with Vbuckets(server) as states:
            replicas = [vb for vb in range(VBUCKETS) if states.state(vb) is not State.ACTIVE]
        for vb in replicas:
            promote(server, vb)
        copy(second, two, three, seed + 50)
