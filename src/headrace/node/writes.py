"""Which opcodes change items: what `--sync every-write` may not acknowledge before it is on disk."""

from __future__ import annotations

from headrace.node.dispatch import HANDLERS
from headrace.node.users import Role
from headrace.wire import Dialect
from headrace.wire.catalogue import TapDelete, TapFlush, TapMutation
from headrace.wire.registry import REQUESTS

WRITES = frozenset(
    request.spec.opcodes[Dialect.DCP]
    for request in REQUESTS
    if request.spec.name in HANDLERS and HANDLERS[request.spec.name].needs is Role.WRITE
) | frozenset(request.spec.opcodes[Dialect.TAP] for request in (TapMutation, TapDelete, TapFlush))
