"""Couchbase's own server as the source of TAP: replicated into our node, and moved to it.

tests/replication/test_couchbase.py says what HEADRACE_COUCHBASE_SERVER is.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import BatchReader, Change, ChangeOptions, ChangeReader
from headrace.history import State
from headrace.node import Node
from headrace.pipelines.replicate import RefusedError
from headrace.pipelines.servers import Server, Vbuckets
from headrace.pipelines.tap_replicate import TapReplication
from headrace.testing import LiveNode
from tests.processes import start_node
from tests.replication.nodes import WAIT_S, dump, eventually, running, server_at
from tests.replication.test_couchbase import ALL, PROGRAM, VBUCKETS, couchbase, fill, ours

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["couchbase", "ours"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PROGRAM, reason="no HEADRACE_COUCHBASE_SERVER")]


def options_of(server: Server, **more: Any) -> ChangeOptions:
    """How a server is reached by TAP."""
    return ChangeOptions(connection=f"couchbase://{server.address}", timeout_s=20.0, **more)


def seen(server: Server, vb: int) -> dict[bytes, tuple[Any, ...]]:
    """What TAP carries: not the seqno, nor how a datatype is known, nor when something was removed."""
    return {
        key: (kind, cas, rev, flags, expiry, value)
        for key, (kind, cas, _, _, rev, flags, expiry, _, value) in dump(server, vb).items()
    }


def is_same(one: Server, two: Server) -> bool:
    """Whether both have the same items."""
    return all(seen(one, vb) == seen(two, vb) for vb in ALL)


def copy_once(source: Server, target: Server, **more: Any) -> TapReplication:
    """Dump into a target."""
    job = TapReplication(options_of(source), target, **more)
    end = time.monotonic() + WAIT_S
    progress = job.run(lambda: time.monotonic() > end, once=True)
    assert progress.caught_up, progress
    return job


@contextmanager
def replicating(source: Server, target: Server, **more: Any) -> Iterator[TapReplication]:
    """Replicate in a thread for as long as a `with` lasts."""
    job = TapReplication(options_of(source), target, **more)
    with running(job):
        yield job


def test_a_dump(couchbase: Server, ours: Server):
    """All that Couchbase has is at our node, on disk, and is read from there by DCP with seqnos of the node."""
    with couchbase.connect() as items:
        fill(items, 0, 500)
    job = copy_once(couchbase, ours)
    assert is_same(couchbase, ours)
    assert job.progress.items >= 500 - 500 // 7
    options = ChangeOptions(connection=f"couchbase://{ours.address}", keys="binary")
    with ChangeReader(options, until="now") as reader:
        found = {change.key for change in reader if isinstance(change, Change)}
    assert found == {b"key%d" % number for number in range(500)}
    with Vbuckets(ours) as vbuckets:
        before = vbuckets.seqnos()
    copy_once(couchbase, ours)
    with Vbuckets(ours) as vbuckets:
        assert vbuckets.seqnos() == before, "what is there takes no seqno"


def test_followed(couchbase: Server, ours: Server):
    """Our node follows what is written, changed and removed, and goes on under its name after it was away."""
    with couchbase.connect() as items:
        fill(items, 0, 200)
        with replicating(couchbase, ours) as job:
            eventually(lambda: is_same(couchbase, ours), "what was there comes")
            fill(items, 150, 300)
            eventually(lambda: is_same(couchbase, ours), "what is written comes")
            eventually(lambda: job.progress.caught_up, "it says so")
        fill(items, 250, 350)
        with replicating(couchbase, ours):
            eventually(lambda: is_same(couchbase, ours), "what was written meanwhile comes")
        job.forget()


def test_the_target_is_killed_and_comes_back(couchbase: Server, tmp_path: Path):
    """A node that is killed in the middle, and loses what it had not on disk, has all again in the end."""
    node = start_node("--vbuckets", str(VBUCKETS), "--data", str(tmp_path / "node"))
    try:
        target = server_at(node.host, node.port)
        with couchbase.connect() as items, replicating(couchbase, target) as job:
            for turn in range(4):
                fill(items, 300 * turn, 300 * turn + 400)
                eventually(lambda joins=turn: job.progress.joins > joins, "the lines are made again")  # type: ignore[misc]
                node.kill()
                fill(items, 300 * turn, 300 * turn + 50)
                node.start()
            eventually(lambda: is_same(couchbase, target), "all is there again")
        node.stop()
    finally:
        if node.running:
            node.kill()
        node.close()


def test_batches_of_a_fed_node(couchbase: Server):
    """What Spark reads, Arrow batches by DCP, has every item once it was fed by TAP."""
    with LiveNode(vbuckets=VBUCKETS) as node, couchbase.connect() as items:
        fill(items, 0, 300)
        copy_once(couchbase, server_at(node.host, node.port))
        options = ChangeOptions(connection=f"couchbase://{node.host}:{node.port}", keys="binary")
        with BatchReader(options, until="now") as reader:
            keys = {key.as_py() for batch in reader for key in batch.column("key")}
    assert keys == {b"key%d" % number for number in range(300)}


def test_states(couchbase: Server):
    """A target that has vbuckets dead is refused, unless it may make replicas of them."""
    with Node(vbuckets=VBUCKETS) as node, couchbase.connect() as items:
        target = server_at(node.host, node.port)
        fill(items, 0, 50)
        with Vbuckets(target) as vbuckets:
            vbuckets.set_state(1, State.DEAD)
        with pytest.raises(RefusedError, match=r"has no vbucket 1, or has it dead"):
            copy_once(couchbase, target)
        copy_once(couchbase, target, force=True)
        assert is_same(couchbase, target)
        with Vbuckets(target) as vbuckets:
            assert vbuckets.state(1) is State.REPLICA
