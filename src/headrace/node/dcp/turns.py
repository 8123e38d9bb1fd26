"""Whose turn it is: the streams of one connection that may have something to send, one after the other.

ready    may have something to send; each sends a little, then goes to the end
waiting  has something to send that only the disk has, and too many others read from there
idle     has sent all there is; a change behind its cursor makes it ready again
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from headrace.protocol.stream import ProducerStream

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from headrace.ids import Opaque, VBucketId
    from headrace.node.dcp.feed import Feed
    from headrace.node.vbucket import VBucket
    from headrace.protocol.requests import Accepted

_NOWHERE = np.iinfo(np.int64).max


class Served(Protocol):
    """What takes turns: the stream of a vbucket."""

    @property
    def vbucket(self) -> VBucketId:
        """Its vbucket."""
        ...

    @property
    def cursor(self) -> int:
        """Every change up to here was sent."""
        ...

    @property
    def in_snapshot(self) -> bool:
        """Whether some changes were begun and are not all sent."""
        ...

    @property
    def feed(self) -> Feed:
        """What it reads from."""
        ...


S = TypeVar("S", bound=Served)


class ServedStream(ProducerStream):
    """A stream and what it reads from."""

    __slots__ = ("awaits_flush", "feed", "vb")

    def __init__(self, vb: VBucket, opaque: Opaque, accepted: Accepted, feed: Feed) -> None:
        super().__init__(vb.id, opaque, accepted)
        self.vb = vb
        self.feed = feed
        self.awaits_flush = False
        """Whether it is looked at after the next flush."""


class Turns(Generic[S]):
    """The streams of a connection, in turn. `seqnos` has the high seqno of each vbucket."""

    def __init__(self, seqnos: array[int]) -> None:
        self._ready: OrderedDict[int, S] = OrderedDict()
        self._waiting: OrderedDict[int, S] = OrderedDict()
        self._begun: dict[int, S] = {}
        """The ready ones that may be in the middle of a snapshot: a few, where a bucket has a thousand streams."""
        self._waited = False
        """Whether the last one taken had waited for the disk."""
        self._seqnos = np.frombuffer(seqnos, np.int64)
        self._idle_at = np.full(len(seqnos), _NOWHERE, np.int64)
        self._idle: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._ready or self._waiting)

    @property
    def disk_readers(self) -> int:
        """How many of the ready ones have a read transaction open."""
        return sum(stream.feed.reads_disk for stream in self._begun.values())

    def begun(self) -> Iterator[S]:
        """The ready ones that are in the middle of a snapshot."""
        return (stream for stream in self._begun.values() if stream.in_snapshot)

    def changed(self) -> list[int]:
        """The vbuckets of idle streams behind whose cursor there is something."""
        if not self._idle:  # as while old changes are sent, which is when turns are many
            return []
        found: list[int] = np.nonzero(self._seqnos > self._idle_at)[0].tolist()
        return found

    def take(self, *, disk_has_room: bool) -> S | None:
        """The stream whose turn it is, if there is one; it is not among the ready ones then.

        Where the disk has room, every second one is one that waited for it: neither kind keeps the other from its turn.
        """
        may_begin = bool(self._waiting) and disk_has_room
        self._waited = may_begin and not (self._waited and self._ready)
        streams = self._waiting if self._waited else self._ready
        if not streams:
            return None
        vbucket, stream = streams.popitem(last=False)
        self._begun.pop(vbucket, None)
        return stream

    def put(self, stream: S) -> None:
        """Have a stream be served, after all that are ready."""
        self._stir(stream)
        self._waiting.pop(stream.vbucket, None)
        self._ready.setdefault(stream.vbucket, stream)
        if stream.in_snapshot or stream.feed.reads_disk:
            self._begun[stream.vbucket] = stream

    def wait_for_disk(self, stream: S) -> None:
        """Have a stream be served when fewer read from the disk: to look at it before that is work for nothing."""
        self._waiting[stream.vbucket] = stream

    def rest(self, stream: S) -> None:
        """Leave a stream alone until there is something behind its cursor."""
        self._idle_at[stream.vbucket] = stream.cursor
        self._idle.add(stream.vbucket)

    def forget(self, stream: S) -> None:
        """A stream has ended."""
        self._stir(stream)
        for streams in (self._waiting, self._ready, self._begun):
            streams.pop(stream.vbucket, None)

    def _stir(self, stream: S) -> None:
        """A stream is idle no more."""
        if stream.vbucket in self._idle:
            self._idle.discard(stream.vbucket)
            self._idle_at[stream.vbucket] = _NOWHERE
