"""A vbucket moves from one node to another by TAP: one owner at every end, and no promised write is lost."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from headrace.history import State
from headrace.ids import Seqno, VBucketId
from headrace.node import Node
from headrace.pipelines.move import NotMovedError, Step, UnresolvedError
from headrace.pipelines.replicate import RefusedError
from headrace.pipelines.servers import Server, Vbuckets
from headrace.pipelines.tap_move import TapMove
from headrace.wire.catalogue import SeqnoPersistence
from tests.processes import start_node
from tests.replication.nodes import dump, server_at
from tests.replication.test_move import fill
from tests.replication.test_tap_couchbase import options_of
from tests.replication.test_tap_move import VB, never, states
from tests.replication.writers import Writer, check, stop_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VBUCKETS = 4
KEPT = 200


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """Two nodes that know nothing of each other."""
    with Node(vbuckets=VBUCKETS) as one, Node(vbuckets=VBUCKETS) as two:
        yield server_at(one.host, one.port), server_at(two.host, two.port)


def items_of(server: Server) -> dict[bytes, tuple[Any, ...]]:
    """The items and tombstones of the vbucket as far as TAP carries them: not their seqnos, nor when they went."""
    found = {}
    for key, (kind, cas, datatype, _seqno, revision, flags, expiry, _time, value) in dump(server, VB).items():
        kind = "deletion" if kind == "expiration" else kind  # noqa: PLW2901 - TAP does not tell them apart
        found[key] = (kind, cas, datatype, revision, flags, expiry, value)
    return found


def test_moved(pair: tuple[Server, Server]):
    """The target has every item and owns the vbucket; the source is dead; to run it again does nothing."""
    source, target = pair
    fill(source, 300)
    before = items_of(source)
    told: list[Step] = []
    moved = TapMove(options_of(source), target, VB, tell=lambda step, _: told.append(step)).run(never)
    assert states(source, target) == (State.DEAD, State.ACTIVE)
    assert items_of(target) == before
    assert before
    assert (moved.already, moved.attempts) == (False, 1)
    assert told == [Step.PREPARED, Step.COPYING, Step.PENDING, Step.ACTIVE, Step.MOVED]
    assert TapMove(options_of(source), target, VB).run(never).already


@pytest.mark.slow
def test_with_writes_going_on(pair: tuple[Server, Server]):
    """Under load, there and back again: what was promised is there."""
    writers = [Writer(pair, VB, f"writer{number}") for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for source, target in (pair, pair[::-1]):
            seen = [len(writer.promises) for writer in writers]
            end = time.monotonic() + 30
            while any(len(writer.promises) < count + 50 for writer, count in zip(writers, seen, strict=True)):
                assert time.monotonic() < end
                time.sleep(0.01)
            TapMove(options_of(source), target, VB, force=True).run(never)
            assert states(source, target) == (State.DEAD, State.ACTIVE)
    finally:
        stop_all(writers)
    check(writers, pair[0], VB)


@pytest.mark.slow
@pytest.mark.parametrize("at", [Step.PREPARED, Step.COPYING, Step.PENDING, Step.ACTIVE])
def test_the_source_is_killed(tmp_path: Path, at: Step):
    """Whenever the source is killed, one more run with both nodes there ends with one owner, which has every item."""
    process = start_node("--data", str(tmp_path), "--vbuckets", str(VBUCKETS))
    try:
        with Node(vbuckets=VBUCKETS) as node:
            source, target = server_at(process.host, process.port), server_at(node.host, node.port)
            fill(source, KEPT)
            kept = items_of(source)
            with Vbuckets(source) as vbuckets, source.connect() as items:
                high = Seqno(vbuckets.seqno(VB, State.ACTIVE))
                items.request(SeqnoPersistence(vbucket=VBucketId(VB), seqno=high))
            killed: list[Step] = []

            def tell(step: Step, _: str) -> None:
                if step is at and not killed:
                    killed.append(step)
                    process.kill()
                    process.restart()

            result: Any = None
            with suppress(NotMovedError, UnresolvedError, RefusedError):
                result = TapMove(options_of(source), target, VB, tell=tell).run(never)
            assert killed == [at]
            if result is None:
                TapMove(options_of(source), target, VB).run(never)
            assert states(source, target) == (State.DEAD, State.ACTIVE)
            assert items_of(target) == kept
    finally:
        if process.running:
            process.stop()
        process.close()


@pytest.mark.parametrize("at", [Step.COPYING, Step.PENDING, Step.ACTIVE])
def test_the_run_is_stopped(pair: tuple[Server, Server], at: Step):
    """A run that is stopped at any step leaves one owner, with every item; the next run moves it."""
    source, target = pair
    fill(source, 200)
    kept = items_of(source)
    stopped: list[Step] = []
    job = TapMove(options_of(source), target, VB, tell=lambda step, _: stopped.append(step) if step is at else None)
    with suppress(NotMovedError):
        job.run(lambda: bool(stopped))
    assert states(source, target).count(State.ACTIVE) == 1
    TapMove(options_of(source), target, VB).run(never)
    assert states(source, target) == (State.DEAD, State.ACTIVE)
    assert items_of(target) == kept
