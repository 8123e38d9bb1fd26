"""The clients of the simulated cluster: they change items wherever a vbucket is active, and ask what is on disk."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.history import State
from headrace.ids import Cas, VBucketId
from headrace.node.commands import admin, items, meta
from headrace.node.refused import Refused
from headrace.store import StoreError
from headrace.wire.catalogue import (
    Add,
    Append,
    CompactDb,
    Delete,
    DeleteWithMeta,
    Flush,
    Get,
    Replace,
    Set,
    SetWithMeta,
    Touch,
)

if TYPE_CHECKING:
    from headrace.node.vbucket import VBucket
    from headrace.testing.sim.node import SimNode
    from headrace.testing.sim.world import World

KEYS = [b"key%02d" % index for index in range(10)]
EXPIRIES_S = (0, 0, 0, 1, 3, 20)


class Clients:
    """All of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys = KEYS[: world.rng.randint(2, len(KEYS))]
        self._value_bytes_max = world.rng.choice((1, 40, 400))
        self._writes = 0

    def _places(self) -> list[tuple[SimNode, VBucket]]:
        """Where something can be written."""
        return [
            (node, vb)
            for node in self._world.nodes
            if node.is_up
            for vb in node.bucket.vbuckets
            if vb is not None and vb.state is State.ACTIVE
        ]

    def write_some(self) -> None:
        """Change a few items of one vbucket, in one go."""
        rng = self._world.rng
        places = self._places()
        if not places:
            return
        node, vb = rng.choice(places)
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            with suppress(Refused, StoreError):  # it was not acknowledged
                self._write(node, vb.id)

    def _write(self, node: SimNode, vb_id: VBucketId) -> None:
        rng = self._world.rng
        key = rng.choice(self._keys)
        value = b"%d." % self._next() + b"x" * rng.randrange(self._value_bytes_max)
        expiry = rng.choice(EXPIRIES_S)
        kind = rng.randrange(20)
        if kind < 8:
            flags = rng.getrandbits(32)
            node.serve(items.store, Set(vbucket=vb_id, key=key, value=value, flags=flags, expiry=expiry))
        elif kind < 13:
            node.serve(items.delete, Delete(vbucket=vb_id, key=key))
        elif kind == 13:
            node.serve(items.store, Add(vbucket=vb_id, key=key, value=value, expiry=expiry))
        elif kind == 14:
            node.serve(items.store, Replace(vbucket=vb_id, key=key, value=value))
        elif kind == 15:
            node.serve(items.extend, Append(vbucket=vb_id, key=key, value=b"+"))
        elif kind == 16:
            node.serve(items.touch, Touch(vbucket=vb_id, key=key, expiry=expiry))
        elif kind == 17:
            node.serve(items.get, Get(vbucket=vb_id, key=key))
        else:
            self._write_meta(node, vb_id, key, value)

    def _write_meta(self, node: SimNode, vb_id: VBucketId, key: bytes, value: bytes) -> None:
        """A change with a CAS and a revision of its own, as another cluster would send it."""
        rng = self._world.rng
        cas = Cas(max(1, node.wall_ns() + rng.randrange(-(10**12), 10**12)))
        if rng.random() < 0.5:
            node.serve(
                meta.set_with_meta,
                SetWithMeta(vbucket=vb_id, key=key, value=value, item_cas=cas, rev_seqno=rng.randrange(1, 50)),
            )
        else:
            node.serve(
                meta.delete_with_meta,
                DeleteWithMeta(vbucket=vb_id, key=key, item_cas=cas, rev_seqno=rng.randrange(1, 50)),
            )

    def _next(self) -> int:
        self._writes += 1
        return self._writes

    def observe(self) -> None:
        """Ask a node what of a vbucket is on disk."""
        places = [
            (node, vb) for node in self._world.nodes if node.is_up for vb in node.bucket.vbuckets if vb is not None
        ]
        if places:
            node, vb = self._world.rng.choice(places)
            node.observe(vb)

    async def flush(self) -> None:
        """Remove everything from a node."""
        node = self._world.rng.choice(self._world.nodes)
        if node.is_up:
            self._world.trace(f"a client flushes {node.name}")
            await node.call(node.serve(admin.flush, Flush()))

    async def purge(self) -> None:
        """Forget the tombstones of a vbucket, on one node."""
        node = self._world.rng.choice(self._world.nodes)
        if not node.is_up:
            return
        vb = self._world.rng.choice(node.bucket.vbuckets)
        if vb is None:
            return
        await node.call(node.serve(admin.compact, CompactDb(vbucket=vb.id, drop_deletes=1)))

    async def expire(self) -> None:
        """Let the pager of a node work."""
        node = self._world.rng.choice(self._world.nodes)
        if node.is_up and node.opened is not None:
            await node.call(node.opened.pager.expire())
