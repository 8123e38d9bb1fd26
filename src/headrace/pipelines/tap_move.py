"""Moving a vbucket off an old server: the takeover of tap.md, carried by a mediator to a server that takes TAP.

    source   active ------------------------------> dead --VBUCKET_SET active--> closes the connection
    target   anew, replica --pending--items--------------------------> active, on disk: acknowledged

What `headrace.pipelines.move` says of owners holds here: after every failure, and before it begins, `TapMove` makes
sure that there is one. Three things are other than with DCP:

- The target gets the vbucket from nothing each time: TAP cannot go on where a copy stands.
- An old server makes the vbucket dead in memory first and on disk soon after. One that is killed in between comes back
  as an owner, while the target has become one. Then the target is right, and the source is made dead; a later run knows
  that it was so when the target has every item of the source.
- The one run at a time is seen at the target alone, by the name of a connection that does nothing else.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Self

from headrace.client import ConnectionLostError, NotMyVBucketError, ServerAnswerError
from headrace.client.tap_dump import TapDump
from headrace.client.tap_feed import no_checkpoints
from headrace.client.tap_node import TapConnection, TapPart
from headrace.columns import BINARY_KEYS
from headrace.history import State
from headrace.ids import VBucketId
from headrace.pipelines.lines import Line
from headrace.pipelines.move import ATTEMPTS_MAX, IDLE_S_MAX, LEFTOVER_S, PAUSE_S, Move, Step, named
from headrace.pipelines.replicate import STEP_S, RefusedError
from headrace.pipelines.servers import Vbuckets
from headrace.pipelines.tap_relay import TapRelay
from headrace.pipelines.tap_replicate import check_counts
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import GetMeta, GetVBucket, Meta, SetVBucket, TapConnect, VBucketStateReply
from headrace.wire.codes import TapConnectFlag

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from headrace.client import ChangeOptions, KvConnection
    from headrace.pipelines.move import States
    from headrace.pipelines.servers import Server

_FLAGS = (
    TapConnectFlag.BACKFILL
    | TapConnectFlag.LIST_VBUCKETS
    | TapConnectFlag.TAKEOVER_VBUCKETS
    | TapConnectFlag.SUPPORT_ACK
    | TapConnectFlag.CHECKPOINT
    | TapConnectFlag.FIX_BYTEORDER
)


class TapStates:
    """The states of an old server's vbuckets; a context manager that closes its connection."""

    def __init__(self, options: ChangeOptions) -> None:
        self._connection = TapConnection(options.seeds[0], options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def state(self, vb: int) -> State | None:
        """The state of a vbucket; None where the server has no such one."""
        asked = f"the state of vbucket {vb} at {self._connection.address}"
        try:
            reply = self._connection.request(GetVBucket(vbucket=VBucketId(vb)), asked=asked)
        except NotMyVBucketError:
            return None
        assert isinstance(reply, VBucketStateReply)
        return State(reply.state)

    def set_state(self, vb: int, state: State) -> None:
        """Put a vbucket in a state."""
        asked = f"vbucket {vb} := {state.name.lower()} at {self._connection.address}"
        self._connection.request(SetVBucket(vbucket=VBucketId(vb), state=state), asked=asked)

    def items(self, vb: int) -> int | None:
        """How many items a vbucket has, in whatever state; None where the server does not tell."""
        found = (self._connection.held() or {}).get(vb)
        return None if found is None else found.num_items

    def high_seqno(self, vb: int) -> str | None:
        """How far a vbucket is, in whatever state; None where the server does not tell."""
        return self._connection.statistics(f"vbucket-seqno {vb}").get(f"vb_{vb}:high_seqno")


class TapMove(Move):
    """One move of one vbucket off an old server; `run` may be called again after any end of it."""

    def __init__(
        self,
        source: ChangeOptions,
        target: Server,
        vb: int,
        *,
        force: bool = False,
        tell: Callable[[Step, str], None] = lambda _step, _text: None,
    ) -> None:
        address = source.seeds[0]
        options = dataclasses.replace(source, vbuckets=(vb,), keys=BINARY_KEYS)
        # Only its name is used of the source as `Move` has it: all that is asked of it goes by TAP's connections.
        super().__init__(dataclasses.replace(target, address=address), target, vb, force=force, tell=tell)
        self._options = options
        self._name = f"headrace-move-tap:{vb}"

    # -- who owns it

    def _check_servers(self) -> None:
        if (self._target.address, self._target.bucket) == (self._options.seeds[0], self._options.bucket):
            raise RefusedError(f"vbucket {self._vb} cannot move from {self._source} to itself")
        check_counts(self._options, self._target)

    def _wait_for_others(self) -> None:
        """One run at a time: wait until the connection of an earlier one is gone from the target."""
        end = time.monotonic() + LEFTOVER_S
        while True:
            with Vbuckets(self._target) as target:
                if self._name not in target.connections():
                    return
            if time.monotonic() > end:
                raise RefusedError(f"vbucket {self._vb} is being moved by another: see {self._name} at {self._target}")
            time.sleep(PAUSE_S)

    def _settle(self) -> bool:
        """Find the owner before the first attempt, and end what an earlier run left half done; True when it moved."""
        with TapStates(self._options) as source, Vbuckets(self._target) as target:
            here, there = source.state(self._vb), target.state(self._vb)
            seqno = target.seqno(self._vb, there)
            items = source.items(self._vb)
        if there is State.ACTIVE and here is not State.ACTIVE:
            if items and not seqno:
                raise RefusedError(
                    f"{self._target} owns vbucket {self._vb}, which never held anything there, and {self._source} has "
                    f"it {named(here)}, with {items} items: it was not moved here"
                )
            return True
        if there is State.ACTIVE and seqno and not self._force:
            return self._is_older()
        if here is State.ACTIVE:
            return False
        if here is State.DEAD and (there is State.PENDING or (there is State.DEAD and self._force)):
            return self._resolve()
        way_out = "see headrace failover"
        if here is State.DEAD and there is State.DEAD:
            way_out = f"if no third server owns it, --force gives it back to {self._source} and moves it"
        raise RefusedError(
            f"neither owns vbucket {self._vb}: it is {named(here)} at {self._source} and {named(there)} at "
            f"{self._target}; {way_out}"
        )

    def _is_older(self) -> bool:
        """Both own it: the source that came back is made dead, if nothing of it is missing at the target."""
        with TapStates(self._options) as source:
            seqno = source.high_seqno(self._vb)
            if seqno is not None and self._target_has_all():
                source.set_state(self._vb, State.DEAD)
                if source.high_seqno(self._vb) == seqno:
                    self._tell(Step.RESOLVED, f"{self._target} owns vbucket {self._vb}; it is dead at {self._source}")
                    return True
                source.set_state(self._vb, State.ACTIVE)  # it was written to, meanwhile
        raise RefusedError(
            f"{self._target} owns vbucket {self._vb} already, with changes of its own, and so does {self._source}"
        )

    def _target_has_all(self) -> bool:
        """Whether the target has each item of the source, in that version or a later one."""
        part = TapPart(self._options.seeds[0], (self._vb,))
        for attempt in range(ATTEMPTS_MAX):
            try:
                with self._target.connect() as items, TapDump(self._options, part) as dump:
                    return all(_are_there(items, self._vb, batch) for batch in dump)
            except ConnectionLostError:  # 4.1.2 ends a dump too early now and then
                if attempt == ATTEMPTS_MAX - 1:
                    raise
        return False

    # -- to move it

    def _prepare(self) -> None:
        """Make the vbucket anew at the target."""
        with Vbuckets(self._target) as target:
            state = target.state(self._vb)
            if state is not None:
                target.set_state(self._vb, State.DEAD)
                target.delete(self._vb)
            target.set_state(self._vb, State.REPLICA)
        self._tell(Step.PREPARED, f"vbucket {self._vb} is made anew at {self._target}; it was {named(state)}")

    def _take_over(self, stop: Callable[[], bool]) -> str:
        options = dataclasses.replace(self._options, name=self._name)
        vbuckets = (self._vb,)
        connect = TapConnect(
            flags=_FLAGS,
            name=self._name.encode(),
            backfill_date=0,
            vbuckets=vbuckets,
            checkpoints=no_checkpoints(vbuckets),
        )
        with (
            Line.to_consumer(self._target, self._name) as lock,
            TapConnection(options.seeds[0], options) as source,
        ):
            held = (source.held() or {}).get(self._vb)
            expected = None if held is None or held.num_items is None else vbuckets if held.num_items else ()
            relay = TapRelay(source, self._target, expected=expected, state_sent=self._state_sent)
            self._tell(Step.COPYING, f"vbucket {self._vb} goes from {self._source} to {self._target}")
            try:
                relay.tell_source(encode(connect, Dialect.TAP))
                return self._carry_tap(relay, lock, stop)
            finally:
                relay.close()
                self.result.items += relay.items
                self.result.bytes += relay.total_bytes

    def _state_sent(self, vb: int, state: int, missing: str | None) -> None:
        """Look at a state before it goes to the target: what the source gives up, it has to have sent."""
        step = Step.ACTIVE if state == State.ACTIVE else Step.PENDING
        if step is Step.ACTIVE and missing is not None:
            raise ServerAnswerError(f"{self._source} gives vbucket {vb} up too early: {missing}")
        self._tell(step, f"the target is told to make vbucket {vb} {step}")

    def _carry_tap(self, relay: TapRelay, lock: Line, stop: Callable[[], bool]) -> str:
        moved_at = time.monotonic()
        while not relay.is_over:
            if stop():
                return "interrupted"
            if relay.step(STEP_S):
                moved_at = time.monotonic()
            lock.read()  # it raises when another run has taken the name
            if relay.refusal is not None:
                return f"{self._target} refused 0x{relay.refusal[0]:02x}, status 0x{relay.refusal[1]:02x}"
            if time.monotonic() - moved_at > IDLE_S_MAX:
                return f"nothing moved for {IDLE_S_MAX:g} s"
        return "the source ended the stream"

    # -- after a failure

    def _states_of_source(self) -> AbstractContextManager[States]:
        return TapStates(self._options)

    def _decide(self, source: States, target: Vbuckets) -> bool:
        if target.state(self._vb) is not State.ACTIVE:
            return super()._decide(source, target)
        if source.state(self._vb) is State.ACTIVE:  # it was killed before its disk knew that it had given it up
            source.set_state(self._vb, State.DEAD)
        return True


def _are_there(items: KvConnection, vb: int, batch: pa.RecordBatch) -> bool:
    keys, revs = batch.column("key").to_pylist(), batch.column("rev").to_pylist()
    asked = [GetMeta(vbucket=VBucketId(vb), key=key) for key in keys]
    told = items.ask_all(asked)
    return all(isinstance(each, Meta) and each.rev_seqno >= (rev or 0) for each, rev in zip(told, revs, strict=True))


__all__ = ["TapMove", "TapStates"]
