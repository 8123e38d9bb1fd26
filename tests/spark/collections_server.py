"""A server with scopes and collections that a test can lead, behind sockets: the node has the default collection alone.

It does what Couchbase servers do since 7.0, as kv_engine's sources say:

- A connection whose hello did not ask for collections sees the default one alone: keys without an id, seqnos of that.
- A stream is asked for with a filter; a collection that is not there is refused. Where the last change of a snapshot
  is not shown, "seqno advanced" stands in its place.
- A collection that comes or goes is a change of every vbucket. What was in one that is gone is not shown any more, and
  a stream that has no collection left ends.
"""

from __future__ import annotations

import json
import struct
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.ids import CollectionId, Opaque, Seqno, VBucketId
from headrace.wire import catalogue as w
from headrace.wire.codes import Feature, Status, StreamEndReason, SystemEventKind
from headrace.wire.leb128 import encode_collection, split_collection
from tests.client.fake_dcp import FakeCluster, FakeConnection, FakeVBucket, served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.wire import Message, Response

SCOPES = {"_default": 0, "shop": 8, "bar": 9}
_DEFAULT = 0


@dataclass
class Event:
    """A collection came or went."""

    kind: SystemEventKind
    scope: int
    collection: int
    name: str


@dataclass
class ScopedVBucket(FakeVBucket):
    """A history in which some changes are events of collections, by their seqnos."""

    events: dict[int, Event] = field(default_factory=dict)

    def put(self, collection: int, key: str, value: bytes | None) -> None:
        """Store an item, or remove it; of each key there is the newest change alone."""
        full = encode_collection(CollectionId(collection)) + key.encode()
        seqno = self.high + 1
        self.changes = [each for each in self.changes if each[1] != full]
        self.changes.append((seqno, full, value))

    def tell(self, event: Event) -> None:
        """Have an event of a collection."""
        seqno = self.high + 1
        self.events[seqno] = event
        self.changes.append((seqno, b"", b""))

    def collection_of(self, change: tuple[int, bytes, bytes | None]) -> int:
        """Where a change belongs."""
        event = self.events.get(change[0])
        return event.collection if event is not None else int(split_collection(change[1])[0])


class ScopedCluster(FakeCluster):
    """One node with collections."""

    def __init__(self, vbuckets: int = 4) -> None:
        super().__init__(vbuckets)
        self.vbuckets = [ScopedVBucket(log=[(0xA0 + number, 0)]) for number in range(vbuckets)]
        self.collections = {_DEFAULT: ("_default", "_default")}
        self.uid = 1

    @property
    def connection(self) -> str:
        """The connection string."""
        return f"couchbase://{self.nodes[0]}"

    def connect(self, node: int) -> FakeConnection:
        """Take a connection."""
        return ScopedConnection(self, node)

    def make(self, path: str, number: int) -> None:
        """Make a collection: every vbucket has an event of it."""
        scope, name = path.split(".")
        self.collections[number] = (scope, name)
        self._tell(Event(SystemEventKind.CREATE_COLLECTION, SCOPES[scope], number, name))

    def drop(self, path: str) -> None:
        """Drop a collection."""
        number = self._number(path)
        scope, _ = self.collections.pop(number)
        self._tell(Event(SystemEventKind.DROP_COLLECTION, SCOPES[scope], number, ""))

    def _tell(self, event: Event) -> None:
        self.uid += 1
        for vb in self.vbuckets:
            assert isinstance(vb, ScopedVBucket)
            vb.tell(event)

    def put(self, path: str, *keys: str, value: bytes | None = b'{"a":1}') -> None:
        """Store items of a collection, or remove them, in one vbucket after the other."""
        number = self._number(path)
        for place, key in enumerate(keys):
            vb = self.vbuckets[place % len(self.vbuckets)]
            assert isinstance(vb, ScopedVBucket)
            vb.put(number, key, value)

    def _number(self, path: str) -> int:
        return next(number for number, names in self.collections.items() if ".".join(names) == path)

    def manifest(self) -> bytes:
        """The collections, as 0xba tells them."""
        scopes = [
            {
                "uid": f"{number:x}",
                "name": scope,
                "collections": [
                    {"uid": f"{each:x}", "name": names[1]}
                    for each, names in self.collections.items()
                    if names[0] == scope
                ],
            }
            for scope, number in SCOPES.items()
        ]
        return json.dumps({"uid": f"{self.uid:x}", "scopes": scopes}).encode()


class ScopedConnection(FakeConnection):
    """One connection, which knows of collections or not."""

    cluster: ScopedCluster

    def __init__(self, cluster: ScopedCluster, node: int) -> None:
        super().__init__(cluster, node)
        self._is_aware = False
        self._shown: dict[int, frozenset[int] | None] = {}
        """By vbucket the collections that its stream shows; None for all."""

    def _answer(self, request: Message) -> list[Message]:
        match request:
            case w.Hello():
                self._is_aware = Feature.COLLECTIONS in request.features
            case w.GetCollectionsManifest():
                return [self._reply(request, w.Text, value=self.cluster.manifest())]
            case w.GetAllVBSeqnos() if not self._is_aware:
                highs = [max((each[0] for each in self._changes(n, {_DEFAULT})), default=0) for n in self._places]
                rows = tuple(w.VBucketSeqno(place, Seqno(high)) for place, high in enumerate(highs))
                return [self._reply(request, w.Seqnos, seqnos=rows)]
            case _:
                pass
        return super()._answer(request)

    @property
    def _places(self) -> range:
        return range(len(self.cluster.vbuckets))

    def _changes(self, vbucket: int, shown: set[int]) -> list[tuple[int, bytes, bytes | None]]:
        vb = self.cluster.vbuckets[vbucket]
        assert isinstance(vb, ScopedVBucket)
        return [each for each in vb.changes if vb.collection_of(each) in shown]

    def _stream(self, request: w.StreamRequest) -> Response:
        shown: frozenset[int] | None = frozenset({_DEFAULT})
        if self._is_aware:
            asked: dict[str, Any] = json.loads(request.filter) if request.filter else {}
            shown = frozenset(int(each, 16) for each in asked["collections"]) if "collections" in asked else None
            if shown is not None and not shown <= self.cluster.collections.keys():
                return self.refuse(request, Status.UNKNOWN_COLLECTION)
        self._shown[request.vbucket] = shown
        return super()._stream(request)

    def show(self, vbucket: int, stream: Any, change: tuple[int, bytes, bytes | None]) -> None:
        """Send one change, if the stream shows it."""
        vb = self.cluster.vbuckets[vbucket]
        assert isinstance(vb, ScopedVBucket)
        seqno, key, value = change
        shown, event, collection = self._shown[vbucket], vb.events.get(seqno), vb.collection_of(change)
        common: dict[str, Any] = {"opaque": Opaque(stream.opaque), "vbucket": VBucketId(vbucket)}
        is_shown = shown is None or collection in shown
        if event is not None and is_shown and self._is_aware:
            ids = struct.pack(">QII", self.cluster.uid, event.scope, event.collection)
            self.send(
                w.SystemEvent(
                    by_seqno=Seqno(seqno), event=event.kind, version=0, key=event.name.encode(), value=ids, **common
                )
            )
            if shown is not None and not shown & self.cluster.collections.keys():
                self.end(vbucket, StreamEndReason.FILTER_EMPTY)
        elif event is None and is_shown and collection in self.cluster.collections:
            super().show(vbucket, stream, (seqno, key if self._is_aware else split_collection(key)[1], value))
        elif self._is_aware and seqno == stream.snapshot_end:
            self.send(w.SeqnoAdvanced(by_seqno=Seqno(seqno), **common))


@contextmanager
def scoped(vbuckets: int = 4) -> Iterator[ScopedCluster]:
    """Serve a cluster with three collections: one is the default one."""
    cluster = ScopedCluster(vbuckets)
    cluster.make("shop.beer", 0xA)
    cluster.make("bar.beer", 0x1234)
    with served(cluster):
        yield cluster
