"""Couchbase's own server as the other end: it produces for our node, and consumes from it.

`HEADRACE_COUCHBASE_SERVER` names a program that starts one: `program PORT DIRECTORY VBUCKETS`, which prints a line that
begins with `ready` and ends at SIGTERM. Without it these tests skip.
"""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from headrace.history import State
from headrace.node import Node
from headrace.pipelines.move import Move
from headrace.pipelines.servers import Server, Vbuckets
from tests.replication.nodes import copy_once, dump, eventually, is_equal, replicating, server_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.client import KvConnection

PROGRAM = os.environ.get("HEADRACE_COUCHBASE_SERVER", "")
VBUCKETS = 4
ALL = range(VBUCKETS)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PROGRAM, reason="no HEADRACE_COUCHBASE_SERVER")]


@pytest.fixture
def couchbase(tmp_path: Path) -> Iterator[Server]:
    """A Couchbase server with empty vbuckets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [PROGRAM, str(port), str(tmp_path / "couchbase"), str(VBUCKETS)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        yield server_at("127.0.0.1", port)
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture
def ours() -> Iterator[Server]:
    """A node of ours."""
    with Node(vbuckets=VBUCKETS) as node:
        yield server_at(node.host, node.port)


def fill(node: KvConnection, first: int, last: int) -> None:
    """Store, change and remove some items."""
    for number in range(first, last):
        node.set(b"key%d" % number, b'{"n": %d}' % number, flags=number)
        if number % 5 == 0:
            node.set(b"key%d" % number, b"changed")
        if number % 7 == 0:
            node.delete(b"key%d" % number)


def seen(server: Server, vb: int) -> dict[bytes, tuple[Any, ...]]:
    """What both servers tell alike: not how a datatype is known, nor when something was removed."""
    return {
        key: (kind, cas, seqno, rev, flags, value)
        for key, (kind, cas, _, seqno, rev, flags, _, _, value) in dump(server, vb).items()
    }


def check_equal(one: Server, two: Server) -> None:
    """Hold every item of both against each other."""
    for vb in ALL:
        assert seen(one, vb) == seen(two, vb)


def test_from_couchbase(couchbase: Server, ours: Server):
    """Our replica of a Couchbase bucket follows it, and goes on where it was."""
    with couchbase.connect() as node:
        fill(node, 0, 200)
        copy_once(couchbase, ours)
        check_equal(couchbase, ours)
        with replicating(couchbase, ours):
            fill(node, 150, 250)
            eventually(lambda: is_equal(couchbase, ours, ALL), "the copy catches up")
    check_equal(couchbase, ours)


def test_to_couchbase(couchbase: Server, ours: Server):
    """A Couchbase server takes our streams for those of its kind."""
    with ours.connect() as node:
        fill(node, 0, 200)
        copy_once(ours, couchbase)
        check_equal(ours, couchbase)
        with replicating(ours, couchbase):
            fill(node, 150, 250)
            eventually(lambda: is_equal(ours, couchbase, ALL), "the copy catches up")
    check_equal(ours, couchbase)


def test_moved_to_and_fro(couchbase: Server, ours: Server):
    """A vbucket moves from Couchbase to us and back, with what was written meanwhile."""
    with couchbase.connect() as node:
        fill(node, 0, 100)
    Move(couchbase, ours, 1).run(lambda: False)
    with ours.connect() as node:
        for number in range(100, 200):
            if node.vbucket_of(b"key%d" % number) == 1:
                node.set(b"key%d" % number, b"here")
    Move(ours, couchbase, 1).run(lambda: False)
    with Vbuckets(couchbase) as one, Vbuckets(ours) as two:
        assert (one.state(1), two.state(1)) == (State.ACTIVE, State.DEAD)
    assert seen(couchbase, 1) == seen(ours, 1)
