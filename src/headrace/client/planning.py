"""Where each vbucket starts and ends.

From the beginning, from now, or from saved positions; for ever, until now, or up to given seqnos. What `now` is has to
be asked of the node that holds the vbucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.client.options import OptionError
from headrace.client.positions import Positions
from headrace.errors import RemoteProtocolError
from headrace.history import SEQNO_MAX, Position, SnapshotRange
from headrace.ids import Seqno, VBucketId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.client.options import ChangeOptions
    from headrace.wire.catalogue import FailoverLog

BEGINNING, NOW = "beginning", "now"

Start = str | Positions
"""`beginning`, `now`, or saved positions."""

Until = str | Mapping[int, int] | None
"""None for ever, `now`, or the last seqno of each vbucket."""


class Plan:
    """What a reader was told about starts and ends."""

    def __init__(self, start: Start = BEGINNING, until: Until = None) -> None:
        if isinstance(start, str) and start not in (BEGINNING, NOW):
            raise OptionError(f"start is {BEGINNING!r}, {NOW!r} or positions, not {start!r}")
        if isinstance(until, str) and until != NOW:
            raise OptionError(f"until is None, {NOW!r} or a seqno for each vbucket, not {until!r}")
        self._from_now = start == NOW
        self.until_now = until == NOW
        self.bucket = start.bucket if isinstance(start, Positions) else None
        self.given: dict[VBucketId, Position] = dict(start.vbuckets) if isinstance(start, Positions) else {}
        self._ends = dict(until) if isinstance(until, Mapping) else None

    @property
    def asks(self) -> bool:
        """Whether a node has to be asked for its seqnos before its streams."""
        return self._from_now or self.until_now

    def vbuckets(self, options: ChangeOptions, count: int) -> Sequence[VBucketId]:
        """The vbuckets to read, of a bucket that has so many."""
        if self.bucket is not None and self.bucket != options.bucket:
            raise OptionError(f"the positions are of bucket {self.bucket}, not of {options.bucket}")
        wanted = range(count) if options.vbuckets is None else sorted(set(options.vbuckets))
        outside = [each for each in [*wanted, *self.given, *(self._ends or ())] if not 0 <= each < count]
        if outside:
            raise OptionError(f"there is no vbucket {outside[0]}: bucket {options.bucket} has 0 to {count - 1}")
        endless = [each for each in wanted if self._ends is not None and each not in self._ends]
        if endless:
            raise OptionError(f"no end was given for vbucket {endless[0]}")
        return [VBucketId(each) for each in wanted]

    def needs_log(self, vbucket: VBucketId) -> bool:
        """Whether the vbucket starts at a seqno that needs its branch."""
        return self._from_now and vbucket not in self.given

    def of(self, vbucket: VBucketId, high: Seqno | None, log: FailoverLog | None) -> tuple[Position, Seqno]:
        """Where a vbucket starts, and its end."""
        position = self.given.get(vbucket, Position.beginning())
        if log is not None and high:
            if not log.entries:
                raise RemoteProtocolError(f"vbucket {vbucket}: an empty failover log")
            position = Position(vbuuid=log.entries[0].vbuuid, seqno=high, snapshot=SnapshotRange.at(high))
        if self.until_now:
            assert high is not None
            return position, high
        return position, SEQNO_MAX if self._ends is None else Seqno(self._ends[vbucket])


__all__ = ["BEGINNING", "NOW", "Plan", "Start", "Until"]
