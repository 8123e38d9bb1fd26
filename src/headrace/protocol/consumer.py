"""A stream at a consumer that keeps a copy: what it may be told, when, and what each message means for the copy.

There is one `Stream` for each vbucket that a connection takes in, and for the connection one `Acks` and one `Watch`.
A stream sees the answers to its request, markers, items, states and its end, as numbers taken from the messages; it
never sees items' contents. Its states and inputs meet in one table:

    asked --accepted--> streaming --set pending--> takeover pending --set active--> takeover active
    asked --roll back--> rolling back --rolled back--> asked                  and from each of them to: ended

A pair that is not in the table is refused. What is refused is answered; what was taken is not, but for states and for
markers that ask for it. Who owns the stream does what a verdict says: this file changes no copy and sends nothing.

Snapshots: a marker opens one, and the item with its last seqno makes it whole; in the UPR draft, which tells of no
seqno, a message of its own does (`snapshot_ended`). A marker that comes before that extends
the one that is open, so that a copy is never called whole too early: a producer that goes back to its disk in the
middle of a snapshot sends the rest of it in the next one.

Sources: captures 07a_consumer_basic, 07b_consumer_errors, 07d_consumer_addstream_takeover, 07e_consumer_buffer_ack,
10a_replication_two_servers and 10b_takeover_two_servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.errors import LocalProtocolError
from headrace.history import FailoverLog as Log
from headrace.history import State
from headrace.wire.catalogue import ErrorReply, FailoverLog, Rollback
from headrace.wire.codes import SnapshotFlag, Status, StreamFlag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.history import Position
    from headrace.ids import Opaque, Seqno, VBucketId
    from headrace.wire.message import Response

BUFFER_BYTES = 50 << 20
"""The window that a consumer offers. Capture 07a: 4.1.2 offers the same."""

ACK_SHARE = 5
"""Acks go out after a fifth of the buffer (capture 07e)."""

ACK_S = 5.0
"""And after so long, however little there is to ack (capture 07a: 763 bytes)."""

NOOP_INTERVAL_S = 180
NOOPS_MISSED_MAX = 2
"""A producer that is silent for so many intervals is gone."""

CONTROLS: tuple[tuple[bytes, bytes], ...] = (
    (b"connection_buffer_size", b"%d" % BUFFER_BYTES),
    (b"enable_noop", b"true"),
    (b"set_noop_interval", b"%d" % NOOP_INTERVAL_S),
    (b"set_priority", b"high"),
    (b"enable_ext_metadata", b"true"),
)
"""What a consumer sets before its first stream request, in this order (capture 07a)."""

ROLLBACKS_MAX = 5
"""A producer that asks for more of them in a row will never agree."""


SEQNO_KEPT_MAX = (1 << 63) - 1
"""The largest seqno that a vbucket can be at: seqnos are kept as signed numbers. No real vbucket gets there."""


class StreamState(StrEnum):
    """Where a stream is."""

    ASKED = "asked"
    ROLLING_BACK = "rolling back"
    STREAMING = "streaming"
    PENDING = "takeover pending"
    ACTIVE = "takeover active"
    ENDED = "ended"


class Input(StrEnum):
    """What can happen to a stream."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    ROLL_BACK = "roll back"
    ROLLED_BACK = "rolled back"
    MARKER = "marker"
    ITEM = "item"
    SET_REPLICA = "set replica"
    SET_PENDING = "set pending"
    SET_ACTIVE = "set active"
    END = "end"
    CLOSE = "close"
    """Told to end by a manager, or the vbucket is no copy any more."""


_S, _I = StreamState, Input

TRANSITIONS: Mapping[tuple[StreamState, Input], StreamState] = MappingProxyType(
    {
        (_S.ASKED, _I.ACCEPTED): _S.STREAMING,
        (_S.ASKED, _I.REFUSED): _S.ENDED,
        (_S.ASKED, _I.ROLL_BACK): _S.ROLLING_BACK,
        (_S.ASKED, _I.CLOSE): _S.ENDED,
        (_S.ROLLING_BACK, _I.ROLLED_BACK): _S.ASKED,
        (_S.ROLLING_BACK, _I.REFUSED): _S.ENDED,
        (_S.ROLLING_BACK, _I.CLOSE): _S.ENDED,
        (_S.STREAMING, _I.MARKER): _S.STREAMING,
        (_S.STREAMING, _I.ITEM): _S.STREAMING,
        (_S.STREAMING, _I.SET_REPLICA): _S.STREAMING,
        (_S.STREAMING, _I.SET_PENDING): _S.PENDING,
        (_S.STREAMING, _I.END): _S.ENDED,
        (_S.STREAMING, _I.CLOSE): _S.ENDED,
        (_S.PENDING, _I.MARKER): _S.PENDING,
        (_S.PENDING, _I.ITEM): _S.PENDING,
        (_S.PENDING, _I.SET_PENDING): _S.PENDING,
        (_S.PENDING, _I.SET_ACTIVE): _S.ACTIVE,
        (_S.PENDING, _I.END): _S.ENDED,
        (_S.PENDING, _I.CLOSE): _S.ENDED,
        # The copy is the original now: it takes no more changes from elsewhere.
        (_S.ACTIVE, _I.SET_ACTIVE): _S.ACTIVE,
        (_S.ACTIVE, _I.END): _S.ENDED,
        (_S.ACTIVE, _I.CLOSE): _S.ENDED,
    }
)
"""Every legal step. What is not here is refused."""


class Verdict(Enum):
    """What a marker or an item means for the copy."""

    TAKE = "take it"
    TAKE_LAST = "take it: with it the snapshot is whole"
    TAKE_LAST_AND_ANSWER = "take it: with it the snapshot is whole, and its marker asked to hear of that"
    DROP = "drop it without a word"
    OUT_OF_RANGE = "refuse it: it goes back"
    INVALID = "refuse it: no such number can be"
    NO_STREAM = "refuse it: there is no such stream"


STATUSES: Mapping[Verdict, Status] = MappingProxyType(
    {
        Verdict.OUT_OF_RANGE: Status.OUT_OF_RANGE,
        Verdict.INVALID: Status.INVALID,
        Verdict.NO_STREAM: Status.KEY_NOT_FOUND,
    }
)
"""How a refusal is answered (capture 07b)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The stream begins; this is the history of the producer."""

    log: Log


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackTo:
    """Go back to `seqno` or below it, then ask again with the same opaque."""

    seqno: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedBy:
    """There will be no stream; the status goes to whoever asked for it."""

    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Senseless:
    """An answer after which nothing from this producer can be believed: leave it."""

    why: str


Outcome = Accepted | RollBackTo | RefusedBy | Senseless


class Stream:
    """One stream, from its request to its end."""

    __slots__ = (
        "_answer_wanted",
        "_open_end",
        "_rollbacks",
        "flags",
        "is_whole",
        "last_seqno",
        "opaque",
        "snapshot_end",
        "snapshot_start",
        "state",
        "vbucket",
    )

    def __init__(self, *, vbucket: VBucketId, opaque: Opaque, flags: int = 0) -> None:
        self.vbucket = vbucket
        self.opaque = opaque
        self.flags = flags
        self.state = StreamState.ASKED
        self.last_seqno = 0
        """The last seqno that came, taken or dropped."""
        self.snapshot_start = 0
        self.snapshot_end = 0
        """The last snapshot that a marker or the position of the request told of."""
        self.is_whole = True
        """Whether all of that snapshot was taken."""
        self._open_end = 0
        """Up to where items may come; 0 before the first marker."""
        self._answer_wanted = False
        self._rollbacks = 0

    @property
    def takes_over(self) -> bool:
        """Whether the vbucket is to change its owner by this stream."""
        return bool(self.flags & StreamFlag.TAKEOVER)

    def _step(self, given: Input) -> bool:
        """Take a step of the table; False where there is none."""
        found = TRANSITIONS.get((self.state, given))
        if found is None:
            return False
        self.state = found
        return True

    # ----------------------------------------------------------------------------------------------------- the request

    def begin(self, position: Position) -> None:
        """The request goes out with this position."""
        assert self.state is StreamState.ASKED, f"a request from a stream that is {self.state}"
        self.last_seqno = position.seqno
        self.snapshot_start, self.snapshot_end = position.snapshot.start, position.snapshot.end
        # With nothing of its snapshot, a copy stands between two: the one that was announced may never come, if its
        # producer crashed, and the next marker must not be taken for a part of it.
        self.is_whole = position.seqno in {position.snapshot.start, position.snapshot.end}

    def answered(self, answer: Response) -> Outcome:
        """Judge the answer to the request."""
        if self.state is not StreamState.ASKED:
            return Senseless(why=f"an answer to a stream request that is {self.state}")
        if isinstance(answer, FailoverLog):
            return self._accepted(answer)
        if isinstance(answer, Rollback):
            self._rollbacks += 1
            if self._rollbacks <= ROLLBACKS_MAX:
                self._step(Input.ROLL_BACK)
                return RollBackTo(seqno=answer.seqno)
        self._step(Input.REFUSED)
        return RefusedBy(status=answer.status if isinstance(answer, ErrorReply | Rollback) else Status.INTERNAL_ERROR)

    def _accepted(self, answer: FailoverLog) -> Outcome:
        """An empty log, or one that is none, ends the connection (capture 07b)."""
        try:
            log = Log.from_entries(answer.entries)
        except LocalProtocolError as error:
            return Senseless(why=str(error))
        self._step(Input.ACCEPTED)
        return Accepted(log=log)

    def rolled_back(self) -> bool:
        """The copy has gone back, and the request may go out again; False when the stream has ended meanwhile."""
        return self._step(Input.ROLLED_BACK)

    def failed(self) -> bool:
        """The copy could not go back; False when the stream has ended meanwhile."""
        return self._step(Input.REFUSED)

    # ------------------------------------------------------------------------------------------------------ the changes

    def marker(self, *, start: int, end: int, flags: int) -> Verdict:
        """Judge a snapshot marker; `snapshot_start` and `snapshot_end` say what is open after it."""
        if not self._step(Input.MARKER):
            return Verdict.NO_STREAM
        if start > end or end > SEQNO_KEPT_MAX:
            return Verdict.INVALID
        if start < self.last_seqno and end <= self.last_seqno:
            return Verdict.OUT_OF_RANGE
        if self.is_whole:
            self.snapshot_start, self.snapshot_end = start, end
        else:
            self.snapshot_start, self.snapshot_end = min(start, self.snapshot_start), max(end, self.snapshot_end)
        self._open_end = self.snapshot_end
        self.is_whole = False
        if flags & SnapshotFlag.ACK:
            self._answer_wanted = True
        return self._whole() if self.last_seqno >= self.snapshot_end else Verdict.TAKE

    def item(self, seqno: int) -> Verdict:
        """Judge a mutation, a deletion or an expiration."""
        if (self.state, Input.ITEM) not in TRANSITIONS:
            return Verdict.NO_STREAM
        if seqno <= self.last_seqno:
            return Verdict.OUT_OF_RANGE if seqno else Verdict.INVALID
        self.last_seqno = seqno
        if seqno < self._open_end:
            return Verdict.TAKE
        if seqno == self._open_end:
            return self._whole()
        return Verdict.DROP  # outside every snapshot; what comes after must be newer all the same (capture 07b)

    def snapshot_ended(self) -> Verdict:
        """Judge the end of a snapshot that did not say in advance where it ends: what came is all of it."""
        if (self.state, Input.MARKER) not in TRANSITIONS:
            return Verdict.NO_STREAM
        if self.is_whole:
            return Verdict.INVALID
        self.snapshot_end = self._open_end = self.last_seqno
        return self._whole()

    def _whole(self) -> Verdict:
        self.is_whole = True
        if self._answer_wanted:
            self._answer_wanted = False
            return Verdict.TAKE_LAST_AND_ANSWER
        return Verdict.TAKE_LAST

    # ----------------------------------------------------------------------------------------------- states and the end

    def told(self, state: int) -> State | Verdict:
        """Judge a state that the producer sets: give the state to be in, or the refusal.

        The UPR documents and 3.0.3's producers write pending as 2, which is replica to everybody else (capture 10b of
        3.0.3); a stream that takes over has no other use for it.
        """
        if state == State.REPLICA:
            state = State.PENDING if self.takes_over else State.REPLICA
        given = _STATE_INPUTS.get(state)
        if given is None:
            return Verdict.INVALID
        if given is Input.SET_ACTIVE and not self.is_whole:
            return Verdict.INVALID  # half a snapshot is no state that the vbucket ever had
        if not self._step(given):
            return Verdict.NO_STREAM if self.state not in _OPEN else Verdict.INVALID
        return State(state)

    def ended(self) -> Verdict:
        """Judge the producer's end of the stream."""
        return Verdict.TAKE if self._step(Input.END) else Verdict.NO_STREAM

    def close(self) -> bool:
        """End the stream from this side; False when it has ended before."""
        return self._step(Input.CLOSE)


_STATE_INPUTS: Mapping[int, Input] = {
    State.REPLICA: Input.SET_REPLICA,
    State.PENDING: Input.SET_PENDING,
    State.ACTIVE: Input.SET_ACTIVE,
}
_OPEN = frozenset({StreamState.STREAMING, StreamState.PENDING, StreamState.ACTIVE})


class Acks:
    """Which bytes the producer must hear of."""

    __slots__ = ("_last_at", "unacked_bytes")

    def __init__(self, now: float) -> None:
        self.unacked_bytes = 0
        self._last_at = now

    def took(self, count: int) -> None:
        """A message of so many bytes, header and body, was worked off, whatever became of it."""
        self.unacked_bytes += count

    @property
    def deadline(self) -> float | None:
        """When the next ack is due at the latest; None with nothing to ack."""
        return self._last_at + ACK_S if self.unacked_bytes else None

    def due(self, now: float) -> int:
        """How many bytes to ack now; 0 for none."""
        if self.unacked_bytes < BUFFER_BYTES // ACK_SHARE and (not self.unacked_bytes or now < self._last_at + ACK_S):
            return 0
        due, self.unacked_bytes = self.unacked_bytes, 0
        self._last_at = now
        return due


class Watch:
    """Whether the producer is still there: one that agreed to send noops is never silent for long."""

    __slots__ = ("_heard_at", "is_on")

    def __init__(self, now: float) -> None:
        self._heard_at = now
        self.is_on = False
        """Set once the producer was asked for noops; taken back when it refused."""

    def heard(self, now: float) -> None:
        """Something came from it."""
        self._heard_at = now

    @property
    def deadline(self) -> float | None:
        """When it is gone; None while nobody watches."""
        return self._heard_at + NOOPS_MISSED_MAX * NOOP_INTERVAL_S if self.is_on else None

    def is_gone(self, now: float) -> bool:
        """Whether it was silent for too long."""
        deadline = self.deadline
        return deadline is not None and now >= deadline


__all__ = [
    "ACK_S",
    "ACK_SHARE",
    "BUFFER_BYTES",
    "CONTROLS",
    "NOOPS_MISSED_MAX",
    "NOOP_INTERVAL_S",
    "ROLLBACKS_MAX",
    "SEQNO_KEPT_MAX",
    "STATUSES",
    "TRANSITIONS",
    "Accepted",
    "Acks",
    "Input",
    "Outcome",
    "RefusedBy",
    "RollBackTo",
    "Senseless",
    "Stream",
    "StreamState",
    "Verdict",
    "Watch",
]
