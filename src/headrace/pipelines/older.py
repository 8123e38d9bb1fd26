"""Pairs of servers that speak an older dialect to each other: the UPR draft's relay, and whether both speak it.

The draft numbers its messages otherwise, and tells where a snapshot ends by its end alone. So items are looked at here,
for their seqnos: when a snapshot ends, the last of them says where.
"""

from __future__ import annotations

import secrets
from struct import Struct
from typing import TYPE_CHECKING

from headrace.client.errors import ClientError
from headrace.history.snapshots import SEQNO_MAX
from headrace.ids import Seqno, VBucketId
from headrace.pipelines.lines import Line
from headrace.pipelines.refusals import RefusedError
from headrace.pipelines.relay import Relay
from headrace.pipelines.servers import Vbuckets
from headrace.wire import Dialect
from headrace.wire.catalogue import (
    AddStream,
    DcpFlush,
    Deletion,
    Expiration,
    GetFailoverLog,
    Mutation,
    SetVBucketState,
    SnapshotEnd,
    SnapshotStart,
    StreamEnd,
    StreamRequest,
    StreamStart,
)
from headrace.wire.codes import Magic
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    from headrace.pipelines.lines import Line as AnyLine
    from headrace.pipelines.relay import Watcher
    from headrace.pipelines.servers import Server
    from headrace.wire.message import Request

_NAMES = {Dialect.UPR: "UPR", Dialect.UPR_DRAFT: "the UPR draft"}


def _opcode(message: type[Request]) -> int:
    return message.spec.opcodes[Dialect.UPR_DRAFT]


_ITEMS = frozenset(map(_opcode, (Mutation, Deletion, Expiration)))
_BEGUN, _DONE, _END, _STATE = map(_opcode, (SnapshotStart, SnapshotEnd, StreamEnd, SetVBucketState))
_OF_STREAMS = _ITEMS | {_BEGUN, _DONE, _END, _STATE, _opcode(StreamStart), _opcode(DcpFlush)}
_REQUEST = _opcode(StreamRequest)
_VBUCKET = Struct(">H")
_REASON = Struct(">I")
_SEQNO = Struct(">Q")


class DraftRelay(Relay):
    """Joins a line to a producer and one to a consumer, which speak the UPR draft to each other."""

    passed = frozenset()
    request = _REQUEST
    of_streams = _OF_STREAMS
    ours = frozenset({AddStream.spec.opcodes[Dialect.DCP]})

    def __init__(self, producer: AnyLine, consumer: AnyLine, watcher: Watcher) -> None:
        super().__init__(producer, consumer, watcher)
        self._seqnos: dict[int, int] = {}
        """The last seqno that came of each vbucket."""

    def close_stream(self, vb: int) -> None:
        """The draft cannot say so; a consumer that refuses a message of the stream has said it."""

    def _look_down(self, data: bytes, at: int, stop: int) -> bool:
        if data[at] != Magic.REQUEST:
            return True
        opcode, body = data[at + 1], at + HEADER_BYTES
        (vb,) = _VBUCKET.unpack_from(data, at + 6)
        last = self._seqnos.get(vb, 0)
        if opcode in _ITEMS and stop - body >= _SEQNO.size:
            self._down.items += 1
            (self._seqnos[vb],) = _SEQNO.unpack_from(data, body)
        elif opcode == _BEGUN:
            self._watcher.marked(vb, last + 1, SEQNO_MAX)
        elif opcode == _DONE:
            self._watcher.marked(vb, last, last)
        elif opcode == _STATE and stop > body:
            self._watcher.state_sent(vb, data[body])
        elif opcode == _END and stop - body >= _REASON.size:
            self._watcher.ended(vb, _REASON.unpack_from(data, body)[0])
        return True


def relay_of(dialect: Dialect) -> type[Relay]:
    """What joins two servers that speak a dialect to each other."""
    return DraftRelay if dialect is Dialect.UPR_DRAFT else Relay


def check_dialect(source: Server, target: Server, dialect: Dialect) -> None:
    """Refuse a pair of which one does not speak an older dialect. One that is not there says so by itself."""
    named = _NAMES[dialect]
    # A name that is opened again closes the connection that had it: jobs that begin at once must not share one.
    name = f"headrace-dialect:{secrets.token_hex(8)}"
    with Vbuckets(source) as vbuckets, Vbuckets(target):
        known = [VBucketId(vb) for vb in vbuckets.seqnos()][:1]
    try:
        _try_source(source, name, dialect, known)
    except ClientError as error:
        raise RefusedError(f"{source} does not speak {named}: without --dialect the two speak DCP ({error})") from error
    try:
        Line.to_consumer(target, name, dialect).close()
    except ClientError as error:
        raise RefusedError(
            f"{target} does not ask for streams in {named}, as a headrace node does: without --dialect the two speak "
            f"DCP ({error})"
        ) from error


def _try_source(source: Server, name: str, dialect: Dialect, vbuckets: list[VBucketId]) -> None:
    """Ask for a failover log in the draft, or for a stream of nothing in UPR, as only these have it."""
    with Line.to_producer(source, name, dialect) as line:
        for vb in vbuckets:
            if dialect is Dialect.UPR_DRAFT:
                line.ask(GetFailoverLog(vbucket=vb))
            else:
                line.dialect = dialect
                line.ask(StreamRequest(vbucket=vb, end_seqno=Seqno(0), high_seqno=Seqno(0)))


__all__ = ["DraftRelay", "check_dialect", "relay_of"]
