"""A connection that takes streams in from a producer that speaks the UPR draft.

Its manager opens it and adds streams as at any consumer; what goes between it and the producer is the draft:

    --> 0x51 failover log request, 0x50 stream request      the draft's OK has no log, so both are asked at once
    <-- their answers, then stream start
    <-- snapshot start, items, snapshot end                 and so on: where a snapshot ends, its end alone tells
    <-- flush                                               as in UPR: see `older_consumer`
    <-- set vbucket --> done                                answered when the disk has it, as in UPR
    <-- stream end

There is no window and no noop: a producer that sends too fast is slowed down by the connection itself, and one that is
gone is noticed by it. CLOSE_STREAM has the opcode of stream start, so a manager ends streams with the connection.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from headrace.node.dcp.older_consumer import UprConsumer
from headrace.node.dcp.received import DRAFT_KINDS, HEAD, draft_record_of
from headrace.protocol.consumer import SEQNO_KEPT_MAX, STATUSES
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import (
    CloseStream,
    DcpNoop,
    FailoverLog,
    GetFailoverLog,
    SnapshotEnd,
    SnapshotMarker,
    SnapshotStart,
    StreamRequest,
    StreamStart,
)
from headrace.wire.codes import Magic, Status
from headrace.wire.limits import HEADER_BYTES, KEY_BYTES_MAX

if TYPE_CHECKING:
    from headrace.ids import Seqno
    from headrace.node.buckets import OpenBucket
    from headrace.node.dcp.copies import Copy
    from headrace.node.dcp.ends import Line
    from headrace.wire import Response
    from headrace.wire.catalogue import FailoverEntry

DRAFT = Dialect.UPR_DRAFT
_REQUEST = StreamRequest.spec.opcodes[DRAFT]
_LOG = GetFailoverLog.spec.opcodes[DRAFT]


class DraftConsumer(UprConsumer):
    """The consuming end of one connection, which asks for streams in the draft."""

    dialect = DRAFT
    _record_of = staticmethod(draft_record_of)

    def __init__(self, opened: OpenBucket, line: Line, name: str, now: float) -> None:
        super().__init__(opened, line, name, now)
        self._logs: dict[int, tuple[FailoverEntry, ...]] = {}
        """The failover logs that came before their streams were answered, by the opaque of the stream."""
        for message in (SnapshotMarker, CloseStream, DcpNoop):
            del self._receivers[message]
        self._receivers |= {
            StreamStart: self._stream_start,
            SnapshotStart: self._snapshot_start,
            SnapshotEnd: self._snapshot_end,
        }

    def receive_block(self, data: bytes, at: int, now: float) -> int:
        """Take the run of whole items that begins at `at`, and give where it ends: what stands there is for others."""
        begun, items, length = at, 0, len(data)
        while at + HEAD.size <= length and not self.is_leaving:
            magic, opcode, _, _, _, _, body, *_ = HEAD.unpack_from(data, at)
            end = at + HEADER_BYTES + body
            if magic != Magic.REQUEST or opcode not in DRAFT_KINDS or end > length:
                break
            self._take_item(data, at, end)
            items += 1
            at = end
        if at != begun:
            self.received_items += items
            self._count(at - begun)
            self._watch.heard(now)
        return at

    # ------------------------------------------------------------------------------------------------- to ask for them

    def _send_controls(self) -> None:
        """The draft has none; and nobody acknowledges or watches."""

    def _acknowledge(self, now: float) -> None:
        """The draft has no window."""

    @property
    def deadline(self) -> float | None:
        """Nothing is due by itself."""
        return None

    def _ask(self, copy: Copy, start: Seqno) -> None:
        """Send both requests in one piece: the log is to be that of the stream."""
        log = encode(GetFailoverLog(vbucket=copy.vb.id, opaque=copy.stream.opaque), DRAFT)
        stream = encode(self._question(copy, start, self.name.encode()[:KEY_BYTES_MAX]), DRAFT)
        self._line.send(log + stream)

    def _answered(self, answer: Response) -> None:
        if answer.opcode == _LOG:
            if isinstance(answer, FailoverLog) and answer.opaque in self._copies.by_opaque:
                self._logs[answer.opaque] = answer.entries
        elif answer.opcode == _REQUEST:
            entries = self._logs.pop(answer.opaque, ())
            if isinstance(answer, FailoverLog):
                answer = dataclasses.replace(answer, entries=answer.entries or entries)
            self._request_answered(answer)

    # -------------------------------------------------------------------------------------------------- to take them in

    def _stream_start(self, request: StreamStart) -> None:
        if self._copies.find(request.opaque, request.vbucket) is None:
            self._refuse(self._opcode(request), request.opaque, Status.KEY_NOT_FOUND)

    def _snapshot_start(self, request: SnapshotStart) -> None:
        copy = self._copies.find(request.opaque, request.vbucket)
        stream = copy.stream if copy is not None else None
        if copy is None or stream is None:
            self._refuse(self._opcode(request), request.opaque, Status.KEY_NOT_FOUND)
            return
        status = STATUSES.get(stream.marker(start=stream.last_seqno, end=SEQNO_KEPT_MAX, flags=0))
        if status is not None:
            self._refuse(self._opcode(request), request.opaque, status)
            return
        self._bucket.begin_snapshot(copy.vb, stream.snapshot_start, stream.snapshot_end)

    def _snapshot_end(self, request: SnapshotEnd) -> None:
        copy = self._copies.find(request.opaque, request.vbucket)
        if copy is None:
            self._refuse(self._opcode(request), request.opaque, Status.KEY_NOT_FOUND)
            return
        verdict = copy.stream.snapshot_ended()
        status = STATUSES.get(verdict)
        if status is not None:
            self._refuse(self._opcode(request), request.opaque, status)
            return
        vb = copy.vb
        if not vb.whole_seqno:
            # The snapshot began at nothing, and may come from a disk where deletions were purged. Who was behind them
            # and asks this copy, once it is active, must not go on as if there had been none.
            vb.purge_seqno = max(vb.purge_seqno, vb.high_seqno)
        self._end_snapshot(copy, verdict)

    def close(self) -> None:
        """The connection is gone; half a snapshot is of no use to who asks next, since nobody knows where it ends."""
        if self._closed:
            return
        for copy in self._copies:
            if copy.vb.in_snapshot and not copy.vb.is_spilled:
                self._bucket.drop_partial(copy.vb)
        super().close()


__all__ = ["DraftConsumer"]
