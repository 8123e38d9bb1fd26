"""What a stream request is answered with, beside what `history` decides."""

from __future__ import annotations

import pytest

from headrace.history import FailoverLog, History, SnapshotRange, State
from headrace.history.snapshots import SEQNO_MAX
from headrace.ids import Seqno, VbUuid
from headrace.protocol.requests import Accepted, Declined, Offer, judge
from headrace.wire.catalogue import StreamRequest
from headrace.wire.codes import Status, StreamFlag

UUID = VbUuid(7)
LOG = FailoverLog.new(UUID)


def offer(**fields: object) -> Offer:
    """A vbucket with 20 changes of which 15 are on disk and deletions up to 5 are purged."""
    known = {"history": History(log=LOG, high_seqno=Seqno(20), purge_seqno=Seqno(5)), "persisted_seqno": Seqno(15)}
    return Offer(**(known | fields))  # type: ignore[arg-type]


def request(start: int = 0, *, flags: int = 0, uuid: int = UUID, value: bytes = b"", **fields: int) -> StreamRequest:
    """A request in DCP's form that stands between two snapshots."""
    places = {"snapshot_start": start, "snapshot_end": start, "end_seqno": SEQNO_MAX} | fields
    return StreamRequest(start_seqno=Seqno(start), vbuuid=VbUuid(uuid), flags=flags, filter=value, **places)  # type: ignore[arg-type]


def upr(start: int, uuid: int = UUID) -> StreamRequest:
    """A request in UPR's form of 40 bytes, which has no snapshot."""
    return StreamRequest(start_seqno=Seqno(start), vbuuid=VbUuid(uuid), high_seqno=Seqno(0))


def status(one: StreamRequest, given: Offer | None = None) -> Status:
    """The status of the answer."""
    verdict = judge(one, given or offer())
    return verdict.status if isinstance(verdict, Declined) else Status.SUCCESS


def test_the_order_of_the_checks():
    """No vbucket comes before a range that is wrong, that before a stream that exists, that before a rollback."""
    wrong = request(9, snapshot_start=10, snapshot_end=11)
    unknown = request(9, uuid=1)
    assert status(wrong, Offer(history=None)) is Status.NOT_MY_VBUCKET
    assert status(wrong, offer(has_stream=True)) is Status.OUT_OF_RANGE
    assert status(unknown, offer(has_stream=True)) is Status.KEY_EXISTS
    assert status(unknown) is Status.ROLLBACK
    assert status(request(9)) is Status.SUCCESS


@pytest.mark.parametrize(("code", "length"), [(Status.OUT_OF_RANGE, 13), (Status.KEY_EXISTS, 19)])
def test_the_words_of_a_refusal_are_the_servers(code: Status, length: int):
    """Their lengths are those of capture 03a_dcp_stream_req_errors."""
    verdict = judge(request(9, end_seqno=8) if code is Status.OUT_OF_RANGE else request(9), offer(has_stream=True))
    assert isinstance(verdict, Declined)
    assert (verdict.status, len(verdict.text)) == (code, length)


def test_a_rollback_says_where_to():
    """Its seqno goes with it, and its reason."""
    verdict = judge(request(30), offer())
    assert isinstance(verdict, Declined)
    assert (verdict.status, verdict.rollback_to) == (Status.ROLLBACK, 20)
    assert verdict.because


def test_the_place_of_the_first_marker():
    """Inside a snapshot its start counts; at its end the consumer stands between two."""
    inside = judge(request(16, snapshot_start=10, snapshot_end=20), offer())
    assert isinstance(inside, Accepted)
    assert inside.snapshot == SnapshotRange(start=Seqno(10), end=Seqno(20))
    done = judge(request(16, snapshot_start=10, snapshot_end=16), offer())
    assert isinstance(done, Accepted)
    assert done.snapshot == SnapshotRange.at(Seqno(16))


@pytest.mark.parametrize(
    ("flags", "start", "end"),
    [
        (0, 9, 18),
        (StreamFlag.DISK_ONLY, 9, 15),
        (StreamFlag.DISK_ONLY, 17, 17),
        (StreamFlag.TO_LATEST, 9, 20),
        (StreamFlag.TAKEOVER, 9, SEQNO_MAX),
        (StreamFlag.FROM_LATEST, 20, SEQNO_MAX),
    ],
)
def test_flags_set_the_end(flags: int, start: int, end: int):
    """Disk only and to latest end at what there is; a takeover has no end; from latest starts at the high seqno."""
    asked = 9 if flags & StreamFlag.FROM_LATEST else start
    wanted = SEQNO_MAX if flags & StreamFlag.FROM_LATEST else 18
    verdict = judge(request(asked, flags=flags, end_seqno=wanted), offer())
    assert isinstance(verdict, Accepted)
    assert (verdict.start, verdict.end) == (start, end)


@pytest.mark.parametrize("flag", [StreamFlag.ACTIVE_ONLY, StreamFlag.TAKEOVER])
def test_what_only_an_active_vbucket_has(flag: StreamFlag):
    """A replica is streamed, but not to who insists on the active one, and it is not taken over."""
    assert status(request(9, flags=flag), offer(state=State.REPLICA)) is Status.NOT_MY_VBUCKET
    assert status(request(9), offer(state=State.REPLICA)) is Status.SUCCESS


def test_purged_tombstones_may_be_ignored():
    """A start below the purge seqno goes back to 0, unless the consumer does not mind."""
    assert judge(request(3), offer()).rollback_to == 0  # type: ignore[union-attr]
    assert status(request(3, flags=StreamFlag.IGNORE_PURGED_TOMBSTONES)) is Status.SUCCESS


def test_a_strict_uuid_is_checked_at_zero_too():
    """By default a start of 0 goes with any uuid."""
    assert status(request(0, uuid=1)) is Status.SUCCESS
    assert status(request(0, uuid=1, flags=StreamFlag.STRICT_VBUUID)) is Status.ROLLBACK


def test_upr_has_statuses_of_its_own():
    """In the form of 40 bytes an unknown branch is 0x01 and a start past the high seqno 0x22, as its document says."""
    assert status(upr(9)) is Status.SUCCESS
    assert status(upr(9, uuid=1)) is Status.KEY_NOT_FOUND
    assert status(upr(9, uuid=0)) is Status.KEY_NOT_FOUND
    assert status(upr(30)) is Status.OUT_OF_RANGE
    assert status(upr(3)) is Status.ROLLBACK


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"uid":"0"}', Status.SUCCESS),
        (b'{"uid":"0","collections":["0"]}', Status.SUCCESS),
        (b'{"scope":"0"}', Status.SUCCESS),
        (b'{"scope":"8"}', Status.UNKNOWN_SCOPE),
        (b'{"collections":["8"]}', Status.UNKNOWN_COLLECTION),
        (b'{"collections":"0"}', Status.UNKNOWN_COLLECTION),
        (b'{"collections":[]}', Status.UNKNOWN_COLLECTION),
        (b'{"sid":4}', Status.INVALID),
        (b"[]", Status.INVALID),
        (b"{", Status.INVALID),
        (b"\xff", Status.INVALID),
        (b"[" * 100_000, Status.INVALID),
    ],
)
def test_filters(value: bytes, expected: Status):
    """There is the default collection alone; whoever wants another is told so."""
    assert status(request(9, value=value)) is expected
