"""Snapshots: the ranges of changes after which a copy is consistent.

A range is what a marker says. Both ends belong to it, but what the start means differs: the first marker of a stream
starts at the seqno that was asked for, which the consumer has; later ones start at the first seqno that they bring
(captures 01a_dcp_memory_stream, 02_dcp_resume). So only an *end* says that everything before it is there.
"""

from dataclasses import dataclass

from headrace.errors import LocalProtocolError
from headrace.ids import Seqno

SEQNO_MAX = Seqno(2**64 - 1)
"""The largest seqno; as the end of a stream it means never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRange:
    """The first and the last seqno of one snapshot."""

    start: Seqno
    end: Seqno

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= SEQNO_MAX:
            raise LocalProtocolError(
                f"a snapshot from seqno {self.start} to {self.end}: wanted 0 <= start <= end < 2**64"
            )

    @classmethod
    def at(cls, seqno: Seqno) -> "SnapshotRange":
        """Give the range of a reader that is between two snapshots."""
        return cls(start=seqno, end=seqno)

    def __contains__(self, seqno: int) -> bool:
        return self.start <= seqno <= self.end


__all__ = ["SEQNO_MAX", "SnapshotRange"]
