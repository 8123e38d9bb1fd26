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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.history import Cause, FailoverLog, State, transition
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.store import Changes, LmdbReader, Unflushed, VBucketRecord, WriterProcess

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

    @classmethod
    def of(cls, directory: Path, vbuckets: int) -> BucketFacts:
        """Read the facts, or write them down for a new bucket of so many vbuckets."""
        path = directory / "bucket.json"
        try:
            told = json.loads(path.read_bytes())
            version, facts = told["version"], cls(uuid=str(told["uuid"]), vbuckets=int(told["vbuckets"]))
        except FileNotFoundError:
            facts = cls(uuid=secrets.token_hex(16), vbuckets=vbuckets)
            write_whole(path, {"version": _VERSION, "uuid": facts.uuid, "vbuckets": vbuckets})
            return facts
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} does not say what the bucket is ({error}): restore it, or remove {directory}"
            ) from (error)
        if version != _VERSION:
            raise DataError(f"{path} is of version {version}; this headrace knows {_VERSION}: use a newer headrace")
        return facts


def write_whole(path: Path, content: object) -> None:
    """Write a small JSON file so that a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


class Disk:
    """Opens the files of a bucket and brings its vbuckets to a state that is true."""

    def __init__(self, directory: Path, *, vbuckets: int, lock_fd: int | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.facts = BucketFacts.of(directory, vbuckets)
        if self.facts.vbuckets != vbuckets:
            raise DataError(
                f"{directory} holds a bucket of {self.facts.vbuckets} vbuckets, not {vbuckets}: "
                f"start with --vbuckets {self.facts.vbuckets}, or with another --data"
            )
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
        if not kept:
            changes = [self._empty(VBucketId(vb), new_vbuuid[vb]) for vb in range(self.facts.vbuckets)]
        if changes:
            self.writer.write(changes)
            self.refresh()
        for vb in self.unflushed.may_have_lost:
            self.marks[vb] = 0
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

    def write(self, changes: Sequence[Changes]) -> None:
        """Bring changes to disk."""
        self.writer.write(changes)

    def close(self, *, clean: bool) -> None:
        """Let go of the files; `clean` says that nothing is left in memory alone."""
        self.reader.close()
        self.writer.close()
        self.unflushed.close(clean=clean)
