"""What the driver knows of a bucket's servers, for planning: looks, proofs, and patience with those that are away.

Of a vbucket whose position is the high seqno, and known to be whole there, nothing needs to be asked but the seqno.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from headrace.client import BatchReader, ConnectionLostError, OptionError, Positions
from headrace.client.scout import PAUSE_S, Scout
from headrace.history import Position, SnapshotRange
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.spark.offsets import Place
from headrace.spark.planning import Seen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.client.options import ChangeOptions
    from headrace.client.ranges import Range
    from headrace.client.scout import Sighting
    from headrace.history import FailoverLog
    from headrace.spark.offsets import Offset, VBucketOffset

SWEEP_S = 2.0
"""So often the branch of a vbucket is looked at that has nothing new by its seqno: after a failover, changes on the new
branch may have brought it to the same seqno again."""

REFUSAL_S = 60.0
"""So often it is asked of a position whether the server would go on from it: purges are rare."""

SAMPLE_BYTES = 64 * 1024
SAMPLE_VBUCKETS = 4
ROW_BYTES = 55
"""What a change has on the wire beside its key and value: a header and the extras of a mutation."""


class Watch:
    """One query's view of the servers."""

    def __init__(self, options: ChangeOptions, vbuckets: tuple[int, ...] | None, *, mitigated: bool = False) -> None:
        self._options = options
        self._wanted = vbuckets
        self._mitigated = mitigated
        self.scout = Scout(options)
        self.sighted: dict[VBucketId, Sighting] = {}
        self._logs: dict[VBucketId, FailoverLog] = {}
        self._proofs: dict[VBucketId, tuple[int, Place]] = {}
        """Of a vbucket: the branch and the place at its position, seen while that branch was the newest."""
        self._refused_at: dict[VBucketId, float] = {}
        self._logged_at: dict[VBucketId, float] = {}
        self._away_since: dict[VBucketId, float] = {}

    def close(self) -> None:
        """Close the connections."""
        self.scout.close()

    # -- looks

    def look(self, *, all_of_them: bool = False, patient: bool = True) -> dict[VBucketId, Sighting]:
        """Tell what can be read; waits while nothing can, and with `all_of_them` until everything can.

        The first contact is waited for as well, unless told not to be: a new query may have a wrong address.
        """
        began = time.monotonic()
        while True:
            now = time.monotonic()
            try:
                sighted = self.scout.sightings()
            except ConnectionLostError:
                limit = self._options.give_up_s
                if not patient or (limit is not None and now > began + limit):
                    raise
                time.sleep(PAUSE_S)
                continue
            wanted = {VBucketId(each) for each in self._wanted or range(self.scout.vbuckets)}
            self._check(wanted)
            missing = wanted - sighted.keys()
            self._away_since = {vbucket: self._away_since.get(vbucket, now) for vbucket in missing}
            if missing:
                self.scout.check_patience(missing, min(self._away_since.values()))
            self.sighted = {vbucket: each for vbucket, each in sighted.items() if vbucket in wanted}
            if self.sighted and not (missing and all_of_them):
                return self.sighted
            time.sleep(PAUSE_S)

    def _check(self, wanted: set[VBucketId]) -> None:
        outside = [vbucket for vbucket in wanted if vbucket >= self.scout.vbuckets]
        if outside:
            raise OptionError(
                f"option vbuckets: there is no vbucket {min(outside)}, bucket {self._options.bucket} has 0 to "
                f"{self.scout.vbuckets - 1}"
            )

    def logs(self, vbuckets: set[VBucketId]) -> dict[VBucketId, FailoverLog]:
        """Fetch failover logs; one that cannot be had is left out."""
        found = self.scout.logs(vbuckets) if vbuckets else {}
        self._logs.update(found)
        self._logged_at.update(dict.fromkeys(found, time.monotonic()))
        return found

    def newest_branch(self, vbucket: VBucketId) -> int:
        """The newest branch that was ever seen of a vbucket; 0 when none was."""
        log = self._logs.get(vbucket)
        return log.latest.vbuuid if log is not None else 0

    # -- what a plan needs

    def seen(self, at: Offset, caps: Mapping[VBucketId, int] | None) -> dict[int, Seen]:
        """Tell of each vbucket that may have something to read what `planning` needs; `caps` bound the high seqnos."""
        sighted = self.look(all_of_them=caps is not None)
        asked = {vbucket for vbucket, each in sighted.items() if not self._is_settled(vbucket, at.of(vbucket), each)}
        known_before = {vbucket: self.newest_branch(vbucket) for vbucket in asked}
        logs = self.logs(asked)
        # A log whose newest branch was the newest before, too, proves that the high seqno is of that branch. Where it
        # is not, the seqno may be of a branch that is gone: an end there would never come.
        if any(log.latest.vbuuid != known_before[vbucket] for vbucket, log in logs.items()):
            later = self.look(all_of_them=caps is not None)
            logs = {vbucket: log for vbucket, log in logs.items() if vbucket in later}
        ends = self._ends({vbucket: self.sighted[vbucket].high for vbucket in logs}, caps)
        refused = self._refused(at, logs)
        found: dict[int, Seen] = {}
        for vbucket, log in logs.items():
            here = at.of(vbucket)
            proof = self._proofs.get(vbucket)
            known = proof[1] if proof is not None and proof[0] == here.head and proof[1].seqno == here.seqno else None
            high = max(self.sighted[vbucket].high, 0)
            found[vbucket] = Seen(high, log, vbucket in refused, known, cap=max(ends[vbucket], 0))
            # The first look at a position proves most: the vbucket only goes on from there.
            if known is None and here.seqno and here.head == log.latest.vbuuid and here.seqno <= sighted[vbucket].high:
                self._proofs[vbucket] = here.head, Place(here.seqno, sighted[vbucket].high)
        return found

    def _is_settled(self, vbucket: VBucketId, here: VBucketOffset, sighted: Sighting) -> bool:
        """Whether there is nothing to read, and the position is known to be whole."""
        if here.seqno != sighted.high or time.monotonic() > self._logged_at.get(vbucket, float("-inf")) + SWEEP_S:
            return not here.seqno and not sighted.high
        proof = self._proofs.get(vbucket)
        return proof is not None and proof == (here.head, Place(here.seqno, here.seqno))

    def _ends(self, highs: dict[VBucketId, Seqno], caps: Mapping[VBucketId, int] | None) -> dict[VBucketId, int]:
        bounded: dict[VBucketId, int] = dict(highs)
        if self._mitigated:
            branches = {vbucket: self._logs[vbucket].latest.vbuuid for vbucket in highs}
            for vbucket, seqno in self.scout.persisted(branches).items():
                bounded[vbucket] = min(bounded[vbucket], seqno)
        if caps is not None:
            bounded = {vbucket: min(high, caps.get(vbucket, 0)) for vbucket, high in bounded.items()}
        return bounded

    def _refused(self, at: Offset, logs: dict[VBucketId, FailoverLog]) -> set[VBucketId]:
        """Ask now and then whether the servers would go on from positions on their newest branch."""
        now = time.monotonic()
        due = {
            vbucket: position_of(at.of(vbucket))
            for vbucket, log in logs.items()
            if at.of(vbucket).seqno
            and at.of(vbucket).head == log.latest.vbuuid
            and at.of(vbucket).seqno <= self.sighted[vbucket].high
            and now > self._refused_at.get(vbucket, float("-inf")) + REFUSAL_S
        }
        if not due:
            return set()
        refused = self.scout.refusals(due)
        self._refused_at.update(dict.fromkeys(due, now))
        for vbucket in refused:
            self._refused_at.pop(vbucket)
        return set(refused)

    def may_begin(self, pieces: Sequence[Range]) -> list[Range]:
        """Say of which pieces of vbuckets a server would let a stream begin there: nothing after it was purged."""
        # One after the other: a connection has one stream of a vbucket at a time.
        return [each for each in pieces if not self.scout.refusals({VBucketId(each.vbucket): each.position})]

    def mean_bytes(self, at: Offset, seen: Mapping[int, Seen]) -> float:
        """Tell the mean size of a change, by some of the largest backlogs; 0 when there is none."""
        waiting = {vb: each.end - at.of(vb).seqno for vb, each in seen.items() if each.end > at.of(vb).seqno}
        largest = tuple(sorted(waiting, key=lambda each: waiting[each])[-SAMPLE_VBUCKETS:])
        if not largest:
            return 0.0
        sampled = {"vbuckets": largest, "window_bytes": SAMPLE_BYTES, "buffer_bytes": SAMPLE_BYTES}
        options = replace(self._options, **sampled, name="headrace-sample")  # type: ignore[arg-type]
        here = {VBucketId(vbucket): at.of(vbucket) for vbucket in largest}
        starts = {vb: position_of(each) for vb, each in here.items() if each.head == self.newest_branch(vb)}
        rows = size = 0
        with BatchReader(options, start=Positions(bucket=options.bucket, vbuckets=starts), until="now") as reader:
            while size < SAMPLE_VBUCKETS * SAMPLE_BYTES and (batch := reader.next_batch()) is not None:
                rows += batch.num_rows
                size += ROW_BYTES * batch.num_rows
                size += sum(pc.sum(pc.binary_length(batch.column(name))).as_py() or 0 for name in ("key", "value"))
        return size / rows if rows else 0.0


def position_of(at: VBucketOffset) -> Position:
    """The position that a server is asked to go on from: between two snapshots, as the driver has judged it."""
    seqno = Seqno(at.seqno)
    return Position(vbuuid=VbUuid(at.vbuuid), seqno=seqno, snapshot=SnapshotRange.at(seqno))


__all__ = ["Watch", "position_of"]
