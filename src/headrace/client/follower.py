"""Follows the changes of a bucket over all its nodes.

Which connection to have, which stream to ask for where, what to do when one is refused, ends or breaks: that is here.
No socket is, and no clock: a shell moves the bytes and says the time. It does, in a loop:

    tick(now)                    then: connect every link in `to_connect`, close every one in `to_close`
    connected(link, now)         when a connection is there; `lost(link, error, now)` when it is not, or no more
    received(link, n, now)       after n bytes were put into link.room(); then send link.out
    events                       what happened, in order; hand each that was taken to `taken`

until `is_done`, or `failure` is set: then the events are all there will be.

Each vbucket has one `Subscription`, which outlives connections. A vbucket is first planned: where it starts and ends
may have to be asked of its node (`from now`, `until now`). Then its stream is asked for at the node that the map names.
When a stream is not served there, ends for a change of state, or a connection breaks, the map is asked for anew.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING

from headrace.client.cluster_map import ClusterMap
from headrace.client.errors import (
    AuthFailedError,
    ClientError,
    ConnectionLostError,
    NoAccessError,
    ServerAnswerError,
    error_of,
)
from headrace.client.events import Batch, Event, RolledBack, StreamEnded, StreamStarted
from headrace.client.link import Link, LinkState
from headrace.client.options import OnRollback, OptionError
from headrace.client.positions import Positions
from headrace.client.sifting import Mark
from headrace.columns import Positions as Inherited
from headrace.columns import Settings, decode_changes
from headrace.errors import HeadraceError, RemoteProtocolError
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.protocol.subscription import Backoff, Phase, Progress, Refusal, Subscription, Where
from headrace.wire.catalogue import (
    CloseStream,
    ErrorReply,
    FailoverLog,
    GetAllVBSeqnos,
    GetClusterConfig,
    GetFailoverLog,
    Rollback,
    Seqnos,
    SnapshotMarker,
    StreamEnd,
    Text,
)
from headrace.wire.codes import Status, StreamEndReason, VBucketState, names_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.address import Address
    from headrace.client.options import ChangeOptions
    from headrace.client.planning import Plan
    from headrace.columns import Beside
    from headrace.wire.message import Response

MAP_PAUSE_S = 0.2
"""The shortest time between two questions for the cluster map."""


UNPLANNED_PAUSE_S = 1.0
"""How often the map is asked for while a vbucket is at no node that tells its seqno."""


class RollbackError(ClientError):
    """The server's history is not the one that was read, and the reader was told to stop then."""

    def __init__(self, rolled_back: RolledBack) -> None:
        self.rolled_back = rolled_back
        super().__init__(
            f"vbucket {rolled_back.vbucket}: the changes after seqno {rolled_back.whole} are no part of the server's "
            f"history any more ({rolled_back.because}); read on with on_rollback 'event' or 'rebuild'"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Keep what happened when the error travels between processes."""
        return (type(self), (self.rolled_back,))


class Follower:
    """The changes of some vbuckets, wherever they are."""

    def __init__(self, options: ChangeOptions, plan: Plan, now: float) -> None:
        # The kernel may have to be compiled, once for a machine: not while a server waits for an answer.
        decode_changes(b"", Settings(), Inherited())
        self.options = options
        self.events: deque[Event] = deque()
        self.to_connect: list[Link] = []
        self.to_close: list[Link] = []
        self.failure: HeadraceError | None = None
        self.cluster: ClusterMap | None = None
        self._plan = plan
        self._now = now
        self._seeds = list(options.seeds)
        self._links: dict[Address, Link] = {}
        self._pauses: dict[Address, tuple[Backoff, float]] = {}
        self._subscriptions: dict[VBucketId, Subscription] = {}
        self._progress: dict[VBucketId, Progress] = {}
        self._unplanned: set[VBucketId] = set()
        self._waiting: set[VBucketId] = set()
        """The vbuckets whose stream is to be asked for, now or after a pause."""
        self._asked_at: dict[VBucketId, Link] = {}
        self._knows_ends: set[Link] = set()
        self._map_wanted = False
        self._map_asked_at = float("-inf")
        self._unplanned_since = now
        self._last_error: HeadraceError | None = None
        self._serial = 0
        self._name = f"{options.name}-{secrets.token_hex(8)}"

    # -- what a reader asks

    @property
    def is_done(self) -> bool:
        """Whether everything up to the ends was read and taken."""
        if self.cluster is None or self._unplanned or self.events:
            return False
        return all(each.phase is Phase.FINISHED for each in self._subscriptions.values())

    @property
    def positions(self) -> Positions:
        """Where to go on after what was taken; vbuckets that are not planned yet are as they were given."""
        found = dict(self._plan.given)
        found.update({vbucket: progress.position for vbucket, progress in self._progress.items()})
        return Positions(bucket=self.options.bucket, vbuckets=found)

    @property
    def ends(self) -> dict[VBucketId, Seqno]:
        """Where the bounded streams end, as far as it is known."""
        return {vbucket: each.end_seqno for vbucket, each in self._subscriptions.items()}

    def taken(self, event: Event) -> None:
        """An event was handed to whom it is for: positions follow, and the server may send more."""
        if isinstance(event, Batch):
            for mark in event.marks:
                self._advance(mark.vbucket, mark.seqno, mark.end, mark.whole)
            event.link.worked_off(event.flow_bytes)
        else:
            self.told(event)

    def told(self, event: StreamStarted | StreamEnded | RolledBack) -> None:
        """An event that is no batch was handed on."""
        if isinstance(event, StreamStarted):
            self._progress[event.vbucket].begin(event.log)
        elif isinstance(event, RolledBack):
            self._progress[event.vbucket].go_back(event.whole, event.log)
        elif event.mark is not None:
            self._advance(*event.mark)

    def advance(self, vbucket: VBucketId, seqno: Seqno, end: Seqno) -> None:
        """One change of a batch was handed on."""
        self._advance(vbucket, seqno, end, seqno if seqno == end else None)

    def taken_rows(self, batch: Batch) -> None:
        """All changes of a batch were handed on, one by one."""
        self.taken(batch)

    def _advance(self, vbucket: VBucketId, seqno: Seqno, end: Seqno, whole: Seqno | None) -> None:
        stop = self._subscriptions[vbucket].end_seqno
        self._progress[vbucket].advance(seqno=min(seqno, stop), end=end, whole=whole)

    # -- the shell's side

    @property
    def links(self) -> tuple[Link, ...]:
        """Every link there is."""
        return tuple(self._links.values())

    def deadline(self) -> float | None:
        """When `tick` has something to do, if nothing comes before."""
        times = [link.deadline for link in self._links.values()]
        times += [at for address, (_, at) in self._pauses.items() if address not in self._links]
        ready = (self._subscriptions[vbucket].ready_at for vbucket in self._waiting)
        times += [at for at in ready if at is not None and at > self._now]
        if self._map_wanted and any(link.state is LinkState.READY for link in self.links):
            times.append(self._map_asked_at + MAP_PAUSE_S)
        if self._unplanned:
            times.append(self._map_asked_at + UNPLANNED_PAUSE_S)
        return min(times, default=None)

    def tick(self, now: float) -> None:
        """Do what it is time for."""
        self._now = now
        for link in self.links:
            try:
                link.tick(now)
            except HeadraceError as error:
                self.lost(link, error, now)
        self._ask_for_map()
        self._have_links()
        self._ask_for_streams()
        self._give_up()

    def connected(self, link: Link, now: float) -> None:
        """A link has its connection."""
        self._now = now
        link.connected(now)

    def received(self, link: Link, count: int, now: float) -> None:
        """Bytes came, into `link.room()`; an error in them ends the link."""
        self._now = now
        try:
            link.received(count, now)
        except HeadraceError as error:
            self.lost(link, error, now)
        self._ask_for_streams()

    def lost(self, link: Link, error: HeadraceError, now: float) -> None:
        """A link has no connection, or no more. Its streams are asked for again, after a pause."""
        self._now = now
        if self._links.get(link.address) is not link:
            return
        was = link.state
        self._drop(link)
        self._last_error = error
        if isinstance(error, AuthFailedError | NoAccessError | RemoteProtocolError | ServerAnswerError | RollbackError):
            self._fail(error)
            return
        backoff, _ = self._pauses.get(link.address, (Backoff(), 0.0))
        if was is LinkState.READY:
            backoff = Backoff()
        self._pauses[link.address] = backoff, backoff.failed(now)
        self._map_wanted = True
        if self.cluster is None:
            # Nothing ever worked: the next seed, or the error that the last one gave.
            self._seeds.remove(link.address)
            if not self._seeds:
                self._fail(error)

    def _drop(self, link: Link) -> None:
        del self._links[link.address]
        self._knows_ends.discard(link)
        link.close()
        if link in self.to_connect:
            self.to_connect.remove(link)
        self.to_close.append(link)
        for vbucket in [each for each, at in self._asked_at.items() if at is link]:
            del self._asked_at[vbucket]
            self._subscriptions[vbucket].lost(self._now)
            self._waiting.add(vbucket)

    def _fail(self, error: HeadraceError) -> None:
        if self.failure is None:
            self.failure = error
        for link in self.links:
            self._drop(link)

    # -- nodes and their map

    def _have_links(self) -> None:
        """Connect to every node that is needed, and to no other."""
        if self.failure is not None:
            return
        needed = self._needed()
        for address in needed:
            if address not in self._links and self._pauses.get(address, (None, 0.0))[1] <= self._now:
                name = f"{self._name}-{len(self._pauses)}-{self._serial}"
                link = Link(address, self.options, self, name=name, now=self._now)
                self._links[address] = link
                self.to_connect.append(link)
        for link in self.links:
            if self.cluster is not None and link.address not in needed and not self._is_used(link):
                self._drop(link)

    def _is_used(self, link: Link) -> bool:
        return link in self._asked_at.values()

    def _needed(self) -> list[Address]:
        if self.cluster is None:
            return self._seeds[:1]
        wanted = [vb for vb, each in self._subscriptions.items() if each.phase is not Phase.FINISHED]
        nodes = dict.fromkeys(self.cluster.node_of(vbucket) for vbucket in [*wanted, *self._unplanned])
        found = [node for node in nodes if node is not None]
        if (wanted or self._unplanned) and not any(link.state is LinkState.READY for link in self.links):
            found += [seed for seed in self.options.seeds if seed not in found]
        return found

    def link_ready(self, link: Link, cluster: ClusterMap, now: float) -> None:
        """Plan and ask for what this node has."""
        self._now = now
        self._pauses.pop(link.address, None)
        self._take_map(cluster)
        if self.failure is None and self._links.get(link.address) is link:
            self._learn(link)

    def _take_map(self, cluster: ClusterMap) -> None:
        if self.cluster is not None and len(cluster.copies) != len(self.cluster.copies):
            self._fail(
                ServerAnswerError(
                    f"bucket {self.options.bucket} has {len(cluster.copies)} vbuckets now and had "
                    f"{len(self.cluster.copies)}: it is another bucket"
                )
            )
            return
        first = self.cluster is None
        if first or cluster.version >= self.cluster.version:  # type: ignore[union-attr]
            self.cluster = cluster
        if first:
            self._unplanned_since = self._now
            self._map_asked_at = self._now
            try:
                self._unplanned = set(self._plan.vbuckets(self.options, len(cluster.copies)))
            except OptionError as error:
                self._fail(error)
                return
            if not self._plan.asks:
                for vbucket in sorted(self._unplanned):
                    self._planned(vbucket, None, None)

    def _ask_for_map(self) -> None:
        if self._unplanned and self._now >= self._map_asked_at + UNPLANNED_PAUSE_S:
            self._map_wanted = True
        if not self._map_wanted or self._now < self._map_asked_at + MAP_PAUSE_S:
            return
        for link in self.links:
            if link.state is LinkState.READY:
                self._map_wanted = False
                self._map_asked_at = self._now
                link.ask(GetClusterConfig(), lambda reply, link=link: self._map_answered(link, reply))  # type: ignore[misc]
                return

    def _map_answered(self, link: Link, reply: Response) -> None:
        if isinstance(reply, Text) and reply.value:
            self._take_map(ClusterMap.parse(reply.value, dialled=link.address))
        if self._unplanned:
            for each in self.links:
                if each.state is LinkState.READY:
                    self._learn(each)

    # -- plans

    def _learn(self, link: Link) -> None:
        """Ask a node for the seqnos that its vbuckets start or end at, where the plan needs them."""
        if not self._plan.asks:
            self._knows_ends.add(link)
            return
        self._knows_ends.discard(link)
        asked = GetAllVBSeqnos(state=VBucketState.ACTIVE)
        link.ask(asked, lambda reply: self._seqnos_answered(link, reply))

    def _seqnos_answered(self, link: Link, reply: Response) -> None:
        if not isinstance(reply, Seqnos):
            status = reply.status
            raise error_of(f"the seqnos of the vbuckets at {link.address}", status)
        self._knows_ends.add(link)
        assert self.cluster is not None
        for row in reply.seqnos:
            vbucket = VBucketId(row.vbucket)
            if vbucket in self._subscriptions:
                # The end may be gone since: a failover takes away what was not on disk. What is left is the end then.
                if self._plan.until_now and self._subscriptions[vbucket].phase is Phase.WAITING:
                    self._subscriptions[vbucket].bound(row.seqno)
            elif vbucket in self._unplanned and self.cluster.node_of(vbucket) == link.address:
                self._plan_with(link, vbucket, row.seqno)

    def _plan_with(self, link: Link, vbucket: VBucketId, high: Seqno) -> None:
        if not self._plan.needs_log(vbucket):
            self._planned(vbucket, high, None)
            return

        def answered(reply: Response) -> None:
            if isinstance(reply, FailoverLog):
                if vbucket in self._unplanned:
                    self._planned(vbucket, high, reply)
            else:
                self._map_wanted = True

        link.ask(GetFailoverLog(vbucket=vbucket), answered)

    def _planned(self, vbucket: VBucketId, high: Seqno | None, log: FailoverLog | None) -> None:
        position, end = self._plan.of(vbucket, high, log)
        self._unplanned.discard(vbucket)
        self._subscriptions[vbucket] = Subscription(vbucket, position, end_seqno=end)
        self._waiting.add(vbucket)
        self._progress[vbucket] = Progress(position)

    # -- streams

    def _ask_for_streams(self) -> None:
        if self.cluster is None or self.failure is not None:
            return
        for vbucket in list(self._waiting):
            subscription = self._subscriptions[vbucket]
            at = subscription.ready_at
            if at is None:  # its range was read already
                self._waiting.discard(vbucket)
                continue
            if at > self._now:
                continue
            node = self.cluster.node_of(vbucket)
            link = self._links.get(node) if node is not None else None
            if link is not None and link.state is LinkState.READY:
                if link in self._knows_ends:
                    self._ask_for_stream(link, subscription)
            elif link is None:
                subscription.missed(self._now)
                self._map_wanted = True

    def _ask_for_stream(self, link: Link, subscription: Subscription) -> None:
        self._serial = self._serial % 0x7FFF + 1
        opaque = Opaque(self._serial << 16 | subscription.vbucket)  # gomemcached's way: the low half is the vbucket
        vbucket = subscription.vbucket
        self._asked_at[vbucket] = link
        self._waiting.discard(vbucket)
        link.ask(
            subscription.request(opaque),
            lambda reply: self._stream_answered(link, subscription, reply),
            opaque=opaque,
        )

    def _stream_answered(self, link: Link, subscription: Subscription, reply: Response) -> None:
        vbucket = subscription.vbucket
        if isinstance(reply, FailoverLog):
            after = subscription.progress.seqno
            log = subscription.started(reply.entries)
            link.inherited.forget(vbucket)
            link.inherited.set_vbuuid(vbucket, log.latest.vbuuid)
            link.streams.begin(vbucket, after=after, stop=subscription.end_seqno, log=log)
            self.events.append(StreamStarted(vbucket=vbucket, host=str(link.address), log=log))
        elif isinstance(reply, Rollback):
            subscription.told_to_roll_back(reply.seqno)
            link.ask(GetFailoverLog(vbucket=vbucket), lambda log: self._rollback_explained(subscription, log))
        elif isinstance(reply, ErrorReply):
            refusal = subscription.refused(reply.status, self._now)
            del self._asked_at[vbucket]
            self._waiting.add(vbucket)
            if reply.status == Status.NOT_MY_VBUCKET and reply.value:
                self._take_map(ClusterMap.parse(reply.value, dialled=link.address))
            self._refused(link, refusal)
        else:
            raise ServerAnswerError(f"{link.address}: a stream request was answered by {reply.spec.name}")

    def _rollback_explained(self, subscription: Subscription, reply: Response) -> None:
        vbucket = subscription.vbucket
        del self._asked_at[vbucket]
        self._waiting.add(vbucket)
        if not isinstance(reply, FailoverLog):
            subscription.lost(self._now)
            self._map_wanted = True
            return
        rolled_back = subscription.roll_back(reply.entries, to_zero=self.options.on_rollback == OnRollback.REBUILD)
        if self.options.on_rollback == OnRollback.FAIL:
            raise RollbackError(rolled_back)
        self.events.append(rolled_back)

    def _refused(self, link: Link, refusal: Refusal) -> None:
        text = f"{link.address}: {refusal.text}"
        if refusal.where is Where.NOWHERE:
            raise ServerAnswerError(text)
        if refusal.where is Where.ANEW:
            raise ConnectionLostError(text)
        self._last_error = ConnectionLostError(text)
        if refusal.where is Where.ELSEWHERE:
            self._map_wanted = True

    def link_changes(self, link: Link, rows: pa.RecordBatch, flow_bytes: int, beside: list[Beside]) -> None:
        """Hand on rows that are in order and within their ends."""
        sifted = link.streams.sift(rows)
        markers = [each for each in beside if isinstance(each.message, SnapshotMarker)]
        if not sifted.marks and not markers:
            link.worked_off(flow_bytes)
            return
        self.events.append(Batch(sifted.rows, sifted.marks, markers, link, flow_bytes))
        for vbucket, seqno, end, whole in sifted.marks:
            if self._subscriptions[vbucket].advance(seqno=seqno, end=end, whole=whole):
                self._finished(link, vbucket, close=end > self._subscriptions[vbucket].end_seqno)

    def _finished(self, link: Link, vbucket: VBucketId, *, close: bool) -> None:
        link.streams.end(vbucket)
        self._asked_at.pop(vbucket, None)
        if close:  # the server would send the rest of the snapshot, which may be everything
            link.ask(CloseStream(vbucket=vbucket), lambda _: None)
        ended = StreamEnded(vbucket=vbucket, host=str(link.address), reason="ok", finished=True)
        self.events.append(ended)

    def link_ended(self, link: Link, message: StreamEnd, now: float) -> None:
        """Go on elsewhere, or here, or be done."""
        self._now = now
        vbucket = message.vbucket
        subscription = self._subscriptions.get(vbucket)
        if subscription is None or self._asked_at.get(vbucket) is not link or subscription.phase is not Phase.STREAMING:
            return  # it was finished, and closed, before
        refusal = subscription.ended(message.reason, now, marked_end=link.inherited.snapshot_end(vbucket))
        link.streams.end(vbucket)
        del self._asked_at[vbucket]
        reason = names_of(StreamEndReason, message.reason) or str(message.reason)
        host, at = str(link.address), subscription.position
        mark = Mark(vbucket, at.seqno, at.snapshot.end, None) if refusal is None else None
        self.events.append(StreamEnded(vbucket=vbucket, host=host, reason=reason, finished=refusal is None, mark=mark))
        if refusal is not None:
            self._waiting.add(vbucket)
            self._refused(link, refusal)

    def _give_up(self) -> None:
        limit = self.options.give_up_s
        if limit is None or self.failure is not None:
            return
        waiting = [self._subscriptions[vbucket] for vbucket in sorted(self._waiting)]
        stuck = [each for each in waiting if each.failing_s(self._now) > limit]
        told = f"; last: {self._last_error}" if self._last_error else ""
        if self._unplanned and self._now > self._unplanned_since + limit:
            self._fail(
                ConnectionLostError(
                    f"{len(self._unplanned)} vbuckets have had no node for {limit:g} s, the first is vbucket "
                    f"{min(self._unplanned)}{told}"
                )
            )
        elif stuck:
            self._fail(
                ConnectionLostError(
                    f"{len(stuck)} vbuckets cannot be read for {limit:g} s now, the first is vbucket "
                    f"{stuck[0].vbucket} after seqno {stuck[0].progress.seqno}{told}"
                )
            )


__all__ = ["Follower", "RollbackError"]
