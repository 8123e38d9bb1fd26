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

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.client.cluster_map import ClusterMap
from headrace.client.errors import (
    AuthFailedError,
    ClientError,
    ConnectionLostError,
    NoAccessError,
    ServerAnswerError,
    StatusError,
    error_of,
)
from headrace.client.events import Batch, Event, RolledBack, StreamEnded, StreamStarted
from headrace.client.link import Link, LinkState
from headrace.client.mitigation import Held, Observer
from headrace.client.nodes import Nodes
from headrace.client.options import OnRollback, OptionError
from headrace.client.positions import Positions
from headrace.client.sifting import Mark
from headrace.client.taken import Taken
from headrace.columns import EVENTS, Settings, decode_changes
from headrace.columns import Positions as Inherited
from headrace.columns.schema import SYSTEM
from headrace.errors import HeadraceError, RemoteProtocolError
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.protocol.subscription import Phase, Refusal, Subscription, Where
from headrace.wire.catalogue import (
    CloseStream,
    ErrorReply,
    FailoverLog,
    GetAllVBSeqnos,
    GetFailoverLog,
    Rollback,
    Seqnos,
    SnapshotMarker,
    StreamEnd,
)
from headrace.wire.codes import Status, StreamEndReason, StreamFlag, VBucketState, names_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.address import Address
    from headrace.client.options import ChangeOptions
    from headrace.client.planning import Plan
    from headrace.columns import Beside
    from headrace.wire.message import Response

SYSTEM_EVENT = EVENTS[SYSTEM]

NEEDED_S = 0.25
"""A node of which everything was read keeps its link for so long."""

FIRST_STREAMS = 16
"""So many streams are asked for before all others: their changes come while the others are asked for."""

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


def _is_final(error: HeadraceError, *, opened: bool) -> bool:
    """Whether trying again would bring the same: what a node says while it starts may be otherwise a moment later."""
    if isinstance(error, AuthFailedError | NoAccessError | OptionError | RollbackError | ServerAnswerError):
        return True
    return opened and isinstance(error, StatusError) and not error.retriable


class Follower:
    """The changes of some vbuckets, wherever they are."""

    def __init__(self, options: ChangeOptions, plan: Plan, now: float, *, wants_markers: bool = True) -> None:
        # The kernel may have to be compiled, once for a machine: not while a server waits for an answer.
        decode_changes(b"", Settings(), Inherited())
        self.options = options
        self.wants_markers = wants_markers
        self.events: deque[Event] = deque()
        self.failure: HeadraceError | None = None
        self.nodes = Nodes(options)
        self.taken = Taken()
        self._plan = plan
        self._now = now
        self._subscriptions: dict[VBucketId, Subscription] = {}
        self._unplanned: set[VBucketId] = set()
        self._unplanned_since = now
        self._waiting: set[VBucketId] = set()
        """The vbuckets whose stream is to be asked for, now or after a pause."""
        self._asked_at: dict[VBucketId, Link] = {}
        self._opaques: dict[VBucketId, Opaque] = {}
        """The opaque of each vbucket's last stream request: the end of an older stream may come after it."""
        self._knows_ends: set[Link] = set()
        self._last_error: HeadraceError | None = None
        self._open: deque[Subscription] = deque()
        """What is not finished, for all that is known; what is, stays so."""
        self._needed_by: tuple[object, ...] = ()
        self._needed_at = float("-inf")
        self._needed_nodes: list[Address] = []
        self._observer: Observer | None = None
        self._serial = 0

    # -- what a reader asks

    @property
    def is_done(self) -> bool:
        """Whether everything up to the ends was read and taken."""
        held = self._observer is not None and bool(self._observer.held)
        if self.nodes.cluster is None or self._unplanned or self.events or held:
            return False
        # It is asked after each turn, and a bucket has a thousand vbuckets: each is looked at until it is finished.
        while self._open and self._open[0].phase is Phase.FINISHED:
            self._open.popleft()
        return not self._open

    @property
    def positions(self) -> Positions:
        """Where to go on after what was taken; vbuckets that are not planned yet are as they were given."""
        return Positions(bucket=self.options.bucket, vbuckets={**self._plan.given, **self.taken.positions})

    def again(self, plan: Plan, vbuckets: tuple[int, ...], now: float) -> None:
        """Read something else by the same connections, after what was to be read is done."""
        assert self.is_done, "the last reading is not done"
        self._now = now
        self.options = replace(self.options, vbuckets=vbuckets)
        self.taken = Taken()
        self._plan = plan
        self._subscriptions.clear()
        self._waiting.clear()
        self._open.clear()
        # Servers answer in order: the names are there before the changes of a collection that came meanwhile.
        for link in self.nodes.ready():
            if link.collections is not None:
                link.learn_collections(now)
        if self.nodes.cluster is not None:
            self._begin(len(self.nodes.cluster.copies))
            self._map_answered()

    # -- the shell's side

    def deadline(self) -> float | None:
        """When `tick` has something to do, if nothing comes before."""
        times: list[float | None] = [*self.nodes.deadlines(self._now)]
        ready = (self._subscriptions[vbucket].ready_at for vbucket in self._waiting)
        times += [at for at in ready if at is not None and at > self._now]
        if self._unplanned and self.nodes.ready():
            times.append(self.nodes.map_asked_at + UNPLANNED_PAUSE_S)
        if self._observer is not None:
            times.append(self._observer.deadline)
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: float) -> None:
        """Do what it is time for."""
        self._now = now
        for link in list(self.nodes.links.values()):
            try:
                link.tick(now)
            except HeadraceError as error:
                self.lost(link, error, now)
        if self.failure is not None:
            return
        if self._unplanned and now >= self.nodes.map_asked_at + UNPLANNED_PAUSE_S:
            self.nodes.map_wanted = True
        self.nodes.ask_for_map(now, self._map_answered)
        for link in self.nodes.have(self._needed_now(), set(self._asked_at.values()), self, now):
            self._drop(link)
        self._ask_for_streams()
        if self._observer is not None:
            self._observer.ask(now, self.events.extend)
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
        except RemoteProtocolError as error:
            self.lost(link, ServerAnswerError(f"{link.address}: {error.text}"), now)
        except HeadraceError as error:
            self.lost(link, error, now)
        self._ask_for_streams()

    def lost(self, link: Link, error: HeadraceError, now: float) -> None:
        """A link has no connection, or no more. Its streams are asked for again, after a pause."""
        self._now = now
        if self.nodes.links.get(link.address) is not link:
            return
        opened = link.state is LinkState.READY
        self._drop(link)
        self._last_error = error
        nowhere = self.nodes.pause(link, now, lived_s=link.lived_s(now))
        if nowhere or _is_final(error, opened=opened):
            self._fail(error)

    def _drop(self, link: Link) -> None:
        self.nodes.drop(link)
        self._knows_ends.discard(link)
        for vbucket in [each for each, at in self._asked_at.items() if at is link]:
            del self._asked_at[vbucket]
            self._subscriptions[vbucket].lost(self._now)
            self._waiting.add(vbucket)

    def _fail(self, error: HeadraceError) -> None:
        if self.failure is None:
            self.failure = error
        for link in list(self.nodes.links.values()):
            self._drop(link)

    # -- nodes and plans

    def _needed_now(self) -> list[Address]:
        """Give the nodes that are needed; looked up anew when map, links or plans are others, and now and then."""
        links = tuple((address, link.state) for address, link in self.nodes.links.items())
        by = (self.nodes.cluster, links, len(self._unplanned), len(self._subscriptions), not self._open)
        if by != self._needed_by or self._now >= self._needed_at + NEEDED_S:
            self._needed_nodes = self._needed()
            self._needed_by, self._needed_at = by, self._now
        return self._needed_nodes

    def _needed(self) -> list[Address]:
        """The nodes that hold what is still to be read, or to be observed; and seeds, while the map is wanting."""
        cluster = self.nodes.cluster
        wanted = [vb for vb, each in self._subscriptions.items() if each.phase is not Phase.FINISHED]
        wanted += self._unplanned
        if cluster is None:
            return self.nodes.seeds(wanted)
        found = {node: None for node in map(cluster.node_of, wanted) if node is not None}
        if self._observer is not None:
            for vbucket in (*wanted, *self._observer.held.vbuckets):
                found.update(dict.fromkeys(cluster.nodes_of(vbucket)))
        if wanted:
            found.update(dict.fromkeys(self.nodes.seeds(wanted)))
        return list(found)

    def link_ready(self, link: Link, cluster: ClusterMap, now: float) -> None:
        """Plan and ask for what this node has."""
        self._now = now
        self.nodes.moved.clear()
        first = self.nodes.cluster is None
        self.nodes.take_map(cluster)
        if first:
            self._begin(len(cluster.copies))
        self._learn(link)

    def _begin(self, vbuckets: int) -> None:
        self._unplanned_since = self.nodes.map_asked_at = self._now
        if self.options.mitigate_rollbacks:
            pause_s = self.options.mitigation_interval_s
            self._observer = Observer(Held(vbuckets), self.nodes, self._subscriptions, pause_s)
        self._unplanned = set(self._plan.vbuckets(self.options, vbuckets))
        if not self._plan.asks:
            for vbucket in sorted(self._unplanned):
                self._planned(vbucket, None, None)

    def _map_answered(self) -> None:
        for link in self.nodes.ready() if self._unplanned else ():
            self._learn(link)

    def _learn(self, link: Link) -> None:
        """Ask a node for the seqnos that its vbuckets start or end at, where the plan needs them."""
        if not self._plan.asks:
            self._knows_ends.add(link)
            return
        self._knows_ends.discard(link)
        asked = GetAllVBSeqnos(state=VBucketState.ACTIVE)
        link.ask(asked, lambda reply: self._seqnos_answered(link, reply), now=self._now)

    def _seqnos_answered(self, link: Link, reply: Response) -> None:
        cluster = self.nodes.cluster
        if not isinstance(reply, Seqnos) or cluster is None:
            raise error_of(f"the seqnos of the vbuckets at {link.address}", reply.status)
        self._knows_ends.add(link)
        for row in reply.seqnos:
            vbucket = VBucketId(row.vbucket)
            if vbucket >= len(cluster.copies) or cluster.node_of(vbucket) != link.address:
                continue  # a node that was its owner once, or that knows of no other node, may think that it still is
            if vbucket in self._subscriptions:
                # The end may be gone since: a failover takes away what was not on disk. What is left is the end then.
                if self._plan.until_now and self._subscriptions[vbucket].phase is Phase.WAITING:
                    self._subscriptions[vbucket].bound(row.seqno)
            elif vbucket in self._unplanned:
                self._plan_with(link, vbucket, row.seqno)

    def _plan_with(self, link: Link, vbucket: VBucketId, high: Seqno) -> None:
        if not self._plan.needs_log(vbucket):
            self._planned(vbucket, high, None)
            return

        def answered(reply: Response) -> None:
            if not isinstance(reply, FailoverLog):
                self.nodes.map_wanted = True
            elif vbucket in self._unplanned:
                self._planned(vbucket, high, reply)

        link.ask(GetFailoverLog(vbucket=vbucket), answered)

    def _planned(self, vbucket: VBucketId, high: Seqno | None, log: FailoverLog | None) -> None:
        position, end = self._plan.of(vbucket, high, log)
        self._unplanned.discard(vbucket)
        subscription = self._subscriptions[vbucket] = Subscription(vbucket, position, end_seqno=end)
        self._open.append(subscription)
        self._waiting.add(vbucket)
        self.taken.begin(subscription)

    # -- streams

    def _ask_for_streams(self) -> None:
        cluster = self.nodes.cluster
        if cluster is None or self.failure is not None:
            return
        asked_max = FIRST_STREAMS if not self._asked_at else len(self._subscriptions)
        for vbucket in list(self._waiting):
            if len(self._asked_at) >= asked_max:
                break
            subscription = self._subscriptions[vbucket]
            at = subscription.ready_at
            if at is None:  # its range was read already
                self._waiting.discard(vbucket)
            if at is None or at > self._now or vbucket in self.nodes.moved:
                continue
            link = self.nodes.link_to(cluster.node_of(vbucket))
            if link is not None and link.state is LinkState.READY:
                if link in self._knows_ends:
                    self._ask_for_stream(link, subscription)
            elif link is None:
                subscription.missed(self._now)
                self.nodes.map_wanted = True

    def _ask_for_stream(self, link: Link, subscription: Subscription) -> None:
        self._serial = self._serial % 0x7FFF + 1
        opaque = Opaque(self._serial << 16 | subscription.vbucket)  # gomemcached's way: the low half is the vbucket
        vbucket = subscription.vbucket
        self._asked_at[vbucket] = link
        self._opaques[vbucket] = opaque
        self._waiting.discard(vbucket)
        # Servers older than the flag ignore it, and stream what a dead vbucket has.
        end = self.stream_end_of(subscription)
        link.ask(
            subscription.request(opaque, end=end, flags=StreamFlag.ACTIVE_ONLY, stream_filter=link.stream_filter),
            lambda reply: self._stream_answered(link, subscription, reply),
            opaque=opaque,
            now=self._now,
        )

    def stream_end_of(self, subscription: Subscription) -> Seqno:
        """The end that the server is asked for."""
        return subscription.end_seqno

    def _stream_answered(self, link: Link, subscription: Subscription, reply: Response) -> None:
        vbucket = subscription.vbucket
        if isinstance(reply, FailoverLog):
            after = subscription.progress.seqno
            log = subscription.started(reply.entries)
            link.inherited.forget(vbucket)
            link.inherited.set_vbuuid(vbucket, log.latest.vbuuid)
            link.streams.begin(vbucket, after=after, stop=subscription.end_seqno, log=log)
            if self._observer is not None:
                self._observer.held.began(vbucket)
            self._tell(StreamStarted(vbucket=vbucket, host=str(link.address), log=log))
        elif isinstance(reply, Rollback):
            subscription.told_to_roll_back(reply.seqno)
            link.ask(GetFailoverLog(vbucket=vbucket), lambda log: self._rollback_explained(subscription, log))
        elif isinstance(reply, ErrorReply):
            refusal = subscription.refused(reply.status, self._now)
            del self._asked_at[vbucket]
            self._waiting.add(vbucket)
            if refusal.where is Where.NOWHERE:
                asked = f"{link.address}: vbucket {vbucket} from seqno {subscription.progress.seqno}"
                raise error_of(asked, reply.status, refusal.text.encode())
            self._refused(link, vbucket, refusal)
            if reply.status == Status.NOT_MY_VBUCKET and reply.value:
                self.nodes.moved.discard(vbucket)
                self.nodes.take_map(ClusterMap.parse(reply.value, dialled=link.address))
        else:
            raise ServerAnswerError(f"{link.address}: a stream request was answered by {reply.spec.name}")

    def _rollback_explained(self, subscription: Subscription, reply: Response) -> None:
        vbucket = subscription.vbucket
        del self._asked_at[vbucket]
        self._waiting.add(vbucket)
        if not isinstance(reply, FailoverLog):
            subscription.lost(self._now)
            self.nodes.map_wanted = True
            return
        rolled_back = subscription.roll_back(reply.entries, to_zero=self.options.on_rollback == OnRollback.REBUILD)
        if self.options.on_rollback == OnRollback.FAIL:
            raise RollbackError(rolled_back)
        if self._observer is None:
            self.events.append(rolled_back)
        else:
            self.events.extend(self._observer.held.rolled_back(rolled_back, self.taken.seqno(vbucket)))

    def _refused(self, link: Link, vbucket: VBucketId, refusal: Refusal) -> None:
        text = f"{link.address}: {refusal.text}"
        if refusal.where is Where.NOWHERE:
            raise ServerAnswerError(text)
        if refusal.where is Where.ANEW:
            raise ConnectionLostError(text)
        self._last_error = ConnectionLostError(text)
        if refusal.where is Where.ELSEWHERE:
            self.nodes.map_wanted = True
            self.nodes.moved.add(vbucket)

    def link_changes(self, link: Link, rows: pa.RecordBatch, flow_bytes: int, beside: list[Beside]) -> None:
        """Hand on rows that are in order and within their ends."""
        sifted = link.streams.sift(rows)
        if link.collections is not None and SYSTEM_EVENT in rows.column("event").unique().to_pylist():
            link.learn_collections()
        markers = [each for each in beside if isinstance(each.message, SnapshotMarker)]
        if not sifted.marks and not markers:
            link.worked_off(flow_bytes)
            return
        self._tell(Batch(sifted.rows, sifted.marks, markers, link, flow_bytes))
        for vbucket, seqno, end, whole, before in sifted.marks:
            if self._subscriptions[vbucket].advance(seqno=seqno, end=end, whole=whole, before=before):
                self._finished(link, vbucket, close=end > self._subscriptions[vbucket].end_seqno)

    def _finished(self, link: Link, vbucket: VBucketId, *, close: bool) -> None:
        link.streams.end(vbucket)
        self._asked_at.pop(vbucket, None)
        if close:  # the server would send the rest of the snapshot, which may be everything
            link.ask(CloseStream(vbucket=vbucket), lambda _: None)
        self._tell(StreamEnded(vbucket=vbucket, host=str(link.address), reason="ok", finished=True))

    def link_ended(self, link: Link, message: StreamEnd, now: float) -> None:
        """Go on elsewhere, or here, or be done."""
        self._now = now
        vbucket = message.vbucket
        subscription = self._subscriptions.get(vbucket)
        if subscription is None or self._asked_at.get(vbucket) is not link or subscription.phase is not Phase.STREAMING:
            return  # it was finished, and closed, before
        if message.opaque != self._opaques[vbucket]:
            return
        refusal = subscription.ended(message.reason, now, marked_end=link.inherited.snapshot_end(vbucket))
        link.streams.end(vbucket)
        del self._asked_at[vbucket]
        reason = names_of(StreamEndReason, message.reason) or str(message.reason)
        host, at = str(link.address), subscription.position
        mark = Mark(vbucket, at.seqno, at.snapshot.end, None) if refusal is None else None
        self._tell(StreamEnded(vbucket=vbucket, host=host, reason=reason, finished=refusal is None, mark=mark))
        if refusal is not None:
            self._waiting.add(vbucket)
            self._refused(link, vbucket, refusal)

    def _tell(self, event: Event) -> None:
        if self._observer is None:
            self.events.append(event)
        else:
            self.events.extend(self._observer.held.add(event))

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
        elif self._observer is not None:
            away = [each for each in self._observer.away.items() if self._now > each[1][0] + limit]
            for vbucket, (_, node) in away[:1]:
                waits = f"vbucket {vbucket} has waited {limit:g} s for its copy at {node}, which has to have what is"
                self._fail(ConnectionLostError(f"{waits} given out on disk (mitigate_rollbacks){told}"))


__all__ = ["Follower", "RollbackError"]
