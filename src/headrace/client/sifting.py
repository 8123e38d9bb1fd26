"""What a batch of change rows means for the streams that it came by.

The order is checked, the end is cut, and it is told how far each vbucket came.

All of it is done for whole columns; the loop in Python is over the vbuckets of a batch, not over its changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.columns import signed
from headrace.errors import RemoteProtocolError
from headrace.ids import Seqno, VBucketId
from headrace.protocol.subscription import branch_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.history import FailoverLog

    Longs = npt.NDArray[np.int64]

_LONG_MAX = (1 << 63) - 1


PLACES_MAX = 16
"""Of so many of the last snapshots of a batch it is remembered, for each vbucket, that they were whole."""


class Mark(NamedTuple):
    """How far a batch brought one vbucket: see `Progress.advance`."""

    vbucket: VBucketId
    seqno: Seqno
    end: Seqno
    whole: Seqno | None
    before: tuple[Seqno, ...] = ()


class Sifted(NamedTuple):
    """The rows to hand on, and how far they bring each vbucket."""

    rows: pa.RecordBatch
    marks: list[Mark]


class _Groups(NamedTuple):
    """The runs of rows that are of one vbucket: which vbucket, the first row of each run, and the last."""

    vbuckets: list[int]
    firsts: npt.NDArray[np.intp]
    lasts: npt.NDArray[np.intp]

    @classmethod
    def of(cls, vbuckets: Longs) -> _Groups:
        """Find where another vbucket begins."""
        others = (vbuckets[1:] != vbuckets[:-1]).nonzero()[0]
        firsts = np.empty(len(others) + 1, np.intp)
        firsts[0], firsts[1:] = 0, others + 1
        lasts = np.empty_like(firsts)
        lasts[:-1], lasts[-1] = others, len(vbuckets) - 1
        return cls(vbuckets[firsts].tolist(), firsts, lasts)

    @property
    def repeat(self) -> bool:
        """Whether a vbucket has several runs."""
        return len(set(self.vbuckets)) < len(self.vbuckets)


class Streams:
    """What the streams of one connection have brought so far, and where each ends: one number a vbucket."""

    def __init__(self, vbuckets: int) -> None:
        self._last: Longs = np.zeros(vbuckets, np.int64)
        self._stop: Longs = np.full(vbuckets, -1, np.int64)
        self._logs: dict[int, FailoverLog] = {}

    def begin(self, vbucket: VBucketId, *, after: Seqno, stop: Seqno, log: FailoverLog) -> None:
        """A stream begins after a seqno; its rows may lie on several branches when the newest began later."""
        if after > _LONG_MAX:
            raise RemoteProtocolError(f"vbucket {vbucket}: seqno {after} is past what columns hold")
        self._last[vbucket] = after
        self._stop[vbucket] = min(stop, _LONG_MAX)
        self._logs.pop(vbucket, None)
        if after < log.latest.seqno:
            self._logs[vbucket] = log

    def end(self, vbucket: VBucketId) -> None:
        """A stream ended: what still comes of it is nobody's."""
        self._stop[vbucket] = -1
        self._logs.pop(vbucket, None)

    def is_idle(self, vbucket: int) -> bool:
        """Whether a vbucket of the bucket has no stream here, or no more."""
        return vbucket < len(self._stop) and bool(self._stop[vbucket] < 0)

    def sift(self, rows: pa.RecordBatch) -> Sifted:
        """Check and cut one batch, in which the changes of each vbucket stand in the order of their seqnos."""
        if not rows.num_rows:
            return Sifted(rows, [])
        vbuckets, seqnos, ends = (_numbers(rows, name) for name in ("vbucket", "seqno", "snapshot_end"))
        if ends.min() < 0:
            raise RemoteProtocolError(
                f"a snapshot that ends at seqno {int(ends.min()) + 2**64}, past what columns hold"
            )
        order: npt.NDArray[np.intp] | None = None
        groups = _Groups.of(vbuckets)
        if groups.repeat:  # streams took turns within the batch
            order = vbuckets.astype(np.uint16).argsort(kind="stable")  # a radix sort, for 16 bits
            vbuckets, seqnos, ends = vbuckets[order], seqnos[order], ends[order]
            groups = _Groups.of(vbuckets)
        highest = max(groups.vbuckets)
        if highest >= len(self._last):
            raise RemoteProtocolError(f"a change of vbucket {highest}; the bucket has {len(self._last)}")
        self._check_order(seqnos, groups)
        came = seqnos[groups.lasts]
        self._last[groups.vbuckets] = came
        whole = seqnos == ends
        kept: npt.NDArray[np.bool_] | None = None
        if (came > self._stop[groups.vbuckets]).any():
            kept = seqnos <= self._stop[vbuckets]
            whole &= kept
        marks = self._marks(seqnos, ends, whole.nonzero()[0], groups)
        if kept is not None:
            mask = kept
            if order is not None:
                mask = np.empty_like(kept)
                mask[order] = kept
            rows = rows.filter(pa.array(mask))
        if self._logs:
            rows = self._on_their_branches(rows)
        return Sifted(rows, marks)

    def _check_order(self, seqnos: Longs, groups: _Groups) -> None:
        wrong = np.empty(len(seqnos), np.bool_)
        np.less_equal(seqnos[1:], seqnos[:-1], out=wrong[1:])
        wrong[groups.firsts] = seqnos[groups.firsts] <= self._last[groups.vbuckets]
        if not wrong.any():
            return
        for vbucket, first, last in zip(groups.vbuckets, groups.firsts.tolist(), groups.lasts.tolist(), strict=True):
            here = wrong[first : last + 1]
            if self._stop[vbucket] >= 0 and here.any():  # of a stream that was closed, nobody minds the order
                place = first + int(here.argmax())
                before = self._last[vbucket] if place == first else seqnos[place - 1]
                raise RemoteProtocolError(f"vbucket {vbucket}: seqno {seqnos[place]} came after {before}")

    def _marks(self, seqnos: Longs, ends: Longs, whole: npt.NDArray[np.intp], groups: _Groups) -> list[Mark]:
        """Tell for each group of rows, a vbucket, how far it came; `whole` are the rows that end a snapshot."""
        marks = []
        since, upto = whole.searchsorted(groups.firsts).tolist(), whole.searchsorted(groups.lasts, "right").tolist()
        came, around = seqnos[groups.lasts].tolist(), ends[groups.lasts].tolist()
        stops = self._stop[groups.vbuckets].tolist()
        for place, vbucket in enumerate(groups.vbuckets):
            stop, seqno, end = stops[place], came[place], around[place]
            if stop < 0:
                continue
            if seqno > stop:  # the snapshot that counts is the one that the end lies in
                first, last = int(groups.firsts[place]), int(groups.lasts[place])
                end = int(ends[first + int(seqnos[first : last + 1].searchsorted(stop, "right"))])
            places = seqnos[whole[max(since[place], upto[place] - PLACES_MAX) : upto[place]]].tolist()
            last_place = places.pop() if places else None
            marks.append(Mark(VBucketId(vbucket), Seqno(seqno), Seqno(end), last_place, tuple(places)))
        return marks

    def _on_their_branches(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Give each row the branch that its seqno lies on, where a stream runs through several."""
        vbuckets, seqnos = _numbers(rows, "vbucket"), _numbers(rows, "seqno")
        vbuuids = rows.column("vbuuid").to_numpy().copy()
        for vbucket, log in list(self._logs.items()):
            places = np.flatnonzero(vbuckets == vbucket)
            if not len(places):
                continue
            if seqnos[places[-1]] > log.latest.seqno:
                del self._logs[vbucket]  # the rest lies on the newest, as the rows say by themselves
            for place in places[seqnos[places] <= log.latest.seqno].tolist():
                vbuuids[place] = signed(branch_of(log, int(seqnos[place])))
        return rows.set_column(rows.schema.get_field_index("vbuuid"), "vbuuid", pa.array(vbuuids))


def _numbers(rows: pa.RecordBatch, name: str) -> Longs:
    column = rows.column(name)
    if column.null_count:
        raise RemoteProtocolError(f"a change without a {name.replace('_', ' ')}: outside every snapshot, or a flush")
    return column.to_numpy()  # type: ignore[no-any-return]


__all__ = ["Mark", "Sifted", "Streams"]
