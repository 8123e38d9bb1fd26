"""TAP CONNECT: what comes for each flag, in which order, and how it is refused."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import pytest

from headrace.ids import VBucketId
from headrace.node import Node, NodeLimits
from headrace.node.users import Role, User, Users
from headrace.wire import Dialect, Frame, Response, decode, deflate
from headrace.wire.catalogue import (
    Delete,
    DeregisterTapClient,
    Done,
    ErrorReply,
    Noop,
    Open,
    Set,
    SetVBucket,
    SetWithMeta,
    TapMutation,
)
from headrace.wire.codes import Datatype, Feature, OpenFlag, Status, TapConnectFlag, TapFlag
from tests.node.talk import Talk, on_loop
from tests.tap.tap_reader import FOREVER, ITEMS, TapReader, keys, shapes

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.testing import LiveNode

F = TapConnectFlag
VBUCKETS = 8
REPLICA, DEAD = 2, 4
CONNECT = 0x40
PASSWORD = "correct horse"


def put(node: Node, key: str, value: bytes = b"v", *, vbucket: int = 0, flags: int = 0, expiry: int = 0) -> None:
    """Set an item in a vbucket."""
    with Talk(node) as talk:
        item = Set(vbucket=VBucketId(vbucket), key=key.encode(), value=value, flags=flags, expiry=expiry)
        assert talk.status(item) == 0


def state(node: Node, vbucket: int, number: int) -> None:
    """Put a vbucket in a state."""
    with Talk(node) as talk:
        talk.get(SetVBucket(vbucket=VBucketId(vbucket), state=number), Done)


@pytest.mark.parametrize("flags", [None, 0])
def test_without_flags_old_items_come_and_then_new_ones(node: LiveNode, flags: int | None):
    """Every vbucket is named, sent and closed; no acks are asked for; each message has a number of its own."""
    put(node, "a", vbucket=2)
    put(node, "b", vbucket=1)
    with TapReader(node, flags=flags) as tap:
        got = shapes(tap.read(lambda one: shapes([one]) == [("opaque", 8, VBUCKETS - 1)]))
        assert got == [
            *(("opaque", 1, vb) for vb in range(VBUCKETS)),
            ("set", b"b", b"v"),
            ("set", b"a", b"v"),
            *(("opaque", 8, vb) for vb in range(VBUCKETS)),
        ]
        put(node, "a", b"new", vbucket=2)
        (new,) = tap.read_items(1)
        assert (new.key, new.vbucket, new.tap_flags, new.ttl, new.rev_seqno) == (b"a", 2, 0, 255, 2)
        assert tap.opaques == list(range(1, 2 * VBUCKETS + 4))


def test_a_dump_ends_by_itself_and_mentions_no_empty_vbuckets(node: LiveNode):
    """Old items alone, deletions too, then the end of the connection."""
    put(node, "gone", vbucket=3)
    put(node, "there", vbucket=3)
    with Talk(node) as talk:
        assert talk.status(Delete(vbucket=VBucketId(3), key=b"gone")) == 0
    with TapReader(node, flags=F.DUMP) as tap:
        got = tap.read_all()
    assert shapes(got) == [("opaque", 1, 3), ("set", b"there", b"v"), ("delete", b"gone"), ("opaque", 8, 3)]


def test_a_dump_of_nothing_ends_at_once(node: LiveNode):
    """So does one that wants later changes alone."""
    with TapReader(node, flags=F.DUMP) as tap:
        assert tap.read_all() == []
    put(node, "a")
    with TapReader(node, flags=F.DUMP | F.SUPPORT_ACK, date=FOREVER) as tap:
        assert shapes(tap.read_all()) == [("opaque", 0, 0)]


def test_a_dump_waits_for_its_last_ack(node: LiveNode):
    """The connection is closed when all is acknowledged, and not before."""
    put(node, "a")
    with TapReader(node, flags=F.DUMP | F.SUPPORT_ACK) as tap:
        tap.acks = False
        got = tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
        with Talk(node) as talk:
            told = talk.stats(b"tap")
            assert told["ep_tap_count"] == "1"
        tap.ack(got[-1], key=b"0" * 36)
        assert tap.ends()


def test_a_slow_reader_of_a_dump_is_not_cut(node: LiveNode):
    """What the node has sent is read to its end, though the node was done with it long before."""
    value = b"x" * 100_000
    for number in range(60):
        put(node, f"key-{number}", value)
    with TapReader(node, flags=F.DUMP) as tap:
        assert shapes([tap.next()]) == [("opaque", 1, 0)]
        time.sleep(7)  # longer than clients that are told to go have
        assert len(keys(tap.read_all())) == 60


@pytest.mark.parametrize(("date", "old"), [(0, True), (FOREVER, False)])
def test_dates(node: LiveNode, date: int, *, old: bool):
    """0 brings everything, a time to come only later changes, without a word of old items."""
    put(node, "old")
    with TapReader(node, date=date, vbuckets=[0]) as tap:
        if old:
            assert shapes(tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)]))[1] == ("set", b"old", b"v")
        else:
            wait_for_tap(node)
        put(node, "new")
        assert shapes([tap.next()]) == [("set", b"new", b"v")]


def wait_for_tap(node: Node) -> None:
    """Wait until a connection is a TAP stream."""
    end = time.monotonic() + 20
    with Talk(node) as talk:
        while talk.stats(b"tap")["ep_tap_count"] == "0":
            assert time.monotonic() < end


def test_since_a_time_what_is_surely_older_is_left_out(node: LiveNode):
    """By the CAS, where it is a time; one that was made up counts as new."""
    old_ns = (int(time.time()) - 5000) * 1_000_000_000
    with Talk(node) as talk:
        for key, cas in ((b"old", old_ns), (b"made up", 77)):
            item = SetWithMeta(key=key, value=b"v", flags=0, expiry=0, rev_seqno=1, item_cas=cas)
            assert talk.status(item) == 0
    put(node, "new")
    with TapReader(node, flags=F.DUMP, date=int(time.time()) - 1000) as tap:
        assert keys(tap.read_all()) == [b"made up", b"new"]
    with TapReader(node, flags=F.DUMP, date=int(time.time()) - 6000) as tap:
        assert keys(tap.read_all()) == [b"old", b"made up", b"new"]


def test_a_list_of_vbuckets(node: LiveNode):
    """Only these are sent, in their order; none listed are all."""
    for vb in range(VBUCKETS):
        put(node, f"vb-{vb}", vbucket=vb)
    with TapReader(node, flags=F.DUMP, vbuckets=[5, 2, 5]) as tap:
        assert keys(tap.read_all()) == [b"vb-5", b"vb-2"]
    with TapReader(node, flags=F.DUMP, vbuckets=[]) as tap:
        assert len(keys(tap.read_all())) == VBUCKETS


def test_item_flags_in_both_orders(node: LiveNode):
    """As a server's machine had them, unless network order was asked for and is told."""
    put(node, "a", flags=0xDEADBEEF)
    with TapReader(node, flags=F.DUMP) as tap:
        swapped = next(one for one in tap.read_all() if isinstance(one, TapMutation))
    with TapReader(node, flags=F.DUMP | F.FIX_BYTEORDER) as tap:
        plain = next(one for one in tap.read_all() if isinstance(one, TapMutation))
    assert (swapped.item_flags, swapped.tap_flags) == (0xEFBEADDE, 0)
    assert (plain.item_flags, plain.tap_flags) == (0xDEADBEEF, TapFlag.NETWORK_BYTE_ORDER)


def test_keys_only(node: LiveNode):
    """No values, and a flag that says so; expiry and flags are told."""
    put(node, "a", b"long value", flags=5, expiry=4_000_000_000)
    with TapReader(node, flags=F.DUMP | F.KEYS_ONLY | F.FIX_BYTEORDER) as tap:
        item = next(one for one in tap.read_all() if isinstance(one, TapMutation))
    assert (item.value, item.item_flags, item.expiry) == (b"", 5, 4_000_000_000)
    assert item.tap_flags == TapFlag.NO_VALUE | TapFlag.NETWORK_BYTE_ORDER


def test_values_are_plain(node: LiveNode):
    """What is kept compressed, or with xattrs, goes out as old clients know values."""
    xattrs = struct.pack(">II", 9, 5) + b"x\x0012\x00"
    with Talk(node, Feature.SNAPPY, Feature.XATTR, Feature.JSON) as talk:
        snappy = Set(key=b"snappy", value=deflate(b"plain" * 100), datatype=Datatype.SNAPPY, flags=0, expiry=0)
        assert talk.status(snappy) == 0
        with_xattrs = Set(key=b"xattrs", value=xattrs + b"body", datatype=Datatype.XATTR, flags=0, expiry=0)
        assert talk.status(with_xattrs) == 0
    with TapReader(node, flags=F.DUMP) as tap:
        items = [one for one in tap.read_all() if isinstance(one, TapMutation)]
    assert {one.key: one.value for one in items} == {b"snappy": b"plain" * 100, b"xattrs": b"body"}
    assert {one.datatype for one in items} == {0}


def test_expirations_are_deletions(node: LiveNode):
    """TAP has no other word for them."""
    with TapReader(node, vbuckets=[0], date=FOREVER) as tap:
        wait_for_tap(node)
        put(node, "short", expiry=1)
        assert shapes([tap.next()]) == [("set", b"short", b"v")]
        time.sleep(2.05)  # an expiry is in whole seconds
        opened = node.running.services.buckets.get("default")
        assert opened is not None
        on_loop(node, opened.pager.expire)
        assert shapes([tap.next()]) == [("delete", b"short")]


def test_a_name_that_connects_again_closes_the_older_connection(node: LiveNode):
    """A DCP connection of the same name is another thing."""
    with Talk(node) as dcp, TapReader(node, name="twice") as first:
        dcp.get(Open(name=b"twice", flags=OpenFlag.PRODUCER), Response)
        first.next()
        with TapReader(node, name="twice", flags=F.DUMP) as second:
            second.read_all()
        first.read_all()
        assert dcp.status(Noop()) == 0


def test_unknown_vbuckets_and_half_requests_close_the_connection(node: LiveNode):
    """Without an answer: captured servers do so. A dead vbucket is as good as none."""
    state(node, 3, DEAD)
    for listed in ([60], [0, 3]):
        with TapReader(node, vbuckets=listed) as tap:
            assert tap.ends()
    for body in (b"", b"\0" * 4):
        with Talk(node) as talk:
            talk.socket.sendall(connect_frame(F.BACKFILL, body))
            assert talk.ends()


@pytest.mark.parametrize("body", [b"\0\5\0\1", b"\0", b""])
def test_a_list_that_is_not_whole_is_not_supported(node: LiveNode, body: bytes):
    """That is answered, in the words of captured servers, and then the connection is closed."""
    with Talk(node) as talk:
        talk.socket.sendall(connect_frame(F.LIST_VBUCKETS, body))
        reply = talk.receive()
        assert isinstance(reply, ErrorReply)
        assert (reply.status, reply.value, reply.opcode) == (Status.NOT_SUPPORTED, b"Not supported", 0x40)
        assert talk.ends()


def connect_frame(flags: int, body: bytes, extras_bytes: int = 4) -> bytes:
    """TAP CONNECT with a body that may be anything."""
    extras = flags.to_bytes(extras_bytes, "big")
    head = struct.pack(">BBHBBHIIQ", 0x80, 0x40, 0, len(extras), 0, 0, len(extras) + len(body), 1, 0)
    return head + extras + body


def test_extras_of_another_length_are_invalid(node: LiveNode):
    """0 and 4 bytes are known."""
    with Talk(node) as talk:
        talk.socket.sendall(connect_frame(0, b"", extras_bytes=3))
        assert talk.receive().status == Status.INVALID
        assert talk.status(Noop()) == 0


def test_a_connection_becomes_a_stream_once(node: LiveNode):
    """A second TAP CONNECT closes it, and so does a message of DCP."""
    for second in (connect_frame(0, b""), bytes.fromhex("805d000004000000000000040000000000000000000000000000000a")):
        with TapReader(node, vbuckets=[0]) as tap:
            tap.next()
            tap.socket.sendall(second)
            tap.read_all()


def test_what_is_no_stream_message_is_still_served(node: LiveNode):
    """A TAP connection is one of KV, too."""
    with TapReader(node, vbuckets=[0], date=FOREVER) as tap:
        wait_for_tap(node)
        tap.send(Noop())
        assert decode(tap.receive_raw(), Dialect.TAP).opaque == 1


def test_roles(tmp_path: Path):
    """Streams take the role stream, a takeover the role admin; a refusal is an answer."""
    users = tmp_path / "users.json"
    roles = {"reader": {Role.READ, Role.WRITE}, "streamer": {Role.STREAM}, "boss": {Role.ADMIN}}
    Users([User.create(name, PASSWORD, given, iterations=4096) for name, given in roles.items()]).save(users)
    refused: dict[tuple[str, int], int] = {}
    with Node(vbuckets=2, users=users, buckets=("default",)) as node:
        for name in roles:
            for flags in (F.DUMP, F.TAKEOVER_VBUCKETS):
                with Talk(node) as talk:
                    talk.log_in(name, PASSWORD)
                    talk.socket.sendall(connect_frame(flags, b""))
                    frame = next_frame(talk)
                    if frame is not None and frame.header.opcode == CONNECT:
                        refused[name, flags] = frame.header.specific
    no = Status.NO_ACCESS
    takeover = F.TAKEOVER_VBUCKETS
    assert refused == {("reader", F.DUMP): no, ("reader", takeover): no, ("streamer", takeover): no}


def next_frame(talk: Talk) -> Frame | None:
    """The next frame; None when the node ends the connection."""
    try:
        return talk.receive_raw()
    except ConnectionError:
        return None


def test_signs_of_life():
    """A connection on which nothing happens gets a noop now and then, and need not answer."""
    with Node(vbuckets=2, limits=NodeLimits(tap_noop_s=0.05)) as node, TapReader(node) as tap:
        got = tap.read(lambda one: isinstance(one, Noop))
        assert shapes(got) == [*(("opaque", code, vb) for code in (1, 8) for vb in (0, 1)), ("noop",)]
        assert shapes([tap.next()]) == [("noop",)]
        put(node, "a")
        assert keys(tap.read(lambda one: isinstance(one, ITEMS))) == [b"a"]


def test_a_vbucket_joins_when_it_is_served(node: LiveNode):
    """One that becomes active is named, sent and closed; one that is no longer active is not sent any more."""
    put(node, "old", vbucket=1)
    state(node, 1, REPLICA)
    with TapReader(node) as tap:
        got = tap.read(lambda one: shapes([one]) == [("opaque", 8, VBUCKETS - 1)])
        assert ("opaque", 1, 1) not in shapes(got)
        state(node, 1, 1)
        put(node, "new", vbucket=1)
        got = tap.read(lambda one: shapes([one]) == [("opaque", 8, 1)])
        assert shapes(got)[0] == ("opaque", 1, 1)
        assert keys(got) == [b"old", b"new"]
        state(node, 1, REPLICA)
        state(node, 1, 1)
        put(node, "newer", vbucket=1)
        assert shapes([tap.next()]) == [("set", b"newer", b"v")]  # it had the rest


def test_a_copy_is_sent_where_it_is_listed(node: LiveNode):
    """Without a list, only what is served here is sent."""
    put(node, "copy", vbucket=1)
    state(node, 1, REPLICA)
    with TapReader(node, flags=F.DUMP) as tap:
        assert tap.read_all() == []
    with TapReader(node, flags=F.DUMP, vbuckets=[1]) as tap:
        assert keys(tap.read_all()) == [b"copy"]


def test_what_may_go_no_further_is_not_sent(node: LiveNode):
    """A change that came by TAP goes out with a lower TTL, until there is none left."""
    for key in ("own", "came", "last"):
        put(node, key)
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    opened.bucket.hops.note(0, 2, 9)
    opened.bucket.hops.note(0, 3, 1)
    with TapReader(node, vbuckets=[0]) as tap:
        got = tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
    items = [one for one in got if isinstance(one, ITEMS)]
    assert [(one.key, one.ttl) for one in items] == [(b"own", 255), (b"came", 8)]


def test_an_unknown_client_is_deregistered(node: LiveNode):
    """Captured servers agree, too."""
    with Talk(node) as talk:
        talk.get(DeregisterTapClient(name=b"nobody"), Done)
