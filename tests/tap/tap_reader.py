"""A plain TAP client for tests: messages of the catalogue over a socket; it acknowledges when it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import Cas, Opaque, VBucketId
from headrace.wire import Dialect, Message, decode, encode
from headrace.wire.catalogue import (
    Noop,
    TapAck,
    TapCheckpointEnd,
    TapCheckpointStart,
    TapConnect,
    TapDelete,
    TapFlush,
    TapMutation,
    TapOpaque,
    TapVBucketSet,
    VBucketCheckpoint,
)
from headrace.wire.codes import TapConnectFlag, TapFlag
from tests.node.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.node import Node
    from headrace.wire.codes import Feature

TapMessage = (
    TapMutation | TapDelete | TapFlush | TapOpaque | TapVBucketSet | TapCheckpointStart | TapCheckpointEnd | Noop
)
Item = TapMutation | TapDelete
ITEMS = (TapMutation, TapDelete)
TapMessages = (TapMutation, TapDelete, TapFlush, TapOpaque, TapVBucketSet, TapCheckpointStart, TapCheckpointEnd, Noop)
FOREVER = 0xFFFF_FFFF_FFFF_FFFF


class TapReader(Talk):
    """A connection that became a TAP stream."""

    def __init__(
        self,
        node: Node,
        *features: Feature,
        flags: int | None = 0,
        name: str = "",
        date: int | None = None,
        vbuckets: Sequence[int] | None = None,
        checkpoints: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(node, *features)
        self.acks = bool((flags or 0) & TapConnectFlag.SUPPORT_ACK)
        self.opaques: list[int] = []
        """Of all messages so far."""
        if flags is not None:
            flags |= TapConnectFlag.BACKFILL if date is not None else 0
            flags |= TapConnectFlag.LIST_VBUCKETS if vbuckets is not None else 0
            flags |= TapConnectFlag.CHECKPOINT if checkpoints is not None else 0
        self.connect(
            TapConnect(
                flags=flags,
                name=name.encode(),
                backfill_date=date,
                vbuckets=None if vbuckets is None else tuple(vbuckets),
                checkpoints=None
                if checkpoints is None
                else tuple(VBucketCheckpoint(VBucketId(vb), number) for vb, number in checkpoints),
            )
        )

    def connect(self, request: TapConnect) -> None:
        """Ask for the stream; nothing answers."""
        self.socket.sendall(encode(request, Dialect.TAP))

    def next(self) -> TapMessage:
        """Wait for the next message of the node."""
        message: Message = decode(self.receive_raw(), Dialect.TAP)
        assert isinstance(message, TapMessages), message
        if not isinstance(message, Noop):
            self.opaques.append(message.opaque)
        return message

    def ack(self, message: Message, status: int = 0, key: bytes = b"") -> None:
        """Answer a message."""
        assert isinstance(message, TapMessages)
        opcode = message.spec.opcodes[Dialect.TAP]
        answer = TapAck(opcode=opcode, opaque=Opaque(message.opaque), status=status, key=key, cas=Cas(0))
        self.socket.sendall(encode(answer, Dialect.TAP))

    def read(self, until: Callable[[TapMessage], bool]) -> list[TapMessage]:
        """Read up to a message, and acknowledge whatever asks for it."""
        found: list[TapMessage] = []
        while not found or not until(found[-1]):
            found.append(self.next())
            if self.acks and asks(found[-1]):
                self.ack(found[-1])
        return found

    def read_all(self) -> list[TapMessage]:
        """Read to the end of the connection."""
        found: list[TapMessage] = []
        while True:
            try:
                found += self.read(lambda _: True)
            except ConnectionError:
                return found

    def read_items(self, count: int) -> list[Item]:
        """Read so many items, and what comes between them."""
        items: list[Item] = []
        while len(items) < count:
            items += [one for one in self.read(lambda _: True) if isinstance(one, ITEMS)]
        return items


def asks(message: TapMessage) -> bool:
    """Whether a message asks for an ack."""
    return not isinstance(message, Noop) and bool(message.tap_flags & TapFlag.ACK)


def shape(message: TapMessage) -> tuple[object, ...]:
    """What a message is, in short."""
    if isinstance(message, TapOpaque):
        return ("opaque", message.code, message.vbucket)
    if isinstance(message, TapVBucketSet):
        return ("state", message.state, message.vbucket)
    if isinstance(message, TapCheckpointStart | TapCheckpointEnd):
        return ("start" if isinstance(message, TapCheckpointStart) else "end", message.checkpoint, message.vbucket)
    if isinstance(message, TapMutation):
        return ("set", message.key, message.value)
    if isinstance(message, TapDelete):
        return ("delete", message.key)
    return ("flush",) if isinstance(message, TapFlush) else ("noop",)


def shapes(messages: Sequence[TapMessage]) -> list[tuple[object, ...]]:
    """What some messages are."""
    return [shape(one) for one in messages]


def keys(messages: Sequence[TapMessage]) -> list[bytes]:
    """The keys of the items among them."""
    return [one.key for one in messages if isinstance(one, ITEMS)]
