"""Commands on single items, over a socket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headrace.ids import Cas, VBucketId
from headrace.wire.catalogue import (
    Add,
    AddQ,
    Append,
    AppendQ,
    Counter,
    Decrement,
    Delete,
    DeleteQ,
    Done,
    ErrorReply,
    Get,
    GetAndTouch,
    GetAndTouchQ,
    GetK,
    GetKQ,
    GetLocked,
    GetQ,
    Increment,
    Item,
    Mutated,
    Noop,
    Prepend,
    Quit,
    QuitQ,
    Replace,
    Set,
    SetQ,
    Touch,
    Touched,
    Unlock,
    Verbosity,
    Version,
)
from headrace.wire.codes import Datatype, Feature, Status
from headrace.wire.frame_info import FrameInfo, join_frame_infos
from headrace.wire.snappy import deflate
from tests.node.talk import Talk

if TYPE_CHECKING:
    from headrace.node import Node


def test_an_item_comes_back_as_it_was_set(talk: Talk):
    """Value, flags and CAS of a get are those of the set."""
    stored = talk.get(Set(key=b"plain", value=b"\x00value", flags=0xCAFE), Mutated)
    found = talk.get(Get(key=b"plain"), Item)
    assert (found.value, found.flags, found.cas, found.key) == (b"\x00value", 0xCAFE, stored.cas, b"")
    assert talk.get(GetK(key=b"plain"), Item).key == b"plain"


def test_vbuckets_are_addresses_and_not_checked_against_the_key(talk: Talk):
    """The same key lives in each vbucket by itself."""
    ids = [VBucketId(vb) for vb in (0, 7, 15)]
    for vb in ids:
        talk.get(Set(vbucket=vb, key=b"everywhere", value=b"%d" % vb), Mutated)
    assert [talk.get(Get(vbucket=vb, key=b"everywhere"), Item).value for vb in ids] == [b"0", b"7", b"15"]
    assert talk.status(Get(vbucket=VBucketId(16), key=b"everywhere")) == Status.NOT_MY_VBUCKET


def test_an_error_has_no_cas_extras_or_key(talk: Talk):
    """What memccapable asserts of each error reply."""
    reply = talk.ask(Get(key=b"never there"))
    assert isinstance(reply, ErrorReply)
    assert (reply.status, reply.cas, reply.extras, reply.key) == (Status.KEY_NOT_FOUND, 0, b"", b"")


def test_add_replace_and_cas_look_at_what_is_there(talk: Talk):
    """Add wants nothing there, replace something, and a CAS that very version."""
    assert talk.status(Replace(key=b"arc", value=b"1")) == Status.KEY_NOT_FOUND
    assert talk.status(Set(key=b"arc", value=b"1", cas=Cas(5))) == Status.KEY_NOT_FOUND
    first = talk.get(Add(key=b"arc", value=b"1"), Mutated)
    assert talk.status(Add(key=b"arc", value=b"2")) == Status.KEY_EXISTS
    second = talk.get(Set(key=b"arc", value=b"2", cas=first.cas), Mutated)
    assert second.cas > first.cas
    assert talk.status(Replace(key=b"arc", value=b"3", cas=first.cas)) == Status.KEY_EXISTS
    assert talk.status(Delete(key=b"arc", cas=first.cas)) == Status.KEY_EXISTS
    assert talk.get(Get(key=b"arc"), Item).value == b"2"


def test_quiet_commands_speak_only_of_trouble(talk: Talk):
    """A run of quiet commands is answered by its failures and the noop behind it."""
    talk.send(
        SetQ(key=b"quiet", value=b"1"),
        AddQ(key=b"quiet", value=b"2"),
        GetQ(key=b"quiet missing"),
        GetKQ(key=b"quiet"),
        AppendQ(key=b"quiet", value=b"+"),
        GetAndTouchQ(key=b"quiet missing", expiry=5),
        DeleteQ(key=b"quiet"),
        DeleteQ(key=b"quiet"),
        Noop(),
    )
    replies = [talk.receive() for _ in range(4)]
    assert [type(reply) for reply in replies] == [ErrorReply, Item, ErrorReply, Done]
    assert [reply.status for reply in replies] == [Status.KEY_EXISTS, 0, Status.KEY_NOT_FOUND, 0]


def test_deletions_tell_their_cas_only_after_hello(node: Node):
    """Memccapable wants 0 there, SDKs the CAS of the tombstone."""
    with Talk(node) as old, Talk(node, Feature.XERROR) as new:
        for talk, tells in ((old, False), (new, True)):
            stored = talk.get(Set(key=b"gone", value=b"x"), Mutated)
            gone = talk.get(Delete(key=b"gone"), Mutated)
            assert (gone.cas > stored.cas) if tells else gone.cas == 0
            assert talk.status(Delete(key=b"gone")) == Status.KEY_NOT_FOUND


def test_counters_wrap_upwards_and_stop_at_zero(talk: Talk):
    """The arithmetic of memcached, to the last number."""
    assert talk.status(Increment(key=b"n", delta=1, expiry=0xFFFFFFFF)) == Status.KEY_NOT_FOUND
    assert talk.get(Increment(key=b"n", delta=5, initial=7), Counter).number == 7
    assert talk.get(Increment(key=b"n", delta=5), Counter).number == 12
    assert talk.get(Decrement(key=b"n", delta=100), Counter).number == 0
    assert talk.get(Increment(key=b"n", delta=2**64 - 1), Counter).number == 2**64 - 1
    assert talk.get(Increment(key=b"n", delta=2), Counter).number == 1
    assert talk.get(Get(key=b"n"), Item).value == b"1"
    talk.get(Set(key=b"n", value=b" +5 "), Mutated)
    assert talk.get(Increment(key=b"n", delta=1), Counter).number == 6
    for value in (b"a", b"", b"-1", b"1 1", b"1" * 21, b"%d" % 2**64):
        talk.get(Set(key=b"n", value=value), Mutated)
        assert talk.status(Increment(key=b"n", delta=1)) == Status.DELTA_BAD_VALUE, value


def test_values_grow_at_both_ends(talk: Talk):
    """Append and prepend keep flags and refuse what is not there."""
    assert talk.status(Append(key=b"ends", value=b"x")) == Status.NOT_STORED
    talk.get(Set(key=b"ends", value=b"middle", flags=9), Mutated)
    talk.get(Append(key=b"ends", value=b">"), Mutated)
    talk.get(Prepend(key=b"ends", value=b"<"), Mutated)
    found = talk.get(Get(key=b"ends"), Item)
    assert (found.value, found.flags) == (b"<middle>", 9)


def test_an_item_ends_when_its_time_has_come(talk: Talk):
    """An expired item is a miss for all commands, and may be added again."""
    talk.get(Set(key=b"short", value=b"x", expiry=1), Mutated)
    talk.get(Set(key=b"touched", value=b"x", expiry=1), Mutated)
    touched = talk.get(Touch(key=b"touched", expiry=100), Touched)
    assert touched.flags is None
    assert talk.get(GetAndTouch(key=b"touched", expiry=200), Item).value == b"x"
    time.sleep(2.1)
    assert talk.status(Get(key=b"short")) == Status.KEY_NOT_FOUND
    assert talk.status(Touch(key=b"short", expiry=5)) == Status.KEY_NOT_FOUND
    assert talk.get(Get(key=b"touched"), Item).value == b"x"
    assert talk.status(Add(key=b"short", value=b"again")) == Status.SUCCESS


def test_an_absolute_expiry_in_the_past_is_over_at_once(talk: Talk):
    """Beyond 30 days the number is a date."""
    talk.get(Set(key=b"past", value=b"x", expiry=40 * 24 * 3600), Mutated)
    assert talk.status(Get(key=b"past")) == Status.KEY_NOT_FOUND


def test_a_lock_keeps_others_out_until_it_ends(node: Node):
    """Only the CAS of the lock writes or unlocks; what others are told depends on hello."""
    with Talk(node, Feature.XERROR) as talk, Talk(node) as old:
        stored = talk.get(Set(key=b"lock", value=b"1"), Mutated)
        locked = talk.get(GetLocked(key=b"lock", lock_time=10), Item)
        assert locked.value == b"1"
        assert locked.cas not in {stored.cas, 0}
        assert talk.status(GetLocked(key=b"lock")) == Status.LOCKED
        assert old.status(GetLocked(key=b"lock")) == Status.TEMPORARY_FAILURE
        for message in (Set(key=b"lock", value=b"2"), Delete(key=b"lock"), Touch(key=b"lock", expiry=1)):
            assert talk.status(message) == Status.LOCKED
            assert old.status(message) == Status.KEY_EXISTS
        assert talk.status(Set(key=b"lock", value=b"2", cas=stored.cas)) == Status.LOCKED
        assert talk.get(Get(key=b"lock"), Item).cas == Cas(2**64 - 1)
        assert talk.status(Unlock(key=b"lock", cas=stored.cas)) == Status.LOCKED
        assert talk.status(Unlock(key=b"lock", cas=locked.cas)) == Status.SUCCESS
        assert talk.status(Unlock(key=b"lock", cas=locked.cas)) == Status.NOT_LOCKED
        locked = talk.get(GetLocked(key=b"lock", lock_time=1), Item)
        written = talk.get(Set(key=b"lock", value=b"3", cas=locked.cas), Mutated)
        assert talk.get(Get(key=b"lock"), Item).cas == written.cas
        locked = talk.get(GetLocked(key=b"lock", lock_time=1), Item)
        time.sleep(2.1)
        assert talk.status(Set(key=b"lock", value=b"late", cas=locked.cas)) == Status.KEY_EXISTS
        assert talk.status(Set(key=b"lock", value=b"free")) == Status.SUCCESS


def test_keys_and_values_have_their_limits(talk: Talk):
    """250 bytes of key, 20 MiB of value; one more is refused and the connection lives."""
    key, value = b"k" * 250, b"v" * (20 * 1024 * 1024)
    assert talk.status(Set(key=key, value=b"x")) == Status.SUCCESS
    assert talk.status(Set(key=key + b"k", value=b"x")) == Status.INVALID
    assert talk.status(Get(key=key + b"k")) == Status.INVALID
    assert talk.status(Set(key=b"large", value=value)) == Status.SUCCESS
    assert talk.status(Append(key=b"large", value=b"+")) == Status.TOO_BIG
    assert talk.status(Set(key=b"large", value=value + b"v")) == Status.TOO_BIG
    assert talk.get(Get(key=b"large"), Item).value == value


def test_datatypes_follow_what_hello_agreed_on(node: Node):
    """JSON is marked and compressed values stay so for those who know; others get plain bytes."""
    document = b'{"a":[1,2,3],"b":"' + b"x" * 100 + b'"}'
    with Talk(node, Feature.JSON, Feature.SNAPPY) as talk, Talk(node) as old:
        assert old.status(Set(key=b"doc", value=deflate(document), datatype=Datatype.SNAPPY)) == Status.INVALID
        talk.get(Set(key=b"doc", value=deflate(document), datatype=Datatype.SNAPPY), Mutated)
        found = talk.get(Get(key=b"doc"), Item)
        assert (found.value, found.datatype) == (deflate(document), Datatype.SNAPPY | Datatype.JSON)
        plain = old.get(Get(key=b"doc"), Item)
        assert (plain.value, plain.datatype) == (document, 0)
        old.get(Set(key=b"doc", value=document), Mutated)
        assert talk.get(Get(key=b"doc"), Item).datatype == Datatype.JSON
        old.get(Append(key=b"doc", value=b"}"), Mutated)
        assert talk.get(Get(key=b"doc"), Item).datatype == 0
        bomb = deflate(bytes(21 * 1024 * 1024))
        assert talk.status(Set(key=b"doc", value=bomb, datatype=Datatype.SNAPPY)) == Status.TOO_BIG
        assert talk.status(Set(key=b"doc", value=b"\xff\xff", datatype=Datatype.SNAPPY)) == Status.INVALID


def test_an_expiry_can_be_kept(node: Node):
    """A set with the frame info `preserve expiry` leaves the item's end as it was."""
    framing = join_frame_infos([FrameInfo(5, b"")])
    with Talk(node, Feature.ALT_REQUEST, Feature.PRESERVE_TTL) as talk:
        talk.get(Set(key=b"kept", value=b"1", expiry=2), Mutated)
        talk.get(Set(key=b"kept", value=b"2", framing=framing), Mutated)
        assert talk.get(Get(key=b"kept"), Item).value == b"2"
        time.sleep(3.1)
        assert talk.status(Get(key=b"kept")) == Status.KEY_NOT_FOUND
        unknown = join_frame_infos([FrameInfo(9, b"x")])
        assert talk.status(Set(key=b"kept", value=b"3", framing=unknown)) == Status.UNKNOWN_FRAME_INFO
        durable = join_frame_infos([FrameInfo(1, b"\x01")])
        assert talk.status(Set(key=b"kept", value=b"3", framing=durable)) == Status.NOT_SUPPORTED


def test_the_version_begins_with_a_number(talk: Talk):
    """Clients compare it, and ask for less below 5.5."""
    reply = talk.ask(Version())
    assert reply.value[:1].isdigit()  # type: ignore[attr-defined]


def test_verbosity_is_refused_politely(talk: Talk):
    """The connection lives, and the text says what to do instead."""
    reply = talk.ask(Verbosity(level=1))
    assert isinstance(reply, ErrorReply)
    assert (reply.status, b"--log-level" in reply.value) == (Status.NOT_SUPPORTED, True)


@pytest.mark.parametrize(("message", "answers"), [(Quit(), 1), (QuitQ(), 0)])
def test_quit_closes_after_all_that_was_asked_before(node: Node, message: Quit | QuitQ, answers: int):
    """What stands in front of a quit is answered, what stands behind is not."""
    with Talk(node) as talk:
        talk.send(Noop(), message, Noop())
        for _ in range(1 + answers):
            assert talk.receive().status == Status.SUCCESS
        assert talk.ends()
