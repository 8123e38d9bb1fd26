"""The row of a rollback. It is on no wire: whoever follows a stream says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.columns.schema import EVENTS, ROLLBACK, TEXT_KEYS, schema, signed

if TYPE_CHECKING:
    from headrace.ids import Seqno, VBucketId, VbUuid


def rollback_row(vbucket: VBucketId, vbuuid: VbUuid, seqno: Seqno, *, keys: str = TEXT_KEYS) -> pa.RecordBatch:
    """Make a batch of one row: what was read of a vbucket after `seqno` is gone; `vbuuid` is the branch there."""
    row: dict[str, Any] = dict.fromkeys(schema().names)
    row |= {"event": EVENTS[ROLLBACK], "vbucket": vbucket, "vbuuid": signed(vbuuid), "seqno": signed(seqno)}
    return pa.RecordBatch.from_pylist([row], schema=schema(keys))


__all__ = ["rollback_row"]
