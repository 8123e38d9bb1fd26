"""A vbucket whose stream ends and begins again on a connection, or that lost changes: the client misses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.ids import VBucketId
from headrace.node.commands.admin import flush_all
from headrace.wire.catalogue import DeleteVBucket
from headrace.wire.codes import TapConnectFlag
from tests.node.talk import Talk, on_loop
from tests.tap.sending import Sender, item
from tests.tap.tap_reader import TapReader, keys, shapes
from tests.tap.test_producer_acks import ACK, INTERVAL, REGISTERED, TEMPORARY, WINDOW, fill, is_closed
from tests.tap.test_producer_connect import put, state

if TYPE_CHECKING:
    from headrace.testing import LiveNode
    from tests.tap.tap_reader import TapMessage

F = TapConnectFlag
ACTIVE, REPLICA, DEAD = 1, 2, 4


def unacked(node: LiveNode) -> int:
    """How many messages are not acknowledged."""
    with Talk(node) as talk:
        return int(talk.stats(b"tapagg")["_total:ack_log_size"])


def answered(node: LiveNode, tap: TapReader, message: TapMessage, status: int = 0) -> None:
    """Answer a message, and see that the node has heard it."""
    before = unacked(node)
    tap.ack(message, status)
    while unacked(node) == before:
        pass


def test_an_ack_for_a_branch_that_was_left_is_none_for_the_next(node: LiveNode):
    """What came after the rollback, and was not acknowledged, comes again."""
    with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as tap:
        tap.read(is_closed)
        tap.acks = False
        put(node, "lost")
        (lost,) = tap.read_items(1)
        node.flush()
        node.chaos.failover(vbuckets=[0], lost=1)
        put(node, "a")
        tap.read(lambda one: keys([one]) == [b"a"])
        answered(node, tap, lost)
    with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as tap:
        put(node, "b")
        assert keys(tap.read(lambda one: keys([one]) == [b"b"])) == [b"a", b"b"]


@pytest.mark.parametrize("away", [True, False])
def test_a_rollback_in_the_middle_of_old_items(node: LiveNode, away: bool):
    """An older version that came back was not sent before: the newer one, which is lost, was yet to come."""
    count = 3 * INTERVAL * WINDOW
    fill(node, count)
    node.flush()
    put(node, "k000", b"newer")
    node.flush()
    with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as tap:
        got = tap.read(lambda one: keys([one]) == [b"k008"])
        assert b"k000" not in keys(got)
        if not away:
            node.chaos.failover(vbuckets=[0], lost=1)
            got += tap.read(is_closed)
    if away:
        node.chaos.failover(vbuckets=[0], lost=1)
        with TapReader(node, flags=ACK | REGISTERED, name="again", vbuckets=[0]) as tap:
            got += tap.read(is_closed)
    assert set(keys(got)) == {f"k{number:03}".encode() for number in range(count)}


def test_what_was_refused_of_a_vbucket_that_is_away_comes_when_it_is_back(node: LiveNode):
    """It was sent before the vbucket went, and not taken."""
    with TapReader(node, flags=ACK) as tap:
        tap.read(lambda one: is_closed(one) and one.vbucket == 0)
        while unacked(node):
            tap.read(lambda _: True)
        tap.acks = False
        put(node, "a")
        put(node, "b")
        first, _ = tap.read_items(2)
        state(node, 0, REPLICA)
        answered(node, tap, first, TEMPORARY)
        tap.acks = True
        state(node, 0, ACTIVE)
        put(node, "c")
        assert keys(tap.read(lambda one: keys([one]) == [b"c"])) == [b"a", b"b", b"c"]


def test_a_flush_of_some_vbuckets_is_told_as_deletions_alone(node: LiveNode):
    """A copy that another feeds is left out of a flush by TAP, and must not go at the client."""
    put(node, "gone")
    put(node, "stays", vbucket=1)
    with TapReader(node) as tap:
        tap.read(lambda one: shapes([one]) == [("opaque", 8, 7)])
        opened = node.running.services.buckets.get("default")
        assert opened is not None
        on_loop(node, lambda: flush_all(opened, lambda vb: vb.id == 0))
        assert shapes([tap.next()]) == [("delete", b"gone")]


@pytest.mark.parametrize("flags", [F.DUMP, F.TAKEOVER_VBUCKETS])
def test_what_may_go_no_further_is_in_a_dump_and_a_takeover(node: LiveNode, flags: int):
    """A stream leaves it out; whoever gets all, or is the owner then, would never have it."""
    with Sender(node) as sender:
        assert sender.tell(item(b"a"), item(b"last hop", ttl=1)) == [0, 0]
    with TapReader(node, flags=ACK, vbuckets=[0]) as tap:
        assert keys(tap.read(is_closed)) == [b"a"]
    with TapReader(node, flags=flags | ACK, vbuckets=[0]) as tap:
        assert keys(tap.read_all()) == [b"a", b"last hop"]


def test_a_vbucket_that_is_made_anew_has_changes_of_its_own(node: LiveNode):
    """What had their seqnos before, and may go no further, says nothing of them."""
    with Sender(node) as sender:
        assert sender.tell(item(b"last hop", ttl=1)) == [0]
    state(node, 0, DEAD)
    with Talk(node) as talk:
        assert talk.status(DeleteVBucket(vbucket=VBucketId(0))) == 0
    state(node, 0, ACTIVE)
    put(node, "own")
    with TapReader(node, flags=ACK, vbuckets=[0]) as tap:
        assert keys(tap.read(is_closed)) == [b"own"]
