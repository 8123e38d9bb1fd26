"""What happened to a vbucket, and who may go on reading it from where. Pure: no socket, no clock, no randomness.

states     active, replica, pending, dead; what a change ends and begins
failover   the branches of a history, by vb UUID
snapshots  the ranges after which a copy is consistent
positions  where a consumer stands
rollback   the verdict on a stream request, with its reason

These are values and functions on values. Who keeps them, and sends them, is above.
"""

from headrace.history.failover import BRANCHES_MAX, VBUUID_MAX, Branch, FailoverLog
from headrace.history.positions import Position
from headrace.history.rollback import (
    History,
    OutOfRange,
    Reason,
    Resume,
    ResumeRequest,
    RollBack,
    Verdict,
    decide,
)
from headrace.history.snapshots import SEQNO_MAX, SnapshotRange
from headrace.history.states import TRANSITIONS, Cause, State, Transition, transition

__all__ = [
    "BRANCHES_MAX",
    "SEQNO_MAX",
    "TRANSITIONS",
    "VBUUID_MAX",
    "Branch",
    "Cause",
    "FailoverLog",
    "History",
    "OutOfRange",
    "Position",
    "Reason",
    "Resume",
    "ResumeRequest",
    "RollBack",
    "SnapshotRange",
    "State",
    "Transition",
    "Verdict",
    "decide",
    "transition",
]
