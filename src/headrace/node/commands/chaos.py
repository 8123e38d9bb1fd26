"""Parameters that are set while a node runs. There is one kind: the faults of `headrace chaos`."""

from __future__ import annotations

import json
import logging
import os
import signal
from typing import TYPE_CHECKING, Any

from headrace.errors import LocalProtocolError
from headrace.node.chaos import Chaos
from headrace.node.dispatch import answer, handles
from headrace.node.refused import Refused
from headrace.node.users import EVERY_BUCKET, Role
from headrace.protocol.faults import fault_of
from headrace.wire.catalogue import SetParam, Text
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from headrace.node.session import Session
    from headrace.protocol.faults import Fault

log = logging.getLogger("headrace.node.chaos")


@handles(SetParam, needs=Role.ADMIN)
async def set_param(session: Session, request: SetParam) -> Text:
    """Make trouble on purpose, as `headrace chaos` asks for it; a node has no other parameters."""
    name = request.key.decode(errors="backslashreplace")
    fault = fault_of(name)
    if fault is None:
        raise Refused(Status.KEY_NOT_FOUND, f"there is no parameter {name}")
    arguments = _read(fault, request.value)
    opened = session.opened
    assert opened is not None
    if fault.name != "show":
        _tell(session, fault, arguments)
    if fault.name == "crash":
        _crash(session)
    if opened.chaos is None:
        opened.chaos = Chaos(opened)
    effects = await opened.chaos.do(fault.name, arguments)
    return answer(request, Text, value=json.dumps({"fault": fault.name, "effects": effects}).encode())


def _read(fault: Fault, value: bytes) -> dict[str, Any]:
    try:
        given = json.loads(value or b"{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise Refused(Status.INVALID, f"{fault.parameter} takes a JSON object of its arguments")
    try:
        return fault.read(given)
    except LocalProtocolError as error:
        raise Refused(Status.INVALID, str(error)) from error


def _tell(session: Session, fault: Fault, arguments: dict[str, Any]) -> None:
    """Write it in the log: whoever looks there for a reason finds it."""
    extra = {
        "fault": fault.name,
        "arguments": json.dumps({name: value for name, value in arguments.items() if value is not None}),
        "bucket": session.bucket.name if session.bucket is not None else "",
        "user": session.user.name if session.user is not None else "",
        "peer": session.peer,
    }
    log.info("trouble is made on purpose", extra=extra)


def _crash(session: Session) -> None:
    """Kill this process, if it is the node's own."""
    if session.user is None or not session.user.may(Role.ADMIN, EVERY_BUCKET):
        raise Refused(Status.NO_ACCESS, "a crash takes the role admin in every bucket")
    if not session.services.owns_process:
        raise Refused(Status.NOT_SUPPORTED, "this node runs inside another program, which would die with it")
    os.kill(os.getpid(), signal.SIGKILL)
