"""The stream requests of the captures, with what the servers knew when they answered them.

A server's failover log is what it said last of a vbucket, in the answer itself or before. Its high seqno is what its
stats said last, or what the capture's own words say: see `TOLD`. No server of the captures had purged anything: where
their stats give a purge seqno, it is 0.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from headrace.history import FailoverLog, History, ResumeRequest
from headrace.ids import Seqno
from headrace.wire import Message, Response, catalogue, decode
from headrace.wire.codes import Status
from tests.wire.vectors import TESTS

TOLD = {
    ("02_dcp_resume", "high seqno 33"): (range(1), 33),
    ("03a_dcp_stream_req_errors", "vbuckets 0-7 have high seqno 10"): (range(8), 10),
    ("04_failover_log_crash_rollback", "high seqno of vbucket 2 is 10"): (range(2, 3), 10),
    ("04_failover_log_crash_rollback", "seqnos 11..18 of the new branch"): (range(2, 3), 18),
}
"""High seqnos that no frame shows: scenario and words of a note or of the first line; vbuckets and their seqno."""

DECIDED = frozenset({Status.SUCCESS, Status.OUT_OF_RANGE, Status.ROLLBACK})
"""The answers that a verdict gives. Others come from checks that know nothing of history."""

_MAGICS = frozenset({0x80, 0x81})
_HIGH_SEQNO = re.compile(rb"vb_(\d+):high_seqno")
_STREAM_REQUEST = 0x53


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a capture: a note, or a message from the client or from the server."""

    number: int
    connection: str
    note: str = ""
    sent: Message | None = None
    received: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One stream request, its answer, and the history behind the answer. A start of 0 needs no high seqno."""

    id: str
    request: ResumeRequest
    history: History
    answer: Response


@dataclass(slots=True, kw_only=True)
class _Walk:
    """What is known of a capture's servers so far."""

    path: Path
    requests: dict[tuple[str, int], Message] = field(default_factory=dict)
    logs: dict[int, FailoverLog] = field(default_factory=dict)
    highs: dict[int, int] = field(default_factory=dict)

    def hear(self, words: str) -> None:
        for (scenario, phrase), (vbuckets, high) in TOLD.items():
            if scenario == self.path.stem and phrase in words:
                self.highs |= dict.fromkeys(vbuckets, high)

    def learn(self, answer: Message, request: Message | None) -> None:
        if isinstance(answer, catalogue.StatEntry) and (found := _HIGH_SEQNO.fullmatch(answer.key)):
            self.highs[int(found[1])] = int(answer.value)
        if isinstance(answer, catalogue.FailoverLog):
            assert isinstance(request, catalogue.StreamRequest | catalogue.GetFailoverLog)
            self.logs[request.vbucket] = FailoverLog.from_entries(answer.entries)

    def exchange(self, line: Line) -> Exchange | None:
        """Take one line in; give the exchange that it completes."""
        self.hear(line.note)
        if line.sent is not None:
            self.requests[line.connection, line.sent.opaque] = line.sent
        if line.received is None:
            return None
        answer, request = line.received, self.requests.get((line.connection, line.received.opaque))
        self.learn(answer, request)
        if not (isinstance(answer, Response) and answer.opcode == _STREAM_REQUEST and answer.status in DECIDED):
            return None
        assert isinstance(request, catalogue.StreamRequest)
        high = self.highs[request.vbucket] if request.start_seqno else 0
        return Exchange(
            id=f"{self.path.parent.name}/{self.path.stem}:{line.number}",
            request=resume_request(request),
            history=History(log=self.logs[request.vbucket], high_seqno=Seqno(high)),
            answer=answer,
        )


def resume_request(request: catalogue.StreamRequest) -> ResumeRequest:
    """What a message of the wire asks."""
    assert request.snapshot_start is not None
    assert request.snapshot_end is not None
    return ResumeRequest(
        vbuuid=request.vbuuid,
        start_seqno=request.start_seqno,
        end_seqno=request.end_seqno,
        snapshot_start=request.snapshot_start,
        snapshot_end=request.snapshot_end,
    )


def lines(path: Path) -> Iterator[Line]:
    """Everything that one capture shows; the words of its first line are a note."""
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        entry = json.loads(text)
        connection = entry.get("conn", "")
        if "hex" not in entry:
            note = entry.get("text", "") + entry.get("scenario", "")
            yield Line(number=number, connection=connection, note=note)
        elif (wire := bytes.fromhex(entry["hex"]))[0] in _MAGICS:
            message, sent = decode(wire), entry["dir"] == "c2s"
            yield Line(
                number=number,
                connection=connection,
                sent=message if sent else None,
                received=None if sent else message,
            )


@cache
def paths() -> tuple[Path, ...]:
    """Every capture of DCP."""
    return tuple(path for path in sorted((TESTS / "captures").glob("*/*.jsonl")) if "_tap_" not in path.stem)


@cache
def exchanges() -> tuple[Exchange, ...]:
    """Every stream request that a server answered by its history. Those that a server sent, nobody decided."""
    found = []
    for path in paths():
        walk = _Walk(path=path)
        found += [one for one in map(walk.exchange, lines(path)) if one is not None]
    return tuple(found)
