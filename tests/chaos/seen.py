"""What a test sees of a node from outside: the failover log, the items by a stream, and keys of a vbucket."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from headrace.client import vbucket_of
from headrace.ids import VBucketId, VbUuid
from headrace.wire.catalogue import FailoverLog, GetFailoverLog, Mutation, Observed, ObserveSeqno, StreamEnd
from tests.streams.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.node import Node
    from headrace.testing import LiveNode
    from headrace.wire.codes import StreamEndReason


def keys_of(vbucket: int, vbuckets: int) -> Iterator[str]:
    """Keys that lie in one vbucket."""
    return (key for key in map("k{:05}".format, itertools.count()) if vbucket_of(key.encode(), vbuckets) == vbucket)


def fill(node: LiveNode, vbucket: int, count: int) -> list[str]:
    """Write so many items to one vbucket; gives their keys, in the order of their seqnos."""
    assert node.items.vbuckets is not None
    keys = list(itertools.islice(keys_of(vbucket, node.items.vbuckets), count))
    node.write(dict.fromkeys(keys, b"first"))
    return keys


def log_of(node: LiveNode, vbucket: int) -> list[tuple[int, int]]:
    """The failover log, newest first."""
    reply = node.items.request(GetFailoverLog(vbucket=VBucketId(vbucket)))
    assert isinstance(reply, FailoverLog)
    return [(entry.vbuuid, entry.seqno) for entry in reply.entries]


def persisted(node: LiveNode, vbucket: int, vbuuid: int) -> int:
    """The last seqno on disk."""
    reply = node.items.request(ObserveSeqno(vbucket=VBucketId(vbucket), vbuuid=VbUuid(vbuuid)))
    assert isinstance(reply, Observed)
    assert reply.persisted_seqno is not None
    return reply.persisted_seqno


def streamed(node: Node, vbucket: int, end: int) -> dict[bytes, bytes]:
    """The live items of a vbucket, as a stream from the beginning tells them."""
    found: dict[bytes, bytes] = {}
    with Reader(node) as reader:
        reader.begin(vbucket, end=end)
        for message in reader.until_end():
            if isinstance(message, Mutation):
                found[message.key] = message.value
            elif hasattr(message, "key"):
                found.pop(message.key, None)
    return found


def end_of(reader: Reader) -> StreamEndReason | int:
    """Read on to the end of the stream; gives the reason."""
    last = reader.until_end()[-1]
    assert isinstance(last, StreamEnd)
    return last.reason


def begun(reader: Reader, vbucket: int, count: int) -> VbUuid:
    """Stream a vbucket from the beginning, and read so many changes of it."""
    vbuuid = reader.begin(vbucket)
    assert [item.by_seqno for item in reader.items(count)] == list(range(1, count + 1))
    return vbuuid
