"""What there is to read at the nodes of a bucket, asked by who plans and does not read.

The high seqno of each vbucket and the node that owns it, failover logs, whether a position would be refused, what is on
disk everywhere. It blocks, has one connection for each node, and keeps them.

A node that does not answer is left out of an answer, and so is a vbucket that nobody owns: who asks decides how long to
wait for them. Nothing is left out without a trace: `trouble` says what went wrong last. Only what waiting cannot mend
is raised: a wrong password, a bucket or a collection that is not there, a server of another kind; and the first
contact, if no server answers at all.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Self

from headrace.client.cluster_map import ClusterMap, take_map
from headrace.client.connection import FEATURES, NodeConnection
from headrace.client.errors import (
    AuthFailedError,
    ClientError,
    ConnectionLostError,
    NoAccessError,
    NoBucketError,
    NotFoundError,
    ServerAnswerError,
    UnknownCommandError,
    error_of,
)
from headrace.client.manifest import ask_collections
from headrace.client.mitigation import persisted_of
from headrace.client.opening import Login, opening
from headrace.errors import LocalProtocolError
from headrace.history import FailoverLog as Log
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.wire.catalogue import (
    CloseStream,
    FailoverLog,
    GetAllVBSeqnos,
    GetClusterConfig,
    GetFailoverLog,
    Observed,
    ObserveSeqno,
    Open,
    Rollback,
    Seqnos,
    StreamRequest,
    Text,
)
from headrace.wire.codes import Feature, OpenFlag, Status, StreamFlag, VBucketState

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from headrace.client.address import Address
    from headrace.client.options import ChangeOptions
    from headrace.history import Position
    from headrace.wire.message import Request, Response

MAP_S_MAX = 5.0
"""A map that is older is asked for again."""

PAUSE_S = 0.2
"""How long to wait before vbuckets that are out of reach are looked for again."""

_FINAL = (AuthFailedError, NoAccessError, NoBucketError, ServerAnswerError, LocalProtocolError)


class Sighting(NamedTuple):
    """A vbucket that can be read: where, and up to which seqno."""

    node: Address
    high: Seqno


class _Line(NodeConnection):
    """A connection for questions, which speaks of collections where changes of them are wanted.

    To who does not, servers tell how far the default collection came, and not the vbucket (kv_engine,
    `getAllVBucketSequenceNumbers`).
    """

    def __init__(self, node: Address, options: ChangeOptions, tls: ssl.SSLContext | None) -> None:
        self._collections = options.collections
        super().__init__(
            node.host,
            node.port,
            username=options.username,
            password=options.password,
            bucket=options.bucket,
            tls=tls,
            timeout_s=options.timeout_s,
        )

    def _open(self, username: str | None, password: str | None) -> None:
        login = Login(address=self.address, bucket=self.bucket, username=username, password=password)
        wanted = FEATURES if self._collections is None else (*FEATURES, Feature.COLLECTIONS)
        self.features = self._go_through(opening(login, wanted))
        if self._collections is not None:
            self._go_through(ask_collections(self.address, self.features, self._collections))


class Scout:
    """Asks the nodes of a bucket; a context manager that closes its connections."""

    def __init__(self, options: ChangeOptions) -> None:
        self.trouble: ClientError | None = None
        self._options = options
        self._tls = options.tls()
        self._lines: dict[Address, NodeConnection] = {}
        self._maps: dict[str, ClusterMap] = {}
        self._map_at = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the next question makes them anew."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    # -- questions

    @property
    def vbuckets(self) -> int:
        """How many vbuckets the bucket has."""
        return len(self._map().copies)

    def sightings(self) -> dict[VBucketId, Sighting]:
        """Tell of each vbucket where it is and how far; one that cannot be asked for now is left out."""
        cluster = self._map()
        found = self._ask_seqnos(cluster)
        if len(found) < len(cluster.copies) or time.monotonic() > self._map_at + MAP_S_MAX:
            self._learn_map()
            if self._map() != cluster:
                found = self._ask_seqnos(self._map())
        return found

    def await_sightings(self, wanted: Collection[VBucketId] | None = None) -> dict[VBucketId, Sighting]:
        """Wait until some vbuckets, or all, can be read; raise after `give_up_s` of the options."""
        began = time.monotonic()
        while True:
            found = self.sightings()
            missing = set(range(self.vbuckets) if wanted is None else wanted) - found.keys()
            if not missing:
                return found
            self.check_patience(missing, began)
            time.sleep(PAUSE_S)

    def check_patience(self, missing: Collection[int], since: float) -> None:
        """Raise when vbuckets have been out of reach for too long."""
        limit = self._options.give_up_s
        if limit is not None and time.monotonic() > since + limit:
            told = f"; last: {self.trouble}" if self.trouble is not None else ""
            raise ConnectionLostError(
                f"{len(missing)} vbuckets of bucket {self._options.bucket} have had no node that answers for "
                f"{limit:g} s, the first is vbucket {min(missing)}{told}"
            )

    def logs(self, vbuckets: Iterable[VBucketId]) -> dict[VBucketId, Log]:
        """Tell the failover logs."""
        asked = {vbucket: GetFailoverLog(vbucket=vbucket) for vbucket in vbuckets}
        return {
            vbucket: self._log(vbucket, reply)
            for vbucket, reply in self._ask_owners(asked).items()
            if isinstance(reply, FailoverLog)
        }

    def refusals(self, positions: Mapping[VBucketId, Position]) -> dict[VBucketId, Seqno]:
        """Tell which positions the servers would not go on from, and where they say to roll back to.

        Each is asked for with a stream that ends where it starts, and brings nothing.
        """
        asked = {
            vbucket: StreamRequest(
                vbucket=vbucket,
                flags=StreamFlag.ACTIVE_ONLY,
                start_seqno=at.seqno,
                end_seqno=at.seqno,
                vbuuid=at.vbuuid,
                snapshot_start=at.snapshot.start,
                snapshot_end=at.snapshot.end,
            )
            for vbucket, at in positions.items()
        }
        replies = self._ask_owners(asked)
        # The end of a stream comes when the server has time for it, and until then it has no room for another.
        self._ask_owners(
            {vb: CloseStream(vbucket=vb) for vb, reply in replies.items() if isinstance(reply, FailoverLog)}
        )
        return {vbucket: reply.seqno for vbucket, reply in replies.items() if isinstance(reply, Rollback)}

    def persisted(self, branches: Mapping[VBucketId, VbUuid]) -> dict[VBucketId, Seqno]:
        """Tell up to which seqno every copy of a vbucket has a branch on disk; 0 while one cannot be asked."""
        by_node: dict[Address, list[VBucketId]] = defaultdict(list)
        cluster = self._map()
        for vbucket in branches:
            for node in cluster.nodes_of(vbucket):
                by_node[node].append(vbucket)
        found: dict[VBucketId, list[int]] = {vbucket: [] for vbucket in branches}
        for node, held in by_node.items():
            asked = [ObserveSeqno(vbucket=vbucket, vbuuid=branches[vbucket]) for vbucket in held]
            replies = dict(zip(held, self._ask(node, asked) or (), strict=False))
            for vbucket in held:
                reply = replies.get(vbucket)
                known = persisted_of(reply, branches[vbucket]) if isinstance(reply, Observed) else 0
                found[vbucket].append(known)
        return {vbucket: Seqno(min(seen, default=0)) for vbucket, seen in found.items()}

    # -- nodes

    def _ask_owners(self, asked: Mapping[VBucketId, Request]) -> dict[VBucketId, Response]:
        by_node: dict[Address, list[VBucketId]] = defaultdict(list)
        cluster = self._map()
        for vbucket in asked:
            node = cluster.node_of(vbucket)
            if node is not None:
                by_node[node].append(vbucket)
        found: dict[VBucketId, Response] = {}
        for node, held in by_node.items():
            replies = self._ask(node, [asked[vbucket] for vbucket in held])
            if replies is not None:
                found.update(zip(held, replies, strict=True))
        return found

    def _ask_seqnos(self, cluster: ClusterMap) -> dict[VBucketId, Sighting]:
        found: dict[VBucketId, Sighting] = {}
        owners = map(cluster.node_of, range(len(cluster.copies)))
        for node in dict.fromkeys(owner for owner in owners if owner is not None):
            for reply in self._ask(node, [GetAllVBSeqnos(state=VBucketState.ACTIVE)]) or ():
                if not isinstance(reply, Seqnos):
                    raise error_of(f"the seqnos of the vbuckets at {node}", reply.status)
                for row in reply.seqnos:
                    if row.vbucket < len(cluster.copies) and cluster.node_of(row.vbucket) == node:
                        found[VBucketId(row.vbucket)] = Sighting(node, row.seqno)
        return found

    def _ask(self, node: Address, messages: Sequence[Request]) -> list[Response] | None:
        """Ask one node; None when it does not answer. A connection that was idle may be gone: then once more."""
        for fresh in (False, True):
            if fresh or node in self._lines:
                try:
                    return self._line(node).ask_all(messages)
                except ConnectionLostError as error:
                    self._lost(node, error)
        return None

    def _lost(self, node: Address, error: ClientError) -> None:
        self.trouble = error
        line = self._lines.pop(node, None)
        if line is not None:
            line.close()
        # What a node said of itself alone is not believed while it is away: another one may have its vbuckets now.
        self._maps = {uuid: each for uuid, each in self._maps.items() if each.nodes != (node,)} or self._maps

    def _line(self, node: Address) -> NodeConnection:
        if node not in self._lines:
            options = self._options
            line = _Line(node, options, self._tls)
            try:
                # Servers close a connection that asks for a failover log before it was opened for streams.
                name = f"{options.name}-scout-{secrets.token_hex(8)}"
                line.request(Open(name=name.encode(), flags=OpenFlag.PRODUCER), asked=f"streams at {node}")
            except BaseException:
                line.close()
                raise
            self._lines[node] = line
        return self._lines[node]

    # -- the map

    def _map(self) -> ClusterMap:
        if not self._maps:
            self._learn_map()
        return ClusterMap.together(list(self._maps.values()))

    def _learn_map(self) -> None:
        """Ask for the map: whom we know, then the seeds, until one leaves no gap."""
        self._map_at = time.monotonic()
        known = [node for each in self._maps.values() for node in each.nodes]
        for node in dict.fromkeys([*self._lines, *known, *self._options.seeds]):
            try:
                take_map(self._maps, self._map_of(self._line(node), node), self._options.bucket)
            except (ConnectionLostError, NotFoundError) as error:
                self._lost(node, error)
                if isinstance(error, NotFoundError) and not self._maps:
                    raise
            except _FINAL:
                if not self._maps:
                    raise
            else:
                together = ClusterMap.together(list(self._maps.values()))
                if all(together.node_of(vbucket) in self._lines for vbucket in range(len(together.copies))):
                    return
        if not self._maps:
            assert self.trouble is not None, "a connection string has a seed"
            raise self.trouble

    def _map_of(self, line: NodeConnection, node: Address) -> ClusterMap:
        config = line.ask_all([GetClusterConfig()])[0]
        if isinstance(config, Text) and config.value:
            return ClusterMap.parse(config.value, dialled=node)
        if config.status not in (Status.SUCCESS, Status.UNKNOWN_COMMAND, Status.KEY_NOT_FOUND):
            raise error_of(f"the cluster config of {node}", config.status)
        held = line.ask_all([GetAllVBSeqnos()])[0]
        if not isinstance(held, Seqnos):
            raise UnknownCommandError(f"the vbuckets of {node}", held.status, "it has no change streams")
        return ClusterMap.alone_with(node, held.seqnos)

    @staticmethod
    def _log(vbucket: VBucketId, reply: FailoverLog) -> Log:
        try:
            return Log.from_entries(reply.entries)
        except LocalProtocolError as error:
            raise ServerAnswerError(f"vbucket {vbucket}: no failover log: {error}") from None


__all__ = ["Scout", "Sighting"]
