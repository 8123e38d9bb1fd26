"""Consumers of the UPR draft and of UPR, and their bucket: what each message does to a copy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.history import Cause, State
from headrace.ids import Cas, Opaque, Seqno, VBucketId, VbUuid
from headrace.node.dcp.draft_consumer import DraftConsumer
from headrace.node.dcp.older_consumer import UprConsumer
from headrace.protocol.consumer import SEQNO_KEPT_MAX
from headrace.store.records import DELETED, EXPIRED, LIVE, Record, unpack
from headrace.wire import Dialect, Message, decode, encode
from headrace.wire.catalogue import (
    AddStream,
    CloseStream,
    Control,
    DcpFlush,
    DcpNoop,
    Deletion,
    Done,
    ErrorReply,
    Expiration,
    FailoverEntry,
    FailoverLog,
    GetFailoverLog,
    Mutation,
    Rollback,
    SetVBucketState,
    SnapshotEnd,
    SnapshotMarker,
    SnapshotStart,
    StreamAdded,
    StreamEnd,
    StreamRequest,
    StreamStart,
)
from headrace.wire.codes import Status, StreamFlag
from tests.replication.copies import FakeLine, World

DRAFT = Dialect.UPR_DRAFT
VB = VBucketId(1)
STREAM = Opaque(1)
STATES = {1: State.REPLICA, 2: State.REPLICA}
OF_STREAM: dict[str, Any] = {"vbucket": VB, "opaque": STREAM}
RECORD = Record(LIVE, VB, b"k", b"v", 0, Cas(1), Seqno(4), 1).pack()
BEGIN, END = SnapshotStart(**OF_STREAM), SnapshotEnd(**OF_STREAM)


def mutation(seqno: int, key: bytes = b"k", value: bytes = b"v", **fields: Any) -> Mutation:
    """An item of the stream."""
    given: dict[str, Any] = {"by_seqno": Seqno(seqno), "rev_seqno": 1, "key": key, "value": value}
    return Mutation(**(given | OF_STREAM | fields))


def say(consumer: DraftConsumer, *messages: Message, by_block: bool = True) -> None:
    """Bring messages of the producer to a consumer."""
    for message in messages:
        frame = encode(message, DRAFT)
        if not by_block or consumer.receive_block(frame, 0, 0.0) == 0:
            consumer.receive(decode(frame, DRAFT), 0.0)


def branches(*log: tuple[int, int]) -> FailoverLog:
    """The answer to the failover log request of the first stream."""
    entries = tuple(FailoverEntry(VbUuid(vbuuid), Seqno(seqno)) for vbuuid, seqno in log)
    return FailoverLog(opcode=0x51, opaque=STREAM, entries=entries)


OK = FailoverLog(opcode=0x50, opaque=STREAM)


def asked(world: World, flags: int = 0) -> tuple[DraftConsumer, FakeLine, StreamRequest]:
    """A consumer that has asked for a stream, and its question."""
    consumer, line = world.consumer_of(DraftConsumer)
    consumer.receive(AddStream(vbucket=VB, opaque=Opaque(99), flags=flags), 0.0)
    log, question = line.said(DRAFT)
    assert log == GetFailoverLog(vbucket=VB, opaque=STREAM)
    assert isinstance(question, StreamRequest)
    return consumer, line, question


def added(world: World, flags: int = 0, *log: tuple[int, int]) -> tuple[DraftConsumer, FakeLine]:
    """A consumer with a stream that has started."""
    consumer, line, _ = asked(world, flags)
    say(consumer, branches(*(log or ((0xA1, 0),))), OK, StreamStart(**OF_STREAM))
    (answer,) = line.said()
    assert answer == StreamAdded(opcode=0x51, opaque=Opaque(99), stream_opaque=STREAM)
    return consumer, line


def test_what_it_asks():
    """The branch and when it began, the last whole seqno, its own name as the group; no control goes before it."""
    world = World(STATES)
    _, _, question = asked(world)
    vb = world.vb(1)
    assert (question.start_seqno, question.end_seqno, question.vbuuid) == (0, 2**64 - 1, vb.vbuuid)
    assert (question.high_seqno, question.group) == (0, b"replication")


def test_a_snapshot_is_seen_when_it_ends():
    """What came of a snapshot is not seen before its end, and the history is the producer's."""
    world = World(STATES)
    consumer, line = added(world, 0, (0xB2, 3), (0xB1, 0))
    vb = world.vb(1)
    say(consumer, BEGIN, mutation(4, b"a"), mutation(7, b"b"))
    assert (world.items(1), vb.whole_seqno, vb.high_seqno) == ({}, 0, 7)
    say(consumer, END)
    assert (set(world.items(1)), vb.whole_seqno) == ({b"a", b"b"}, 7)
    assert [(branch.vbuuid, branch.seqno) for branch in vb.failover_log] == [(0xB2, 3), (0xB1, 0)]
    assert vb.purge_seqno == 7, "deletions up to here may never have come"
    say(consumer, BEGIN, mutation(8, b"a", b"new"), END)
    assert (vb.whole_seqno, vb.purge_seqno) == (8, 7)
    assert not line.take()


def test_what_an_item_becomes():
    """Items are kept as this node would have made them, JSON found out, whatever byte 5 is; removals have a time."""
    world = World(STATES)
    consumer, line = added(world)
    removed: dict[str, Any] = {"rev_seqno": 2, "flags": 5, "expiry": 6, "lock_time": 7} | OF_STREAM
    say(
        consumer,
        BEGIN,
        mutation(1, b"a", b'{"n":1}', flags=7, expiry=8, lock_time=9, cas=Cas(77), rev_seqno=3),
        mutation(2, b"b", b"", datatype=2),
        Deletion(by_seqno=Seqno(3), key=b"c", **removed),
        Expiration(by_seqno=Seqno(4), key=b"d", **removed),
        END,
    )
    assert not line.take()
    kept = {key: unpack(record) for key, record in world.items(1).items()}
    assert kept[b"a"][2:] == (b"a", b'{"n":1}', 1, 77, 1, 3, 7, 8, 0)
    assert (kept[b"b"].value, kept[b"b"].datatype) == (b"", 0)
    assert [kept[key].opcode for key in (b"a", b"b", b"c", b"d")] == [LIVE, LIVE, DELETED, EXPIRED]
    assert {kept[key].delete_time for key in (b"c", b"d")} == {world.bucket.clock.seconds}
    for key, record in world.items(1).items():
        assert record == kept[key].pack()


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (mutation(5, opaque=Opaque(9)), Status.KEY_NOT_FOUND),
        (mutation(5, vbucket=VBucketId(2)), Status.KEY_NOT_FOUND),
        (mutation(2), Status.OUT_OF_RANGE),
        (mutation(0), Status.INVALID),
        (mutation(5, b"k" * 251), Status.INVALID),
        (SnapshotStart(vbucket=VB, opaque=Opaque(9)), Status.KEY_NOT_FOUND),
        (SnapshotEnd(vbucket=VB, opaque=Opaque(9)), Status.KEY_NOT_FOUND),
        (StreamStart(vbucket=VB, opaque=Opaque(9)), Status.KEY_NOT_FOUND),
        (StreamEnd(vbucket=VB, opaque=Opaque(9), reason=0), Status.KEY_NOT_FOUND),
        (DcpFlush(vbucket=VB, opaque=Opaque(9)), Status.KEY_NOT_FOUND),
        (SetVBucketState(**OF_STREAM, state=4), Status.INVALID),
    ],
)
def test_what_is_refused(wrong: Message, status: Status):
    """A message that cannot be is answered with its opcode in the draft, and changes nothing."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, BEGIN, mutation(2), wrong, mutation(9, b"other"), END)
    (answer,) = line.said(DRAFT)
    assert isinstance(answer, ErrorReply)
    assert (answer.status, answer.opcode) == (status, wrong.spec.opcodes[DRAFT])
    assert set(world.items(1)) == {b"k", b"other"}


def test_an_end_without_a_start():
    """It is refused, and what comes outside of every snapshot is dropped."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, END, mutation(1), BEGIN, mutation(2, b"b"), END, mutation(3, b"c"))
    assert [message.status for message in line.said(DRAFT) if isinstance(message, ErrorReply)] == [Status.INVALID]
    assert set(world.items(1)) == {b"b"}


@pytest.mark.parametrize("size", [0, 27, 28, 36])
def test_lengths_that_cannot_be(size: int):
    """An item with other than 28 bytes of extras, or without a key, is refused."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, BEGIN)
    key = b"" if size == 28 else b"kk"
    body = size + len(key)
    header = bytes((0x80, 0x56, 0, len(key), size, 0, 0, VB)) + body.to_bytes(4) + STREAM.to_bytes(4) + bytes(8)
    frame = header + bytes(size) + key
    if len(frame) >= 32:
        assert consumer.receive_block(frame, 0, 0.0) == len(frame)
        (answer,) = line.said(DRAFT)
        assert isinstance(answer, ErrorReply)
        assert answer.status == Status.INVALID
    else:
        assert consumer.receive_block(frame, 0, 0.0) == 0, "the catalogue refuses it"


def test_removals_with_a_value():
    """The draft's removals have none."""
    world = World(STATES)
    consumer, line = added(world)
    frame = bytearray(encode(mutation(1, b"k", b"v"), DRAFT))
    frame[1] = 0x57
    say(consumer, BEGIN)
    consumer.receive_block(bytes(frame), 0, 0.0)
    assert line.said(DRAFT)[0].status == Status.INVALID  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "message",
    [
        SnapshotMarker(**OF_STREAM, start_seqno=Seqno(0), end_seqno=Seqno(1), flags=1),
        CloseStream(vbucket=VB),
        DcpNoop(),
        Control(key=b"enable_noop", value=b"true"),
        StreamRequest(**OF_STREAM, high_seqno=Seqno(0)),
    ],
)
def test_what_is_not_for_it(message: Message):
    """What the draft has not, or a consumer is not asked, ends the connection without an answer."""
    consumer, line = added(World(STATES))
    consumer.receive(message, 0.0)
    assert line.left
    assert not line.take()
    say(consumer, BEGIN)
    assert not line.take()


def test_cut_in_a_snapshot():
    """A copy that was cut goes back to where it was whole, and asks from there."""
    world = World(STATES)
    consumer, _ = added(world)
    say(consumer, BEGIN, mutation(3, b"a"), END, BEGIN, mutation(5, b"b"))
    consumer.close()
    consumer.close()
    vb = world.vb(1)
    assert (vb.high_seqno, vb.in_snapshot) == (3, False)
    _, _, question = asked(world)
    assert (question.start_seqno, question.vbuuid) == (3, 0xA1)


def test_what_dcp_left_in_a_snapshot():
    """Half a snapshot that came by DCP, whose end is known, is dropped as well: the draft cannot ask for the rest."""
    world = World(STATES)
    world.bucket.begin_snapshot(world.vb(1), 0, 9)
    world.bucket.apply(world.vb(1), RECORD)
    _, _, question = asked(world)
    assert (question.start_seqno, world.vb(1).in_snapshot, world.vb(1).partial) == (0, False, {})


def test_cut_in_a_large_snapshot():
    """What is on disk of half a snapshot is rolled back before the copy asks again."""
    world = World(STATES)
    consumer, _ = added(world)
    say(consumer, BEGIN, mutation(3, b"a"), END)
    world.flusher.flush()
    vb = world.vb(1)
    say(consumer, BEGIN, mutation(5, b"b"))
    vb.is_spilled = True
    consumer.close()
    world.flusher.is_slow = True
    again, line = world.consumer_of(DraftConsumer)
    again.receive(AddStream(vbucket=VB, opaque=Opaque(4)), 0.0)
    assert (line.take(), world.flusher.rolled_back) == ([], [(1, 3)])
    world.flusher.waiting.pop()()
    question = line.said(DRAFT)[-1]
    assert isinstance(question, StreamRequest)
    assert question.start_seqno == vb.high_seqno == 0, "this disk has nothing whole"


def test_cut_in_a_large_snapshot_and_the_disk_fails():
    """The stream cannot be had now, and the manager hears so; a consumer that is gone asks nothing."""
    for is_gone in (False, True):
        world = World(STATES)
        vb = world.vb(1)
        vb.begin_snapshot(0, SEQNO_KEPT_MAX)
        vb.is_spilled = True
        world.flusher.is_slow = True
        world.flusher.fails = not is_gone
        consumer, line = world.consumer_of(DraftConsumer)
        consumer.receive(AddStream(vbucket=VB, opaque=Opaque(4)), 0.0)
        if is_gone:
            consumer.close()
        world.flusher.waiting.pop()()
        told = [(type(one), one.status) for one in line.said() if isinstance(one, StreamAdded | ErrorReply)]
        assert [status for _, status in told] == ([] if is_gone else [Status.TEMPORARY_FAILURE])


def test_rolled_back():
    """A rollback is done, and both questions are asked again with the same opaque."""
    world = World(STATES)
    consumer, _ = added(world)
    say(consumer, BEGIN, mutation(3, b"a"), END)
    consumer.close()
    consumer, line, _ = asked(world)
    say(consumer, branches((0xC1, 2), (0xA1, 0)))
    say(consumer, Rollback(opcode=0x50, opaque=STREAM, status=Status.ROLLBACK, seqno=Seqno(2)))
    assert world.flusher.rolled_back == [(1, 2)]
    log, question = line.said(DRAFT)
    assert (type(log), type(question), question.opaque) == (GetFailoverLog, StreamRequest, STREAM)
    say(consumer, branches((0xC1, 2), (0xA1, 0)), OK, StreamStart(**OF_STREAM), BEGIN, mutation(9, b"z"), END)
    assert list(world.items(1)) == [b"z"]
    assert world.vb(1).vbuuid == 0xC1


def test_refused_by_the_producer():
    """The manager hears the status."""
    consumer, line, _ = asked(World(STATES))
    refused = ErrorReply(opcode=0x51, opaque=STREAM, status=Status.NOT_MY_VBUCKET)
    say(consumer, refused, ErrorReply(opcode=0x50, opaque=STREAM, status=Status.NOT_MY_VBUCKET))
    (answer,) = line.said()
    assert (answer.opcode, answer.status) == (0x51, Status.NOT_MY_VBUCKET)  # type: ignore[attr-defined]


def test_an_ok_without_a_log():
    """A stream of an unknown history is not taken; one that has its log in the answer, as UPR's has, is."""
    consumer, line, _ = asked(World(STATES))
    say(consumer, OK)
    assert line.left
    world = World(STATES)
    consumer, line, _ = asked(world)
    say(consumer, FailoverLog(opcode=0x50, opaque=STREAM, entries=branches((0xD1, 0)).entries))
    assert not line.left
    assert world.vb(1).vbuuid == 0xD1


def test_flushed():
    """A flush empties the vbucket and ends its stream, which may be had again from the beginning."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, BEGIN, mutation(3, b"a"), END)
    world.flusher.is_slow = True
    say(consumer, DcpFlush(**OF_STREAM), BEGIN, mutation(4, b"b"))
    answers = line.said(DRAFT)
    assert [(one.opcode, one.status) for one in answers] == [  # type: ignore[attr-defined]
        (0x59, Status.KEY_NOT_FOUND),
        (0x54, Status.KEY_NOT_FOUND),
        (0x56, Status.KEY_NOT_FOUND),
    ]
    consumer.receive(AddStream(vbucket=VB, opaque=Opaque(7)), 0.0)
    assert line.said()[0].status == Status.KEY_EXISTS, "not before it is empty"  # type: ignore[attr-defined]
    world.flusher.waiting.pop()()
    assert (world.items(1), world.flusher.rolled_back) == ({}, [(1, 0)])
    consumer.receive(AddStream(vbucket=VB, opaque=Opaque(8)), 0.0)
    question = line.said(DRAFT)[-1]
    assert isinstance(question, StreamRequest)
    assert question.start_seqno == 0
    assert question.opaque != STREAM


def test_flushed_and_the_disk_fails():
    """A copy that cannot be emptied is no copy: the connection ends."""
    world = World(STATES)
    consumer, line = added(world)
    world.flusher.fails = True
    say(consumer, DcpFlush(**OF_STREAM))
    assert line.left
    consumer.close()


def test_taken_over():
    """Steps of a takeover are answered in the draft, when the disk has them; not in the middle of a snapshot."""
    world = World(STATES)
    consumer, line = added(world, StreamFlag.TAKEOVER)
    say(consumer, BEGIN, mutation(1), END, SetVBucketState(**OF_STREAM, state=State.PENDING))
    assert (line.take(), world.vb(1).state) == ([], State.PENDING)
    world.flusher.flush()
    assert line.said(DRAFT) == [Done(opcode=0x5A, opaque=STREAM)]
    say(consumer, BEGIN, SetVBucketState(**OF_STREAM, state=State.ACTIVE))
    assert line.said(DRAFT)[0].status == Status.INVALID  # type: ignore[attr-defined]
    say(consumer, END, SetVBucketState(**OF_STREAM, state=State.ACTIVE))
    world.flusher.flush()
    assert line.said(DRAFT) == [Done(opcode=0x5A, opaque=STREAM)]
    assert world.vb(1).state_on_disk is State.ACTIVE
    say(consumer, StreamEnd(**OF_STREAM, reason=0))
    assert not line.take()


def test_promoted_in_a_snapshot():
    """A vbucket that is promoted has the last whole snapshot, and takes no more."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, BEGIN, mutation(1, b"a"), END, BEGIN, mutation(2, b"b"))
    world.bucket.set_state(world.vb(1), State.ACTIVE, Cause.SET_VBUCKET)
    say(consumer, mutation(3, b"c"), END)
    assert list(world.items(1)) == [b"a"]
    assert {message.status for message in line.said(DRAFT)} == {Status.KEY_NOT_FOUND}  # type: ignore[attr-defined]


def test_nothing_is_due():
    """There is no window to acknowledge and no noop to wait for."""
    consumer, line = added(World(STATES))
    say(consumer, BEGIN, *(mutation(n, b"%d" % n, bytes(1 << 20)) for n in range(1, 30)))
    assert consumer.deadline is None
    assert consumer.pump(1e9) is False
    assert not line.take()
    told = dict(consumer.stats())
    assert (told["dialect"], told["total_items_received"]) == ("upr-draft", 29)


MESSAGES = st.lists(
    st.one_of(
        st.just(BEGIN),
        st.just(END),
        st.builds(mutation, st.integers(0, 12), st.sampled_from([b"a", b"b", b"c"]), st.binary(max_size=3)),
        st.builds(
            Deletion,
            by_seqno=st.integers(0, 12), rev_seqno=st.just(2), key=st.sampled_from([b"a", b"b"]),
            flags=st.just(0), expiry=st.just(0), lock_time=st.just(0), vbucket=st.just(VB), opaque=st.just(STREAM),
        ),
    ),
    max_size=25,
)  # fmt: skip


@given(MESSAGES)
def test_blocks_and_messages_are_the_same(messages: list[Message]):
    """Items taken straight from bytes make the same copy and the same answers as those that were decoded."""
    one, two = World(STATES), World(STATES)
    (plain, plain_line), (quick, quick_line) = added(one), added(two)
    say(plain, *messages, by_block=False)
    frames = b"".join(encode(message, DRAFT) for message in messages)
    at = 0
    while at < len(frames):
        at = quick.receive_block(frames, at, 0.0)
        if at < len(frames):
            end = at + 24 + int.from_bytes(frames[at + 8 : at + 12])
            quick.receive(decode(frames[at:end], DRAFT), 0.0)
            at = end
    assert plain_line.take() == quick_line.take()
    assert {k: r[24:] for k, r in one.items(1).items()} == {k: r[24:] for k, r in two.items(1).items()}
    assert (one.vb(1).high_seqno, one.vb(1).whole_seqno) == (two.vb(1).high_seqno, two.vb(1).whole_seqno)
    assert (plain.received_bytes, plain.received_items) == (quick.received_bytes, quick.received_items)


# -- UPR


def upr_asked(world: World) -> tuple[UprConsumer, FakeLine, StreamRequest]:
    """A consumer of UPR that has asked for a stream."""
    consumer, line = world.consumer_of(UprConsumer)
    consumer.receive(AddStream(vbucket=VB, opaque=Opaque(99)), 0.0)
    frames = line.take()
    question = decode(frames[-1], Dialect.UPR)
    assert isinstance(question, StreamRequest)
    assert question.layout == "40 bytes"
    return consumer, line, question


@pytest.mark.parametrize("status", [Status.KEY_NOT_FOUND, Status.OUT_OF_RANGE])
def test_upr_has_no_rollback_for_this(status: Status):
    """UPR says so of an unknown branch and of one that has less: the copy begins again. With nothing it is an error."""
    world = World(STATES)
    consumer, line, question = upr_asked(world)
    consumer.receive(ErrorReply(opcode=0x53, opaque=question.opaque, status=status), 0.0)
    assert [message.status for message in line.said() if isinstance(message, ErrorReply)] == [status]
    world.bucket.seqnos[1] = 5
    consumer, line, question = upr_asked(world)
    assert question.start_seqno == 5
    consumer.receive(ErrorReply(opcode=0x53, opaque=question.opaque, status=status), 0.0)
    assert world.flusher.rolled_back == [(1, 0)]
    again = decode(line.take()[-1], Dialect.UPR)
    assert isinstance(again, StreamRequest)
    assert again.start_seqno == 0
