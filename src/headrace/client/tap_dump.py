"""Everything that an old server holds, by TAP: the way out of a release that knows nothing better.

A connection is opened, told what is wanted (TAP_CONNECT with DUMP, SUPPORT_ACK, the byte order of flags and a list of
vbuckets), and sent everything; then the server closes it. TAP has neither seqnos nor positions: what breaks off is read
again from its beginning, and an item that is changed meanwhile may come twice.

**The end.** That the socket closes proves nothing: a server that dies does that, too. A server opens the backfill of a
vbucket by OPAQUE 1 and closes it by OPAQUE 8, once every item of it was sent and acknowledged; ep-engine has done so
since 2011 (captures 08c, 08e, 08f). A dump is whole when all that was opened is closed, and all that has items by the
server's statistics was opened: a vbucket without items is never mentioned, even when tombstones of it are left. How the
connection ends after that does not matter any more.

**Memory.** What is received and not yet taken is bounded by the server's window of unacknowledged messages and by the
socket; a batch ends at `buffer_bytes`. Acks are gathered while messages wait here, so that sending them takes no more
in than is worked off.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Self

from headrace.client.errors import ConnectionLostError, ServerAnswerError, error_of
from headrace.client.tap_node import TapConnection, TapPart, named, tap_parts
from headrace.client.tap_rows import TapRows
from headrace.errors import RemoteProtocolError
from headrace.ids import Opaque
from headrace.wire import Dialect, decode, encode
from headrace.wire.catalogue import (
    Done,
    ErrorReply,
    Noop,
    TapAck,
    TapConnect,
    TapDelete,
    TapFlush,
    TapMutation,
    TapOpaque,
    TapRequest,
)
from headrace.wire.codes import Feature, Status, TapConnectFlag, TapFlag, TapOpaqueCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa

    from headrace.client.options import ChangeOptions
    from headrace.wire import Message

_FLAGS = TapConnectFlag.DUMP | TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_BYTEORDER
_ACK_BYTES_MAX = 4096
_NOOP = Noop.spec.opcodes[Dialect.TAP]
_CONNECT = TapConnect.spec.opcodes[Dialect.TAP]


class Progress:
    """How far a dump is, by what was heard. Pure.

    `expected` are the vbuckets that have items, or None where the server does not tell.
    """

    def __init__(self, expected: Collection[int] | None) -> None:
        self._expected = expected
        self._opened: set[int] = set()
        self._closed: set[int] = set()
        self._messages = 0
        self.items = 0

    def take(self, message: Message) -> None:
        """Take note of a message that is no item."""
        self._messages += 1
        if isinstance(message, TapOpaque) and message.code == TapOpaqueCode.INITIAL_VBUCKET_STREAM:
            self._opened.add(message.vbucket)
            self._closed.discard(message.vbucket)
        elif isinstance(message, TapOpaque) and message.code == TapOpaqueCode.CLOSE_BACKFILL:
            self._closed.add(message.vbucket)

    @property
    def missing(self) -> str | None:
        """Say what is missing if nothing more comes; None when the dump is whole."""
        if unclosed := self._opened - self._closed:
            return f"{named(unclosed)} not sent to the end"
        if unopened := set(self._expected or ()) - self._closed:
            return f"{named(unopened)} not sent, and not empty"
        if self.items and not self._closed:
            return "the server never said which vbuckets these are all of"
        if self._expected is None and not self._messages:
            return "nothing was sent at all"
        return None


class TapDump:
    """One dump: iterate to get Arrow batches of `headrace.columns`; a context manager that closes the connection.

    It raises where the dump is not whole. What it gave before is a part then, and to be thrown away.

    >>> with TapDump(ChangeOptions(), tap_parts(ChangeOptions())[0]) as dump:  # doctest: +SKIP
    ...     rows = sum(batch.num_rows for batch in dump)
    """

    def __init__(self, options: ChangeOptions, part: TapPart) -> None:
        self._options = options
        self._connection = TapConnection(part.node, options)
        self._acks = bytearray()
        self._lost = ""
        try:
            self._begin(part)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _begin(self, part: TapPart) -> None:
        node, vbuckets, expected = self._connection, part.vbuckets, None
        node.expect_silence()
        held = node.held()
        if held is not None:
            if vbuckets is None:
                vbuckets = tuple(vb for vb, each in held.items() if each.is_active)
            if gone := {vb for vb in vbuckets if vb not in held or not held[vb].is_active}:
                raise ConnectionLostError(f"{node.address}: {named(gone)} not active here any more; read again")
            node.await_disk(vbuckets, held)
            if all(held[vb].num_items is not None for vb in vbuckets):
                expected = {vb for vb in vbuckets if held[vb].num_items}
        self._progress = Progress(expected)
        self._is_empty = expected is not None and not expected
        if not self._is_empty:
            flags = _FLAGS if vbuckets is None else _FLAGS | TapConnectFlag.LIST_VBUCKETS
            name = f"{self._options.name}-{secrets.token_hex(8)}".encode()  # a name used again ends the older dump
            self._send(encode(TapConnect(flags=flags, name=name, vbuckets=vbuckets), Dialect.TAP))

    def _send(self, data: bytes | bytearray) -> None:
        """Send; when the connection broke, what was received before is still to be read, and tells what it means."""
        try:
            self._connection.send(data)
        except ConnectionLostError as error:
            self._lost = self._lost or str(error)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Give the batches; they can be had once."""
        if self._is_empty:
            return
        datatypes = Feature.JSON in self._connection.features
        rows = TapRows(keys=self._options.keys, bytes_max=self._options.buffer_bytes, datatypes=datatypes)
        while self._receive(rows):
            if rows.is_full:
                yield rows.batch()
        if len(rows):
            yield rows.batch()

    def _receive(self, rows: TapRows) -> bool:
        """Take the next message in; False at the end of a dump that is whole."""
        node = self._connection
        try:
            frame = node.next_frame()
        except ConnectionLostError as error:
            missing = self._progress.missing
            if missing is None:
                return False
            raise ConnectionLostError(
                f"{self._lost or error}, after {self._progress.items} items of a dump, which is not whole: {missing}"
            ) from error
        try:
            tap_flags = rows.add_frame(frame)
            if tap_flags is None:
                tap_flags = self._take(decode(frame, Dialect.TAP), rows)
            else:
                self._progress.items += 1
        except RemoteProtocolError as error:
            raise ServerAnswerError(f"{node.address}: {error}") from error
        if tap_flags & TapFlag.ACK:
            self._acks += encode(TapAck(opcode=frame.header.opcode, opaque=Opaque(frame.header.opaque)), Dialect.TAP)
        if self._acks and (node.is_drained or len(self._acks) > _ACK_BYTES_MAX):
            acks, self._acks = self._acks, bytearray()
            self._send(acks)
        return True

    def _take(self, message: Message, rows: TapRows) -> int:
        """Take a message that is no plain item; gives its tap flags."""
        node = self._connection
        match message:
            case TapMutation() | TapDelete() | TapFlush():
                rows.add(message)
                self._progress.items += 1
                return message.tap_flags
            case TapRequest():  # opaque messages, checkpoints, states of vbuckets
                self._progress.take(message)
                return message.tap_flags
            case Noop():
                self._progress.take(message)
                self._acks += encode(Done(opcode=_NOOP, opaque=message.opaque))
                return 0
            case ErrorReply(opcode=opcode, status=status, value=value) if opcode == _CONNECT:
                if status in (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED):
                    value = b"releases from 5.0 on have no TAP: read them by DCP"
                raise error_of(f"a TAP dump of {node.address}", status, value)
            case _:
                raise ServerAnswerError(f"{node.address}: a message that no dump has: {message!r}")


__all__ = ["Progress", "TapDump", "TapPart", "tap_parts"]
