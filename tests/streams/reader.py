"""A plain reader of streams for tests: messages of the catalogue over a socket, and nothing done by itself."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from headrace.history.snapshots import SEQNO_MAX
from headrace.ids import Opaque, Seqno, VBucketId, VbUuid
from headrace.wire import Dialect, Message, Response, decode, encode
from headrace.wire.catalogue import (
    BufferAck,
    Control,
    Deletion,
    Expiration,
    FailoverLog,
    Mutation,
    Noop,
    Open,
    SetQ,
    SnapshotMarker,
    StreamEnd,
    StreamRequest,
)
from headrace.wire.codes import OpenFlag
from headrace.wire.limits import HEADER_BYTES
from tests.node.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.node import Node
    from headrace.wire.codes import Feature

Item = Mutation | Deletion | Expiration
ITEMS = (Mutation, Deletion, Expiration)
_NAMES = itertools.count()


class Reader(Talk):
    """A connection that was opened for streams."""

    def __init__(
        self, node: Node, *features: Feature, flags: int = 0, name: str = "", controls: dict[str, str] | None = None
    ) -> None:
        super().__init__(node, *features)
        self.dialect = Dialect.DCP
        self.open_on(self, flags, name)
        for key, value in (controls or {}).items():
            assert self.status(Control(key=key.encode(), value=value.encode())) == 0, key

    @staticmethod
    def open_on(talk: Talk, flags: int = 0, name: str = "") -> None:
        """Open a connection for streams."""
        talk.get(Open(name=(name or f"reader-{next(_NAMES)}").encode(), flags=OpenFlag.PRODUCER | flags), Response)

    def request(self, vbucket: int, start: int = 0, end: int = SEQNO_MAX, **fields: int) -> Response:
        """Ask for a stream whose opaque is 1000 and the vbucket; gives the answer."""
        places: dict[str, Any] = {"snapshot_start": Seqno(start), "snapshot_end": Seqno(start)} | fields
        opaque = Opaque(1000 + vbucket)
        asked = StreamRequest(
            vbucket=VBucketId(vbucket), opaque=opaque, start_seqno=Seqno(start), end_seqno=Seqno(end), **places
        )
        self.socket.sendall(encode(asked))
        reply = self.receive()
        assert reply.opaque == opaque
        return reply

    def begin(self, vbucket: int, start: int = 0, end: int = SEQNO_MAX, **fields: int) -> VbUuid:
        """Ask for a stream and expect it; gives the branch that it is of."""
        reply = self.request(vbucket, start, end, **fields)
        assert isinstance(reply, FailoverLog), reply
        return reply.entries[0].vbuuid

    def begin_upr(self, vbucket: int) -> None:
        """Ask for a stream in UPR's form of 40 bytes."""
        self.dialect = Dialect.UPR
        asked = StreamRequest(vbucket=VBucketId(vbucket), opaque=Opaque(1000 + vbucket), high_seqno=Seqno(0))
        self.socket.sendall(encode(asked, Dialect.UPR))
        assert isinstance(self.receive(), FailoverLog)

    def message(self) -> Message:
        """Wait for the next message of any kind."""
        return decode(self.receive_raw(), self.dialect)

    def until_end(self, streams: int = 1) -> list[Message]:
        """All messages until so many streams have ended, those ends among them."""
        found: list[Message] = []
        while streams:
            found.append(self.message())
            streams -= isinstance(found[-1], StreamEnd)
        return found

    def items(self, count: int) -> list[Item]:
        """Wait for so many changes; markers are read over, and anything else is a mistake."""
        found: list[Item] = []
        while len(found) < count:
            message = self.message()
            if isinstance(message, ITEMS):
                found.append(message)
            else:
                assert isinstance(message, SnapshotMarker), message
        return found

    def is_quiet(self, seconds: float = 0.3) -> bool:
        """Whether nothing comes for a while."""
        before = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            self.receive_raw()
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(before)
        return False

    def ack(self, size: int) -> None:
        """Tell that bytes were worked off."""
        self.socket.sendall(encode(BufferAck(bytes_acked=size)))


def size_of(message: Message, dialect: Dialect = Dialect.DCP) -> int:
    """What a message counts in a window."""
    size = len(encode(message, dialect))
    assert size >= HEADER_BYTES
    return size


def write(node: Node, vbucket: int, keys: Iterable[str], value: bytes = b"v") -> None:
    """Set items, and wait until they are acknowledged."""
    with Talk(node) as talk:
        talk.send(*(SetQ(vbucket=VBucketId(vbucket), key=key.encode(), value=value) for key in keys))
        assert talk.status(Noop()) == 0


def keys_of(messages: Iterable[Message]) -> list[str]:
    """The keys of the changes among messages, in their order."""
    return [one.key.decode() for one in messages if isinstance(one, ITEMS)]
