"""Every bound that a node keeps, by name. Each has a default that suits a machine with a few gigabytes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.wire.limits import BODY_BYTES_MAX

MIB = 1024 * 1024

VALUE_BYTES_MAX = 20 * MIB
"""The largest value of an item, as Couchbase Server has it; what was compressed counts inflated."""

RELATIVE_EXPIRY_S_MAX = 30 * 24 * 3600
"""An expiry up to this is seconds from now, a larger one seconds of the epoch: memcached's old rule."""

LOCK_S_DEFAULT = 15
LOCK_S_MAX = 30
"""How long an item stays locked: Couchbase's numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """What one node takes in before it slows its clients down or turns them away."""

    connections_max: int = 10_000
    """How many clients may be connected; one more is turned away at once."""
    body_bytes_max: int = BODY_BYTES_MAX
    """The largest message; a header that announces more ends the connection before anything is read."""
    unauthenticated_bytes_max: int = 64 * 1024
    """What a client may send before it has authenticated, where users are asked for."""
    unauthenticated_s_max: float = 30.0
    """How long it may take to authenticate."""
    half_frame_s_max: float = 60.0
    """How long a begun message may take to come in whole without a byte of progress."""
    half_frame_bytes_max: int = 256 * MIB
    """What all begun messages of all connections together may hold; one that would pass it is turned away."""
    reply_bytes_max: int = 4 * MIB
    """What may wait to be read by one client before its requests wait too."""
    unread_bytes_max: int = 512 * MIB
    """What all clients that do not read may be owed; one that would pass it is cut off."""
    unread_s_max: float = 120.0
    """How long a client that is owed answers may read nothing of them."""
    dirty_bytes_max: int = 256 * MIB
    """What may wait for the disk, per bucket, before writers wait too; what Python takes beside the bytes counts."""
    resident_bytes_max: int = 256 * MIB
    """What is kept in memory, per bucket, of items that are on disk too."""
    recent_bytes_max: int = 32 * MIB
    """What is kept in memory, per bucket, of what was flushed last, so that streams need not read it from disk."""
    partial_bytes_max: int = 8 * MIB
    """What a replica may hold back of a snapshot that is not whole, before it goes to disk as it is."""
    registered_max: int = 256
    """How many TAP clients a bucket remembers that may come back; each takes 24 bytes a vbucket."""
    tap_ack_interval: int = 1000
    """Every so many messages of a TAP stream one asks for an ack."""
    tap_ack_window: int = 10
    """How many of these intervals a TAP client may leave unacknowledged before it is sent no more."""
    tap_ack_s_max: float = 300.0
    """How long a TAP client may owe an ack."""
    tap_noop_s: float = 20.0
    """After how long without a message a TAP client gets a sign of life."""
    tap_pause_s: float = 5.0
    """How long a TAP client is left in peace that could not take a message."""
    buckets_max: int = 30
    """How many buckets a node may have: each has a writer process."""
    tombstone_s_min: int = 3 * 24 * 3600
    """How long a deletion is remembered: a stream that is away for longer may have to start over."""
