"""The files of a store, version 2.

A store is one LMDB environment in one directory: `data.mdb` with everything, `lock.mdb` with LMDB's table of readers.
In it are these databases, all of them made with the store, so that no process ever has to open one that it did not
know (a handle opened in one transaction is not valid in those that began before it)::

    meta          text            -> text        "format": "2"; who made it and when; "token": of the last write
    vbuckets      u16 vbucket     -> JSON        VBucketRecord: state, failover log, seqnos, counts; keys sorted
    s0000..s03ff  u64 seqno       -> record      by seqno, one database per vbucket, its number in hexadecimal
    k0000..k03ff  item key        -> u64 seqno   by key, one database per vbucket; the seqno of its newest record
    expiries      u32 expiry | u16 vbucket | item key    -> nothing     of live records that will expire
    tombstones    u32 delete time | u16 vbucket | u64 seqno -> item key of records that a purge may drop
    undo          u16 vbucket | u64 boundary | u8 whole | u64 turn | u64 bytes before | u64 bytes after
                                  -> u64 live items there | the records that the transaction behind it replaced

All numbers are big-endian, so that the order of bytes is the order of numbers. A record is the DCP message of its item
(`records.py`).

What always holds:

- By-seqno has one record per key, the newest; by-key has the same keys, and the seqno of each is that of its record.
- A live record with an expiry other than 0 has one entry in `expiries`, a tombstone has one in `tombstones`, and
  nothing else has: whoever replaces or drops a record drops its entry.
- A vbucket that has records is in `vbuckets`, and none of its seqnos is above its `high_seqno`.
- `purge_seqno` and `high_seqno` rise until the vbucket is deleted or rolled back.
- `undo` has an entry for each of the last transactions of a vbucket that brought it forward, without a gap; the records
  in the entries from a boundary on, with those by seqno, are all that the vbucket had there, but for tombstones that
  were purged since (`undo.py`).

Version 1 had no `undo`, and a `vbuckets` without `whole_seqno`. A writer makes it version 2 when it opens it: a vbucket
whose history was not kept cannot be rolled back but to nothing. Version 1's programs refuse version 2: what they would
write would not be in `undo`.

A database per vbucket, not one with the vbucket in front of each key: new seqnos are then always at the end of their
tree, which LMDB can append to, filling pages wholly and looking for nothing.
"""

from __future__ import annotations

import json
from functools import lru_cache
from struct import Struct
from typing import Any

from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.store.contract import VBucketRecord

FORMAT_VERSION = 2
"""Raised by any change that an older program would misread."""
FORMATS_KNOWN = (1, 2)

VBUCKETS_MAX = 1024
DATA_FILE = "data.mdb"

META = b"meta"
VBUCKETS = b"vbuckets"
EXPIRIES = b"expiries"
TOMBSTONES = b"tombstones"
UNDO_DATABASE = b"undo"
DATABASES_MAX = 2 * VBUCKETS_MAX + 5

META_FORMAT = b"format"
META_MADE_BY = b"made by"
META_MADE_AT = b"made at"
META_TOKEN = b"token"

KEY_BYTES_MAX = 505
"""LMDB's longest key has 511 bytes, and an entry of `expiries` has six in front of the item's key."""

VBUCKET = Struct(">H")
SEQNO = Struct(">Q")
SEQNO_MAX = 2**64 - 1
TIME = Struct(">I")
EXPIRY_HEAD = Struct(">IH")
TOMBSTONE = Struct(">IHQ")
UNDO = Struct(">HQBQQQ")
COUNT = Struct(">Q")

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def by_seqno_name(vbucket: int) -> bytes:
    """The database that has a vbucket's records by their seqno."""
    return b"s%04x" % vbucket


def database_names() -> list[bytes]:
    """All databases that a reader needs: those of the whole store, those by seqno, those by key."""
    by_seqno = [by_seqno_name(vbucket) for vbucket in range(VBUCKETS_MAX)]
    by_key = [b"k%04x" % vbucket for vbucket in range(VBUCKETS_MAX)]
    return [META, VBUCKETS, EXPIRIES, TOMBSTONES, *by_seqno, *by_key]


def vbucket_fields(record: VBucketRecord) -> dict[str, Any]:
    """A vbucket's record as JSON has it."""
    return {
        "state": record.state,
        "failover_log": record.failover_log,
        "high_seqno": record.high_seqno,
        "purge_seqno": record.purge_seqno,
        "cas_max": record.cas_max,
        "live_items": record.live_items,
        "snapshot_start": record.snapshot_start,
        "snapshot_end": record.snapshot_end,
        "whole_seqno": record.whole_seqno,
    }


def vbucket_from_fields(fields: dict[str, Any]) -> VBucketRecord:
    """A vbucket's record out of JSON; KeyError, TypeError or ValueError when it is none."""
    return VBucketRecord(
        state=int(fields["state"]),
        failover_log=tuple((VbUuid(uuid), Seqno(seqno)) for uuid, seqno in fields["failover_log"]),
        high_seqno=Seqno(fields["high_seqno"]),
        purge_seqno=Seqno(fields["purge_seqno"]),
        cas_max=Cas(fields["cas_max"]),
        live_items=int(fields["live_items"]),
        snapshot_start=Seqno(fields["snapshot_start"]),
        snapshot_end=Seqno(fields["snapshot_end"]),
        whole_seqno=Seqno(fields.get("whole_seqno", 0)),  # format 1 has none, and was whole
    )


def encode_vbucket(record: VBucketRecord) -> bytes:
    """The value of a vbucket in `vbuckets`."""
    return _encode(vbucket_fields(record)).encode()


@lru_cache(maxsize=2 * VBUCKETS_MAX)
def decode_vbucket(value: bytes) -> VBucketRecord:
    """A value of `vbuckets`, read; streams ask for those of a thousand vbuckets that have not changed."""
    return vbucket_from_fields(json.loads(value))


def vbucket_id(key: bytes) -> VBucketId:
    """A key of `vbuckets`, read."""
    return VBucketId(VBUCKET.unpack(key)[0])
