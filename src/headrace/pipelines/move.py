"""Moving a vbucket: the takeover of the DCP documents, told and carried by a mediator.

    source   active ------------------------------> dead, on disk --SET_STATE active-->
    target   replica --items--> pending, on disk -----------------------------> active, on disk: answered

No moment has two owners: the source is dead on disk before the target hears that it may be active. A line that breaks
before that makes the source active again by itself. After that the target decides, and whoever resolves it asks the
target first:

    target is active          moved
    source is active          not moved; a target that is pending becomes a replica again
    neither                   the target is made dead first, so that nothing on its way can make it active any more,
                              then pending, which tells the next run what is under way; then the source is made active

`Move` resolves so after every failure, and before it begins, so that running it again is always right. Only where both
are dead it does not, unless it is forced: a vbucket that went on from the target to a third server looks the same, and
it would get a second owner. One run works on a vbucket at a time: the name of its connections is the lock, and stats
tell who has it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from headrace.client import ClientError, NotMyVBucketError
from headrace.errors import HeadraceError
from headrace.history import State
from headrace.pipelines.lines import Line, are_one
from headrace.pipelines.older import relay_of
from headrace.pipelines.replicate import STEP_S, RefusedError, add_streams, check_counts
from headrace.pipelines.servers import Vbuckets
from headrace.wire import Dialect
from headrace.wire.codes import Status, StreamFlag

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from headrace.history import FailoverLog
    from headrace.pipelines.relay import Relay
    from headrace.pipelines.servers import Server

ATTEMPTS_MAX = 3
IDLE_S_MAX = 60.0
"""How long a takeover may stand still: a disk may be slow, a lost peer never says so."""
LEFTOVER_S = 10.0
"""How long the connections of a run that was killed may be seen at the servers."""
RESOLVE_S = 20.0
"""How long a server may be away before the answer is that nobody knows."""
PAUSE_S = 0.25


class States(Protocol):
    """The states of a server's vbuckets, asked and set."""

    def state(self, vb: int) -> State | None:
        """The state of a vbucket; None where the server has no such one."""
        ...

    def set_state(self, vb: int, state: State) -> None:
        """Put a vbucket in a state, making it where it is not."""
        ...


class NotMovedError(HeadraceError):
    """The vbucket is where it was: the source owns it."""


class UnresolvedError(HeadraceError):
    """A server is away, so nobody knows who owns the vbucket; the same command, run again, will find out."""


class Step(StrEnum):
    """What a move tells while it runs."""

    RESOLVED = "resolved"
    PREPARED = "prepared"
    COPYING = "copying"
    PENDING = "pending"
    ACTIVE = "active"
    FAILED = "failed"
    MOVED = "moved"


@dataclass(slots=True)
class Moved:
    """What a move did."""

    vbucket: int
    items: int = 0
    bytes: int = 0
    attempts: int = 0
    already: bool = False
    """The target owned it before the first attempt."""
    vbuuid: int = 0
    seqno: int = 0


class _Takeover:
    """What the relay tells of the one stream."""

    def __init__(self, vb: int, tell: Callable[[Step, str], None]) -> None:
        self._vb = vb
        self._tell = tell
        self.answer: int | None = None
        self.is_over = False
        self.refusal: tuple[int, int] | None = None

    def asked(self, vb: int, opaque: int) -> None:
        """There is but one."""

    def added(self, opaque: int, status: int) -> None:
        """Keep the answer to ADD_STREAM."""
        del opaque
        self.answer = status

    def marked(self, vb: int, start: int, end: int) -> None:
        """How far it is, is not told."""

    def state_sent(self, vb: int, state: int) -> None:
        """Tell which step comes."""
        step = Step.ACTIVE if state == State.ACTIVE else Step.PENDING
        self._tell(step, f"the target is told to make vbucket {vb} {step}")

    def ended(self, vb: int, reason: int) -> None:
        """The producer has said all."""
        del reason
        self.is_over = self.is_over or vb == self._vb

    def refused(self, opaque: int, opcode: int, status: int) -> None:
        """The target does not take it."""
        del opaque
        self.refusal = (opcode, status)


class Move:
    """One move of one vbucket; `run` may be called again after any end of it."""

    def __init__(
        self,
        source: Server,
        target: Server,
        vb: int,
        *,
        force: bool = False,
        dialect: Dialect = Dialect.DCP,
        tell: Callable[[Step, str], None] = lambda _step, _text: None,
    ) -> None:
        self._source = source
        self._target = target
        self._vb = vb
        self._force = force
        self._dialect = dialect
        self._tell = tell
        self._name = f"headrace-move:{vb}"
        self.result = Moved(vbucket=vb)

    def run(self, stop: Callable[[], bool]) -> Moved:
        """Make the target the owner; raise what kept it from being so, with one owner again where that can be."""
        self._check_servers()
        self._wait_for_others()
        if self._settle():
            self.result.already = True
            return self._finish()
        why = "interrupted"
        while self.result.attempts < ATTEMPTS_MAX and not stop():
            self.result.attempts += 1
            try:
                self._prepare()
                why = self._take_over(stop)
            except ClientError as error:
                why = str(error)
            if self._resolve():
                return self._finish()
            self._tell(Step.FAILED, why)
        raise NotMovedError(f"vbucket {self._vb} was not moved, and {self._source} owns it: {why}")

    # -- who owns it

    def _check_servers(self) -> None:
        """Refuse one server under two names, and one where keys have other vbuckets."""
        if are_one(self._source, self._target):
            raise RefusedError(f"vbucket {self._vb} cannot move from {self._source} to itself")
        with Vbuckets(self._source) as source, Vbuckets(self._target) as target:
            check_counts(source, target)

    def _wait_for_others(self) -> None:
        """One run at a time: wait until the connections of an earlier one are gone."""
        end = time.monotonic() + LEFTOVER_S
        while True:
            with Vbuckets(self._source) as source, Vbuckets(self._target) as target:
                held = [str(each.server) for each in (source, target) if self._name in each.connections()]
            if not held:
                return
            if time.monotonic() > end:
                raise RefusedError(f"vbucket {self._vb} is being moved by another: see {self._name} at {held[0]}")
            time.sleep(PAUSE_S)

    def _settle(self) -> bool:
        """Find the owner before the first attempt, and end what an earlier run left half done; True when it moved."""
        with Vbuckets(self._source) as source, Vbuckets(self._target) as target:
            here, there = source.state(self._vb), target.state(self._vb)
            seqno_here, seqno_there = source.seqno(self._vb, here), target.seqno(self._vb, there)
        if there is State.ACTIVE:
            return self._is_settled_at_target(here, seqno_there)
        if here is State.ACTIVE:
            return False
        # What the target has beyond the source, it got as an owner: then the source is not to own it again.
        may_own = here is State.DEAD and seqno_there <= seqno_here
        if may_own and (there is State.PENDING or (there is State.DEAD and self._force)):
            return self._resolve()
        way_out = "see headrace failover"
        if may_own and there is State.DEAD:
            way_out = f"if no third server owns it, --force gives it back to {self._source} and moves it"
        raise RefusedError(
            f"neither owns vbucket {self._vb}: it is {named(here)} at {self._source} "
            f"and {named(there)} at {self._target}; {way_out}"
        )

    def _is_settled_at_target(self, at_source: State | None, seqno: int) -> bool:
        """The target is active: because it was moved there, or because it never was anything else."""
        related = self._are_related()
        if at_source is not State.ACTIVE and related:
            return True
        if at_source is State.ACTIVE and not related and (not seqno or self._force):
            return False
        raise RefusedError(
            f"{self._target} owns vbucket {self._vb} already, with {'changes' if seqno else 'a history'} of its own"
            + ("" if at_source is not State.ACTIVE else f", and so does {self._source}")
        )

    def _are_related(self) -> bool:
        """Whether the target's history goes on from the source's."""
        log = self._log_of(self._source)
        known = self._log_of(self._target)
        return known is not None and log is not None and known.find(log.latest.vbuuid) is not None

    def _log_of(self, server: Server) -> FailoverLog | None:
        with Line.to_producer(server, f"{self._name}:log") as line:
            try:
                return line.failover_log(self._vb)
            except NotMyVBucketError:
                return None

    # -- to move it

    def _prepare(self) -> None:
        with Vbuckets(self._target) as target:
            state = target.state(self._vb)
            if state not in {State.REPLICA, State.PENDING}:
                target.set_state(self._vb, State.REPLICA)
                self._tell(Step.PREPARED, f"vbucket {self._vb} is a replica at {self._target}; it was {named(state)}")

    def _take_over(self, stop: Callable[[], bool]) -> str:
        """Carry a takeover to its end; give in words why it ended, whatever came of it."""
        watched = _Takeover(self._vb, self._tell)
        with (
            Line.to_consumer(self._target, self._name, self._dialect) as consumer,
            Line.to_producer(self._source, self._name, self._dialect, granted=consumer.features) as producer,
        ):
            relay = relay_of(self._dialect)(producer, consumer, watched)
            relay.tell_consumer(add_streams([self._vb], StreamFlag.TAKEOVER))
            self._tell(Step.COPYING, f"vbucket {self._vb} goes from {self._source} to {self._target}")
            try:
                return self._carry(relay, watched, stop)
            finally:
                self.result.items += relay.items
                self.result.bytes += relay.total_bytes

    def _carry(self, relay: Relay, watched: _Takeover, stop: Callable[[], bool]) -> str:
        moved_at = time.monotonic()
        while not watched.is_over:
            if stop():
                return "interrupted"
            if relay.step(STEP_S):
                moved_at = time.monotonic()
            if watched.answer == Status.KEY_EXISTS:
                raise RefusedError(f"another connection copies vbucket {self._vb} to {self._target}: end it first")
            if watched.answer:
                return f"the stream was refused, status 0x{watched.answer:02x}"
            if watched.refusal is not None:
                return f"{self._target} refused 0x{watched.refusal[0]:02x}, status 0x{watched.refusal[1]:02x}"
            if time.monotonic() - moved_at > IDLE_S_MAX:
                return f"nothing moved for {IDLE_S_MAX:g} s"
        return "the source ended the stream"

    def _finish(self) -> Moved:
        log = self._log_of(self._target)
        with Vbuckets(self._target) as target:
            self.result.seqno = target.seqnos(State.ACTIVE).get(self._vb, 0)
        if log is not None:
            self.result.vbuuid = log.latest.vbuuid
        if not self.result.already:
            self._tell(Step.MOVED, f"{self._target} owns vbucket {self._vb}")
        return self.result

    # -- after a failure

    def _resolve(self) -> bool:
        """Make sure that there is one owner; True when it is the target."""
        end = time.monotonic() + RESOLVE_S
        while True:
            try:
                self._wait_for_others()
                with self._states_of_source() as source, Vbuckets(self._target) as target:
                    return self._decide(source, target)
            except (ClientError, RefusedError) as error:
                if time.monotonic() > end or isinstance(error, RefusedError):
                    raise UnresolvedError(
                        f"nobody knows who owns vbucket {self._vb}: {error}. Run the same command again when both "
                        "servers answer"
                    ) from error
                time.sleep(PAUSE_S)

    def _states_of_source(self) -> AbstractContextManager[States]:
        return Vbuckets(self._source)

    def _decide(self, source: States, target: Vbuckets) -> bool:
        vb = self._vb
        state = target.state(vb)
        if state is State.ACTIVE:
            return True
        if source.state(vb) is State.ACTIVE:
            if state is State.PENDING:
                target.set_state(vb, State.REPLICA)
            return False
        if state is not None:
            target.set_state(vb, State.DEAD)
            target.set_state(vb, State.PENDING)
        source.set_state(vb, State.ACTIVE)
        if state is not None:
            target.set_state(vb, State.DEAD)
        self._tell(Step.RESOLVED, f"{self._source} owns vbucket {vb} again; it is dead at {self._target}")
        return False


def named(state: State | None) -> str:
    """A state, for a sentence."""
    return "missing" if state is None else state.name.lower()


__all__ = ["Move", "Moved", "NotMovedError", "States", "Step", "UnresolvedError", "named"]
