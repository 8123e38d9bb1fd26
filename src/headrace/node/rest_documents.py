"""The JSON documents of the REST routes, spelled as Couchbase's clients read them.

The map is the one that the KV port gives. There `$HOST` stands for the host that the client dialled; over REST it is
written out, since some clients compare texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.node.cluster_config import Address, cluster_config
from headrace.node.commands.session import VERSION
from headrace.node.stats import memory_max, store_bytes

if TYPE_CHECKING:
    from headrace.node.buckets import OpenBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPlace:
    """A node as one client reaches it."""

    host: str
    address: Address


def cluster_map(place: MapPlace, opened: OpenBucket) -> bytes:
    """The map of a bucket."""
    return cluster_config(place.address, opened.bucket).json.replace(b"$HOST", _in_url(place.host).encode())


def bucket_document(place: MapPlace, opened: OpenBucket) -> dict[str, Any]:
    """A bucket, its node and its map. Couchbase's C++ core ends its process where one of these fields is missing."""
    bucket = opened.bucket
    found = _parts(cluster_map(place, opened))
    return {
        "name": bucket.name,
        "uuid": found["uuid"],
        "bucketType": "membase",
        "storageBackend": "couchstore",
        "uri": f"/pools/default/buckets/{bucket.name}",
        "streamingUri": f"/pools/default/bucketsStreaming/{bucket.name}",
        "nodeLocator": found["nodeLocator"],
        "replicaNumber": 0,
        "replicaIndex": False,
        "quota": {"ram": memory_max(bucket), "rawRAM": memory_max(bucket)},
        "evictionPolicy": "fullEviction",
        "conflictResolutionType": "seqno",
        "compressionMode": "passive",
        "maxTTL": 0,
        "durabilityMinLevel": "none",
        "controllers": {},
        "bucketCapabilitiesVer": found["bucketCapabilitiesVer"],
        "bucketCapabilities": found["bucketCapabilities"],
        "nodes": [node_document(place)],
        "vBucketServerMap": found["vBucketServerMap"],
        "basicStats": {
            "itemCount": bucket.live_items,
            "diskUsed": store_bytes(opened),
            "memUsed": bucket.waiting_bytes + bucket.resident_bytes,
        },
    }


@lru_cache(maxsize=64)
def _parts(text: bytes) -> dict[str, Any]:
    """A map in parts, that of the vbuckets left as text: a thousand lists each time would wake Python's collector."""
    found: dict[str, Any] = msgspec.json.decode(text)
    return found | {"vBucketServerMap": msgspec.Raw(msgspec.json.encode(found["vBucketServerMap"]))}


def node_document(place: MapPlace) -> dict[str, Any]:
    """The one node."""
    address = place.address
    return {
        "hostname": f"{_in_url(place.host)}:{address.http_port}",
        "ports": {"sslDirect" if address.tls else "direct": address.port},
        "status": "healthy",
        "clusterMembership": "active",
        "version": VERSION.decode(),
        "services": ["kv"],
        "thisNode": True,
    }


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
