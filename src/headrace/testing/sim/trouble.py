"""What goes wrong in a run, and how often: each kind of trouble with a weight that the seed draws.

Some seeds have much of one kind and none of another, which reaches places that an even mixture does not.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.history import State
from headrace.node.refused import Refused
from headrace.store import StoreError
from headrace.testing.sim.node import DownError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from headrace.testing.sim.node import SimNode
    from headrace.testing.sim.world import World

STEP_S = 0.05


async def make(world: World) -> None:
    """Make trouble, step by step."""
    rng = world.rng
    kinds = list(_KINDS)
    weights = [_KINDS[kind] * rng.choice((0, 0.3, 1, 1, 3)) for kind in kinds]
    weights[kinds.index(write)] = max(1, weights[kinds.index(write)])
    drawn = ", ".join(f"{kind.__name__} {weight:g}" for kind, weight in zip(kinds, weights, strict=True))
    world.trace(f"seed {world.seed}: {drawn}")
    for _ in range(world.steps):
        await asyncio.sleep(rng.expovariate(1 / STEP_S))
        rng.choices(kinds, weights)[0](world)
        world.check_faults()


def _later(world: World, work: Coroutine[Any, Any, None]) -> None:
    """Do something that takes its time, beside everything else."""

    async def guarded() -> None:
        with suppress(DownError, StoreError, Refused):
            await work

    task = world.loop.create_task(guarded())
    world.loose.add(task)
    task.add_done_callback(world.loose.discard)


def _up(world: World) -> list[SimNode]:
    return [node for node in world.nodes if node.is_up]


def write(world: World) -> None:
    """Clients write."""
    world.clients.write_some()


def observe(world: World) -> None:
    """Clients ask what is on disk."""
    world.clients.observe()


def flush(world: World) -> None:
    """A client flushes a node."""
    _later(world, world.clients.flush())


def purge(world: World) -> None:
    """Tombstones are purged."""
    _later(world, world.clients.purge())


def expire(world: World) -> None:
    """The pager looks for expired items."""
    _later(world, world.clients.expire())


def rest(world: World) -> None:
    """Time passes, so that things are finished."""
    _later(world, asyncio.sleep(0))
    world.loop.jump(world.rng.choice((0.5, 3.0)))


def crash(world: World) -> None:
    """A node is killed, or loses its power."""
    nodes = _up(world)
    if nodes:
        world.rng.choice(nodes).crash(power=world.rng.random() < 0.3)


def stop(world: World) -> None:
    """A node is stopped as it should be."""
    nodes = _up(world)
    if nodes:
        _later(world, world.rng.choice(nodes).stop())


def start(world: World) -> None:
    """A node starts again."""
    down = [node for node in world.nodes if node.is_down]
    if down:
        world.rng.choice(down).start()


def cut(world: World) -> None:
    """A link is cut at some byte of it; each end hears of it sooner or later, or not."""
    rng = world.rng
    pipes = [pipe.link for pipe in world.cluster.pipes if pipe.is_open]
    reads = [link.link for reader in world.readers for link in reader.links.values() if link.link.is_open]
    if not pipes + reads:
        return
    hears = [rng.random() * rng.choice((0, 0.01, 2)) for _ in range(2)]
    link = rng.choice(pipes + reads)
    if rng.random() < 0.1:
        link.cut(a_hears_s=hears[0] if link in reads else None, b_hears_s=None)
    else:
        link.cut(a_hears_s=hears[0], b_hears_s=hears[1])


def isolate(world: World) -> None:
    """A node is cut off from all but its clients, or is back."""
    rng = world.rng
    node = rng.choice(world.nodes)
    node.is_cut_off = not node.is_cut_off
    world.trace(f"{node.name} is {'cut off' if node.is_cut_off else 'back'}")
    if node.is_cut_off:
        for line in list(node.lines):
            if line.is_open:
                line.cut_link(rng.random(), rng.random())


def move_clock(world: World) -> None:
    """The clock of a node jumps, forth or back."""
    node = world.rng.choice(world.nodes)
    node.wall_offset_s = world.rng.choice((0, 1, -1)) * world.rng.choice((0.5, 30, 4000, 10**6))


def slow_disk(world: World) -> None:
    """A disk becomes slow, or quick again."""
    for node in _up(world):
        node.flusher.slow_s = world.rng.choice((0.002, 0.002, 0.3, 3.0))


def bad_disk(world: World) -> None:
    """A disk refuses writes now and then, or does not any more."""
    for node in _up(world):
        node.disk.refuses = world.rng.choice((0.0, 0.0, 0.5, 1.0))


def stop_persistence(world: World) -> None:
    """A node is told to leave changes in memory, or to go on."""
    for node in _up(world):
        if world.rng.random() < 0.5:
            node.flusher.stop_persistence()
        else:
            node.flusher.start_persistence()


def fail_over(world: World) -> None:
    """The manager gives a vbucket to a copy; mostly where its owner is away or the copy in the middle of a snapshot."""
    rng, cluster = world.rng, world.cluster
    copies = [
        (vb, node)
        for node in world.nodes
        if cluster.is_reachable(node)
        for vb in node.bucket.vbuckets
        if vb is not None and node is not cluster.owner[vb.id] and vb.state in {State.REPLICA, State.PENDING}
    ]
    urgent = [(vb, node) for vb, node in copies if vb.in_snapshot or not cluster.is_reachable(cluster.owner[vb.id])]
    if urgent or (copies and rng.random() < 0.3):
        vb, node = rng.choice(urgent or copies)
        _later(world, cluster.fail_over(vb.id, node))


def move(world: World) -> None:
    """A vbucket is to change hands."""
    rng, cluster = world.rng, world.cluster
    cluster.move(rng.choice(list(cluster.owner)), rng.choice(world.nodes))


def spoil_move(world: World, vb_id: int) -> None:
    """While a vbucket changes hands, a node of it is killed, its line is cut or its mediator dies, in a moment."""
    rng, cluster = world.rng, world.cluster
    if vb_id not in cluster.moves:
        return
    node = rng.choice(cluster.moves[vb_id])
    power, kind = rng.random() < 0.3, rng.randrange(4)

    async def spoil() -> None:
        await asyncio.sleep(rng.random() * rng.choice((0.0, 0.01, 0.1)))
        if kind > 1 and node.is_up:
            node.crash(power=power)
        elif kind:
            cluster.stop_mediator(vb_id)
        else:
            for pipe in cluster.pipes:
                if pipe.moves == vb_id and pipe.is_open:
                    pipe.break_off()

    _later(world, spoil())


def kill_mediator(world: World) -> None:
    """A mediator dies."""
    if world.cluster.mediators:
        world.cluster.stop_mediator(world.rng.choice(list(world.cluster.mediators)))


def rerun_mediator(world: World) -> None:
    """A mediator that died or gave up is run again."""
    if world.cluster.moves:
        world.cluster.run_mediator(world.rng.choice(list(world.cluster.moves)))


def save_reader(world: World) -> None:
    """A reader keeps where it is."""
    world.rng.choice(world.readers).save()


def restart_reader(world: World) -> None:
    """A reader dies and begins with what it saved."""
    world.rng.choice(world.readers).restart()


def delete_copy(world: World) -> None:
    """A vbucket is removed from a node that does not own it."""
    rng, cluster = world.rng, world.cluster
    vb_id = rng.choice(list(cluster.owner))
    node = rng.choice(world.nodes)
    if (
        node is cluster.owner[vb_id]
        or not cluster.is_reachable(node)
        or vb_id in cluster.moves
        or vb_id in cluster.busy
    ):
        return

    async def delete() -> None:
        cluster.busy.add(vb_id)  # who removes a copy does not promote it meanwhile
        try:
            await node.set_vbucket(vb_id, State.DEAD)
            await node.delete_vbucket(vb_id)
        finally:
            cluster.busy.discard(vb_id)

    _later(world, delete())


_KINDS: dict[Callable[[World], None], float] = {
    write: 30,
    observe: 6,
    flush: 0.3,
    purge: 1,
    expire: 2,
    rest: 4,
    crash: 1.5,
    stop: 0.7,
    start: 3,
    cut: 3,
    isolate: 1,
    move_clock: 1,
    slow_disk: 0.7,
    bad_disk: 1,
    stop_persistence: 0.3,
    fail_over: 2,
    move: 5,
    kill_mediator: 1.5,
    rerun_mediator: 2,
    save_reader: 3,
    restart_reader: 1.5,
    delete_copy: 0.5,
}
"""How often each happens among the others, before the seed has its say."""
