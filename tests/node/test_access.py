"""Who may do what: users, roles, buckets, and the first words of a client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.node import Node, NodeError, NodeOptions
from headrace.node.users import Role, User, Users
from headrace.wire.catalogue import (
    CreateBucket,
    DeleteBucket,
    Done,
    ErrorReply,
    Flush,
    Get,
    GetClusterConfig,
    GetErrorMap,
    Hello,
    HelloReply,
    Item,
    ListBuckets,
    Mutated,
    Noop,
    SaslListMechs,
    SelectBucket,
    Set,
    SetVBucket,
    StopPersistence,
    Text,
    Version,
)
from headrace.wire.codes import Feature, Status
from tests.node.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that asks who one is."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    Users(
        [
            User.create("reader", PASSWORD, {Role.READ}, iterations=4096),
            User.create("writer", PASSWORD, {Role.READ, Role.WRITE}, {"default"}, iterations=4096),
            User.create("other", PASSWORD, {Role.READ, Role.WRITE}, {"other"}, iterations=4096),
            User.create("boss", PASSWORD, {Role.ADMIN}, iterations=4096),
        ]
    ).save(path)
    with Node(vbuckets=4, users=path, buckets=("default", "other")) as node:
        yield node


def test_nothing_but_loopback_without_users():
    """An address that others reach takes a users file, and the refusal says how to make one."""
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(NodeError, match="headrace user add"):
            NodeOptions(host=host)
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert NodeOptions(host=host).host == host


def test_the_number_of_vbuckets_is_a_power_of_two():
    """Others are refused before anything is opened."""
    for wrong in (0, -1, 3, 1000, 2048):
        with pytest.raises(NodeError, match="power of two"):
            NodeOptions(vbuckets=wrong)


def test_who_is_unknown_may_only_say_who_they_are(guarded: Node):
    """Everything else is an authentication error, whether it is known or not, right or malformed."""
    with Talk(guarded) as talk:
        assert talk.status(Noop()) == Status.SUCCESS
        assert talk.status(Version()) == Status.SUCCESS
        assert b"SCRAM-SHA512" in talk.get(SaslListMechs(), Text).value
        for message in (Get(key=b"k"), Set(key=b"k"), ListBuckets(), SelectBucket(name=b"default"), Flush()):
            assert talk.status(message) == Status.AUTH_ERROR
        talk.socket.sendall(bytes.fromhex("80ee0000000000000000000000000001" + "00" * 8))
        assert talk.receive_raw().header.specific == Status.AUTH_ERROR


def test_roles_open_what_they_name(guarded: Node):
    """Read reads, write writes, admin does all; a bucket that is not theirs is closed to them."""
    with Talk(guarded) as boss:
        assert boss.log_in("boss", PASSWORD).status == Status.SUCCESS
        assert boss.status(Set(key=b"k", value=b"v")) == Status.SUCCESS
        assert boss.status(SetVBucket(state=1)) == Status.SUCCESS
    with Talk(guarded) as reader:
        reader.log_in("reader", PASSWORD)
        assert reader.get(Get(key=b"k"), Item).value == b"v"
        for message in (Set(key=b"k"), Set(key=b"k", value=b"{}"), Flush(), StopPersistence(), SetVBucket(state=4)):
            assert reader.status(message) == Status.NO_ACCESS
    with Talk(guarded) as writer:
        writer.log_in("writer", PASSWORD)
        assert writer.status(Set(key=b"k", value=b"w")) == Status.SUCCESS
        assert writer.status(SetVBucket(state=4)) == Status.NO_ACCESS
        assert writer.status(SelectBucket(name=b"other")) == Status.NO_ACCESS
        assert writer.status(CreateBucket(name=b"mine")) == Status.NO_ACCESS
    with Talk(guarded) as other:
        other.log_in("other", PASSWORD)
        assert other.status(Get(key=b"k")) == Status.NO_BUCKET
        assert other.status(SelectBucket(name=b"other")) == Status.SUCCESS
        assert other.status(Get(key=b"k")) == Status.KEY_NOT_FOUND
        assert other.get(ListBuckets(), Text).value == b"other"


def test_a_wrong_password_lets_nobody_in_and_may_be_tried_again(guarded: Node):
    """A refusal leaves the client unknown; a login that follows counts, and a failed one after it does not undo it."""
    with Talk(guarded) as talk:
        assert talk.log_in("boss", "wrong").status == Status.AUTH_ERROR
        assert talk.log_in("nobody", PASSWORD).status == Status.AUTH_ERROR
        assert talk.status(Get(key=b"k")) == Status.AUTH_ERROR
        assert talk.log_in("reader", PASSWORD).status == Status.SUCCESS
        assert talk.status(Set(key=b"k")) == Status.NO_ACCESS


def test_hello_agrees_on_what_both_know_in_the_order_asked(node: Node):
    """Unknown and unserved features are left out; a second hello replaces the first."""
    with Talk(node) as talk:
        asked = (0x0B, 0x01, 0x12, 0x04, 0x7777, 0x0A, 0x0B)
        assert talk.get(Hello(agent=b"x", features=asked), HelloReply).features == (0x0B, 0x04, 0x0A)
        assert talk.get(Set(key=b"h", value=b"1"), Mutated).seqno is not None
        assert talk.get(Hello(agent=b"x"), HelloReply).features == ()
        assert talk.get(Set(key=b"h", value=b"1"), Mutated).seqno is None


def test_who_can_select_a_bucket_has_none_until_then(node: Node):
    """Memcached's clients work on `default` unasked; SDKs select, and get a map of no bucket before."""
    with Talk(node, Feature.SELECT_BUCKET, Feature.JSON) as talk:
        assert talk.status(Get(key=b"x")) == Status.NO_BUCKET
        without = json.loads(talk.get(GetClusterConfig(), Text).value)
        assert without["nodesExt"][0]["services"]["kv"] == node.port
        assert "vBucketServerMap" not in without
        assert talk.status(SelectBucket(name=b"nope")) == Status.NO_ACCESS
        talk.get(SelectBucket(name=b"default"), Done)
        reply = talk.get(GetClusterConfig(), Text)
        config = json.loads(reply.value)
        assert reply.datatype == 1
        assert config["nodesExt"][0]["services"]["kv"] == node.port
        assert config["nodesExt"][0]["services"]["mgmt"] > 0
        assert len(config["nodes"]) == 1
        assert config["vBucketServerMap"]["vBucketMap"] == [[0]] * 16
        known = GetClusterConfig(epoch=config["revEpoch"], revision=config["rev"])
        assert talk.get(known, Text).value == b""
        talk.get(SelectBucket(name=b""), Done)
        assert talk.status(Get(key=b"x")) == Status.NO_BUCKET


def test_the_map_follows_the_states(node: Node):
    """A vbucket that is not active has no node, and the revision rises."""
    with Talk(node) as talk:
        before = json.loads(talk.get(GetClusterConfig(), Text).value)
        talk.get(SetVBucket(vbucket=9, state=4), Done)  # type: ignore[arg-type]
        after = json.loads(talk.get(GetClusterConfig(), Text).value)
        talk.get(SetVBucket(vbucket=9, state=1), Done)  # type: ignore[arg-type]
        assert after["vBucketServerMap"]["vBucketMap"][9] == [-1]
        assert after["rev"] > before["rev"]


def test_the_error_map_has_every_status_that_may_come(node: Node):
    """In the version that both know, with hexadecimal keys."""
    with Talk(node) as talk:
        for asked, told in ((1, 1), (2, 2), (9, 2)):
            errors = json.loads(talk.get(GetErrorMap(version=asked), Text).value)
            assert errors["version"] == told
            assert errors["errors"]["86"]["attrs"] == ["temp", "retry-later"]
        assert talk.status(GetErrorMap(version=0)) == Status.INVALID


def test_buckets_are_made_and_removed(node: Node):
    """A new bucket is empty and apart; a removed one takes its connections' bucket with it."""
    with Talk(node) as talk, Talk(node, Feature.SELECT_BUCKET) as inside:
        talk.get(Set(key=b"in", value=b"default"), Mutated)
        talk.get(CreateBucket(name=b"second", configuration=b"ep.so\0"), Done)
        assert talk.status(CreateBucket(name=b"second")) == Status.KEY_EXISTS
        assert talk.get(ListBuckets(), Text).value == b"default second"
        inside.get(SelectBucket(name=b"second"), Done)
        assert inside.status(Get(key=b"in")) == Status.KEY_NOT_FOUND
        inside.get(Set(key=b"in", value=b"second"), Mutated)
        assert talk.get(Get(key=b"in"), Item).value == b"default"
        talk.get(DeleteBucket(name=b"second"), Done)
        assert inside.status(Get(key=b"in")) == Status.NO_BUCKET
        assert talk.status(DeleteBucket(name=b"second")) == Status.KEY_NOT_FOUND
        for wrong in (b"a/b", b"..", b".hidden", b"x" * 101, "\N{SNOWMAN}".encode()):
            reply = talk.ask(CreateBucket(name=wrong))
            assert isinstance(reply, ErrorReply)
            assert reply.status == Status.INVALID


def test_an_open_node_takes_any_plain_login(node: Node):
    """Old clients send a name and a password even where nobody asks."""
    with Talk(node) as talk:
        assert talk.log_in("anyone", "anything").status == Status.SUCCESS
        assert talk.status(Set(key=b"open", value=b"1")) == Status.SUCCESS


def test_data_of_another_size_is_not_opened(tmp_path: Path):
    """Started with another number of vbuckets, a node says which number the data has."""
    with Node(vbuckets=4, data=tmp_path):
        pass
    with pytest.raises(Exception, match="--vbuckets 4"), Node(vbuckets=8, data=tmp_path):
        pass
    with Node(vbuckets=4, data=tmp_path) as node, Talk(node) as talk:
        assert talk.status(Noop()) == Status.SUCCESS
