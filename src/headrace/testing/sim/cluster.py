"""The manager of the simulated cluster: which node owns a vbucket, who copies it, failovers, and takeovers.

The manager's own map is always right and never lost; what it does takes time, waits for nodes, and may fail in the
middle. A takeover is done by a mediator that may die at any step and be run again, with the same resolution as
`headrace move`: the target is active, then it is done; else the target becomes dead first, then the source active.

A failover gives a vbucket to a copy while its owner may live on somewhere: every other node is *deposed* then. Of a
deposed node it is no fault to be active or to take writes, which are lost by design; it is until the manager has told
it to be no owner, and its disk knows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.history import State
from headrace.ids import Opaque, VBucketId
from headrace.node.dcp.consumer import Consumer
from headrace.node.refused import Refused
from headrace.store import StoreError
from headrace.testing.link import Link
from headrace.testing.sim.ends import Source
from headrace.testing.sim.model import BrokenError, Place
from headrace.testing.sim.node import DownError
from headrace.wire import Dialect
from headrace.wire.catalogue import AddStream, CloseStream
from headrace.wire.codes import Magic, OpenFlag, Status, StreamFlag

if TYPE_CHECKING:
    from headrace.testing.sim.node import SimNode
    from headrace.testing.sim.world import World

_ADD = AddStream.spec.opcodes[Dialect.DCP]
_CLOSE = CloseStream.spec.opcodes[Dialect.DCP]
LOOK_S = 0.05


class Pipe:
    """A connection from the producer of one node to the consumer of another, and who told the consumer what to ask."""

    def __init__(self, world: World, source: SimNode, target: SimNode, *, moves: int | None = None) -> None:
        assert source.opened is not None
        assert target.opened is not None
        self.source = source
        self.target = target
        self.moves = moves
        """The vbucket that changes hands by it; None where it is for copies."""
        self.name = f"{'copy' if moves is None else 'move'}-{source.name}-{target.name}-{world.number()}"
        self.link = Link(world.loop, world.child(), pace=world.pace(), names=(source.name, target.name))
        flags = OpenFlag.PRODUCER | world.rng.choice((OpenFlag(0), OpenFlag.INCLUDE_DELETE_TIMES))
        self.producer = Source(source.opened, self.link.a, self.name, flags, snappy=False)
        self.consumer = Consumer(target.opened, self.link.b, self.name, world.loop.time())
        source.lines[self.link.a] = None
        target.lines[self.link.b] = None
        self.link.b.divert = self._is_ours
        self.link.join(self.producer, self.consumer)
        self.answers: dict[int, int] = {}
        self._opaque = 0
        self._world = world

    def _is_ours(self, block: bytes) -> bool:
        """Take the answers to the manager's own requests out of the stream."""
        if block[0] != Magic.RESPONSE or block[1] not in {_ADD, _CLOSE}:
            return False
        if block[1] == _ADD:
            self.answers[int.from_bytes(block[12:16])] = int.from_bytes(block[6:8])
        return True

    @property
    def is_open(self) -> bool:
        """Whether something can be told."""
        return self.link.is_open

    @property
    def is_seen(self) -> bool:
        """Whether one of the nodes still has the connection."""
        return self.link.a.is_open or self.link.b.is_open

    def feeds(self, vb_id: int) -> bool:
        """Whether there is a stream into a vbucket, or one is asked for."""
        return self.link.b.is_open and any(name == f"stream_{vb_id}_state" for name, _ in self.consumer.stats())

    def add(self, vb_id: int, flags: int = 0) -> int:
        """Tell the consumer to ask for a stream; gives what the answer is found by.

        The producer hears of a stream that its consumer gave up only when it sends on: it is told first.
        """
        if vb_id in self.producer.streams:
            self.producer.receive(CloseStream(vbucket=VBucketId(vb_id), opaque=Opaque(0)), self._world.loop.time())
        self._opaque += 1
        request = AddStream(vbucket=VBucketId(vb_id), opaque=Opaque(self._opaque), flags=flags)
        self.consumer.receive(request, self._world.loop.time())
        return self._opaque

    def stop(self, vb_id: int) -> None:
        """Tell the consumer to end a stream."""
        if self.link.b.is_open:
            self.consumer.receive(CloseStream(vbucket=VBucketId(vb_id), opaque=Opaque(0)), self._world.loop.time())

    def break_off(self) -> None:
        """Whoever carried the bytes is gone: some still arrive, and each end hears of it on its own."""
        rng = self._world.rng
        if rng.random() < 0.5:
            self.link.cut(a_hears_s=rng.random(), b_hears_s=rng.random(), why="broken off")
        else:
            self.link.closed(rng.choice((self.link.a, self.link.b)), "broken off")


class Cluster:
    """The manager."""

    def __init__(self, world: World, nodes: list[SimNode], vbuckets: int) -> None:
        self.world = world
        self.nodes = nodes
        self.owner: dict[int, SimNode] = {vb_id: world.rng.choice(nodes) for vb_id in range(vbuckets)}
        self.deposed: set[tuple[str, int]] = set()
        self.moves: dict[int, tuple[SimNode, SimNode]] = {}
        """Takeovers that were begun and not resolved: from, to."""
        self.last_moves: dict[int, tuple[SimNode, SimNode]] = {}
        """Those that were done: a target that crashes before its disk knows is no owner after it, nor is the source."""
        self.mediators: dict[int, asyncio.Task[None]] = {}
        self.pipes: list[Pipe] = []
        self.promises: dict[int, list[Place]] = {vb_id: [] for vb_id in range(vbuckets)}
        """What an owner told to be on disk, and no failover gave up."""
        self.promoting: set[tuple[str, int]] = set()
        """Copies that the manager makes owners by a failover."""
        self.busy: set[int] = set()
        """Vbuckets that are being failed over."""

    async def set_up(self) -> None:
        """Every node begins as owner of everything: leave one of them."""
        for vb_id, owner in self.owner.items():
            for node in self.nodes:
                if node is not owner:
                    await node.set_vbucket(vb_id, State.REPLICA)

    def is_reachable(self, node: SimNode) -> bool:
        """Whether the manager can talk to a node."""
        return node.is_up and not node.is_cut_off

    # ------------------------------------------------------------------------------------------------- what must hold

    def owners_changed(self) -> None:
        """No vbucket has two owners, but for those that a failover deposed."""
        for vb_id in self.owner:
            active = [
                node.name
                for node in self.nodes
                if (vb := node.vb(vb_id)) is not None
                and vb.state is State.ACTIVE
                and (node.name, vb_id) not in self.deposed
            ]
            if len(active) > 1:
                raise BrokenError(f"vbucket {vb_id} is active at {' and '.join(active)}")

    def promised(self, node: SimNode, vb_id: int, place: Place) -> None:
        """An owner told a client that a place is on disk."""
        if (node.name, vb_id) not in self.deposed:
            self.promises[vb_id].append(place)

    def require_promises(self, vb_id: int) -> None:
        """All that owners told to be on disk is in the history of the owner."""
        owner = self.owner[vb_id]
        vb = owner.vb(vb_id)
        assert vb is not None
        for place in self.promises[vb_id]:
            owner.require_in(vb, place, "what an owner had told to be on disk")

    # ------------------------------------------------------------------------------------------------------ the copies

    async def reconcile(self) -> None:
        """Look at every vbucket and bring it nearer to what it should be."""
        self.pipes = [pipe for pipe in self.pipes if pipe.is_seen]
        for vb_id, owner in self.owner.items():
            if vb_id in self.busy or vb_id in self.moves:
                continue
            try:
                await self._tend_owner(vb_id, owner)
            except (DownError, StoreError, Refused) as error:
                self.world.trace(f"the manager cannot tend vb {vb_id} at its owner {owner.name}: {error}")
                continue
            for node in self.nodes:
                if node is owner or not self.is_reachable(node):
                    continue
                try:
                    await self._tend(vb_id, owner, node)
                except (DownError, StoreError, Refused) as error:
                    self.world.trace(f"the manager cannot tend vb {vb_id} at {node.name}: {error}")
                if self.owner[vb_id] is not owner or vb_id in self.moves or vb_id in self.busy:
                    break

    async def _tend_owner(self, vb_id: int, owner: SimNode) -> None:
        """Have an owner be active: its state may be lost by a crash, where the disk did not know it."""
        if not self.is_reachable(owner) or ((vb := owner.vb(vb_id)) is not None and vb.state is State.ACTIVE):
            return
        last = self.last_moves.get(vb_id)
        if last is not None and last[1] is owner:
            self.owner[vb_id] = last[0]
            self.moves[vb_id] = last
            self.run_mediator(vb_id)
        else:
            await self._promote(vb_id, owner)

    async def _tend(self, vb_id: int, owner: SimNode, node: SimNode) -> None:
        """Have a node that is no owner be a copy."""
        vb = node.vb(vb_id)
        if vb is None or vb.state is not State.REPLICA:
            await self._make_copy(vb_id, node)
            vb = node.vb(vb_id)
        if vb is None or self.owner[vb_id] is not owner or vb_id in self.moves or not self.is_reachable(node):
            return
        if vb.state is State.REPLICA and node.disk.state_of(vb.id) is State.REPLICA:
            self.deposed.discard((node.name, vb_id))
        if self.is_reachable(owner):
            self._feed(vb_id, owner, node)

    async def _make_copy(self, vb_id: int, node: SimNode) -> None:
        """Have a node that is no owner have a replica."""
        vb = node.vb(vb_id)
        if vb is not None and vb.state is not State.DEAD:
            await node.set_vbucket(vb_id, State.DEAD)  # so that no takeover of before goes on
        if self.owner[vb_id] is not node and vb_id not in self.moves:
            await node.set_vbucket(vb_id, State.REPLICA)

    def _feed(self, vb_id: int, owner: SimNode, node: SimNode) -> None:
        """Have the copy follow its owner, and nobody else."""
        pipe = next(
            (
                one
                for one in self.pipes
                if one.is_open and one.moves is None and (one.source, one.target) == (owner, node)
            ),
            None,
        )
        for other in self.pipes:
            if other.target is node and other is not pipe and other.feeds(vb_id) and other.moves is None:
                other.stop(vb_id)
        if pipe is None:
            pipe = Pipe(self.world, owner, node)
            self.pipes.append(pipe)
        if not pipe.feeds(vb_id):
            pipe.add(vb_id)

    # ------------------------------------------------------------------------------------------------------- failovers

    async def fail_over(self, vb_id: int, node: SimNode) -> None:
        """Give a vbucket to a copy, whatever its owner thinks; what the copy has not got is lost by design."""
        vb = node.vb(vb_id)
        if vb is None or vb_id in self.busy or not self.is_reachable(node):
            return
        self.stop_mediator(vb_id)
        self.moves.pop(vb_id, None)
        self.last_moves.pop(vb_id, None)
        self.busy.add(vb_id)
        try:
            place = node.place_of(vb)
            self.world.trace(f"the manager fails vb {vb_id} over to {node.name} at {place}")
            self.deposed.discard((node.name, vb_id))
            self.deposed |= {(other.name, vb_id) for other in self.nodes if other is not node}
            self.owner[vb_id] = node
            while True:
                try:
                    await self._promote(vb_id, node)
                except (StoreError, Refused) as error:
                    self.world.trace(f"the manager cannot fail vb {vb_id} over: {error}")
                    await asyncio.sleep(0.3)
                except DownError:
                    await self.world.until_up(node)
                else:
                    return
        finally:
            self.busy.discard(vb_id)

    async def _promote(self, vb_id: int, node: SimNode) -> None:
        """Make a copy the owner; what owners had told to be on disk, and it has not got, is given up here."""
        self.promoting.add((node.name, vb_id))
        try:
            await node.set_vbucket(vb_id, State.ACTIVE)
        finally:
            self.promoting.discard((node.name, vb_id))

    def becomes_active(self, node: SimNode, vb_id: int, place: Place) -> None:
        """A copy is about to be active, with what it has at a place."""
        if (node.name, vb_id) in self.promoting:
            contains = self.world.model.contains
            self.promises[vb_id] = [one for one in self.promises[vb_id] if contains(vb_id, place, one)]

    # ------------------------------------------------------------------------------------------------------- takeovers

    def move(self, vb_id: int, target: SimNode) -> None:
        """Begin to move a vbucket."""
        source = self.owner[vb_id]
        if vb_id in self.moves or vb_id in self.busy or target is source or (target.name, vb_id) in self.deposed:
            return  # who was deposed may think that it is the owner: the mediator would take that for a takeover done
        self.moves[vb_id] = (source, target)
        self.world.trace(f"vb {vb_id} is to move from {source.name} to {target.name}")
        self.run_mediator(vb_id)

    def run_mediator(self, vb_id: int) -> None:
        """Run the mediator, again."""
        if vb_id in self.moves and vb_id not in self.mediators:
            task = self.world.loop.create_task(self._mediate(vb_id))
            self.mediators[vb_id] = task
            task.add_done_callback(lambda _: self.mediators.pop(vb_id, None))

    def stop_mediator(self, vb_id: int) -> None:
        """The mediator dies."""
        task = self.mediators.pop(vb_id, None)
        if task is not None:
            self.world.trace(f"the mediator of vb {vb_id} dies")
            task.cancel()

    async def _mediate(self, vb_id: int) -> None:
        source, target = self.moves[vb_id]
        try:
            if self.is_reachable(source) and self.is_reachable(target):
                await self._step(vb_id, source, target)
        except (DownError, StoreError, Refused) as error:
            self.world.trace(f"the mediator of vb {vb_id} gives up: {error}")

    async def _step(self, vb_id: int, source: SimNode, target: SimNode) -> None:
        """Resolve what was left behind; where nothing was, take over."""
        while any(pipe.moves == vb_id and pipe.is_seen for pipe in self.pipes):
            await asyncio.sleep(LOOK_S)  # what an earlier run left on its way could change what is found now
        if await self._resolved(vb_id, source, target):
            return
        if (here := target.vb(vb_id)) is None or here.state is not State.REPLICA:
            await target.set_vbucket(vb_id, State.REPLICA)
        for pipe in self.pipes:
            if pipe.target is target and pipe.feeds(vb_id):
                pipe.stop(vb_id)
        if not (self.is_reachable(source) and self.is_reachable(target)):
            return
        is_told = await self._take_over(vb_id, source, target)
        if await self._resolved(vb_id, source, target) and is_told and self.world.rng.random() < 0.5:
            self.busy.add(vb_id)
            try:
                await source.delete_vbucket(vb_id)
            finally:
                self.busy.discard(vb_id)

    async def _take_over(self, vb_id: int, source: SimNode, target: SimNode) -> bool:
        """Carry a takeover; True when it came to its end, so that the source knows that the target is the owner."""
        pipe = Pipe(self.world, source, target, moves=vb_id)
        self.pipes.append(pipe)
        try:
            answer = pipe.add(vb_id, StreamFlag.TAKEOVER)
            while pipe.is_open and (answer not in pipe.answers or pipe.feeds(vb_id)):
                await asyncio.sleep(LOOK_S)
                if pipe.answers.get(answer, Status.SUCCESS) != Status.SUCCESS:
                    self.world.trace(f"the takeover of vb {vb_id} was refused: {pipe.answers[answer]:#x}")
                    break
            is_told = pipe.is_open
        finally:
            pipe.break_off()
        while pipe.is_seen:
            await asyncio.sleep(LOOK_S)
        return is_told

    async def _resolved(self, vb_id: int, source: SimNode, target: SimNode) -> bool:
        """Find out who owns a vbucket and leave one owner; True when the target has it."""
        there = target.vb(vb_id)
        if there is not None and there.state is State.ACTIVE and self.is_reachable(target):
            self.world.trace(f"vb {vb_id} has moved to {target.name}")
            self.owner[vb_id] = target
            self.last_moves[vb_id] = self.moves.pop(vb_id)
            self.deposed.discard((target.name, vb_id))
            return True
        if not (self.is_reachable(source) and self.is_reachable(target)):
            raise DownError(f"{source.name} or {target.name}")
        here = source.vb(vb_id)
        assert here is not None
        if here.state is State.ACTIVE:
            if there is not None and there.state is State.PENDING:
                await target.set_vbucket(vb_id, State.REPLICA)
            return False
        self.world.trace(f"the mediator gives vb {vb_id} back to {source.name}")
        await target.set_vbucket(vb_id, State.DEAD)
        await source.set_vbucket(vb_id, State.ACTIVE)
        return False

    async def settle_moves(self) -> None:
        """Run mediators until nothing is left to resolve."""
        for vb_id in list(self.moves):
            self.run_mediator(vb_id)
        while self.mediators:
            await asyncio.wait(list(self.mediators.values()))
            await asyncio.sleep(0)
