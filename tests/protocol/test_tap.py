"""A TAP connection as its sender sees it: what is asked for, the script, streams, and the log of acks."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.errors import LocalProtocolError
from headrace.history import FailoverLog, History
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.protocol.tap import (
    BEHIND_MAX,
    CLOCK_NS_MIN,
    ROUNDS_MAX,
    STEPS,
    Cue,
    Kind,
    Phase,
    Reached,
    Script,
    Step,
    TapStream,
    Wish,
    goes_on,
    is_older,
)
from headrace.protocol.tap_acks import OPAQUE_BITS, AckLog, Part
from headrace.protocol.tap_checkpoints import CHANGES_MAX, KEPT_MAX, Checkpoints
from headrace.wire.catalogue import TapConnect, VBucketCheckpoint
from headrace.wire.codes import TapConnectFlag

NOW_S = 1_700_000_000
VB = VBucketId(3)


# ------------------------------------------------------------------------------------------------------ what is wanted


def test_a_request_without_extras_wants_everything():
    """No flags, no list, no date: all vbuckets, old items and new ones."""
    wish = Wish.of(TapConnect())
    assert wish == Wish()
    assert wish.backfills(NOW_S)
    assert not wish.since_ns(NOW_S)
    assert not wish.is_dump
    assert not wish.is_registered


def test_a_request_is_read_whole():
    """A vbucket that is listed twice is sent once, and checkpoint 0 is none."""
    flags = TapConnectFlag.LIST_VBUCKETS | TapConnectFlag.CHECKPOINT | TapConnectFlag.REGISTERED_CLIENT
    asked = TapConnect(
        flags=flags,
        vbuckets=(3, 1, 3),
        checkpoints=(VBucketCheckpoint(VBucketId(1), 0), VBucketCheckpoint(VBucketId(3), 9)),
    )
    wish = Wish.of(asked)
    assert wish.vbuckets == (3, 1)
    assert wish.checkpoints == {3: 9}
    assert wish.is_registered


@pytest.mark.parametrize(
    ("date", "backfills"),
    [(0, True), (NOW_S - 1, True), (NOW_S, True), (NOW_S + 1, False), (0xFFFF_FFFF_FFFF_FFFF, False)],
)
def test_a_date_that_is_yet_to_come_means_later_changes_alone(date: int, *, backfills: bool):
    """Up to now it is a time since when changes are wanted."""
    wish = Wish(flags=TapConnectFlag.BACKFILL, backfill_date=date)
    assert wish.backfills(NOW_S) is backfills
    assert wish.since_ns(NOW_S) == (date * 1_000_000_000 if backfills else 0)


def test_a_dump_is_not_remembered_and_a_takeover_is_no_dump():
    """What ends by itself has nothing to go on with."""
    both = TapConnectFlag.DUMP | TapConnectFlag.REGISTERED_CLIENT
    assert Wish(flags=both).is_dump
    assert not Wish(flags=both).is_registered
    assert not Wish(flags=both | TapConnectFlag.TAKEOVER_VBUCKETS).is_dump


def test_only_what_is_surely_older_is_left_out():
    """A CAS that is no time says nothing."""
    since = CLOCK_NS_MIN + 10
    assert is_older(CLOCK_NS_MIN, since)
    assert not is_older(since, since)
    assert not is_older(CLOCK_NS_MIN - 1, since)
    assert not is_older(CLOCK_NS_MIN, 0)


def test_a_client_goes_on_where_its_history_is_this_one():
    """Not beyond what is there, not behind purged deletions, not on a branch that nobody knows."""
    log = FailoverLog.new(VbUuid(7)).branch(vbuuid=VbUuid(8), seqno=Seqno(10))
    history = History(log=log, high_seqno=Seqno(20), purge_seqno=Seqno(4))
    assert goes_on(history, Reached(8, 20, 20))
    assert goes_on(history, Reached(7, 10, 10))
    assert goes_on(history, Reached(0, 0, 0))
    assert not goes_on(history, Reached(8, 21, 21))
    assert not goes_on(history, Reached(7, 11, 11))
    assert not goes_on(history, Reached(8, 3, 3))
    assert not goes_on(history, Reached(9, 5, 5))


def test_in_the_middle_of_changes_a_client_goes_on_if_they_are_all_here():
    """What was changed once more up to their end it does not have: on a branch that left them earlier it comes anew."""
    log = FailoverLog.new(VbUuid(7)).branch(vbuuid=VbUuid(8), seqno=Seqno(10))
    history = History(log=log, high_seqno=Seqno(20))
    assert goes_on(history, Reached(7, 6, 10))
    assert not goes_on(history, Reached(7, 6, 11))
    assert goes_on(history, Reached(8, 15, 20))
    assert not goes_on(history, Reached(8, 15, 21))
    assert not goes_on(History(log=log, high_seqno=Seqno(20), purge_seqno=Seqno(15)), Reached(8, 15, 20))


# ---------------------------------------------------------------------------------------------------------- the script


def played(script: Script) -> list[tuple[Kind, int]]:
    """What a script says from where it is, to its end."""
    found: list[tuple[Kind, int]] = []
    while (cue := script.now) is not None:
        found.append((cue.kind, cue.vbucket))
        script.done()
    return found


def test_a_script_names_all_vbuckets_first_and_closes_them_last():
    """The order is that of captured servers."""
    script = Script()
    script.begin(Kind.ACKS, Kind.CHECKPOINTS)
    script.backfill([VBucketId(1), VBucketId(2)], pending=[VBucketId(1)])
    assert played(script) == [
        (Kind.ACKS, 0),
        (Kind.CHECKPOINTS, 0),
        (Kind.PENDING, 1),
        (Kind.INITIAL, 1),
        (Kind.INITIAL, 2),
        (Kind.ITEMS, 1),
        (Kind.ITEMS, 2),
        (Kind.CLOSE, 1),
        (Kind.CLOSE, 2),
    ]


def test_a_script_goes_back_and_never_ahead():
    """What was refused is said again, with all behind it."""
    script = Script()
    script.backfill([VB])
    script.go_back(2)
    assert script.now == Cue(Kind.INITIAL, VB, place=0)
    played(script)
    script.go_back(1)
    assert played(script) == [(Kind.ITEMS, VB), (Kind.CLOSE, VB)]


def test_a_vbucket_that_is_gone_is_not_mentioned_any_more():
    """The places of the others stay, and what concerns all stays too."""
    script = Script()
    script.begin(Kind.ACKS)
    script.backfill([VBucketId(0), VBucketId(1)])
    script.done()
    script.done()
    script.drop(0)
    script.drop(0)
    script.go_back(0)
    assert played(script) == [(Kind.ACKS, 0), (Kind.INITIAL, 1), (Kind.ITEMS, 1), (Kind.CLOSE, 1)]


def test_a_script_is_forgotten_at_its_end_alone():
    """What is still to be said is kept."""
    script = Script()
    script.begin(Kind.ACKS)
    script.forget()
    assert script.now is not None
    script.done()
    script.forget()
    script.begin(Kind.CHECKPOINTS)
    assert script.now == Cue(Kind.CHECKPOINTS, place=0)


# ----------------------------------------------------------------------------------------------------------- a vbucket


@pytest.mark.parametrize(("phase", "step"), list(itertools.product(Phase, Step)))
def test_every_step_is_in_the_table_or_refused(phase: Phase, step: Step):
    """A stream moves by the table and by nothing else."""
    stream = TapStream(VB, cursor=0)
    stream.phase = phase
    if (phase, step) in STEPS:
        stream.step(step)
        assert stream.phase is STEPS[phase, step]
    else:
        with pytest.raises(LocalProtocolError, match=r"vbucket 3: a TAP stream that is"):
            stream.step(step)


def test_old_items_are_over_when_all_of_them_were_sent():
    """Up to the end that they had at the start, and to the end of what was begun."""
    stream = TapStream(VB, cursor=0, backfill_end=5)
    assert stream.phase is Phase.BACKFILLING
    assert (stream.sends, stream.is_backfilled) == (False, False)
    stream.begin(7)
    stream.sent(6)
    assert (stream.in_snapshot, stream.is_backfilled) == (True, False)
    stream.finish_snapshot()
    assert (stream.cursor, stream.is_backfilled) == (7, True)
    stream.step(Step.BACKFILLED)
    assert (stream.sends, stream.holds_vbucket) == (True, False)


def test_a_stream_goes_back_and_never_ahead():
    """What was begun is left then."""
    stream = TapStream(VB, cursor=4)
    stream.begin(9)
    stream.sent(6)
    stream.abandon()
    assert not stream.in_snapshot
    assert stream.cursor == 6
    stream.rewind(8)
    assert stream.cursor == 6
    stream.rewind(3)
    assert stream.cursor == 3


def test_a_takeover_stops_when_little_is_left_or_after_some_rounds():
    """Under load it would never catch up."""
    stream = TapStream(VB, cursor=0, takes_over=True)
    assert stream.may_stop(BEHIND_MAX)
    assert not TapStream(VB, cursor=0).may_stop(0)
    for seqno in range(ROUNDS_MAX):
        assert not stream.may_stop(BEHIND_MAX + 1)
        stream.begin(seqno + 1)
        assert not stream.may_stop(0)
        stream.finish_snapshot()
    assert stream.may_stop(BEHIND_MAX + 1)
    stream.step(Step.STOP)
    assert not stream.may_stop(0)
    assert stream.holds_vbucket
    stream.step(Step.DEAD_ON_DISK)
    stream.begin(ROUNDS_MAX + 1)
    assert stream.sends
    assert stream.holds_vbucket


# --------------------------------------------------------------------------------------------------------------- acks


def test_without_acks_messages_are_numbered_and_forgotten():
    """There is always room, and an answer means nothing."""
    log: AckLog[str] = AckLog(interval=5, window=2, acks=False)
    log.sent("items", range(1000), asked=3)
    assert log.last == 1000
    assert log.room == 10
    assert not log.awaits_ack
    assert not log.asks(5)
    assert log.acked(7) is None
    assert log.refused(7) is None


def test_an_ack_is_for_all_that_came_before_it():
    """Runs of one kind come back as one part, with the seqnos that they reached."""
    log: AckLog[str] = AckLog(interval=5, window=2, acks=True)
    log.sent("a", [10, 11, 12])
    log.sent("b", asked=0)
    log.sent("a", [13])
    log.sent("a", [14, 15], asked=1)
    assert log.unacked == 7
    assert log.acked(5) == [Part("a", 10, 12), Part("b", 0, 0), Part("a", 13, 13)]
    assert log.acked(5) is None
    assert log.acked(6) == [Part("a", 14, 14)]
    assert (log.awaits_ack, log.room) == (True, 9)
    assert log.acked(7) == [Part("a", 15, 15)]
    assert (log.awaits_ack, log.room) == (False, 10)


def test_a_refusal_gives_back_what_is_to_be_sent_again():
    """What came before it has arrived; nothing is awaited then."""
    log: AckLog[str] = AckLog(interval=5, window=2, acks=True)
    log.sent("a", [10, 11, 12], asked=2)
    log.sent("b", asked=0)
    assert log.refused(9) is None
    assert log.refused(2) == ([Part("a", 10, 10)], [Part("a", 11, 12), Part("b", 0, 0)])
    assert not log.unacked
    assert not log.awaits_ack


def test_an_ack_is_awaited_from_the_message_on_that_asks_for_it():
    """Messages behind it that do not ask are not owed."""
    log: AckLog[str] = AckLog(interval=2, window=3, acks=True)
    log.sent("a", [1])
    assert (log.awaits_ack, log.asks(1), log.asks(2)) == (False, False, True)
    log.sent("a", [2, 3], asked=0)
    assert (log.awaits_ack, log.unacked) == (True, 3)
    log.acked(2)
    assert (log.awaits_ack, log.unacked) == (False, 1)


class Acks(RuleBasedStateMachine):
    """The log against a plain list of messages, near the place where numbers begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self.log: AckLog[str] = AckLog(interval=3, window=4, acks=True)
        self.log.last = self.next = OPAQUE_BITS - 5
        self.unacked: deque[tuple[int, str, int]] = deque()
        self.seqno = 0

    @rule(what=st.sampled_from("ab"), count=st.integers(1, 4))
    def send(self, what: str, count: int) -> None:
        """Send some messages."""
        seqnos = range(self.seqno + 1, self.seqno + count + 1)
        self.seqno += count
        for seqno in seqnos:
            self.next = (self.next + 1) & OPAQUE_BITS
            self.unacked.append((self.next, what, seqno))
        self.log.sent(what, seqnos)

    @precondition(lambda self: self.unacked)
    @rule(data=st.data(), refuses=st.booleans())
    def answer(self, data: st.DataObject, *, refuses: bool) -> None:
        """Answer one of them."""
        place = data.draw(st.integers(0, len(self.unacked) - 1))
        opaque = self.unacked[place][0]
        count = place + (not refuses)
        taken = [self.unacked.popleft() for _ in range(count)]
        if not refuses:
            parts = self.log.acked(opaque)
            assert parts is not None
        else:
            answered = self.log.refused(opaque)
            assert answered is not None
            parts, again = answered
            assert _parts(list(self.unacked)) == again
            self.unacked.clear()
        assert parts == _parts(taken)

    @rule(opaque=st.integers(0, OPAQUE_BITS))
    def answer_nothing(self, opaque: int) -> None:
        """Answer what was not sent."""
        if opaque not in {one[0] for one in self.unacked}:
            assert self.log.acked(opaque) is None
            assert self.log.refused(opaque) is None

    @invariant()
    def counts(self) -> None:
        """Nothing is counted twice."""
        assert self.log.unacked == len(self.unacked)
        assert self.log.room == 12 - len(self.unacked)
        assert self.log.last == self.next


def _parts(messages: list[tuple[int, str, int]]) -> list[Part[str]]:
    groups = itertools.groupby(messages, key=lambda one: one[1])
    return [Part(what, found[0][2], found[-1][2]) for what, found in ((what, list(group)) for what, group in groups)]


TestAcks = Acks.TestCase


# -------------------------------------------------------------------------------------------------------- checkpoints


def table(high_seqno: int = 0, *, vbuuid: int = 0xABC_1234, is_first_branch: bool = True) -> Checkpoints:
    """A table that is begun at a seqno."""
    return Checkpoints(vbuuid=vbuuid, is_first_branch=is_first_branch, high_seqno=high_seqno)


def test_a_new_vbucket_begins_with_checkpoint_2():
    """Captured servers do so; the one before it was closed when it was empty."""
    fresh = table()
    assert (fresh.open, fresh.last_closed, fresh.persisted(0)) == (2, 1, 1)


def test_an_empty_checkpoint_is_not_closed():
    """So ids never outrun seqnos."""
    one = table()
    assert one.create(0) == 2
    assert one.create(4) == 3
    assert one.create(4) == 3
    assert one.start_of(3) == 4
    assert one.end_of(2) == 4
    assert one.end_of(3) is None
    assert one.end_of(99) is None


def test_a_large_checkpoint_is_closed():
    """Its end is known before all of it was sent."""
    one = table()
    one.advance(2 * CHANGES_MAX + 1)
    assert one.open == 4
    assert [one.holding(seqno) for seqno in (1, CHANGES_MAX, CHANGES_MAX + 1, 2 * CHANGES_MAX + 1)] == [2, 2, 3, 4]


def test_the_oldest_are_forgotten():
    """What was before all that are known is in none of them."""
    one = table()
    for seqno in range(1, 2 * KEPT_MAX):
        one.create(seqno)
    assert one.start_of(2) is None
    assert one.holding(1) is None
    assert one.holding(2 * KEPT_MAX) == one.open
    assert one.start_of(one.open - KEPT_MAX + 1) is not None


def test_what_is_on_disk_is_told_by_the_last_seqno():
    """The open checkpoint never counts."""
    one = table()
    one.create(5)
    one.create(9)
    assert [one.persisted(seqno) for seqno in (0, 4, 5, 8, 9, 100)] == [1, 1, 2, 2, 3, 3]


def test_a_table_is_of_one_branch():
    """Neither another branch nor one that was cut short is shown by it."""
    one = table(10, vbuuid=7)
    assert one.holds(vbuuid=7, high_seqno=10)
    assert not one.holds(vbuuid=7, high_seqno=9)
    assert not one.holds(vbuuid=8, high_seqno=10)
    assert table(10, vbuuid=7, is_first_branch=False).open >> 48 == 7


@given(steps=st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60))
def test_a_table_that_is_begun_anew_gives_no_id_a_second_meaning(steps: list[tuple[int, bool]]):
    """An id of the old table is either unknown to the new one, or begins at the same seqno."""
    old, high = table(), 0
    for changes, closes in steps:
        high += changes
        if closes:
            old.create(high)
    new = table(high)
    for checkpoint in range(old.open + 1):
        assert new.start_of(checkpoint) in {None, old.start_of(checkpoint)}
