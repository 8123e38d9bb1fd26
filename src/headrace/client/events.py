"""What a reader of changes is told, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.protocol.subscription import RolledBack

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.link import Link
    from headrace.client.sifting import Mark
    from headrace.columns import Beside
    from headrace.history import FailoverLog
    from headrace.ids import VBucketId


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some changes, as rows; `markers` are the messages that stood beside them, with the row each came before."""

    rows: pa.RecordBatch
    marks: list[Mark]
    markers: list[Beside]
    link: Link
    flow_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStarted:
    """A stream runs; the history of its vbucket is the log's."""

    vbucket: VBucketId
    host: str
    log: FailoverLog


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnded:
    """A stream ended. `finished` when everything up to its end was read; else the reader goes on by itself."""

    vbucket: VBucketId
    host: str
    reason: str
    finished: bool
    mark: Mark | None = None
    """How far the end proves that the vbucket was read, though no change lies there."""


Event = Batch | StreamStarted | StreamEnded | RolledBack

__all__ = ["Batch", "Event", "RolledBack", "StreamEnded", "StreamStarted"]
