"""Where a query stands: the offset that Spark keeps in its checkpoint, as versioned JSON.

    {"headrace_offset": 1, "bucket": "travel",
     "vbuckets": {"0": [vbuuid, seqno, place, reach, ...], ...},      a vbucket that is not there stands at 0
     "heads": {"3": vbuuid},                                          where the newest branch is not the position's
     "roots": {"3": [vbuuid, end]},                                   where it is not the oldest, and the oldest's end
     "rollbacks": {"7": [seqno, vbuuid]}}                             what the batch that ends here gives up first

A position alone does not say what may be kept after a failover. Its batch was read while the vbucket went on: of an
item that was changed again meanwhile, the batch has no version at all, and the failover may bring the older one back
(the end seqno cuts no snapshot, and servers keep the newest version only). So an offset also names *places*: seqnos up
to which everything was read before the vbucket had gone past `reach`. If the history up to `reach` still holds, so
does every row up to the place. The driver learns them without a word from the executors: a batch that is done was read
before the next look at the server's high seqno.

Rows are arrays, not objects: a bucket has 1024 vbuckets, and an offset is written for each micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK, VERSION = "headrace_offset", 1
PLACES_MAX = 3
_FAR = 8
_U64_MAX = 2**64 - 1


class OffsetError(ClientError):
    """An offset cannot be read, or is of another bucket."""


class Place(NamedTuple):
    """Everything up to `seqno` was read before the vbucket had gone past `reach`."""

    seqno: int
    reach: int


class RolledBackTo(NamedTuple):
    """What was given of a vbucket after `seqno` is void; `vbuuid` is the branch there."""

    seqno: int
    vbuuid: int


class Root(NamedTuple):
    """The oldest branch of a vbucket that was known, and the seqno at which the next one began."""

    vbuuid: int
    end: int


@dataclass(frozen=True, slots=True)
class VBucketOffset:
    """How far a vbucket was read, on which branch; `head` was the newest branch then."""

    vbuuid: int
    seqno: int
    head: int
    places: tuple[Place, ...] = ()
    root: Root | None = None
    """The oldest branch then, if it was another one: a failover may take the later ones out of the log."""


START = VBucketOffset(0, 0, 0)
"""Nothing was read."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The positions of all vbuckets."""

    bucket: str
    vbuckets: Mapping[int, VBucketOffset] = field(default_factory=dict)
    rollbacks: Mapping[int, RolledBackTo] = field(default_factory=dict)

    def of(self, vbucket: int) -> VBucketOffset:
        """Tell where a vbucket stands."""
        return self.vbuckets.get(vbucket, START)

    def to_json(self) -> dict[str, Any]:
        """Give the plain form."""
        rows = sorted((vbucket, at) for vbucket, at in self.vbuckets.items() if at.seqno)
        plain: dict[str, Any] = {
            MARK: VERSION,
            "bucket": self.bucket,
            "vbuckets": {
                str(vbucket): [at.vbuuid, at.seqno, *(number for place in at.places for number in place)]
                for vbucket, at in rows
            },
        }
        heads = {str(vbucket): at.head for vbucket, at in rows if at.head != at.vbuuid}
        if heads:
            plain["heads"] = heads
        roots = {str(vbucket): list(at.root) for vbucket, at in rows if at.root is not None}
        if roots:
            plain["roots"] = roots
        if self.rollbacks:
            plain["rollbacks"] = {str(vbucket): list(to) for vbucket, to in sorted(self.rollbacks.items())}
        return plain

    @classmethod
    def from_json(cls, plain: object, *, bucket: str | None = None) -> Offset:
        """Read the plain form again, and refuse what is not one, or of another bucket."""
        if not isinstance(plain, dict) or MARK not in plain:
            raise OffsetError(f"this is no offset of the format dcp: it has no {MARK}; is the checkpoint another's?")
        if plain[MARK] != VERSION:
            raise OffsetError(f"an offset of version {plain[MARK]!r}; this headrace reads version {VERSION}")
        found = plain.get("bucket")
        if bucket is not None and found != bucket:
            raise OffsetError(
                f"the checkpoint is of bucket {found}, and the query reads {bucket}: give it another checkpointLocation"
            )
        try:
            heads = {int(vbucket): _number(head) for vbucket, head in plain.get("heads", {}).items()}
            roots = {int(vb): Root(*(_number(each) for each in row)) for vb, row in plain.get("roots", {}).items()}
            vbuckets = {
                int(vbucket): _row(row, heads.get(int(vbucket), 0), roots.get(int(vbucket)))
                for vbucket, row in plain["vbuckets"].items()
            }
            rollbacks = {
                int(vbucket): RolledBackTo(*(_number(each) for each in row))
                for vbucket, row in plain.get("rollbacks", {}).items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OffsetError(f"an offset that cannot be read ({type(error).__name__}: {error})") from None
        return cls(str(found), vbuckets, rollbacks)


def _row(row: list[int], head: int, root: Root | None) -> VBucketOffset:
    vbuuid, seqno, *rest = (_number(each) for each in row)
    places = tuple(Place(*pair) for pair in zip(rest[::2], rest[1::2], strict=True))
    if any(not place.seqno <= place.reach or place.seqno > seqno for place in places):
        raise ValueError(f"places {places} at seqno {seqno}")
    return VBucketOffset(vbuuid, seqno, head or vbuuid, places, root)


def _number(number: object) -> int:
    if type(number) is not int or not 0 <= number <= _U64_MAX:
        raise ValueError(f"{number!r} is no unsigned number of 64 bits")
    return number


def with_place(places: tuple[Place, ...], place: Place) -> tuple[Place, ...]:
    """Remember one more place, and of the older ones a near and a far one."""
    older = [each for each in places if each.seqno < place.seqno]
    if not older:
        return (place,)
    near = older[-1]
    far_at = place.seqno - _FAR * (place.seqno - near.seqno)
    far = next((each for each in reversed(older[:-1]) if each.seqno <= far_at), older[0])
    return (near, place) if far == near else (far, near, place)


__all__ = [
    "MARK",
    "START",
    "VERSION",
    "Offset",
    "OffsetError",
    "Place",
    "RolledBackTo",
    "Root",
    "VBucketOffset",
    "with_place",
]
