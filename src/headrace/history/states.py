"""The states of a vbucket, and what a change of state does to its streams and to its history.

There is one machine for each vbucket of a node. Its input is a new state and what brought it (`Cause`); its table is
`TRANSITIONS`. A row that is not there is refused. The table says two things of a legal change:

ends_streams  producers end their streams of the vbucket with the reason "state changed" (2)
branches      the vbucket's history begins a new branch: its owner puts a new vb UUID into the failover log

This module draws no UUID and ends no stream; it says that others have to. Making and deleting a vbucket is no change of
state: a vbucket that is made begins a new failover log.

Sources: captures 04_failover_log_crash_rollback, 05_dcp_stream_end, 07d_consumer_addstream_takeover and
10b_takeover_two_servers; for an unclean stop of a vbucket that is not active, kv_engine's vbucket_loader.cc.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType

from headrace.errors import LocalProtocolError


class State(IntEnum):
    """What a node may do with a vbucket, by its number on the wire."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


class Cause(StrEnum):
    """What brought the new state."""

    SET_VBUCKET = "set vbucket"
    """A manager's order; an active vbucket that comes of it is a failover."""

    TAKEOVER = "takeover"
    """A step of a DCP takeover: pending, then active at the consumer; dead at the producer when both are done."""

    UNCLEAN_STOP = "unclean stop"
    """The node starts again after it was killed. The state stays; what was only in memory is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What a change of state brings with it."""

    ends_streams: bool = False
    branches: bool = False


_NOTHING = Transition()
_ENDS = Transition(ends_streams=True)
_FAILS_OVER = Transition(ends_streams=True, branches=True)
_BRANCHES = Transition(branches=True)

TRANSITIONS: Mapping[tuple[State, Cause, State], Transition] = MappingProxyType(
    {
        (State.ACTIVE, Cause.SET_VBUCKET, State.ACTIVE): _NOTHING,
        (State.ACTIVE, Cause.SET_VBUCKET, State.REPLICA): _ENDS,
        (State.ACTIVE, Cause.SET_VBUCKET, State.PENDING): _ENDS,
        (State.ACTIVE, Cause.SET_VBUCKET, State.DEAD): _ENDS,
        (State.REPLICA, Cause.SET_VBUCKET, State.ACTIVE): _FAILS_OVER,
        (State.REPLICA, Cause.SET_VBUCKET, State.REPLICA): _NOTHING,
        (State.REPLICA, Cause.SET_VBUCKET, State.PENDING): _ENDS,
        (State.REPLICA, Cause.SET_VBUCKET, State.DEAD): _ENDS,
        (State.PENDING, Cause.SET_VBUCKET, State.ACTIVE): _FAILS_OVER,
        (State.PENDING, Cause.SET_VBUCKET, State.REPLICA): _ENDS,
        (State.PENDING, Cause.SET_VBUCKET, State.PENDING): _NOTHING,
        (State.PENDING, Cause.SET_VBUCKET, State.DEAD): _ENDS,
        (State.DEAD, Cause.SET_VBUCKET, State.ACTIVE): _FAILS_OVER,
        (State.DEAD, Cause.SET_VBUCKET, State.REPLICA): _ENDS,
        (State.DEAD, Cause.SET_VBUCKET, State.PENDING): _ENDS,
        (State.DEAD, Cause.SET_VBUCKET, State.DEAD): _NOTHING,
        # The consumer of a takeover has the producer's failover log and all its changes: the branch goes on.
        (State.REPLICA, Cause.TAKEOVER, State.PENDING): _ENDS,
        (State.PENDING, Cause.TAKEOVER, State.PENDING): _NOTHING,
        (State.PENDING, Cause.TAKEOVER, State.ACTIVE): _ENDS,
        (State.ACTIVE, Cause.TAKEOVER, State.DEAD): _ENDS,
        # A takeover that ended before its consumer was told to be active: nothing was accepted meanwhile.
        (State.DEAD, Cause.TAKEOVER, State.ACTIVE): _ENDS,
        # Even with nothing lost: after a kill, nobody can know. Only an active vbucket makes history.
        (State.ACTIVE, Cause.UNCLEAN_STOP, State.ACTIVE): _BRANCHES,
        (State.REPLICA, Cause.UNCLEAN_STOP, State.REPLICA): _NOTHING,
        (State.PENDING, Cause.UNCLEAN_STOP, State.PENDING): _NOTHING,
        (State.DEAD, Cause.UNCLEAN_STOP, State.DEAD): _NOTHING,
    }
)
"""Every legal change: old state, cause, new state. What is not here is refused."""


def transition(old: State, new: State, *, cause: Cause) -> Transition:
    """Say what has to follow when a vbucket goes from `old` to `new`, or refuse it."""
    found = TRANSITIONS.get((old, cause, new))
    if found is None:
        raise LocalProtocolError(f"no {cause} makes a vbucket {new.name.lower()} that was {old.name.lower()}")
    return found


__all__ = ["TRANSITIONS", "Cause", "State", "Transition", "transition"]
