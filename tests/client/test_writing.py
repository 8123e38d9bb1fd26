"""The writer of many rows into a bucket, at nodes of ours."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.client import NotFoundError, StatusError
from headrace.client.vbuckets import vbucket_of
from headrace.client.writing import BucketWriter, ItemVersion, WriteCounts
from headrace.client.writing_frames import (
    DELETE,
    DELETE_WITH_META,
    DELETE_WITH_OPTIONS,
    SET,
    SET_WITH_META,
    SET_WITH_OPTIONS,
)
from headrace.errors import LocalProtocolError
from headrace.ids import VBucketId
from headrace.pipelines.move import Move
from headrace.testing import LiveNode
from headrace.wire import Request, encode, join_xattrs
from headrace.wire.catalogue import (
    DeleteQ,
    DeleteWithMetaQ,
    GetLocked,
    GetMeta,
    Item,
    Meta,
    SetQ,
    SetWithMetaQ,
)
from headrace.wire.codes import Datatype, Status, WithMetaOption
from tests.client.writes import CAS, VBUCKETS, Kept, both, key_of, meta_of, options, put_many, two_nodes


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    """A node on a disk."""
    with LiveNode(data=tmp_path / "node", vbuckets=VBUCKETS) as found:
        yield found


# -- frames


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (SET, SetQ(key=b"k", value=b"v", flags=3, expiry=4, datatype=1, vbucket=VBucketId(9))),
        (DELETE, DeleteQ(key=b"k", vbucket=VBucketId(9))),
        (SET_WITH_META, SetWithMetaQ(key=b"k", value=b"v", flags=3, expiry=4, rev_seqno=5, item_cas=6)),
        (DELETE_WITH_META, DeleteWithMetaQ(key=b"k", value=b"", flags=3, expiry=4, rev_seqno=5, item_cas=6)),
        (SET_WITH_OPTIONS, SetWithMetaQ(key=b"k", value=b"v", flags=3, rev_seqno=5, item_cas=6, options=1)),
        (DELETE_WITH_OPTIONS, DeleteWithMetaQ(key=b"k", rev_seqno=5, item_cas=6, options=0x10)),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Request) else "",
)
def test_frames_are_the_catalogues(form: Any, message: Any):
    """A frame made fast is the frame that the catalogue makes."""
    names = ("flags", "expiry", "rev_seqno", "item_cas", "options")
    numbers = tuple(n for name in names if (n := getattr(message, name, None)) is not None)
    value = getattr(message, "value", b"")
    head = form.head(form.quiet, message.key, value, message.datatype, message.vbucket, 0, numbers)
    assert head + message.key + value == encode(message)
    moved = form.readdressed(head, place=77, quiet=False)
    assert form.vbucket(moved) == message.vbucket
    assert form.readdressed(moved, place=0, quiet=True) == head


def test_an_expiration_can_be_told_as_a_deletion():
    """The one bit goes, and nothing else."""
    numbers = (3, 4, 5, 6, int(WithMetaOption.IS_EXPIRATION | WithMetaOption.SKIP_CONFLICT_RESOLUTION))
    head = DELETE_WITH_OPTIONS.head(DELETE_WITH_OPTIONS.quiet, b"k", b"", 0, 1, 2, numbers)
    assert DELETE_WITH_OPTIONS.is_expiration(head)
    plain = DELETE_WITH_OPTIONS.as_deletion(head)
    assert not DELETE_WITH_OPTIONS.is_expiration(plain)
    numbers = (*numbers[:4], int(WithMetaOption.SKIP_CONFLICT_RESOLUTION))
    assert plain == DELETE_WITH_OPTIONS.head(DELETE_WITH_OPTIONS.quiet, b"k", b"", 0, 1, 2, numbers)


# -- at a node


def test_versions_are_stored_as_they_are_elsewhere(node: LiveNode):
    """Value, flags, expiry, revision and CAS of each item are those that were put, and deletions leave tombstones."""
    with BucketWriter(options(node)) as writer:
        for number in range(5000):
            version = ItemVersion(number, 4_000_000_000 + number, number + 1, CAS + number)
            writer.set_version(number, key_of(number), b"%d" % number, version, datatype=1)
        writer.delete_version("gone", b"gone", b"", ItemVersion(0, 1_700_000_000, 9, CAS))
        writer.finish()
        assert writer.counts == WriteCounts(written=5000, deleted=1)
    for number in range(0, 5000, 61):
        key = key_of(number)
        assert node.items.get(key).value == b"%d" % number
        assert meta_of(node.items, key) == (0, number, 4_000_000_000 + number, number + 1, CAS + number)
    assert meta_of(node.items, b"gone") == (1, 0, 1_700_000_000, 9, CAS)
    assert node.count() == 5000


def test_what_is_written_twice_changes_nothing(node: LiveNode):
    """The same versions again are all kept, and no vbucket moves on."""
    with BucketWriter(options(node)) as writer:
        put_many(writer, 300)
        writer.finish()
    before = node.high_seqnos()
    with BucketWriter(options(node)) as writer:
        put_many(writer, 300)
        writer.finish()
        assert writer.counts == WriteCounts(kept=300)
    assert node.high_seqnos() == before


def test_conflicts_are_settled_by_revision(node: LiveNode):
    """An older version loses, a newer one wins, and one that skips conflicts replaces whatever is there."""
    with BucketWriter(options(node)) as writer:
        writer.set_version("", b"one", b"second", ItemVersion(0, 0, 2, CAS))
        writer.set_version("", b"one", b"first", ItemVersion(0, 0, 1, CAS + 5))
        writer.finish()
        assert node.get("one") == b"second"
        writer.delete_version("", b"one", b"", ItemVersion(0, 0, 1, CAS + 5))
        writer.set_version("", b"one", b"third", ItemVersion(0, 0, 3, CAS))
        writer.finish()
        assert node.get("one") == b"third"
        writer.set_version("", b"one", b"first", ItemVersion(0, 0, 1, CAS), skips_conflicts=True)
        writer.finish()
        assert node.get("one") == b"first"
        writer.delete_version("", b"one", b"", ItemVersion(0, 0, 1, CAS), skips_conflicts=True)
        writer.finish()
        assert writer.counts == WriteCounts(written=3, deleted=1, kept=2)
    assert meta_of(node.items, b"one")[0] == 1


def test_plain_writes(node: LiveNode):
    """Sets and deletes without a revision are done in their order; what is not there counts as deleted."""
    with BucketWriter(options(node)) as writer:
        for number in range(6000):
            writer.set(number, b"key-%d" % (number % 3000), b"%d" % number, flags=5)
        writer.delete("", b"key-0")
        writer.delete("", b"never was")
        writer.finish()
        assert writer.counts == WriteCounts(written=6000, deleted=2)
    assert {node.get(f"key-{n}") for n in range(1, 3000, 97)} == {b"%d" % (n + 3000) for n in range(1, 3000, 97)}
    assert node.items.get(b"key-1").flags == 5
    with pytest.raises(NotFoundError):
        node.get("key-0")


def test_xattrs_go_with_their_item(node: LiveNode):
    """A value with its block of xattrs is stored as such, and a tombstone keeps its own."""
    block = join_xattrs({b"_sync": b'{"rev":1}'}, b'{"a":1}')
    left = join_xattrs({b"_sync": b'{"rev":2}'}, b"")
    both = int(Datatype.XATTR | Datatype.JSON)
    with BucketWriter(options(node)) as writer:
        writer.set_version("", b"a", block, ItemVersion(0, 0, 1, CAS), datatype=both)
        writer.delete_version("", b"b", left, ItemVersion(0, 0, 1, CAS), datatype=int(Datatype.XATTR))
        writer.finish()
        assert writer.counts == WriteCounts(written=1, deleted=1)
    assert node.get("a") == b'{"a":1}'
    asked = [GetMeta(key=key, vbucket=node.items.vbucket_of(key), version=2) for key in (b"a", b"b")]
    assert [node.items.request(each).item_datatype for each in asked] == [both, Datatype.XATTR]  # type: ignore[attr-defined]


def test_what_cannot_be_said_is_refused_at_once(node: LiveNode):
    """A key that no server takes, or a number that a field cannot hold, is an error before anything is sent."""
    with BucketWriter(options(node)) as writer:
        for key in (b"", b"k" * 251):
            with pytest.raises(LocalProtocolError, match="a key has 1 to 250 bytes"):
                writer.set("", key, b"v")
        with pytest.raises(LocalProtocolError, match="cannot carry"):
            writer.set("", b"k", b"v", flags=1 << 32)
        writer.set("", b"k", b"v")
        writer.finish()
        assert writer.counts == WriteCounts(written=1)


def test_a_row_that_is_refused_is_named(node: LiveNode):
    """What a server has against one row is told by that row; the rows around it are written."""
    kept = Kept()
    with BucketWriter(options(node), refused=kept) as writer:
        writer.set("first", b"a", b"1")
        writer.set("big", b"big", bytes(20 * 1024 * 1024 + 1))
        writer.set_version("bad xattrs", b"x", b"no block", ItemVersion(0, 0, 1, CAS), datatype=int(Datatype.XATTR))
        writer.set("last", b"b", b"2")
        writer.finish()
        assert writer.counts == WriteCounts(written=2, refused=2)
    assert sorted(kept.rows, key=str) == [
        ("bad xattrs", b"x", Status.XATTR_INVALID),
        ("big", b"big", Status.TOO_BIG),
    ]
    assert (node.get("a"), node.get("b")) == (b"1", b"2")


def test_without_an_ear_for_refusals_the_first_is_raised(node: LiveNode):
    """Who does not say what to do with refused rows gets the error."""
    with BucketWriter(options(node)) as writer:
        writer.set("", b"big", bytes(20 * 1024 * 1024 + 1))
        with pytest.raises(StatusError, match="set big: too big"):
            writer.finish()


def test_locked_rows_are_refused_in_the_end(node: LiveNode):
    """An item that stays locked is the fault of its row alone."""
    node.write({"locked": "1"})
    reply = node.items.request(GetLocked(key=b"locked", vbucket=node.items.vbucket_of(b"locked"), lock_time=30))
    assert isinstance(reply, Item)
    kept = Kept()
    with BucketWriter(options(node), refused=kept, retry_s_max=0.2) as writer:
        writer.set(1, b"locked", b"2")
        writer.set(2, b"free", b"2")
        writer.finish()
        assert writer.counts == WriteCounts(written=1, refused=1)
    assert kept.rows == [(1, b"locked", Status.LOCKED)]


# -- several nodes


def test_rows_go_to_the_node_that_owns_their_vbucket(tmp_path: Path):
    """Two nodes that share the vbuckets get each the rows of theirs, and none is missing."""
    with two_nodes(tmp_path) as (one, two, _):
        with BucketWriter(both(one, two)) as writer:
            put_many(writer, 3000)
            writer.finish()
            assert writer.counts == WriteCounts(written=3000)
        owners = Counter(vbucket_of(key_of(number), VBUCKETS) % 2 for number in range(3000))
        assert (one.count(), two.count()) == (owners[0], owners[1])
        assert min(owners.values()) > 500


def test_a_vbucket_that_moves_is_followed(tmp_path: Path):
    """Rows whose vbucket went to the other node meanwhile are written there, in their order."""
    key = next(key_of(number) for number in range(100) if vbucket_of(key_of(number), VBUCKETS) == 2)
    with two_nodes(tmp_path) as (one, two, servers):
        with BucketWriter(both(one, two)) as writer:
            put_many(writer, 500)
            writer.set("", key, b"first")
            writer.finish()
            Move(servers[0], servers[1], 2).run(lambda: False)
            for number in range(50):
                writer.set("", key, b"%d" % number)
            put_many(writer, 500, rev=2)
            writer.finish()
            assert writer.counts.written == 500 + 1 + 50 + 499
        assert one.count() + two.count() == 500 + sum(vbucket_of(key_of(n), VBUCKETS) == 2 for n in range(500))
        found = two.items.request(
            GetMeta(key=key, vbucket=VBucketId(2))
        )  # the node has a map of its own: vbucket by hand
        assert isinstance(found, Meta)
        assert found.rev_seqno == 52


def test_who_is_there_is_believed_more_than_who_is_not(tmp_path: Path):
    """When a node is gone and another one says that it has its vbuckets, the rows go there."""
    with LiveNode(data=tmp_path / "two", vbuckets=VBUCKETS) as two:
        one = LiveNode(data=tmp_path / "one", vbuckets=VBUCKETS)
        one.start()
        with BucketWriter(both(one, two)) as writer:
            put_many(writer, 100)
            writer.finish()
            assert (one.count(), two.count()) == (100, 0)
            one.stop()
            put_many(writer, 200, rev=2)
            writer.finish()
            assert writer.counts == WriteCounts(written=300)
        assert two.count() == 200
