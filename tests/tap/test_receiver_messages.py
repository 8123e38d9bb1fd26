"""What a node does at each TAP message that is sent to it; capture 08l_tap_consumer is played in tests/replay."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest

from headrace.history import State
from headrace.ids import VBucketId
from headrace.node import Node, NodeLimits
from headrace.node.users import Role, User, Users
from headrace.wire import Dialect, decode, encode
from headrace.wire.catalogue import (
    Delete,
    ErrorReply,
    Get,
    GetVBucket,
    Item,
    Open,
    Set,
    SetVBucket,
    StartPersistence,
    StopPersistence,
    TapCheckpointEnd,
    TapCheckpointStart,
    TapDelete,
    TapMutation,
    VBucketStateReply,
)
from headrace.wire.codes import Datatype, OpenFlag, Status, TapFlag
from tests.node.talk import on_loop
from tests.tap.sending import ACK, CLOCK, IN_ORDER, Sender, control, flush, found, gone, high_seqno, item, state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACTIVE, REPLICA, PENDING, DEAD = 1, 2, 3, 4


@pytest.fixture
def node() -> Iterator[Node]:
    """A node of four vbuckets, all active."""
    with Node(vbuckets=4) as running:
        yield running


@pytest.fixture
def sender(node: Node) -> Iterator[Sender]:
    """A connection to it."""
    with Sender(node) as one:
        yield one


def set_state(sender: Sender, vbucket: int, number: int) -> None:
    """Set a state as a manager does."""
    assert sender.status(SetVBucket(vbucket=VBucketId(vbucket), state=number)) == 0


def state_of(sender: Sender, vbucket: int) -> int:
    """The state of a vbucket; 0 for one that is not there."""
    reply = sender.ask(GetVBucket(vbucket=VBucketId(vbucket)))
    return reply.state if isinstance(reply, VBucketStateReply) else 0


def test_an_item_is_stored_as_it_is_elsewhere(node: Node, sender: Sender):
    """Value, CAS, revision, flags and expiry are the sender's; the seqno is this node's next one."""
    sender.status(Set(key=b"before", value=b"x"))
    sent = item(b"k", b'{"a": 1}', cas=CLOCK + 7, rev=41, item_flags=0x01020304, expiry=4_000_000_000)
    assert sender.tell(sent) == [0]
    record = found(node, b"k")
    assert record is not None
    assert (record.value, record.cas, record.rev_seqno, record.flags, record.expiry, record.seqno) == (
        b'{"a": 1}', CLOCK + 7, 41, 0x01020304, 4_000_000_000, 2,
    )  # fmt: skip
    assert record.datatype == Datatype.JSON
    reply = sender.ask(Get(key=b"k"))
    assert isinstance(reply, Item)
    assert (reply.value, reply.flags, reply.cas) == (b'{"a": 1}', 0x01020304, CLOCK + 7)


def test_flags_in_the_byte_order_of_a_pc(node: Node, sender: Sender):
    """Without flag 0x04 the flags are swapped."""
    assert sender.tell(item(b"k", item_flags=0x01020304, tap_flags=ACK)) == [0]
    record = found(node, b"k")
    assert record is not None
    assert record.flags == 0x04030201


def test_a_cas_from_ahead_is_not_given_again(node: Node, sender: Sender):
    """What is changed here after an item from a clock that is ahead has a greater CAS."""
    ahead = time.time_ns() + 60 * 10**9
    assert sender.tell(item(b"k", cas=ahead)) == [0]
    sender.status(Set(key=b"k", value=b"2"))
    record = found(node, b"k")
    assert record is not None
    assert (record.cas > ahead, record.rev_seqno) == (True, 2)


def test_a_deletion_leaves_a_tombstone(node: Node, sender: Sender):
    """It has the sender's CAS and revision, also where there was no item."""
    assert sender.tell(item(b"k"), gone(b"k", cas=CLOCK + 1, rev=2), gone(b"never", cas=CLOCK + 2, rev=9)) == [0, 0, 0]
    for key, cas, rev, seqno in ((b"k", CLOCK + 1, 2, 2), (b"never", CLOCK + 2, 9, 3)):
        record = found(node, key)
        assert record is not None
        assert (record.live, record.value, record.cas, record.rev_seqno, record.seqno) == (False, b"", cas, rev, seqno)
    assert sender.status(Get(key=b"k")) == Status.KEY_NOT_FOUND


def test_a_deletion_that_has_a_value(node: Node, sender: Sender):
    """4.1.2 sends, now and then, a deletion with the value that was there; it is one all the same."""
    sent = bytes.fromhex(
        "804200060800000300000020000002cc18e8a96a1b340000"
        "00080001ff0000000000000000000060"
        "6b65793730377b226e223a203730377d"
    )
    message = decode(sent, Dialect.TAP)
    assert isinstance(message, TapDelete)
    assert (message.key, message.value, message.rev_seqno) == (b"key707", b'{"n": 707}', 0x60)
    sender.socket.sendall(sent)
    assert sender.receive().status == 0
    record = found(node, b"key707", 3)
    assert record is not None
    assert (record.live, record.value, record.rev_seqno) == (False, b"", 0x60)


def test_what_is_there_changes_nothing(node: Node, sender: Sender):
    """The same version again, live or dead, takes no seqno."""
    sent = [item(b"k"), gone(b"d"), item(b"no-cas", cas=0, rev=4), gone(b"none", rev=None, cas=0)]
    assert sender.tell(*sent, *sent) == [0] * 8
    assert high_seqno(node) == 3
    assert sender.tell(gone(b"no-cas", rev=None, cas=0), gone(b"no-cas", rev=None, cas=0)) == [0, 0]
    assert high_seqno(node) == 4


def test_in_the_order_of_arrival(node: Node, sender: Sender):
    """An older version that comes later is the one that stays: the sender knows best."""
    assert sender.tell(item(b"k", b"new", rev=5), item(b"k", b"old", rev=3, cas=CLOCK - 9)) == [0, 0]
    record = found(node, b"k")
    assert record is not None
    assert (record.value, record.rev_seqno, record.cas) == (b"old", 3, CLOCK - 9)


def test_without_engine_bytes(node: Node, sender: Sender):
    """An item and a deletion that tell no revision get the next one, and a CAS where they have none."""
    assert sender.tell(item(b"k", rev=None), item(b"k", b"2", rev=None, cas=0)) == [0, 0]
    record = found(node, b"k")
    assert record is not None
    assert (record.rev_seqno, record.value) == (2, b"2")
    assert record.cas > CLOCK
    assert sender.tell(gone(b"k", rev=None, cas=0)) == [0]
    record = found(node, b"k")
    assert record is not None
    assert (record.rev_seqno, record.live) == (3, False)


@pytest.mark.parametrize("number", [ACTIVE, REPLICA, PENDING])
def test_states_that_take_items(node: Node, sender: Sender, number: int):
    """Active, replica and pending vbuckets take items."""
    set_state(sender, 1, number)
    assert sender.tell(item(b"k", vbucket=1), gone(b"d", vbucket=1)) == [0, 0]
    assert high_seqno(node, 1) == 2


def test_states_that_take_none(sender: Sender):
    """A dead vbucket and one that is not there are not mine."""
    set_state(sender, 1, DEAD)
    wrong = Status.NOT_MY_VBUCKET
    assert sender.tell(item(b"k", vbucket=1), gone(b"k", vbucket=1), item(b"k", vbucket=60)) == [wrong] * 3


@pytest.mark.parametrize(
    "message",
    [
        item(b"k", ttl=0),
        gone(b"k", ttl=0),
        dataclasses.replace(flush(), ttl=0),
        dataclasses.replace(control(), ttl=0),
        item(b"k", b"", tap_flags=ACK | TapFlag.NO_VALUE),
        item(b"k", cas=0xFFFF_FFFF_FFFF_FFFF),
        item(b"k", rev=1 << 63),
        item(b"k" * 251),
        item(b"k", b"no snappy", datatype=Datatype.SNAPPY),
    ],
    ids=lambda message: f"{message.spec.name}",
)
def test_what_cannot_be(node: Node, sender: Sender, message: TapMutation):
    """A TTL that is used up, an item without its value, numbers and keys that no item has: refused, nothing stored."""
    assert sender.tell(message) == [Status.INVALID]
    assert high_seqno(node) == 0


def test_silence_and_refusals(sender: Sender):
    """Unasked, nothing is told; after OPAQUE 0 refusals are, and still nothing of what went well."""
    fine, wrong = item(b"k", tap_flags=IN_ORDER), item(b"k", vbucket=60, tap_flags=IN_ORDER)
    assert sender.send_unasked(fine, wrong) == []
    assert sender.tell(control()) == [0]
    (told,) = sender.send_unasked(fine, wrong)
    assert isinstance(told, ErrorReply)
    assert told.status == Status.NOT_MY_VBUCKET


def test_turns_of_the_stream(node: Node, sender: Sender):
    """Opaque messages of any code and checkpoints are acknowledged, and change nothing."""
    codes = [control(code, vbucket=1) for code in (*range(9), 99)]
    checkpoints = [TapCheckpointStart(checkpoint=5, tap_flags=ACK), TapCheckpointEnd(checkpoint=1, tap_flags=ACK)]
    sender.status(Set(key=b"k", value=b"x"))
    assert sender.tell(*codes, *checkpoints) == [0] * 12
    assert high_seqno(node) == 1


def test_flush(node: Node, sender: Sender):
    """Every item goes, of active vbuckets and of copies, as a deletion that streams see; a dead vbucket keeps its."""
    for vbucket, number in ((1, REPLICA), (2, PENDING)):
        set_state(sender, vbucket, number)
    sender.tell(*(item(b"k%d" % n, vbucket=vb) for vb in range(4) for n in range(50)))
    sender.tell(*(item(b"old%d" % n, vbucket=1, expiry=1_000_000_000) for n in range(3)))
    set_state(sender, 3, DEAD)
    assert sender.tell(flush()) == [0]
    assert [high_seqno(node, vb) for vb in range(4)] == [100, 106, 100, 50]
    for vb in range(3):
        record = found(node, b"k7", vb)
        assert record is not None
        assert not record.live
    record = found(node, b"k7", 3)
    assert record is not None
    assert record.live


def test_steps_of_a_takeover(node: Node, sender: Sender):
    """A vbucket is made pending, filled and made active, and the disk knows each step when it is acknowledged."""
    sender.status(SetVBucket(vbucket=VBucketId(1), state=DEAD))
    for number in (PENDING, REPLICA, PENDING, ACTIVE):
        assert sender.tell(state(1, number), item(b"k%d" % number, vbucket=1), state(1, number)) == [0, 0, 0]
        assert state_of(sender, 1) == number

        def on_disk() -> tuple[State | None, int, int]:
            opened = node.running.services.buckets.get("default")
            assert opened is not None
            vb = opened.bucket.vbucket(1)
            return vb.state_on_disk, vb.persisted_seqno, vb.high_seqno

        known, persisted, high = on_loop(node, on_disk)
        assert (known, persisted) == (State(number), high)


def test_a_vbucket_is_made(node: Node, sender: Sender):
    """A vbucket that is not there is made; one beyond the bucket is not mine."""
    sender.status(SetVBucket(vbucket=VBucketId(1), state=DEAD))
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    on_loop(node, lambda: opened.flusher.delete_vbucket(opened.bucket.vbucket(1)))
    assert state_of(sender, 1) == 0
    assert sender.tell(state(1, PENDING), item(b"k", vbucket=1), state(1, ACTIVE)) == [0, 0, 0]
    assert sender.tell(state(4, ACTIVE)) == [Status.NOT_MY_VBUCKET]


def test_who_makes_it_active(node: Node, sender: Sender):
    """Only who put it in the state before, and only if nobody changed that since."""
    assert sender.tell(state(1, PENDING)) == [0]
    with Sender(node) as other:
        assert other.tell(state(1, ACTIVE)) == [Status.NOT_MY_VBUCKET]
        set_state(other, 1, DEAD)
        set_state(other, 1, PENDING)
    assert sender.tell(state(1, ACTIVE)) == [Status.NOT_MY_VBUCKET]
    assert sender.tell(state(1, REPLICA), item(b"k", vbucket=1), state(1, ACTIVE), state(1, ACTIVE)) == [0] * 4
    assert state_of(sender, 1) == ACTIVE


def test_active_waits_for_the_disk(sender: Sender, node: Node):
    """With persistence stopped, a step is not acknowledged before it goes on."""
    assert sender.tell(state(1, PENDING)) == [0]
    with Sender(node) as manager:
        manager.ask(StopPersistence())
        sender.send(state(1, ACTIVE))
        sender.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sender.receive()
        manager.ask(StartPersistence())
    sender.socket.settimeout(20)
    assert sender.receive().status == 0


def test_states_that_end_the_connection(node: Node):
    """A state that is none, and one that is not among the engine's bytes, end the connection, unanswered."""
    state_in_value = bytearray(encode(state(1, REPLICA), Dialect.TAP))
    state_in_value[25] = 0
    for wrong in (encode(state(1, 9), Dialect.TAP), bytes(state_in_value)):
        with Sender(node) as one:
            one.socket.sendall(wrong)
            assert one.ends()
    with Sender(node) as one:
        assert state_of(one, 1) == ACTIVE


def test_on_a_connection_of_streams(sender: Sender):
    """Who has opened the connection for streams sends no TAP on it."""
    assert sender.status(Open(name=b"stream", flags=OpenFlag.PRODUCER)) == 0
    assert sender.tell(item(b"k")) == [Status.INVALID]


def test_a_copy_begins_a_branch(node: Node, sender: Sender):
    """A replica names its changes by TAP by a branch of its own, once; an active vbucket has one already."""
    set_state(sender, 1, REPLICA)

    def branches(vbucket: int) -> int:
        opened = node.running.services.buckets.get("default")
        assert opened is not None
        return len(opened.bucket.vbucket(vbucket).failover_log)

    before = branches(1), branches(0)
    sender.tell(*(item(b"k%d" % n, vbucket=vb) for n in range(3) for vb in (0, 1)))
    assert (branches(1), branches(0)) == (before[0] + 1, before[1])


def test_roles(tmp_path: Path):
    """To send TAP takes the role admin: it writes past conflicts, and changes states."""
    path = tmp_path / "users.json"
    roles = {"writer": {Role.READ, Role.WRITE, Role.STREAM}, "boss": {Role.ADMIN}}
    Users([User.create(name, "correct horse", each, iterations=4096) for name, each in roles.items()]).save(path)
    with Node(vbuckets=2, users=path) as node, Sender(node) as sender:
        assert sender.tell(item(b"k")) == [Status.AUTH_ERROR]
        for name, status in (("writer", Status.NO_ACCESS), ("boss", Status.SUCCESS)):
            sender.log_in(name, "correct horse")
            assert sender.tell(item(b"k")) == [status]


def test_hops(node: Node, sender: Sender):
    """How far a change may still go is kept by its seqno."""
    sender.status(Set(key=b"own", value=b"x"))
    sender.tell(item(b"k", ttl=9), gone(b"k", ttl=1))
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    assert [opened.bucket.hops.left(0, seqno) for seqno in (1, 2, 3)] == [255, 8, 0]


def test_every_write_on_disk():
    """With --sync every-write an ack tells that the item is on disk; a disk that refuses makes it a nack."""
    with Node(vbuckets=2, sync_every_write=True) as node, Sender(node) as sender:
        opened = node.running.services.buckets.get("default")
        assert opened is not None
        assert sender.tell(item(b"k", b"x" * 100)) == [0]
        assert on_loop(node, lambda: opened.bucket.vbucket(0).persisted_seqno) == 1
        sender.ask(StopPersistence())
        assert sender.tell(item(b"k2")) == [Status.TEMPORARY_FAILURE]


def test_a_disk_that_is_behind():
    """Items that the disk cannot take are refused for now, and taken when they are sent again."""
    limits = NodeLimits(dirty_bytes_max=200_000)
    with Node(vbuckets=2, limits=limits) as node, Sender(node) as sender, Sender(node) as manager:
        manager.ask(StopPersistence())
        sent = [item(b"k%d" % n, b"x" * 10_000) for n in range(40)]
        told = sender.tell(*sent)
        assert set(told) == {0, Status.TEMPORARY_FAILURE}
        manager.ask(StartPersistence())
        while Status.TEMPORARY_FAILURE in told:
            told = sender.tell(*sent)
        assert high_seqno(node) == 40


def test_deleted_here_and_sent_again(sender: Sender):
    """What was removed here comes back when the sender brings it: the sender knows best."""
    sender.tell(item(b"k"))
    sender.status(Delete(key=b"k"))
    assert sender.tell(item(b"k")) == [0]
    assert sender.status(Get(key=b"k")) == 0


def test_garbage_is_refused(sender: Sender):
    """A TAP message that cannot be read is refused, and the connection goes on."""
    broken = bytearray(encode(item(b"key"), Dialect.TAP))
    broken[24:26] = (200).to_bytes(2, "big")
    sender.socket.sendall(broken)
    assert sender.receive().status == Status.INVALID
    assert sender.tell(item(b"key")) == [0]
