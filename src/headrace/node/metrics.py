"""What a node counts and measures, in Prometheus' text format.

Nothing is counted for this page: the tables below name what the node counts for itself and read it when somebody asks,
so a request of a client pays nothing. Going through the vbuckets is what a scrape costs; `observe` does it a bucket at
a time, with clients served in between. Labels are buckets, states and reasons: few, and bounded.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from headrace import __version__
from headrace.history import State
from headrace.node.stats import store_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.node.buckets import OpenBucket
    from headrace.node.services import Services

T = TypeVar("T")
PREFIX = "headrace_node_"
STATE_NAMES = {state: state.name.lower() for state in State}


@dataclass(frozen=True, slots=True)
class Measure(Generic[T]):
    """One metric: its name without the prefix, a sentence, and where its value is. Names in `_total` only rise."""

    name: str
    sentence: str
    read: Callable[[T], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFigures:
    """What going through the vbuckets of a bucket gives."""

    opened: OpenBucket
    items: int
    lag_seqnos: int
    lag_seqnos_max: int
    states: dict[str, int]

    @classmethod
    def of(cls, opened: OpenBucket) -> BucketFigures:
        """Go through the vbuckets of a bucket: some 100 us for 1024 of them."""
        items = lag = lag_max = 0
        states = dict.fromkeys(STATE_NAMES.values(), 0)
        for vb in opened.bucket.vbuckets:
            if vb is not None:
                items += vb.live_items
                states[STATE_NAMES[vb.state]] += 1
                behind = vb.high_seqno - vb.persisted_seqno
                if behind > 0:
                    lag += behind
                    lag_max = max(lag_max, behind)
        return cls(opened=opened, items=items, lag_seqnos=lag, lag_seqnos_max=lag_max, states=states)

    @property
    def name(self) -> str:
        """The bucket's name."""
        return self.opened.bucket.name


def writer_is_up(opened: OpenBucket) -> bool:
    """Whether the process that writes a bucket to disk runs. One that died is replaced with the next batch."""
    pid = opened.bucket.disk.writer.pid
    if pid is None:
        return False
    try:
        # WNOWAIT: to look, not to reap; that is for the writer's own thread to do.
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def requests_served(services: Services) -> int:
    """All requests: of connections that ended, and of those that are there."""
    return services.counts.requests + sum(one.session.requests for one in services.connections)


NODE_MEASURES: tuple[Measure[Services], ...] = (
    Measure("uptime_seconds", "How long the node has been running.", lambda s: time.time() - s.started_at),
    Measure("connections", "Clients that are connected.", lambda s: len(s.connections)),
    Measure("connections_accepted_total", "Connections that were accepted.", lambda s: s.counts.accepted),
    Measure(
        "connections_refused_total",
        "Connections that were turned away since there were too many.",
        lambda s: s.counts.refused_connections,
    ),
    Measure("requests_total", "Requests of all kinds.", requests_served),
    Measure("logins_refused_total", "Logins that failed.", lambda s: s.counts.refused_logins),
    Measure("half_frame_bytes", "What large messages that are coming in hold in memory.", lambda s: s.half_frame_bytes),
)
BUCKET_MEASURES: tuple[Measure[BucketFigures], ...] = (
    Measure("items", "Items, without tombstones.", lambda f: f.items),
    Measure("get_hits_total", "Gets that found an item.", lambda f: f.opened.bucket.counts.get_hits),
    Measure("get_misses_total", "Gets that found none.", lambda f: f.opened.bucket.counts.get_misses),
    Measure("sets_total", "Sets, adds and replaces that stored an item.", lambda f: f.opened.bucket.counts.sets),
    Measure("deletes_total", "Items that were deleted.", lambda f: f.opened.bucket.counts.deletes),
    Measure("expired_total", "Items whose time had come.", lambda f: f.opened.bucket.counts.expired),
    Measure("dirty_bytes", "Changes that wait for the disk.", lambda f: f.opened.bucket.dirty_bytes),
    Measure("flushing_bytes", "Changes that the writer has in hand.", lambda f: f.opened.bucket.flushing_bytes),
    Measure("resident_bytes", "Memory for items that are on disk, too.", lambda f: f.opened.bucket.resident_bytes),
    Measure("flushes_total", "Batches that were brought to disk.", lambda f: f.opened.flusher.flushes),
    Measure("flushed_items_total", "Changes that were brought to disk.", lambda f: f.opened.flusher.items),
    Measure("flush_failures_total", "Batches that the disk refused.", lambda f: f.opened.flusher.failures),
    Measure(
        "disk_trouble",
        "1 while the disk refuses writes and none is acknowledged.",
        lambda f: f.opened.bucket.trouble is not None,
    ),
    Measure("persistence_stopped", "1 while changes are left in memory on demand.", lambda f: f.opened.flusher.stopped),
    Measure("persist_lag_seqnos", "Seqnos that are not on disk yet, over all vbuckets.", lambda f: f.lag_seqnos),
    Measure("persist_lag_seqnos_max", "The same, of the vbucket furthest behind.", lambda f: f.lag_seqnos_max),
    Measure("store_bytes", "Size of the file that holds the items.", lambda f: store_bytes(f.opened)),
    Measure(
        "stream_connections",
        "Connections that were opened for streams.",
        lambda f: len(f.opened.ends) + len(f.opened.taps),
    ),
    Measure("writer_up", "1 while the process that writes to disk runs.", lambda f: writer_is_up(f.opened)),
)
ENDED = (PREFIX + "connections_ended_total", "Connections that the node itself ended.")
STATES = (PREFIX + "vbuckets", "Vbuckets in each state.")
BUILD = (PREFIX + "build", "The version of headrace.")


async def observe(opened: Iterable[OpenBucket]) -> list[BucketFigures]:
    """Look at some buckets, one after another, with the clients served in between."""
    figures = []
    for one in opened:
        figures.append(BucketFigures.of(one))
        await asyncio.sleep(0)
    return figures


def metrics_text(services: Services, figures: list[BucketFigures]) -> bytes:
    """The page that Prometheus scrapes."""
    registry = CollectorRegistry()
    registry.register(_NodeCollector(services, figures))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _NodeCollector:
    """Turns the tables into families of samples."""

    def __init__(self, services: Services, figures: list[BucketFigures]) -> None:
        self._services = services
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry would collect once to learn names that are known to be new."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield InfoMetricFamily(*BUILD, value={"version": __version__})
        for measure in NODE_MEASURES:
            family = _family(PREFIX + measure.name, measure.sentence, [])
            family.add_metric([], float(measure.read(self._services)))
            yield family
        ended = _family(*ENDED, ["reason"])
        for reason, count in self._services.counts.closed_for.items():
            ended.add_metric([reason], count)
        yield ended
        for each in BUCKET_MEASURES:
            family = _family(PREFIX + each.name, each.sentence, ["bucket"])
            for figures in self._figures:
                family.add_metric([figures.name], float(each.read(figures)))
            yield family
        states = _family(*STATES, ["bucket", "state"])
        for figures in self._figures:
            for state, count in figures.states.items():
                states.add_metric([figures.name, state], count)
        yield states


def _family(name: str, sentence: str, labels: list[str]) -> CounterMetricFamily | GaugeMetricFamily:
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), sentence, labels=labels)
    return GaugeMetricFamily(name, sentence, labels=labels)
