"""TAP CONNECT, and what ends a registered client.

A connection becomes a TAP stream once. It is not answered; messages come at once. A name that is connected again in the
same bucket closes the connection that had it before. What cannot be is refused as servers do it: mostly by closing the
connection (captures 08b3_tap_backfill_short, 08e_tap_list_vbuckets).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from headrace.history import State
from headrace.node.dispatch import answer, handles
from headrace.node.refused import Refused
from headrace.node.tap.producer import TapProducer
from headrace.node.users import Role
from headrace.protocol.tap import Pace, Wish
from headrace.wire.catalogue import DeregisterTapClient, Done, TapConnect
from headrace.wire.codes import Status, TapConnectFlag
from headrace.wire.limits import HEADER_BYTES, KEY_BYTES_MAX

if TYPE_CHECKING:
    from headrace.node.buckets import OpenBucket
    from headrace.node.limits import NodeLimits
    from headrace.node.session import Session
    from headrace.node.tap.registered import Cursors
    from headrace.wire import Malformed

_FLAGS_BYTES = 4
_DATE_BYTES = 8


def _cannot_be(session: Session, message: Malformed) -> None:
    """Refuse a request whose body does not have what its flags announce."""
    header, body = message.frame.header, message.frame.body
    if header.extras_length not in {0, _FLAGS_BYTES}:
        raise Refused(Status.INVALID, f"tap_connect: {message.problem.text}")
    flags = int.from_bytes(body[:_FLAGS_BYTES], "big") if header.extras_length else 0
    left = header.body_length - header.extras_length - header.key_length
    if flags & TapConnectFlag.BACKFILL and left < _DATE_BYTES:
        session.leave(f"byte {HEADER_BYTES + header.body_length}: the date of a backfill is missing")
        return
    session.close_after_reply = True
    raise Refused(Status.NOT_SUPPORTED, "Not supported")


@handles(TapConnect, needs=Role.STREAM, malformed=_cannot_be)
def connect(session: Session, request: TapConnect) -> None:
    """Make the connection a TAP stream."""
    opened, line = session.opened, session.line
    assert opened is not None
    assert line is not None
    if session.end is not None:
        session.leave("it is a connection of streams already")
        return
    wish = Wish.of(request)
    takes_over = wish.has(TapConnectFlag.TAKEOVER_VBUCKETS)
    session.close_after_reply = True  # of a refusal; see below
    if len(request.name) > KEY_BYTES_MAX:
        raise Refused(Status.INVALID, f"the name of a TAP client has at most {KEY_BYTES_MAX} bytes")
    if takes_over and not session.may(Role.ADMIN):
        raise Refused(Status.NO_ACCESS, f"a takeover takes the role {Role.ADMIN}")
    missing = next((vb for vb in wish.vbuckets if not _is_there(opened, vb, takes_over=takes_over)), None)
    if missing is not None:
        session.close_after_reply = False
        session.leave(f"vbucket {missing} is not here, or not in a state to be sent")
        return
    name = request.name.decode(errors="backslashreplace") or f"anonymous-{secrets.token_hex(8)}"
    cursors = _register(opened, name) if wish.is_registered else None
    session.close_after_reply = False
    older = opened.taps.get(name)
    if older is not None:
        older.leave("its name was connected again")
        if older.end is not None:
            older.end.close()  # now: what it has acknowledged is where this one goes on
    pace = _pace(session.services.limits)
    session.end = TapProducer(opened, line, name, wish, pace=pace, cursors=cursors, now=session.now())
    line.begin()
    session.ends = opened.taps
    session.ends[name] = session
    if opened.chaos is not None:
        opened.chaos.meet(session)


def _is_there(opened: OpenBucket, vb_id: int, *, takes_over: bool) -> bool:
    """Whether a vbucket can be sent: one to be taken over must be served here."""
    vbuckets = opened.bucket.vbuckets
    vb = vbuckets[vb_id] if vb_id < len(vbuckets) else None
    if vb is None:
        return False
    return vb.state is State.ACTIVE if takes_over else vb.state is not State.DEAD


def _register(opened: OpenBucket, name: str) -> Cursors:
    limits, vbuckets = opened.bucket.limits, len(opened.bucket.vbuckets)
    cursors = opened.registered.add(name, vbuckets=vbuckets, most=limits.registered_max)
    if cursors is None:
        text = f"{limits.registered_max} TAP clients are registered, and no more may be: deregister one"
        raise Refused(Status.OUT_OF_MEMORY, text)
    return cursors


def _pace(limits: NodeLimits) -> Pace:
    return Pace(
        ack_interval=max(1, limits.tap_ack_interval),
        ack_window=max(1, limits.tap_ack_window),
        ack_grace_s=limits.tap_ack_s_max,
        noop_s=limits.tap_noop_s,
        pause_s=limits.tap_pause_s,
    )


@handles(DeregisterTapClient, needs=Role.STREAM)
def deregister(session: Session, request: DeregisterTapClient) -> Done:
    """Forget a registered client, whether it is known or not; one that is connected goes on until it ends."""
    opened = session.opened
    assert opened is not None
    opened.registered.remove(request.name.decode(errors="backslashreplace"))
    return answer(request, Done)
