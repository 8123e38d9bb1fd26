"""Failover, rollback, purge and pause: what they take away, and what a consumer is told of it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from headrace.client import InvalidError, NotFoundError, NotMyVBucketError
from headrace.history import State
from headrace.ids import VBucketId
from headrace.wire.catalogue import FailoverLog, GetVBucket, Rollback, SetVBucket, VBucketStateReply
from headrace.wire.codes import StreamEndReason
from tests.chaos.seen import begun, end_of, fill, keys_of, log_of, persisted, streamed
from tests.streams.reader import Reader

if TYPE_CHECKING:
    from headrace.testing import LiveNode


def asked_again(node: LiveNode, vbucket: int, seqno: int, vbuuid: int) -> int | None:
    """Where a consumer that comes back is told to roll back to; None when it may go on."""
    with Reader(node) as reader:
        reply = reader.request(vbucket, seqno, vbuuid=vbuuid)
        assert isinstance(reply, Rollback | FailoverLog), reply
        return reply.seqno if isinstance(reply, Rollback) else None


def state_of(node: LiveNode, vbucket: int) -> State:
    """The state of a vbucket."""
    reply = node.items.request(GetVBucket(vbucket=VBucketId(vbucket)))
    assert isinstance(reply, VBucketStateReply)
    return State(reply.state)


def test_a_failover_loses_exactly_what_it_is_told_to(node: LiveNode):
    """The last changes are gone, the stream ends, a new branch begins there, and who saw more is told to go back."""
    keys = fill(node, 3, 20)
    with Reader(node) as reader:
        vbuuid = begun(reader, 3, 20)
        (gone,) = node.chaos.failover(3, lost=4)
        assert end_of(reader) == StreamEndReason.STATE_CHANGED
    assert (gone.vbucket, gone.before, gone.now, gone.lost, gone.state) == (3, 20, 16, 4, "active")
    assert log_of(node, 3) == [(gone.vbuuid, 16), (vbuuid, 0)]
    assert asked_again(node, 3, 20, vbuuid) == 16
    assert asked_again(node, 3, 16, vbuuid) is None
    assert streamed(node, 3, 16).keys() == {key.encode() for key in keys[:16]}
    assert node.count() == 16
    assert node.get(keys[15]) == b"first"
    with pytest.raises(NotFoundError):
        node.get(keys[16])


def test_seqnos_go_on_after_a_failover_and_it_lasts(node: LiveNode):
    """The next change has the next seqno on the new branch; a restart of the node changes nothing of it."""
    keys = fill(node, 0, 10)
    (gone,) = node.chaos.failover(0, lost=5)
    (written,) = node.write({keys[9]: b"second"})
    assert (written.seqno, written.vbuuid) == (6, gone.vbuuid)
    log, items = log_of(node, 0), streamed(node, 0, 6)
    node.stop()
    node.start()
    assert log_of(node, 0) == log
    assert streamed(node, 0, 6) == items
    assert node.high_seqnos()[0] == 6


def test_a_failover_without_loss_begins_a_branch(node: LiveNode):
    """Nothing is lost, and who has everything goes on; the branch is new all the same."""
    fill(node, 1, 7)
    ((old, _),) = log_of(node, 1)
    (gone,) = node.chaos.failover(1)
    assert (gone.lost, gone.now) == (0, 7)
    assert log_of(node, 1) == [(gone.vbuuid, 7), (old, 0)]
    assert asked_again(node, 1, 7, old) is None


def test_a_failover_of_more_than_there_is_loses_all(node: LiveNode):
    """The vbucket is empty, and every consumer begins anew."""
    fill(node, 2, 5)
    ((old, _),) = log_of(node, 2)
    (gone,) = node.chaos.failover(2, lost=1000)
    assert (gone.now, gone.lost) == (0, 5)
    assert asked_again(node, 2, 3, old) == 0
    assert node.count() == 0


def test_versions_that_nobody_has_are_not_made_up(node: LiveNode):
    """Where a change has replaced another one in memory, the failover goes back to a state that is still known."""
    key, *_ = fill(node, 4, 5)
    node.flush()
    node.chaos.pause()
    for number in range(10):
        node.write({key: f"version {number}".encode()})
    node.chaos.resume()
    node.flush()
    (gone,) = node.chaos.failover(4, lost=3)
    assert (gone.now, gone.lost) == (5, 10)
    assert node.get(key) == b"first"


def test_what_is_in_memory_alone_is_lost_too(node: LiveNode):
    """With persistence paused, a failover takes changes that the disk never had, to the change."""
    keys = fill(node, 4, 8)
    node.flush()
    node.chaos.pause()
    node.write(dict.fromkeys(keys, b"second"))
    (gone,) = node.chaos.failover(4, lost=3)
    assert (gone.before, gone.now) == (16, 13)
    assert [node.get(key) for key in keys] == [b"second"] * 5 + [b"first"] * 3
    node.chaos.resume()
    node.flush()
    assert streamed(node, 4, 13) == {
        key.encode(): b"second" if number < 5 else b"first" for number, key in enumerate(keys)
    }


def test_branches_in_what_is_left_are_kept(node: LiveNode):
    """A branch that began before the place that the vbucket goes back to is known after it, wherever the disk was."""
    node.chaos.pause()
    keys = fill(node, 4, 10)
    ((first, _),) = log_of(node, 4)
    (second,) = node.chaos.failover(4, lost=5)
    node.write(dict.fromkeys(keys[5:], b"second"))
    (third,) = node.chaos.failover(4, lost=3)
    assert log_of(node, 4) == [(third.vbuuid, 7), (second.vbuuid, 5), (first, 0)]
    assert asked_again(node, 4, 9, second.vbuuid) == 7
    assert asked_again(node, 4, 9, first) == 5
    node.chaos.resume()
    node.flush()


def test_several_vbuckets_fail_over(node: LiveNode):
    """A list, a range and `all` name many."""
    node.write(200)
    high = node.high_seqnos()
    assert [gone.vbucket for gone in node.chaos.failover([5, 1, 5], lost=1)] == [1, 5]
    assert [gone.vbucket for gone in node.chaos.failover("0,2-4", lost=1)] == [0, 2, 3, 4]
    assert [gone.vbucket for gone in node.chaos.failover("all")] == list(range(16))
    assert node.high_seqnos() == {vb: seqno - (vb < 6) for vb, seqno in high.items()}
    with pytest.raises(NotMyVBucketError):
        node.chaos.failover(16)


def test_a_failover_promotes_a_replica(node: LiveNode):
    """A replica becomes active, with a branch of its own."""
    fill(node, 6, 4)
    node.items.request(SetVBucket(vbucket=VBucketId(6), state=State.REPLICA))
    (gone,) = node.chaos.failover(6, lost=1)
    assert (gone.now, state_of(node, 6)) == (3, State.ACTIVE)
    assert log_of(node, 6)[0] == (gone.vbuuid, 3)


def test_a_rollback_of_a_replica_keeps_its_branch(node: LiveNode):
    """A replica goes back and stays what it is; its streams end."""
    fill(node, 7, 10)
    node.items.request(SetVBucket(vbucket=VBucketId(7), state=State.REPLICA))
    before = log_of(node, 7)
    with Reader(node) as reader:
        begun(reader, 7, 10)
        (gone,) = node.chaos.rollback(7, to=6)
        assert end_of(reader) == StreamEndReason.STATE_CHANGED
    assert (gone.now, gone.state) == (6, "replica")
    assert (state_of(node, 7), log_of(node, 7)) == (State.REPLICA, before)
    assert asked_again(node, 7, 10, before[0][0]) == 6


def test_a_rollback_of_a_dead_vbucket_keeps_it_dead(node: LiveNode):
    """What serves nobody goes on to serve nobody."""
    fill(node, 7, 10)
    node.items.request(SetVBucket(vbucket=VBucketId(7), state=State.DEAD))
    assert node.chaos.rollback(7, to=2)[0].now == 2
    assert state_of(node, 7) is State.DEAD


def test_a_rollback_of_an_active_vbucket_begins_a_branch(node: LiveNode):
    """Other changes will have the same seqnos, so they are of another branch."""
    fill(node, 8, 10)
    ((old, _),) = log_of(node, 8)
    (gone,) = node.chaos.rollback(8, to=6)
    assert log_of(node, 8) == [(gone.vbuuid, 6), (old, 0)]
    assert asked_again(node, 8, 8, old) == 6
    (again,) = node.chaos.rollback(8, to=100)
    assert (again.now, again.lost) == (6, 0)


def test_two_who_take_a_vbucket_back_wait_for_each_other(node: LiveNode):
    """Asked for at the same time, both are done, one after the other, and the vbucket is active after them."""
    fill(node, 5, 40)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: node.chaos.failover(5, lost=2)[0], range(8)))
    assert sorted(gone.now for gone in found) == list(range(24, 40, 2))
    assert {gone.lost for gone in found} == {2}
    assert state_of(node, 5) is State.ACTIVE
    assert [seqno for _, seqno in log_of(node, 5)] == [24, 0]


@pytest.mark.parametrize("seed", range(6))
def test_a_vbucket_goes_back_to_a_state_that_it_had(node: LiveNode, seed: int):
    """Whatever was written, deleted, flushed and lost before: the items are those of that seqno."""
    draw = random.Random(seed)
    keys = [key for key, _ in zip(keys_of(0, 16), range(12), strict=False)]
    states: list[dict[str, bytes]] = [{}]
    for step in range(120):
        key, act = draw.choice(keys), draw.random()
        if act < 0.7:
            (written,) = node.write({key: f"{seed} {step}".encode()})
            states.append({**states[-1], key: f"{seed} {step}".encode()})
            assert written.seqno == len(states) - 1
        elif act < 0.8 and key in states[-1]:
            node.delete(key)
            states.append({name: value for name, value in states[-1].items() if name != key})
        elif act < 0.88:
            node.flush()
        elif act < 0.95:
            lost = draw.choice([0, 1, 2, 5])
            (gone,) = node.chaos.failover(0, lost=lost)
            assert gone.lost >= min(lost, len(states) - 1)
            del states[gone.now + 1 :]
            wanted = {name.encode(): value for name, value in states[-1].items()}
            assert streamed(node, 0, gone.now) == wanted
            assert node.count() == len(wanted)
        for name in keys[:3]:
            assert states[-1].get(name) == (node.get(name) if name in states[-1] else None)


def test_purged_tombstones_send_a_consumer_back_to_the_beginning(node: LiveNode):
    """Who was away before the deletion is told to begin anew, and then never hears of it."""
    keys = fill(node, 9, 5)
    ((vbuuid, _),) = log_of(node, 9)
    node.delete(keys[0])
    node.write({keys[1]: b"last"})
    assert asked_again(node, 9, 5, vbuuid) is None
    assert node.chaos.purge(9, older_than_s=3600) == {9: 0}
    assert node.chaos.purge(9) == {9: 6}
    assert asked_again(node, 9, 5, vbuuid) == 0
    assert asked_again(node, 9, 7, vbuuid) is None
    with Reader(node) as reader:
        reader.begin(9, end=7)
        assert {item.key.decode() for item in reader.items(4)} == set(keys[1:])
        assert end_of(reader) == StreamEndReason.OK


def test_persistence_pauses_and_resumes(node: LiveNode):
    """Changes are acknowledged and streamed while they are in memory alone; resumed, they go to disk."""
    fill(node, 10, 2)
    node.flush()
    ((vbuuid, _),) = log_of(node, 10)
    node.chaos.pause()
    assert node.chaos.show()[0] == {"bucket": "default", "persistence": "paused"}
    fill(node, 10, 6)
    with Reader(node) as reader:
        reader.begin(10)
        assert reader.items(6)[-1].by_seqno == 8
    assert persisted(node, 10, vbuuid) == 2
    node.chaos.resume()
    node.flush()
    assert persisted(node, 10, vbuuid) == 8


@pytest.mark.parametrize(
    ("fault", "arguments", "told"),
    [
        ("failover", {"vbuckets": "0-"}, "vbuckets is numbers of vbuckets"),
        ("failover", {"vbuckets": 0, "lost": -1}, "lost is a whole number from 0"),
        ("rollback", {"vbuckets": 0}, "rollback needs to"),
        ("purge", {"to": 3}, "purge takes no to"),
        ("explode", {}, "there is no fault 'explode'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_sent(
    node: LiveNode, fault: str, arguments: dict[str, object], told: str
):
    """The table says what a fault takes, and the error says what is wrong."""
    from headrace.errors import LocalProtocolError  # noqa: PLC0415

    with pytest.raises(LocalProtocolError, match=told):
        node.chaos.make(fault, **arguments)


def test_the_node_checks_by_the_same_table(node: LiveNode):
    """What another client sends is refused with 0x04 and the same words."""
    from headrace.wire.catalogue import SetParam  # noqa: PLC0415

    for value, told in (
        (b"{", "takes a JSON object"),
        (b"[1]", "takes a JSON object"),
        (b'{"vbuckets": [70000]}', "vbuckets is numbers"),
        (b"", "failover needs vbuckets"),
    ):
        with pytest.raises(InvalidError, match=told):
            node.items.request(SetParam(kind=4, key=b"chaos_failover", value=value))
    with pytest.raises(NotFoundError, match="no parameter max_size"):
        node.items.request(SetParam(kind=1, key=b"max_size", value=b"1"))
