"""Changes that wait until every copy of their vbucket has them on disk, so that no failover can take them back.

What happened to a vbucket stays in its order: what comes after a change that waits, waits as well. The bytes that wait
are not acknowledged, so the window bounds them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.events import Batch, StreamStarted
from headrace.client.link import LinkState
from headrace.client.sifting import Mark
from headrace.ids import Seqno, VBucketId
from headrace.protocol.subscription import Phase
from headrace.wire.catalogue import Observed, ObserveSeqno

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.client.address import Address
    from headrace.client.events import Event, RolledBack
    from headrace.client.link import Link
    from headrace.client.nodes import Nodes
    from headrace.protocol.subscription import Subscription
    from headrace.wire.message import Response


def persisted_of(observed: Observed, vbuuid: int) -> Seqno:
    """Give the last seqno of a branch that a copy has on disk; 0 when the copy knows nothing of the branch.

    A copy that left the branch tells where (capture 11_seqnos); what it has after that is of another history.
    """
    if observed.vbuuid == vbuuid:
        return observed.persisted_seqno
    if observed.old_vbuuid == vbuuid and observed.last_seqno is not None:
        return min(observed.persisted_seqno, observed.last_seqno)
    return Seqno(0)


class Held:
    """What waits, of all vbuckets, in the order in which it happened."""

    def __init__(self, vbuckets: int) -> None:
        self._events: deque[Event] = deque()
        self._waiting: dict[VBucketId, int] = {}
        """How many events of a vbucket wait."""
        self._safe = np.full(vbuckets, -1, np.int64)
        self._seen: dict[VBucketId, dict[Address, Seqno]] = {}
        self._handed: dict[VBucketId, Seqno] = {}
        """The last change of each vbucket that was given out, be it taken by now or not."""

    def __bool__(self) -> bool:
        return bool(self._events)

    @property
    def vbuckets(self) -> tuple[VBucketId, ...]:
        """The vbuckets of which something waits."""
        return tuple(self._waiting)

    def add(self, event: Event) -> Iterator[Event]:
        """Take in what happened; gives out what need not wait."""
        if isinstance(event, Batch):
            yield from self._add_batch(event)
        elif isinstance(event, StreamStarted) or event.vbucket not in self._waiting:
            yield event
        else:
            self._keep(event)

    def _add_batch(self, batch: Batch) -> Iterator[Event]:
        if not batch.marks:
            yield batch
            return
        # Only this one may pass: of what waits already, nothing does before a copy tells more.
        stuck = {mark.vbucket for mark in batch.marks if mark.vbucket in self._waiting}
        self._keep(batch)
        self._events.pop()
        safe, rest = self._split(batch, stuck)
        if rest is not None:
            self._events.append(rest)
        if safe is not None:
            yield safe

    def _keep(self, event: Event) -> None:
        self._events.append(event)
        for vbucket in _vbuckets_of(event):
            self._waiting[vbucket] = self._waiting.get(vbucket, 0) + 1

    def observed(self, vbucket: VBucketId, node: Address, seqno: Seqno, copies: tuple[Address, ...]) -> None:
        """A copy has so much on disk; all of `copies` have to."""
        seen = self._seen.setdefault(vbucket, {})
        seen[node] = seqno
        if all(each in seen for each in copies):
            self._safe[vbucket] = min(seen[each] for each in copies)

    def began(self, vbucket: VBucketId) -> None:
        """A stream begins, perhaps on another branch: what was observed counts no more."""
        self._seen.pop(vbucket, None)
        self._safe[vbucket] = -1

    def release(self) -> Iterator[Event]:
        """Give out what is safe now, in order."""
        kept: deque[Event] = deque()
        stuck: set[VBucketId] = set()
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Batch):
                safe, rest = self._split(event, stuck)
                if safe is not None:
                    yield safe
                if rest is not None:
                    kept.append(rest)
                    stuck.update(mark.vbucket for mark in rest.marks)
            elif _vbuckets_of(event)[0] in stuck:
                kept.append(event)
            else:
                self._gone(_vbuckets_of(event)[0])
                yield event
        self._events = kept

    def _split(self, batch: Batch, stuck: set[VBucketId]) -> tuple[Batch | None, Batch | None]:
        ready = [mark for mark in batch.marks if mark.vbucket not in stuck and self._safe[mark.vbucket] >= mark.seqno]
        for mark in ready:
            self._gone(mark.vbucket)
            self._handed[mark.vbucket] = mark.seqno
        if len(ready) == len(batch.marks):
            return batch, None
        if not ready:
            return None, batch
        mask = pc.is_in(batch.rows.column("vbucket"), pa.array([mark.vbucket for mark in ready], pa.int32()))
        rest = [mark for mark in batch.marks if mark not in ready]
        # The bytes count as worked off when the last part of the batch is.
        safe = replace(batch, rows=batch.rows.filter(mask), marks=ready, markers=[], flow_bytes=0)
        return safe, replace(batch, rows=batch.rows.filter(pc.invert(mask)), marks=rest)

    def _gone(self, vbucket: VBucketId) -> None:
        self._waiting[vbucket] -= 1
        if not self._waiting[vbucket]:
            del self._waiting[vbucket]

    def rolled_back(self, event: RolledBack, taken_seqno: Seqno) -> Iterator[Event]:
        """Drop what waits past a rollback. It is told only if something that was handed on is gone as well.

        `taken_seqno` is where the reader's user stands. What was given out may still be on its way there.
        """
        kept: deque[Event] = deque()
        while self._events:
            each = self._events.popleft()
            if event.vbucket not in _vbuckets_of(each):
                kept.append(each)
            elif isinstance(each, Batch):
                kept.append(_cut(each, event.vbucket, event.whole))
            # What ended, or was rolled back, before this: nobody heard of it, and nobody needs to.
        self._events = kept
        self._waiting.pop(event.vbucket, None)
        count = sum(event.vbucket in _vbuckets_of(each) for each in kept)
        if count:
            self._waiting[event.vbucket] = count
        self.began(event.vbucket)
        if self._handed.get(event.vbucket, taken_seqno) > event.whole:
            self._handed[event.vbucket] = event.whole
            yield event
        yield from self.release()


class Observer:
    """Asks the copies how much they have on disk, now and then, while something waits."""

    def __init__(self, held: Held, nodes: Nodes, subscriptions: dict[VBucketId, Subscription], pause_s: float) -> None:
        self.held = held
        self._nodes = nodes
        self._subscriptions = subscriptions
        self._pause_s = pause_s
        self._asked_at = float("-inf")
        self._asking: set[tuple[VBucketId, Link]] = set()
        self.away: dict[VBucketId, tuple[float, Address]] = {}
        """The vbuckets of which something waits for a copy at a node that is not connected: since when, and which."""

    @property
    def deadline(self) -> float | None:
        """When to ask next."""
        return self._asked_at + self._pause_s if self.held and self._nodes.ready() else None

    def ask(self, now: float, released: Callable[[Iterable[Event]], None]) -> None:
        """Ask every copy of the vbuckets of which something waits."""
        cluster = self._nodes.cluster
        if not self.held or cluster is None or now < self._asked_at + self._pause_s:
            return
        self._asked_at = now
        self._asking = {each for each in self._asking if each[1].state is LinkState.READY}
        ready = {link.address for link in self._nodes.ready()}
        missing = {vb: [node for node in cluster.nodes_of(vb) if node not in ready] for vb in self.held.vbuckets}
        self.away = {vb: (self.away.get(vb, (now,))[0], nodes[0]) for vb, nodes in missing.items() if nodes}
        for vbucket in self.held.vbuckets:
            subscription = self._subscriptions[vbucket]
            if subscription.phase not in (Phase.STREAMING, Phase.FINISHED):
                continue  # a rollback may come
            for node in cluster.nodes_of(vbucket):
                link = self._nodes.link_to(node)
                if link is not None and link.state is LinkState.READY and (vbucket, link) not in self._asking:
                    self._ask_one(link, subscription, released)

    def _ask_one(self, link: Link, subscription: Subscription, released: Callable[[Iterable[Event]], None]) -> None:
        vbucket, log = subscription.vbucket, subscription.progress.log
        assert log is not None  # a stream began, or nothing would wait
        vbuuid = log.latest.vbuuid

        def answered(reply: Response) -> None:
            self._asking.discard((vbucket, link))
            cluster = self._nodes.cluster
            if isinstance(reply, Observed) and subscription.progress.log == log and cluster is not None:
                self.held.observed(vbucket, link.address, persisted_of(reply, vbuuid), cluster.nodes_of(vbucket))
                released(self.held.release())
            else:
                self._nodes.map_wanted = True

        self._asking.add((vbucket, link))
        link.ask(ObserveSeqno(vbucket=vbucket, vbuuid=vbuuid), answered)


def _vbuckets_of(event: Event) -> list[VBucketId]:
    return [mark.vbucket for mark in event.marks] if isinstance(event, Batch) else [event.vbucket]


def _cut(batch: Batch, vbucket: VBucketId, after: Seqno) -> Batch:
    """Take away the changes of a vbucket after a seqno."""
    rows = batch.rows
    gone = pc.and_(pc.equal(rows.column("vbucket"), vbucket), pc.greater(rows.column("seqno"), after))
    left = rows.filter(pc.invert(gone))
    marks = [mark for mark in batch.marks if mark.vbucket != vbucket]
    if pc.sum(pc.equal(left.column("vbucket"), vbucket)).as_py():
        marks.append(Mark(vbucket, after, after, after))
    return replace(batch, rows=left, marks=marks)


__all__ = ["Held", "Observer", "persisted_of"]
