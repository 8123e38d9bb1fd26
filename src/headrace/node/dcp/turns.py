"""Whose turn it is: the streams of one connection that may have something to send, one after the other.

ready   may have something to send; each sends a little, then goes to the end
idle    has sent all there is; a change behind its cursor makes it ready again
"""

from __future__ import annotations

from collections import OrderedDict
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

    __slots__ = ("awaits_flush", "feed", "vb")

    def __init__(self, vb: VBucket, opaque: Opaque, accepted: Accepted, feed: Feed) -> None:
        super().__init__(vb.id, opaque, accepted)
        self.vb = vb
        self.feed = feed
        self.awaits_flush = False
        """Whether it is looked at after the next flush."""


class Turns:
    """The streams of a connection, in turn. `seqnos` has the high seqno of each vbucket."""

    def __init__(self, seqnos: array[int]) -> None:
        self._ready: OrderedDict[int, ServedStream] = OrderedDict()
        self._seqnos = np.frombuffer(seqnos, np.int64)
        self._idle_at = np.full(len(seqnos), _NOWHERE, np.int64)

    def __bool__(self) -> bool:
        return bool(self._ready)

    @property
    def disk_readers(self) -> int:
        """How many of the ready ones have a read transaction open."""
        return sum(stream.feed.reads_disk for stream in self._ready.values())

    def begun(self) -> list[ServedStream]:
        """The ready ones that are in the middle of a snapshot."""
        return [stream for stream in self._ready.values() if stream.in_snapshot]

    def changed(self) -> list[int]:
        """The vbuckets of idle streams behind whose cursor there is something."""
        found: list[int] = np.nonzero(self._seqnos > self._idle_at)[0].tolist()
        return found

    def take(self) -> ServedStream:
        """The stream whose turn it is; it is not among the ready ones then."""
        return self._ready.popitem(last=False)[1]

    def put(self, stream: ServedStream) -> None:
        """Have a stream be served, after all that wait already."""
        self._idle_at[stream.vbucket] = _NOWHERE
        self._ready.setdefault(stream.vbucket, stream)

    def rest(self, stream: ServedStream) -> None:
        """Leave a stream alone until there is something behind its cursor."""
        self._idle_at[stream.vbucket] = stream.cursor

    def forget(self, stream: ServedStream) -> None:
        """A stream has ended."""
        self._idle_at[stream.vbucket] = _NOWHERE
        self._ready.pop(stream.vbucket, None)
