"""Replication from an old server: its TAP stream, carried to a server that takes TAP.

    prepare   the source is asked which vbuckets it has, the target whether it takes them
    join      for each node of the source: TAP_CONNECT there, a plain connection to the target, and the bytes between
    carry     until told to stop, or all is dumped, or a line breaks: then join again, after a pause

The target gives the changes seqnos of its own, so that it is read by DCP as any server; its vbuckets need not be
replicas. What the target holds beside what comes is not touched: items that it got elsewhere stay.

TAP has no positions. The job is a registered client of the source, by a name that stays the same: a server that still
has what such a client missed goes on there, and all others begin anew. What the target has already changes nothing
there. Who is registered is kept in the source's memory until it is deregistered: `forget` does that.
"""

from __future__ import annotations

import dataclasses
import select
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.client.tap_feed import TapWish, registered_name
from headrace.client.tap_intake import prepare_dump
from headrace.client.tap_node import TapConnection, tap_parts
from headrace.history import State
from headrace.pipelines.replicate import STEP_S, Event, Progress, RefusedError, keep_joined, shown
from headrace.pipelines.servers import Vbuckets
from headrace.pipelines.tap_relay import TapRelay
from headrace.wire import Dialect, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client import ChangeOptions
    from headrace.client.tap_node import TapPart
    from headrace.pipelines.servers import Server

NAME = "headrace-replicate"
_TAKING = (State.ACTIVE, State.REPLICA, State.PENDING)


class TapReplication:
    """One job. `source` tells where the old server is, and which of its vbuckets are wanted."""

    def __init__(
        self,
        source: ChangeOptions,
        target: Server,
        *,
        name: str | None = None,
        force: bool = False,
        tell: Callable[[Event, str], None] = lambda _event, _text: None,
    ) -> None:
        self.progress = Progress()
        self.name = name if name is not None else f"{NAME}:{target}:{target.bucket}"
        self._options = source
        self._target = target
        self._force = force
        self._tell = tell

    def run(self, stop: Callable[[], bool], *, once: bool = False) -> Progress:
        """Carry until told to stop; with `once`, until the target has on disk what the source had at the start."""
        self._prepare()
        keep_joined(lambda: self._join(stop, once=once), self.progress, self._tell, stop)
        return self.progress

    def forget(self) -> None:
        """Have the source forget the job's name: it keeps nothing for it any more."""
        for part in tap_parts(self._options):
            with TapConnection(part.node, self._options) as connection:
                connection.deregister(registered_name(self.name, part))

    # -- prepare

    def _prepare(self) -> None:
        if (self._target.address, self._target.bucket) in {
            (each, self._options.bucket) for each in self._options.seeds
        }:
            raise RefusedError(f"{self._target} cannot be a copy of itself")
        parts = tap_parts(self._options)
        vbuckets = sorted(vb for part in parts for vb in part.vbuckets or ())
        check_counts(self._options, self._target)
        with Vbuckets(self._target) as target:
            taken = {vb for state in _TAKING for vb in target.seqnos(state)}
            lacking = [vb for vb in vbuckets if vb not in taken]
            if lacking and not self._force:
                raise RefusedError(
                    f"{self._target} has no vbucket {shown(lacking)}, or has it dead, and takes nothing for it: "
                    "--force makes replicas of them"
                )
            for vb in lacking:
                target.set_state(vb, State.REPLICA)
        self.progress.vbuckets = len(vbuckets)
        nodes = ", ".join(str(part.node) for part in parts)
        self._tell(
            Event.PREPARED, f"{len(vbuckets)} vbuckets of {nodes}, {len(lacking)} made replicas at {self._target}"
        )

    # -- join and carry

    def _join(self, stop: Callable[[], bool], *, once: bool) -> bool:
        """Carry by new lines; True when all was dumped, and that is enough."""
        with ExitStack() as lines:
            relays = []
            for part in tap_parts(self._options):
                relay = self._relay(lines, part, once=once)
                if relay is not None:
                    relays.append(relay)
            self.progress.joins += 1
            self._tell(Event.JOINED, f"{len(relays)} TAP streams to {self._target}")
            while not stop():
                self._carry(relays)
                for relay in relays:
                    self._check(relay)
                whole = all(relay.progress.missing is None for relay in relays)
                if whole and all(relay.is_settled for relay in relays):
                    self._caught_up()
                    if once and all(relay.is_over for relay in relays):
                        return True
        return False

    def _relay(self, lines: ExitStack, part: TapPart, *, once: bool) -> TapRelay | None:
        """Ask a node for its stream, and join it to the target; None for one that has nothing to dump."""
        connection = lines.enter_context(TapConnection(part.node, self._options))
        if once:
            vbuckets, expected = prepare_dump(connection, part)
            if expected is not None and not expected:
                return None
            wish, is_known = TapWish(dump=True), False
        else:
            wish = TapWish(name=self.name)
            is_known = wish.is_known(connection, part)
            vbuckets, expected = part.vbuckets, None if is_known else _with_items(connection, part)
        relay = TapRelay(connection, self._target, expected=expected, ends=once)
        lines.callback(relay.close)
        options = dataclasses.replace(self._options, name=NAME)
        connect = wish.message(options, part, vbuckets, is_known=is_known)
        relay.tell_source(encode(connect, Dialect.TAP))
        return relay

    def _carry(self, relays: list[TapRelay]) -> None:
        items, size = sum(each.items for each in relays), sum(each.total_bytes for each in relays)
        moved = False
        for relay in relays:
            moved |= relay.move()
        if not moved:
            ready = select.poll()
            for relay in relays:
                relay.register(ready)
            ready.poll(int(STEP_S * 1000))
        self.progress.items += sum(each.items for each in relays) - items
        self.progress.bytes += sum(each.total_bytes for each in relays) - size

    def _check(self, relay: TapRelay) -> None:
        if relay.refusal is not None:
            opcode, status = relay.refusal
            raise RefusedError(
                f"{self._target} refuses what {relay.source.address} sends: message 0x{opcode:02x}, "
                f"status 0x{status:02x}; has a vbucket changed its state there?"
            )

    def _caught_up(self) -> None:
        if not self.progress.caught_up:
            self.progress.caught_up = True
            self._tell(Event.CAUGHT_UP, f"{self._target} has what was there at the start")


def check_counts(source: ChangeOptions, target: Server) -> None:
    """Refuse two buckets in which a key has different vbuckets, where both tell how many they have."""
    with TapConnection(source.seeds[0], source) as connection, Vbuckets(target) as other:
        cluster = connection.cluster_map()
        if cluster is not None and other.count is not None and len(cluster.copies) != other.count:
            raise RefusedError(
                f"{connection.address} has {len(cluster.copies)} vbuckets and {target} has {other.count}: "
                "a key would have another vbucket there"
            )


def _with_items(connection: TapConnection, part: TapPart) -> set[int] | None:
    """The vbuckets of a part that have items, where the server tells."""
    held = connection.held()
    if held is None or part.vbuckets is None or any(vb not in held for vb in part.vbuckets):
        return None
    return {vb for vb in part.vbuckets if held[vb].num_items}


__all__ = ["NAME", "TapReplication", "check_counts"]
