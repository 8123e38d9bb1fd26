"""`headrace chaos` as people and scripts use it, at a node that is a process of its own."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from headrace.cli.chaos import EXAMPLES
from headrace.client import KvConnection
from headrace.protocol.faults import FAULTS
from headrace.wire.catalogue import FailoverLog, Rollback
from tests.chaos.seen import begun, keys_of
from tests.cli.tools import run
from tests.processes import Server, start_node
from tests.streams.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A node as a process, with data that outlive it."""
    running = start_node("--data", str(tmp_path / "data"), "--vbuckets", "8")
    yield running
    if running.running:
        assert running.stop() == 0
    running.close()


def chaos(server: Server, *arguments: str) -> str:
    """Run the command and give what it prints."""
    done = run("chaos", *arguments, "--connect", f"{server.host}:{server.port}")
    assert done.exit_code == 0, done.stderr
    return done.stdout


def write(server: Server, vbucket: int, count: int) -> None:
    """Set so many items of a vbucket."""
    with KvConnection(server.host, server.port) as connection:
        for key, _ in zip(keys_of(vbucket, 8), range(count), strict=False):
            connection.set(key.encode(), b"value")


def test_what_was_done_is_printed(server: Server):
    """A line for each thing that it was done to; or one JSON object with all of it."""
    write(server, 1, 12)
    words = chaos(server, "failover", "--vbucket", "1", "--lost", "5").split()
    assert " ".join(words[:-1]) == "vbucket 1: state active, from 12, to 7, lost 5, vbuuid"
    told = json.loads(chaos(server, "rollback", "--vbucket", "0-1", "--to", "3", "--output", "json"))
    assert told["fault"] == "rollback"
    assert [(effect["vbucket"], effect["to"]) for effect in told["effects"]] == [(0, 0), (1, 3)]
    assert chaos(server, "pause") == "bucket default: persistence paused\n"
    assert chaos(server, "calm") == "bucket default: persistence on\n"


def test_exit_codes_tell_kinds(server: Server):
    """1 is a node that refuses, 2 a command line that is wrong, 69 no node; a sentence says more."""
    at = f"{server.host}:{server.port}"
    refused = run("chaos", "cut", "--connect", at)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "no DCP or TAP connection is open" in refused.stderr
    for wrong in (["refuse", "--status", "nonsense"], ["slow", "--bytes-per-second", "0"], ["failover"], ["explode"]):
        assert run("chaos", *wrong, "--connect", at).exit_code == 2
    assert run("chaos", "show", "--connect", "127.0.0.1:1", "--timeout", "2").exit_code == 69


def test_paused_then_crashed_is_lost_and_told(server: Server):
    """The way to lose exactly what was written since: a consumer that saw it is told to go back to the disk."""
    write(server, 2, 6)
    with Reader(server) as reader:  # type: ignore[arg-type]  # it looks at host and port
        vbuuid = begun(reader, 2, 6)
        for _ in range(500):
            if json.loads(chaos(server, "pause", "--output", "json")) and on_disk(server) == 6:
                break
            chaos(server, "resume")
            time.sleep(0.01)
        write(server, 2, 4)
        assert reader.items(4)[-1].by_seqno == 10
        began = time.monotonic()
        assert chaos(server, "crash").endswith(": is killed\n")
        assert reader.ends()
    while server.running:
        assert time.monotonic() - began < 10
    server.kill()
    server.start()
    with Reader(server) as reader:  # type: ignore[arg-type]
        back = reader.request(2, 10, vbuuid=vbuuid)
        assert isinstance(back, Rollback)
        assert back.seqno == 6
        log = reader.request(2, 6, vbuuid=vbuuid)
        assert isinstance(log, FailoverLog)
        assert [entry.seqno for entry in log.entries] == [6, 0]


def on_disk(server: Server) -> int:
    """The persisted seqno of vbucket 2."""
    from headrace.ids import VBucketId  # noqa: PLC0415
    from headrace.wire.catalogue import GetFailoverLog, Observed, ObserveSeqno  # noqa: PLC0415

    with KvConnection(server.host, server.port) as connection:
        log = connection.request(GetFailoverLog(vbucket=VBucketId(2)))
        assert isinstance(log, FailoverLog)
        told = connection.request(ObserveSeqno(vbucket=VBucketId(2), vbuuid=log.entries[0].vbuuid))
        assert isinstance(told, Observed)
        return told.persisted_seqno


def test_every_fault_has_help_with_an_example():
    """The help of each command has its sentence, its options and examples that name it."""
    assert EXAMPLES.keys() == FAULTS.keys()
    for name, fault in FAULTS.items():
        shown = " ".join(run("chaos", name, "--help").stdout.split())
        assert fault.sentence in shown
        assert fault.consumer in shown
        for example in EXAMPLES[name]:
            assert example.startswith(f"headrace chaos {name}")
            assert example in shown


def test_examples_run(server: Server):
    """Every example does what it says, or is refused only since no consumer is there."""
    for name, examples in EXAMPLES.items():
        if name == "crash":
            continue
        for example in examples:
            words = [word.strip("'") for word in example.split()[1:]]
            done = run(*words, "--connect", f"{server.host}:{server.port}")
            assert done.exit_code == 0 or "connection is open whose name is" in done.stderr, (example, done.stderr)
