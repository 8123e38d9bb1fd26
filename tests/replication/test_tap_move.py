"""A vbucket moves off Couchbase's own server by TAP: one owner at every end, and no promised write is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import KvConnection, StatusError
from headrace.history import State
from headrace.node import Node
from headrace.pipelines.move import NotMovedError, Step, UnresolvedError
from headrace.pipelines.replicate import RefusedError
from headrace.pipelines.servers import Server, Vbuckets
from headrace.pipelines.tap_move import TapMove
from tests.client.servers import HOST, free_port
from tests.client.test_dcp_couchbase import on_disk
from tests.replication.nodes import server_at
from tests.replication.test_couchbase import PROGRAM, VBUCKETS, couchbase, fill, ours
from tests.replication.test_tap_couchbase import options_of, seen
from tests.replication.writers import Writer, check, stop_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["couchbase", "ours"]

VB = 1

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PROGRAM, reason="no HEADRACE_COUCHBASE_SERVER")]


def never() -> bool:
    """Nobody stops it."""
    return False


def states(source: Server, target: Server) -> tuple[State | None, State | None]:
    """What the vbucket is at both."""
    with Vbuckets(source) as one, Vbuckets(target) as two:
        return one.state(VB), two.state(VB)


def test_moved(couchbase: Server, ours: Server):
    """The target has every item and owns it; the source is dead; to run it again does nothing."""
    with couchbase.connect() as items:
        fill(items, 0, 300)
    before = seen(couchbase, VB)
    told: list[Step] = []
    moved = TapMove(options_of(couchbase), ours, VB, tell=lambda step, _: told.append(step)).run(never)
    assert states(couchbase, ours) == (State.DEAD, State.ACTIVE)
    assert {key: each for key, each in seen(ours, VB).items() if each[0] == "mutation"} == {
        key: each for key, each in before.items() if each[0] == "mutation"
    }
    assert (moved.already, moved.attempts) == (False, 1)
    assert told == [Step.PREPARED, Step.COPYING, Step.PENDING, Step.ACTIVE, Step.MOVED]
    again = TapMove(options_of(couchbase), ours, VB).run(never)
    assert again.already


def test_with_writes_going_on(couchbase: Server, ours: Server):
    """Under load: what was promised is there."""
    writers = [Writer((couchbase, ours), VB, f"writer{number}") for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        end = time.monotonic() + 30
        while any(len(writer.promises) < 50 for writer in writers):
            assert time.monotonic() < end
            time.sleep(0.01)
        TapMove(options_of(couchbase), ours, VB).run(never)
        seen_now = [len(writer.promises) for writer in writers]
        while any(len(writer.promises) < count + 5 for writer, count in zip(writers, seen_now, strict=True)):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        stop_all(writers)
    assert states(couchbase, ours) == (State.DEAD, State.ACTIVE)
    check(writers, ours, VB)


def test_what_is_refused(couchbase: Server, ours: Server):
    """Two owners with changes of their own, a vbucket that neither owns, and a server to itself."""
    with couchbase.connect() as items:
        fill(items, 0, 50)
    with ours.connect() as items:
        fill(items, 1000, 1050)
    with pytest.raises(RefusedError, match="and so does"):
        TapMove(options_of(couchbase), ours, VB).run(never)
    with Vbuckets(couchbase) as one, Vbuckets(ours) as two:
        one.set_state(VB, State.DEAD)
        two.set_state(VB, State.DEAD)
    with pytest.raises(RefusedError, match="neither owns vbucket 1"):
        TapMove(options_of(couchbase), ours, VB).run(never)
    with pytest.raises(RefusedError, match="to itself"):
        TapMove(options_of(ours), ours, VB).run(never)
    TapMove(options_of(couchbase), ours, VB, force=True).run(never)
    assert states(couchbase, ours) == (State.DEAD, State.ACTIVE)


def test_never_moved_here(couchbase: Server, ours: Server):
    """A target that owns an empty vbucket has not got the one that the source gave up to somebody else."""
    with couchbase.connect() as items:
        fill(items, 0, 50)
    with Vbuckets(couchbase) as one:
        one.set_state(VB, State.DEAD)
    with pytest.raises(RefusedError, match="was not moved here"):
        TapMove(options_of(couchbase), ours, VB).run(never)


class Couchbase:
    """A server that is killed and started again on its data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def server(self) -> Server:
        """How to reach it."""
        return server_at(HOST, self.port)

    def start(self) -> None:
        """Start it."""
        self.process = subprocess.Popen(
            [PROGRAM, str(self.port), str(self.folder), str(VBUCKETS)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready")

    def kill(self) -> None:
        """End it as a crash does."""
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.terminate()
            self._wait()

    def _wait(self) -> None:
        assert self.process is not None
        process, self.process = self.process, None
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def killable(folder: Path) -> Iterator[Couchbase]:
    """Run one, and end it."""
    one = Couchbase(folder)
    try:
        yield one
    finally:
        with suppress(ProcessLookupError):
            one.stop()


@pytest.mark.parametrize("at", [Step.PREPARED, Step.COPYING, Step.PENDING, Step.ACTIVE])
def test_the_source_is_killed(tmp_path: Path, at: Step):
    """Whenever the source is killed, one more run with both servers there ends with one owner, which has every item."""
    with killable(tmp_path / "db") as source, Node(vbuckets=VBUCKETS) as node:
        target = server_at(node.host, node.port)
        with source.server.connect() as items:
            for number in range(400):
                items.set(b"key%d" % number, b"x" * 200)
        on_disk(source.port, tmp_path)
        kept = seen(source.server, VB)
        killed: list[Step] = []

        def tell(step: Step, _: str) -> None:
            if step is at and not killed:
                killed.append(step)
                source.kill()
                source.start()

        result: Any = None
        with suppress(NotMovedError, UnresolvedError, RefusedError):
            result = TapMove(options_of(source.server), target, VB, tell=tell).run(never)
        assert killed == [at]
        if result is None:
            result = TapMove(options_of(source.server), target, VB).run(never)
        assert states(source.server, target) == (State.DEAD, State.ACTIVE)
        assert seen(target, VB).keys() == kept.keys()
        with KvConnection(HOST, source.port) as items, pytest.raises(StatusError):
            items.set(next(iter(kept)), b"late")


@pytest.mark.parametrize("at", [Step.COPYING, Step.PENDING, Step.ACTIVE])
def test_the_run_is_stopped(couchbase: Server, ours: Server, at: Step):
    """A run that is stopped at any step leaves one owner, with every item; the next run moves it."""
    with couchbase.connect() as items:
        fill(items, 0, 200)
    kept = seen(couchbase, VB)
    stopped: list[Step] = []
    job = TapMove(options_of(couchbase), ours, VB, tell=lambda step, _: stopped.append(step) if step is at else None)
    with suppress(NotMovedError):
        job.run(lambda: bool(stopped))
    assert states(couchbase, ours).count(State.ACTIVE) == 1
    TapMove(options_of(couchbase), ours, VB).run(never)
    assert states(couchbase, ours) == (State.DEAD, State.ACTIVE)
    live = {key for key, each in kept.items() if each[0] == "mutation"}
    assert {key for key, each in seen(ours, VB).items() if each[0] == "mutation"} == live
