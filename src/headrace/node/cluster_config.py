"""The cluster map that clients ask for: this node, its ports, and the vbuckets that it serves.

What must be in it was learned from what the official clients refuse: a management port even where nothing listens
there, a `nodes` list, a revision from 1 on. `$HOST` is the host that the client dialled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from headrace.history import State

if TYPE_CHECKING:
    from headrace.node.bucket import Bucket

_NODE_EPOCH = 1
_MANAGEMENT_PORT = 8091
_MANAGEMENT_PORT_TLS = 18091


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a node listens."""

    host: str
    port: int
    tls: bool = False
    http_port: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A map and its version."""

    version: tuple[int, int]
    json: bytes


def cluster_config(address: Address, bucket: Bucket) -> ClusterConfig:
    """The map of a bucket as it is now."""
    served = bytes(vb is not None and vb.state is State.ACTIVE for vb in bucket.vbuckets)
    facts = bucket.disk.facts
    version = facts.starts, bucket.map_revision
    return ClusterConfig(version, _spelled(address, bucket.name, facts.uuid, version, served))


def node_config(address: Address) -> ClusterConfig:
    """The map of no bucket: where the node is. A client that has opened no bucket yet finds services by it."""
    version = _NODE_EPOCH, 1
    return ClusterConfig(version, json.dumps(_of_node(address, version), separators=(",", ":")).encode())


def _of_node(address: Address, version: tuple[int, int]) -> dict[str, object]:
    services = {"kv": address.port, "mgmt": address.http_port or _MANAGEMENT_PORT}
    if address.tls:
        services = {
            "kvSSL": address.port,
            "mgmt": _MANAGEMENT_PORT,  # some clients refuse a map without it, though nothing listens there
            "mgmtSSL": address.http_port or _MANAGEMENT_PORT_TLS,
        }
    return {"rev": version[1], "revEpoch": version[0], "nodesExt": [{"services": services, "thisNode": True}]}


@lru_cache(maxsize=64)
def _spelled(address: Address, name: str, uuid: str, version: tuple[int, int], served: bytes) -> bytes:
    management = address.http_port or _MANAGEMENT_PORT
    config = {
        **_of_node(address, version),
        "name": name,
        "uuid": uuid,
        "nodeLocator": "vbucket",
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": ["cbhello", "touch", "cccp", "nodesExt", "dcp", "xattr"],
        "nodes": [{"hostname": f"$HOST:{management}", "ports": {"direct": address.port}}],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 0,
            "serverList": [f"$HOST:{address.port}"],
            "vBucketMap": [[0] if here else [-1] for here in served],
        },
    }
    return json.dumps(config, separators=(",", ":")).encode()
