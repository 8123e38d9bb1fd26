"""A disk that can be lost: the store on dicts behind the node's own `Disk`, which recovers from it after a crash.

What `write` has done is there after a crash, what memory had is not. The marks of what was not flushed are there after
the end of a process and are lost with the power. A write may fail with nothing done, or with everything done and nobody
told of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from headrace.history import State
from headrace.ids import VBucketId
from headrace.node.disk import BucketFacts, Disk
from headrace.store import DictStore, StoreError
from headrace.store.records import seqno_of
from headrace.testing.sim.model import NOWHERE, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from random import Random

    from headrace.ids import Seqno
    from headrace.store import Changes, LmdbReader, Unflushed, VBucketRecord, WriterProcess
    from headrace.store.dict_store import DictSnapshot
    from headrace.testing.sim.model import Model


class _Store(DictStore):
    """A store that tells what it was told to forget: tombstones, and what a copy had that its owner has not."""

    def __init__(self, model: Model, went_back: Callable[[int, Place], None]) -> None:
        super().__init__()
        self._model = model
        self._went_back = went_back

    def rollback(self, vbucket: VBucketId, to: int) -> VBucketRecord:
        """Take a vbucket back."""
        kept = super().rollback(vbucket, to)
        self._went_back(vbucket, Place(kept.failover_log[0][0], kept.high_seqno))
        return kept

    def delete_vbucket(self, vbucket: VBucketId) -> None:
        """Forget a vbucket."""
        super().delete_vbucket(vbucket)
        self._went_back(vbucket, NOWHERE)

    def purge(self, vbucket: VBucketId | None = None, *, deleted_before: int, limit: int) -> dict[VBucketId, Seqno]:
        """Drop tombstones."""
        purged = super().purge(vbucket, deleted_before=deleted_before, limit=limit)
        for vb_id, seqno in purged.items():
            self._model.purged[vb_id] = max(self._model.purged[vb_id], seqno)
        return purged


class Platter:
    """What is on disk, whichever process looks at it."""

    def __init__(self, vbuckets: int, model: Model, went_back: Callable[[int, Place], None]) -> None:
        self.store = _Store(model, went_back)
        self.marks = bytearray(vbuckets)
        self.is_made = False

    def lose_power(self) -> None:
        """The machine goes down: nobody can tell what had been flushed."""
        self.marks[:] = b"\1" * len(self.marks)


class _Facts(BucketFacts):
    """Facts that need no file."""

    def write(self, directory: Path) -> None:
        """Nothing to keep: the platter knows whether it was made."""


class _Marks:
    """The marks, as `Unflushed` gives them."""

    def __init__(self, platter: Platter) -> None:
        self.marks = platter.marks
        self.may_have_lost = frozenset(VBucketId(vb) for vb, mark in enumerate(platter.marks) if mark)


class _Backfill:
    """The records of a vbucket behind a seqno, as `store.Backfill` gives them."""

    def __init__(self, vbucket: VBucketRecord, records: Iterator[bytes], rng: Random) -> None:
        self.vbucket = vbucket
        self._records: list[bytes] | None = list(records)
        self._rng = rng

    @property
    def high_seqno(self) -> int:
        return self.vbucket.high_seqno

    @property
    def is_whole(self) -> bool:
        return self.vbucket.is_whole

    def block(self, bytes_max: int) -> bytearray:
        if self._records is None:
            raise StoreError("the backfill is closed")
        some = self._rng.randint(1, 4)
        records, self._records = self._records[:some], self._records[some:]
        del bytes_max
        return bytearray().join(records)

    def close(self) -> None:
        self._records = None


class _Reader:
    """Snapshots of the store, as `LmdbReader` gives them."""

    def __init__(self, store: DictStore, rng: Random) -> None:
        self._store = store
        self._rng = rng
        self.refresh()

    def refresh(self) -> None:
        with self._store.snapshot() as latest:
            self.latest = latest

    def snapshot(self) -> AbstractContextManager[DictSnapshot]:
        return self._store.snapshot()

    def backfill(self, vbucket: VBucketId, after: int) -> _Backfill:
        with self._store.snapshot() as now:
            kept = now.vbucket(vbucket)
            if kept is None:
                raise StoreError(f"the store has no vbucket {vbucket}")
            return _Backfill(kept, (one for one in now.records(vbucket) if seqno_of(one) > after), self._rng)

    def close(self) -> None:
        """Nothing to let go of."""


class SimDisk(Disk):
    """The disk of one run of a node."""

    def __init__(self, platter: Platter, rng: Random) -> None:
        vbuckets = len(platter.marks)
        self.platter = platter
        self.rng = rng
        self.directory = Path()
        self.facts = _Facts(uuid="simulated", vbuckets=vbuckets, starts=1, is_made=platter.is_made)
        self.writer = cast("WriterProcess", platter.store)
        self.reader = cast("LmdbReader", _Reader(platter.store, rng))
        self.unflushed = cast("Unflushed", _Marks(platter))
        self.marks = cast("memoryview", platter.marks)
        self.refuses = 0.0
        """How likely a write is refused."""
        self._bind()
        platter.is_made = True

    def write(self, changes: Sequence[Changes]) -> None:
        """Bring changes to disk, or fail."""
        if self.rng.random() < self.refuses:
            if self.rng.random() < 0.5:
                super().write(changes)
            raise StoreError("the disk refuses, for a test")
        super().write(changes)

    def state_of(self, vbucket: VBucketId) -> State | None:
        """The state that a vbucket would have after a crash, whatever the node knows of it."""
        with self.platter.store.snapshot() as now:
            kept = now.vbucket(vbucket)
        return None if kept is None else State(kept.state)
