"""What a stream request is answered with, and what the stream is to be.

The order of the checks is that of servers (docs: facts of captures 03a_dcp_stream_req_errors, 02_dcp_resume):

0x07  no such vbucket, or not active where the consumer insists on it
0x22  the request contradicts itself
0x02  the connection has a stream of the vbucket
0x23  roll back first; in UPR's form of 40 bytes 0x01 for an unknown branch and 0x22 for a start past the high seqno
0x00  the failover log follows

Flags set the end before anything is checked: disk only and to latest end a stream at what there is now.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.history import History, OutOfRange, Reason, ResumeRequest, RollBack, SnapshotRange, State, decide
from headrace.history.snapshots import SEQNO_MAX
from headrace.ids import Seqno
from headrace.wire.codes import Status, StreamFlag

if TYPE_CHECKING:
    from headrace.wire.catalogue import StreamRequest

_DEFAULT_ID = "0"
_OF_ACTIVE = StreamFlag.ACTIVE_ONLY | StreamFlag.TAKEOVER
"""Flags of streams that only an active vbucket can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a producer has of the vbucket: None for `history` where it has no such vbucket."""

    history: History | None
    state: State = State.ACTIVE
    persisted_seqno: Seqno = Seqno(0)
    has_stream: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The stream that is to run: after `start`, whose snapshot is known, until `end`."""

    start: Seqno
    end: Seqno
    snapshot: SnapshotRange
    flags: StreamFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """Why there is no stream. `rollback_to` goes with status 0x23."""

    status: Status
    text: str = ""
    rollback_to: Seqno | None = None
    because: str = ""


_TEXTS = {
    Status.OUT_OF_RANGE: "Outside range",
    Status.KEY_EXISTS: "Data exists for key",
    Status.KEY_NOT_FOUND: "Not found",
    Status.INVALID: "Invalid arguments",
}


def declined(status: Status, because: str = "") -> Declined:
    """A refusal with the words that servers send with it."""
    return Declined(status=status, text=_TEXTS.get(status, ""), because=because)


def judge(request: StreamRequest, offer: Offer) -> Accepted | Declined:  # noqa: PLR0911 - one for each status
    """Say whether a stream may run, and which."""
    history = offer.history
    if history is None:
        return declined(Status.NOT_MY_VBUCKET, "there is no such vbucket")
    flags = StreamFlag(request.flags)
    if flags & _OF_ACTIVE and offer.state is not State.ACTIVE:
        return declined(Status.NOT_MY_VBUCKET, "the vbucket is not active")
    refused = _filter(request.filter)
    if refused is not None:
        return refused
    wanted = _wanted(request, flags, history, offer.persisted_seqno)
    if StreamFlag.IGNORE_PURGED_TOMBSTONES in flags:
        history = History(log=history.log, high_seqno=history.high_seqno)
    verdict = decide(wanted, history)
    if isinstance(verdict, OutOfRange):
        return declined(Status.OUT_OF_RANGE, verdict.because)
    if offer.has_stream:
        return declined(Status.KEY_EXISTS, "the connection has a stream of this vbucket")
    if isinstance(verdict, RollBack):
        return _rolled_back(verdict, is_upr=request.snapshot_start is None)
    start, snapshot_start = wanted.start_seqno, wanted.snapshot_start
    if start == wanted.snapshot_end:  # the whole snapshot is there: the consumer stands between two
        snapshot_start = start
    snapshot = SnapshotRange(start=snapshot_start, end=wanted.snapshot_end)
    return Accepted(start=start, end=wanted.end_seqno, snapshot=snapshot, flags=flags)


def _wanted(request: StreamRequest, flags: StreamFlag, history: History, persisted_seqno: Seqno) -> ResumeRequest:
    """What is asked for, once the flags have had their say."""
    start, vbuuid = request.start_seqno, request.vbuuid
    snapshot_start, snapshot_end = request.snapshot_start, request.snapshot_end
    if StreamFlag.FROM_LATEST in flags:
        start, vbuuid = history.high_seqno, history.log.latest.vbuuid
        snapshot_start = snapshot_end = None
    end = request.end_seqno
    if StreamFlag.DISK_ONLY in flags:
        end = Seqno(max(start, persisted_seqno))
    elif StreamFlag.TO_LATEST in flags:
        end = Seqno(max(start, history.high_seqno))
    elif StreamFlag.TAKEOVER in flags:
        end = SEQNO_MAX
    return ResumeRequest(
        vbuuid=vbuuid,
        start_seqno=start,
        snapshot_start=start if snapshot_start is None else snapshot_start,
        snapshot_end=start if snapshot_end is None else snapshot_end,
        end_seqno=end,
        strict_vbuuid=StreamFlag.STRICT_VBUUID in flags,
    )


def _rolled_back(verdict: RollBack, *, is_upr: bool) -> Declined:
    if is_upr and verdict.because in {Reason.UNKNOWN_VBUUID, Reason.NO_VBUUID}:
        return declined(Status.KEY_NOT_FOUND, verdict.because)
    if is_upr and verdict.because is Reason.PAST_HIGH_SEQNO:
        return declined(Status.OUT_OF_RANGE, verdict.because)
    return Declined(status=Status.ROLLBACK, rollback_to=verdict.to, because=verdict.because)


def _filter(value: bytes) -> Declined | None:
    """Look at what a stream is to show; there is the default collection alone."""
    if not value:
        return None
    try:
        wanted = json.loads(value)
    except (ValueError, RecursionError):
        return declined(Status.INVALID, "the filter is no JSON, or too deep")
    if not isinstance(wanted, dict) or "sid" in wanted:
        return declined(Status.INVALID, "the filter is no object, or names a stream id that was not agreed on")
    if wanted.get("scope", _DEFAULT_ID) != _DEFAULT_ID:
        return declined(Status.UNKNOWN_SCOPE, "there is the default scope alone")
    collections = wanted.get("collections", [_DEFAULT_ID])
    if not isinstance(collections, list) or set(map(str, collections)) != {_DEFAULT_ID}:
        return declined(Status.UNKNOWN_COLLECTION, "there is the default collection alone")
    return None
