"""Asks a node to make trouble on purpose, as `protocol.faults` has it: for tests of consumers.

It takes the role `admin`. A server that is not ours does not know these parameters and refuses.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.client.errors import ConnectionLostError, ServerAnswerError, error_of
from headrace.errors import LocalProtocolError
from headrace.protocol.faults import FAULTS
from headrace.wire.catalogue import SetParam, Text
from headrace.wire.codes import ParamKind, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.connection import KvConnection

Effect = dict[str, Any]
"""What was done to one thing: what it is (`vbucket`, `connection`, `bucket`, `rule`), then what it is like now."""


def make_trouble(connection: KvConnection, name: str, arguments: Mapping[str, object]) -> list[Effect]:
    """Ask for a fault by its name, and give what it did; arguments that are None are left to the node.

    A `StatusError` says that the node refused; `LocalProtocolError`, that the fault takes other arguments. A crash is
    answered by nobody: the connection is closed after it.
    """
    fault = FAULTS.get(name)
    if fault is None:
        raise LocalProtocolError(f"there is no fault {name!r}: there are {', '.join(FAULTS)}")
    given = {key: value for key, value in arguments.items() if value is not None}
    fault.read(given)
    asked = f"{name} at {connection.address}"
    if connection.vbuckets is None:  # memcached waits for more bytes when it does not know a command that has a body
        raise error_of(asked, Status.NOT_SUPPORTED, b"it is no node of ours")
    request = SetParam(kind=ParamKind.DCP, key=fault.parameter.encode(), value=json.dumps(given).encode())
    try:
        reply = connection.request(request, asked=asked)
    except ConnectionLostError:
        if name != "crash":
            raise
        connection.close()
        return [{"node": str(connection.address), "is": "killed"}]
    try:
        told = json.loads(reply.value) if isinstance(reply, Text) else None
        effects: list[Effect] = told["effects"] if isinstance(told, dict) else _none(asked)
    except (ValueError, KeyError, RecursionError):
        _none(asked)
    return effects


def _none(asked: str) -> list[Effect]:
    raise ServerAnswerError(f"{asked}: the server says yes, and not to what: it is no node of ours")
