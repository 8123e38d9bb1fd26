"""Two node processes and a mediator, any of which is killed at a moment that a seed chooses.

Writers go on all the time and remember what they were promised. After each round `headrace move` is run again until it
is done; then exactly one node owns the vbucket, and it has everything that was promised.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from headrace.cli.connect import EXIT_UNREACHABLE
from headrace.history import State
from headrace.pipelines.servers import Server, Vbuckets
from tests.processes import start_node
from tests.replication.nodes import copy_once, dump, eventually, is_equal, server_at
from tests.replication.writers import Writer, check, stop_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VB = 1
VBUCKETS = 2
ROUNDS_S = float(os.environ.get("HEADRACE_KILLS_S", "12"))
"""How long each test goes on; a longer run finds more."""
SEED = int(os.environ.get("HEADRACE_KILLS_SEED", "1"))
RUN_S = 60
STEPS = ("copying", "pending", "active", "moved", "")
"""What a mediator says before something is killed; the empty word is said at once."""


class Pair:
    """Two nodes with files of their own, as processes and as servers."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.processes = [
            start_node("--data", str(folder / name), "--vbuckets", str(VBUCKETS), *options) for name in ("one", "two")
        ]
        self.servers = [server_at(process.host, process.port) for process in self.processes]
        with Vbuckets(self.servers[1]) as second:
            second.set_state(VB, State.REPLICA)  # a new node owns every vbucket: writers would find two owners

    def kill(self, index: int, rest_s: float) -> None:
        """Kill one, and start it again after a while."""
        self.processes[index].kill()
        time.sleep(rest_s)
        self.processes[index].start()

    def close(self) -> None:
        """End both."""
        for process in self.processes:
            if process.running:
                process.kill()
            process.close()

    def states(self) -> list[State | None]:
        """What the vbucket is at both."""
        found = []
        for server in self.servers:
            with Vbuckets(server) as vbuckets:
                found.append(vbuckets.state(VB))
        return found


@contextmanager
def running(pair: Pair, writers: list[Writer]) -> Iterator[None]:
    """Write for as long as a `with` lasts."""
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop_all(writers)
        pair.close()


def command(name: str, *arguments: str, source: Server, target: Server) -> subprocess.Popen[str]:
    """Start a command that joins two servers."""
    words = [sys.executable, "-m", "headrace", name, "--from", str(source), "--to", str(target), *arguments]
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    """Read what a process says up to a word, or to its end."""
    assert process.stderr is not None
    while word and (line := process.stderr.readline()):
        if line.startswith(word):
            return


def finish(process: subprocess.Popen[str]) -> int:
    """Wait for a process to end by itself."""
    try:
        process.communicate(timeout=RUN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said = process.communicate()[1]
        raise AssertionError(f"{process.args!r} hangs: {said!r}") from None
    return process.returncode


def move_for_sure(source: Server, target: Server) -> None:
    """Run the command until it is done, as a person would."""
    codes: list[tuple[int, str]] = []
    for _ in range(5):
        forced = ["--force"] if codes and "--force gives it back" in codes[-1][1] else []
        mover = command("move", "--vbucket", str(VB), *forced, source=source, target=target)
        said = mover.communicate(timeout=RUN_S)[1]
        codes.append((mover.returncode, said))
        if mover.returncode == 0:
            return
    raise AssertionError(f"never moved: {codes}")


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "options"), [(SEED, ("--sync", "every-write")), (SEED + 1, ())])
def test_moves_survive(seed: int, options: tuple[str, ...], tmp_path: Path):
    """Source, target or mediator killed at any step: no promised write is lost, and there is one owner in the end."""
    chance = Random(seed)
    pair = Pair(tmp_path, *options)
    writers = [Writer(pair.servers, VB, f"writer{number}", asks=not options) for number in range(3)]
    owner, rounds = 0, 0
    with running(pair, writers):
        end = time.monotonic() + ROUNDS_S
        while time.monotonic() < end:
            source, target = pair.servers[owner], pair.servers[1 - owner]
            step, victim = chance.choice(STEPS), chance.randrange(3)
            what = f"seed {seed}, round {rounds}: after {step!r} kill {victim} ({owner} owns)"
            mover = command("move", "--vbucket", str(VB), source=source, target=target)
            wait_for(mover, step)
            time.sleep(chance.uniform(0, 0.06) if step else chance.uniform(0, 0.8))
            if victim == 2:
                mover.kill()
            else:
                pair.kill(victim, chance.uniform(0, 0.5))
            finish(mover)
            move_for_sure(source, target)
            states = pair.states()
            assert states[1 - owner] is State.ACTIVE, f"{what}: {states}"
            assert states[owner] is not State.ACTIVE, f"{what}: {states}"
            check(writers, target, VB)
            owner, rounds = 1 - owner, rounds + 1
        stop_all(writers)
        check(writers, pair.servers[owner], VB)
    assert rounds > 1
    assert sum(len(writer.promises) for writer in writers) > 20


@pytest.mark.slow
def test_replicas_survive(tmp_path: Path):
    """Source, target or mediator of a replication killed: in the end, the copy equals the original."""
    chance = Random(SEED + 2)
    pair = Pair(tmp_path)
    source, target = pair.servers
    writers = [Writer([source], VB, f"writer{number}", asks=True) for number in range(2)]
    job = command("replicate", source=source, target=target)
    rounds = 0
    with running(pair, writers):
        end = time.monotonic() + ROUNDS_S
        try:
            while time.monotonic() < end:
                time.sleep(chance.uniform(0, 1.0))
                victim = chance.randrange(3)
                if victim == 2:
                    job.kill()
                    finish(job)
                    job = command("replicate", source=source, target=target)
                else:
                    pair.kill(victim, chance.uniform(0, 0.5))
                job = _again(job, source, target)
                rounds += 1
            stop_all(writers)
            job = _again(job, source, target)
            eventually(lambda: is_equal(source, target, range(VBUCKETS)), "the copy catches up")
        finally:
            job.terminate()
            code = finish(job)
        assert code == 0
        copy_once(source, target)
        assert dump(source, VB) == dump(target, VB)
        check(writers, source, VB)
    assert rounds > 1


def _again(job: subprocess.Popen[str], source: Server, target: Server) -> subprocess.Popen[str]:
    """A job whose first look found a node away has ended, and said so; start it again."""
    if job.poll() is None:
        return job
    said = job.communicate()[1]
    assert job.returncode == EXIT_UNREACHABLE, said
    return command("replicate", source=source, target=target)
