"""A plain client of the UPR draft for tests: the codec over a socket, and a copy of vbuckets that it keeps by itself.

It does what the document asks of a consumer and knows nothing of the node. A copy goes on from the end of its last
whole snapshot. It keeps that, and where earlier ones ended, so that it can go back where the producer wants it to. A
flush empties it, and it begins again on another connection: see docs/concepts/dialects.md.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.history.snapshots import SEQNO_MAX
from headrace.ids import Opaque, Seqno, VBucketId, VbUuid
from headrace.wire import Dialect, Message, Response, decode, encode
from headrace.wire.catalogue import (
    DcpFlush,
    Deletion,
    Expiration,
    FailoverLog,
    GetFailoverLog,
    Mutation,
    Rollback,
    SnapshotEnd,
    SnapshotStart,
    StreamEnd,
    StreamRequest,
    StreamStart,
)
from tests.node.talk import Talk

if TYPE_CHECKING:
    from headrace.wire.message import Request

DRAFT = Dialect.UPR_DRAFT
M = TypeVar("M", bound=Message)
_OPAQUES = itertools.count(1)


class Place(NamedTuple):
    """Where a stream is to begin: the branch, when that began, and the last seqno."""

    vbuuid: int = 0
    high_seqno: int = 0
    seqno: int = 0


START = Place()


class DraftTalk(Talk):
    """One connection in the draft."""

    def say(self, message: Message) -> None:
        """Send one message as it is, opaque and all."""
        self.socket.sendall(encode(message, DRAFT))

    def message(self) -> Message:
        """Wait for the next message of any kind."""
        return decode(self.receive_raw(), DRAFT)

    def expect(self, kind: type[M]) -> M:
        """Wait for the next message, which is to be of a kind."""
        message = self.message()
        assert isinstance(message, kind), message
        return message

    def asked(self, message: Request) -> Response:
        """Ask, and wait for the answer."""
        self.say(message)
        answer = self.expect(Response)
        assert answer.opaque == message.opaque
        assert answer.opcode == message.spec.opcodes[DRAFT]
        return answer

    def failover_log(self, vb: int) -> list[tuple[int, int]]:
        """The branches of a vbucket, newest first."""
        answer = self.asked(GetFailoverLog(vbucket=VBucketId(vb), opaque=Opaque(next(_OPAQUES))))
        assert isinstance(answer, FailoverLog), answer
        return [(int(vbuuid), int(seqno)) for vbuuid, seqno in answer.entries]

    def request(self, vb: int, place: Place = START, end: int = SEQNO_MAX, **fields: Any) -> Response:
        """Ask for a stream; its opaque is 1000 and the vbucket."""
        return self.asked(
            StreamRequest(
                vbucket=VBucketId(vb),
                opaque=Opaque(1000 + vb),
                start_seqno=Seqno(place.seqno),
                end_seqno=Seqno(end),
                vbuuid=VbUuid(place.vbuuid),
                high_seqno=Seqno(place.high_seqno),
                **({"group": b"tests"} | fields),
            )
        )

    def begin(self, vb: int, place: Place = START, end: int = SEQNO_MAX, **fields: Any) -> None:
        """Ask for a stream and expect it to start."""
        answer = self.request(vb, place, end, **fields)
        assert (type(answer), answer.status) == (FailoverLog, 0), answer
        assert answer == FailoverLog(opcode=0x50, opaque=answer.opaque, layout=answer.layout), "the OK has no body"
        start = self.expect(StreamStart)
        assert (start.vbucket, start.opaque) == (vb, 1000 + vb)

    def until_end(self) -> list[Message]:
        """All messages until a stream has ended, that end among them."""
        found = [self.message()]
        while not isinstance(found[-1], StreamEnd):
            found.append(self.message())
        return found


Item = Mutation | Deletion | Expiration
Kept = tuple[bytes, int, int, int, int, int]
"""Value, flags, expiry, CAS, revision and seqno."""


@dataclass
class Copy:
    """What a consumer has of a vbucket: all whole snapshots, each with the place where it ended."""

    vb: int
    states: list[tuple[Place, dict[bytes, Kept]]] = field(default_factory=lambda: [(START, {})])
    begun: list[Item] | None = None

    @property
    def place(self) -> Place:
        """Where to go on."""
        return self.states[-1][0]

    @property
    def items(self) -> dict[bytes, Kept]:
        """The live items."""
        return self.states[-1][1]

    def go_back(self, seqno: int) -> None:
        """Forget what lies behind a seqno."""
        self.begun = None
        while self.place.seqno > seqno:
            self.states.pop()

    def empty(self) -> None:
        """Begin again."""
        self.states, self.begun = [(START, {})], None

    def take(self, message: Message, branch: tuple[int, int]) -> None:
        """Take one message of the stream, by the rules of the document."""
        assert getattr(message, "vbucket", None) == self.vb
        if isinstance(message, SnapshotStart):
            assert self.begun is None, "a snapshot begins in another"
            self.begun = []
        elif isinstance(message, SnapshotEnd):
            assert self.begun is not None, "a snapshot ends that was not begun"
            self._finish(self.begun, branch)
            self.begun = None
        else:
            assert isinstance(message, Item), message
            assert self.begun is not None, "an item outside of every snapshot"
            last = self.begun[-1].by_seqno if self.begun else self.place.seqno
            assert message.by_seqno > last, "seqnos rise"
            self.begun.append(message)

    def _finish(self, changes: list[Item], branch: tuple[int, int]) -> None:
        keys = [one.key for one in changes]
        assert len(keys) == len(set(keys)), "a snapshot has each key once"
        items = dict(self.items)
        for one in changes:
            if isinstance(one, Mutation):
                kept = (one.value, one.flags, one.expiry, int(one.cas), one.rev_seqno, int(one.by_seqno))
                items[one.key] = kept
            else:
                items.pop(one.key, None)
        seqno = int(changes[-1].by_seqno) if changes else self.place.seqno
        self.states.append((Place(*branch, seqno), items))


def follow(talk: DraftTalk, copy: Copy, end: int, most: int | None = None) -> bool:
    """Bring a copy to a seqno on a fresh connection, or through so many messages; True when it is there.

    A rollback is done and the stream asked for again. A flush empties the copy: then it is not there yet.
    """
    if end == 0:
        copy.go_back(0)
        return True
    while True:
        branch = talk.failover_log(copy.vb)[0]
        answer = talk.request(copy.vb, copy.place)
        if not isinstance(answer, Rollback):
            break
        assert answer.seqno < copy.place.seqno, "a rollback goes back"
        copy.go_back(answer.seqno)
    assert answer.status == 0, answer
    talk.expect(StreamStart)
    taken = 0
    copy.begun = None
    while copy.place.seqno < end:
        if most is not None and taken >= most:
            return False
        message = talk.message()
        taken += 1
        if isinstance(message, DcpFlush):
            copy.empty()
            return False
        if isinstance(message, StreamEnd):
            return False
        copy.take(message, branch)
    return True
