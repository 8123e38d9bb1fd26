"""What happens at the edges: of locks, removals, restarts, faults of our own, and clients that do not play along."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import HeadraceError
from headrace.ids import Cas, Seqno, VBucketId
from headrace.node import Node, NodeLimits
from headrace.node.dispatch import HANDLERS, Handler, Who
from headrace.node.users import Role, User, Users
from headrace.wire.catalogue import (
    Append,
    CreateBucket,
    Delete,
    DeleteBucket,
    DeleteVBucket,
    DeleteWithMeta,
    Done,
    ErrorReply,
    FlushQ,
    Get,
    GetAllVBSeqnos,
    GetClusterConfig,
    GetFailoverLog,
    GetLocked,
    GetVBucket,
    Increment,
    Item,
    ListBuckets,
    Mutated,
    Noop,
    SelectBucket,
    SeqnoPersistence,
    Set,
    SetQ,
    SetVBucket,
    SetWithMeta,
    Stat,
    Text,
)
from headrace.wire.codes import Datatype, Feature, Status, VBucketState
from headrace.wire.xattrs import join_xattrs
from tests.node.talk import Talk, on_loop
from tests.node.test_durability import opened

if TYPE_CHECKING:
    from pathlib import Path


def test_a_refused_change_keeps_the_lock(node: Node):
    """What did not change the item did not end its lock either; a change did, and so does its time."""
    with Talk(node, Feature.XERROR) as talk:
        talk.get(Set(key=b"kept", value=b"text"), Mutated)
        locked = talk.get(GetLocked(key=b"kept", lock_time=20), Item)
        assert talk.status(Increment(key=b"kept", delta=1, cas=locked.cas)) == Status.DELTA_BAD_VALUE
        assert talk.status(Set(key=b"kept", value=b"other")) == Status.LOCKED
        assert talk.status(Set(key=b"kept", value=b"mine", cas=locked.cas)) == Status.SUCCESS
        assert talk.status(Set(key=b"kept", value=b"free")) == Status.SUCCESS


def test_a_lock_ends_with_its_item(node: Node):
    """An item that expired under its lock leaves none to the one that comes after it; old locks are swept."""
    with Talk(node, Feature.XERROR) as talk:
        talk.get(Set(key=b"brief", value=b"x", expiry=1), Mutated)
        talk.get(GetLocked(key=b"brief", lock_time=20), Item)
        talk.get(Set(key=b"left", value=b"x"), Mutated)
        talk.get(GetLocked(key=b"left", lock_time=1), Item)
        time.sleep(2.1)
        assert talk.status(Set(key=b"brief", value=b"new")) == Status.SUCCESS
        assert talk.status(Set(key=b"brief", value=b"newer")) == Status.SUCCESS
        deadline = time.monotonic() + 10
        while opened(node).bucket.locks and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not opened(node).bucket.locks


def test_xattrs_stay_when_the_body_changes(node: Node):
    """Append and increment touch the body alone; a get shows no xattrs."""
    with Talk(node) as talk:
        for key, body, change, shown in (
            (b"xa", b"body", Append(key=b"xa", value=b"!"), b"body!"),
            (b"xi", b"41", Increment(key=b"xi", delta=1), b"42"),
        ):
            value = join_xattrs({b"_sync": b"{}"}, body)
            meta = SetWithMeta(key=key, value=value, rev_seqno=1, item_cas=9, datatype=Datatype.XATTR)
            talk.get(meta, Mutated)
            assert talk.get(Get(key=key), Item).value == body
            assert talk.status(change) == Status.SUCCESS
            assert talk.get(Get(key=key), Item).value == shown
            _, record = on_loop(node, partial(opened(node).bucket.item, 0, key))
            assert record.value == join_xattrs({b"_sync": b"{}"}, shown)


def test_with_meta_is_checked_like_all_else(node: Node):
    """A revision without a next one, xattrs that are none, a tombstone larger than an item: refused."""
    with Talk(node) as talk:
        assert talk.status(SetWithMeta(key=b"w", rev_seqno=2**64 - 1, item_cas=1)) == Status.INVALID
        damaged = SetWithMeta(key=b"w", value=b"\xff" * 9, rev_seqno=1, item_cas=1, datatype=Datatype.XATTR)
        assert talk.status(damaged) == Status.XATTR_INVALID
        large = DeleteWithMeta(key=b"w", value=bytes(21 << 20), rev_seqno=1, item_cas=1)
        assert talk.status(large) == Status.TOO_BIG
        assert talk.status(SetWithMeta(key=b"w", value=b"v", rev_seqno=2**63 - 1, item_cas=1)) == Status.SUCCESS
        for message in (Set(key=b"w", value=b"x"), SetQ(key=b"w", value=b"y"), Delete(key=b"w")):
            talk.send(message, Noop())
            replies = [talk.receive() for _ in range(1 if isinstance(message, SetQ) else 2)]
            assert {reply.status for reply in replies} == {Status.SUCCESS}


def test_reading_alone_fills_no_memory(tmp_path: Path):
    """What gets bring in from disk is dropped again once it is more than memory may hold."""
    with Node(vbuckets=4, data=tmp_path) as node, Talk(node) as talk:
        for index in range(500):
            talk.send(SetQ(key=b"k%d" % index, value=bytes(10_000)))
        talk.get(SeqnoPersistence(seqno=Seqno(500)), Done)
    with Node(vbuckets=4, data=tmp_path, limits=NodeLimits(resident_bytes_max=1 << 20)) as node, Talk(node) as talk:
        for index in range(500):
            talk.get(Get(key=b"k%d" % index), Item)
        assert 0 <= opened(node).bucket.resident_bytes <= 1 << 20


def test_what_memory_holds_is_counted_once(tmp_path: Path):
    """An item that is written again and again takes the room of one."""
    with Node(vbuckets=4, data=tmp_path) as node, Talk(node, Feature.MUTATION_SEQNO) as talk:
        for _ in range(20):
            seqno = talk.get(Set(key=b"again", value=bytes(100_000)), Mutated).seqno
            talk.get(SeqnoPersistence(seqno=Seqno(seqno or 0)), Done)
        assert 100_000 < opened(node).bucket.resident_bytes < 110_000


def test_flushes_that_were_put_off_are_one(node: Node):
    """However many are asked for, the last one counts, and nothing gathers."""
    with Talk(node) as talk:
        talk.send(*[FlushQ(expiry=1000 + index) for index in range(2000)], Noop())
        talk.receive()
        tasks = on_loop(node, lambda: len(asyncio.all_tasks()))
        assert tasks < 30


def test_a_vbucket_that_was_waited_for_may_be_removed(tmp_path: Path):
    """A removal that comes to its turn late removes nothing that has become active meanwhile."""
    with Node(vbuckets=4, data=tmp_path) as node, Talk(node) as talk, Talk(node) as other:
        flusher = opened(node).flusher
        talk.get(SetVBucket(vbucket=VBucketId(2), state=VBucketState.DEAD), Done)
        on_loop(node, flusher._lock.acquire)
        talk.send(DeleteVBucket(vbucket=VBucketId(2)))
        time.sleep(0.2)
        other.send(SetVBucket(vbucket=VBucketId(2), state=VBucketState.ACTIVE))
        time.sleep(0.2)
        on_loop(node, flusher._lock.release)
        assert talk.receive().status == Status.NOT_MY_VBUCKET
        assert other.receive().status == Status.SUCCESS
        assert other.status(Set(vbucket=VBucketId(2), key=b"k", value=b"v")) == Status.SUCCESS


def test_removed_vbuckets_stay_removed(tmp_path: Path):
    """A restart makes no vbucket anew that was there once; and its map is newer than all before."""
    with Node(vbuckets=1, data=tmp_path) as node, Talk(node) as talk:
        before = json.loads(talk.get(GetClusterConfig(), Text).value)
        talk.get(SetVBucket(state=VBucketState.DEAD), Done)
        talk.get(DeleteVBucket(), Done)
    with Node(vbuckets=1, data=tmp_path) as node, Talk(node) as talk:
        assert talk.status(GetVBucket()) == Status.NOT_MY_VBUCKET
        after = json.loads(talk.get(GetClusterConfig(), Text).value)
        assert (after["revEpoch"], after["rev"]) > (before["revEpoch"], before["rev"])


def test_a_removed_bucket_does_not_come_back(tmp_path: Path):
    """A removal that was cut short is finished at the next start."""
    with Node(vbuckets=1, data=tmp_path) as node, Talk(node) as talk:
        talk.get(CreateBucket(name=b"short"), Done)
        talk.get(DeleteBucket(name=b"short"), Done)
        assert [path.name for path in (tmp_path / "buckets").iterdir()] == ["default"]
    (tmp_path / "buckets" / ".removed-1" / "store").mkdir(parents=True)
    (tmp_path / "buckets" / ".removed-1" / "bucket.json").write_text("{}")
    with Node(vbuckets=1, data=tmp_path) as node, Talk(node) as talk:
        assert talk.get(ListBuckets(), Text).value == b"default"
        assert not (tmp_path / "buckets" / ".removed-1").exists()


def test_a_store_that_is_gone_is_not_made_anew(tmp_path: Path):
    """An empty start in the place of data would be taken for an empty bucket."""
    with Node(vbuckets=1, data=tmp_path):
        pass
    (tmp_path / "buckets" / "default" / "store" / "data.mdb").unlink()
    with pytest.raises(HeadraceError, match="no store any more"), Node(vbuckets=1, data=tmp_path):
        pass


def test_a_fault_of_ours_is_answered_as_one(node: Node, monkeypatch: pytest.MonkeyPatch):
    """The client is told, the connection goes on, and so does the flusher that ran into another's fault."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    async def fail_later(*_: Any) -> None:
        fail()

    with Talk(node, Feature.MUTATION_SEQNO) as talk:
        for handler in (fail, fail_later):
            monkeypatch.setitem(HANDLERS, "version", Handler(handler, Who.ANYONE, None, bucket=False))
            talk.socket.sendall(bytes.fromhex("800b0000") + bytes(20))
            reply = talk.receive()
            assert isinstance(reply, ErrorReply)
            assert reply.status == Status.INTERNAL_ERROR
        loop_faults: list[Any] = []
        on_loop(node, lambda: node.loop.set_exception_handler(lambda _, context: loop_faults.append(context)))
        opened(node).flusher.after.append(fail)
        seqno = talk.get(Set(key=b"after", value=b"1"), Mutated).seqno
        talk.get(SeqnoPersistence(seqno=Seqno(seqno or 0)), Done)
        seqno = talk.get(Set(key=b"after", value=b"2"), Mutated).seqno
        talk.get(SeqnoPersistence(seqno=Seqno(seqno or 0)), Done)
        assert len(loop_faults) == 1


def test_who_does_not_read_is_left(tmp_path: Path):
    """Answers that nobody takes are not kept for ever, nor without bound."""
    limits = NodeLimits(unread_s_max=1.0, reply_bytes_max=1 << 20)
    with Node(vbuckets=1, data=tmp_path, limits=limits) as node, Talk(node) as talk, Talk(node) as mute:
        talk.get(Set(key=b"large", value=bytes(4 << 20)), Mutated)
        mute.send(*[Get(key=b"large")] * 20)
        deadline = time.monotonic() + 15
        while len(node.running.services.connections) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(node.running.services.connections) == 1
        assert node.running.services.unread_bytes == 0
        assert talk.status(Noop()) == Status.SUCCESS


def test_who_streams_may_ask_how_far_vbuckets_are(tmp_path: Path):
    """The role stream is enough for what a consumer asks before it streams, and for no item."""
    path = tmp_path / "users.json"
    Users([User.create("spark", "secret", {Role.STREAM}, iterations=4096)]).save(path)
    with Node(vbuckets=1, users=path) as node, Talk(node, Feature.SELECT_BUCKET) as talk:
        talk.log_in("spark", "secret")
        talk.get(SelectBucket(name=b"default"), Done)
        for message in (GetAllVBSeqnos(), GetFailoverLog(), GetClusterConfig()):
            assert talk.status(message) == Status.SUCCESS
        talk.send(Stat(key=b"uuid"))
        assert talk.receive().status == Status.SUCCESS
        while talk.receive().key:  # type: ignore[attr-defined]
            pass
        assert talk.status(Get(key=b"k")) == Status.NO_ACCESS
        assert talk.status(Set(key=b"k", cas=Cas(0))) == Status.NO_ACCESS


def test_guesses_cost_a_connection(tmp_path: Path):
    """After ten wrong passwords one has to connect again."""
    path = tmp_path / "users.json"
    Users([User.create("ann", "secret", {Role.READ}, iterations=4096)]).save(path)
    with Node(vbuckets=1, users=path) as node, Talk(node) as talk:
        assert [talk.log_in("ann", "wrong").status for _ in range(10)] == [Status.AUTH_ERROR] * 10
        assert talk.ends()
