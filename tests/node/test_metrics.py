"""What Prometheus sees of a node, read by its own parser."""

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace import __version__
from headrace.node import Node
from headrace.node.metrics import BUCKET_MEASURES, NODE_MEASURES, PREFIX
from headrace.wire.catalogue import Delete, Get, Set, SetVBucket
from tests.node.talk import Talk, on_loop

TIMEOUT_S = 20
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def node() -> Iterator[Node]:
    """A node of its own for each test: counts are compared."""
    with Node(vbuckets=4, http=0, buckets=("default", "second")) as running:
        yield running


def scrape(node: Node) -> Samples:
    """All samples by name and labels."""
    with urllib.request.urlopen(f"http://{node.host}:{node.http_port}/metrics", timeout=TIMEOUT_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = answer.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            name = (sample.name, frozenset(sample.labels.items()))
            assert name not in found
            found[name] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    """One sample of the node's."""
    return samples[PREFIX + name, frozenset(labels.items())]


def eventually(node: Node, holds: Callable[[Samples], bool]) -> Samples:
    """Scrape until something holds."""
    end = time.monotonic() + TIMEOUT_S
    while not holds(samples := scrape(node)):
        assert time.monotonic() < end, samples
        time.sleep(0.05)
    return samples


def test_every_measure_is_there(node: Node):
    """Each entry of the tables has its samples, one a bucket where it is of buckets; those of the process are there."""
    samples = scrape(node)
    for measure in NODE_MEASURES:
        assert value(samples, measure.name) >= 0
    for each in BUCKET_MEASURES:
        for bucket in ("default", "second"):
            assert value(samples, each.name, bucket=bucket) >= 0
    assert {name for name, _ in samples} >= PROCESS
    assert value(samples, "build_info", version=__version__) == 1
    assert value(samples, "writer_up", bucket="default") == 1
    assert value(samples, "store_bytes", bucket="default") > 0


def test_counts_follow_the_commands(node: Node):
    """What clients do moves the counters of their bucket, and of no other."""
    before = scrape(node)
    with Talk(node) as talk:
        for number in range(5):
            talk.ask(Set(key=b"%d" % number, value=b"x" * 100))
        talk.ask(Get(key=b"0"))
        talk.ask(Get(key=b"none"))
        talk.ask(Delete(key=b"4"))
        during = scrape(node)
        assert value(during, "connections") == 1
    after = eventually(node, lambda samples: value(samples, "persist_lag_seqnos", bucket="default") == 0)
    names = ("sets_total", "get_hits_total", "get_misses_total", "deletes_total", "items")
    moved = {
        bucket: [value(after, name, bucket=bucket) - value(before, name, bucket=bucket) for name in names]
        for bucket in ("default", "second")
    }
    assert moved == {"default": [5, 1, 1, 1, 4], "second": [0] * 5}
    assert value(during, "requests_total") - value(before, "requests_total") == 8
    assert value(during, "connections_accepted_total") - value(before, "connections_accepted_total") == 1
    assert value(after, "flushes_total", bucket="default") > value(before, "flushes_total", bucket="default")
    assert value(after, "flushed_items_total", bucket="default") >= 5
    assert value(after, "resident_bytes", bucket="default") > 0


def test_what_waits_for_the_disk_is_seen(node: Node):
    """With persistence stopped the lag and the bytes that wait grow, and vanish when it goes on."""
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    on_loop(node, opened.flusher.stop_persistence)
    with Talk(node) as talk:
        for number in range(3):
            talk.ask(Set(key=b"%d" % number, value=b"x" * 1000))
    samples = scrape(node)
    assert value(samples, "persistence_stopped", bucket="default") == 1
    assert value(samples, "persist_lag_seqnos", bucket="default") == 3
    assert value(samples, "persist_lag_seqnos_max", bucket="default") == 3
    assert value(samples, "dirty_bytes", bucket="default") > 3000
    on_loop(node, opened.flusher.start_persistence)
    samples = eventually(node, lambda now: value(now, "persist_lag_seqnos", bucket="default") == 0)
    assert value(samples, "persistence_stopped", bucket="default") == 0


def test_states_and_trouble_are_seen(node: Node):
    """Vbuckets are counted by state, and a disk that refuses writes is a 1."""
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    with Talk(node) as talk:
        talk.ask(SetVBucket(state=2))
    on_loop(node, lambda: setattr(opened.bucket, "trouble", "no space"))
    samples = scrape(node)
    states = {state: value(samples, "vbuckets", bucket="default", state=state) for state in ("active", "replica")}
    assert states == {"active": 3, "replica": 1}
    assert value(samples, "disk_trouble", bucket="default") == 1
    assert value(samples, "disk_trouble", bucket="second") == 0
    on_loop(node, lambda: setattr(opened.bucket, "trouble", None))


def test_reasons_are_few(node: Node):
    """Why the node ended a connection is a label, and the same reason is the same label."""
    for _ in range(3):
        with Talk(node) as talk:
            talk.socket.sendall(b"\x99" * 24)
            assert talk.ends()
    samples = scrape(node)
    ended = [count for (name, labels), count in samples.items() if name == PREFIX + "connections_ended_total"]
    assert ended == [3]


def test_a_writer_that_died_is_seen(node: Node):
    """The death of the process that writes is a 0, and the next batch brings a new one."""
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    pid = opened.bucket.disk.writer.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(node, lambda samples: value(samples, "writer_up", bucket="default") == 0)
    with Talk(node) as talk:
        talk.ask(Set(key=b"a", value=b"1"))
    samples = eventually(node, lambda now: value(now, "writer_up", bucket="default") == 1)
    eventually(node, lambda now: value(now, "persist_lag_seqnos", bucket="default") == 0)
    assert value(samples, "writer_up", bucket="second") == 1
