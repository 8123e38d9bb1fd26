"""STAT: groups of numbers, as cbstats, memcstat and their like read them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.node import replies
from headrace.node.dispatch import handles
from headrace.node.refused import Refused
from headrace.node.stats import GROUPS
from headrace.node.users import Role
from headrace.wire.catalogue import Stat
from headrace.wire.codes import Magic, Status
from headrace.wire.dialects import Dialect

if TYPE_CHECKING:
    from headrace.node.session import Session

_OPCODE = Stat.spec.opcodes[Dialect.DCP]
_RESPONSE = int(Magic.RESPONSE)
_ENTRIES_AT_ONCE = 500
"""A group of 1024 vbuckets has 11 000 entries: other clients are served in between."""
_NAME_CHARS_MAX = 100


@handles(Stat, needs=Role.READ, also=Role.STREAM)
async def stat(session: Session, request: Stat) -> None:
    """Give a group of statistics, and an empty entry at its end."""
    name, _, argument = request.key.decode(errors="replace").partition(" ")
    group = GROUPS.get(name)
    if group is None:
        raise Refused(Status.KEY_NOT_FOUND, f"there is no group {name[:_NAME_CHARS_MAX]!r} of statistics")
    for number, (key, value) in enumerate(group(session, argument.strip()), start=1):
        session.send(_entry(request, key.encode(), str(value).encode()))
        if number % _ENTRIES_AT_ONCE == 0:
            await asyncio.sleep(0)
    session.send(_entry(request, b"", b""))


def _entry(request: Stat, key: bytes, value: bytes) -> bytes:
    """One statistic, without the message object that would take most of the time."""
    head = replies.pack_head(_RESPONSE, _OPCODE, len(key), 0, 0, 0, len(key) + len(value), request.opaque, 0)
    return head + key + value
