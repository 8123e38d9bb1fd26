"""A reader whose vbucket moves to another node of ours, while it reads."""

import time

from headrace.client import Address, Change, ChangeOptions, ChangeReader, KvConnection, RolledBack
from headrace.ids import VBucketId
from headrace.node import Node
from headrace.pipelines.move import Move
from headrace.pipelines.servers import Server
from headrace.wire.catalogue import Set

WAIT_S = 40.0
VB = 1


def store(node: Node, *keys: str) -> None:
    """Write items of the vbucket that moves, whatever their keys."""
    with KvConnection(node.host, node.port) as items:
        for key in keys:
            items.request(Set(vbucket=VBucketId(VB), key=key.encode(), value=b"1"))


def read(reader: ChangeReader, wanted: set[str], seen: list[tuple[int, str]]) -> None:
    """Read until some keys were seen."""
    end = time.monotonic() + WAIT_S
    while not wanted <= {key for _, key in seen}:
        assert time.monotonic() < end, f"only {seen[-3:]}"
        each = reader.next_change(1.0)
        assert not isinstance(each, RolledBack)
        if isinstance(each, Change) and each.vbucket == VB:
            seen.append((each.seqno, str(each.key)))


def test_a_moved_vbucket_is_followed():
    """Each change comes once and in order, from the one node and then from the other, and back again."""
    with Node(vbuckets=2) as one, Node(vbuckets=2) as two:
        both = f"{one.connection_string},{two.host}:{two.port}"
        servers = [Server(address=Address(host=each.host, port=each.port), timeout_s=20.0) for each in (one, two)]
        seen: list[tuple[int, str]] = []
        with ChangeReader(ChangeOptions(connection=both)) as reader:
            store(one, *(f"first-{n}" for n in range(50)))
            read(reader, {"first-49"}, seen)
            Move(servers[0], servers[1], VB).run(lambda: False)
            store(two, *(f"second-{n}" for n in range(50)))
            read(reader, {"second-49"}, seen)
            Move(servers[1], servers[0], VB).run(lambda: False)
            store(one, "third")
            read(reader, {"third"}, seen)
            position = reader.positions.vbuckets[VBucketId(VB)]
    assert [seqno for seqno, _ in seen] == list(range(1, 102))
    assert position.seqno == 101
