"""Two nodes that speak an older dialect to each other: the copy equals the original, item by item."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import ClientError, NotFoundError
from headrace.history import State
from headrace.ids import VBucketId
from headrace.node import Node
from headrace.pipelines.failover import promote
from headrace.pipelines.lines import Line
from headrace.pipelines.move import Move
from headrace.pipelines.older import check_dialect
from headrace.pipelines.replicate import Event, RefusedError, Replication, Streams
from headrace.pipelines.servers import Server, Vbuckets
from headrace.testing import Chaos
from headrace.wire import Dialect, decode, encode
from headrace.wire.catalogue import AddStream, Control, ErrorReply, Flush, Get, Set
from headrace.wire.codes import Status
from tests.processes import start_node
from tests.replication.nodes import copy_once, dump, eventually, is_equal, replicating, server_at
from tests.replication.writers import Writer, check, stop_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.client import KvConnection

VBUCKETS = 4
ALL = range(VBUCKETS)
OLDER = (Dialect.UPR, Dialect.UPR_DRAFT)
DELETE_TIME = 7
"""Where a dump has it: the older dialects do not carry it."""


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """Two nodes that know nothing of each other."""
    with Node(vbuckets=VBUCKETS) as one, Node(vbuckets=VBUCKETS) as two:
        yield one, two


def servers(nodes: tuple[Node, Node]) -> tuple[Server, Server]:
    """The two as servers."""
    one, two = nodes
    return server_at(one.host, one.port), server_at(two.host, two.port)


def fill(node: KvConnection, first: int, last: int) -> None:
    """Store, change, remove and expire some items."""
    for number in range(first, last):
        key = b"key%d" % number
        node.set(key, b'{"n": %d}' % number, flags=number, expiry=0 if number % 4 else int(time.time()) + 3600)
        if number % 5 == 0:
            node.set(key, b"changed")
        if number % 7 == 0:
            node.delete(key)
        if number % 11 == 0:
            expire(node, key)


def expire(node: KvConnection, key: bytes) -> None:
    """Let an item come to its end now."""
    node.set(key, b"short", expiry=int(time.time()) - 60)
    with pytest.raises(NotFoundError):
        node.get(key)


def has(server: Server, vb: int) -> dict[bytes, tuple[Any, ...]]:
    """Everything of a vbucket but when it was deleted, in order of seqno."""
    found = dump(server, vb)
    return {key: (*item[:DELETE_TIME], *item[DELETE_TIME + 1 :]) for key, item in found.items()}


def check_equal(source: Server, target: Server) -> set[str]:
    """Hold every item and tombstone of both against each other; gives the kinds that there are."""
    kinds = set()
    for vb in ALL:
        here = has(source, vb)
        assert here == has(target, vb)
        kinds |= {item[0] for item in here.values()}
    return kinds


@pytest.mark.parametrize("dialect", OLDER)
def test_a_copy_equals_the_original(nodes: tuple[Node, Node], dialect: Dialect):
    """Items, flags, expiries, datatypes, tombstones, revisions, CAS, seqnos and branches are the same at both."""
    source, target = servers(nodes)
    with source.connect() as node:
        fill(node, 0, 300)
    copy_once(source, target, dialect=dialect)
    assert check_equal(source, target) == {"mutation", "deletion", "expiration"}
    with Vbuckets(source) as one, Vbuckets(target) as two:
        assert [two.state(vb) for vb in ALL] == [State.REPLICA] * VBUCKETS
        assert one.stats("failovers") == two.stats("failovers")
        assert one.stats("")["curr_items"] == two.stats("")["curr_items"]


@pytest.mark.parametrize("dialect", OLDER)
def test_it_follows(nodes: tuple[Node, Node], dialect: Dialect):
    """Changes that come later come to the copy, too, and after a flush it is what the original is."""
    source, target = servers(nodes)
    with source.connect() as node, replicating(source, target, dialect=dialect) as job:
        fill(node, 0, 100)
        eventually(lambda: is_equal(source, target, ALL), "the copy catches up")
        node.request(Flush())
        fill(node, 50, 60)
        eventually(lambda: is_equal(source, target, ALL), "the copy catches up")
        assert job.progress.dropped == {}
        check_equal(source, target)
        fill(node, 60, 70)
        eventually(lambda: is_equal(source, target, ALL), "it goes on after a flush")
    check_equal(source, target)


def test_the_names_of_what_is_spoken(nodes: tuple[Node, Node]):
    """Both nodes tell in their stats what is spoken, and the job's name is the group of its streams."""
    source, target = servers(nodes)
    with replicating(source, target, dialect=Dialect.UPR_DRAFT), Vbuckets(source) as one, Vbuckets(target) as two:
        eventually(lambda: any("replicate" in name for name in one.connections()), "the streams are there")
        for side in (one, two):
            assert {told for name, told in side.stats("dcp").items() if name.endswith(":dialect")} == {"upr-draft"}
        (name,) = {name for name in two.connections() if "replicate" in name}
        assert name in one.connections()


@pytest.mark.parametrize("dialect", OLDER)
def test_it_goes_on_where_the_copy_is(nodes: tuple[Node, Node], dialect: Dialect):
    """A second run brings what is new and nothing else, also when it speaks another dialect."""
    source, target = servers(nodes)
    with source.connect() as node:
        fill(node, 0, 200)
        copy_once(source, target, dialect=dialect)
        for other in (Dialect.DCP, dialect):
            for number in range(10):
                node.set(b"%s%d" % (other.encode(), number), b"x")
            job = copy_once(source, target, dialect=other)
            assert job.progress.items == 10
    check_equal(source, target)


@pytest.mark.parametrize("dialect", OLDER)
def test_the_copy_forgets_what_never_was(nodes: tuple[Node, Node], dialect: Dialect):
    """A target that went its own way is rolled back to what both share; so is one whose original lost changes."""
    source, target = servers(nodes)
    with source.connect() as node:
        fill(node, 0, 40)
        copy_once(source, target, dialect=dialect)
        for vb in ALL:
            promote(target, vb)
        with target.connect() as other:
            fill(other, 100, 120)
        fill(node, 40, 60)
        copy_once(source, target, force=True, dialect=dialect)
        check_equal(source, target)
        Chaos(nodes[0]).failover("all", lost=5)
        copy_once(source, target, dialect=dialect)
        check_equal(source, target)
        fill(node, 60, 80)
    copy_once(source, target, dialect=dialect)
    check_equal(source, target)


@pytest.mark.parametrize("dialect", OLDER)
def test_cut_at_random_places(nodes: tuple[Node, Node], dialect: Dialect):
    """The line breaks again and again, in the middle of messages too, while items come, go, expire and are flushed."""
    source, target = servers(nodes)
    rng, chaos = Random(6), Chaos(nodes[0])
    told: list[Event] = []
    with (
        source.connect() as node,
        replicating(source, target, dialect=dialect, tell=lambda event, _: told.append(event)),
    ):
        for turn in range(6):
            chaos.cut(after_bytes=rng.randrange(1, 4000), again=True)
            fill(node, 20 * turn, 20 * turn + 40)
            if turn == 3:
                node.request(Flush())
            seen = told.count(Event.LOST)
            eventually(
                lambda seen=seen: told.count(Event.LOST) > seen or is_equal(source, target, ALL),  # type: ignore[misc]
                "the line breaks, or all came before",
            )
        chaos.calm()
        eventually(lambda: is_equal(source, target, ALL), "the copy catches up")
    check_equal(source, target)
    assert told.count(Event.LOST) >= 2


def test_a_large_snapshot(nodes: tuple[Node, Node]):
    """A snapshot that is larger than memory should hold at once comes whole, and is cut on the way once."""
    source, target = servers(nodes)
    with source.connect() as node:
        for number in range(300):
            node.set(b"large%d" % number, b"v" * 100_000)
    Chaos(nodes[0]).cut(after_bytes=20_000_000, again=True)
    copy_once(source, target, dialect=Dialect.UPR_DRAFT)
    assert check_equal(source, target) == {"mutation"}


@pytest.mark.parametrize("dialect", OLDER)
def test_moved(nodes: tuple[Node, Node], dialect: Dialect):
    """A vbucket changes its owner by an older dialect, with everything that is in it."""
    source, target = servers(nodes)
    with source.connect() as node:
        fill(node, 0, 60)
    before = has(source, 1)
    moved = Move(source, target, 1, dialect=dialect).run(lambda: False)
    assert (moved.attempts, has(target, 1)) == (1, before)
    with Vbuckets(source) as one, Vbuckets(target) as two:
        assert (one.state(1), two.state(1)) == (State.DEAD, State.ACTIVE)


@pytest.mark.slow
def test_moved_with_writes_going_on(nodes: tuple[Node, Node]):
    """To and fro by the draft, under load: what was promised is there, and no seqno was given twice."""
    pair = servers(nodes)
    source, target = pair
    writers = [Writer(pair, 1, f"writer{number}") for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for turn in range(4):
            seen = [len(writer.promises) for writer in writers]
            ends = pair if turn % 2 == 0 else (target, source)
            Move(*ends, 1, dialect=Dialect.UPR_DRAFT).run(lambda: False)
            eventually(
                lambda seen=seen: all(len(w.promises) > n + 3 for w, n in zip(writers, seen, strict=True)),  # type: ignore[misc]
                "the writers go on",
            )
    finally:
        stop_all(writers)
    check(writers, source, 1)


# -- what is refused


def test_a_source_that_does_not_speak_it():
    """One sentence says who does not speak what, and what to do, before anything is changed."""
    with Node(vbuckets=VBUCKETS, dialect="dcp") as one, Node(vbuckets=VBUCKETS) as two:
        source, target = server_at(one.host, one.port), server_at(two.host, two.port)
        for dialect, name in ((Dialect.UPR, "UPR"), (Dialect.UPR_DRAFT, "the UPR draft")):
            with pytest.raises(RefusedError, match=f"{source} does not speak {name}: without --dialect"):
                Replication(source, target, dialect=dialect).run(lambda: False)
            with pytest.raises(RefusedError, match=f"{source} does not ask for streams in {name}"):
                Replication(target, source, dialect=dialect).run(lambda: False)
        with Vbuckets(target) as seen:
            assert [seen.state(vb) for vb in ALL] == [State.ACTIVE] * VBUCKETS


@pytest.mark.parametrize("dialect", OLDER)
def test_jobs_that_begin_at_once(nodes: tuple[Node, Node], dialect: Dialect):
    """Whether a pair speaks a dialect is found out by many jobs at a time: none closes the connection of another."""
    source, target = servers(nodes)
    with ThreadPoolExecutor(6) as pool:
        for asked in [pool.submit(check_dialect, source, target, dialect) for _ in range(24)]:
            asked.result()


def test_a_server_that_is_not_there(nodes: tuple[Node, Node]):
    """What is said is that nothing listens, not that it speaks something else."""
    _, target = servers(nodes)
    gone = server_at("127.0.0.1", 9)
    for pair in ((gone, target), (target, gone)):
        with pytest.raises(ClientError, match="cannot connect"):
            Replication(*pair, dialect=Dialect.UPR_DRAFT).run(lambda: False)


def test_a_node_that_speaks_the_draft_alone():
    """It is a source of the draft, and of nothing else; one node by two names is found out in the draft as well."""
    with Node(vbuckets=VBUCKETS, dialect="upr-draft") as one, Node(vbuckets=VBUCKETS) as two:
        source, target = server_at(one.host, one.port), server_at(two.host, two.port)
        with source.connect() as node:
            fill(node, 0, 30)
        copy_once(source, target, dialect=Dialect.UPR_DRAFT)
        assert is_equal(source, target, ALL)
        same = server_at("localhost", two.port)
        with pytest.raises(RefusedError, match="itself"):
            Replication(target, same, dialect=Dialect.UPR_DRAFT).run(lambda: False)


def test_the_dialect_is_chosen_before_the_first_stream(nodes: tuple[Node, Node]):
    """Later, or one that is none, is refused; other controls of a consumer still end the connection."""
    source, _ = servers(nodes)
    with Vbuckets(source) as vbuckets:
        vbuckets.set_state(2, State.REPLICA)
    with Line.to_consumer(source, "choice") as line:
        for value, status in ((b"tap", Status.INVALID), (b"dcp", 0), (b"upr", 0), (b"upr-draft", 0)):
            line.send(encode(Control(key=b"dialect", value=value)))
            answer = decode(line.next_frame())
            assert (getattr(answer, "status", None)) == status, value
        line.send(encode(Set(vbucket=VBucketId(1), key=b"k", value=b"v")) + encode(Get(vbucket=VBucketId(1), key=b"k")))
        assert [line.next_frame().header.specific for _ in range(2)] == [0, 0], "items are served here, too"
        line.send(encode(AddStream(vbucket=VBucketId(2))))
        assert [line.next_frame().header.opcode for _ in range(2)] == [0x51, 0x50]
    with Line.to_consumer(source, "late") as line:
        line.send(encode(AddStream(vbucket=VBucketId(2))))
        while line.next_frame().header.opcode != 0x53:
            """Controls go before."""
        line.send(encode(Control(key=b"dialect", value=b"upr-draft")))
        answer = decode(line.next_frame())
        assert isinstance(answer, ErrorReply)
        assert answer.status == Status.INVALID


def test_goals_in_the_draft():
    """A goal is reached when the snapshot that holds it has ended, and not undone by a later one."""
    streams = Streams({0: 50})
    streams.running.add(0)
    never = 2**64 - 1
    for start, end, reached in (
        (1, never, False),
        (40, 40, False),
        (41, never, False),
        (70, 70, True),
        (71, never, True),
    ):
        streams.marked(0, start, end)
        assert streams.reached(0, 70) is reached


# -- commands


def test_the_command(tmp_path: Path):
    """`headrace node --dialect upr-draft` serves the draft alone, and `headrace replicate --dialect` carries it."""
    one = start_node("--vbuckets", "4", "--data", str(tmp_path / "one"), "--dialect", "upr-draft")
    two = start_node("--vbuckets", "4", "--data", str(tmp_path / "two"))
    try:
        source, target = server_at(one.host, one.port), server_at(two.host, two.port)
        with source.connect() as node:
            fill(node, 0, 20)
        command = [sys.executable, "-m", "headrace", "replicate", "--from", str(source), "--to", str(target), "--once"]
        refused = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert refused.returncode != 0
        done = subprocess.run([*command, "--dialect", "upr-draft"], capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert is_equal(source, target, ALL)
    finally:
        one.stop()
        two.stop()
