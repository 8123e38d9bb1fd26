"""What stands beside a value, so that other clients read it as it was meant: flags, datatype and expiry."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from headrace.wire.codes import Datatype, Feature

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

VALUE_BYTES_MAX = 20 * 1024 * 1024
"""The largest value of an item on a Couchbase server."""

RELATIVE_EXPIRY_S_MAX = 30 * 24 * 60 * 60
"""Up to here, an expiry on the wire counts from now; beyond, from the epoch."""

_EXPIRY_MAX = 0xFFFF_FFFF


class CommonFlags(IntEnum):
    """The flags by which Couchbase's SDKs know what a value is; the upper byte is theirs."""

    JSON = 0x0200_0000
    BINARY = 0x0300_0000
    TEXT = 0x0400_0000


class Beside(NamedTuple):
    """The flags and the datatype to store with a value."""

    flags: int = 0
    datatype: int = 0


def json_beside(features: AbstractSet[int]) -> Beside:
    """Mark JSON, by the features that hello agreed on; for plain memcached, whose clients have other flags, nothing."""
    return Beside(CommonFlags.JSON, Datatype.JSON) if Feature.JSON in features else Beside()


def beside(value: bytes, features: AbstractSet[int]) -> Beside:
    """Mark a value as what it is: JSON, text or bytes; for plain memcached, nothing."""
    if Feature.JSON not in features:
        return Beside()
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        pass
    else:
        return json_beside(features)
    try:
        value.decode()
    except UnicodeDecodeError:
        return Beside(CommonFlags.BINARY)
    return Beside(CommonFlags.TEXT)


def wire_expiry(seconds: int, *, now: float) -> int:
    """Write a time to live as the protocol does; 0 is for ever."""
    if seconds <= RELATIVE_EXPIRY_S_MAX:
        return seconds
    return min(int(now) + seconds, _EXPIRY_MAX)
