"""Which vbucket a key belongs to, and how many there are.

Couchbase's clients agree on one hash; servers do not check it. Who writes a key under another vbucket writes another
item.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from headrace.client.errors import ManyNodesError, ServerAnswerError
from headrace.ids import VBucketId

VBUCKETS_MAX = 65536


def vbucket_of(key: bytes, vbuckets: int) -> VBucketId:
    """Give the vbucket of a key: 15 bits of its CRC32, as libcouchbase's vbucket.c has it.

    >>> vbucket_of(b"hello", 1024)
    528
    """
    return VBucketId((zlib.crc32(key) >> 16 & 0x7FFF) % vbuckets)


def count_vbuckets(config: bytes, *, source: str) -> int:
    """Read the number of vbuckets from a cluster config (the answer to 0xb5) that knows one node.

    `source` is the server as errors are to name it.
    """
    try:
        document: Any = json.loads(config)
    except (ValueError, RecursionError):
        raise ServerAnswerError(f"{source}: its cluster config is not JSON") from None
    found = document.get("vBucketServerMap") if isinstance(document, dict) else None
    if not isinstance(found, dict):
        raise ServerAnswerError(f"{source}: its cluster config has no vbucket map; is this a memcached bucket?")
    rows, servers = found.get("vBucketMap"), found.get("serverList")
    if not isinstance(rows, list) or not isinstance(servers, list):
        raise ServerAnswerError(f"{source}: the vbucket map of its cluster config is not readable")
    if len(servers) > 1:
        raise ManyNodesError(
            f"{source}: the bucket lies on {len(servers)} nodes ({', '.join(map(str, servers[:8]))}); "
            "this client knows one only"
        )
    if not 0 < len(rows) <= VBUCKETS_MAX:
        raise ServerAnswerError(f"{source}: a map of {len(rows)} vbuckets; the bucket may not be ready yet")
    return len(rows)
