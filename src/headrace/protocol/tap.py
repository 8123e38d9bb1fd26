"""A TAP connection as the side sees it that sends: what was asked for, in which order things come, who stands where.

A connection goes through a script once: it says what it understands, names the vbuckets, sends their items vbucket by
vbucket and says of each that its old items are over (captures 08a_tap_flags0, 08f_tap_ack). From then on changes come
as they are made. A vbucket that joins later adds its own lines to the script.

Each vbucket has a stream, whose machine is `STEPS`:

    backfilling   its old items are in the script and not all sent
    streaming     changes come as they are made
    stopping      takeover: the vbucket is dead here, and the disk does not know yet
    draining      takeover: what was changed before that is still to be sent
    handed        takeover: the client was told to be active
    ended         nothing more is sent

A client that cannot take a message says so, and what it did not acknowledge is sent again (`tap_acks`): the script
goes back to the first line that it concerns, and streams to the first change (`Script.go_back`, `TapStream.rewind`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import LocalProtocolError
from headrace.history import Resume, ResumeRequest, decide
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.wire.codes import TapConnectFlag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.history import History
    from headrace.wire.catalogue import TapConnect

CLOCK_NS_MIN = 1_262_304_000 * 1_000_000_000
"""A CAS below this, the start of 2010, is no time: it was made up by who wrote the item."""
BEHIND_MAX = 1000
"""A takeover stops the vbucket when so few changes are left to send..."""
ROUNDS_MAX = 5
"""... or after so many snapshots of later changes: under load it would never catch up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a client is asked for an ack, and how long it is waited for. The numbers are those of ep-engine."""

    ack_interval: int = 1000
    """Every so many messages one asks for an ack."""
    ack_window: int = 10
    """How many of these intervals may be unacknowledged."""
    ack_grace_s: float = 300.0
    """How long a client may owe an ack before it is left."""
    noop_s: float = 20.0
    """After so long without a message there is a sign of life."""
    pause_s: float = 5.0
    """How long a client is left in peace that could not take a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a client asked for when it connected."""

    flags: TapConnectFlag = TapConnectFlag(0)
    backfill_date: int | None = None
    """In seconds of the epoch: changes from then on. None for all."""
    vbuckets: tuple[int, ...] = ()
    """Only these; none for all."""
    checkpoints: Mapping[int, int] = field(default_factory=dict)
    """By vbucket, the checkpoint at which the client wants to go on."""

    @classmethod
    def of(cls, request: TapConnect) -> Wish:
        """What a request asks for; a checkpoint 0 names none."""
        return cls(
            flags=TapConnectFlag(request.flags or 0),
            backfill_date=request.backfill_date,
            vbuckets=tuple(dict.fromkeys(request.vbuckets or ())),
            checkpoints={one.vbucket: one.checkpoint for one in request.checkpoints or () if one.checkpoint},
        )

    def has(self, flag: TapConnectFlag) -> bool:
        """Whether a flag is set."""
        return bool(self.flags & flag)

    @property
    def is_dump(self) -> bool:
        """Whether nothing but old items is wanted. A takeover ends by itself."""
        return self.has(TapConnectFlag.DUMP) and not self.has(TapConnectFlag.TAKEOVER_VBUCKETS)

    @property
    def is_registered(self) -> bool:
        """Whether the server is to remember the client. A dump has nothing to go on with."""
        return self.has(TapConnectFlag.REGISTERED_CLIENT) and not self.is_dump

    def backfills(self, now_s: int) -> bool:
        """Whether old items are wanted: they are, unless a date is given that is yet to come."""
        return self.backfill_date is None or self.backfill_date <= now_s

    def since_ns(self, now_s: int) -> int:
        """What was changed before this time need not be sent; 0 when all is to be."""
        return (self.backfill_date or 0) * 1_000_000_000 if self.backfills(now_s) else 0


def is_older(cas: int, since_ns: int) -> bool:
    """Whether an item was surely changed before a time: by its CAS, where that comes from a clock."""
    return CLOCK_NS_MIN <= cas < since_ns


class Reached(NamedTuple):
    """How far a client is with a vbucket: the branch, the seqno, and where the changes end that it is in the middle of.

    Before that end it lacks what was changed once more up to there: it was sent the later version alone, or will be.
    """

    vbuuid: int
    seqno: int
    whole_at: int


def goes_on(history: History, reached: Reached) -> bool:
    """Whether a client that is so far with a vbucket has nothing wrong, and misses nothing behind it."""
    at, end = Seqno(reached.seqno), Seqno(max(reached.seqno, reached.whole_at))
    start = at if at == end else Seqno(max(at - 1, 0))
    request = ResumeRequest(vbuuid=VbUuid(reached.vbuuid), start_seqno=at, snapshot_start=start, snapshot_end=end)
    return isinstance(decide(request, history), Resume)


# ---------------------------------------------------------------------------------------------------------- the script


class Kind(StrEnum):
    """What is sent, as the script and the log of unacknowledged messages know it."""

    ACKS = "acks are understood"
    CHECKPOINTS = "checkpoints are understood"
    PENDING = "be pending"
    INITIAL = "old items begin"
    ITEMS = "items"
    CLOSE = "old items are over"
    CHECKPOINT_START = "a checkpoint begins"
    CHECKPOINT_END = "a checkpoint ends"
    FLUSH = "all items are gone"
    ACTIVE = "be active"


class Cue(NamedTuple):
    """One thing to send, or that was sent: what, of which vbucket, which number goes with it.

    `place` is its line in the script, and -1 for what is not in it. The number is the id of a checkpoint, or the seqno
    up to which a vbucket is told when its old items are over. `stream` tells one stream of a vbucket from a later one
    on the same connection, in what was sent.
    """

    kind: Kind
    vbucket: VBucketId = VBucketId(0)
    number: int = 0
    place: int = -1
    stream: int = 0


class Script:
    """What a connection sends before changes come as they are made, in its order."""

    def __init__(self) -> None:
        self._cues: list[Cue | None] = []
        self._at = 0

    @property
    def now(self) -> Cue | None:
        """What is to be sent now; None when the script is at its end."""
        while self._at < len(self._cues):
            cue = self._cues[self._at]
            if cue is not None:
                return cue
            self._at += 1
        return None

    def begin(self, *kinds: Kind) -> None:
        """Add what concerns the connection as a whole."""
        self._add((kind, VBucketId(0)) for kind in kinds)

    def backfill(self, vbuckets: Iterable[VBucketId], *, pending: Iterable[VBucketId] = ()) -> None:
        """Add the old items of some vbuckets: all are named first, and closed last."""
        named = tuple(vbuckets)
        self._add((Kind.PENDING, vb) for vb in pending)
        for kind in (Kind.INITIAL, Kind.ITEMS, Kind.CLOSE):
            self._add((kind, vb) for vb in named)

    def _add(self, cues: Iterable[tuple[Kind, VBucketId]]) -> None:
        for kind, vb in cues:
            self._cues.append(Cue(kind, vb, place=len(self._cues)))

    def done(self) -> None:
        """What was to be sent now was sent."""
        self._at += 1

    def go_back(self, place: int) -> None:
        """Go on from a line on which the client could not take something."""
        self._at = min(self._at, place)

    def drop(self, vbucket: int) -> None:
        """A vbucket is gone: nothing of it is sent any more."""
        self._cues = [
            None if one is not None and one.vbucket == vbucket and one.kind in _OF_A_VBUCKET else one
            for one in self._cues
        ]

    def forget(self) -> None:
        """Forget what was sent and acknowledged, at the end."""
        if self.now is None:
            self._cues, self._at = [], 0


_OF_A_VBUCKET = frozenset({Kind.PENDING, Kind.INITIAL, Kind.ITEMS, Kind.CLOSE})


# ----------------------------------------------------------------------------------------------------------- a vbucket


class Phase(StrEnum):
    """Where a stream stands."""

    BACKFILLING = "backfilling"
    STREAMING = "streaming"
    STOPPING = "stopping"
    DRAINING = "draining"
    HANDED = "handed"
    ENDED = "ended"


class Step(StrEnum):
    """What moves a stream on."""

    BACKFILLED = "backfilled"
    STOP = "stop"
    DEAD_ON_DISK = "dead on disk"
    HAND_OVER = "hand over"
    ACCEPTED = "accepted"
    PUT_OFF = "put off"
    END = "end"


STEPS: Mapping[tuple[Phase, Step], Phase] = MappingProxyType(
    {
        (Phase.BACKFILLING, Step.BACKFILLED): Phase.STREAMING,
        (Phase.STREAMING, Step.BACKFILLED): Phase.STREAMING,  # said once more
        (Phase.STREAMING, Step.STOP): Phase.STOPPING,
        (Phase.STOPPING, Step.BACKFILLED): Phase.STOPPING,
        (Phase.STOPPING, Step.DEAD_ON_DISK): Phase.DRAINING,
        (Phase.DRAINING, Step.BACKFILLED): Phase.DRAINING,
        (Phase.DRAINING, Step.HAND_OVER): Phase.HANDED,
        (Phase.HANDED, Step.ACCEPTED): Phase.ENDED,
        (Phase.HANDED, Step.PUT_OFF): Phase.DRAINING,
        **{(phase, Step.END): Phase.ENDED for phase in Phase if phase is not Phase.ENDED},
    }
)
"""Every legal step. What is not here is refused."""


class TapStream:
    """The stream of one vbucket on one connection."""

    __slots__ = (
        "_rounds",
        "backfill_end",
        "checkpoint",
        "cursor",
        "phase",
        "snapshot_end",
        "takes_over",
        "vbucket",
        "whole_at",
    )

    def __init__(
        self, vbucket: VBucketId, *, cursor: int, backfill_end: int | None = None, takes_over: bool = False
    ) -> None:
        self.vbucket = vbucket
        self.cursor = cursor
        """Every change up to here was sent, or is not to be."""
        self.backfill_end = cursor if backfill_end is None else backfill_end
        """Where old items end."""
        self.snapshot_end = cursor
        """Where the changes end that are being sent; the cursor when there are none."""
        self.whole_at = cursor
        """The end of all changes that were ever begun: before it, the client lacks what was changed once more."""
        self.phase = Phase.STREAMING if backfill_end is None else Phase.BACKFILLING
        self.takes_over = takes_over
        self.checkpoint: int | None = None
        """The checkpoint that the client was told to be in."""
        self._rounds = 0

    @property
    def in_snapshot(self) -> bool:
        """Whether some changes were begun and are not all sent."""
        return self.cursor < self.snapshot_end

    @property
    def is_backfilled(self) -> bool:
        """Whether all old items were sent."""
        return self.cursor >= self.backfill_end and not self.in_snapshot

    @property
    def sends(self) -> bool:
        """Whether changes may be sent as they are made."""
        return self.phase in {Phase.STREAMING, Phase.DRAINING}

    @property
    def holds_vbucket(self) -> bool:
        """Whether the vbucket is served by nobody because of this stream, and may be served here again."""
        return self.phase in {Phase.STOPPING, Phase.DRAINING}

    def step(self, step: Step) -> None:
        """Move on, or refuse."""
        phase = STEPS.get((self.phase, step))
        if phase is None:
            raise LocalProtocolError(f"vbucket {self.vbucket}: a TAP stream that is {self.phase} cannot be {step}")
        self.phase = phase

    def begin(self, end: int) -> None:
        """Begin to send the changes up to a seqno."""
        self.snapshot_end = end
        self.whole_at = max(self.whole_at, end)
        if self.phase is Phase.STREAMING:
            self._rounds += 1

    def sent(self, seqno: int) -> None:
        """Count the changes up to a seqno as sent."""
        self.cursor = seqno

    def finish_snapshot(self) -> None:
        """All there is of the changes that were begun was sent."""
        self.cursor = self.snapshot_end

    def abandon(self) -> None:
        """Leave what was begun: what is left of it comes with what is newer."""
        self.snapshot_end = self.cursor

    def rewind(self, seqno: int) -> None:
        """Send the changes behind a seqno once more."""
        self.cursor = min(self.cursor, seqno)
        self.abandon()

    def may_stop(self, behind: int) -> bool:
        """Whether a takeover may stop the vbucket, with so many changes still to be sent."""
        few = behind <= BEHIND_MAX or self._rounds >= ROUNDS_MAX
        return self.takes_over and self.phase is Phase.STREAMING and not self.in_snapshot and few
