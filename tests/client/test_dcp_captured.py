"""The follower reads what real servers sent: every stream of the captures is asked for again, and played back."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Positions, RolledBack, StreamStarted
from headrace.history import SEQNO_MAX, FailoverLog, History, Position, ResumeRequest, RollBack, SnapshotRange, decide
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.wire import Message, catalogue, decode
from tests.client.fake_dcp import FakeCluster, Shell

CAPTURES = Path(__file__).parent.parent / "captures"
ITEMS = (catalogue.Mutation, catalogue.Deletion, catalogue.Expiration)


@dataclass
class Captured:
    """A stream request, and what the server sent to it."""

    name: str
    request: catalogue.StreamRequest
    frames: list[bytes]

    @property
    def answer(self) -> Message:
        """The answer itself."""
        return decode(self.frames[0])

    @property
    def items(self) -> list[Any]:
        """The changes."""
        return [each for each in map(decode, self.frames) if isinstance(each, ITEMS)]


def captured() -> list[Captured]:
    """Every stream that was asked for in a DCP capture."""
    found: list[Captured] = []
    for path in sorted(CAPTURES.glob("*/0[1-6]*_dcp*.jsonl")) + sorted(CAPTURES.glob("*/04_*.jsonl")):
        asked: dict[tuple[str, int], Captured] = {}
        for line in path.read_text().splitlines()[1:]:
            entry = json.loads(line)
            if "hex" not in entry:
                continue
            frame, connection = bytes.fromhex(entry["hex"]), entry.get("conn", "")
            try:
                message = decode(frame)
            except Exception:  # noqa: BLE001 - some captures send what cannot be read
                continue
            where = connection, message.opaque
            if entry["dir"] == "c2s" and isinstance(message, catalogue.StreamRequest):
                name = f"{path.parent.name}-{path.stem}-{message.opaque:x}"
                asked[where] = Captured(name, message, [])
                found.append(asked[where])
            elif entry["dir"] == "s2c" and where in asked:
                asked[where].frames.append(frame)
    return [each for each in found if each.frames]


def of_answer(kind: type[Message]) -> list[Any]:
    """The streams that were answered so, as parameters."""
    return [pytest.param(each, id=each.name) for each in captured() if isinstance(each.answer, kind)]


def position_of(request: catalogue.StreamRequest) -> Position:
    """Where the captured client stood."""
    assert request.snapshot_start is not None
    assert request.snapshot_end is not None
    start = request.snapshot_start if request.start_seqno else Seqno(0)
    end = request.snapshot_end if request.start_seqno else Seqno(0)
    return Position(vbuuid=request.vbuuid, seqno=request.start_seqno, snapshot=SnapshotRange(start=start, end=end))


def playing(stream: Captured, log: bytes | None = None) -> Shell:
    """A reader at a server that plays a capture, with the opaques of now."""
    cluster = FakeCluster(1 + stream.request.vbucket)
    played = iter([stream.frames])

    def play(connection: Any, request: Any) -> list[Message] | None:
        for frame in next(played, []):
            connection.out += frame[:12] + request.opaque.to_bytes(4) + frame[16:]
        return []

    cluster.answers = {catalogue.StreamRequest: play}

    def tell(connection: Any, request: Any) -> list[Message] | None:
        assert log is not None
        connection.out += log[:12] + request.opaque.to_bytes(4) + log[16:]
        return []

    if log is not None:
        cluster.answers[catalogue.GetFailoverLog] = tell
    vbucket = stream.request.vbucket
    start = Positions(bucket="default", vbuckets={vbucket: position_of(stream.request)})
    end = stream.request.end_seqno
    return Shell(cluster, start=start, until=None if end == SEQNO_MAX else {vbucket: end}, vbuckets=(vbucket,))


def _started(shell: Shell) -> bool:
    return any(isinstance(each, StreamStarted) for each in shell.events)


@pytest.mark.parametrize("stream", of_answer(catalogue.FailoverLog))
def test_every_captured_stream_is_read(stream: Captured):
    """Each item up to the end comes once, in order; the request is the captured one; the position is past the last."""
    shell = playing(stream)
    wanted = [
        (each.by_seqno, each.key, each.value or None if isinstance(each, catalogue.Removal) else each.value)
        for each in stream.items
        if each.by_seqno <= stream.request.end_seqno
    ]
    shell.run(until=lambda: len(shell.rows) >= len(wanted) and _started(shell))
    assert shell.follower.failure is None
    if not stream.request.end_seqno:
        assert not _started(shell)  # there is nothing to read, and nothing is asked
        return
    assert shell.of(stream.request.vbucket) == wanted
    asked: Any = shell.cluster.asked(catalogue.StreamRequest)[0]
    for name in ("start_seqno", "end_seqno", "vbuuid"):
        assert getattr(asked, name) == getattr(stream.request, name)
    if wanted:
        reached = shell.follower.positions.vbuckets[stream.request.vbucket]
        assert reached.seqno in (wanted[-1][0], stream.request.end_seqno)
        assert reached.vbuuid in [each.vbuuid for each in stream.answer.entries]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(each, id=each.name)
        for each in captured()
        if each.items and each.items[-1].by_seqno > each.request.end_seqno
    ],
)
def test_a_captured_end_that_does_not_cut(stream: Captured):
    """Both releases sent through 10 where 3 was the end: the reader stops at 3, and its position says so."""
    assert (stream.request.end_seqno, stream.items[-1].by_seqno) == (3, 10)
    shell = playing(stream)
    shell.run()
    assert shell.follower.is_done
    assert [row[1] for row in shell.rows] == [1, 2, 3]
    reached = shell.follower.positions.vbuckets[stream.request.vbucket]
    assert (reached.seqno, reached.snapshot.start, reached.snapshot.end) == (3, 0, 10)


LOG_AFTER = bytes.fromhex(
    "815400000000000000000020000000020000000000000000000066e0b2a5143e000000000000000a0000396a9003b2470000000000000000"
)
"""The failover log of capture 04 after the crash, as the server sent it."""


@pytest.mark.parametrize("stream", [each for each in of_answer(catalogue.Rollback) if "4.1.2-04_" in str(each.id)])
def test_every_captured_rollback_is_explained(stream: Captured):
    """The seqno is the server's, the reason is that of the rules, and what is kept is at or below it."""
    shell = playing(stream, LOG_AFTER)
    shell.run(until=lambda: any(isinstance(each, RolledBack) for each in shell.events))
    (event,) = [each for each in shell.events if isinstance(each, RolledBack)]
    answer: Any = stream.answer
    assert event.to == answer.seqno
    assert event.whole <= event.to
    log = FailoverLog.from_entries(decode(LOG_AFTER).entries)  # type: ignore[attr-defined]
    asked = ResumeRequest.from_position(position_of(stream.request))
    verdict = decide(asked, History(log=log, high_seqno=Seqno(18)))
    assert isinstance(verdict, RollBack)
    assert event.because is verdict.because
    assert event.log.latest.vbuuid == VbUuid(0x66E0B2A5143E)
    assert shell.follower.positions.vbuckets[VBucketId(stream.request.vbucket)].seqno == event.whole
