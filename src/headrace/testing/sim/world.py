"""One run of the simulation: a cluster, its clients and readers, trouble for a while, then peace and the checks.

Everything is decided by one generator of random numbers: how large things are, how likely each kind of trouble is, what
happens next and when. What must hold:

- A replica at the end of each snapshot and at its promotion, a reader at the end of each snapshot, and every vbucket at
  its node's start is a state that the vbucket had at that place of its history: nobody applies half a snapshot.
- Within a vb UUID seqnos only grow: each is given to one change, none is left out, and no reader sees one again.
- A vbucket has one owner at a time; after a failover, those that it deposed do not count until they were told.
- What a node told to be on disk is there after it crashed, unless it was rolled back as a copy meanwhile.
- What an owner told to be on disk is in the history of the owner at the end, unless a failover promoted a copy that had
  not got it. A takeover loses nothing.
- In the end all is quiet: every vbucket has exactly one owner, and every replica and every reader shows the items of
  the owner, one by one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING

from headrace.history import State
from headrace.ids import VbUuid
from headrace.node import bucket as node_bucket
from headrace.node.dcp import consumer, feed, producer
from headrace.node.dcp.consumer import Consumer
from headrace.node.limits import NodeLimits
from headrace.protocol import consumer as consumer_rules
from headrace.store import undo
from headrace.testing.link import Pace
from headrace.testing.sim import trouble
from headrace.testing.sim.clients import Clients
from headrace.testing.sim.cluster import Cluster
from headrace.testing.sim.loop import SimLoop
from headrace.testing.sim.model import Broken, Model, Place
from headrace.testing.sim.node import SimNode
from headrace.testing.sim.reader import Reader

if TYPE_CHECKING:
    from headrace.testing.link import MemoryLine

STEPS = 150
TRACE_LINES_MAX = 4000
QUIET_S_MAX = 1500.0
"""How long peace may take to come: longer than a silent peer is waited for."""
TEND_S = 0.25
LOOK_S = 0.05


KNOBS: dict[tuple[ModuleType, str], tuple[object, ...]] = {
    (feed, "MEMORY_SNAPSHOT_BYTES_MAX"): (2000, 300, 1),
    (feed, "BLOCK_BYTES"): (1, 400),
    (producer, "TURN_BYTES"): (dict.fromkeys(("low", "medium", "high"), 1),),
    (producer, "PUMP_BYTES"): (1, 500),
    (producer, "BACKFILLS_MAX"): (1,),
    (undo, "ENTRIES_MAX"): (1, 4),
    (consumer_rules, "BUFFER_BYTES"): (1, 500),
    (consumer, "CONTROLS"): (
        tuple((key, b"2000" if key == b"connection_buffer_size" else value) for key, value in consumer_rules.CONTROLS),
    ),
}
"""Bounds that are too large to be met in a small world: some seeds make them small."""


class World:
    """Everything there is, for one seed."""

    def __init__(self, seed: int, *, steps: int = STEPS) -> None:
        self.seed = seed
        self.steps = steps
        self.rng = Random(seed)  # noqa: S311 - it has to be the same again
        self.loop = SimLoop()
        self.model = Model()
        self.lines: deque[str] = deque(maxlen=TRACE_LINES_MAX)
        self.is_peace = False
        self._number = 0
        rng = self.rng
        self.vbuckets = rng.randint(1, 4)
        limits = NodeLimits(
            partial_bytes_max=rng.choice((8 << 20, 2000, 600, 1)),
            recent_bytes_max=rng.choice((32 << 20, 3000, 1)),
            resident_bytes_max=rng.choice((256 << 20, 3000, 1)),
        )
        self.command_s = rng.choice((0.0, 0.01, 1.0))
        """How long a command of the manager is on its way."""
        self._pace_s = rng.choice((0.0005, 0.01, 0.1))
        names = ["north", "east", "south"][: rng.randint(2, 3)]
        self.nodes = [SimNode(self, name, vbuckets=self.vbuckets, limits=limits) for name in names]
        self.readers = [Reader(self, f"reader{index}", self.vbuckets) for index in range(rng.randint(1, 3))]
        self.clients = Clients(self)
        self.cluster = Cluster(self, self.nodes, self.vbuckets)
        self._tasks: list[asyncio.Task[None]] = []
        self.loose: set[asyncio.Task[None]] = set()
        """What is under way and nobody waits for."""

    # ------------------------------------------------------------------------------------------------ for the others

    def trace(self, text: str) -> None:
        """Note what happens."""
        self.lines.append(f"{self.loop.time():9.3f} {text}")

    def number(self) -> int:
        """Count things that want names."""
        self._number += 1
        return self._number

    def new_vbuuid(self) -> VbUuid:
        """Name a branch, in the order in which they begin."""
        return VbUuid(0xB000 + self.number())

    def child(self) -> Random:
        """A generator of its own, for what is asked in no order that is certain."""
        return Random(self.rng.getrandbits(64))  # noqa: S311 - as above

    def pace(self) -> Pace:
        """How the bytes of a new link travel."""
        rng = self.rng
        if self.is_peace:
            return Pace()
        return Pace(
            delay_s=self._pace_s * rng.random(),
            piece_bytes_max=rng.choice((7, 40, 300, 1 << 16)),
            room_bytes=rng.choice((1, 200, 1 << 20)),
        )

    def owners_changed(self) -> None:
        """Somewhere a vbucket is in another state."""
        if hasattr(self, "cluster"):
            self.cluster.owners_changed()

    def promised(self, node: SimNode, vb_id: int, place: Place) -> None:
        """A client was told that something is on disk."""
        self.cluster.promised(node, vb_id, place)

    def peer_crashed(self, line: MemoryLine) -> None:
        """A node is gone from a link: the other end hears of it soon, late, or not."""
        rng = self.rng
        hears_s: float | None = rng.choice((0.0, 0.01, 1.0)) * rng.random()
        if isinstance(line.other.end, Consumer) and rng.random() < 0.1:  # noqa: PLR2004 - it finds out by itself
            hears_s = None
        line.cut_link(None, hears_s)

    def node_to_read(self, vb_id: int) -> SimNode | None:
        """Where a reader goes for a vbucket: to its owner, mostly."""
        if not self.is_peace and self.rng.random() < 0.1:  # noqa: PLR2004 - astray
            return self.rng.choice(self.nodes)
        return self.cluster.owner[vb_id]

    async def until_up(self, node: SimNode) -> None:
        """Wait for a node to be started."""
        while not node.is_up:
            await asyncio.sleep(TEND_S)

    # --------------------------------------------------------------------------------------------------------- the run

    def run(self) -> None:
        """Run it all; raise what is broken."""
        before = [getattr(module, name) for module, name in KNOBS]
        for (module, name), choices in KNOBS.items():
            setattr(module, name, self.rng.choice((getattr(module, name), *choices)))
        new_vbuuid, node_bucket.new_vbuuid = node_bucket.new_vbuuid, self.new_vbuuid
        tells = _Tells(self)
        root = logging.getLogger("headrace")
        level, propagates = root.level, root.propagate
        root.addHandler(tells)
        root.setLevel(logging.INFO)
        root.propagate = False
        try:
            self.loop.run(self._main())
        finally:
            root.removeHandler(tells)
            root.setLevel(level)
            root.propagate = propagates
            node_bucket.new_vbuuid = new_vbuuid
            for (module, name), value in zip(KNOBS, before, strict=True):
                setattr(module, name, value)

    async def _main(self) -> None:
        for node in self.nodes:
            node.start()
            self.cluster.deposed |= {(node.name, vb_id) for vb_id in range(self.vbuckets)}
        await self.cluster.set_up()
        self.cluster.deposed.clear()
        self.owners_changed()
        self._tasks = [self.loop.create_task(self._tend()), self.loop.create_task(self._read())]
        await trouble.make(self)
        await self._make_peace()
        self._check_peace()
        self._check_faults()

    def check_faults(self) -> None:
        """Raise what went wrong where nobody waits for it."""
        self._check_faults()

    def _check_faults(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
        for fault in self.loop.faults:
            if isinstance(fault, BaseException):
                raise fault
            raise Broken(fault)

    async def _tend(self) -> None:
        while True:
            await self.cluster.reconcile()
            await asyncio.sleep(TEND_S)

    async def _read(self) -> None:
        while True:
            for reader in self.readers:
                reader.look()
            await asyncio.sleep(LOOK_S)

    # ------------------------------------------------------------------------------------------------------- the peace

    async def _make_peace(self) -> None:
        """Heal everything and wait until nothing moves."""
        await asyncio.sleep(LOOK_S)  # what was begun last is under way then
        self.is_peace = True
        self.trace("peace")
        for node in self.nodes:
            node.is_cut_off = False
            if node.opened is not None:
                node.flusher.slow_s = 0.002
                node.disk.refuses = 0.0
            while node.is_stopping:
                await asyncio.sleep(LOOK_S)
            if node.is_down:
                node.start()
            node.disk.refuses = 0.0
            node.flusher.slow_s = 0.002
            node.flusher.start_persistence()
        until = self.loop.time() + QUIET_S_MAX
        pause_s = LOOK_S
        while True:
            await self.cluster.settle_moves()
            self._check_faults()
            restless = self._restless()
            if restless is None:
                return
            if self.loop.time() > until:
                raise Broken(f"peace does not come: {restless}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 20.0)

    def _restless(self) -> str | None:  # noqa: PLR0911, C901 - one for each thing that may not be at rest
        """What is not as it should be yet."""
        cluster = self.cluster
        if cluster.moves or cluster.busy:
            return f"moves {sorted(cluster.moves)}, failovers {sorted(cluster.busy)}"
        for vb_id, owner in cluster.owner.items():
            vb = owner.vb(vb_id)
            if vb is None or vb.state is not State.ACTIVE:
                return f"vb {vb_id} is not active at {owner.name}"
            for node in self.nodes:
                copy = node.vb(vb_id)
                if node is owner:
                    continue
                if copy is None or copy.state is not State.REPLICA:
                    return f"vb {vb_id} is no replica at {node.name}"
                if (copy.whole_seqno, copy.vbuuid) != (vb.high_seqno, vb.vbuuid):
                    return f"vb {vb_id} at {node.name} is at {node.place_of(copy)}, its owner {owner.place_of(vb)}"
            for reader in self.readers:
                followed = reader.followed[vb_id]
                log = followed.subscription.progress.log
                if log is None or (followed.last_seqno, log.latest.vbuuid) != (vb.high_seqno, vb.vbuuid):
                    return f"vb {vb_id} at {reader.name}: {followed.told()}; its owner is {owner.name}, at {owner.place_of(vb)}"
                if followed.link is None or not followed.link.link.is_open:
                    return f"vb {vb_id} at {reader.name} is not followed: {followed.told()}"
        return None

    def _check_peace(self) -> None:
        """Compare everybody with the owner, item by item."""
        for vb_id, owner in self.cluster.owner.items():
            vb = owner.vb(vb_id)
            assert vb is not None
            owner.require_whole(vb, "the end")
            self.cluster.require_promises(vb_id)
            wanted = owner.copy_of(vb)
            for node in self.nodes:
                copy = node.vb(vb_id)
                if copy is not None and node is not owner:
                    node.require_whole(copy, "the end")
                    self._require_same(vb_id, wanted, node.copy_of(copy), node.name)
            for reader in self.readers:
                self._require_same(vb_id, wanted, reader.followed[vb_id].copy, reader.name)

    def _require_same(self, vb_id: int, wanted: dict[bytes, object], copy: dict[bytes, object], who: str) -> None:
        """Two copies are the same but for tombstones that were purged."""
        purged = self.model.purged[vb_id]
        for key in sorted(wanted.keys() | copy.keys()):
            one, other = wanted.get(key), copy.get(key)
            there = one or other
            if one != other and not (
                (one is None or other is None) and not there.is_live and there.seqno <= purged  # type: ignore[union-attr]
            ):
                raise Broken(f"vbucket {vb_id}: {key!r} is {one} at its owner and {other} at {who}")


class _Tells(logging.Handler):
    """Puts what nodes log into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Note one line; an exception that a node swallowed is told as what it is."""
        extra = {
            name: value
            for name, value in record.__dict__.items()
            if name in {"vbucket", "why", "from", "to", "connection", "peer"}
        }
        self._world.trace(f"    log: {record.getMessage()} {extra if extra else ''}")
        if record.exc_info and record.exc_info[1] is not None:
            self._world.loop.faults.append(record.exc_info[1])
