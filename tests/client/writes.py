"""What the tests of the writer share: rows, what was refused, and what a node has of an item."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from headrace.client import Address, KvConnection, StatusError
from headrace.client.options import ChangeOptions
from headrace.client.writing import BucketWriter, ItemVersion
from headrace.history import State
from headrace.pipelines.servers import Server, Vbuckets
from headrace.testing import LiveNode
from headrace.wire.catalogue import (
    GetMeta,
    Meta,
)

VBUCKETS = 16
CAS = 1_700_000_000_000_000_000


def options(node: LiveNode, **more: Any) -> ChangeOptions:
    """How a node is reached."""
    return ChangeOptions(connection=node.connection_string, **more)


class Kept:
    """Keeps what was refused."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, bytes, int]] = []

    def __call__(self, row: object, key: bytes, error: StatusError) -> None:
        """Take one."""
        self.rows.append((row, key, error.status))


def key_of(number: int) -> bytes:
    """The key of a row."""
    return b"write::%d" % number


def put_many(writer: BucketWriter, count: int, *, rev: int = 1, value: bytes = b'{"n": 1}') -> None:
    """Put rows with revisions."""
    for number in range(count):
        writer.set_version(number, key_of(number), value, ItemVersion(7, 0, rev, CAS + rev), datatype=1)


def meta_of(kv: KvConnection, key: bytes) -> tuple[int, int, int, int, int]:
    """Whether an item is deleted, and its flags, expiry, revision and CAS."""
    reply = kv.request(GetMeta(key=key, vbucket=kv.vbucket_of(key)))
    assert isinstance(reply, Meta)
    return reply.deleted, reply.flags, reply.expiry, reply.rev_seqno, reply.cas


@contextmanager
def two_nodes(tmp_path: Path) -> Iterator[tuple[LiveNode, LiveNode, list[Server]]]:
    """Two nodes of which each owns half of the vbuckets."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(LiveNode(data=tmp_path / name, vbuckets=VBUCKETS)) for name in ("one", "two")]
        servers = [Server(address=Address(host=each.host, port=each.port), timeout_s=20.0) for each in nodes]
        for place, server in enumerate(servers):
            with Vbuckets(server) as vbuckets:
                for vb in range(VBUCKETS):
                    if vb % 2 != place:
                        vbuckets.set_state(vb, State.DEAD)
        yield nodes[0], nodes[1], servers


def both(one: LiveNode, two: LiveNode) -> ChangeOptions:
    """How both are reached."""
    return ChangeOptions(connection=f"{one.connection_string},{two.host}:{two.port}")
