"""Positions: where a consumer stands in the history of one vbucket, and their plain form for JSON.

A seqno alone is no position. The vb UUID says on which branch it was read, the snapshot whether the copy is consistent
there; a producer needs all of them to say whether the consumer may go on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import LocalProtocolError
from headrace.history.failover import VBUUID_MAX
from headrace.history.snapshots import SnapshotRange
from headrace.ids import Seqno, VbUuid

_FIELDS = ("vbuuid", "seqno", "snapshot_start", "snapshot_end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last change that a consumer has, the branch it was read on, and the snapshot around it."""

    vbuuid: VbUuid
    seqno: Seqno
    snapshot: SnapshotRange

    def __post_init__(self) -> None:
        if self.seqno not in self.snapshot:
            raise LocalProtocolError(
                f"seqno {self.seqno} is outside its snapshot {self.snapshot.start} to {self.snapshot.end}"
            )
        if not 0 <= self.vbuuid <= VBUUID_MAX:
            raise LocalProtocolError(f"vb UUID {self.vbuuid} does not fit 64 bits")
        # Every producer rolls such a position back to 0. Whoever made it has lost its UUID and should hear of it here.
        if self.seqno and not self.vbuuid:
            raise LocalProtocolError(f"seqno {self.seqno} without a vb UUID is no position")

    @classmethod
    def beginning(cls) -> "Position":
        """Give the position of a consumer that has nothing."""
        return cls(vbuuid=VbUuid(0), seqno=Seqno(0), snapshot=SnapshotRange.at(Seqno(0)))

    def as_dict(self) -> dict[str, int]:
        """Give the plain form.

        All four are integers, as servers print them in stats and logs, so that people can compare. Python's JSON keeps
        64 bits. Readers that take numbers for doubles would not, but a position is opaque to everyone else: Spark
        stores it as text.
        """
        return {
            "vbuuid": self.vbuuid,
            "seqno": self.seqno,
            "snapshot_start": self.snapshot.start,
            "snapshot_end": self.snapshot.end,
        }

    @classmethod
    def from_dict(cls, plain: object) -> "Position":
        """Read the plain form again, and refuse what is not one."""
        if not isinstance(plain, Mapping) or set(plain) != set(_FIELDS):
            raise LocalProtocolError(f"a position has {', '.join(_FIELDS)} and nothing else; this is {plain!r}")
        for name in _FIELDS:
            # True is an int to Python, and 1 to nobody who writes a position.
            if type(plain[name]) is not int:
                raise LocalProtocolError(f"{name} of a position is an integer, not {plain[name]!r}")
        return cls(
            vbuuid=VbUuid(plain["vbuuid"]),
            seqno=Seqno(plain["seqno"]),
            snapshot=SnapshotRange(start=Seqno(plain["snapshot_start"]), end=Seqno(plain["snapshot_end"])),
        )


__all__ = ["Position"]
