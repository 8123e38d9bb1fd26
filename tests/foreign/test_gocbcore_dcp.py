"""gocbcore, on which Couchbase's tools and connectors in Go rest, streams from our node as Couchbase made it."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.foreign.conftest import VBUCKETS
from tests.foreign.witness import PASSWORD, Book, Client, Witness, go_program, still_there, users_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.processes import Server

WINDOW_BYTES = 64 * 1024


def _go_version() -> tuple[int, int]:
    if shutil.which("go") is None:
        return 0, 0
    said = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_go_version() < (1, 22), reason="Go 1.22 or later is not installed"),
]


@pytest.fixture(scope="module")
def witness() -> Iterator[Witness]:
    """The program, compiled once and running for all tests of this file."""
    program = Witness(go_program())
    yield program
    program.close()


def test_all_from_the_beginning_and_then_live(client: Client, server: Server):
    """Every item comes as it was written, then every later change of it, each once."""
    with Book(server) as book:
        book.write_some()
        connected = client.connect(server)
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
        client.connect(server)
        seqnos = {int(vb): seqno for vb, seqno in client.do("seqnos")["seqnos"].items()}
        assert seqnos == {**dict.fromkeys(range(VBUCKETS), 0), **book.high}
        client.do("stream", to="NOW")
        client.wait(lambda: len(client.of("stream end")) == VBUCKETS, "the end of every stream")
        book.check(client.changes)
    assert {event["reason"] for event in client.of("stream end")} == {"OK"}


def test_a_small_window_does_not_stall(client: Client, start: Callable[..., Server]):
    """Over 10 MiB of one vbucket pass a window of 64 KiB, with values that are larger than the window."""
    server = start(vbuckets=1)
    with Book(server) as book:
        drawn, total, number = random.Random(3), 0, 0
        while total < 10 * 1024 * 1024:
            value = drawn.randbytes(drawn.choice((100, 1000, 8000, 30_000, 200_000)))
            book.set(f"key-{number}", value)
            total, number = total + len(value), number + 1
        client.connect(server, flow_bytes=WINDOW_BYTES)
        client.do("stream")
        client.wait_for(book.high)
        book.check(client.changes)


def test_a_closed_stream_ends_and_is_resumed(client: Client, server: Server):
    """The agent waits for the end of a stream that it closed; it then goes on with the next change."""
    with Book(server) as book:
        book.write_some(seed=1)
        client.connect(server)
        client.do("stream")
        client.wait_for(book.high)
        client.do("stop")
        assert len(client.of("stream end")) == VBUCKETS
        book.write_some(seed=2)
        client.do("resume", offsets=list({change["vbucket"]: change for change in client.changes}.values()))
        client.wait_for(book.high)
        book.check(client.changes)
    assert not client.of("failure", "rollback")


def test_rollback_after_a_crash_that_lost_changes(witness: Witness, start: Callable[..., Server], tmp_path: Path):
    """A client that saw changes which a crash took back is told so, per vbucket, and then gets what there is."""
    server = start("--data", str(tmp_path))
    with Book(server) as book:
        book.write_some(seed=1)
        book.persist()
        kept, kept_high = book.copy()
        with witness.client() as first:
            first.connect(server)
            first.do("stream")
            first.wait_for(book.high)
            book.stop_persistence()
            book.write_some(seed=1)
            book.write_some(seed=2)
            first.wait_for(book.high)
        server.kill()
        server.start()
        book.reconnect()
        rolled = {vb for vb, seqno in book.high.items() if seqno > kept_high.get(vb, 0)}
        book.newest, book.high = dict(kept), dict(kept_high)
        book.write_some(seed=3)
        with witness.client() as second:
            second.connect(server)
            second.do("resume", offsets=list({change["vbucket"]: change for change in first.changes}.values()))
            assert {event["vbucket"] for event in second.of("rollback")} == rolled
            second.wait(
                lambda: book.agrees_with(still_there([*first.events, *second.events])),
                "what was written after the crash",
            )
    for event in second.of("rollback"):
        assert event["seqno"] <= kept_high.get(event["vbucket"], 0)


def test_expirations_and_features_that_the_node_has_not(client: Client, server: Server):
    """An item whose time has come is an expiration; an agent that asks for collections does without."""
    with Book(server) as book:
        client.connect(server, expiry=True, collections=True, compression=True)
        client.do("stream")
        book.set_compressed("packed", b"packed " * 1000)
        book.set("short", b"x", expiry=book.in_a_second())
        client.wait(lambda: len(client.changes) == 3, "the end of the item")
    assert [change["event"] for change in client.changes] == ["mutation", "mutation", "expiration"]
    assert not client.of("failure")


def test_users(witness: Witness, start: Callable[..., Server], tmp_path: Path):
    """With users, the agent logs in and streams; with a wrong password it is not let in."""
    server = start("--users", str(users_file(tmp_path, writer="write", reader="stream")))
    with Book(server, username="writer", password=PASSWORD) as book, witness.client() as client:
        book.write_some()
        client.connect(server, user="reader", password=PASSWORD)
        client.do("stream")
        client.wait_for(book.high)
        book.check(client.changes)
        address = {"host": server.host, "port": server.port}
        assert witness.client().ask("connect", **address, user="reader", password="wrong")["event"] == "failed"
