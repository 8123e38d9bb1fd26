"""How a connection is opened, whoever moves the bytes: each step is a question, and its answer comes back.

These are generators. They yield an `Ask`, and are sent the answer or thrown the `StatusError` that it was; what they
return is what was agreed on. So one text of the rules serves the blocking connection for items, and the streams with
and without an event loop.

hello, SCRAM, select bucket: each only where it has a meaning. Plain memcached knows none of them and is served all the
same. Nothing here shows a password, and the generators keep it no longer than they run.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import __version__
from headrace.client.errors import AuthFailedError, UnknownCommandError, error_of
from headrace.scram import HASHES, ScramClient, ScramError
from headrace.wire.catalogue import Hello, HelloReply, SaslAuth, SaslListMechs, SaslStep, SelectBucket, Text
from headrace.wire.codes import Feature, Status
from headrace.wire.message import Response

if TYPE_CHECKING:
    from headrace.client.address import Address
    from headrace.wire.message import Request

DEFAULT_BUCKET = "default"
AGENT = f"headrace/{__version__}".encode()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; the answer has to be of `kind`. `asked` names it in errors, empty for the message's own name."""

    message: Request
    kind: type[Response]
    asked: str = ""


Steps = Generator[Ask, Any, Any]
"""Yields what to ask, takes what was answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Who one is, and where."""

    address: Address
    bucket: str = DEFAULT_BUCKET
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Login({self.username} at {self.address}, bucket={self.bucket!r})"


def opening(login: Login, features: tuple[int, ...]) -> Generator[Ask, Any, frozenset[int]]:
    """Say hello, show who one is, select the bucket; returns the features that the server granted."""
    granted = yield from _hello(features)
    if login.username is not None and login.password is not None:
        yield from _authenticate(login, login.username, login.password)
    asked = f"bucket {login.bucket} at {login.address}"
    if Feature.SELECT_BUCKET in granted:
        yield Ask(SelectBucket(name=login.bucket.encode()), Response, asked)
    elif login.bucket != DEFAULT_BUCKET:
        raise error_of(asked, Status.NOT_SUPPORTED, b"it has no buckets")
    return granted


def _hello(features: tuple[int, ...]) -> Generator[Ask, Any, frozenset[int]]:
    try:
        # Empty at first: memcached 1.6 never answers an unknown command that has a body. It waits for more bytes,
        # and takes the next request for them.
        yield Ask(Hello(), HelloReply)
    except UnknownCommandError:
        return frozenset()
    granted = yield Ask(Hello(agent=AGENT, features=features), HelloReply)
    return frozenset(granted.features)


def _authenticate(login: Login, username: str, password: str) -> Steps:
    asked = f"user {username} at {login.address}"
    try:
        offered = (yield Ask(SaslListMechs(), Text, asked)).value.decode(errors="replace").split()
    except UnknownCommandError as error:
        raise AuthFailedError(asked, error.status, "the server has no users") from None
    found = [mechanism for mechanism in HASHES if mechanism in offered]
    try:
        if found:
            yield from _scram(found[0], username, password, asked)
        elif "PLAIN" in offered and login.address.tls:
            challenge = b"\0".join((b"", username.encode(), password.encode()))
            yield Ask(SaslAuth(mechanism=b"PLAIN", challenge=challenge), Text, asked)
        else:
            hidden = "; PLAIN would show the password to the network, so it needs TLS" if "PLAIN" in offered else ""
            raise AuthFailedError(asked, Status.AUTH_ERROR, f"no mechanism that both know{hidden}")
    except ScramError as error:
        raise AuthFailedError(asked, Status.AUTH_ERROR, str(error)) from None


def _scram(mechanism: str, username: str, password: str, asked: str) -> Steps:
    nonce = secrets.token_urlsafe(24).encode()
    client = ScramClient(mechanism, username=username, password=password, nonce=nonce)
    first = yield Ask(SaslAuth(mechanism=mechanism.encode(), challenge=client.first()), Text, asked)
    if first.status != Status.AUTH_CONTINUE:  # let in unseen: whoever it is, it did not know the password
        raise AuthFailedError(asked, first.status, "the server did not show that it knows the password")
    final = client.final(first.value)
    last = yield Ask(SaslStep(mechanism=mechanism.encode(), challenge=final), Text, asked)
    client.check(last.value)


__all__ = ["AGENT", "DEFAULT_BUCKET", "Ask", "Login", "Steps", "opening"]
