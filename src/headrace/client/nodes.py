"""The nodes of a bucket: the links to them, and the map that says which vbucket is where.

A cluster has one map, and the newest version of it counts. Nodes that nobody made a cluster of have each a map of
itself alone: those are laid together, so that a vbucket is found at whichever node says that it has it. The two are
told apart by the bucket's uuid, which is one in a cluster.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from headrace.client.cluster_map import ClusterMap, take_map
from headrace.client.link import Link, LinkState
from headrace.protocol.subscription import RETRY_S_MAX, Backoff
from headrace.wire.catalogue import GetClusterConfig, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from headrace.client.address import Address
    from headrace.client.link import LinkOwner
    from headrace.client.options import ChangeOptions
    from headrace.ids import VBucketId
    from headrace.wire.message import Response

MAP_PAUSE_S = 0.2
"""The shortest time between two questions for the map."""


class Nodes:
    """Every link there is, and what is known of the map."""

    def __init__(self, options: ChangeOptions) -> None:
        self.links: dict[Address, Link] = {}
        self.to_connect: list[Link] = []
        self.to_close: list[Link] = []
        self.cluster: ClusterMap | None = None
        self.map_wanted = False
        self.map_asked_at = float("-inf")
        self.moved: set[VBucketId] = set()
        """Of these, a newer map is awaited: the node that the last one names said that they are not there."""
        self._options = options
        self._untried = list(options.seeds)
        self._maps: dict[str, ClusterMap] = {}
        self._asked: set[Link] = set()
        """The links whose answer with the map is awaited."""
        self._pauses: dict[Address, tuple[Backoff, float]] = {}
        self._connections = 0
        self._name = f"{options.name}-{secrets.token_hex(8)}"

    # -- links

    def ready(self) -> list[Link]:
        """The links that carry streams."""
        return [link for link in self.links.values() if link.state is LinkState.READY]

    def link_to(self, node: Address | None) -> Link | None:
        """The link to a node, however far it is."""
        return self.links.get(node) if node is not None else None

    def have(self, needed: Collection[Address], used: Collection[Link], owner: LinkOwner, now: float) -> list[Link]:
        """Connect to every node that is needed; gives the links that are neither needed nor used."""
        for address in needed:
            if address not in self.links and self._pauses.get(address, (None, 0.0))[1] <= now:
                self._connections += 1
                link = Link(address, self._options, owner, name=f"{self._name}-{self._connections}", now=now)
                self.links[address] = link
                self.to_connect.append(link)
        if self.cluster is None:
            return []
        return [link for link in self.links.values() if link.address not in needed and link not in used]

    def seeds(self, vbuckets: Collection[VBucketId]) -> list[Address]:
        """The seeds to ask for a map: one while there is none, and all when it leaves gaps or names who is away."""
        if self.cluster is None:
            return self._untried[:1]
        nodes = {self.cluster.node_of(vbucket) for vbucket in vbuckets}
        if None in nodes or not self.links or any(map(self._is_failing, nodes)):
            return list(self._options.seeds)
        return []

    def _is_failing(self, node: Address | None) -> bool:
        """Whether a node's link broke and is not there again: another one may know who has its vbuckets now."""
        link = self.link_to(node)
        return node in self._pauses and (link is None or link.state is not LinkState.READY)

    def drop(self, link: Link) -> None:
        """Have a link no more; the map that it was asked for is asked for anew, where it still can be."""
        if link in self._asked:
            self._asked.discard(link)
            self.map_wanted = True  # `moved` waits for an answer that never comes
        del self.links[link.address]
        link.close()
        if link in self.to_connect:
            self.to_connect.remove(link)
        self.to_close.append(link)

    def pause(self, link: Link, now: float, *, lived_s: float) -> bool:
        """Let a node whose link broke alone for a while; True when every seed was tried and none ever told a map.

        A link that lived for long begins the pauses anew.
        """
        backoff = self._pauses.get(link.address, (Backoff(), 0.0))[0]
        if lived_s > RETRY_S_MAX:
            backoff.worked()
        self._pauses[link.address] = backoff, backoff.failed(now)
        self.map_wanted = True
        self._forget_map_of(link.address)
        if self.cluster is None and link.address in self._untried:
            self._untried.remove(link.address)
        return self.cluster is None and not self._untried

    def _forget_map_of(self, node: Address) -> None:
        """Believe no more what a node said of itself alone, while it is away: another one may have its vbuckets now."""
        left = {uuid: each for uuid, each in self._maps.items() if each.nodes != (node,)}
        if left and len(left) < len(self._maps):
            self._maps = left
            self.cluster = ClusterMap.together(list(left.values()))

    def try_seeds_again(self) -> None:
        """Begin anew with the seeds, of which none ever answered."""
        self._untried = list(self._options.seeds)

    def deadlines(self, now: float) -> list[float]:
        """When something is due by itself."""
        times = [link.deadline for link in self.links.values()]
        times += [at for _, at in self._pauses.values() if at > now]
        if self.map_wanted and self.ready():
            times.append(self.map_asked_at + MAP_PAUSE_S)
        return times

    # -- the map

    def ask_for_map(self, now: float, answered: Callable[[], None]) -> None:
        """Ask every node for its map, if one is wanted and nobody asked just now."""
        if not self.map_wanted or now < self.map_asked_at + MAP_PAUSE_S or not self.ready():
            return
        self.map_wanted = False
        self.map_asked_at = now
        waiting = set(self.ready())
        self._asked |= waiting

        def taken(link: Link, reply: Response) -> None:
            waiting.discard(link)
            self._asked.discard(link)
            if isinstance(reply, Text) and reply.value:
                self.take_map(ClusterMap.parse(reply.value, dialled=link.address))
            if not any(each.state is LinkState.READY for each in waiting):
                self.moved.clear()
                answered()

        for link in list(waiting):
            link.ask(GetClusterConfig(), lambda reply, link=link: taken(link, reply))  # type: ignore[misc]

    def take_map(self, cluster: ClusterMap) -> None:
        """Take a map in; a bucket that has another number of vbuckets is another bucket."""
        take_map(self._maps, cluster, self._options.bucket)
        self.cluster = ClusterMap.together(list(self._maps.values()))


__all__ = ["Nodes"]
