"""A stream at its producer: what it has sent, which markers it owes, and the steps of a takeover.

One machine for each stream of a connection. Its table is `STEPS`; what is not in it is refused. A stream that takes
nothing over knows STREAMING and ENDED alone. In a takeover the vbucket changes hands by these steps, each of which
waits for what its input says (capture 10b_takeover_two_servers):

STREAMING   -- nearly so, markers acknowledged ----> OFFERED    "be pending" is sent
OFFERED     -- accepted by the consumer -----------> STOPPING   the vbucket is dead here: no more changes
STOPPING    -- the disk knows that it is dead -----> DRAINING   what is left is sent
DRAINING    -- caught up, markers acknowledged ----> HANDED     "be active" is sent: from here on the consumer decides
HANDED      -- accepted by the consumer -----------> ENDED

Servers do not wait for the disk. Without it, a source that is killed after the consumer became active would start again
as active: two owners. A stream that ends in STOPPING or DRAINING leaves a vbucket that nobody serves; its owner makes
it active again, and may, since "be active" was never sent. A consumer that refuses a step ends the stream.

Markers start where the snapshot before them ended. Servers start later ones at the first seqno that they send; then a
consumer cut behind that first change, and rolled back to it, would miss older changes that the snapshot had replaced.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.errors import LocalProtocolError
from headrace.history import State
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.wire.catalogue import SetVBucketState, SnapshotMarker, StreamEnd
from headrace.wire.codes import SnapshotFlag, StreamFlag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.protocol.requests import Accepted


class Phase(StrEnum):
    """Where a stream stands."""

    STREAMING = "streaming"
    OFFERED = "offered"
    STOPPING = "stopping"
    DRAINING = "draining"
    HANDED = "handed"
    ENDED = "ended"


class Step(StrEnum):
    """What moves a stream on."""

    CAUGHT_UP = "caught up"
    ACCEPTED = "accepted"
    DEAD_ON_DISK = "dead on disk"
    END = "end"


STEPS: Mapping[tuple[Phase, Step], Phase] = MappingProxyType(
    {
        (Phase.STREAMING, Step.CAUGHT_UP): Phase.OFFERED,
        (Phase.OFFERED, Step.ACCEPTED): Phase.STOPPING,
        (Phase.STOPPING, Step.DEAD_ON_DISK): Phase.DRAINING,
        (Phase.DRAINING, Step.CAUGHT_UP): Phase.HANDED,
        (Phase.HANDED, Step.ACCEPTED): Phase.ENDED,
        (Phase.STREAMING, Step.END): Phase.ENDED,
        (Phase.OFFERED, Step.END): Phase.ENDED,
        (Phase.STOPPING, Step.END): Phase.ENDED,
        (Phase.DRAINING, Step.END): Phase.ENDED,
        (Phase.HANDED, Step.END): Phase.ENDED,
    }
)
"""Every legal step. What is not here is refused."""

_SENDS = frozenset({Phase.STREAMING, Phase.DRAINING})
_HELD = frozenset({Phase.STOPPING, Phase.DRAINING})


class ProducerStream:
    """The stream of one vbucket on one connection."""

    __slots__ = (
        "_markers_unacked",
        "_owed_end",
        "_told_memory",
        "cursor",
        "end",
        "flags",
        "last_sent",
        "opaque",
        "phase",
        "snapshot_end",
        "snapshot_start",
        "takes_over",
        "vbucket",
    )

    def __init__(self, vbucket: VBucketId, opaque: Opaque, accepted: Accepted) -> None:
        self.vbucket = vbucket
        self.opaque = opaque
        self.flags = accepted.flags
        self.takes_over = StreamFlag.TAKEOVER in accepted.flags
        """Whether the vbucket is to change hands."""
        self.end = accepted.end
        self.cursor: int = accepted.start
        """Every change up to here was sent, or is not to be."""
        self.last_sent: int = accepted.start
        self.snapshot_start: int = accepted.snapshot.start
        """Where the next marker starts."""
        self.snapshot_end: int = accepted.start
        """Where the snapshot that is being sent ends; the cursor when there is none."""
        # Of the snapshot that the consumer is in the middle of, it was not sent what later changes replaced: before all
        # of these came, it is not whole, whatever this node has on disk or in memory at a time.
        inside = accepted.snapshot.start < accepted.start
        self._owed_end: int = accepted.snapshot.end if inside else accepted.start
        self.phase = Phase.STREAMING
        self._told_memory = False
        self._markers_unacked = 0

    @property
    def sends(self) -> bool:
        """Whether changes may be sent now."""
        return self.phase in _SENDS

    @property
    def in_snapshot(self) -> bool:
        """Whether a marker was sent whose changes are not all sent."""
        return self.cursor < self.snapshot_end

    @property
    def is_done(self) -> bool:
        """Whether the stream has reached its end. A snapshot is sent to its own end (captures 01a, 01c)."""
        return not self.in_snapshot and self.cursor >= self.end

    @property
    def holds_vbucket(self) -> bool:
        """Whether the vbucket is served by nobody because of this stream, and may be served here again."""
        return self.phase in _HELD

    def step(self, step: Step) -> None:
        """Move on, or refuse."""
        phase = STEPS.get((self.phase, step))
        if phase is None:
            raise LocalProtocolError(f"vbucket {self.vbucket}: a stream that is {self.phase} cannot be {step}")
        self.phase = phase

    def begin(self, end: int, *, disk: bool) -> SnapshotMarker:
        """Begin a snapshot that goes on to `end`, and give its marker."""
        assert not self.in_snapshot
        assert end > self.cursor
        if disk:
            flags = SnapshotFlag.DISK
        else:
            flags = SnapshotFlag.MEMORY if self._told_memory else SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT
            self._told_memory = True
            if self.takes_over:
                flags |= SnapshotFlag.ACK
                self._markers_unacked += 1
        start, told_end = self.snapshot_start, max(end, self._owed_end)
        self.snapshot_start, self.snapshot_end = end if end == told_end else start, end
        return SnapshotMarker(
            vbucket=self.vbucket, opaque=self.opaque, start_seqno=Seqno(start), end_seqno=Seqno(told_end), flags=flags
        )

    def sent(self, seqno: int) -> None:
        """Count the changes up to a seqno as sent."""
        self.cursor = self.last_sent = seqno

    def finish_snapshot(self) -> None:
        """All there is of the snapshot was sent."""
        self.cursor = self.snapshot_end

    @property
    def may_hand_over(self) -> bool:
        """Whether the next step of a takeover waits for nothing but being caught up."""
        return self.takes_over and self.sends and not self._markers_unacked and not self.in_snapshot

    @property
    def may_offer(self) -> bool:
        """Whether a takeover has sent a snapshot from memory: under load it never catches up, and need not.

        What is changed meanwhile is sent when the vbucket is dead, and then there is an end of it.
        """
        return self.takes_over and self.phase is Phase.STREAMING and self._told_memory

    def marker_acked(self) -> bool:
        """Take the answer to a marker that asked for one; False when none did."""
        if not self._markers_unacked:
            return False
        self._markers_unacked -= 1
        return True

    def hand_over(self) -> SetVBucketState:
        """Take the step that the consumer has to accept, and give its message."""
        self.step(Step.CAUGHT_UP)
        state = State.PENDING if self.phase is Phase.OFFERED else State.ACTIVE
        return SetVBucketState(vbucket=self.vbucket, opaque=self.opaque, state=state)

    def finish(self, reason: int) -> StreamEnd:
        """End the stream, and give the message that says why."""
        if self.phase is not Phase.ENDED:
            self.step(Step.END)
        return StreamEnd(vbucket=self.vbucket, opaque=self.opaque, reason=reason)
