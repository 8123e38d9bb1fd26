"""A stream at a reader that follows changes: what to ask, what each answer means, where to go on, and when to give up.

There is one `Subscription` for each vbucket that a reader follows. It outlives connections: it knows what was read, and
so what the next stream request has to say. It sees answers, ends of streams and how far changes came, as numbers; it
never sees items' contents, and sends nothing. Its phases and inputs meet in one table:

    waiting --ask--> asked --start--> streaming --reach--> finished
    asked --roll back--> rolling back --agree--> waiting       and from each of them, by lose or retry: waiting
                                                               by fail: failed
                                                               by leave: finished, whatever was read

A pair that is not in the table is our own mistake and refused.

Progress: where a copy is whole. A snapshot is whole when the change with its last seqno was read; until then a copy
made of it may lack what later changes of the snapshot replaced. So the position of a reader inside a snapshot begins
at the last place where it was whole, whatever the marker says: servers name the first seqno that they send there, and
a rollback to that would keep a change that is gone (capture 01d_dcp_disk_backfill_then_memory).

Rollback: the seqno that a server answers is the most that may be kept. A reader goes on from the last place at or
below it where its copy was whole, else from 0; the event says both. Why is worked out from the failover log, by the
same rules that a producer judges by (`headrace.history.decide`).

The end seqno does not cut a snapshot on real servers (capture 03a_dcp_stream_req_errors and the notes on it): a bounded
reader cuts by itself, and its range is read when a seqno at the end or past it came, or when the stream ended well
within a snapshot that reaches that far.

Time is an argument: `now` in seconds of any clock that does not go back.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.history import (
    SEQNO_MAX,
    FailoverLog,
    History,
    Position,
    Reason,
    ResumeRequest,
    RollBack,
    SnapshotRange,
    decide,
)
from headrace.ids import Opaque, Seqno, VBucketId, VbUuid
from headrace.wire.catalogue import StreamRequest
from headrace.wire.codes import Status, StreamEndReason, names_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WHOLE_PLACES_MAX = 64
"""How many places are remembered where a copy was whole; older ones are thinned, not forgotten at once."""

RETRY_S_FIRST, RETRY_S_MAX = 0.05, 5.0
"""The first and the longest pause before something is tried again; each is twice the one before."""


class Phase(StrEnum):
    """Where a subscription is."""

    WAITING = "waiting"
    ASKED = "asked"
    ROLLING_BACK = "rolling back"
    """Told to roll back; the failover log that says why is on its way."""
    STREAMING = "streaming"
    FINISHED = "finished"
    FAILED = "failed"


class Input(StrEnum):
    """What can happen to a subscription."""

    ASK = "ask"
    START = "start"
    ROLL_BACK = "roll back"
    AGREE = "agree"
    CHANGES = "changes"
    RETRY = "retry"
    LOSE = "lose"
    REACH = "reach"
    FAIL = "fail"
    LEAVE = "leave"


_P, _I = Phase, Input

TRANSITIONS: Mapping[tuple[Phase, Input], Phase] = MappingProxyType(
    {
        (_P.WAITING, _I.ASK): _P.ASKED,
        (_P.WAITING, _I.REACH): _P.FINISHED,
        (_P.WAITING, _I.LOSE): _P.WAITING,
        (_P.ASKED, _I.START): _P.STREAMING,
        (_P.ASKED, _I.ROLL_BACK): _P.ROLLING_BACK,
        (_P.ASKED, _I.RETRY): _P.WAITING,
        (_P.ASKED, _I.LOSE): _P.WAITING,
        (_P.ASKED, _I.FAIL): _P.FAILED,
        (_P.ASKED, _I.LEAVE): _P.FINISHED,
        (_P.ROLLING_BACK, _I.LEAVE): _P.FINISHED,
        (_P.ROLLING_BACK, _I.AGREE): _P.WAITING,
        (_P.ROLLING_BACK, _I.LOSE): _P.WAITING,
        (_P.STREAMING, _I.CHANGES): _P.STREAMING,
        (_P.STREAMING, _I.RETRY): _P.WAITING,
        (_P.STREAMING, _I.LOSE): _P.WAITING,
        (_P.STREAMING, _I.REACH): _P.FINISHED,
        (_P.STREAMING, _I.FAIL): _P.FAILED,
        (_P.FINISHED, _I.LOSE): _P.FINISHED,
        (_P.FAILED, _I.LOSE): _P.FAILED,
    }
)
"""Every legal step. What is not here is refused."""


class Where(StrEnum):
    """Where a refused stream may be had."""

    HERE = "here, later"
    ELSEWHERE = "at the node that a newer cluster map names"
    ANEW = "on a new connection"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What to do about a stream that is not served, or no more. `text` tells people what happened, and the way out."""

    where: Where
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """The server's history is not the one that was read: everything after `whole` has to be given up.

    `to` is the most that the server would keep; `whole` is the last place at or below it where what was read is
    complete, and where the stream goes on. `asked` is where the reader stood.
    """

    vbucket: VBucketId
    asked: Position
    to: Seqno
    whole: Seqno
    because: Reason
    log: FailoverLog


_ELSEWHERE = frozenset({Status.NOT_MY_VBUCKET})
_LATER = frozenset(
    {
        Status.TEMPORARY_FAILURE,
        Status.BUSY,
        Status.NOT_INITIALIZED,
        Status.OUT_OF_MEMORY,
        Status.WOULD_THROTTLE,
    }
)
_WAY_OUT: Mapping[int, str] = MappingProxyType(
    {
        Status.OUT_OF_RANGE: "the position contradicts itself or the end; start this vbucket from the beginning",
        Status.NO_ACCESS: "the user may not read changes of this bucket; give it the role to",
        Status.AUTH_ERROR: "the user may not read changes of this bucket; give it the role to",
        Status.KEY_NOT_FOUND: "the server has no such stream; is this a bucket with change streams?",
        Status.UNKNOWN_COLLECTION: "a collection that was asked for does not exist; ask for others",
        Status.NOT_SUPPORTED: "the server has no change streams of this kind",
        Status.UNKNOWN_COMMAND: "the server has no change streams; memcached has none",
        Status.INVALID: "the server takes the request for wrong",
    }
)
_AGAIN = frozenset(
    {
        StreamEndReason.CLOSED,
        StreamEndReason.DISCONNECTED,
        StreamEndReason.TOO_SLOW,
        StreamEndReason.BACKFILL_FAILED,
        StreamEndReason.ROLLBACK,
    }
)


class Backoff:
    """The pauses between tries: each twice the one before, from the first again once something came of a try."""

    __slots__ = ("_next_s", "since")

    def __init__(self) -> None:
        self._next_s = RETRY_S_FIRST
        self.since: float | None = None
        """When it went wrong first, since it last went well."""

    def failed(self, now: float) -> float:
        """Say when to try again."""
        if self.since is None:
            self.since = now
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, RETRY_S_MAX)
        return now + pause_s

    def worked(self) -> None:
        """Begin anew."""
        self._next_s = RETRY_S_FIRST
        self.since = None

    def failing_s(self, now: float) -> float:
        """Say for how long nothing has come of any try."""
        return 0.0 if self.since is None else now - self.since


def branch_of(log: FailoverLog, seqno: int) -> VbUuid:
    """Say on which branch of a log a change lies; what is older than the log counts for its oldest branch."""
    return next((branch.vbuuid for branch in log if branch.seqno < seqno), log.entries[-1].vbuuid)


class Progress:
    """How far the changes of one vbucket came: the last seqno, the snapshot around it, and where a copy is whole."""

    __slots__ = ("_vbuuid", "_whole_places", "end", "log", "seqno", "whole")

    def __init__(self, position: Position) -> None:
        self.log: FailoverLog | None = None
        self._set(position)
        self._whole_places: list[Seqno] = [self.whole] if self.whole else []

    def _set(self, position: Position) -> None:
        self._vbuuid = position.vbuuid
        self.seqno = position.seqno
        """The last change."""
        self.end = position.snapshot.end
        """The end of the snapshot around it."""
        self.whole = position.seqno if position.seqno == position.snapshot.end else position.snapshot.start
        """The last place where a copy is whole."""

    def begin(self, log: FailoverLog) -> None:
        """Take the failover log that a stream begins with."""
        self.log = log

    def advance(self, *, seqno: Seqno, end: Seqno, whole: Seqno | None, before: Sequence[Seqno] = ()) -> None:
        """Take in changes up to `seqno`, in a snapshot up to `end`.

        `whole` is the last seqno at which a snapshot ended, `before` are some at which earlier ones did, ascending.
        """
        self.seqno = seqno
        self.end = max(end, seqno)  # a server that sends past its marker is believed: there is a change
        for place in before:
            self._add_place(place)
        if whole is not None:
            self._add_place(whole)

    def _add_place(self, whole: Seqno) -> None:
        if whole > self.whole:
            self.whole = whole
            self._whole_places.append(whole)
            if len(self._whole_places) > WHOLE_PLACES_MAX:
                # The far past needs fewer places than the near one: of the older half, every second goes.
                del self._whole_places[1 : WHOLE_PLACES_MAX // 2 : 2]

    def whole_at_most(self, limit: int) -> Seqno:
        """Give the last remembered place at or below a seqno where a copy is whole; 0 when there is none."""
        found = bisect_right(self._whole_places, limit)
        return self._whole_places[found - 1] if found else Seqno(0)

    def go_back(self, seqno: Seqno, log: FailoverLog) -> None:
        """Give up everything after a place where a copy is whole."""
        del self._whole_places[bisect_right(self._whole_places, seqno) :]
        self.log = log
        self._vbuuid = branch_of(log, seqno)
        self.seqno = self.end = self.whole = seqno

    @property
    def position(self) -> Position:
        """Where a reader goes on that has what came.

        Its branch is the one that the snapshot ends on. A snapshot may lie across two, and servers ask for the whole of
        it to lie within the branch that is named (capture 04_failover_log_crash_rollback, snapshot 5 to 12).
        """
        end = self.end if self.seqno != self.whole else self.seqno
        vbuuid = self._vbuuid if self.log is None else branch_of(self.log, end)
        return Position(vbuuid=vbuuid, seqno=self.seqno, snapshot=SnapshotRange(start=self.whole, end=end))


class Subscription:
    """The stream of one vbucket at a reader, for as long as the reader lives."""

    __slots__ = ("_backoff", "_phase", "_ready_at", "_rollback_to", "end_seqno", "progress", "vbucket")

    def __init__(self, vbucket: VBucketId, position: Position, *, end_seqno: Seqno = SEQNO_MAX) -> None:
        self.vbucket = vbucket
        self.progress = Progress(position)
        self.end_seqno = end_seqno
        self._phase = Phase.WAITING
        self._ready_at = 0.0
        self._backoff = Backoff()
        self._rollback_to = Seqno(0)
        self._finish_with_nothing()

    @property
    def phase(self) -> Phase:
        """Where it is."""
        return self._phase

    @property
    def position(self) -> Position:
        """Where it goes on."""
        return self.progress.position

    @property
    def ready_at(self) -> float | None:
        """When to ask; None when there is nothing to ask for."""
        return self._ready_at if self._phase is Phase.WAITING else None

    def failing_s(self, now: float) -> float:
        """Say for how long no try has brought a change or a stream."""
        return self._backoff.failing_s(now)

    def request(
        self, opaque: Opaque, *, end: Seqno | None = None, flags: int = 0, stream_filter: bytes = b""
    ) -> StreamRequest:
        """Give the request that goes on from here, to the end or to another one.

        A reader that stands at its end, or past it, asks as well: the server may have another history by now, and what
        was read of the old one is to be rolled back.
        """
        self._step(Input.ASK)
        asked = self.position
        return StreamRequest(
            opaque=opaque,
            vbucket=self.vbucket,
            flags=flags,
            start_seqno=asked.seqno,
            end_seqno=max(self.end_seqno if end is None else end, asked.seqno),
            vbuuid=asked.vbuuid,
            snapshot_start=asked.snapshot.start,
            snapshot_end=asked.snapshot.end,
            filter=stream_filter,
        )

    def started(self, entries: Iterable[tuple[VbUuid, Seqno]]) -> FailoverLog:
        """Take the answer that the stream runs."""
        log = self._log(entries)
        self._step(Input.START)
        self.progress.begin(log)
        self._backoff.since = None  # there is a server; the pauses go on until it sends something
        return log

    def told_to_roll_back(self, to: Seqno) -> None:
        """Take the answer that this position is off the server's history; its failover log is to be fetched."""
        if not self.progress.seqno:  # nothing can be wrong with nothing, and it would be asked for ever
            raise RemoteProtocolError(f"vbucket {self.vbucket}: a rollback to seqno {to} of a reader that has nothing")
        self._step(Input.ROLL_BACK)
        self._rollback_to = to

    def roll_back(self, entries: Iterable[tuple[VbUuid, Seqno]], *, to_zero: bool = False) -> RolledBack:
        """Go back to where both sides agree, as the failover log has it; with `to_zero`, to the beginning."""
        log = self._log(entries)
        self._step(Input.AGREE)
        asked, to = self.position, self._rollback_to
        # A place below the one that was refused, always: else a server that errs would be asked the same for ever.
        whole = Seqno(0) if to_zero else self.progress.whole_at_most(min(to, asked.seqno - 1))
        self.progress.go_back(whole, log)
        self._ready_at = 0.0
        self._finish_with_nothing()
        return RolledBack(vbucket=self.vbucket, asked=asked, to=to, whole=whole, because=_why(asked, to, log), log=log)

    def refused(self, status: int, now: float) -> Refusal:
        """Take the answer that there is no stream."""
        said = f"vbucket {self.vbucket} from seqno {self.progress.seqno}: the server refuses, status 0x{status:02x}"
        named = names_of(Status, status)
        said = f"{said} ({named})" if named else said
        if status in _ELSEWHERE:
            where, way = Where.ELSEWHERE, "it is at another node"
        elif status in _LATER:
            where, way = Where.HERE, "it is tried again"
        elif status == Status.KEY_EXISTS:
            # One connection has one stream of a vbucket, and it is not ours: whatever comes of it cannot be told apart.
            where, way = Where.ANEW, "the connection has another stream of it"
        else:
            self._step(Input.FAIL)
            return Refusal(where=Where.NOWHERE, text=_WAY_OUT.get(status, "it cannot be read"))
        self._step(Input.RETRY)
        self._ready_at = self._backoff.failed(now)
        return Refusal(where=where, text=f"{said}: {way}")

    def advance(self, *, seqno: Seqno, end: Seqno, whole: Seqno | None, before: Sequence[Seqno] = ()) -> bool:
        """Take in changes, see `Progress.advance`; True when the whole range was read.

        A bounded reader drops what lies past its end before it comes here, but says with `seqno` that it came so far.
        """
        self._step(Input.CHANGES)
        if whole is not None and whole > self.end_seqno:
            whole = None
        self.progress.advance(seqno=min(seqno, self.end_seqno), end=end, whole=whole, before=before)
        self._backoff.worked()
        return self._is_read() and self._finish()

    def ended(self, reason: int, now: float, *, marked_end: int = 0) -> Refusal | None:
        """Take the end of the stream; None when the whole range was read.

        `marked_end` is the end of the last snapshot that the stream announced: one without a change up to there was
        read as well, since the server says that all is sent.
        """
        if reason == StreamEndReason.OK and self.progress.seqno < self.end_seqno <= marked_end:
            self.progress.advance(seqno=self.end_seqno, end=Seqno(marked_end), whole=None)
        if reason == StreamEndReason.OK and self._is_read():
            self._finish()
            return None
        if reason == StreamEndReason.FILTER_EMPTY:  # every collection that was asked for is gone: nothing more comes
            self._finish()
            return None
        said = f"vbucket {self.vbucket} after seqno {self.progress.seqno}: the stream ended"
        named = names_of(StreamEndReason, reason) or f"reason {reason}"
        if reason == StreamEndReason.LOST_PRIVILEGES:
            self._step(Input.FAIL)
            text = f"{said} ({named}): the user may no longer read changes of this bucket"
            return Refusal(where=Where.NOWHERE, text=text)
        self._step(Input.RETRY)
        self._ready_at = self._backoff.failed(now)
        if reason == StreamEndReason.OK:
            text = f"{said} before its end, seqno {self.end_seqno}"
            return Refusal(where=Where.HERE, text=text)
        where = Where.HERE if reason in _AGAIN else Where.ELSEWHERE
        return Refusal(where=where, text=f"{said} ({named})")

    def lost(self, now: float) -> None:
        """The connection is gone, or the node; whatever was asked or streamed is asked for again."""
        was = self._phase
        self._step(Input.LOSE)
        if was in (Phase.ASKED, Phase.ROLLING_BACK, Phase.STREAMING):
            self._ready_at = self._backoff.failed(now)

    def missed(self, now: float) -> None:
        """There was no node to ask; wait a while longer."""
        self._step(Input.LOSE)
        self._ready_at = self._backoff.failed(now)

    def leave(self) -> None:
        """Want no more of it, now that the answer to the request is there: it is of another history than was meant."""
        self._step(Input.LEAVE)

    def bound(self, end_seqno: Seqno) -> bool:
        """End earlier than thought, as when a failover took the end away; True when everything was read already.

        A stream that runs keeps the end that it was asked with; its reader cuts.
        """
        self.end_seqno = min(self.end_seqno, end_seqno)
        self._finish_with_nothing()
        return self._phase is Phase.STREAMING and self._is_read() and self._finish()

    def _finish_with_nothing(self) -> None:
        """Be done where there is nothing to read, and nothing was read that could be wrong."""
        if self._phase is Phase.WAITING and not self.progress.seqno and not self.end_seqno:
            self._step(Input.REACH)

    def _is_read(self) -> bool:
        return self.progress.seqno >= self.end_seqno

    def _finish(self) -> bool:
        self._step(Input.REACH)
        return True

    def _step(self, happened: Input) -> None:
        found = TRANSITIONS.get((self._phase, happened))
        if found is None:
            raise LocalProtocolError(f"vbucket {self.vbucket}: no {happened} while {self._phase}")
        self._phase = found

    def _log(self, entries: Iterable[tuple[VbUuid, Seqno]]) -> FailoverLog:
        try:
            return FailoverLog.from_entries(entries)
        except LocalProtocolError as error:
            raise RemoteProtocolError(f"vbucket {self.vbucket}: no failover log: {error}") from None


def _why(asked: Position, to: Seqno, log: FailoverLog) -> Reason:
    """Work out why a position was refused; what the log alone does not explain lies with the high or purge seqno."""
    verdict = decide(ResumeRequest.from_position(asked), History(log=log, high_seqno=SEQNO_MAX))
    if isinstance(verdict, RollBack):
        return verdict.because
    if to == 0:
        return Reason.PURGED
    return Reason.SNAPSHOT_CUT if to == asked.snapshot.start < asked.seqno else Reason.PAST_HIGH_SEQNO


__all__ = [
    "TRANSITIONS",
    "Backoff",
    "Input",
    "Phase",
    "Progress",
    "Refusal",
    "RolledBack",
    "Subscription",
    "Where",
    "branch_of",
]
