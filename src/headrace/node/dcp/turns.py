"""Whose turn it is: the streams of one connection that may have something to send, one after the other.

ready   may have something to send; each sends a little, then goes to the end
idle    has sent all there is; a change behind its cursor makes it ready again
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from headrace.protocol.stream import ProducerStream

if TYPE_CHECKING:
    from array import array

    from headrace.ids import Opaque
    from headrace.node.dcp.feed import Feed
    from headrace.node.vbucket import VBucket
    from headrace.protocol.requests import Accepted

_NOWHERE = np.iinfo(np.int64).max


class ServedStream(ProducerStream):
    """A stream and what it reads from."""

    __slots__ = ("awaits_flush", "feed", "queued", "vb")

    def __init__(self, vb: VBucket, opaque: Opaque, accepted: Accepted, feed: Feed) -> None:
        super().__init__(vb.id, opaque, accepted)
        self.vb = vb
        self.feed = feed
        self.queued = False
        """Whether it is among the ready ones."""
        self.awaits_flush = False
        """Whether it is looked at after the next flush."""


class Turns:
    """The streams of a connection, in turn. `seqnos` has the high seqno of each vbucket."""

    def __init__(self, seqnos: array[int]) -> None:
        self._ready: deque[ServedStream] = deque()
        self._seqnos = np.frombuffer(seqnos, np.int64)
        self._idle_at = np.full(len(seqnos), _NOWHERE, np.int64)

    def __bool__(self) -> bool:
        return bool(self._ready)

    @property
    def disk_readers(self) -> int:
        """How many of the ready ones have a read transaction open."""
        return sum(stream.feed.reads_disk for stream in self._ready)

    def changed(self) -> list[int]:
        """The vbuckets of idle streams behind whose cursor there is something."""
        found: list[int] = np.nonzero(self._seqnos > self._idle_at)[0].tolist()
        return found

    def take(self) -> ServedStream:
        """The stream whose turn it is; it is not among the ready ones then."""
        stream = self._ready.popleft()
        stream.queued = False
        return stream

    def put(self, stream: ServedStream) -> None:
        """Have a stream be served, after all that wait already."""
        self._idle_at[stream.vbucket] = _NOWHERE
        if not stream.queued:
            stream.queued = True
            self._ready.append(stream)

    def rest(self, stream: ServedStream) -> None:
        """Leave a stream alone until there is something behind its cursor."""
        self._idle_at[stream.vbucket] = stream.cursor

    def forget(self, stream: ServedStream) -> None:
        """A stream has ended; where it is among the ready ones, its turn will pass."""
        self._idle_at[stream.vbucket] = _NOWHERE
