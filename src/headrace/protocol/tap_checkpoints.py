"""The checkpoints of one vbucket: numbered stretches of its changes, as clients of TAP know them.

A server of that time kept changes in checkpoints and dropped them from memory one by one; a client that came back
named the one at which it wants to go on. Our node keeps changes otherwise. What is kept here is where each of the last
checkpoints began, and that is enough: changes behind a seqno can always be had.

Ids rise, and a checkpoint is closed only when something is in it (capture 08i_tap_registered begins at 2). So an id is
never more than 2 and the seqno, and a table that is begun anew at 2 and the high seqno, after a restart, gives no id a
second meaning. Seqnos do repeat on another branch; ids of later branches carry a part of its UUID.
"""

from __future__ import annotations

from collections import deque

CHANGES_MAX = 5000
"""A checkpoint with so many changes is closed."""
KEPT_MAX = 64
"""How many checkpoints are remembered of a vbucket."""
_FIRST_ID = 2
_BRANCH_SHIFT = 48
_BRANCH_BITS = 0x7FFF


class Checkpoints:
    """The open checkpoint of a vbucket and the last closed ones."""

    def __init__(self, *, vbuuid: int, is_first_branch: bool, high_seqno: int) -> None:
        self.vbuuid = vbuuid
        branch = 0 if is_first_branch else (vbuuid & _BRANCH_BITS) << _BRANCH_SHIFT
        self._began: deque[tuple[int, int]] = deque([(branch + _FIRST_ID + high_seqno, high_seqno)], maxlen=KEPT_MAX)
        """Id, and the seqno behind which it began; the last one is open."""

    @property
    def open(self) -> int:
        """The id of the open checkpoint."""
        return self._began[-1][0]

    @property
    def last_closed(self) -> int:
        """The id of the one before it."""
        return self.open - 1

    def holds(self, *, vbuuid: int, high_seqno: int) -> bool:
        """Whether the table is of this branch, and of no more than it has."""
        return vbuuid == self.vbuuid and self._began[-1][1] <= high_seqno

    def advance(self, high_seqno: int) -> None:
        """Close what has become large."""
        checkpoint, began = self._began[-1]
        while high_seqno - began >= CHANGES_MAX:
            checkpoint, began = checkpoint + 1, began + CHANGES_MAX
            self._began.append((checkpoint, began))

    def create(self, high_seqno: int) -> int:
        """Close the open checkpoint, if it has changes; gives the id of the one that is open then."""
        self.advance(high_seqno)
        checkpoint, began = self._began[-1]
        if high_seqno > began:
            self._began.append((checkpoint + 1, high_seqno))
        return self.open

    def persisted(self, durable_seqno: int) -> int:
        """The last closed checkpoint whose changes are all on disk; the one before all that are known, if none is."""
        known = list(self._began)
        for (checkpoint, _), (_, end) in zip(reversed(known[:-1]), reversed(known[1:]), strict=True):
            if end <= durable_seqno:
                return checkpoint
        return known[0][0] - 1

    def start_of(self, checkpoint: int) -> int | None:
        """The seqno behind which a checkpoint began; None for one that is not known (any more)."""
        return dict(self._began).get(checkpoint)

    def end_of(self, checkpoint: int) -> int | None:
        """The last seqno of a closed checkpoint that is known; None for others."""
        return self.start_of(checkpoint + 1) if self.start_of(checkpoint) is not None else None

    def holding(self, seqno: int) -> int | None:
        """The checkpoint that a change is in; None for one before all that are known."""
        return next((checkpoint for checkpoint, began in reversed(self._began) if began < seqno), None)
