"""Which node holds which vbucket, as a cluster config (the answer to 0xb5) says it.

Configs differ with the server's age: `nodesExt` with ports by service where there is one, else `serverList`. A node
that calls itself by no name, or `$HOST`, is where the client dialled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.client.address import Address
from headrace.client.errors import AddressError, ConnectionLostError, ServerAnswerError
from headrace.client.vbuckets import VBUCKETS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.wire.catalogue import VBucketSeqno

_HOST = "$HOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMap:
    """The nodes, and for each vbucket the places of its copies among them: the active first, -1 where there is none."""

    version: tuple[int, int]
    nodes: tuple[Address, ...]
    copies: tuple[tuple[int, ...], ...]
    bucket_uuid: str = ""
    """The same at every node of a cluster."""

    @classmethod
    def parse(cls, config: bytes, *, dialled: Address) -> ClusterMap:
        """Read a config that came from a node."""
        try:
            document: Any = json.loads(config)
        except (ValueError, RecursionError):
            raise ServerAnswerError(f"{dialled}: its cluster config is not JSON") from None
        try:
            return cls._of(document, dialled)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, AddressError) as error:
            told = f"{type(error).__name__}: {error}"
            raise ServerAnswerError(f"{dialled}: its cluster config cannot be read ({told})") from None

    @classmethod
    def _of(cls, document: dict[str, Any], dialled: Address) -> ClusterMap:
        found = document.get("vBucketServerMap")
        if found is None:
            raise ServerAnswerError(f"{dialled}: its cluster config has no vbucket map; is this a memcached bucket?")
        servers = found["serverList"]
        copies = tuple(tuple(int(place) for place in row) for row in found["vBucketMap"])
        if not 0 < len(copies) <= VBUCKETS_MAX:
            raise ConnectionLostError(f"{dialled}: a map of {len(copies)} vbuckets; the bucket may not be ready yet")
        extended = document.get("nodesExt")
        nodes = tuple(
            _extended(extended[place], dialled)
            if extended is not None and place < len(extended)
            else _listed(str(server), dialled)
            for place, server in enumerate(servers)
        )
        if any(place >= len(nodes) for row in copies for place in row):
            raise ServerAnswerError(f"{dialled}: its cluster config places a vbucket at a node that is not listed")
        version = int(document.get("revEpoch", 0)), int(document.get("rev", 0))
        return cls(version=version, nodes=nodes, copies=copies, bucket_uuid=str(document.get("uuid", "")))

    @classmethod
    def alone(cls, node: Address, vbuckets: int) -> ClusterMap:
        """The map of a server that has none: everything is where the client dialled."""
        return cls(version=(-1, 0), nodes=(node,), copies=((0,),) * vbuckets, bucket_uuid=str(node))

    @classmethod
    def alone_with(cls, node: Address, held: Sequence[VBucketSeqno]) -> ClusterMap:
        """The map of a server that nobody told of its cluster, as one that was started by hand: what it holds."""
        vbuckets = max((row.vbucket for row in held), default=-1) + 1
        if not vbuckets:
            raise ServerAnswerError(f"{node}: it has no cluster config and no vbuckets")
        return cls.alone(node, vbuckets)

    @classmethod
    def together(cls, maps: list[ClusterMap]) -> ClusterMap:
        """Lay maps of several buckets of one name together: a vbucket is where the first of them says that it is."""
        if len(maps) == 1:
            return maps[0]
        nodes: list[Address] = []
        copies: list[tuple[int, ...]] = [()] * len(maps[0].copies)
        for each in maps:
            first = len(nodes)
            nodes.extend(each.nodes)
            for vbucket, row in enumerate(each.copies):
                if not copies[vbucket] and each.node_of(vbucket) is not None:
                    copies[vbucket] = tuple(place + first if place >= 0 else -1 for place in row)
        return cls(version=maps[0].version, nodes=tuple(nodes), copies=tuple(copies), bucket_uuid=maps[0].bucket_uuid)

    def node_of(self, vbucket: int) -> Address | None:
        """Where a vbucket is active; None while it is nowhere."""
        row = self.copies[vbucket]
        return self.nodes[row[0]] if row and row[0] >= 0 else None

    def nodes_of(self, vbucket: int) -> tuple[Address, ...]:
        """Where all copies of a vbucket are, the active first."""
        return tuple(self.nodes[place] for place in self.copies[vbucket] if place >= 0)


def take_map(maps: dict[str, ClusterMap], found: ClusterMap, bucket: str) -> None:
    """Keep the newest map of each bucket of one name, by its uuid; one with other vbuckets is another bucket.

    Nodes that nobody made a cluster of have a map each, and are told apart by the bucket's uuid.
    """
    for each in maps.values():
        if len(each.copies) != len(found.copies):
            raise ServerAnswerError(
                f"bucket {bucket} has {len(found.copies)} vbuckets at {found.nodes[0]}, and "
                f"{len(each.copies)} at {each.nodes[0]}: it is another bucket"
            )
    known = maps.get(found.bucket_uuid)
    if known is None or found.version >= known.version:
        maps[found.bucket_uuid] = found


def _extended(node: dict[str, Any], dialled: Address) -> Address:
    services = node["services"]
    host = node.get("hostname") or dialled.host
    return _address(str(host), services["kvSSL" if dialled.tls else "kv"], dialled)


def _listed(server: str, dialled: Address) -> Address:
    host, _, port = server.rpartition(":")
    if dialled.tls:
        raise ServerAnswerError(f"{dialled}: its cluster config names no TLS port for {server}")
    return _address(host, port, dialled)


def _address(host: str, port: str | int, dialled: Address) -> Address:
    return Address.checked(dialled.host if host == _HOST else host.strip("[]"), int(port), tls=dialled.tls)


__all__ = ["ClusterMap", "take_map"]
