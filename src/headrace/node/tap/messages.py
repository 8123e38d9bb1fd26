"""The messages of a TAP stream that are no items, as captured servers spell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.history import State
from headrace.ids import Opaque
from headrace.protocol.tap import Kind
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import TapCheckpointEnd, TapCheckpointStart, TapFlush, TapOpaque, TapVBucketSet
from headrace.wire.codes import TapFlag, TapOpaqueCode

if TYPE_CHECKING:
    from headrace.protocol.tap import Cue
    from headrace.wire import Request

_CODES = {
    Kind.ACKS: TapOpaqueCode.ENABLE_AUTO_NACK,
    Kind.CHECKPOINTS: TapOpaqueCode.ENABLE_CHECKPOINT_SYNC,
    Kind.INITIAL: TapOpaqueCode.INITIAL_VBUCKET_STREAM,
    Kind.CLOSE: TapOpaqueCode.CLOSE_BACKFILL,
}
_STATES = {Kind.PENDING: State.PENDING, Kind.ACTIVE: State.ACTIVE}
_CHECKPOINT_ENGINE = bytes(8)


def message_of(cue: Cue, opaque: int, *, acks: bool) -> bytes:
    """The bytes of a message; it asks for an ack wherever these are understood."""
    return encode(_message(cue, Opaque(opaque), TapFlag.ACK if acks else 0), Dialect.TAP)


def _message(cue: Cue, opaque: Opaque, tap_flags: int) -> Request:
    vbucket = cue.vbucket
    if cue.kind in _CODES:
        return TapOpaque(vbucket=vbucket, opaque=opaque, tap_flags=tap_flags, code=_CODES[cue.kind])
    if cue.kind in _STATES:
        return TapVBucketSet(vbucket=vbucket, opaque=opaque, tap_flags=tap_flags, state=_STATES[cue.kind])
    if cue.kind is Kind.FLUSH:
        return TapFlush(opaque=opaque, tap_flags=tap_flags)
    # What they carry beside the id is what servers send (capture 08i_tap_registered); spymemcached counts on it.
    if cue.kind is Kind.CHECKPOINT_START:
        return TapCheckpointStart(
            vbucket=vbucket, opaque=opaque, tap_flags=tap_flags, item_flags=0, expiry=0, engine=_CHECKPOINT_ENGINE,
            key=b"checkpoint_start", checkpoint=cue.number,
        )  # fmt: skip
    assert cue.kind is Kind.CHECKPOINT_END, "items are made by frames"
    return TapCheckpointEnd(
        vbucket=vbucket, opaque=opaque, tap_flags=tap_flags, item_flags=0, expiry=0, engine=b"",
        key=b"checkpoint_end", checkpoint=cue.number,
    )  # fmt: skip
