"""The progress of queries as Prometheus metrics, and a small server for them.

Numbers come from `ProgressListener.snapshot()` when somebody asks, so that a scrape and the dictionary agree. One
series for a query and a bucket; one for each of 1024 vbuckets only where the listener was told so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from headrace.errors import HeadraceError

try:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError:
    raise HeadraceError("metrics need the package prometheus-client: pip install prometheus-client") from None

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from prometheus_client.core import Metric

    from headrace.spark.progress import ProgressListener


class Shown(NamedTuple):
    """One metric: its name, the field of the snapshot that it is, and what it says."""

    name: str
    field: str
    sentence: str
    is_counter: bool = False


QUERY = (
    Shown("active", "is_active", "1 while the query runs."),
    Shown("batches", "batches", "Micro-batches that are done.", is_counter=True),
    Shown("batch_seconds", "batch_s", "How long the last micro-batch took."),
    Shown("rows_per_second", "rows_per_s", "Rows of the last micro-batch by the time it took."),
    Shown("told_timestamp_seconds", "told_at", "When Spark last told of the query, in seconds of the epoch."),
)
MEASURED = (
    Shown("measured_rows", "rows", "Rows that ran through `measured`.", is_counter=True),
    Shown("measured_bytes", "bytes", "Bytes of their keys and values.", is_counter=True),
    Shown("newest_timestamp_seconds", "newest_changed_at", "When the newest was made, by the clock in its CAS."),
    Shown("newest_age_seconds", "age_s", "How old the newest row of the last batch was when that batch was done."),
)
BUCKET = (
    Shown("rows", "rows", "Rows that were read, without those that tell of a rollback.", is_counter=True),
    Shown("seqnos", "seqnos", "Seqnos that were gone over.", is_counter=True),
    Shown("deduplicated", "deduplicated", "Seqnos that gave no row: replaced, or not asked for.", is_counter=True),
    Shown("rollbacks", "rollbacks", "Vbuckets that were rolled back, each time counted.", is_counter=True),
    Shown("lag_seqnos", "lag_seqnos", "Seqnos that the bucket has and the query has not read, of all vbuckets."),
    Shown("lag_seqnos_max", "lag_seqnos_max", "The same, of the vbucket furthest behind."),
    Shown("lag_seconds", "lag_s", "How long the oldest unread change has been known to be there."),
)
VBUCKET = (
    Shown("vbucket_lag_seqnos", "lag_seqnos", "Seqnos of one vbucket that the query has not read."),
    Shown("vbucket_lag_seconds", "lag_s", "How long the oldest unread change of one vbucket has been known."),
)
PREFIX = "headrace_spark_"


class _Collector(Collector):
    """Makes metrics of a snapshot; the registry asks for them at each scrape."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener

    def collect(self) -> Iterator[Metric]:
        """Give all metrics, with every query and bucket that there is."""
        found = self._listener.snapshot()
        yield from _families(QUERY, ("query",), [((query,), plain) for query, plain in found.items()])
        sums = [((query,), plain["measured"]) for query, plain in found.items() if plain["measured"] is not None]
        yield from _families(MEASURED, ("query",), sums)
        buckets = [((query, name), each) for query, plain in found.items() for name, each in plain["buckets"].items()]
        yield from _families(BUCKET, ("query", "bucket"), buckets)
        if self._listener.per_vbucket:
            rows = [((*of, str(vb)), row) for of, each in buckets for vb, row in each["vbuckets"].items()]
            yield from _families(VBUCKET, ("query", "bucket", "vbucket"), rows)

    def describe(self) -> Iterator[Metric]:
        """Give no names ahead; the registry has no other collector to confuse them with."""
        return iter(())


def _families(
    shown: tuple[Shown, ...], labels: tuple[str, ...], rows: Sequence[tuple[tuple[str, ...], dict[str, Any]]]
) -> Iterator[Metric]:
    for each in shown:
        kind = CounterMetricFamily if each.is_counter else GaugeMetricFamily
        family = kind(f"{PREFIX}{each.name}", each.sentence, labels=labels)
        for values, plain in rows:
            if plain[each.field] is not None:
                family.add_metric(list(values), float(plain[each.field]))
        yield family


def registry_of(listener: ProgressListener) -> CollectorRegistry:
    """Make a registry with this listener's metrics and nothing else."""
    registry = CollectorRegistry()
    registry.register(_Collector(listener))
    return registry


def exposition(listener: ProgressListener) -> str:
    """Give the metrics as text, as Prometheus reads it."""
    return generate_latest(registry_of(listener)).decode()


class MetricsServer:
    """Serves a listener's metrics until it is closed; a context manager."""

    def __init__(self, listener: ProgressListener, *, port: int, host: str) -> None:
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry_of(listener))
        except OSError as error:
            raise HeadraceError(f"metrics cannot be served on {host}:{port}: {error.strerror or error}") from None
        self.host = host
        self.port: int = self._server.server_port

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving; a second time does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["MetricsServer", "exposition", "registry_of"]
