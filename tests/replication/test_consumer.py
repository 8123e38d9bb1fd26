"""A consumer and its bucket, beyond what the captures show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.history import Cause, State
from headrace.ids import Cas, Opaque, Seqno, VBucketId, VbUuid
from headrace.node.dcp.consumer import GIVEN_UP_MAX
from headrace.protocol.consumer import ACK_S, BUFFER_BYTES, NOOP_INTERVAL_S
from headrace.store.records import DELETED, EXPIRED, LIVE, unpack
from headrace.wire import Dialect, Message, encode
from headrace.wire.catalogue import (
    AddStream,
    BufferAck,
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
    Open,
    Prepare,
    Rollback,
    SetVBucketState,
    SnapshotMarker,
    StreamAdded,
    StreamEnd,
    StreamRequest,
)
from headrace.wire.codes import Status, StreamFlag
from tests.replication.copies import World, feed

if TYPE_CHECKING:
    from headrace.node.dcp.consumer import Consumer
    from tests.replication.copies import FakeLine

VB = VBucketId(1)
STREAM = Opaque(1)
STATES = {1: State.REPLICA, 2: State.REPLICA}
META = bytes.fromhex("0102000100")


def of_type(line: FakeLine, kind: type[Message]) -> list[Any]:
    """What was said, if all of it is of one kind."""
    said = line.said()
    assert all(isinstance(message, kind) for message in said), said
    return said


def added(world: World, *, flags: int = 0, vb: int = VB, log: tuple[tuple[int, int], ...] = ((0xA1, 0),)):
    """A consumer with a stream that was accepted."""
    consumer, line = world.consumer()
    consumer.receive(AddStream(vbucket=VBucketId(vb), opaque=Opaque(99), flags=flags), world.now)
    line.take()
    consumer.receive(accepted(*log), world.now)
    (answer,) = of_type(line, StreamAdded)
    assert (answer.opaque, answer.status, answer.stream_opaque) == (99, 0, STREAM)
    return consumer, line


def accepted(*log: tuple[int, int]) -> FailoverLog:
    """The answer that accepts the first stream of a connection."""
    entries = tuple(FailoverEntry(VbUuid(vbuuid), Seqno(seqno)) for vbuuid, seqno in log)
    return FailoverLog(opcode=0x53, opaque=STREAM, entries=entries)


def marker(start: int, end: int, flags: int = 1, *, vb: int = VB, opaque: int = STREAM) -> SnapshotMarker:
    """A marker of the stream."""
    return SnapshotMarker(
        vbucket=VBucketId(vb), opaque=Opaque(opaque), start_seqno=Seqno(start), end_seqno=Seqno(end), flags=flags
    )


def mutation(seqno: int, key: bytes = b"k", value: bytes = b"v", **fields: Any) -> Mutation:
    """An item of the stream."""
    usual: dict[str, Any] = {"vbucket": VB, "opaque": STREAM, "cas": Cas(seqno + 100), "rev_seqno": 1, "nru": 0}
    return Mutation(by_seqno=Seqno(seqno), key=key, value=value, **(usual | fields))


def say(consumer: Consumer, *messages: Message, now: float = 0.0, by_block: bool = False) -> None:
    """Bring messages to a consumer."""
    feed(consumer, [encode(message) for message in messages], now, by_block=by_block)


# -- roles


@pytest.mark.parametrize(
    "message",
    [
        Control(key=b"enable_noop", value=b"true"),
        StreamRequest(snapshot_start=Seqno(0), snapshot_end=Seqno(0)),
        GetFailoverLog(),
        BufferAck(bytes_acked=1),
        DcpFlush(opaque=STREAM, vbucket=VB),
        Open(name=b"again"),
        Prepare(by_seqno=Seqno(1), rev_seqno=1, durability=1, key=b"k"),
    ],
)
def test_what_is_not_for_a_consumer(message: Message):
    """A message of the wrong role ends the connection without an answer."""
    consumer, line = added(World(STATES))
    say(consumer, message)
    assert line.left
    assert not line.take()


def test_noop():
    """A noop is answered with its opaque."""
    consumer, line = World(STATES).consumer()
    say(consumer, DcpNoop(opaque=Opaque(0x99)))
    assert line.said() == [Done(opcode=0x5C, opaque=Opaque(0x99))]


# -- items


def test_forms_of_items():
    """What came in another age's form is kept in ours: no metadata, no nru, a delete time, the datatype as it was."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, marker(1, 9))
    mutated = encode(mutation(1, b"a", b"{}", nru=2, meta=META, datatype=1, flags=7, expiry=8, lock_time=9))
    upr = encode(mutation(2, b"b", b"old", nru=None, flags=5), Dialect.UPR)
    removed: dict[str, Any] = {"vbucket": VB, "opaque": STREAM, "rev_seqno": 2}
    frames = [
        mutated,
        upr,
        encode(Deletion(by_seqno=Seqno(3), key=b"c", meta=META, layout="v1", **removed)),
        encode(Deletion(by_seqno=Seqno(4), key=b"d", delete_time=77, unused=0, **removed)),
        encode(Expiration(by_seqno=Seqno(5), key=b"e", layout="v1", **removed)),
        encode(Expiration(by_seqno=Seqno(6), key=b"f", delete_time=88, **removed)),
        encode(Deletion(by_seqno=Seqno(7), key=b"g", value=b"xattrs", datatype=4, delete_time=9, unused=0, **removed)),
        encode(mutation(8, b"h", b"\x02snappy", datatype=2)),
        encode(mutation(9, b"i", b"plain")),
    ]
    assert [len(frame) - 24 for frame in frames[:2]] == [31 + 1 + 2 + 5, 30 + 1 + 3]
    feed(consumer, frames, 0.0, by_block=True)
    assert not line.take()
    kept = {key: unpack(record) for key, record in world.items(1).items()}
    assert [record.seqno for record in kept.values()] == list(range(1, 10))
    assert (kept[b"a"].value, kept[b"a"].datatype, kept[b"a"].flags, kept[b"a"].expiry) == (b"{}", 1, 7, 8)
    assert (kept[b"b"].value, kept[b"b"].flags) == (b"old", 5)
    assert [kept[key].opcode for key in (b"c", b"d", b"e", b"f")] == [DELETED, DELETED, EXPIRED, EXPIRED]
    now_s = world.bucket.clock.seconds
    assert [kept[key].delete_time for key in (b"c", b"d", b"e", b"f")] == [now_s, 77, now_s, 88]
    assert (kept[b"g"].value, kept[b"g"].datatype) == (b"xattrs", 4)
    assert (kept[b"h"].value, kept[b"h"].datatype, kept[b"h"].opcode) == (b"\x02snappy", 2, LIVE)
    for key, record in world.items(1).items():
        assert record == kept[key].pack(), "a record is what this node would have made of it"
    assert world.bucket.live_items == 4


def test_half_a_snapshot_is_not_seen():
    """A vbucket that is promoted in the middle of a snapshot has the last whole one, and takes no more changes."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, marker(1, 2), mutation(1, b"a"), mutation(2, b"b"), marker(3, 5), mutation(3, b"a", b"new"))
    world.bucket.set_state(world.vb(1), State.ACTIVE, Cause.SET_VBUCKET)
    vb = world.vb(1)
    assert (vb.high_seqno, vb.failover_log.latest.seqno) == (2, 2)
    assert unpack(world.items(1)[b"a"]).value == b"v"
    say(consumer, mutation(4, b"c"))
    (refused,) = of_type(line, ErrorReply)
    assert refused.status == Status.KEY_NOT_FOUND


def test_a_cut_stream_goes_on_inside_its_snapshot():
    """The next connection asks with the branch, the last seqno and the snapshot around it."""
    world = World(STATES)
    consumer, _ = added(world, log=((0xB0, 2), (0xA0, 0)))
    say(consumer, marker(0, 2), mutation(1, b"a"), mutation(2, b"b"), marker(2, 9), mutation(5, b"c"))
    consumer.close()
    again, line = world.consumer()
    say(again, AddStream(vbucket=VB, opaque=Opaque(4)))
    request = line.said()[-1]
    assert isinstance(request, StreamRequest)
    assert (request.start_seqno, request.snapshot_start, request.snapshot_end) == (5, 2, 9)
    assert (request.vbuuid, request.end_seqno) == (0xB0, 2**64 - 1)
    say(again, accepted((0xB0, 2), (0xA0, 0)), marker(2, 9), mutation(9, b"d"))
    assert set(world.items(1)) == {b"a", b"b", b"c", b"d"}
    assert world.vb(1).whole_seqno == 9


FRAMES = st.one_of(
    st.builds(marker, st.integers(0, 12), st.integers(0, 12), st.integers(0, 15), vb=st.sampled_from([1, 1, 1, 2])),
    st.builds(
        mutation,
        st.integers(0, 12),
        st.sampled_from([b"a", b"b", b"c"]),
        st.binary(max_size=3),
        nru=st.sampled_from([0, 0, 2]),
        meta=st.sampled_from([b"", b"", META, b"\xff"]),
        datatype=st.sampled_from([0, 0, 1, 7, 8]),
        opaque=st.sampled_from([STREAM, STREAM, STREAM, Opaque(9)]),
        vbucket=st.sampled_from([VB, VB, VB, VBucketId(2)]),
    ),
    st.builds(
        Deletion,
        by_seqno=st.integers(0, 12),
        rev_seqno=st.just(2),
        key=st.sampled_from([b"a", b"b"]),
        vbucket=st.just(VB),
        opaque=st.just(STREAM),
        layout=st.just("v1"),
    ),
)


@given(st.lists(FRAMES, max_size=25), st.data())
def test_blocks_and_messages_are_the_same(messages: list[Message], data: st.DataObject):
    """Items that are taken straight from bytes, cut anywhere, make the same copy and the same answers."""
    frames = [encode(message) for message in messages]
    plain, quick = World(STATES), World(STATES)
    (one, one_line), (two, two_line) = added(plain), added(quick)
    feed(one, frames, 0.0, by_block=False)
    rest = b""
    pieces = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pieces)), max_size=4)))
    for start, end in zip([0, *cuts], [*cuts, len(pieces)], strict=True):
        rest += pieces[start:end]
        while True:
            at = two.receive_block(rest, 0, 0.0)
            rest = rest[at:]
            length = 24 + int.from_bytes(rest[8:12])
            if len(rest) < max(24, length):
                break
            feed(two, [rest[:length]], 0.0, by_block=False)
            rest = rest[length:]
    assert one_line.take() == two_line.take()
    assert plain.items(1).keys() == quick.items(1).keys()
    assert {k: r[24:] for k, r in plain.items(1).items()} == {k: r[24:] for k, r in quick.items(1).items()}
    assert (plain.vb(1).high_seqno, plain.vb(1).whole_seqno) == (quick.vb(1).high_seqno, quick.vb(1).whole_seqno)
    assert (one.received_bytes, one.received_items) == (two.received_bytes, two.received_items)
    assert bool(one_line.left) is bool(two_line.left)


# -- states


def test_a_takeover_waits_for_the_disk():
    """Each step is answered when state and items are on disk, not before."""
    world = World(STATES)
    consumer, line = added(world, flags=StreamFlag.TAKEOVER)
    say(consumer, marker(0, 1, 9), mutation(1))
    assert of_type(line, Done)[0].opcode == 0x56
    say(consumer, SetVBucketState(vbucket=VB, opaque=STREAM, state=3))
    assert (line.take(), world.vb(1).state, world.flusher.hurried > 0) == ([], State.PENDING, True)
    world.flusher.flush()
    assert [message.opcode for message in of_type(line, Done)] == [0x5B]
    assert (world.vb(1).persisted_seqno, world.vb(1).state_on_disk) == (1, State.PENDING)
    say(consumer, SetVBucketState(vbucket=VB, opaque=STREAM, state=1))
    assert not line.take()
    world.flusher.flush()
    assert [message.opcode for message in of_type(line, Done)] == [0x5B]
    assert world.vb(1).state_on_disk is State.ACTIVE
    assert world.vb(1).vbuuid == 0xA1, "a takeover begins no branch"
    say(consumer, StreamEnd(vbucket=VB, opaque=STREAM, reason=0))
    assert not line.take()


def test_a_takeover_that_the_manager_ends():
    """Who makes the vbucket dead meanwhile has the last word: the step is refused, and no later one can undo it."""
    world = World(STATES)
    consumer, line = added(world, flags=StreamFlag.TAKEOVER)
    say(consumer, SetVBucketState(vbucket=VB, opaque=STREAM, state=3))
    world.bucket.set_state(world.vb(1), State.DEAD, Cause.SET_VBUCKET)
    world.flusher.flush()
    assert [message.status for message in of_type(line, ErrorReply)] == [Status.INVALID]
    say(consumer, SetVBucketState(vbucket=VB, opaque=STREAM, state=1))
    assert line.left
    assert world.vb(1).state is State.DEAD


def test_active_without_pending():
    """A manager that made the vbucket a replica again took the first step back."""
    world = World(STATES)
    consumer, line = added(world, flags=StreamFlag.TAKEOVER)
    say(consumer, SetVBucketState(vbucket=VB, opaque=STREAM, state=3))
    world.flusher.flush()
    line.take()
    world.bucket.set_state(world.vb(1), State.REPLICA, Cause.SET_VBUCKET)
    say(consumer, SetVBucketState(vbucket=VB, opaque=STREAM, state=1))
    assert [message.status for message in of_type(line, ErrorReply)] == [Status.INVALID]
    assert world.vb(1).state is State.REPLICA


def test_a_dead_vbucket_is_taken_over():
    """A vbucket that its manager left dead becomes pending by way of a replica."""
    world = World({1: State.DEAD})
    consumer, line = added(world, flags=StreamFlag.TAKEOVER)
    say(consumer, SetVBucketState(vbucket=VB, opaque=STREAM, state=3))
    world.flusher.flush()
    assert of_type(line, Done)
    assert world.vb(1).state is State.PENDING


def test_replica_is_no_change():
    """A stream that takes nothing over may be told that its vbucket is a replica."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, SetVBucketState(vbucket=VB, opaque=STREAM, state=2))
    assert of_type(line, Done)
    assert world.vb(1).state is State.REPLICA


# -- the request, rollback


def test_two_connections_want_one_vbucket():
    """A vbucket is fed by one stream; when that is gone, another may come."""
    world = World(STATES)
    consumer, _ = added(world)
    other, line = world.consumer("other")
    say(other, AddStream(vbucket=VB, opaque=Opaque(3)))
    assert [message.status for message in of_type(line, ErrorReply)] == [Status.KEY_EXISTS]
    say(other, CloseStream(vbucket=VB, opaque=Opaque(4)))
    assert [message.status for message in of_type(line, ErrorReply)] == [Status.KEY_NOT_FOUND]
    consumer.close()
    consumer.close()
    say(other, AddStream(vbucket=VB, opaque=Opaque(3)))
    assert isinstance(line.said()[-1], StreamRequest)


def rolling(world: World) -> tuple[Consumer, FakeLine]:
    """A consumer whose producer asked for a rollback that takes its time."""
    consumer, _ = added(world)
    say(consumer, marker(0, 5), mutation(5))
    consumer.close()
    world.flusher.is_slow = True
    again, line = world.consumer()
    say(again, AddStream(vbucket=VB, opaque=Opaque(6)))
    line.take()
    say(again, Rollback(opcode=0x53, status=Status.ROLLBACK, opaque=STREAM, seqno=Seqno(2)))
    assert world.flusher.rolled_back == [(1, 2)]
    return again, line


def test_rollback_and_again():
    """The vbucket goes back, then the same opaque asks from there."""
    world = World(STATES)
    _, line = rolling(world)
    assert not line.take()
    world.flusher.waiting[0]()
    (request,) = of_type(line, StreamRequest)
    assert (request.opaque, request.start_seqno) == (STREAM, 0)


def test_rollback_fails():
    """A disk that cannot go back ends the stream; ADD_STREAM hears of it."""
    world = World(STATES)
    _, line = rolling(world)
    world.flusher.fails = True
    world.flusher.waiting[0]()
    (answer,) = line.take()
    assert (answer[1], answer[6:8], answer[12:16]) == (0x51, b"\x00\x86", b"\x00\x00\x00\x06")


def test_closed_while_it_rolls_back():
    """A stream that is closed meanwhile asks for nothing any more."""
    world = World(STATES)
    consumer, line = rolling(world)
    say(consumer, CloseStream(vbucket=VB, opaque=Opaque(7)))
    assert [message[1] for message in line.take()] == [0x52, 0x51]
    world.flusher.waiting[0]()
    assert not line.take()


def test_closed_before_it_was_answered():
    """The answer to a request that nobody waits for any more is dropped; one to no request ends the connection."""
    consumer, line = World(STATES).consumer()
    say(consumer, AddStream(vbucket=VB, opaque=Opaque(6)), CloseStream(vbucket=VB, opaque=Opaque(7)))
    line.take()
    say(consumer, accepted((0xA1, 0)))
    assert (line.take(), line.left) == ([], None)
    say(consumer, accepted((0xA1, 0)))
    assert line.left


def test_given_up_again_and_again():
    """A producer that answers none of many requests is left: each is remembered until it does."""
    consumer, line = World(STATES).consumer()
    pair = (AddStream(vbucket=VB, opaque=Opaque(6)), CloseStream(vbucket=VB, opaque=Opaque(7)))
    for _ in range(GIVEN_UP_MAX):
        say(consumer, *pair)
    assert line.left is None
    say(consumer, *pair)
    assert "were given up" in str(line.left)


def test_rolled_back_by_another():
    """A vbucket that somebody rolls back takes no more of a stream that does not know of it."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, marker(0, 5), mutation(5))
    world.flusher.roll_back(world.vb(1), 2, lambda _: None)
    say(consumer, marker(5, 9), mutation(9))
    assert [message.status for message in of_type(line, ErrorReply)] == [Status.KEY_NOT_FOUND] * 2
    assert world.vb(1).high_seqno == 0


def test_answers_that_mean_nothing():
    """Answers to acks are no one's business."""
    consumer, line = added(World(STATES))
    say(consumer, ErrorReply(opcode=0x5D, status=Status.INVALID))
    assert (line.take(), line.left) == ([], None)


# -- the connection


def test_acks():
    """A fifth of the buffer is acked at once, the rest in time."""
    world = World(STATES)
    consumer, line = added(world)
    say(consumer, marker(1, 9), now=1.0)
    assert consumer.deadline == ACK_S
    say(consumer, mutation(1, value=bytes(BUFFER_BYTES // 5)), now=2.0, by_block=True)
    (ack,) = of_type(line, BufferAck)
    assert ack.bytes_acked == 44 + 24 + 31 + 1 + BUFFER_BYTES // 5
    say(consumer, mutation(2), now=3.0)
    assert not consumer.pump(2.0 + ACK_S - 0.1)
    assert not line.take()
    assert not consumer.pump(2.0 + ACK_S)
    assert of_type(line, BufferAck)[0].bytes_acked == 57


def test_a_silent_producer():
    """One that agreed to send noops is left after two intervals, one that did not never is."""
    for status, gone in ((Status.SUCCESS, True), (Status.INVALID, False)):
        consumer, line = World(STATES).consumer()
        say(consumer, AddStream(vbucket=VB, opaque=Opaque(6)))
        noop = next(
            message for message in line.said() if isinstance(message, Control) and message.key == b"enable_noop"
        )
        kind = ErrorReply if status else Done
        say(consumer, kind(opcode=0x5E, status=status, opaque=noop.opaque), now=1.0)
        consumer.pump(1.0 + 2 * NOOP_INTERVAL_S - 1)
        assert not line.left
        consumer.pump(1.0 + 2 * NOOP_INTERVAL_S)
        assert bool(line.left) is gone


def test_a_disk_that_takes_nothing():
    """Memory is not filled without an end: the producer is left, and asked again when the disk works."""
    world = World(STATES)
    consumer, line = added(world)
    world.bucket.trouble = "not on disk: no space"
    say(consumer, marker(1, 9), mutation(1))
    assert not line.left
    world.bucket.dirty_bytes = world.bucket.limits.dirty_bytes_max + 1
    say(consumer, mutation(2), by_block=True)
    assert line.left is not None
    assert "no space" in line.left


def test_stats():
    """The stats tell of each stream where it is."""
    consumer, _ = added(World(STATES))
    say(consumer, marker(1, 9), mutation(4))
    told = dict(consumer.stats())
    assert (told["type"], told["total_items_received"], told["unacked_bytes"]) == ("consumer", 1, 44 + 57)
    assert (told["stream_1_state"], told["stream_1_last_received_seqno"]) == ("streaming", 4)
