"""How a node is started, checked before anything is opened, and what it says of where it is.

`headrace node`, `Node` and `AsyncNode` all come here: what one of them refuses, all refuse, in the same words.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from headrace.errors import HeadraceError
from headrace.node.cluster_config import Address
from headrace.node.limits import NodeLimits
from headrace.wire import Dialect

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

VBUCKETS_MAX = 1024
VBUCKETS_DEFAULT = 1024
PORT_DEFAULT = 11210
_PORT_MAX = 65535
_PATHS = ("data", "users", "tls_cert", "tls_key")

Sync = Literal["behind", "every-write"]
_SYNCS: tuple[Sync, ...] = ("behind", "every-write")

Spoken = Literal["auto", "dcp", "upr", "upr-draft"]
_SPOKEN: tuple[Spoken, ...] = ("auto", "dcp", "upr", "upr-draft")


class NodeError(HeadraceError):
    """A node cannot start as it was told to; the text says why and what to do."""


class NodeKeywords(TypedDict, total=False):
    """What `Node` and `AsyncNode` take: the fields of `NodeOptions`."""

    host: str
    port: int
    data: str | Path | None
    vbuckets: int | None
    buckets: Iterable[str]
    users: str | Path | None
    tls_cert: str | Path | None
    tls_key: str | Path | None
    http: int | None
    sync: Sync
    sync_every_write: bool
    dialect: Spoken
    limits: NodeLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How a node is started. Every field but `limits` is also an option of `headrace node`.

    Made, it is checked: what a node cannot be started with raises `NodeError`.
    """

    host: str = "127.0.0.1"
    """The address to listen on; other than loopback only with `users`."""
    port: int = PORT_DEFAULT
    """The port to listen on; 0 picks a free one, which is what `Node` and `AsyncNode` do when they are told none."""
    data: Path | None = None
    """The directory of the data, a path or a `str`; None is a temporary one that goes with the node."""
    vbuckets: int | None = None
    """How many vbuckets a bucket has, a power of two up to 1024; None is what the data has, or 1024 for new data."""
    buckets: tuple[str, ...] = ("default",)
    """The buckets to make where they are not there; those of the directory are served in any case."""
    users: Path | None = None
    """The users file, as `headrace user add` makes it; None lets everyone in."""
    tls_cert: Path | None = None
    """The certificate chain (PEM): the port then speaks TLS."""
    tls_key: Path | None = None
    """The private key of the certificate (PEM)."""
    http: int | None = None
    """The port for `/health`, `/metrics` and the REST routes; 0 picks a free one, None serves none of them."""
    sync: Sync = "behind"
    """`behind` acknowledges from memory, `every-write` only what is on disk."""
    sync_every_write: bool = False
    """The same as a boolean: true when `sync` is `every-write`, and it makes it so."""
    dialect: Spoken = "auto"
    """What stream connections speak: `auto` goes by their first message, the others refuse what is not theirs."""
    limits: NodeLimits = field(default_factory=NodeLimits)
    """What the node takes in before it slows clients down or turns them away."""

    def __post_init__(self) -> None:
        if self.sync not in _SYNCS:
            raise NodeError(f"sync is {' or '.join(_SYNCS)}, not {self.sync!r}")
        if self.dialect not in _SPOKEN:
            raise NodeError(f"dialect is one of {', '.join(_SPOKEN)}, not {self.dialect!r}")
        every_write = self.sync == "every-write" or self.sync_every_write
        self._put("sync", "every-write" if every_write else "behind")
        self._put("sync_every_write", every_write)
        for name in _PATHS:
            self._put(name, _path(name, getattr(self, name)))
        self._put("buckets", _names(self.buckets))
        _check_port("port", self.port)
        if self.http is not None:
            _check_port("http", self.http)
        if self.vbuckets is not None:
            check_vbuckets(self.vbuckets)
        _check_limits(self.limits)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise NodeError("TLS takes both a certificate and a key: --tls-cert and --tls-key")
        if not isinstance(self.host, str) or not self.host:  # type: ignore[redundant-expr]  # a caller without mypy
            raise NodeError(f"the host is the name or address of this machine to listen on, not {self.host!r}")
        if self.users is None and not _is_loopback(self.host):
            raise NodeError(
                f"{self.host} is open to other machines, and without users everyone may do everything: "
                "name a users file (--users FILE, made by `headrace user add`), or listen on 127.0.0.1"
            )

    @property
    def forced_dialect(self) -> Dialect | None:
        """The dialect of every connection; None where each has its own."""
        return None if self.dialect == "auto" else Dialect(self.dialect)

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # frozen, but not before it is made


def options_from(options: NodeOptions | None, keywords: NodeKeywords) -> NodeOptions:
    """What `Node` and `AsyncNode` were told: options ready-made, or their fields, and then a free port by default."""
    if options is None:
        return NodeOptions(**{"port": 0, **keywords})  # type: ignore[arg-type]  # it makes paths and tuples of them
    if not isinstance(options, NodeOptions):
        raise NodeError(f"a node takes NodeOptions or their fields by name, not {options!r}")
    if keywords:
        raise NodeError(f"a node takes NodeOptions or their fields by name, not both: {', '.join(keywords)}")
    return options


def check_vbuckets(count: object, where: str = "") -> int:
    """Give a number of vbuckets back, if a bucket can have it."""
    if not _is_int(count):
        raise NodeError(f"{where}the number of vbuckets is a whole number, not {count!r}")
    assert isinstance(count, int)
    if not 1 <= count <= VBUCKETS_MAX or count & (count - 1):
        raise NodeError(f"{where}{count} vbuckets: a power of two from 1 to {VBUCKETS_MAX} is needed")
    return count


def host_and_port(host: str, port: int) -> str:
    """An address as it is written: `127.0.0.1:11210`, `[::1]:11210`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Reachable:
    """What a node says of where it listens. Before it is started, that is what it was told."""

    def __init__(self, options: NodeOptions | None = None, /, **keywords: Unpack[NodeKeywords]) -> None:
        self.options = options_from(options, keywords)
        told = self.options
        self._address = Address(host=told.host, port=told.port, tls=told.tls_cert is not None, http_port=told.http)

    @property
    def address(self) -> Address:
        """Where the node listens."""
        return self._address

    @property
    def host(self) -> str:
        """The host that the node listens on."""
        return self._address.host

    @property
    def port(self) -> int:
        """The port that the node listens on."""
        return self._address.port

    @property
    def http_port(self) -> int | None:
        """The port for HTTP; None without `http`."""
        return self._address.http_port

    @property
    def connection_string(self) -> str:
        """What clients and Spark's option `connection` take."""
        return f"{'couchbases' if self._address.tls else 'couchbase'}://{host_and_port(self.host, self.port)}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _path(name: str, value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | Path):
        raise NodeError(f"{name} is a path, not {value!r}")
    if not str(value):
        raise NodeError(f"{name} has no name: an empty string is no path")
    return Path(value)


def _names(buckets: object) -> tuple[str, ...]:
    if isinstance(buckets, str):
        raise NodeError(f'buckets are a list of names, not one name: ["{buckets}"]')
    if not isinstance(buckets, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in buckets):
        raise NodeError(f"buckets are a list of names, not {buckets!r}")
    return tuple(buckets)


def _check_port(name: str, port: object) -> None:
    if not _is_int(port) or not 0 <= port <= _PORT_MAX:  # type: ignore[operator]
        raise NodeError(f"{name} is a number from 0 to {_PORT_MAX}, not {port!r}")


def _check_limits(limits: object) -> None:
    if not isinstance(limits, NodeLimits):
        raise NodeError(f"limits are a NodeLimits, not {limits!r}")
    for each in fields(limits):
        value = getattr(limits, each.name)
        is_number = _is_int(value) or (isinstance(each.default, float) and isinstance(value, float))
        if not is_number or math.isnan(value) or value < 0:
            kind = "a number" if isinstance(each.default, float) else "a whole number"
            raise NodeError(f"the limit {each.name} is {kind} from 0 on, not {value!r}")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
