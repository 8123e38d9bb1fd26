"""What must hold in every state of a store, whoever made it, and that two stores say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import VBucketId
from headrace.store import LmdbSnapshot, layout
from headrace.store.records import Record, unpack

if TYPE_CHECKING:
    from headrace.store import Snapshot
    from headrace.store.dict_store import DictSnapshot

TIME_MAX = 2**32 - 1
MANY = 1 << 40


def assert_consistent(snapshot: Snapshot) -> None:
    """Check that all ways to a record agree: by seqno, by key, by expiry, by delete time, and their vbuckets."""
    expiring = set()
    tombstones = {}
    vbuckets = snapshot.vbuckets()
    for number in range(layout.VBUCKETS_MAX):
        vbucket = VBucketId(number)
        packed = list(snapshot.records(vbucket))
        records = [unpack(record) for record in packed]
        seqnos = [record.seqno for record in records]
        assert seqnos == sorted(set(seqnos)), vbucket
        assert all(record.vbucket == vbucket for record in records)
        by_key = {record.key: record.seqno for record in records}
        assert len(by_key) == len(records), vbucket
        assert snapshot.keys(vbucket, limit=MANY) == sorted(by_key.items()), vbucket
        for record, bytes_of_it in zip(records, packed, strict=True):
            assert snapshot.get(vbucket, record.key) == bytes_of_it
        if records:
            assert vbucket in vbuckets, vbucket
            assert seqnos[-1] <= vbuckets[vbucket].high_seqno
        expiring |= {(one.expiry, vbucket, one.key) for one in records if one.live and one.expiry}
        tombstones.update({_tombstone_key(one): one.key for one in records if not one.live})
    found = [(one.expiry, one.vbucket, one.key) for one in snapshot.expired(now=TIME_MAX, limit=MANY)]
    assert found == sorted(expiring)
    if isinstance(snapshot, LmdbSnapshot):
        assert dict(snapshot._txn.cursor(snapshot._handles.tombstones)) == tombstones


def assert_same(snapshot: Snapshot, oracle: DictSnapshot) -> None:
    """Check that everything readable is the same in both."""
    vbuckets = oracle.vbuckets()
    assert list(snapshot.vbuckets().items()) == list(vbuckets.items())
    for vbucket, record in vbuckets.items():
        assert snapshot.vbucket(vbucket) == record
        expected = list(oracle.records(vbucket))
        assert list(snapshot.records(vbucket)) == expected
        keys = oracle.keys(vbucket, limit=MANY)
        assert snapshot.keys(vbucket, limit=MANY) == keys
        for key, _ in keys:
            assert snapshot.get(vbucket, key) == oracle.get(vbucket, key)
    assert snapshot.expired(now=TIME_MAX, limit=MANY) == oracle.expired(now=TIME_MAX, limit=MANY)


def _tombstone_key(record: Record) -> bytes:
    return layout.TOMBSTONE.pack(record.delete_time, record.vbucket, record.seqno)
