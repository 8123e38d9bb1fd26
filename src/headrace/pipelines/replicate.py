"""Replication: vbuckets of one server kept as replicas at another.

The job is a mediator, as ebucketmigrator was: it makes the source a producer and the target a consumer, tells the
target by ADD_STREAM what to copy, and carries the bytes. Where each vbucket stands is the target's own knowledge, so a
job that is killed and run again goes on where the copies are.

    prepare   vbuckets of the target become replicas, where that loses nothing
    join      lines to both, ADD_STREAM for each vbucket
    carry     until told to stop, or caught up, or a line breaks: then join again, after a pause

A vbucket that cannot be copied any more (promoted at the target, gone at the source) leaves the job, and is told.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.client import ClientError, ServerAnswerError
from headrace.history import State
from headrace.ids import Opaque, VBucketId
from headrace.pipelines.lines import Line, are_one
from headrace.pipelines.older import check_dialect, relay_of
from headrace.pipelines.refusals import RefusedError
from headrace.pipelines.servers import Vbuckets
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import AddStream
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from headrace.pipelines.relay import Relay
    from headrace.pipelines.servers import Server

LOOK_S = 0.5
"""How often both sides are asked how far they are."""
STEP_S = 0.1
PAUSE_S_FIRST, PAUSE_S_MAX = 0.25, 10.0
"""How long to wait before a broken line is made anew."""
AGAIN_S = 1.0
"""How long to wait before a stream that ended, or that another connection still has, is asked for again."""
BUSY_S_MAX = 30.0
"""For how long another connection may hold a vbucket before the job does without it."""
MAKERS_MAX = 16
"""How many connections make replicas at a time."""
_SHOWN_MAX = 8


class Event(StrEnum):
    """What a job tells while it runs."""

    PREPARED = "prepared"
    JOINED = "joined"
    CAUGHT_UP = "caught up"
    LOST = "lost"
    DROPPED = "dropped"


@dataclass(slots=True)
class Progress:
    """How far a job is."""

    vbuckets: int = 0
    items: int = 0
    bytes: int = 0
    behind: int = 0
    """How many seqnos the target misses of what the source had when it was last asked."""
    caught_up: bool = False
    joins: int = 0
    dropped: dict[int, str] = field(default_factory=dict)


class Streams:
    """What a relay tells of the streams of one join, until the job looks at it."""

    def __init__(self, goal: dict[int, int]) -> None:
        self.goal = goal
        self.running: set[int] = set()
        self.answers: list[tuple[int, int]] = []
        self.gone: set[int] = set()
        """Ended by the producer."""
        self.unknown: dict[int, int] = {}
        """Refused by the consumer, with which status."""
        self.snapshot_ends: dict[int, int] = {}
        self._of_opaque: dict[int, int] = {}

    def asked(self, vb: int, opaque: int) -> None:
        """Learn which vbucket an opaque stands for."""
        self._of_opaque[opaque] = vb

    def added(self, opaque: int, status: int) -> None:
        """Keep the answer; the opaque of ADD_STREAM is the vbucket."""
        self.answers.append((opaque, status))

    def marked(self, vb: int, start: int, end: int) -> None:
        """Keep where the snapshot ends that holds the goal: in the middle of a snapshot, nothing is reached.

        A marker that starts within it goes on with it, as when a producer goes back to its disk, or when a stream that
        ended in the middle is had again: then the copy is whole at the new end only.
        """
        known = self.snapshot_ends.get(vb)
        if end >= self.goal.get(vb, 0) and (known is None or start <= known):
            self.snapshot_ends[vb] = end

    def state_sent(self, vb: int, state: int) -> None:
        """A stream that takes nothing over has no states."""

    def ended(self, vb: int, reason: int) -> None:
        """Whatever the reason, the vbucket is asked for again; the answer tells if it can be had."""
        del reason
        self.running.discard(vb)
        self.gone.add(vb)

    def refused(self, opaque: int, opcode: int, status: int) -> None:
        """Keep that the consumer does not take the stream."""
        del opcode
        vb = self._of_opaque.get(opaque)
        if vb is not None and vb in self.running:
            self.unknown[vb] = status

    def reached(self, vb: int, seqno: int) -> bool:
        """Whether a target at this seqno has the goal, in a snapshot that is whole."""
        return vb in self.running and seqno >= self.snapshot_ends.get(vb, self.goal.get(vb, 0))


class Replication:
    """One job."""

    def __init__(
        self,
        source: Server,
        target: Server,
        *,
        vbuckets: Collection[int] | None = None,
        force: bool = False,
        dialect: Dialect = Dialect.DCP,
        tell: Callable[[Event, str], None] = lambda _event, _text: None,
    ) -> None:
        self.progress = Progress()
        self._dialect = dialect
        self._source = source
        self._target = target
        self._wanted = None if vbuckets is None else sorted(vbuckets)
        self._force = force
        self._tell = tell
        self._vbuckets: set[int] = set()
        self._goal: dict[int, int] = {}
        self._again: dict[int, float] = {}
        self._busy_since: dict[int, float] = {}

    def run(self, stop: Callable[[], bool], *, once: bool = False) -> Progress:
        """Copy until told to stop; with `once`, until the target has on disk what the source had at the start."""
        self._prepare()
        keep_joined(
            lambda: self._join(stop, once=once), self.progress, self._tell, lambda: not self._vbuckets or stop()
        )
        return self.progress

    # -- prepare

    def _prepare(self) -> None:
        if self._dialect is not Dialect.DCP:
            check_dialect(self._source, self._target, self._dialect)
        if are_one(self._source, self._target, self._dialect):
            raise RefusedError(f"{self._source} cannot be a replica of itself")
        with Vbuckets(self._source) as source, Vbuckets(self._target) as target:
            check_counts(source, target)
            self._goal = self._chosen(source)
            self._vbuckets = set(self._goal)
            made = self._make_replicas(target)
        self.progress.vbuckets = len(self._vbuckets)
        self._tell(Event.PREPARED, f"{len(self._vbuckets)} vbuckets, {made} of them made replicas at {self._target}")

    def _chosen(self, source: Vbuckets) -> dict[int, int]:
        alive = source.seqnos()
        if self._wanted is None:
            return source.seqnos(State.ACTIVE) or alive
        missing = [vb for vb in self._wanted if vb not in alive]
        if missing:
            raise RefusedError(f"{self._source} has no vbucket {shown(missing)}")
        return {vb: alive[vb] for vb in self._wanted}

    def _make_replicas(self, target: Vbuckets) -> int:
        """Make replicas of what is none, but not of what an owner has written to."""
        of_state = {state: target.seqnos(state) for state in State}
        owned = [vb for vb in sorted(self._vbuckets) if of_state[State.ACTIVE].get(vb, 0)]
        if owned and not self._force:
            raise RefusedError(
                f"{self._target} owns vbucket {shown(owned)} and has changes of its own there, which would be lost: "
                "--force makes replicas of them all the same"
            )
        kept = of_state[State.REPLICA].keys() | of_state[State.PENDING].keys()
        others = sorted(self._vbuckets - kept)
        makers = min(MAKERS_MAX, 1 + len(others) // MAKERS_MAX)
        with ThreadPoolExecutor(makers) as pool:  # each change waits for the disk, and many share one wait
            list(pool.map(self._make_some, [others[first::makers] for first in range(makers)]))
        return len(others)

    def _make_some(self, vbuckets: list[int]) -> None:
        with Vbuckets(self._target) as target:
            for vb in vbuckets:
                target.set_state(vb, State.REPLICA)

    # -- join and carry

    def _join(self, stop: Callable[[], bool], *, once: bool) -> bool:
        """Copy by two new lines; True when the goal is reached and that is enough."""
        name = f"headrace-replicate:{self._source}->{self._target}:{self._target.bucket}:{self._stamp()}"
        streams = Streams(self._goal)
        with (
            Vbuckets(self._source) as source,
            Vbuckets(self._target) as target,
            Line.to_consumer(self._target, name, self._dialect) as consumer,
            Line.to_producer(self._source, name, self._dialect, granted=consumer.features) as producer,
        ):
            relay = relay_of(self._dialect)(producer, consumer, streams)
            relay.tell_consumer(add_streams(sorted(self._vbuckets)))
            self._again.clear()
            self.progress.joins += 1
            self._tell(Event.JOINED, f"{self._source} -> {self._target}, {len(self._vbuckets)} vbuckets")
            looked_at = 0.0
            while self._vbuckets and not stop():
                self._carry(relay)
                self._mind(relay, streams)
                if time.monotonic() - looked_at >= LOOK_S:
                    looked_at = time.monotonic()
                    if self._look(source, target, streams) and once:
                        self._persist(target, streams)
                        return True
        return False

    def _stamp(self) -> str:
        """Tell jobs of different vbuckets apart: the same name twice would close the older connection."""
        return f"{crc32(repr(sorted(self._goal)).encode()):08x}"

    def _carry(self, relay: Relay) -> None:
        items, size = relay.items, relay.total_bytes
        relay.step(STEP_S)
        self.progress.items += relay.items - items
        self.progress.bytes += relay.total_bytes - size

    def _mind(self, relay: Relay, streams: Streams) -> None:
        """See to streams that were answered, ended or refused."""
        now = time.monotonic()
        answers, streams.answers = streams.answers, []
        for vb, status in answers:
            self._added(vb, status, streams, now)
        for vb in streams.gone & self._vbuckets:
            self._again[vb] = now + AGAIN_S
        streams.gone.clear()
        for vb, status in streams.unknown.items():
            if status != Status.KEY_NOT_FOUND:
                raise ServerAnswerError(f"{self._target} refuses changes of vbucket {vb}: {_said(status)}")
            streams.running.discard(vb)
            relay.close_stream(vb)
            self._again[vb] = now + AGAIN_S
        streams.unknown.clear()
        due = [vb for vb, at in self._again.items() if at <= now]
        for vb in due:
            del self._again[vb]
        if due:
            relay.tell_consumer(add_streams(due))

    def _added(self, vb: int, status: int, streams: Streams, now: float) -> None:
        if status == Status.SUCCESS:
            streams.running.add(vb)
            self._busy_since.pop(vb, None)
        elif (
            status in {Status.KEY_EXISTS, Status.TEMPORARY_FAILURE}
            and now - self._busy_since.setdefault(vb, now) < BUSY_S_MAX
        ):
            self._again[vb] = now + AGAIN_S
        else:
            self._vbuckets.discard(vb)
            self.progress.dropped[vb] = _said(status)
            self._tell(Event.DROPPED, f"vbucket {vb} is copied no more: {_said(status)}")

    def _look(self, source: Vbuckets, target: Vbuckets, streams: Streams) -> bool:
        """See how far both are; True once the target has what the source had at the start."""
        wanted, had = source.seqnos(), target.seqnos()
        self.progress.behind = sum(max(0, wanted.get(vb, 0) - had.get(vb, 0)) for vb in self._vbuckets)
        reached = all(streams.reached(vb, had.get(vb, 0)) for vb in self._vbuckets)
        if reached and not self.progress.caught_up:
            self.progress.caught_up = True
            self._tell(Event.CAUGHT_UP, f"{self._target} has what {self._source} had at the start")
        return reached

    def _persist(self, target: Vbuckets, streams: Streams) -> None:
        for vb in sorted(self._vbuckets):
            if self._goal.get(vb):
                # Half of a snapshot on disk is none: a target that starts anew would go back to where it was whole.
                target.persisted(vb, streams.snapshot_ends.get(vb, self._goal[vb]))


def check_counts(source: Vbuckets, target: Vbuckets) -> None:
    """Refuse two buckets in which a key has different vbuckets."""
    if source.count is not None and target.count is not None and source.count != target.count:
        raise RefusedError(
            f"{source.server} has {source.count} vbuckets and {target.server} has {target.count}: "
            "a key would have another vbucket there"
        )


def add_streams(vbuckets: Iterable[int], flags: int = 0) -> bytes:
    """Tell a consumer to ask for vbuckets; the opaque of each message is its vbucket."""
    return b"".join(encode(AddStream(vbucket=VBucketId(vb), opaque=Opaque(vb), flags=flags)) for vb in vbuckets)


def shown(vbuckets: list[int]) -> str:
    """Some of many vbuckets, for a sentence."""
    named = ", ".join(map(str, vbuckets[:_SHOWN_MAX]))
    return named if len(vbuckets) <= _SHOWN_MAX else f"{named} and {len(vbuckets) - _SHOWN_MAX} more"


def _said(status: int) -> str:
    """What a refusal means for people."""
    return f"{_MEANINGS.get(status, 'it was refused')} (status 0x{status:02x})"


_MEANINGS: dict[int, str] = {
    Status.NOT_MY_VBUCKET: "the target owns it, or one of the two has no such vbucket",
    Status.KEY_EXISTS: "another connection copies it",
    Status.ROLLBACK: "the two find no common history",
}


def keep_joined(
    join: Callable[[], bool], progress: Progress, tell: Callable[[Event, str], None], stop: Callable[[], bool]
) -> None:
    """Join until that came to its end, or there is a stop: lines that break are made anew, after a pause."""
    pause_s = PAUSE_S_FIRST
    while not stop():
        before = progress.bytes
        try:
            if join():
                return
        except ClientError as error:
            if not error.retriable and not isinstance(error, ServerAnswerError):
                raise
            tell(Event.LOST, str(error))
            pause_s = PAUSE_S_FIRST if progress.bytes > before else min(2 * pause_s, PAUSE_S_MAX)
            _sleep(pause_s, stop)


def _sleep(seconds: float, stop: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not stop() and time.monotonic() < end:
        time.sleep(STEP_S)


__all__ = ["Event", "Progress", "RefusedError", "Replication", "add_streams", "check_counts", "keep_joined", "shown"]
