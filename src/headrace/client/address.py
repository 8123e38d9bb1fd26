"""Where a server listens, as people write it: `couchbase://host:port`, `couchbases://host` (TLS) or `host:port`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.client.errors import AddressError

PORT, TLS_PORT = 11210, 11207
"""Couchbase's own ports, without and with TLS."""

_PORTS = 65535
_HOST_SHOWN = 80
_SCHEMES = {"couchbase": False, "couchbases": True}
_HOST = re.compile(r"[^\s/?#@,\[\]:]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One server. It holds no name and no password, so that it can be shown."""

    host: str
    port: int = PORT
    tls: bool = False

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address.

        >>> Address.parse("couchbase://[::1]:11211")
        Address(host='::1', port=11211, tls=False)
        """
        scheme, separator, rest = text.rpartition("://")
        if "@" in text:  # what stands before it may be a password: it is not quoted
            raise AddressError("an address holds no user name and no password (there is a @ in it)")
        if separator and scheme not in _SCHEMES:
            raise AddressError(f"{text!r}: the scheme is couchbase:// or couchbases://, not {scheme}://")
        if "," in rest:
            raise AddressError(f"{text!r}: one server at a time")
        if "?" in rest or "#" in rest:
            raise AddressError(f"{text!r}: an address takes no parameters")
        tls = _SCHEMES.get(scheme, False)
        host, port = _split(text, rest.removesuffix("/") if separator else rest)
        return cls(host=host, port=port if port is not None else TLS_PORT if tls else PORT, tls=tls)

    @classmethod
    def checked(cls, host: str, port: int, *, tls: bool) -> Address:
        """Make an address of what a server tells, which may be no name that can be looked up."""
        try:
            host.encode("idna")  # as sockets do; it refuses labels that are empty or too long
        except UnicodeError:
            raise AddressError(f"{host[:_HOST_SHOWN]!r}: no name of a host") from None
        if not host.isprintable() or not 0 < port <= _PORTS:
            raise AddressError(f"{host[:_HOST_SHOWN]!r}, port {port}: no address")
        return cls(host=host, port=port, tls=tls)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _split(text: str, rest: str) -> tuple[str, int | None]:
    bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.]+(?:%\w+)?)\](?::(.*))?", rest)
    if bracketed:
        return bracketed[1], _port(text, bracketed[2])
    if rest.count(":") > 1:
        raise AddressError(f"{text!r}: an IPv6 address stands in brackets, as in [::1]:11210")
    host, colon, port = rest.partition(":")
    if not _HOST.fullmatch(host):
        raise AddressError(f"{text!r}: no host; an address is couchbase://host:port or host:port")
    return host, _port(text, port if colon else None)


def _port(text: str, port: str | None) -> int | None:
    if port is None:
        return None
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _PORTS):
        raise AddressError(f"{text!r}: the port is a number from 1 to {_PORTS}, not {port!r}")
    return int(port)
