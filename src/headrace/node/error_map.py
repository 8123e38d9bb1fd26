"""What the statuses of this node mean, for clients that ask before they meet one (hello 0x07)."""

from __future__ import annotations

import json
from functools import cache

from headrace.wire.codes import Status, words

_REVISION = 1
_VERSION_MAX = 2

_ATTRIBUTES: dict[Status, tuple[str, ...]] = {
    Status.SUCCESS: ("success",),
    Status.KEY_NOT_FOUND: ("item-only",),
    Status.KEY_EXISTS: ("item-only",),
    Status.TOO_BIG: ("item-only", "invalid-input"),
    Status.INVALID: ("internal", "invalid-input"),
    Status.NOT_STORED: ("item-only",),
    Status.DELTA_BAD_VALUE: ("item-only", "invalid-input"),
    Status.NOT_MY_VBUCKET: ("fetch-config", "invalid-input"),
    Status.NO_BUCKET: ("conn-state-invalidated",),
    Status.LOCKED: ("item-locked", "item-only", "retry-now"),
    Status.NOT_LOCKED: ("item-only",),
    Status.AUTH_ERROR: ("conn-state-invalidated", "auth"),
    Status.AUTH_CONTINUE: ("special-handling",),
    Status.OUT_OF_RANGE: ("invalid-input",),
    Status.ROLLBACK: ("dcp", "special-handling"),
    Status.NO_ACCESS: ("support",),
    Status.UNKNOWN_FRAME_INFO: ("invalid-input",),
    Status.UNKNOWN_COMMAND: ("support",),
    Status.OUT_OF_MEMORY: ("temp", "retry-later"),
    Status.NOT_SUPPORTED: ("support",),
    Status.INTERNAL_ERROR: ("internal", "conn-state-invalidated"),
    Status.BUSY: ("temp", "retry-later"),
    Status.TEMPORARY_FAILURE: ("temp", "retry-later"),
    Status.UNKNOWN_COLLECTION: ("invalid-input", "item-only"),
    Status.UNKNOWN_SCOPE: ("invalid-input", "item-only"),
}
"""Every status that a node sends, and how a client is to take it, in Couchbase's words."""


@cache
def error_map(version: int) -> bytes:
    """The map, in the newest form that both know."""
    errors = {
        f"{status:x}": {"name": status.name, "desc": words(status.name), "attrs": list(attributes)}
        for status, attributes in _ATTRIBUTES.items()
    }
    told = {"version": min(version, _VERSION_MAX), "revision": _REVISION, "errors": errors}
    return json.dumps(told, separators=(",", ":")).encode()
