"""The moments that load alone does not meet: a first start, a writer that dies alone, a second node."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from headrace.ids import Seqno, VBucketId
from headrace.wire.catalogue import Get, SeqnoPersistence, Set
from headrace.wire.codes import Status
from tests.crash.load import Client, Style, Watcher, connect, drive
from tests.crash.nodes import Launcher, children_of, send_signal, wait_gone
from tests.crash.raw import GoneError, Raw
from tests.crash.rounds import VBUCKETS, rounds
from tests.processes import start_node

if TYPE_CHECKING:
    from pathlib import Path

WRITER_KILLS = 4
FIRST_STARTS = 12
RECOVERY_S = 30.0


def test_a_first_start_that_is_killed_can_be_repeated(tmp_path: Path) -> None:
    """A node that dies while it makes its files leaves a directory that the next start makes whole."""
    draw = random.Random(5)
    arguments = ["--data", str(tmp_path / "data"), "--vbuckets", str(VBUCKETS)]
    with Launcher(tmp_path) as launcher:
        for attempt in range(FIRST_STARTS):
            node = launcher.start(arguments)
            try:
                time.sleep(draw.uniform(0.0, 0.4 if attempt % 3 else 0.1))
            finally:
                node.kill()
        node = launcher.start(arguments)
        try:
            node.wait_ready()
            with Raw(node.port) as raw:
                logs = raw.stats(b"failovers")
                for number in range(VBUCKETS):
                    entries = int(logs[f"vb_{number}:num_entries"])
                    assert 1 <= entries <= FIRST_STARTS + 1
                    assert {logs[f"vb_{number}:{at}:seq"] for at in range(entries)} == {"0"}
                    raw.ask(Set(key=b"k", value=b"v", vbucket=VBucketId(number)))
            node.stop()
        finally:
            node.discard()


@pytest.mark.slow
def test_a_writer_that_dies_alone_is_replaced(tmp_path: Path) -> None:
    """The node lives on without its writer, starts another, and loses nothing that it acknowledged."""
    with rounds(tmp_path, seed=11) as run:
        run.begin("clean")
        node = run.node
        assert node is not None
        draw = random.Random(11)
        style = Style(clients=3, window=16, value_bytes_max=2000, vbuckets=tuple(range(VBUCKETS)), may_be_refused=True)
        clients = [Client(number, node.port, run.models, 0) for number in range(style.clients)]
        watcher = Watcher(connect(node.port), run.models)
        watcher.socket.setblocking(False)
        writers = set()
        for _ in range(WRITER_KILLS):
            drive(draw, style, clients, watcher, seconds=draw.uniform(0.1, 0.4))
            (writer,) = _writer_of(node.pid)
            writers.add(writer)
            send_signal(writer, signal.SIGKILL)
            drive(draw, style, clients, watcher, seconds=0.5)
            _await_success(node.port)
        assert len(writers) == WRITER_KILLS, "each time there was another one"
        node.stop()
        run.finish(clients, watcher, style)
        assert run.sums["changes answered"] > 1000
        assert run.sums["changes lost"] == 0
        assert run.sums["vbuckets branched"] == 0


def _await_success(port: int) -> None:
    """Wait until the node acknowledges again: it tries the disk once a second."""
    end = time.monotonic() + RECOVERY_S
    with Raw(port) as raw:
        while (trouble := raw.stats().get("ep_disk_trouble")) is not None:
            assert time.monotonic() < end, trouble
            time.sleep(0.05)


def _writer_of(pid: int) -> list[int]:
    end = time.monotonic() + 20
    while not (found := children_of(pid)) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def test_a_clean_stop_without_a_writer_starts_another(tmp_path: Path) -> None:
    """A node whose writer has died, and which is told to stop before it noticed, loses nothing all the same."""
    arguments = ["--data", str(tmp_path / "data"), "--vbuckets", "1"]
    with Launcher(tmp_path) as launcher:
        node = launcher.start(arguments).wait_ready()
        try:
            with Raw(node.port) as raw:
                raw.ask(Set(key=b"early", value=b"<early>"))
                raw.ask(SeqnoPersistence(vbucket=VBucketId(0), seqno=Seqno(1)))
                send_signal(node.writer_pid, signal.SIGKILL)
                wait_gone(node.writer_pid)
                raw.ask(Set(key=b"late", value=b"<late>"))
            node.stop()
            node = launcher.start(arguments).wait_ready()
            with Raw(node.port) as raw:
                assert raw.ask(Get(key=b"late")).value == b"<late>"
                assert raw.stats(b"failovers")["vb_0:num_entries"] == "1"
            node.stop()
        finally:
            node.discard()


@pytest.mark.slow
def test_a_writer_that_dies_takes_no_write_that_was_said_to_be_on_disk(tmp_path: Path) -> None:
    """With every write synced, a success is on disk whatever became of the writer; a new one takes over unnoticed."""
    arguments = ["--data", str(tmp_path / "data"), "--vbuckets", "1", "--sync", "every-write"]
    acknowledged: dict[bytes, bytes] = {}
    refused = 0
    with Launcher(tmp_path) as launcher:
        node = launcher.start(arguments).wait_ready()
        try:
            for round_ in range(3):
                writer = _writer_of(node.pid)[0]
                raw = Raw(node.port)
                end = time.monotonic() + 1.6
                for number in range(100_000):
                    key = b"%d-%d" % (round_, number)
                    if number == 20 + round_:
                        send_signal(writer, signal.SIGKILL)
                    try:
                        frame = raw.send(Set(key=key, value=b"<%s>" % key))
                    except GoneError:
                        raw.socket.close()
                        raw = Raw(node.port)
                        continue
                    if frame.header.specific == Status.SUCCESS:
                        acknowledged[key] = b"<%s>" % key
                    else:
                        assert frame.header.specific == Status.TEMPORARY_FAILURE, frame
                        refused += 1
                        time.sleep(0.01)
                    if time.monotonic() > end:
                        break
                raw.socket.close()
            writer = _writer_of(node.pid)[0]
            node.kill()
            wait_gone(writer)
            node = launcher.start(arguments).wait_ready()
            with Raw(node.port) as raw:
                for key, value in acknowledged.items():
                    assert raw.send(Get(key=key)).value == value, key
            node.stop()
        finally:
            node.discard()
    assert not refused
    assert len(acknowledged) > 60


@pytest.mark.slow
def test_a_second_node_is_turned_away(tmp_path: Path) -> None:
    """Two nodes on one directory: the second says which process has it and ends, and the first goes on."""
    first = start_node("--data", str(tmp_path / "data"), "--vbuckets", "1")
    try:
        second = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "headrace",
                "node",
                "--port",
                "0",
                "--data",
                str(tmp_path / "data"),
                "--vbuckets",
                "1",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            sets = 0
            with Raw(first.port) as raw:
                while second.poll() is None:
                    raw.ask(Set(key=b"k", value=b"<%d>" % sets))
                    sets += 1
                    time.sleep(0.02)
                said, complained = second.communicate(timeout=30)
                assert second.returncode == 1, complained
                assert str(first.pid) in complained
                assert str(tmp_path / "data") in complained
                assert "Traceback" not in complained
                assert not said
                assert raw.send(Get(key=b"k")).value == b"<%d>" % (sets - 1)
        finally:
            second.kill()
            second.communicate()
        assert first.stop() == 0
    finally:
        if first.running:
            first.kill()
        first.close()
