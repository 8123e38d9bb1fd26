"""What was taken and may still be lost: a server answers from memory, and a crash loses what was not on disk.

A change belongs to a branch of its vbucket's history, and a crash or a failover begins another branch. Answers tell the
branch: a vbucket whose branch is not known yet is written to by commands that are always answered. All that was sent
since it was last known to be on disk is kept here. Then every vbucket is asked how far its branch is:

    the same branch, on disk as far as it was in memory when asked first      done
    the same branch, not so far yet                                           ask again
    another branch                                                            something may be lost: send it all again

What is sent twice does no harm. A server that does not tell branches, as memcached, has no disk to wait for; and of a
user who may write and not ask, what was taken counts as written.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from headrace.client.errors import StatusError, error_of
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.wire.catalogue import Observed, ObserveSeqno, SeqnoPersistence
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.writing_frames import Block
    from headrace.wire import Response

JOURNAL_BYTES_MAX = 64 * 1024 * 1024
"""So much is kept before the disk is waited for."""

_UNASKED = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED, Status.NO_ACCESS})
"""The server does not tell, or not this user."""


class Found(Enum):
    """What an answer said of a vbucket."""

    ON_DISK = "on disk"
    NOT_YET = "not on disk yet"
    OTHER_BRANCH = "on another branch"


class Journal:
    """What was sent since all was on disk, and the branch of each vbucket that took it."""

    def __init__(self, vbuckets: int, *, is_kept: bool) -> None:
        self.is_kept = is_kept
        """Whether the servers tell branches; if not, nothing is kept."""
        self.size_bytes = 0
        self.branches: dict[int, int] = {}
        """The vbuckets whose branch is known: their writes need no answer."""
        self._vbuckets = vbuckets
        self._blocks: list[Block] = []
        self._marks: dict[int, int] = {}
        if not is_kept:
            self._forgo()

    def _forgo(self) -> None:
        self.is_kept = False
        self.branches = dict.fromkeys(range(self._vbuckets), 0)
        self.clear()

    def add(self, block: Block) -> None:
        """Keep what is being sent for the first time."""
        if self.is_kept:
            self._blocks.append(block)
            self.size_bytes += block.size_bytes

    def clear(self) -> None:
        """Forget what is on disk. The branches stay: if one ends later, that shows."""
        self._blocks.clear()
        self._marks.clear()
        self.size_bytes = 0

    def vbuckets(self) -> set[int]:
        """The vbuckets that took something."""
        return {vb for block in self._blocks for vb in block.vbuckets if vb in self.branches}

    def question(self, vbucket: int) -> ObserveSeqno:
        """What to ask of a vbucket."""
        return ObserveSeqno(vbucket=VBucketId(vbucket), vbuuid=VbUuid(self.branches[vbucket]))

    def demand(self, vbucket: int) -> SeqnoPersistence:
        """Ask to be answered when a vbucket is on disk as far as is waited for."""
        return SeqnoPersistence(vbucket=VBucketId(vbucket), seqno=Seqno(self._marks.get(vbucket, 0)))

    def observed(self, vbucket: int, reply: Response) -> Found | StatusError:
        """Take an answer in; an error when it says neither."""
        if isinstance(reply, Observed):
            if reply.vbuuid == self.branches[vbucket] and not reply.format:
                mark = self._marks.setdefault(vbucket, reply.current_seqno)
                return Found.ON_DISK if reply.persisted_seqno >= mark else Found.NOT_YET
            self.branches[vbucket] = reply.vbuuid
            self._marks.pop(vbucket, None)
            return Found.OTHER_BRANCH
        if reply.status == Status.KEY_NOT_FOUND:  # nobody has heard of the branch, and the one of now is not told
            del self.branches[vbucket]
            self._marks.pop(vbucket, None)
            return Found.OTHER_BRANCH
        if reply.status in _UNASKED:
            self._forgo()
            return Found.ON_DISK
        return error_of(f"how much of vbucket {vbucket} is on disk", reply.status)

    def entries(self, vbuckets: set[int]) -> Iterator[tuple[Block, int]]:
        """The rows of some vbuckets, in the order in which they were sent."""
        for block in self._blocks:
            if not block.vbuckets.isdisjoint(vbuckets):
                for place, form in enumerate(block.forms):
                    if place not in block.dead and form.vbucket(block.entry(place).head) in vbuckets:
                        yield block, place


__all__ = ["JOURNAL_BYTES_MAX", "Found", "Journal"]
