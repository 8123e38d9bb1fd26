"""A connection that takes streams in from a producer that speaks UPR: what differs from DCP.

UPR's stream request of 40 bytes names no snapshot, so a copy goes on from the end of one that it has whole: what it has
of another is dropped first. Its producer says in other statuses that the two have no common history, and it may send a
flush.

A flush has no seqno. A copy that is flushed is emptied, and its stream ends here: the answer to the flush says so.
Asked for again, it is had from the beginning, as the producer has it then. To go on with the stream would leave a copy
that cannot go back into the middle of the flush, if the producer loses a part of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.history import Position, SnapshotRange
from headrace.ids import Seqno
from headrace.node.dcp.consumer import Consumer
from headrace.store import StoreError
from headrace.wire import Dialect
from headrace.wire.catalogue import DcpFlush, ErrorReply, Rollback, StreamRequest
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from headrace.node.buckets import OpenBucket
    from headrace.node.dcp.copies import Copy
    from headrace.node.dcp.ends import Line
    from headrace.wire import Response

log = logging.getLogger("headrace.node.dcp.consumer")

_NO_COMMON_HISTORY = frozenset({Status.KEY_NOT_FOUND, Status.OUT_OF_RANGE})
"""UPR's words for an unknown branch and for a start past the high seqno: how far to go back, they do not tell."""


class UprConsumer(Consumer):
    """The consuming end of one connection, which asks for streams in UPR."""

    dialect = Dialect.UPR

    def __init__(self, opened: OpenBucket, line: Line, name: str, now: float) -> None:
        super().__init__(opened, line, name, now)
        self._receivers[DcpFlush] = self._flushed

    def _request(self, copy: Copy) -> None:
        """Ask for a stream from where the vbucket is whole."""
        vb = copy.vb
        if vb.is_spilled:
            self._flusher.roll_back(vb, vb.whole_seqno, lambda reached: self._went_back(copy, reached))
            return
        if vb.in_snapshot:
            self._bucket.drop_partial(vb)
        start = Seqno(vb.high_seqno)
        copy.stream.begin(Position(vbuuid=vb.vbuuid, seqno=start, snapshot=SnapshotRange(start=start, end=start)))
        self._ask(copy, start)

    def _went_back(self, copy: Copy, reached: int | StoreError) -> None:
        """Half of a snapshot is gone from the disk, or cannot be taken from there."""
        if self._closed or copy not in self._copies:
            return
        if isinstance(reached, StoreError):
            copy.stream.failed()
            self._copies.forget(copy)
            self._added(copy, Status.TEMPORARY_FAILURE)
        else:
            self._request(copy)

    def _ask(self, copy: Copy, start: Seqno) -> None:
        """Send the request."""
        self._send(self._question(copy, start))

    def _question(self, copy: Copy, start: Seqno, group: bytes = b"") -> StreamRequest:
        vb, stream = copy.vb, copy.stream
        return StreamRequest(
            vbucket=vb.id,
            opaque=stream.opaque,
            flags=stream.flags,
            start_seqno=start,
            vbuuid=vb.vbuuid,
            high_seqno=vb.failover_log.latest.seqno,
            group=group,
        )

    def _meaning(self, copy: Copy, answer: Response) -> Response:
        if isinstance(answer, ErrorReply) and answer.status in _NO_COMMON_HISTORY and copy.vb.high_seqno:
            return Rollback(opcode=answer.opcode, opaque=answer.opaque, status=Status.ROLLBACK, seqno=Seqno(0))
        return answer

    def _flushed(self, request: DcpFlush) -> None:
        """Empty the vbucket, and end its stream: it may be asked for again, from the beginning."""
        copy = self._copies.find(request.opaque, request.vbucket)
        if copy is None or not copy.stream.close():
            self._refuse(self._opcode(request), request.opaque, Status.KEY_NOT_FOUND)
            return
        vb = copy.vb
        log.info("the producer has flushed a vbucket", extra={"connection": self.name, "vbucket": vb.id})
        self._refuse(self._opcode(request), request.opaque, Status.KEY_NOT_FOUND)

        def done(reached: int | StoreError) -> None:
            if isinstance(reached, StoreError):
                self._leave(f"vbucket {vb.id} was flushed, and could not be emptied: {reached}")
            self._copies.forget(copy)

        self._flusher.roll_back(vb, 0, done)


__all__ = ["UprConsumer"]
