"""The ways to the nodes of a bucket that is written to: a connection each, the block under way there, and the map.

A lane is a node's. It connects when something is to be sent, and again after it broke. A vbucket that no node owns just
now has a lane that leads nowhere: what is sent there is lost at once, and sent again later like all that was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.cluster_map import ClusterMap, take_map
from headrace.client.connection import NodeConnection
from headrace.client.errors import (
    AuthFailedError,
    ClientError,
    ConnectionLostError,
    ServerAnswerError,
    StatusError,
    UnknownCommandError,
    error_of,
)
from headrace.client.opening import Login, opening
from headrace.client.writing_frames import Block
from headrace.wire import decode, encode
from headrace.wire.catalogue import ErrorReply, GetClusterConfig, Stat, StatEntry, Text
from headrace.wire.codes import Feature
from headrace.wire.limits import KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.client.address import Address
    from headrace.client.options import ChangeOptions
    from headrace.wire import Frame, Request, Response

FEATURES = (
    Feature.MUTATION_SEQNO,  # answers tell the branch that took a write: see writing_journal
    Feature.XATTR,
    Feature.XERROR,  # without it, servers close the connection of who lacks a right
    Feature.SELECT_BUCKET,
    Feature.JSON,
    Feature.DEDUPE_NOT_MY_VBUCKET,  # else each refusal brings the whole map
)

_CONFLICTS = "ep_conflict_resolution_type"
_KEY_BYTES_SHOWN = 40


class Line(NodeConnection):
    """A connection for writes."""

    def _open(self, username: str | None, password: str | None) -> None:
        login = Login(address=self.address, bucket=self.bucket, username=username, password=password)
        self.features = self._go_through(opening(login, FEATURES))

    def cluster_map(self) -> ClusterMap:
        """Ask for the map; a server that knows none, as memcached, holds everything itself.

        One that starts and was not told of its cluster yet has an empty one. What it holds says nothing then of how
        many vbuckets the bucket has, and a key would go to the wrong one: it is waited for.
        """
        try:
            reply = self.request(GetClusterConfig(), asked=f"the cluster config of {self.address}")
        except UnknownCommandError:
            return ClusterMap.alone(self.address, 1)
        if not isinstance(reply, Text):
            raise ServerAnswerError(f"{self.address}: no cluster config: {reply!r}")
        if not reply.value:
            raise ConnectionLostError(f"{self.address}: it was told of no cluster; the bucket may not be ready yet")
        return ClusterMap.parse(reply.value, dialled=self.address)

    def settles_by_time(self) -> bool:
        """Whether the bucket takes the later of two versions for the newer one, where others go by revisions."""
        self.send(encode(Stat(key=b"config")))
        found = False
        while True:
            reply = decode(self.next_frame())
            if isinstance(reply, ErrorReply):
                return False  # a server that does not tell knows revisions only, or does not care
            if not isinstance(reply, StatEntry):
                raise ServerAnswerError(f"{self.address}: stats config was answered by {reply!r}")
            if not reply.key:
                return found
            if reply.key == _CONFLICTS.encode():
                found = reply.value == b"lww"


class Lane:
    """The way to one node: `filling` is not sent yet, `under_way` is not answered yet."""

    def __init__(self, address: Address | None, lanes: Lanes) -> None:
        self.address = address
        self.filling = Block()
        self.under_way: Block | None = None
        self._lanes = lanes
        self._line: Line | None = None
        self._broken: ClientError | None = None

    def line(self) -> Line:
        """The connection, made if there is none."""
        if self.address is None:
            raise ConnectionLostError(f"bucket {self._lanes.options.bucket}: no node serves the vbucket now")
        if self._line is None:
            self._line = self._lanes.connect(self.address)
        return self._line

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._line is not None

    def send(self, block: Block) -> None:
        """Send a block. If that fails, `answers` tells."""
        assert self.under_way is None, "one block at a time"
        self.under_way = block
        try:
            self.line().send(block.frames())
        except ClientError as error:
            self._broken = error

    def answers(self) -> Iterator[Frame]:
        """What is answered, as long as somebody asks; raises when the block is lost."""
        if self._broken is not None:
            error, self._broken = self._broken, None
            self.close()
            raise error
        line = self.line()
        while True:
            try:
                yield line.next_frame()
            except ClientError:
                self.close()
                raise

    def ask_all(self, messages: Sequence[Request]) -> list[Response]:
        """Ask something while nothing is under way."""
        assert self.under_way is None, "an answer would be taken for one to a row"
        try:
            return self.line().ask_all(messages)
        except ClientError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next use makes a new one."""
        if self._line is not None:
            self._line.close()
            self._line = None


class Lanes:
    """Every lane, and the map that says which vbucket is where."""

    def __init__(self, options: ChangeOptions) -> None:
        self.options = options
        self.at: list[Lane] = []
        """By vbucket."""
        self._tls = options.tls()
        self._lanes: dict[Address | None, Lane] = {}
        self._maps: dict[str, ClusterMap] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._lanes.values()))

    def connect(self, address: Address) -> Line:
        """Open a connection to a node."""
        options = self.options
        return Line(
            address.host,
            address.port,
            username=options.username,
            password=options.password,
            bucket=options.bucket,
            tls=self._tls,
            timeout_s=options.timeout_s,
        )

    def close(self) -> None:
        """Close every connection."""
        for lane in self:
            lane.close()

    def learn(self) -> None:
        """Ask for the map: whom we know, then the seeds. Nothing may be under way; raises when nobody answers."""
        known = [node for each in self._maps.values() for node in each.nodes]
        failure: ClientError | None = None
        answered: list[str] = []
        for node in dict.fromkeys([*known, *self.options.seeds]):
            lane = self._lane(node)
            try:
                found = lane.line().cluster_map()
                take_map(self._maps, found, self.options.bucket)
                answered.append(found.bucket_uuid)
            except AuthFailedError:
                raise
            except StatusError as error:
                lane.close()
                failure = error  # what a node says tells more than that another one is silent
            except ConnectionLostError as error:
                lane.close()
                failure = failure or error
        if not answered:
            assert failure is not None, "a connection string has a seed"
            raise failure
        # Where two say that they have a vbucket, who is there is believed more than who is not.
        self._maps = {uuid: self._maps[uuid] for uuid in dict.fromkeys([*answered, *self._maps])}
        cluster = ClusterMap.together(list(self._maps.values()))
        self.at = [self._lane(cluster.node_of(vbucket)) for vbucket in range(len(cluster.copies))]

    def _lane(self, address: Address | None) -> Lane:
        if address not in self._lanes:
            self._lanes[address] = Lane(address, self)
        return self._lanes[address]


def key_shown(key: bytes) -> str:
    """A key as errors show it: not all of one that is too long to be one."""
    cut = "…" if len(key) > KEY_BYTES_MAX else ""
    return key[: _KEY_BYTES_SHOWN if cut else KEY_BYTES_MAX].decode(errors="backslashreplace") + cut


def error_at(block: Block, place: int, status: int, value: bytes) -> StatusError:
    """The error that a row was answered with."""
    return error_of(f"{block.forms[place].name} {key_shown(block.key(place))}", status, value)


__all__ = ["FEATURES", "Lane", "Lanes", "Line", "error_at", "key_shown"]
