"""Two nodes, and what each has of a vbucket, item by item."""

from __future__ import annotations

import dataclasses
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from headrace.client import Address
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.pipelines.lines import Line
from headrace.pipelines.replicate import Replication
from headrace.pipelines.servers import Server, Vbuckets
from headrace.wire import decode, encode
from headrace.wire.catalogue import (
    Deletion,
    ErrorReply,
    Expiration,
    FailoverLog,
    Mutation,
    SnapshotMarker,
    StreamEnd,
    StreamRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 40.0
_SHOWN = ("cas", "datatype", "by_seqno", "rev_seqno", "flags", "expiry", "delete_time", "value")


def server_at(host: str, port: int, **fields: Any) -> Server:
    """A server by its port."""
    return Server(address=Address(host=host, port=port), timeout_s=20.0, **fields)


def dump(server: Server, vb: int) -> dict[bytes, tuple[Any, ...]]:
    """Every item and tombstone of a vbucket, by its key: what a stream from the beginning shows."""
    with Vbuckets(server) as vbuckets:
        high = vbuckets.seqno(vb, vbuckets.state(vb))
    found: dict[bytes, tuple[Any, ...]] = {}
    with Line.to_producer(server, f"dump:{vb}") as line:
        request = StreamRequest(
            vbucket=VBucketId(vb),
            opaque=Opaque(vb),
            end_seqno=Seqno(high),
            snapshot_start=Seqno(0),
            snapshot_end=Seqno(0),
        )
        line.send(encode(request))
        while True:
            message = decode(line.next_frame())
            assert not isinstance(message, ErrorReply), message
            if isinstance(message, StreamEnd):
                return found
            if isinstance(message, FailoverLog | SnapshotMarker):
                continue
            assert isinstance(message, Mutation | Deletion | Expiration), message
            fields = dataclasses.asdict(message)
            found.pop(message.key, None)
            found[message.key] = (message.spec.name, *(fields.get(name) for name in _SHOWN))


def eventually(true: Callable[[], bool], what: str) -> None:
    """Wait for something that another process or thread does; bounded."""
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"{what}: not within {WAIT_S:g} s"
        time.sleep(0.02)


def copy_once(source: Server, target: Server, **options: Any) -> Replication:
    """Replicate until caught up."""
    job = Replication(source, target, **options)
    end = time.monotonic() + WAIT_S
    progress = job.run(lambda: time.monotonic() > end, once=True)
    assert progress.caught_up, progress
    return job


class Job(Protocol):
    """A replication, by whatever dialect."""

    def run(self, stop: Callable[[], bool]) -> object: ...


@contextmanager
def running(job: Job) -> Iterator[list[BaseException]]:
    """Run a job in a thread for as long as a `with` lasts; gives what it raised, which must be nothing in the end."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            job.run(stop.is_set)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert not failures, failures


@contextmanager
def replicating(source: Server, target: Server, **options: Any) -> Iterator[Replication]:
    """Replicate in a thread for as long as a `with` lasts."""
    job = Replication(source, target, **options)
    with running(job):
        yield job


def is_equal(source: Server, target: Server, vbuckets: range) -> bool:
    """Whether both are equally far."""
    with Vbuckets(source) as one, Vbuckets(target) as two:
        here, there = one.seqnos(), two.seqnos()
    return all(here[vb] == there.get(vb) for vb in vbuckets)
