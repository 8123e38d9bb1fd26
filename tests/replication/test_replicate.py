"""Replication between two nodes: the copy equals the original, item by item, whatever happens on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.client import NotFoundError
from headrace.history import State
from headrace.node import Node
from headrace.pipelines.failover import promote
from headrace.pipelines.replicate import Event, RefusedError, Replication, Streams
from headrace.pipelines.servers import Server, Vbuckets
from headrace.wire.catalogue import Flush
from tests.replication.nodes import copy_once, dump, eventually, is_equal, replicating, server_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client import KvConnection

VBUCKETS = 4
ALL = range(VBUCKETS)


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """Two nodes that know nothing of each other."""
    with Node(vbuckets=VBUCKETS) as one, Node(vbuckets=VBUCKETS) as two:
        yield server_at(one.host, one.port), server_at(two.host, two.port)


def fill(node: KvConnection, first: int, last: int) -> None:
    """Store, change and remove some items."""
    for number in range(first, last):
        node.set(b"key%d" % number, b'{"n": %d}' % number, flags=number)
        if number % 5 == 0:
            node.set(b"key%d" % number, b"changed")
        if number % 7 == 0:
            node.delete(b"key%d" % number)


def check_equal(source: Server, target: Server) -> int:
    """Hold every item of both against each other; gives how many there are."""
    count = 0
    for vb in ALL:
        here = dump(source, vb)
        assert here == dump(target, vb)
        count += len(here)
    return count


def test_a_copy_equals_the_original(pair: tuple[Server, Server]):
    """Items, flags, datatypes, tombstones, revisions, CAS and branches are the same at both."""
    source, target = pair
    with source.connect() as node:
        fill(node, 0, 300)
        node.set(b"short-lived", b"x", expiry=1)
        eventually(lambda: _is_gone(node, b"short-lived"), "the item expires")
    copy_once(source, target)
    assert check_equal(source, target) == 301
    with Vbuckets(source) as one, Vbuckets(target) as two:
        assert [two.state(vb) for vb in ALL] == [State.REPLICA] * VBUCKETS
        here, there = one.stats("failovers"), two.stats("failovers")
        assert here == there
        assert one.stats("")["curr_items"] == two.stats("")["curr_items"]
    kinds = {item[0] for vb in ALL for item in dump(target, vb).values()}
    assert kinds == {"mutation", "deletion", "expiration"}


def _is_gone(node: KvConnection, key: bytes) -> bool:
    try:
        node.get(key)
    except NotFoundError:
        return True
    return False


def test_it_follows(pair: tuple[Server, Server]):
    """Changes that come later, a flush among them, come to the copy, too."""
    source, target = pair
    with source.connect() as node, replicating(source, target):
        fill(node, 0, 100)
        eventually(lambda: is_equal(source, target, ALL), "the copy catches up")
        assert check_equal(source, target) == 100
        node.request(Flush())
        fill(node, 50, 60)
        eventually(lambda: is_equal(source, target, ALL), "the copy catches up")
    assert check_equal(source, target) == 100, "tombstones are kept"
    with target.connect() as copy:
        assert copy.vbuckets == VBUCKETS


def test_it_goes_on_where_the_copy_is(pair: tuple[Server, Server]):
    """A second run brings what is new and nothing else."""
    source, target = pair
    with source.connect() as node:
        fill(node, 0, 200)
        first = copy_once(source, target)
        fill(node, 200, 210)
    second = copy_once(source, target)
    assert first.progress.items >= 200
    assert 10 <= second.progress.items < 20
    check_equal(source, target)


def test_some_vbuckets(pair: tuple[Server, Server]):
    """Only what was asked for becomes a replica."""
    source, target = pair
    with source.connect() as node:
        fill(node, 0, 50)
    copy_once(source, target, vbuckets=[1, 3])
    with Vbuckets(target) as two:
        assert [two.state(vb) for vb in ALL] == [State.ACTIVE, State.REPLICA, State.ACTIVE, State.REPLICA]
    assert dump(source, 1) == dump(target, 1)
    assert dump(target, 0) == {}


def test_the_copy_forgets_what_never_was(pair: tuple[Server, Server]):
    """A target that went its own way is rolled back to what both share."""
    source, target = pair
    with source.connect() as node:
        fill(node, 0, 40)
        copy_once(source, target)
        for vb in ALL:
            promote(target, vb)
        with target.connect() as other:
            fill(other, 100, 120)
        fill(node, 40, 60)
    with pytest.raises(RefusedError, match="--force"):
        Replication(source, target).run(lambda: False, once=True)
    copy_once(source, target, force=True)
    check_equal(source, target)


def test_a_promoted_vbucket_leaves_the_job(pair: tuple[Server, Server]):
    """A vbucket that becomes active at the target is copied no more, and told; the others go on."""
    source, target = pair
    told: list[tuple[Event, str]] = []
    with (
        source.connect() as node,
        replicating(source, target, tell=lambda event, text: told.append((event, text))) as job,
    ):
        fill(node, 0, 20)
        eventually(lambda: is_equal(source, target, ALL), "the copy catches up")
        promote(target, 2)

        def is_dropped() -> bool:
            fill(node, 0, 20)
            return 2 in job.progress.dropped

        eventually(is_dropped, "the job notices")
        fill(node, 20, 40)
        eventually(lambda: is_equal(source, target, range(2)), "the others go on")
    assert any(event is Event.DROPPED and "vbucket 2" in text for event, text in told)


def test_a_node_that_comes_back():
    """A line that breaks is made anew when the node is there again, on the same port."""
    told: list[Event] = []
    with Node(vbuckets=VBUCKETS) as one, Node(vbuckets=VBUCKETS) as two:
        source, target = server_at(one.host, one.port), server_at(two.host, two.port)
        with source.connect() as node:
            fill(node, 0, 30)
        with replicating(source, target, tell=lambda event, _: told.append(event)):
            eventually(lambda: is_equal(source, target, ALL), "the copy catches up")
            _cut(two)
            eventually(lambda: told.count(Event.JOINED) >= 2, "the job joins again")
            with source.connect() as node:
                fill(node, 30, 60)
            eventually(lambda: is_equal(source, target, ALL), "the copy catches up")
        check_equal(source, target)
    assert Event.LOST in told


def _cut(node: Node) -> None:
    """Close every stream connection of a node."""

    def close() -> None:
        for opened in node.running.services.buckets:
            for session in list(opened.ends.values()):
                session.leave("a test cuts the line")

    node.loop.call_soon_threadsafe(close)


def test_refusals(pair: tuple[Server, Server]):
    """What makes no sense is refused before anything is changed."""
    source, target = pair
    with pytest.raises(RefusedError, match="itself"):
        Replication(source, source).run(lambda: False)
    with pytest.raises(RefusedError, match="no vbucket 9"):
        Replication(source, target, vbuckets=[9]).run(lambda: False)
    with Node(vbuckets=8) as other, pytest.raises(RefusedError, match="another vbucket"):
        Replication(source, server_at(other.host, other.port)).run(lambda: False)
    with pytest.raises(RefusedError, match="itself"):
        Replication(source, server_at("localhost", source.address.port)).run(lambda: False)
    with target.connect() as node:
        node.set(b"mine", b"x")
    with pytest.raises(RefusedError, match="would be lost"):
        Replication(source, target).run(lambda: False)
    with Vbuckets(target) as two:
        assert [two.state(vb) for vb in ALL] == [State.ACTIVE] * VBUCKETS


def test_a_snapshot_that_grows():
    """The goal is reached at the end of the snapshot that holds it, wherever that is in the end."""
    streams = Streams({0: 50})
    streams.running.add(0)
    streams.marked(0, 0, 40)
    streams.marked(0, 41, 100)
    streams.marked(0, 61, 130)
    streams.marked(0, 131, 200)
    assert not streams.reached(0, 129)
    assert streams.reached(0, 130)


def test_a_large_backlog(pair: tuple[Server, Server]):
    """A snapshot that is larger than memory should hold at once comes whole, in bounded memory."""
    source, target = pair
    value = b"v" * 100_000
    with source.connect() as node:
        for number in range(300):
            node.set(b"large%d" % number, value)
    copy_once(source, target)
    assert check_equal(source, target) == 300
