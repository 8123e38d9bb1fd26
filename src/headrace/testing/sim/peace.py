"""The end of a run: everything is healed, all come to rest, and everybody is compared with the owner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.history import State
from headrace.testing.sim.model import BrokenError

if TYPE_CHECKING:
    from headrace.testing.sim.model import Copy
    from headrace.testing.sim.world import World

QUIET_S_MAX = 1500.0
"""How long peace may take to come: longer than a silent peer is waited for."""
LOOK_S, LOOK_S_MAX = 0.05, 20.0
QUICK_S = 0.002


async def make(world: World) -> None:
    """Heal everything and wait until nothing moves."""
    await asyncio.sleep(LOOK_S)  # what was begun last is under way then
    world.is_peace = True
    world.trace("peace")
    for node in world.nodes:
        node.is_cut_off = False
        if node.opened is not None:
            node.disk.refuses = 0.0
            node.flusher.slow_s = QUICK_S
        while node.is_stopping:
            await asyncio.sleep(LOOK_S)
        if node.is_down:
            node.start()
        node.disk.refuses = 0.0
        node.flusher.slow_s = QUICK_S
        node.flusher.start_persistence()
    await come(world)


async def come(world: World) -> None:
    """Wait until nothing moves."""
    until = world.loop.time() + QUIET_S_MAX
    pause_s = LOOK_S
    while True:
        await world.cluster.settle_moves()
        world.check_faults()
        restless = _cluster_at_rest(world) or _readers_at_rest(world)
        if restless is None:
            return
        if world.loop.time() > until:
            raise BrokenError(f"peace does not come: {restless}")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S_MAX)


def _cluster_at_rest(world: World) -> str | None:
    """What of the nodes is not as it should be yet."""
    cluster = world.cluster
    if cluster.moves or cluster.busy:
        return f"moves {sorted(cluster.moves)}, failovers {sorted(cluster.busy)}"
    for vb_id, owner in cluster.owner.items():
        vb = owner.vb(vb_id)
        if vb is None or vb.state is not State.ACTIVE:
            return f"vb {vb_id} is not active at {owner.name}"
        for node in world.nodes:
            copy = node.vb(vb_id)
            if node is owner:
                continue
            if copy is None or copy.state is not State.REPLICA:
                return f"vb {vb_id} is no replica at {node.name}"
            if (copy.whole_seqno, copy.vbuuid) != (vb.high_seqno, vb.vbuuid):
                return f"vb {vb_id} at {node.name} is at {node.place_of(copy)}, its owner at {owner.place_of(vb)}"
    return None


def _readers_at_rest(world: World) -> str | None:
    """What of the readers is not as it should be yet."""
    for vb_id, owner in world.cluster.owner.items():
        vb = owner.vb(vb_id)
        assert vb is not None
        for reader in world.readers:
            followed = reader.followed[vb_id]
            log = followed.subscription.progress.log
            is_there = log is not None and (followed.last_seqno, log.latest.vbuuid) == (vb.high_seqno, vb.vbuuid)
            if not is_there or followed.link is None or not followed.link.link.is_open:
                return f"vb {vb_id} of {reader.name}: {followed.told()}; {owner.name} has it at {owner.place_of(vb)}"
    return None


def check(world: World) -> None:
    """Compare everybody with the owner, item by item."""
    for vb_id, owner in world.cluster.owner.items():
        vb = owner.vb(vb_id)
        assert vb is not None
        owner.require_whole(vb, "the end")
        world.cluster.require_promises(vb_id)
        wanted = owner.copy_of(vb)
        for node in world.nodes:
            copy = node.vb(vb_id)
            if copy is not None and node is not owner:
                node.require_whole(copy, "the end")
                _require_same(world, vb_id, wanted, node.copy_of(copy), node.name)
        for reader in world.readers:
            _require_same(world, vb_id, wanted, reader.followed[vb_id].copy, reader.name)


def _require_same(world: World, vb_id: int, wanted: Copy, copy: Copy, who: str) -> None:
    """Two copies are the same but for tombstones that were purged from one of them."""
    purged = world.model.purged[vb_id]
    for key in sorted(wanted.keys() | copy.keys()):
        one, other = wanted.get(key), copy.get(key)
        if one == other:
            continue
        there = one if other is None else other if one is None else None
        if there is None or there.is_live or there.seqno > purged:
            raise BrokenError(f"vbucket {vb_id}: {key!r} is {one} at its owner and {other} at {who}")
