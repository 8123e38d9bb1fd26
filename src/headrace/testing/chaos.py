"""The faults of `headrace chaos` from Python, at a node in this program or at one far away.

    with headrace.Node(vbuckets=4) as node:
        chaos = Chaos(node)
        chaos.failover(0, lost=3)

What each one does, and what a right consumer does then, is in the table of `headrace.protocol.faults` and in
docs/reference/chaos.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.client.address import Address
from headrace.client.chaos import Effect, make_trouble
from headrace.client.connection import DEFAULT_BUCKET, TIMEOUT_S, KvConnection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from headrace.node.options import Reachable


class GoneBack(NamedTuple):
    """What became of a vbucket that lost changes."""

    vbucket: int
    state: str
    before: int
    """The high seqno that it had."""
    now: int
    """The high seqno that it has."""
    vbuuid: int
    """The branch that it is on."""

    @property
    def lost(self) -> int:
        """How many seqnos were lost."""
        return self.before - self.now


class Chaos:
    """Makes trouble at a node. Each call opens a connection of its own, and is done when it returns.

    >>> from headrace.node import Node
    >>> with Node(vbuckets=1) as node:
    ...     Chaos(node).failover(0)[0].lost
    0

    A node with users wants the name and password of an admin. A `headrace.client.StatusError` says that the node
    refused, for example since no connection has such a name.
    """

    def __init__(
        self,
        node: Reachable | str,
        *,
        bucket: str = DEFAULT_BUCKET,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.address = Address.parse(node if isinstance(node, str) else node.connection_string)
        self.bucket = bucket
        self._username, self._password, self._timeout_s = username, password, timeout_s
        if tls is None and self.address.tls:
            import ssl  # noqa: PLC0415 - most nodes of tests speak no TLS

            tls = ssl.create_default_context()
        self._tls = tls

    def make(self, fault: str, **arguments: object) -> list[Effect]:
        """Make any fault of the table, by its name."""
        connection = KvConnection(
            self.address.host,
            self.address.port,
            username=self._username,
            password=self._password,
            bucket=self.bucket,
            tls=self._tls,
            timeout_s=self._timeout_s,
        )
        with connection:
            return make_trouble(connection, fault, arguments)

    # ------------------------------------------------------------------------------------------------------- vbuckets

    def failover(self, vbuckets: int | str | Iterable[int], *, lost: int = 0) -> list[GoneBack]:
        """Fail vbuckets over, with so many lost changes each."""
        return _gone_back(self.make("failover", vbuckets=_listed(vbuckets), lost=lost))

    def rollback(self, vbuckets: int | str | Iterable[int], *, to: int) -> list[GoneBack]:
        """Roll vbuckets back to a seqno."""
        return _gone_back(self.make("rollback", vbuckets=_listed(vbuckets), to=to))

    def purge(self, vbuckets: int | str | Iterable[int] = "all", *, older_than_s: int = 0) -> dict[int, int]:
        """Purge tombstones; give the purge seqno of each vbucket."""
        effects = self.make("purge", vbuckets=_listed(vbuckets), older_than_s=older_than_s)
        return {effect["vbucket"]: effect["purge_seqno"] for effect in effects}

    # ----------------------------------------------------------------------------------------------------------- disk

    def pause(self) -> None:
        """Pause persistence: changes stay in memory, and a crash loses them."""
        self.make("pause")

    def resume(self) -> None:
        """Resume persistence."""
        self.make("resume")

    def crash(self) -> None:
        """Kill the node's process, with SIGKILL; a node inside this program refuses."""
        self.make("crash")

    # ---------------------------------------------------------------------------------------------------- connections

    def slow(self, bytes_per_second: int, *, name: str = "*") -> None:
        """Slow streams down, of connections that are open and of those that come, until `calm`."""
        self.make("slow", bytes_per_second=bytes_per_second, name=name)

    def cut(
        self,
        *,
        name: str = "*",
        after_messages: int | None = None,
        after_bytes: int | None = None,
        mid_message: bool = False,
        again: bool = False,
    ) -> list[str]:
        """Cut connections, now or a little later; give their names."""
        effects = self.make(
            "cut",
            name=name,
            after_messages=after_messages,
            after_bytes=after_bytes,
            mid_message=mid_message,
            again=again,
        )
        return _connections(effects)

    def end(self, vbuckets: int | str | Iterable[int] = "all", *, reason: int | str = 2, name: str = "*") -> int:
        """End streams with a reason; give how many there were."""
        return len(self.make("end", vbuckets=_listed(vbuckets), reason=reason, name=name))

    def refuse(
        self,
        status: int | str = "temporary_failure",
        *,
        count: int = 1,
        seqno: int = 0,
        vbuckets: int | str | Iterable[int] = "all",
        name: str = "*",
    ) -> None:
        """Refuse the next stream requests with a status; with 0x23 they are told to roll back to `seqno`."""
        self.make("refuse", status=status, count=count, seqno=seqno, vbuckets=_listed(vbuckets), name=name)

    def freeze(self, *, name: str = "*") -> list[str]:
        """Let connections fall silent; give their names."""
        return _connections(self.make("freeze", name=name))

    def thaw(self, *, name: str = "*") -> list[str]:
        """Let frozen connections go on; give their names."""
        return _connections(self.make("thaw", name=name))

    # ------------------------------------------------------------------------------------------------------------ all

    def calm(self) -> None:
        """Make no more trouble."""
        self.make("calm")

    def show(self) -> list[Effect]:
        """Tell which troubles are in force, and which connections there are."""
        return self.make("show")


def _listed(vbuckets: int | str | Iterable[int]) -> int | str | list[int]:
    return vbuckets if isinstance(vbuckets, int | str) else list(vbuckets)


def _gone_back(effects: list[Effect]) -> list[GoneBack]:
    return [
        GoneBack(one["vbucket"], state=one["state"], before=one["from"], now=one["to"], vbuuid=one["vbuuid"])
        for one in effects
    ]


def _connections(effects: list[Effect]) -> list[str]:
    return [effect["connection"] for effect in effects if "connection" in effect]
