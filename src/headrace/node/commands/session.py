"""What a client says of itself and asks of the server as such: hello, SASL, the bucket, the map, the version."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.node.cluster_config import cluster_config, node_config
from headrace.node.dispatch import Who, answer, handles
from headrace.node.error_map import error_map
from headrace.node.refused import Refused
from headrace.node.sasl import MECHANISMS, PLAIN, Continue, Failure, Outcome, Success
from headrace.node.session import GRANTED
from headrace.node.users import Role
from headrace.wire.catalogue import (
    Authenticating,
    Done,
    GetClusterConfig,
    GetErrorMap,
    Hello,
    HelloReply,
    Noop,
    Quit,
    QuitQ,
    SaslAuth,
    SaslListMechs,
    SaslStep,
    SelectBucket,
    Text,
    Verbosity,
    Version,
)
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from headrace.node.session import Session

VERSION = b"7.2.4-0000-headrace"
"""Clients read the number: below 5.5 they would ask for less than there is."""

FAILED_LOGINS_MAX = 10
"""After so many a client has to connect again to guess on."""
_AGENT_CHARS_MAX = 256

log = logging.getLogger("headrace.node.session")


@handles(Hello, needs=Who.ANYONE, bucket=False)
def hello(session: Session, request: Hello) -> HelloReply:
    """Agree on what both know, in the order in which the client named it."""
    granted = tuple(feature for feature in dict.fromkeys(request.features) if feature in GRANTED)
    session.agree(frozenset(granted), request.agent.decode(errors="replace")[:_AGENT_CHARS_MAX])
    return answer(request, HelloReply, features=granted)


@handles(SaslListMechs, needs=Who.ANYONE, bucket=False)
def list_mechanisms(session: Session, request: SaslListMechs) -> Text:
    """Name the mechanisms."""
    del session
    return answer(request, Text, value=MECHANISMS)


@handles(SaslAuth, needs=Who.ANYONE, bucket=False)
def authenticate(session: Session, request: Authenticating) -> Text | Awaitable[Text]:
    """Begin to authenticate."""
    if session.services.open_user is not None and request.mechanism == PLAIN:
        # Nobody is asked for a password here; old clients send one all the same.
        return _told(session, request, Success(session.services.open_user))
    if session.sasl.is_costly(request.mechanism):
        return _authenticate_in_thread(session, request)
    return _told(session, request, session.sasl.auth(request.mechanism, request.challenge))


async def _authenticate_in_thread(session: Session, request: Authenticating) -> Text:
    async with session.services.logins:
        outcome = await asyncio.to_thread(session.sasl.auth, request.mechanism, request.challenge)
    return _told(session, request, outcome)


@handles(SaslStep, needs=Who.ANYONE, bucket=False)
def authenticate_on(session: Session, request: Authenticating) -> Text:
    """Go on to authenticate."""
    return _told(session, request, session.sasl.step(request.mechanism, request.challenge))


def _told(session: Session, request: Authenticating, outcome: Outcome) -> Text:
    if isinstance(outcome, Continue):
        return answer(request, Text, status=Status.AUTH_CONTINUE, value=outcome.data)
    if isinstance(outcome, Failure):
        session.services.counts.refused_logins += 1
        session.failed_logins += 1
        session.close_after_reply = session.failed_logins >= FAILED_LOGINS_MAX
        log.warning("a login was refused", extra={"peer": session.peer, "user": outcome.name, "why": outcome.reason})
        raise Refused(Status.AUTH_ERROR, "Auth failure")
    session.authenticated(outcome.user)
    log.info("a client logged in", extra={"peer": session.peer, "user": outcome.user.name})
    return answer(request, Text, value=outcome.data)


@handles(SelectBucket, needs=Who.KNOWN, bucket=False)
def select_bucket(session: Session, request: SelectBucket) -> Done:
    """Work on a bucket; with an empty name on none."""
    name = request.name.decode(errors="replace")
    if not name:
        session.select(None)
        return answer(request, Done)
    opened = session.buckets.get(name)
    user = session.user
    if user is None or not any(user.may(role, name) for role in Role):
        raise Refused(Status.NO_ACCESS, f"no access to bucket {name}")
    if opened is None:
        raise Refused(Status.KEY_NOT_FOUND if session.buckets.is_opening(name) else Status.NO_ACCESS,
                      f"there is no bucket {name}")  # fmt: skip
    session.select(opened)
    return answer(request, Done)


@handles(GetClusterConfig, needs=Who.KNOWN, bucket=False)
def get_cluster_config(session: Session, request: GetClusterConfig) -> Text:
    """Tell which node has which vbucket, or, without a bucket, which nodes there are; nothing if that is known."""
    address, bucket = session.services.address, session.bucket
    config = cluster_config(address, bucket) if bucket is not None else node_config(address)
    if request.epoch is not None and (request.epoch, request.revision or 0) >= config.version:
        return answer(request, Text)
    return answer(request, Text, value=config.json, datatype=session.datatypes & 1)


@handles(GetErrorMap, needs=Who.ANYONE, bucket=False)
def get_error_map(session: Session, request: GetErrorMap) -> Text:
    """Tell what statuses mean."""
    if not request.version:
        raise Refused(Status.INVALID, "error maps begin with version 1")
    return answer(request, Text, value=error_map(request.version), datatype=session.datatypes & 1)


@handles(Noop, needs=Who.ANYONE, bucket=False)
def noop(session: Session, request: Noop) -> Done:
    """Answer."""
    del session
    return answer(request, Done)


@handles(Version, needs=Who.ANYONE, bucket=False)
def version(session: Session, request: Version) -> Text:
    """Tell the version of the server whose protocol this is, and that this is not it."""
    del session
    return answer(request, Text, value=VERSION)


@handles(Quit, QuitQ, needs=Who.ANYONE, bucket=False)
def leave(session: Session, request: Quit | QuitQ) -> Done:
    """Answer and close; the quiet form closes."""
    session.close_after_reply = True
    return answer(request, Done)


@handles(Verbosity, needs=Who.KNOWN, bucket=False)
def verbosity(session: Session, request: Verbosity) -> Done:
    """Refuse: how much a node logs is for who starts it to say."""
    del session, request
    raise Refused(Status.NOT_SUPPORTED, "how much is logged is chosen when the node starts: --log-level")
