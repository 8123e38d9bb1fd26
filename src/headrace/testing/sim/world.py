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
from typing import TYPE_CHECKING

from headrace.ids import VbUuid
from headrace.node import bucket as node_bucket
from headrace.node.dcp import consumer, feed, sender
from headrace.node.dcp.consumer import Consumer
from headrace.node.limits import NodeLimits
from headrace.protocol import consumer as consumer_rules
from headrace.store import undo
from headrace.testing.link import Pace
from headrace.testing.sim import peace, trouble
from headrace.testing.sim.clients import Clients
from headrace.testing.sim.cluster import Cluster
from headrace.testing.sim.loop import SimLoop
from headrace.testing.sim.model import BrokenError, Model, Place
from headrace.testing.sim.node import SimNode
from headrace.testing.sim.reader import Reader

if TYPE_CHECKING:
    from types import ModuleType

    from headrace.testing.link import MemoryLine

STEPS = 150
TRACE_LINES_MAX = 4000
AFTER_WRITES = 3
"""How often clients write once all is quiet: those who follow must still do so."""
TEND_S = 0.25
LOOK_S = 0.05


KNOBS: dict[tuple[ModuleType, str], tuple[object, ...]] = {
    (feed, "MEMORY_SNAPSHOT_BYTES_MAX"): (2000, 300, 1),
    (feed, "BLOCK_BYTES"): (1, 400),
    (sender, "TURN_BYTES"): (dict.fromkeys(("low", "medium", "high"), 1),),
    (sender, "PUMP_BYTES"): (1, 500),
    (sender, "BACKFILLS_MAX"): (1,),
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
        self.rng = Random(seed)
        self.loop = SimLoop()
        self.model = Model()
        self.lines: deque[str] = deque(maxlen=TRACE_LINES_MAX)
        self.is_peace = False
        self._number = 0
        rng = self.rng
        self.vbuckets = rng.randint(1, 4)
        limits = NodeLimits(
            partial_bytes_max=rng.choice((8 << 20, 1000, 300, 1)),
            recent_bytes_max=rng.choice((32 << 20, 3000, 1)),
            resident_bytes_max=rng.choice((256 << 20, 3000, 1)),
        )
        self.command_s = rng.choice((0.0, 0.01, 1.0))
        """How long a command of the manager is on its way."""
        self.spoiled_share = rng.choice((0.0, 0.1, 0.5))
        """How many steps of takeovers are followed by trouble for them."""
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
        return Random(self.rng.getrandbits(64))

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

    def takes_over(self, vb_id: int) -> None:
        """A vbucket has come a step further on its way from a node to another: a good moment for trouble."""
        if not self.is_peace and self.rng.random() < self.spoiled_share:
            trouble.spoil_move(self, vb_id)

    def promised(self, node: SimNode, vb_id: int, place: Place) -> None:
        """A client was told that something is on disk."""
        self.cluster.promised(node, vb_id, place)

    def peer_crashed(self, line: MemoryLine) -> None:
        """A node is gone from a link: the other end hears of it soon, late, or not."""
        rng = self.rng
        hears_s: float | None = rng.choice((0.0, 0.01, 1.0)) * rng.random()
        if isinstance(line.other.end, Consumer) and rng.random() < 0.1:
            hears_s = None
        line.cut_link(None, hears_s)

    def node_to_read(self, vb_id: int) -> SimNode | None:
        """Where a reader goes for a vbucket: to its owner, mostly."""
        if not self.is_peace and self.rng.random() < 0.1:
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
        await peace.make(self)
        peace.check(self)
        for _ in range(AFTER_WRITES):
            self.clients.write_some()
        await peace.come(self)
        peace.check(self)
        self.check_faults()

    def check_faults(self) -> None:
        """Raise what went wrong where nobody waits for it."""
        for task in self._tasks:
            if task.done():
                task.result()
        for fault in self.loop.faults:
            if isinstance(fault, BaseException):
                raise fault
            raise BrokenError(fault)

    async def _tend(self) -> None:
        while True:
            await self.cluster.reconcile()
            await asyncio.sleep(TEND_S)

    async def _read(self) -> None:
        while True:
            for reader in self.readers:
                reader.look()
            await asyncio.sleep(LOOK_S)


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
        self._world.trace(f"    log: {record.getMessage()} {extra or ''}")
        if record.exc_info and record.exc_info[1] is not None:
            self._world.loop.faults.append(record.exc_info[1])
