"""Records and changes with sane defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.store import Changes, VBucketRecord
from headrace.store.records import DELETED, EXPIRED, LIVE, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIVE = 1
UUID = VbUuid(0xFEDC_BA98_7654_3210)


def live(vbucket: int, seqno: int, key: bytes, value: bytes = b"value", *, expiry: int = 0) -> bytes:
    """A live record."""
    return Record(LIVE, VBucketId(vbucket), key, value, 0, Cas(seqno), Seqno(seqno), rev_seqno=1, expiry=expiry).pack()


def dead(vbucket: int, seqno: int, key: bytes, *, at: int = 1000, expired: bool = False) -> bytes:
    """A tombstone."""
    opcode = EXPIRED if expired else DELETED
    return Record(opcode, VBucketId(vbucket), key, b"", 0, Cas(seqno), Seqno(seqno), rev_seqno=2, delete_time=at).pack()


def now(high_seqno: int, *, purge_seqno: int = 0, live_items: int = 0) -> VBucketRecord:
    """What is kept of a vbucket."""
    return VBucketRecord(
        state=ACTIVE,
        failover_log=((UUID, Seqno(0)),),
        high_seqno=Seqno(high_seqno),
        purge_seqno=Seqno(purge_seqno),
        live_items=live_items,
    )


def changes(vbucket: int, records: Sequence[bytes], high_seqno: int, *, purge_seqno: int = 0) -> Changes:
    """The changes of one vbucket."""
    return Changes(vbucket=VBucketId(vbucket), records=records, now=now(high_seqno, purge_seqno=purge_seqno))


def batch(vbucket: int, first: int, count: int, *, value: bytes = b"v" * 256) -> Changes:
    """New keys, one per seqno from `first` on."""
    records = [live(vbucket, seqno, b"key-%d" % seqno, value) for seqno in range(first, first + count)]
    return changes(vbucket, records, first + count - 1)
