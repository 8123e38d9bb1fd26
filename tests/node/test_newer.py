"""What memory tells a stream is what a reader of everything would find, whatever is on its way to disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.history import State
from headrace.ids import VBucketId
from headrace.node import NodeLimits
from headrace.node.bucket import Bucket
from headrace.store import DictStore, VBucketRecord
from headrace.store.records import key_of, seqno_of
from tests.store.builders import dead, live

if TYPE_CHECKING:
    from headrace.store import Changes

KEYS = [b"a", b"b", b"c", b"d", b"e", b"f"]
VB = VBucketId(0)


class DictDisk:
    """As much of a disk as a bucket asks for, on dicts."""

    def __init__(self) -> None:
        self.store = DictStore()
        self.marks = bytearray(4)

    def vbuckets(self) -> dict[VBucketId, VBucketRecord]:
        """All vbuckets."""
        with self.store.snapshot() as snapshot:
            return snapshot.vbuckets()

    def get(self, vbucket: VBucketId, key: bytes) -> bytes | None:
        """The newest record of a key."""
        with self.store.snapshot() as snapshot:
            return snapshot.get(vbucket, key)


class Layers(RuleBasedStateMachine):
    """Changes and flushes in any order; all changes ever made are remembered beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = DictDisk()
        disk: Any = self.disk
        self.bucket = Bucket("b", disk, vbuckets=1, limits=NodeLimits())
        self.vb = self.bucket.make_vbucket(VB, State.ACTIVE)
        self.newest: dict[bytes, bytes] = {}
        self.taken: Changes | None = None

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8), is_live=st.booleans())
    def put(self, keys: list[bytes], is_live: bool) -> None:
        for key in keys:
            self.vb.high_seqno += 1
            make = live if is_live else dead
            self.newest[key] = record = make(0, self.vb.high_seqno, key)
            self.bucket.put(self.vb, key, record)

    @precondition(lambda self: self.taken is None)
    @rule()
    def take(self) -> None:
        self.taken = self.vb.take(7)

    @precondition(lambda self: self.taken)
    @rule(keep_recent=st.booleans())
    def settle(self, keep_recent: bool) -> None:
        assert self.taken is not None
        self.disk.store.write([self.taken])
        self.vb.persisted_seqno = self.taken.now.high_seqno
        self.bucket.settle(self.vb, keep_recent=keep_recent)
        if not keep_recent:
            self.bucket.drop_recents()
        self.taken = None

    @precondition(lambda self: self.taken)
    @rule()
    def fail(self) -> None:
        self.vb.put_back()
        self.taken = None

    @rule(also_recent=st.booleans())
    def forget(self, also_recent: bool) -> None:
        self.bucket.forget(self.vb)
        if also_recent:
            self.bucket.drop_recent(self.vb)

    @invariant()
    def memory_tells_all_or_nothing(self) -> None:
        in_order = sorted(self.newest.values(), key=seqno_of)
        for after in range(self.vb.high_seqno + 2):
            told = self.vb.newer(after)
            if told is None:
                assert after < self.vb.persisted_seqno
            else:
                assert told == [record for record in in_order if seqno_of(record) > after]

    @invariant()
    def lookups_find_the_newest(self) -> None:
        for key in KEYS:
            assert self.bucket.find(self.vb, key) == self.newest.get(key)

    @invariant()
    def sizes_are_what_is_there(self) -> None:
        for counted, layer in (
            (self.bucket.recent_bytes, self.vb.recent),
            (self.bucket.resident_bytes, self.vb.items),
        ):
            assert counted == sum(len(record) + 200 for record in layer.values())
        assert all(key_of(record) == key for key, record in self.vb.recent.items())


TestLayers = Layers.TestCase
TestLayers.settings = settings(max_examples=150, stateful_step_count=25)
