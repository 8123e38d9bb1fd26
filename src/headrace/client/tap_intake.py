"""What a TAP connection brings, taken in: rows, acks that are owed, and how far a backfill is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.errors import ConnectionLostError, ServerAnswerError, error_of
from headrace.client.tap_node import named
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
from headrace.wire.codes import Status, TapFlag, TapOpaqueCode

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.client.tap_node import TapConnection, TapPart
    from headrace.client.tap_rows import TapRows
    from headrace.wire import Frame, Message

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


class Intake:
    """Takes frames of one connection in."""

    def __init__(self, connection: TapConnection, expected: Collection[int] | None = None) -> None:
        self._connection = connection
        self.progress = Progress(expected)
        self.acks = bytearray()
        """What is to be said of the messages that were taken in."""
        self.signs = bytearray()
        """Signs of life that the server waits for, whatever becomes of its messages."""

    def take(self, frame: Frame, rows: TapRows) -> None:
        """Take one frame in."""
        try:
            tap_flags = rows.add_frame(frame)
            if tap_flags is None:
                tap_flags = self._take(decode(frame, Dialect.TAP), rows)
            else:
                self.progress.items += 1
        except RemoteProtocolError as error:
            raise ServerAnswerError(f"{self._connection.address}: {error}") from error
        if tap_flags & TapFlag.ACK:
            self.acks += encode(TapAck(opcode=frame.header.opcode, opaque=Opaque(frame.header.opaque)), Dialect.TAP)

    def _take(self, message: Message, rows: TapRows) -> int:
        """Take a message that is no plain item; gives its tap flags."""
        match message:
            case TapMutation() | TapDelete() | TapFlush():
                rows.add(message)
                self.progress.items += 1
                return message.tap_flags
            case TapRequest():  # opaque messages, checkpoints, states of vbuckets
                self.progress.take(message)
                return message.tap_flags
            case Noop():
                self.progress.take(message)
                self.signs += encode(Done(opcode=_NOOP, opaque=message.opaque))
                return 0
            case _:
                raise refusal(self._connection, message)


def refusal(connection: TapConnection, message: Message) -> Exception:
    """Say what a message means that is none of TAP's."""
    if isinstance(message, ErrorReply) and message.opcode == _CONNECT:
        value = message.value
        if message.status in (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED):
            value = b"releases from 5.0 on have no TAP: read them by DCP"
        return error_of(f"TAP from {connection.address}", message.status, value)
    return ServerAnswerError(f"{connection.address}: a message that no TAP stream has: {message!r}")


def prepare_dump(connection: TapConnection, part: TapPart) -> tuple[tuple[int, ...] | None, set[int] | None]:
    """Wait until a dump is worth to begin; give its vbuckets, and those of them that have items, where that is told."""
    connection.expect_silence()
    held, vbuckets = connection.held(), part.vbuckets
    if held is None:
        return vbuckets, None
    if vbuckets is None:
        vbuckets = tuple(vb for vb, each in held.items() if each.is_active)
    if gone := {vb for vb in vbuckets if vb not in held or not held[vb].is_active}:
        raise ConnectionLostError(f"{connection.address}: {named(gone)} not active here any more; read again")
    connection.await_disk(vbuckets, held)
    if any(held[vb].num_items is None for vb in vbuckets):
        return vbuckets, None
    return vbuckets, {vb for vb in vbuckets if held[vb].num_items}


__all__ = ["Intake", "Progress", "prepare_dump", "refusal"]
