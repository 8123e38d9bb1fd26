"""What a reader of changes is told: where, as whom, what, its bounds. Plain values that travel between processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.client.address import Address
from headrace.client.errors import AddressError, ClientError
from headrace.client.opening import DEFAULT_BUCKET, Login
from headrace.columns import BINARY_KEYS, TEXT_KEYS
from headrace.wire.codes import OpenFlag
from headrace.wire.limits import BODY_BYTES_MAX

if TYPE_CHECKING:
    import ssl

WINDOW_BYTES = 16 * 1024 * 1024
BUFFER_BYTES = 4 * 1024 * 1024
"""What is received at a time, and so how large a batch is: also at a task of Spark."""
BUFFER_BYTES_MIN = 4096
_NAME_BYTES_MAX = 150
"""Servers take 200; a number is put behind it."""


class OptionError(ClientError):
    """A reader was told something that cannot be."""


class OnRollback(StrEnum):
    """What becomes of a rollback."""

    EVENT = "event"
    """It is told, and the stream goes on from the last place where both sides agree and the reader's copy is whole."""
    REBUILD = "rebuild"
    """It is told, and the vbucket is read from its beginning."""
    FAIL = "fail"
    """The reader raises."""


def addresses(connection: str) -> tuple[Address, ...]:
    """Read a connection string: `couchbase://host1:port,host2` or `couchbases://…` for TLS.

    >>> [str(each) for each in addresses("couchbase://a,b:11999")]
    ['a:11210', 'b:11999']
    """
    scheme, separator, rest = connection.rpartition("://")
    hosts = [host for host in rest.removesuffix("/").split(",") if host.strip()]
    if not hosts:
        raise AddressError(f"{connection!r}: no host; a connection string is couchbase://host:port,host:port")
    return tuple(Address.parse(f"{scheme}{separator}{host.strip()}") for host in hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """Where to read changes, as whom, and within which bounds. It can be pickled; its repr shows no password."""

    connection: str = "couchbase://127.0.0.1:11210"
    """The servers to ask first: `couchbase://host1,host2:port`, or `couchbases://…` for TLS."""
    bucket: str = DEFAULT_BUCKET
    """The bucket."""
    username: str | None = None
    """The user; without one, nobody authenticates."""
    password: str | None = dataclasses.field(default=None, repr=False)
    """The user's password. It is never shown, and goes over the wire by SCRAM or inside TLS only."""
    tls_ca: str | None = None
    """A file with the certificates to trust (PEM), in place of the system's."""
    name: str = "headrace"
    """What the connections are called at the servers; a random number is put behind it."""
    vbuckets: tuple[int, ...] | None = None
    """The vbuckets to read; None for all."""
    xattrs: bool = False
    """Ask for extended attributes."""
    collections: tuple[str, ...] | None = None
    """Which collections, as `scope.collection`; an empty tuple for all; None for a server or bucket without them."""
    no_value: bool = False
    """Ask for changes without their values."""
    delete_times: bool = True
    """Ask for the times of deletions, and for expirations apart from deletions, where the server knows them."""
    compression: bool = True
    """Take values compressed with snappy where the server stores them so; they are inflated here."""
    keys: str = TEXT_KEYS
    """`text`, which refuses a key that is not UTF-8, or `binary`."""
    on_rollback: OnRollback = OnRollback.EVENT
    """What becomes of a rollback: `event`, `rebuild` or `fail`."""
    mitigate_rollbacks: bool = False
    """Hold changes back until every copy of their vbucket has them on disk."""
    mitigation_interval_s: float = 0.1
    """How often the copies are asked, while something is held back."""
    window_bytes: int = WINDOW_BYTES
    """How much a server may send ahead of what was taken; 0 for no bound."""
    buffer_bytes: int = BUFFER_BYTES
    """How much is received before it is decoded: the largest batch, but for a single change that is larger."""
    noop_interval_s: int = 120
    """After so long without changes a server asks for a sign of life."""
    idle_s: float = 30.0
    """After so long without a byte the server is asked for one; `timeout_s` later the connection counts as dead."""
    timeout_s: float = 10.0
    """How long a server may take to connect and to answer."""
    give_up_s: float | None = 60.0
    """How long a vbucket may stay unreadable, with all its tries, before the reader raises; None for ever."""
    priority: str | None = None
    """`low`, `medium` or `high`, where the server minds."""

    def __post_init__(self) -> None:
        self._check(self.keys in (TEXT_KEYS, BINARY_KEYS), f"keys is {TEXT_KEYS!r} or {BINARY_KEYS!r}")
        self._check((self.username is None) == (self.password is None), "a user name and a password go together")
        self._check(self.window_bytes >= 0, "window_bytes is not negative")
        self._check(self.buffer_bytes >= BUFFER_BYTES_MIN, f"buffer_bytes is at least {BUFFER_BYTES_MIN}")
        self._check(1 <= self.noop_interval_s <= 10800, "noop_interval_s is 1 to 10800")  # noqa: PLR2004 - servers' own
        self._check(self.idle_s > 0 and self.timeout_s > 0, "idle_s and timeout_s are more than 0")
        self._check(self.mitigation_interval_s > 0, "mitigation_interval_s is more than 0")
        self._check(self.give_up_s is None or self.give_up_s >= 0, "give_up_s is None or not negative")
        self._check(0 < len(self.name.encode()) <= _NAME_BYTES_MAX, f"a name has 1 to {_NAME_BYTES_MAX} bytes")
        for name in self.collections or ():
            self._check(len(name.split(".")) == 2, f"a collection is scope.collection, not {name!r}")  # noqa: PLR2004
        self._check(self.priority in (None, "low", "medium", "high"), "priority is low, medium or high")
        self._check(self.on_rollback in set(OnRollback), f"on_rollback is one of {', '.join(OnRollback)}")
        seeds = addresses(self.connection)
        self._check(self.tls_ca is None or seeds[0].tls, "tls_ca needs a couchbases:// connection")

    @staticmethod
    def _check(holds: bool, wanted: str) -> None:  # noqa: FBT001 - a condition
        if not holds:
            raise OptionError(wanted)

    @property
    def seeds(self) -> tuple[Address, ...]:
        """The servers to ask first."""
        return addresses(self.connection)

    @property
    def open_flags(self) -> int:
        """What the connections are opened with."""
        flags = OpenFlag.PRODUCER
        if self.xattrs:
            flags |= OpenFlag.INCLUDE_XATTRS
        if self.no_value:
            flags |= OpenFlag.NO_VALUE
        if self.delete_times:
            flags |= OpenFlag.INCLUDE_DELETE_TIMES
        return int(flags)

    @property
    def body_bytes_max(self) -> int:
        """The largest message that is taken."""
        return BODY_BYTES_MAX

    def login(self, address: Address) -> Login:
        """Who one is at a node."""
        return Login(address=address, bucket=self.bucket, username=self.username, password=self.password)

    def tls(self) -> ssl.SSLContext | None:
        """Make what TLS needs; None without TLS."""
        if not self.seeds[0].tls:
            return None
        import ssl  # noqa: PLC0415 - 15 ms that an open connection need not wait

        try:
            return ssl.create_default_context(cafile=self.tls_ca)
        except OSError as error:
            raise OptionError(f"{self.tls_ca}: no certificates to trust: {error.strerror or error}") from None


__all__ = ["BUFFER_BYTES", "WINDOW_BYTES", "ChangeOptions", "OnRollback", "OptionError", "addresses"]
