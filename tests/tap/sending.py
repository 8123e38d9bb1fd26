"""A TAP sender for tests: it speaks to a node as an old server does, and looks at what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.ids import Cas, Opaque, VBucketId
from headrace.store.records import Record, unpack
from headrace.wire.catalogue import Noop, TapDelete, TapFlush, TapMutation, TapOpaque, TapRequest, TapVBucketSet
from headrace.wire.codes import TapFlag, TapOpaqueCode
from tests.node.talk import Talk, on_loop

if TYPE_CHECKING:
    from headrace.node import Node
    from headrace.wire import Response

ACK = TapFlag.ACK
IN_ORDER = TapFlag.NETWORK_BYTE_ORDER
CLOCK = 1_468_000_000_000_000_000
"""A CAS that is a time."""


def item(
    key: bytes, value: bytes = b"1", *, vbucket: int = 0, cas: int = CLOCK, rev: int | None = 1, **more: Any
) -> TapMutation:
    """An item that wants an ack."""
    told = {"tap_flags": ACK | IN_ORDER, "nru": None if rev is None else 0}
    return TapMutation(
        vbucket=VBucketId(vbucket), key=key, value=value, cas=Cas(cas), rev_seqno=rev, **{**told, **more}
    )


def gone(key: bytes, *, vbucket: int = 0, cas: int = CLOCK, rev: int | None = 2, **more: Any) -> TapDelete:
    """A deletion that wants an ack."""
    told = {"tap_flags": ACK}
    return TapDelete(vbucket=VBucketId(vbucket), key=key, cas=Cas(cas), rev_seqno=rev, **{**told, **more})


def state(vbucket: int, number: int) -> TapVBucketSet:
    """A step of a takeover."""
    return TapVBucketSet(vbucket=VBucketId(vbucket), state=number, tap_flags=ACK)


def flush() -> TapFlush:
    """A flush that wants an ack."""
    return TapFlush(tap_flags=ACK)


def control(code: int = TapOpaqueCode.ENABLE_AUTO_NACK, *, vbucket: int = 0) -> TapOpaque:
    """An opaque message that wants an ack."""
    return TapOpaque(code=code, vbucket=VBucketId(vbucket), tap_flags=ACK)


class Sender(Talk):
    """A connection that sends TAP messages."""

    def tell(self, *messages: TapRequest) -> list[int]:
        """Send messages that want acks, and give the statuses."""
        opaques = self.send(*messages)
        told = [self.receive() for _ in messages]
        assert [one.opaque for one in told] == opaques
        return [one.status for one in told]

    def send_unasked(self, *messages: TapRequest) -> list[Response]:
        """Send messages, then a NOOP; give what was answered before that was."""
        last = self.send(*messages, Noop())[-1]
        answers = []
        while (reply := self.receive()).opaque != Opaque(last):
            answers.append(reply)
        return answers


def found(node: Node, key: bytes, vbucket: int = 0) -> Record | None:
    """What a node has of a key, be it a tombstone."""

    def look() -> Record | None:
        opened = node.running.services.buckets.get("default")
        assert opened is not None
        record = opened.bucket.find(opened.bucket.vbucket(vbucket), key)
        return None if record is None else unpack(record)

    record: Record | None = on_loop(node, look)
    return record


def high_seqno(node: Node, vbucket: int = 0) -> int:
    """The last seqno of a vbucket."""
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    return opened.bucket.seqnos[vbucket]
