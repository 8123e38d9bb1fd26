"""The rules of a stream at a consumer that keeps a copy, without a copy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.history import FailoverLog as Log
from headrace.history import Position, SnapshotRange, State
from headrace.ids import Opaque, Seqno, VBucketId, VbUuid
from headrace.protocol.consumer import (
    ACK_S,
    ACK_SHARE,
    BUFFER_BYTES,
    CONTROLS,
    NOOP_INTERVAL_S,
    NOOPS_MISSED_MAX,
    ROLLBACKS_MAX,
    SEQNO_KEPT_MAX,
    STATUSES,
    TRANSITIONS,
    Accepted,
    Acks,
    Input,
    RefusedBy,
    RollBackTo,
    Senseless,
    Stream,
    StreamState,
    Verdict,
    Watch,
)
from headrace.wire.catalogue import Done, ErrorReply, FailoverEntry, FailoverLog, Rollback
from headrace.wire.codes import SnapshotFlag, Status, StreamFlag

REQUEST = 0x53
UUID = VbUuid(0xA1)


def asked(*, seqno: int = 0, start: int | None = None, end: int | None = None, flags: int = 0) -> Stream:
    """A stream whose request went out."""
    stream = Stream(vbucket=VBucketId(1), opaque=Opaque(7), flags=flags)
    snapshot = SnapshotRange(start=Seqno(seqno if start is None else start), end=Seqno(seqno if end is None else end))
    stream.begin(Position(vbuuid=UUID, seqno=Seqno(seqno), snapshot=snapshot))
    return stream


def log(*entries: tuple[int, int]) -> FailoverLog:
    """The answer that accepts a stream."""
    rows = tuple(FailoverEntry(VbUuid(vbuuid), Seqno(seqno)) for vbuuid, seqno in entries)
    return FailoverLog(opcode=REQUEST, entries=rows)


def streaming(*, seqno: int = 0, start: int | None = None, end: int | None = None, flags: int = 0) -> Stream:
    """A stream that was accepted."""
    stream = asked(seqno=seqno, start=start, end=end, flags=flags)
    assert isinstance(stream.answered(log((0xA1, 0))), Accepted)
    return stream


def marked(start: int, end: int, *, flags: int = 1, seqno: int = 0) -> Stream:
    """A stream with an open snapshot."""
    stream = streaming(seqno=seqno)
    assert stream.marker(start=start, end=end, flags=flags) is Verdict.TAKE
    return stream


# -- the request


def test_accepted():
    """A failover log accepts the stream and is the history to take over."""
    outcome = asked().answered(log((0xB0, 10), (0xA0, 0)))
    assert outcome == Accepted(log=Log.from_entries(((VbUuid(0xB0), Seqno(10)), (VbUuid(0xA0), Seqno(0)))))


@pytest.mark.parametrize("entries", [(), ((0, 0),), ((1, 0), (1, 0)), ((1, 3), (2, 7))])
def test_senseless_logs(entries: tuple[tuple[int, int], ...]):
    """A log that is empty, names no branch, names one twice or goes back ends the connection."""
    stream = asked()
    assert isinstance(stream.answered(log(*entries)), Senseless)
    assert stream.state is StreamState.ASKED


def test_rollback_and_again():
    """A rollback is carried out, and the same stream asks again."""
    stream = asked(seqno=9)
    assert stream.answered(Rollback(opcode=REQUEST, status=Status.ROLLBACK, seqno=Seqno(4))) == RollBackTo(
        seqno=Seqno(4)
    )
    assert str(stream.state) == "rolling back"
    assert stream.rolled_back()
    assert str(stream.state) == "asked"


def test_rollbacks_end():
    """A producer that never agrees is given up, and its status goes to who asked."""
    stream = asked(seqno=9)
    answer = Rollback(opcode=REQUEST, status=Status.ROLLBACK, seqno=Seqno(0))
    for _ in range(ROLLBACKS_MAX):
        assert isinstance(stream.answered(answer), RollBackTo)
        assert stream.rolled_back()
    assert stream.answered(answer) == RefusedBy(status=Status.ROLLBACK)
    assert stream.state is StreamState.ENDED


def test_a_rollback_that_fails():
    """A copy that cannot go back ends the stream, once."""
    stream = asked(seqno=9)
    stream.answered(Rollback(opcode=REQUEST, status=Status.ROLLBACK, seqno=Seqno(4)))
    assert stream.failed()
    assert not stream.failed()
    assert not stream.rolled_back()


@pytest.mark.parametrize("status", [Status.NOT_MY_VBUCKET, Status.KEY_EXISTS, Status.OUT_OF_RANGE])
def test_errors_pass_through(status: Status):
    """What the producer answers is what ADD_STREAM is answered with."""
    stream = asked()
    assert stream.answered(ErrorReply(opcode=REQUEST, status=status)) == RefusedBy(status=status)
    assert stream.state is StreamState.ENDED


def test_a_success_without_a_log():
    """An answer of another kind is no acceptance, whatever its status says."""
    assert asked().answered(Done(opcode=REQUEST)) == RefusedBy(status=Status.INTERNAL_ERROR)


def test_an_answer_that_nobody_waits_for():
    """A second answer makes no sense."""
    assert isinstance(streaming().answered(log((0xA1, 0))), Senseless)


# -- markers


def test_marker_past_its_end():
    """A marker whose start is past its end is invalid."""
    assert streaming().marker(start=5, end=2, flags=1) is Verdict.INVALID


def test_marker_that_goes_back():
    """A marker that lies behind what came is out of range; one that reaches beyond it is not."""
    stream = marked(1, 4)
    stream.item(4)
    assert stream.marker(start=2, end=4, flags=1) is Verdict.OUT_OF_RANGE
    assert stream.marker(start=2, end=5, flags=1) is Verdict.TAKE
    assert (stream.snapshot_start, stream.snapshot_end) == (2, 5)


def test_marker_inside_a_snapshot_extends_it():
    """The rest of a snapshot may come in the next one: the copy is whole at the end of both."""
    stream = marked(1, 10)
    stream.item(5)
    assert stream.marker(start=5, end=20, flags=2) is Verdict.TAKE
    assert (stream.snapshot_start, stream.snapshot_end) == (1, 20)
    assert stream.item(10) is Verdict.TAKE
    assert not stream.is_whole
    assert stream.item(20) is Verdict.TAKE_LAST
    assert stream.is_whole


def test_marker_of_a_resumed_snapshot():
    """A stream that was cut inside a snapshot goes on with it."""
    stream = streaming(seqno=5, start=2, end=10)
    assert not stream.is_whole
    assert stream.marker(start=5, end=8, flags=1) is Verdict.TAKE
    assert (stream.snapshot_start, stream.snapshot_end) == (2, 10)


def test_marker_after_a_snapshot_of_which_nothing_came():
    """A snapshot that was announced to a copy may never come: with nothing of it, the next one stands for itself."""
    stream = streaming(seqno=195, start=195, end=199)
    assert stream.marker(start=195, end=196, flags=1) is Verdict.TAKE
    assert stream.item(196) is Verdict.TAKE_LAST


def test_an_empty_snapshot_is_whole_at_once():
    """A marker that brings nothing is answered at once when it asks for that."""
    assert streaming(seqno=5).marker(start=5, end=5, flags=9) is Verdict.TAKE_LAST_AND_ANSWER
    assert streaming(seqno=5).marker(start=5, end=5, flags=1) is Verdict.TAKE_LAST


def test_the_answer_to_a_marker():
    """A marker that asks for it is answered after its last item, and only once."""
    stream = marked(1, 2, flags=SnapshotFlag.MEMORY | SnapshotFlag.ACK)
    assert stream.item(1) is Verdict.TAKE
    assert stream.item(2) is Verdict.TAKE_LAST_AND_ANSWER
    stream.marker(start=3, end=3, flags=SnapshotFlag.MEMORY)
    assert stream.item(3) is Verdict.TAKE_LAST


# -- items


def test_item_without_a_marker():
    """An item before the first marker is dropped, also where the position lies inside a snapshot."""
    assert streaming().item(1) is Verdict.DROP
    assert streaming(seqno=2, start=1, end=4).item(3) is Verdict.DROP


def test_items_only_rise():
    """A seqno comes once; zero never."""
    stream = marked(1, 4)
    assert stream.item(2) is Verdict.TAKE
    assert stream.item(1) is Verdict.OUT_OF_RANGE
    assert stream.item(2) is Verdict.OUT_OF_RANGE
    assert stream.item(0) is Verdict.INVALID


def test_item_past_the_snapshot():
    """An item past the end of its snapshot is dropped, and what it dropped does not make the snapshot whole."""
    stream = marked(1, 4)
    stream.item(2)
    assert stream.item(9) is Verdict.DROP
    assert stream.item(4) is Verdict.OUT_OF_RANGE
    assert not stream.is_whole
    assert stream.marker(start=2, end=4, flags=1) is Verdict.OUT_OF_RANGE


# -- states


def test_takeover():
    """Pending, then active; after that no item is taken."""
    stream = streaming(flags=StreamFlag.TAKEOVER)
    assert stream.takes_over
    assert stream.told(State.PENDING) is State.PENDING
    assert stream.told(State.PENDING) is State.PENDING
    assert stream.marker(start=1, end=1, flags=9) is Verdict.TAKE
    assert stream.item(1) is Verdict.TAKE_LAST_AND_ANSWER
    assert stream.told(State.ACTIVE) is State.ACTIVE
    assert stream.told(State.ACTIVE) is State.ACTIVE
    assert stream.item(2) is Verdict.NO_STREAM
    assert stream.marker(start=2, end=2, flags=1) is Verdict.NO_STREAM
    assert [stream.ended(), stream.ended()] == [Verdict.TAKE, Verdict.NO_STREAM]


def test_pending_in_the_words_of_the_documents():
    """2 is pending to a stream that takes over, and replica to one that does not."""
    assert streaming(flags=StreamFlag.TAKEOVER).told(2) is State.PENDING
    stream = streaming()
    assert stream.told(2) is State.REPLICA
    assert stream.state is StreamState.STREAMING


def test_states_that_are_refused():
    """No takeover makes a vbucket dead, active in one step, active in the middle of a snapshot, or 7."""
    assert streaming().told(7) is Verdict.INVALID
    assert streaming().told(State.DEAD) is Verdict.INVALID
    assert streaming().told(State.ACTIVE) is Verdict.INVALID
    assert asked().told(State.PENDING) is Verdict.NO_STREAM
    stream = marked(1, 2)
    stream.told(State.PENDING)
    assert stream.told(State.ACTIVE) is Verdict.INVALID
    stream.marker(start=1, end=2, flags=1)
    stream.item(2)
    assert stream.told(State.ACTIVE) is State.ACTIVE


def test_close():
    """Whatever it does, a stream can be closed from this side, once."""
    for stream in (asked(), streaming(), marked(1, 2)):
        assert stream.close()
        assert not stream.close()
        assert stream.item(1) is Verdict.NO_STREAM


# -- the table


PAIRS = [(state, given_) for state in StreamState for given_ in Input]


@pytest.mark.parametrize(("state", "given_"), PAIRS)
def test_every_pair_is_legal_or_refused(state: StreamState, given_: Input):
    """A step that the table has is taken, any other leaves the stream as it was."""
    stream = Stream(vbucket=VBucketId(0), opaque=Opaque(1))
    stream.state = state
    wanted = TRANSITIONS.get((state, given_))
    assert stream._step(given_) is (wanted is not None)
    assert stream.state is (wanted or state)


def test_nothing_leaves_the_end():
    """What has ended stays so, and everything else can end."""
    assert not [state for state, _ in TRANSITIONS if state is StreamState.ENDED]
    assert {state for state, given_ in TRANSITIONS if given_ is Input.CLOSE} == set(StreamState) - {StreamState.ENDED}


def test_refusals_have_statuses():
    """What is refused is answered with the statuses of the captures."""
    assert {verdict.name: int(status) for verdict, status in STATUSES.items()} == {
        "OUT_OF_RANGE": 0x22,
        "INVALID": 0x04,
        "NO_STREAM": 0x01,
    }


MARKERS = st.tuples(st.just("marker"), st.integers(0, 12), st.integers(0, 12), st.integers(0, 15))
ITEMS = st.tuples(st.just("item"), st.integers(0, 14), st.just(0), st.just(0))


@given(st.lists(st.one_of(MARKERS, ITEMS), max_size=40))
def test_what_is_taken_rises_and_lies_in_a_snapshot(messages: list[tuple[str, int, int, int]]):
    """Whatever comes: taken seqnos rise, lie within what markers announced, and a whole copy has its last seqno."""
    stream, taken, announced = streaming(), [0], 0
    for kind, first, second, flags in messages:
        if kind == "marker":
            if stream.marker(start=first, end=second, flags=flags) not in STATUSES:
                announced = max(announced, second)
        elif stream.item(first) in {Verdict.TAKE, Verdict.TAKE_LAST, Verdict.TAKE_LAST_AND_ANSWER}:
            assert taken[-1] < first <= announced
            taken.append(first)
            assert stream.is_whole is (first == stream.snapshot_end)


# -- the connection


def test_controls():
    """What is set before the first stream, in the order of the captures."""
    assert CONTROLS == (
        (b"connection_buffer_size", b"52428800"),
        (b"enable_noop", b"true"),
        (b"set_noop_interval", b"180"),
        (b"set_priority", b"high"),
        (b"enable_ext_metadata", b"true"),
    )


def test_acks_after_a_fifth():
    """A fifth of the buffer is acked at once, less waits."""
    acks = Acks(now=0.0)
    assert (acks.deadline, acks.due(1000.0)) == (None, 0)
    acks.took(BUFFER_BYTES // ACK_SHARE - 1)
    assert acks.due(1.0) == 0
    assert acks.deadline == ACK_S
    acks.took(1)
    assert acks.due(1.0) == BUFFER_BYTES // ACK_SHARE
    assert acks.due(1.0) == 0


def test_acks_after_a_while():
    """However little there is, it is acked in the end."""
    acks = Acks(now=10.0)
    acks.took(763)
    assert acks.due(10.0 + ACK_S - 0.1) == 0
    assert acks.due(10.0 + ACK_S) == 763


def test_a_silent_producer_is_gone():
    """Two intervals without a word, from one that agreed to send noops."""
    watch = Watch(now=0.0)
    assert (watch.deadline, watch.is_gone(1e9)) == (None, False)
    watch.is_on = True
    watch.heard(100.0)
    gone_at = 100.0 + NOOPS_MISSED_MAX * NOOP_INTERVAL_S
    assert watch.deadline == gone_at
    assert not watch.is_gone(gone_at - 1)
    assert watch.is_gone(gone_at)


def test_a_snapshot_that_ends_by_a_message():
    """In the draft a snapshot is whole when its end comes, at the last seqno that came; an end of none is refused."""
    stream = Stream(vbucket=VBucketId(1), opaque=Opaque(5))
    assert stream.snapshot_ended() is Verdict.NO_STREAM, "it was not accepted"
    stream.begin(Position(vbuuid=VbUuid(7), seqno=Seqno(3), snapshot=SnapshotRange(start=Seqno(3), end=Seqno(3))))
    entries = (FailoverEntry(VbUuid(7), Seqno(0)),)
    assert isinstance(stream.answered(FailoverLog(opcode=0x50, opaque=Opaque(5), entries=entries)), Accepted)
    assert stream.snapshot_ended() is Verdict.INVALID
    assert stream.marker(start=3, end=SEQNO_KEPT_MAX, flags=0) is Verdict.TAKE
    assert [stream.item(seqno) for seqno in (5, 9)] == [Verdict.TAKE, Verdict.TAKE]
    assert not stream.is_whole
    assert stream.snapshot_ended() is Verdict.TAKE_LAST
    assert (stream.snapshot_start, stream.snapshot_end, stream.is_whole) == (3, 9, True)
    assert stream.item(10) is Verdict.DROP, "it is outside of every snapshot"
