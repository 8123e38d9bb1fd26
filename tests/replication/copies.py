"""A consumer without a node: a real bucket in memory, a disk that is a dict, and a line that keeps what was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace.ids import VBucketId, VbUuid
from headrace.node.bucket import Bucket, new_vbuuid
from headrace.node.dcp.consumer import Consumer
from headrace.node.limits import NodeLimits
from headrace.store import StoreError, VBucketRecord
from headrace.wire import Dialect, Message, decode
from headrace.wire.limits import HEADER_BYTES

C = TypeVar("C", bound=Consumer)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.history import State
    from headrace.node.buckets import OpenBucket
    from headrace.node.vbucket import VBucket


class FakeDisk:
    """A disk that has nothing and forgets everything."""

    def __init__(self, vbuckets: int) -> None:
        self.marks = bytearray(vbuckets)

    def vbuckets(self) -> dict[VBucketId, VBucketRecord]:
        return {}

    def get(self, _vbucket: int, _key: bytes) -> None:
        return None

    def refresh(self) -> None:
        """There is nothing to see anew."""


class FakeFlusher:
    """Brings changes to disk when a test says so."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.after: list[Callable[[], None]] = []
        self.hurried = 0
        self.rolled_back: list[tuple[int, int]] = []
        self.fails = False
        self.waiting: list[Callable[[], None]] = []
        self.is_slow = False

    def hurry(self) -> None:
        self.hurried += 1

    def flush(self) -> None:
        """Write all that there is."""
        batch, self.bucket.dirty_vbuckets = list(self.bucket.dirty_vbuckets.values()), {}
        for vb in batch:
            changes = vb.take(self.bucket.clock.last)
            vb.persisted_seqno = int(changes.now.high_seqno)
            vb.state_on_disk = vb.state
            self.bucket.settle(vb)
        callbacks, self.after = self.after, []
        for callback in callbacks:
            callback()

    def roll_back(self, vb: VBucket, to: int, done: Callable[[int | StoreError], None]) -> None:
        """Go back to nothing, which is never too little; at once, or when a test says so."""
        self.rolled_back.append((vb.id, to))

        def work() -> None:
            if self.fails:
                done(StoreError("this disk fails"))
                return
            self.bucket.reset(vb, VBucketRecord(state=vb.state, failover_log=((new_vbuuid(), 0),)))  # type: ignore[arg-type]
            done(0)

        if self.is_slow:
            self.waiting.append(work)
        else:
            work()


class FakeLine:
    """A line that keeps what was sent, and why it was left."""

    peer = "127.0.0.1:1"

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.left: str | None = None

    def begin(self) -> None:
        """Nobody has to be told."""

    def send(self, block: bytes | memoryview) -> None:
        self.sent.append(bytes(block))

    def room_bytes(self) -> int:
        return 1 << 20

    def leave(self, why: str) -> None:
        self.left = self.left or why

    def finish(self, why: str) -> None:
        self.left = self.left or why

    def wake(self) -> None:
        """Nobody has to be told."""

    def take(self) -> list[bytes]:
        """What was sent since the last call, frame by frame."""
        data, self.sent = b"".join(self.sent), []
        frames = []
        while data:
            end = HEADER_BYTES + int.from_bytes(data[8:12])
            frames.append(data[:end])
            data = data[end:]
        return frames

    def said(self, dialect: Dialect = Dialect.DCP) -> list[Message]:
        """The same as messages."""
        return [decode(frame, dialect) for frame in self.take()]


class World:
    """A bucket with vbuckets in the states that a test wants, and its consumers."""

    def __init__(self, states: dict[int, State], *, vbuckets: int = 64) -> None:
        disk = cast("Any", FakeDisk(vbuckets))
        self.bucket = Bucket("default", disk, vbuckets=vbuckets, limits=NodeLimits())
        self.flusher = FakeFlusher(self.bucket)
        for vb, state in states.items():
            self.bucket.make_vbucket(VBucketId(vb), state)
        self.flusher.flush()
        self.now = 0.0

    def consumer(self, name: str = "replication") -> tuple[Consumer, FakeLine]:
        """A consumer that was just opened."""
        return self.consumer_of(Consumer, name)

    def consumer_of(self, kind: type[C], name: str = "replication") -> tuple[C, FakeLine]:
        """The same, for one that asks in another dialect."""
        line = FakeLine()
        return kind(cast("OpenBucket", self), line, name, self.now), line

    def vb(self, vb_id: int) -> VBucket:
        return self.bucket.vbucket(vb_id)

    def items(self, vb_id: int) -> dict[bytes, bytes]:
        """What memory has of a vbucket, key by key."""
        vb = self.vb(vb_id)
        return {key: self.bucket.find(vb, key) or b"" for layer in (vb.items, vb.flushing, vb.dirty) for key in layer}


def feed(consumer: Consumer, frames: Iterable[bytes], now: float, *, by_block: bool) -> None:
    """Bring frames to a consumer as messages, or as the bytes that a socket gives."""
    for frame in frames:
        if not by_block or consumer.receive_block(frame, 0, now) == 0:
            consumer.receive(decode(frame, Dialect.DCP), now)


UUID = VbUuid(0xAABBCCDDEEFF)
