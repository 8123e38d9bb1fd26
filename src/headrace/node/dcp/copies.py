"""The vbuckets that take streams in, and the steps of takeovers that wait for the disk.

A vbucket is fed by one stream of the whole node: two would mix two histories. `Copies` are those of one connection;
what all connections of a bucket feed is known to each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from headrace.history import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.ids import Opaque
    from headrace.node.bucket import Bucket
    from headrace.node.flusher import Flusher
    from headrace.node.vbucket import VBucket
    from headrace.protocol.consumer import Stream


@dataclass(slots=True, eq=False)
class Copy:
    """A vbucket that takes a stream in."""

    vb: VBucket
    stream: Stream
    asked_by: Opaque | None
    """What ADD_STREAM is to be answered with; None once it was."""
    state: State
    """What the vbucket was when it was last looked at."""


_FED: WeakKeyDictionary[Bucket, dict[int, Copy]] = WeakKeyDictionary()


def is_fed(bucket: Bucket, vb_id: int) -> bool:
    """Whether some connection feeds a vbucket."""
    return vb_id in _FED.get(bucket, {})


class Copies:
    """The copies of one connection."""

    def __init__(self, bucket: Bucket) -> None:
        self.by_opaque: dict[int, Copy] = {}
        """By the opaque of the stream."""
        self._fed = _FED.setdefault(bucket, {})

    def __iter__(self) -> Iterator[Copy]:
        return iter(list(self.by_opaque.values()))

    def __contains__(self, copy: Copy) -> bool:
        return self.by_opaque.get(copy.stream.opaque) is copy

    def is_fed(self, vb_id: int) -> bool:
        """Whether some connection feeds a vbucket."""
        return vb_id in self._fed

    def add(self, copy: Copy) -> None:
        """Begin to feed a vbucket."""
        self.by_opaque[copy.stream.opaque] = self._fed[copy.vb.id] = copy

    def find(self, opaque: int, vb_id: int) -> Copy | None:
        """The copy that a message belongs to: opaque and vbucket must both be its."""
        copy = self.by_opaque.get(opaque)
        return copy if copy is not None and copy.stream.vbucket == vb_id else None

    def of_vbucket(self, vb_id: int) -> Copy | None:
        """The copy of a vbucket, if this connection feeds it."""
        copy = self._fed.get(vb_id)
        return copy if copy is not None and copy in self else None

    def forget(self, copy: Copy) -> None:
        """Feed a vbucket no more; others may."""
        self.by_opaque.pop(copy.stream.opaque, None)
        if self._fed.get(copy.vb.id) is copy:
            del self._fed[copy.vb.id]


@dataclass(frozen=True, slots=True)
class _Step:
    copy: Copy
    opaque: Opaque
    state: State
    seqno: int


class Steps:
    """Steps of takeovers that were taken in memory, and are answered when the disk has them and all items before."""

    def __init__(self, flusher: Flusher, answer: Callable[[Opaque, bool], None]) -> None:
        self._flusher = flusher
        self._answer = answer
        self._steps: list[_Step] = []

    def wait(self, copy: Copy, opaque: Opaque, state: State) -> None:
        """Answer a step, as soon as that may be."""
        self._steps.append(_Step(copy, opaque, state, copy.vb.whole_seqno))
        self._look()

    def _look(self) -> None:
        """Answer what has come to disk, and look again after the next batch."""
        steps, self._steps = self._steps, []
        for step in steps:
            vb = step.copy.vb
            if vb.state not in {step.state, State.ACTIVE}:  # its manager decided otherwise meanwhile
                self._answer(step.opaque, False)  # noqa: FBT003 - it is not done
            elif vb.state_on_disk in {step.state, State.ACTIVE} and vb.persisted_seqno >= step.seqno:
                self._answer(step.opaque, True)  # noqa: FBT003 - it is done
            else:
                self._steps.append(step)
        if self._steps:
            self._flusher.after.append(self._look)
            self._flusher.hurry()

    def clear(self) -> None:
        """Nobody waits for an answer any more."""
        self._steps = []


__all__ = ["Copies", "Copy", "Steps", "is_fed"]
