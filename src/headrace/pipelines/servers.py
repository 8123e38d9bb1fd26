"""The two servers of a job: how to reach one, and what is asked of its vbuckets.

`Server` is a value that opens connections; `Vbuckets` asks and sets states by one of them. Both know clients only: the
server may be a headrace node or a Couchbase server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from headrace.client import KvConnection, NotMyVBucketError, ServerAnswerError, error_of
from headrace.client.opening import DEFAULT_BUCKET, Login
from headrace.history import State
from headrace.ids import Seqno, VBucketId
from headrace.wire import decode, encode
from headrace.wire.catalogue import (
    DeleteVBucket,
    ErrorReply,
    GetAllVBSeqnos,
    GetVBucket,
    SeqnoPersistence,
    Seqnos,
    SetVBucket,
    Stat,
    StatEntry,
    VBucketStateReply,
)

if TYPE_CHECKING:
    import ssl

    from headrace.client import Address

_CONNECTION = re.compile(r"eq_dcpq:(.+):[a-z_0-9]+$")
"""How servers name what they tell of a stream connection."""
_GROUP = re.compile(r":stream_\d+_group$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where a server is, and who one is there."""

    address: Address
    bucket: str = DEFAULT_BUCKET
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    timeout_s: float = 10.0

    def __str__(self) -> str:
        return str(self.address)

    @property
    def login(self) -> Login:
        """Who one is there."""
        return Login(address=self.address, bucket=self.bucket, username=self.username, password=self.password)

    def connect(self) -> KvConnection:
        """Open a connection for questions."""
        return KvConnection(
            self.address.host,
            self.address.port,
            username=self.username,
            password=self.password,
            bucket=self.bucket,
            tls=self.tls,
            timeout_s=self.timeout_s,
        )


class Vbuckets:
    """The states and seqnos of a server's vbuckets; a context manager that closes its connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._connection = server.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @property
    def count(self) -> int | None:
        """How many vbuckets the bucket has, if its cluster map tells."""
        return self._connection.vbuckets

    def state(self, vb: int) -> State | None:
        """The state of a vbucket; None where the server has no such one."""
        try:
            reply = self._connection.request(
                GetVBucket(vbucket=VBucketId(vb)), asked=f"the state of vbucket {vb} at {self.server}"
            )
        except NotMyVBucketError:
            return None
        assert isinstance(reply, VBucketStateReply)
        return State(reply.state)

    def set_state(self, vb: int, state: State) -> None:
        """Put a vbucket in a state, making it where it is not; it is on disk when this returns."""
        asked = f"vbucket {vb} := {state.name.lower()} at {self.server}"
        self._connection.request(SetVBucket(vbucket=VBucketId(vb), state=state), asked=asked)

    def delete(self, vb: int) -> None:
        """Remove a vbucket and all it holds; it must be dead."""
        self._connection.request(DeleteVBucket(vbucket=VBucketId(vb)), asked=f"to delete vbucket {vb} at {self.server}")

    def seqnos(self, state: State | None = None) -> dict[int, int]:
        """The high seqno of every vbucket, or of those in a state."""
        reply = self._connection.request(GetAllVBSeqnos(state=state), asked=f"the seqnos of {self.server}")
        assert isinstance(reply, Seqnos)
        return {row.vbucket: int(row.seqno) for row in reply.seqnos}

    def seqno(self, vb: int, state: State | None) -> int:
        """The high seqno of a vbucket that is in a state; 0 where it is not, or there is none."""
        return self.seqnos(state).get(vb, 0) if state is not None else 0

    def stats(self, group: str) -> dict[str, str]:
        """A group of statistics."""
        self._connection.send(encode(Stat(key=group.encode())))
        found: dict[str, str] = {}
        while True:
            reply = decode(self._connection.next_frame())
            if isinstance(reply, ErrorReply):
                raise error_of(f"stats {group} of {self.server}", reply.status, reply.value)
            if not isinstance(reply, StatEntry):
                raise ServerAnswerError(f"{self.server}: stats {group} was answered by {reply!r}")
            if not reply.key:
                return found
            found[reply.key.decode(errors="replace")] = reply.value.decode(errors="replace")

    def connections(self) -> set[str]:
        """The names of the connections that were opened for streams; in the UPR draft, of the streams themselves."""
        told = self.stats("dcp")
        names = (_CONNECTION.match(name) for name in told)
        groups = {content for name, content in told.items() if _GROUP.search(name)}
        return groups | {found[1] for found in names if found}

    def persisted(self, vb: int, seqno: int) -> None:
        """Wait until a vbucket has a seqno on disk; a server that takes too long for it says so."""
        asked = f"seqno {seqno} of vbucket {vb} on disk at {self.server}"
        self._connection.request(SeqnoPersistence(vbucket=VBucketId(vb), seqno=Seqno(seqno)), asked=asked)


__all__ = ["Server", "Vbuckets"]
