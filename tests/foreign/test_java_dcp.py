"""Couchbase's Java DCP client, unmodified from Maven Central, streams from our node; held against what was written."""

from __future__ import annotations

import random
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from headrace.client import KvConnection, Loader, LoadRow
from tests.foreign.conftest import VBUCKETS
from tests.foreign.witness import PASSWORD, Book, Client, Witness, java_program, still_there, users_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.processes import Server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="a Java development kit is not installed"),
    pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is not installed"),
]

WINDOW_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def witness() -> Iterator[Witness]:
    """The program, compiled once and running for all tests of this file."""
    program = Witness(java_program())
    yield program
    program.close()


def test_all_from_the_beginning_and_then_live(client: Client, server: Server):
    """Every item comes as it was written, then every later change of it, each once."""
    with Book(server) as book:
        book.write_some()
        connected = client.connect(server, flow_bytes=WINDOW_BYTES)
        assert connected["vbuckets"] == VBUCKETS
        client.do("stream")
        client.wait_for(book.high)
        book.check(client.changes)
        assert len(client.changes) == len(book.newest)  # nothing between the two: each key once
        book.write_some(seed=1)
        book.write_some(seed=2)
        client.wait_for(book.high)
        book.check(client.changes)
    assert not client.of("failure", "rollback", "stream end")


def test_from_disk_to_now(client: Client, start: Callable[..., Server], tmp_path: Path):
    """What a restarted node has on disk alone comes whole, and streams that were asked up to now end there."""
    server = start("--data", str(tmp_path))
    with Book(server) as book:
        book.write_some()
        server.restart()
        client.connect(server, flow_bytes=WINDOW_BYTES)
        client.do("stream", to="NOW")
        client.wait(lambda: len(client.of("stream end")) == VBUCKETS, "the end of every stream")
        book.check(client.changes)
    assert len(client.changes) == len(book.newest)
    assert {event["reason"] for event in client.of("stream end")} == {"OK"}
    assert not client.of("failure", "rollback")


@pytest.mark.parametrize(("vbuckets", "times"), [(64, 8), (1024, 2)])
def test_all_streams_come_to_their_end(
    witness: Witness, start: Callable[..., Server], tmp_path: Path, vbuckets: int, times: int
):
    """Of many streams that all have to wait for their turn at the disk none is forgotten."""
    server = start("--data", str(tmp_path), vbuckets=vbuckets)
    with KvConnection(server.host, server.port) as kv:
        loader = Loader(kv, refused=lambda row, error: pytest.fail(f"{row.key!r}: {error}"))
        for number in range(20_000):
            loader.add(LoadRow("", b"key-%d" % number, b"x" * (number % 1000)))
        loader.finish()
    server.restart()
    for _ in range(times):
        drained = witness.client().do("drain", host=server.host, port=server.port, flow_bytes=1 << 20, seconds_max=30)
        assert (drained["unended"], drained["mutations"], drained["deletions"]) == (0, 20_000, 0)


def test_from_now(client: Client, server: Server):
    """A client that wants what comes from now on gets that and nothing older."""
    with Book(server) as book:
        book.write_some(seed=1)
        old = book.newest
        client.connect(server, flow_bytes=WINDOW_BYTES)
        assert {int(vb): seqno for vb, seqno in client.do("seqnos")["seqnos"].items()} == {
            **dict.fromkeys(range(VBUCKETS), 0),
            **book.high,
        }
        client.do("stream", **{"from": "NOW"})
        book.newest = {}
        book.write_some(seed=2)
        client.wait_for(book.high)
        book.check(client.changes)
    assert not old.keys() & {change["key"] for change in client.changes}


@pytest.mark.parametrize("on_disk", [True, False], ids=["disk", "memory"])
def test_a_small_window_does_not_stall(client: Client, start: Callable[..., Server], tmp_path: Path, on_disk: bool):
    """Over 10 MiB of one vbucket pass a window of 64 KiB, with values that are larger than the window."""
    server = start("--data", str(tmp_path), vbuckets=1)
    with Book(server) as book:
        drawn, total, number = random.Random(3), 0, 0
        while total < 10 * 1024 * 1024:
            value = drawn.randbytes(drawn.choice((100, 1000, 8000, 30_000, 200_000)))
            book.set(f"key-{number}", value)
            total, number = total + len(value), number + 1
        if on_disk:
            server.restart()
        client.connect(server, flow_bytes=WINDOW_BYTES)
        client.do("stream")
        client.wait_for(book.high)
        book.check(client.changes)
    assert len(client.changes) == number
    assert not client.of("failure", "rollback", "stream end")


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "running"])
def test_resume_from_the_state_that_the_client_saved(
    witness: Witness, start: Callable[..., Server], tmp_path: Path, restarted: bool
):
    """A client that saved its state goes on with the next change, also at a node that was restarted."""
    server = start("--data", str(tmp_path))
    with Book(server) as book:
        book.write_some(seed=1)
        with witness.client() as first:
            first.connect(server, flow_bytes=WINDOW_BYTES)
            first.do("stream")
            first.wait_for(book.high)
            state = first.do("state")["state"]
        if restarted:
            server.restart()
            book.reconnect()
        book.write_some(seed=2)
        with witness.client() as second:
            second.connect(server, flow_bytes=WINDOW_BYTES)
            second.do("recover", state=state)
            second.wait_for(book.high)
            book.check(first.changes + second.changes)
    assert not second.of("failure", "rollback", "stream end")


def test_resume_from_inside_a_snapshot(witness: Witness, server: Server):
    """An application that stopped anywhere goes on from the last change that it has, nothing twice and nothing lost."""
    with Book(server) as book:
        book.write_some()
        with witness.client() as first:
            first.connect(server, flow_bytes=WINDOW_BYTES)
            first.do("stream")
            first.wait_for(book.high)
        drawn = random.Random(4)
        had = drawn.randrange(len(first.changes))
        # The client sends a request before it listens for the answer: on a busy machine the first changes of a stream
        # come with the uuid 0, and the failover log after them.
        uuids = {log["vbucket"]: log["entries"][0][0] for log in first.of("failover log")}
        offsets = {vb: {**change, "vbuuid": uuids[vb]} for change in first.changes[:had] for vb in [change["vbucket"]]}
        had_up_to = {vb: change["seqno"] for vb, change in offsets.items()}
        nothing = {"vbuuid": "0", "seqno": 0, "snapshot_start": 0, "snapshot_end": 0}
        wanted = [{**offsets.get(vb, nothing), "vbucket": vb} for vb in range(VBUCKETS)]
        with witness.client() as second:
            second.connect(server, flow_bytes=WINDOW_BYTES)
            second.do("resume", offsets=wanted)
            second.wait_for({vb: seqno for vb, seqno in book.high.items() if had_up_to.get(vb) != seqno})
            book.check(first.changes[:had] + second.changes)
    assert len(first.changes[:had] + second.changes) == len(book.newest)
    assert not second.of("failure", "rollback")


def test_pause_and_go_on(client: Client, server: Server):
    """Streams that the client closed are opened again where they were."""
    with Book(server) as book:
        book.write_some(seed=1)
        client.connect(server, flow_bytes=WINDOW_BYTES)
        client.do("stream")
        client.wait_for(book.high)
        state = client.do("state")["state"]
        client.do("stop")
        book.write_some(seed=2)
        client.do("recover", state=state)
        client.wait_for(book.high)
        book.check(client.changes)
    assert not client.of("failure", "rollback")


def test_a_restart_is_bridged(client: Client, start: Callable[..., Server], tmp_path: Path):
    """A client whose node goes away and comes back connects again by itself and misses nothing."""
    server = start("--data", str(tmp_path))
    with Book(server) as book:
        book.write_some(seed=1)
        client.connect(server, flow_bytes=WINDOW_BYTES)
        client.do("stream")
        client.wait_for(book.high)
        server.restart()
        book.reconnect()
        book.write_some(seed=2)
        client.wait_for(book.high)
        book.check(client.changes)
    assert not client.of("failure", "rollback")


def test_rollback_after_a_crash_that_lost_changes(client: Client, start: Callable[..., Server], tmp_path: Path):
    """A client that saw changes which a crash took back is told so, per vbucket, and then gets what there is."""
    server = start("--data", str(tmp_path))
    with Book(server) as book:
        book.write_some(seed=1)
        book.persist()
        client.connect(server, flow_bytes=WINDOW_BYTES)
        client.do("stream")
        client.wait_for(book.high)
        kept, kept_high = book.copy()
        book.stop_persistence()
        book.write_some(seed=1)
        book.write_some(seed=2)
        client.wait_for(book.high)
        lost_high = book.high
        server.kill()
        server.start()
        book.reconnect()
        book.newest, book.high = dict(kept), dict(kept_high)
        book.write_some(seed=3)
        rolled = {vb for vb, seqno in lost_high.items() if seqno > kept_high.get(vb, 0)}
        client.wait(lambda: {event["vbucket"] for event in client.of("rollback")} >= rolled, f"a rollback of {rolled}")
        client.wait(lambda: book.agrees_with(still_there(client.events)), "what was written after the crash")
    for event in client.of("rollback"):
        assert event["seqno"] <= kept_high.get(event["vbucket"], 0)
    assert not client.of("failure")


def test_mitigated_rollbacks(client: Client, witness: Witness, start: Callable[..., Server], tmp_path: Path):
    """A client that wants only what no crash can take back gets changes when they are on disk, and not before."""
    server = start("--data", str(tmp_path))
    with Book(server) as book, witness.client() as eager:
        book.write_some(seed=1)
        client.connect(server, flow_bytes=10 * 1024 * 1024, mitigate_ms=20)
        client.do("stream")
        client.wait_for(book.high)
        book.check(client.changes)
        eager.connect(server, flow_bytes=WINDOW_BYTES)
        eager.do("stream")
        book.stop_persistence()
        before = len(client.changes)
        book.write_some(seed=2)
        eager.wait_for(book.high)
        time.sleep(0.5)  # the time of many looks at the disk
        assert len(client.changes) == before
        book.start_persistence()
        client.wait_for(book.high)
        book.check(client.changes)
    assert not client.of("failure", "rollback", "stream end")


def test_mitigated_rollbacks_need_none(client: Client, start: Callable[..., Server], tmp_path: Path):
    """What such a client was given before a crash it keeps: what the crash took back it never had."""
    server = start("--data", str(tmp_path))
    with Book(server) as book:
        book.write_some(seed=1)
        client.connect(server, flow_bytes=10 * 1024 * 1024, mitigate_ms=20)
        client.do("stream")
        client.wait_for(book.high)
        book.persist()
        kept, high = book.copy()
        book.stop_persistence()
        book.write_some(seed=2)
        server.kill()
        server.start()
        book.reconnect()
        book.newest, book.high = kept, high
        book.write_some(seed=3)
        client.wait(lambda: book.agrees_with(still_there(client.events)), "what was written after the crash")
        book.check(client.changes)
    assert not client.of("failure", "rollback")


@pytest.mark.parametrize("compression", ["DISABLED", "ENABLED", "FORCED"])
def test_compression(client: Client, server: Server, compression: str):
    """Values arrive as they are, whether they were stored compressed or shall be compressed for the way."""
    long, packed = b"long " * 1000, b"packed " * 1000
    with Book(server) as book:
        book.set("plain", long)
        book.set_compressed("stored compressed", packed)
        book.set("short", b"x")
        client.connect(server, compression=compression)
        client.do("stream")
        client.wait_for(book.high)
        book.check(client.changes)


def test_expirations(client: Client, server: Server):
    """An item whose time has come is an expiration where the client asked for that message."""
    with Book(server) as book:
        client.connect(server, flow_bytes=WINDOW_BYTES, controls={"enable_expiry_opcode": "true"})
        client.do("stream")
        book.set("short", b"x", expiry=book.in_a_second())
        client.wait_for(book.high)
        client.wait(lambda: len(client.changes) == 2, "the end of the item")
    assert [change["event"] for change in client.changes] == ["mutation", "expiration"]


def test_keys_without_values(client: Client, server: Server):
    """A client that wants no values gets none, and all keys."""
    with Book(server) as book:
        book.write_some()
        client.connect(server, no_value=True, xattrs=True)
        client.do("stream")
        client.wait_for(book.high)
        for entry in book.newest.values():
            entry.update({"bytes": 0, "crc32": 0})
        book.check(client.changes)


def test_a_client_that_knows_collections(client: Client, server: Server):
    """The node has no collections: a client that could use them does without."""
    with Book(server) as book:
        book.write_some()
        client.connect(server, flow_bytes=WINDOW_BYTES, collections=True)
        client.do("stream")
        client.wait_for(book.high)
        book.check(client.changes)
    assert not client.of("failure", "rollback", "stream end")


def test_an_idle_connection_is_kept(client: Client, server: Server):
    """The noops of a quiet stream are answered, so that it lives on and goes on."""
    with Book(server) as book:
        client.connect(server, flow_bytes=WINDOW_BYTES, controls={"set_noop_interval": 1})
        client.do("stream")
        time.sleep(3.5)  # three noops; a client that answered none would be gone
        book.set("after", b"x")
        client.wait_for(book.high)
        book.check(client.changes)
    assert len(client.of("failover log")) == VBUCKETS  # as many streams as were opened at first


def test_users(witness: Witness, start: Callable[..., Server], tmp_path: Path):
    """With users, the client proves by SCRAM who it is and streams; with a wrong password it is not let in."""
    server = start("--users", str(users_file(tmp_path, writer="write", reader="stream")))
    with Book(server, username="writer", password=PASSWORD) as book, witness.client() as client:
        book.write_some()
        client.connect(server, user="reader", password=PASSWORD, flow_bytes=WINDOW_BYTES)
        client.do("stream")
        client.wait_for(book.high)
        book.check(client.changes)
        stranger = {"user": "reader", "password": "wrong", "bootstrap_ms": 500}
        refused = witness.client().ask("connect", host=server.host, port=server.port, **stranger)
        assert refused["event"] == "failed"
        assert "a login was refused" in server.said
