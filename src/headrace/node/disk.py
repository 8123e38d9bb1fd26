"""The disk of one bucket: the writer in its own process, a reader here, and the marks of what may be lost.

    DIRECTORY/store/      the LMDB environment
    DIRECTORY/unflushed   one byte a vbucket: acknowledged changes are not on disk yet
    DIRECTORY/bucket.json what the bucket is: its uuid and how many vbuckets it has

Blocking calls (`write`, and what the flusher asks of `writer`) are for its thread; `get` is for the event loop.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.history import Cause, FailoverLog, State, transition
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.store import Backfill, Changes, LmdbReader, Unflushed, VBucketRecord, WriterProcess
from headrace.store.layout import DATA_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_VERSION = 1


class DataError(HeadraceError):
    """A data directory cannot be used as it is; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFacts:
    """What a bucket is, as its directory says."""

    uuid: str
    vbuckets: int
    starts: int = 0
    """How often it was opened: the epoch of its map, so that no start tells an older map than the one before."""
    is_made: bool = False
    """Whether its vbuckets were once made; what is missing after that was removed."""

    @classmethod
    def of(cls, directory: Path, vbuckets: int) -> BucketFacts:
        """Read the facts; those of a new bucket where there are none."""
        path = directory / "bucket.json"
        try:
            told = json.loads(path.read_bytes())
            version = told["version"]
            facts = cls(
                uuid=str(told["uuid"]),
                vbuckets=int(told["vbuckets"]),
                starts=int(told["starts"]),
                is_made=bool(told["is_made"]),
            )
        except FileNotFoundError:
            return cls(uuid=secrets.token_hex(16), vbuckets=vbuckets)
        except (ValueError, KeyError, TypeError) as error:
            text = f"{path} does not say what the bucket is ({error!r}): restore it, or remove {directory}"
            raise DataError(text) from error
        if version != _VERSION:
            raise DataError(f"{path} is of version {version}; this headrace knows {_VERSION}: use a newer headrace")
        return facts

    def write(self, directory: Path) -> None:
        """Keep them."""
        write_whole(directory / "bucket.json", {"version": _VERSION, **asdict(self)})


def write_whole(path: Path, content: object) -> None:
    """Write a small JSON file so that a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make new names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_private(directory: Path) -> None:
    """Make a directory that only its owner may look into; one that is there stays as it is."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{directory} cannot be the directory of the data: {error.strerror}") from error


def is_store(directory: Path) -> bool:
    """Whether there are the files of a store, and something in them."""
    try:
        return (directory / DATA_FILE).stat().st_size > 0
    except FileNotFoundError:
        return False


class Disk:
    """Opens the files of a bucket and brings its vbuckets to a state that is true."""

    def __init__(self, directory: Path, *, vbuckets: int, lock_fd: int | None = None) -> None:
        make_private(directory)
        self.directory = directory
        self.facts = BucketFacts.of(directory, vbuckets)
        if self.facts.vbuckets != vbuckets:
            raise DataError(
                f"{directory} holds a bucket of {self.facts.vbuckets} vbuckets, not {vbuckets}: "
                f"start with --vbuckets {self.facts.vbuckets}, or with another --data"
            )
        if self.facts.is_made and not is_store(directory / "store"):
            raise DataError(f"{directory / 'store'} is no store any more: restore it, or remove {directory}")
        self.facts = replace(self.facts, starts=self.facts.starts + 1)
        self.facts.write(directory)
        self.writer = WriterProcess(directory / "store", lock_fd=lock_fd)
        try:
            self.reader = LmdbReader(directory / "store")
            self.unflushed = Unflushed(directory, vbuckets)
        except BaseException:
            self.writer.close()
            raise
        self.marks = self.unflushed.marks
        self._bind()

    def vbuckets(self) -> dict[VBucketId, VBucketRecord]:
        """All vbuckets on disk."""
        return self.reader.latest.vbuckets()

    def recover(self, new_vbuuid: list[VbUuid]) -> frozenset[VBucketId]:
        """Give every vbucket that may have lost something a new branch at its last seqno on disk.

        `new_vbuuid` has a name for each vbucket. A new bucket gets all its vbuckets, active and empty.
        """
        kept = self.vbuckets()
        lost = frozenset(
            vb
            for vb in self.unflushed.may_have_lost & kept.keys()
            if transition(State(kept[vb].state), State(kept[vb].state), cause=Cause.UNCLEAN_STOP).branches
        )
        changes = [self._branched(vb, kept[vb], new_vbuuid[vb]) for vb in sorted(lost)]
        if not kept and not self.facts.is_made:
            changes = [self._empty(VBucketId(vb), new_vbuuid[vb]) for vb in range(self.facts.vbuckets)]
        if changes:
            self.writer.write(changes)
            self.refresh()
        for vb in self.unflushed.may_have_lost:
            self.marks[vb] = 0
        if not self.facts.is_made:
            self.facts = replace(self.facts, is_made=True)
            self.facts.write(self.directory)
        return lost

    @staticmethod
    def _branched(vbucket: VBucketId, kept: VBucketRecord, vbuuid: VbUuid) -> Changes:
        log = FailoverLog.from_entries(kept.failover_log).branch(vbuuid=vbuuid, seqno=kept.high_seqno)
        entries = tuple((branch.vbuuid, branch.seqno) for branch in log)
        return Changes(vbucket=vbucket, records=[], now=replace(kept, failover_log=entries))

    @staticmethod
    def _empty(vbucket: VBucketId, vbuuid: VbUuid) -> Changes:
        now = VBucketRecord(state=State.ACTIVE, failover_log=((vbuuid, Seqno(0)),))
        return Changes(vbucket=vbucket, records=[], now=now)

    def refresh(self) -> None:
        """See what the writer has written."""
        self.reader.refresh()
        self._bind()

    def _bind(self) -> None:
        """Lookups are asked of the newest snapshot, without a step between."""
        self.get = self.reader.latest.get
        self.expired = self.reader.latest.expired

    def backfill(self, vbucket: VBucketId, after: int) -> Backfill:
        """Begin to read a vbucket behind a seqno, as the disk has it now; whoever begins closes it."""
        return self.reader.backfill(vbucket, after)

    def write(self, changes: Sequence[Changes]) -> None:
        """Bring changes to disk."""
        self.writer.write(changes)

    def close(self, *, clean: bool) -> None:
        """Let go of the files; `clean` says that nothing is left in memory alone."""
        self.reader.close()
        self.writer.close()
        self.unflushed.close(clean=clean)
