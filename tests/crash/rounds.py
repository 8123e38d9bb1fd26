"""Rounds of load and sudden death on one data directory, each checked against the model."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from headrace.store import LmdbReader
from headrace.store.records import unpack
from headrace.wire.catalogue import Get, StopPersistence
from tests.crash.load import Client, Style, Watcher, connect, drive
from tests.crash.model import check, fresh, version_of
from tests.crash.nodes import Launcher, Node, send_signal, wait_gone
from tests.crash.raw import Raw
from tests.store.consistency import assert_consistent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.ids import VBucketId
    from headrace.store import VBucketRecord
    from headrace.store.records import Record
    from tests.crash.model import VBucketModel

VBUCKETS = 8
ENDS = {
    "node": 8,
    "node, then writer": 3,
    "writer, then node": 3,
    "persistence stopped": 3,
    "just persisted": 4,
    "every write on disk": 4,
    "while it stops": 3,
    "clean": 1,
}
"""How lives end, and how often in one deck of them; a deck is shuffled, and followed by another."""
KILLED_STARTS = 0.15


class Rounds:
    """A data directory and what is known of it."""

    def __init__(self, scratch: Path, launcher: Launcher, seed: int) -> None:
        self._random = random.Random(seed)
        self._data = scratch / "data"
        self._launcher = launcher
        self.models: dict[int, VBucketModel] = {}
        self._cas_max = 0
        self._end = ""
        self._deck: list[str] = []
        self._synced = False
        """Whether the last node acknowledged only what was on disk."""
        self.node: Node | None = None
        self.sums: Counter[str] = Counter()

    def begin(self, end: str) -> None:
        """Start the first node, whose life is to end in some way."""
        self._end = end
        self._start()
        self._check(clean=True, starts=0)

    def finish(self, clients: list[Client], watcher: Watcher, style: Style) -> None:
        """Check what a clean stop left behind."""
        for client in clients:
            client.drain(style)
        watcher.drain(style)
        starts = self._start()
        self._check(clean=True, starts=starts)
        assert self.node is not None
        self.node.stop()

    def run(self, kills: int) -> None:
        """Go on until so many nodes were killed."""
        self._next_end()
        self.begin(self._end)
        while self.sums["kills"] < kills:
            clean = self._live()
            self._next_end()
            starts = self._start()
            self._check(clean=clean, starts=starts)
        assert self.node is not None
        self.node.stop()

    def _next_end(self) -> None:
        if not self._deck:
            self._deck = [end for end, count in ENDS.items() for _ in range(count)]
            self._random.shuffle(self._deck)
        self._end = self._deck.pop()

    def _start(self) -> int:
        """Start a node, now and then after killing it before it was ready; give how often it was started."""
        arguments = ["--data", str(self._data), "--vbuckets", str(VBUCKETS)]
        if self._end == "every write on disk":
            arguments += ["--sync", "every-write"]
        starts = 1
        while self._random.random() < KILLED_STARTS:
            self.node = self._launcher.start(arguments)
            time.sleep(self._random.uniform(0, 0.4))
            self.node.kill()
            self.sums["kills"] += 1
            self.sums["kills of a start"] += 1
            starts += 1
        self.node = self._launcher.start(arguments).wait_ready()
        return starts

    # ------------------------------------------------------------------------------------------------------ one life

    def _style(self) -> Style:
        draw = self._random
        return Style(
            clients=draw.randrange(1, 5),
            window=draw.choice((2, 16, 64)),
            value_bytes_max=draw.choice((20, 200, 200, 20_000)),
            vbuckets=tuple(sorted(draw.sample(range(VBUCKETS), draw.randrange(1, VBUCKETS + 1)))),
            asks_persistence=self._end == "just persisted",
            may_be_refused=self._end == "writer, then node",
        )

    def _live(self) -> bool:
        """Load the node and end it; True for an end that may lose nothing."""
        node, draw, style = self.node, self._random, self._style()
        assert node is not None
        clients = [Client(number, node.port, self.models, self._cas_max) for number in range(style.clients)]
        connection = connect(node.port)
        connection.setblocking(False)
        watcher = Watcher(connection, self.models)
        seconds = draw.uniform(0.0, 0.3)
        drive(draw, style, clients, watcher, seconds=seconds)
        if self._end == "persistence stopped":
            with Raw(node.port) as raw:
                raw.ask(StopPersistence())
            drive(draw, style, clients, watcher, seconds=draw.uniform(0.02, 0.2))
        elif self._end == "just persisted":
            drive(draw, style, clients, watcher, seconds=5, watched=1)
        elif self._end == "writer, then node":
            send_signal(node.writer_pid, signal.SIGKILL)
            drive(draw, style, clients, watcher, seconds=draw.choice((0.0, 0.01, 0.2)))
        clean = self._kill(node)
        for client in clients:
            client.drain(style)
        watcher.drain(style)
        self._cas_max = max(client.cas_max for client in clients)
        self.sums["answers"] += sum(client.answered for client in clients)
        self.sums[self._end] += 1
        return clean

    def _kill(self, node: Node) -> bool:
        if self._end == "clean":
            node.stop()
            return True
        if self._end == "while it stops":
            send_signal(node.pid, signal.SIGTERM)
            time.sleep(self._random.uniform(0, 0.08))
            send_signal(node.pid, signal.SIGKILL)
            if node.wait() == 0:
                return True
        else:
            node.kill()
        self.sums["kills"] += 1
        if self._end == "node, then writer" and send_signal(node.writer_pid, signal.SIGKILL):
            self.sums["writers killed at once"] += 1
        return False

    # ------------------------------------------------------------------------------------------------------- to check

    def _check(self, *, clean: bool, starts: int) -> None:
        """Compare what is on disk after the start with what may be, and begin the next round from it."""
        assert self.node is not None
        on_disk = self._read()
        for number, (kept, records) in on_disk.items():
            if number in self.models:
                verdict = check(self.models[number], kept, records, clean=clean, starts=starts)
                assert not (self._synced and verdict.lost), f"vbucket {number}: lost, and said to be on disk before"
                self.sums["changes answered"] += verdict.answered
                self.sums["changes lost"] += verdict.lost
                self.sums["changes kept that nobody answered"] += verdict.kept_unanswered
                self.sums["vbuckets branched"] += verdict.branched
                self.sums["vbuckets that lost"] += verdict.lost > 0
                self.sums["vbuckets that could lose nothing"] += self.models[number].is_settled()
        assert len(on_disk) == VBUCKETS
        self.models = {number: fresh(number, kept, records) for number, (kept, records) in on_disk.items()}
        self._synced = self._end == "every write on disk"
        self._check_served(on_disk)

    def _read(self) -> dict[VBucketId, tuple[VBucketRecord, list[Record]]]:
        with closing(LmdbReader(self._data / "buckets" / "default" / "store")) as reader, reader.snapshot() as snapshot:
            assert_consistent(snapshot)
            return {
                number: (kept, [unpack(record) for record in snapshot.records(number)])
                for number, kept in snapshot.vbuckets().items()
            }

    def _check_served(self, on_disk: dict[VBucketId, tuple[VBucketRecord, list[Record]]]) -> None:
        """See that the node tells what the disk has."""
        assert self.node is not None
        with Raw(self.node.port) as raw:
            live = sum(record.live for _, records in on_disk.values() for record in records)
            assert int(raw.stats()["curr_items"]) == live
            seqnos, logs = raw.stats(b"vbucket-seqno"), raw.stats(b"failovers")
            for number, (kept, _) in on_disk.items():
                assert int(seqnos[f"vb_{number}:high_seqno"]) == kept.high_seqno
                assert int(seqnos[f"vb_{number}:last_persisted_seqno"]) == kept.high_seqno
                assert int(seqnos[f"vb_{number}:uuid"]) == kept.failover_log[0][0]
                log = [
                    (int(logs[f"vb_{number}:{at}:id"]), int(logs[f"vb_{number}:{at}:seq"]))
                    for at in range(int(logs[f"vb_{number}:num_entries"]))
                ]
                assert log == list(kept.failover_log)
            number = self._random.choice(list(on_disk))
            for record in on_disk[number][1]:
                told = raw.send(Get(key=record.key, vbucket=number))
                if not version_of(record).live:
                    assert told.header.specific == 1, told
                else:
                    assert (told.header.cas, told.value) == (record.cas, record.value)
                    assert int.from_bytes(told.extras) == record.flags


@contextmanager
def rounds(scratch: Path, seed: int) -> Iterator[Rounds]:
    """Rounds whose last node is gone at the end, whatever happened."""
    with Launcher(scratch) as launcher:
        one = Rounds(scratch, launcher, seed)
        try:
            yield one
        except Exception as error:
            error.add_note(f"seed {seed}, {dict(one.sums)}, last end: {one._end}; the node said:\n{_said(one)}")
            raise
        finally:
            if one.node is not None:
                one.node.discard()
                if one.node.writer_pid:
                    wait_gone(one.node.writer_pid)


def _said(one: Rounds) -> str:
    return one.node.said if one.node is not None else ""
