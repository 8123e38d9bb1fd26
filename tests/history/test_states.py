"""The states of a vbucket: the table itself, and what two real servers did."""

from itertools import product
from pathlib import Path

import pytest

from headrace.errors import LocalProtocolError
from headrace.history import TRANSITIONS, Cause, State, Transition, transition
from headrace.wire import catalogue
from headrace.wire.codes import StreamEndReason, VBucketState
from tests.history.exchanges import Line, lines, paths

ACTIVE, REPLICA, PENDING, DEAD = State
TAKEOVER_STEPS = {(REPLICA, PENDING), (PENDING, PENDING), (PENDING, ACTIVE), (ACTIVE, DEAD), (DEAD, ACTIVE)}
OPENED_AFTER_A_KILL = {"after", "after2"}
"""The connections of 04_failover_log_crash_rollback that are the first to a server that was killed before."""


def test_states_have_the_numbers_of_the_wire():
    """Names and numbers are those of the wire's catalogue, which this layer cannot import."""
    assert {one.name: one.value for one in State} == {one.name: one.value for one in VBucketState}


@pytest.mark.parametrize(("old", "cause", "new"), list(product(State, Cause, State)))
def test_every_change_is_legal_or_refused(old: State, cause: Cause, new: State):
    """A manager may order any state, a takeover goes its steps, an unclean stop keeps the state; nothing else is."""
    legal = {
        Cause.SET_VBUCKET: True,
        Cause.TAKEOVER: (old, new) in TAKEOVER_STEPS,
        Cause.UNCLEAN_STOP: old == new,
    }[cause]
    assert ((old, cause, new) in TRANSITIONS) == legal
    if legal:
        assert transition(old, new, cause=cause) == Transition(
            ends_streams=old != new,
            branches=(cause is Cause.SET_VBUCKET and old != new == ACTIVE)
            or (cause is Cause.UNCLEAN_STOP and new == ACTIVE),
        )
    else:
        with pytest.raises(LocalProtocolError, match=f"no {cause} makes a vbucket {new.name.lower()}"):
            transition(old, new, cause=cause)


@pytest.mark.parametrize("path", [one for one in paths() if one.stem.startswith("05")], ids=lambda one: one.parent.name)
def test_streams_end_as_captured(path: Path):
    """A server ended a stream for a state, and did so at every order whose row says it."""
    states: dict[int, State] = {}
    asked: dict[int, int] = {}
    streaming: set[int] = set()
    owed: set[int] = set()
    ended = 0
    for line in lines(path):
        match line:
            case Line(sent=catalogue.StreamRequest(vbucket=vbucket, opaque=opaque)):
                asked[opaque] = vbucket
            case Line(received=catalogue.FailoverLog(opcode=0x53, opaque=opaque)):
                streaming.add(asked[opaque])
            case Line(sent=catalogue.CloseStream(vbucket=vbucket)):
                streaming.discard(vbucket)
            case Line(sent=catalogue.SetVBucket(vbucket=vbucket, state=int(number))):
                change = transition(states.get(vbucket, ACTIVE), State(number), cause=Cause.SET_VBUCKET)
                states[vbucket] = State(number)
                owed |= {vbucket} & streaming if change.ends_streams else set()
            case Line(received=catalogue.StreamEnd(vbucket=vbucket, reason=StreamEndReason.STATE_CHANGED)):
                owed.remove(vbucket)
                streaming.remove(vbucket)
                ended += 1
    assert not owed
    assert ended == 7


@pytest.mark.parametrize("path", [one for one in paths() if one.stem.startswith("04")], ids=lambda one: one.parent.name)
def test_branches_begin_as_captured(path: Path):
    """A vbucket's log grew by one branch at an order or a kill whose row says so, and at no other."""
    state, branches, seen = ACTIVE, 1, []
    for line in lines(path):
        match line:
            case Line(sent=catalogue.SetVBucket(state=int(number))):
                branches += transition(state, State(number), cause=Cause.SET_VBUCKET).branches
                state = State(number)
            case Line(connection=connection, sent=catalogue.Open()) if connection in OPENED_AFTER_A_KILL:
                branches += transition(state, state, cause=Cause.UNCLEAN_STOP).branches
            case Line(received=catalogue.FailoverLog(opcode=0x54, entries=entries)):
                assert len(entries) == branches
                seen.append(branches)
    assert seen[-1] == 6
