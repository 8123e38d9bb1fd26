"""Copies that a client of the UPR draft keeps: whatever happens on the way, in the end they are what the bucket is."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ids import VBucketId
from headrace.node import Node
from headrace.testing import Chaos
from headrace.wire.catalogue import DcpFlush, DeleteQ, Flush, Get, Noop, SetQ
from tests.node.talk import Talk
from tests.replication.nodes import dump, server_at
from tests.streams.draft_client import Copy, DraftTalk, follow

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b"g"])
CHANGES = st.one_of(
    st.tuples(st.just("set"), KEYS, st.binary(max_size=20), st.integers(0, 9)),
    st.tuples(st.just("set"), KEYS, st.just(b'{"json": 1}'), st.integers(0, 9)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("expire"), KEYS),
    st.tuples(st.just("flush")),
)
READS = st.tuples(st.just("read"), st.none() | st.integers(0, 12))
LOSSES = st.tuples(st.just("lose"), st.integers(0, 6))
STEPS = st.lists(CHANGES | READS | LOSSES, max_size=30)
ROUNDS = st.lists(
    st.tuples(st.lists(CHANGES, min_size=1, max_size=6), READS, LOSSES, st.lists(CHANGES, max_size=6)),
    min_size=1,
    max_size=4,
).map(lambda rounds: [step for before, read, lose, after in rounds for step in (*before, read, lose, *after)])
"""A copy that has read, and whose producer then loses something and goes on: the copy is of a branch that was left."""
_VBUCKETS = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node that has a vbucket for each example."""
    with Node(vbuckets=1024) as running:
        yield running


def high_seqno(node: Node, vb: int) -> int:
    """How far a vbucket is."""
    with Talk(node) as talk:
        return int(talk.stats(b"vbucket-seqno %d" % vb)[f"vb_{vb}:high_seqno"])


def change(node: Node, vb_id: int, kind: str, *how: object) -> None:
    """Do something to a vbucket."""
    vb = VBucketId(vb_id)
    if kind == "lose":
        Chaos(node).failover(vb_id, lost=how[0])  # type: ignore[arg-type]
        return
    with Talk(node) as talk:
        if kind == "set":
            talk.send(SetQ(vbucket=vb, key=how[0], value=how[1], flags=how[2]))  # type: ignore[arg-type]
        elif kind == "delete":
            talk.send(DeleteQ(vbucket=vb, key=how[0]))  # type: ignore[arg-type]
            talk.send(Noop())
            talk.receive()  # of the delete, where there was nothing to delete
            return
        elif kind == "expire":
            past = int(time.time()) - 60
            talk.send(SetQ(vbucket=vb, key=how[0], value=b"short", expiry=past), Get(vbucket=vb, key=how[0]))  # type: ignore[arg-type]
            talk.receive()
        else:
            talk.send(Flush())
            talk.receive()
        assert talk.status(Noop()) == 0


def check(node: Node, copy: Copy) -> None:
    """Hold the copy against the bucket, item by item."""
    found = dump(server_at(node.host, node.port), copy.vb)
    live = {
        key: (value, flags, expiry, cas, rev_seqno, seqno)
        for key, (name, cas, _, seqno, rev_seqno, flags, expiry, _, value) in found.items()
        if name == "mutation"
    }
    assert copy.items == live


@settings(max_examples=60, deadline=None)
@given(STEPS | ROUNDS)
def test_a_copy_is_what_the_bucket_is(node: Node, steps: list[tuple[str, ...]]):
    """After changes, deletes, expirations, flushes, cuts at any message, and failovers that lose changes."""
    vb = next(_VBUCKETS) % 1024
    copy = Copy(vb)
    for kind, *how in steps:
        if kind == "read":
            with DraftTalk(node) as talk:
                follow(talk, copy, high_seqno(node, vb), how[0])  # type: ignore[arg-type]
        else:
            change(node, vb, kind, *how)
    with DraftTalk(node) as talk:
        assert follow(talk, copy, high_seqno(node, vb)), "nobody cuts this one"
    check(node, copy)


def test_a_flush_while_it_is_read(node: Node):
    """A copy that is told of a flush begins again, and has what is there then."""
    vb = 1000
    copy = Copy(vb)
    for number in range(5):
        change(node, vb, "set", b"key%d" % number, b"v", 0)
    with DraftTalk(node) as talk:
        assert follow(talk, copy, 5)
        assert len(copy.items) == 5
        change(node, vb, "flush")
        change(node, vb, "set", b"after", b"v", 0)
        read_until_flush(talk, copy)
        assert copy.items == {}
    with DraftTalk(node) as talk:
        assert follow(talk, copy, high_seqno(node, vb))
    assert list(copy.items) == [b"after"]
    check(node, copy)


def read_until_flush(talk: DraftTalk, copy: Copy) -> None:
    """Read the stream on until it flushes the copy."""
    while not isinstance(message := talk.message(), DcpFlush):
        copy.take(message, (copy.place.vbuuid, copy.place.high_seqno))
    copy.empty()
