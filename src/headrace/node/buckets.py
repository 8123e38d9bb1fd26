"""All buckets of a node: opening and closing them, making and removing them.

DATA/lock             held by the one node that may use DATA
DATA/buckets/NAME/    the files of a bucket, see disk.py
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from headrace.errors import HeadraceError
from headrace.node.bucket import Bucket, new_vbuuid
from headrace.node.disk import Disk, make_private, sync_directory
from headrace.node.flusher import Flusher
from headrace.node.pager import Pager
from headrace.node.tap.registered import Registered
from headrace.node.users import BUCKET_NAME
from headrace.store import DirectoryLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from headrace.node.chaos import Chaos
    from headrace.node.limits import NodeLimits
    from headrace.node.session import Session
    from headrace.node.tap.producer import TapProducer
    from headrace.protocol.tap_checkpoints import Checkpoints

log = logging.getLogger("headrace.node.buckets")

_REMOVED = ".removed-"
LOCK_WAIT_S = 15.0
"""The writer of a node that was killed may still be finishing its last transaction."""


class BucketError(HeadraceError):
    """A bucket cannot be made or removed; the text says why."""


@dataclass(slots=True)
class OpenBucket:
    """A bucket and those who work for it."""

    bucket: Bucket
    flusher: Flusher
    pager: Pager
    ends: dict[str, Session] = field(default_factory=dict)
    """The connections that were opened for streams, by their names."""
    taps: dict[str, Session] = field(default_factory=dict)
    """The TAP connections, by their names, which are other names than those of streams."""
    registered: Registered = field(default_factory=Registered)
    """The TAP clients that may come back."""
    checkpoints: dict[int, Checkpoints] = field(default_factory=dict)
    """What TAP clients know as checkpoints, by vbucket, where one was asked for."""
    chaos: Chaos | None = None
    """The trouble that was made on purpose; None where nobody made any."""
    _put_off: asyncio.Task[None] | None = None

    def later(self, delay_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do something in a while, in the place of what was put off before, unless the bucket closes first."""
        if self._put_off is not None:
            self._put_off.cancel()

        async def wait() -> None:
            await asyncio.sleep(delay_s)
            try:
                await work()
            except HeadraceError as error:
                extra = {"bucket": self.bucket.name, "why": str(error)}
                log.warning("what was put off could not be done", extra=extra)

        self._put_off = asyncio.get_running_loop().create_task(wait())

    def tap_ends(self) -> list[TapProducer]:
        """The TAP connections as they send."""
        return [cast("TapProducer", session.end) for session in self.taps.values()]

    async def close(self) -> bool:
        """Bring all to disk and let go of the files; False when something could not be brought there."""
        if self._put_off is not None:
            self._put_off.cancel()
            await asyncio.gather(self._put_off, return_exceptions=True)
        await self.pager.close()
        clean = await self.flusher.close()
        if not clean:
            log.error("closed with changes that are not on disk", extra={"bucket": self.bucket.name})
        await asyncio.to_thread(self.bucket.disk.close, clean=clean)
        return clean


class Buckets:
    """The buckets of one data directory."""

    def __init__(self, data: Path, *, vbuckets: int, limits: NodeLimits) -> None:
        self.data = data
        self.vbuckets = vbuckets
        self.limits = limits
        self._open: dict[str, OpenBucket] = {}
        self._busy: set[str] = set()
        make_private(data)
        self._lock = DirectoryLock(data, wait_s=LOCK_WAIT_S)

    def __iter__(self) -> Iterator[OpenBucket]:
        return iter(list(self._open.values()))

    def get(self, name: str) -> OpenBucket | None:
        """A bucket that is open."""
        return self._open.get(name)

    def is_opening(self, name: str) -> bool:
        """Whether a bucket will be there in a moment."""
        return name in self._busy

    def names(self) -> list[str]:
        """The names of all buckets."""
        return sorted(self._open)

    async def open_all(self, names: tuple[str, ...]) -> None:
        """Open every bucket that the directory holds, and make those that are named and not there."""
        kept = self.data / "buckets"
        there = [path.name for path in kept.iterdir() if (path / "bucket.json").exists()] if kept.exists() else []
        there = [name for name in there if not name.startswith(".")]
        await asyncio.to_thread(self._sweep)
        for name in dict.fromkeys([*sorted(there), *names]):
            await self.create(name)

    async def create(self, name: str) -> OpenBucket:
        """Open a bucket, making it where it is not."""
        if not BUCKET_NAME.fullmatch(name) or name.startswith("."):
            raise BucketError(f"{name!r} is no name for a bucket: letters, digits, . _ % - and at most 100 of them")
        if name in self._open or name in self._busy:
            raise BucketError(f"there is a bucket {name} already")
        if len(self._open) + len(self._busy) >= self.limits.buckets_max:
            raise BucketError(f"a node has at most {self.limits.buckets_max} buckets")
        self._busy.add(name)
        try:
            disk, lost = await asyncio.to_thread(self._open_disk, name)
        finally:
            self._busy.discard(name)
        bucket = Bucket(name, disk, vbuckets=self.vbuckets, limits=self.limits)
        if lost:
            log.warning(
                "after an unclean end, vbuckets that may have lost changes got a new branch",
                extra={"bucket": name, "vbuckets": lost},
            )
        flusher = Flusher(bucket)
        opened = OpenBucket(bucket, flusher, Pager(bucket, flusher))
        self._open[name] = opened
        return opened

    def _open_disk(self, name: str) -> tuple[Disk, int]:
        directory = self.data / "buckets" / name
        try:
            return self._opened_disk(directory)
        except OSError as error:
            raise BucketError(f"bucket {name} cannot be kept in {directory}: {error.strerror or error}") from error

    def _opened_disk(self, directory: Path) -> tuple[Disk, int]:
        disk = Disk(directory, vbuckets=self.vbuckets, lock_fd=self._lock.fd)
        try:
            lost = disk.recover([new_vbuuid() for _ in range(self.vbuckets)])
        except BaseException:
            disk.close(clean=False)
            raise
        return disk, len(lost)

    async def delete(self, name: str) -> None:
        """Remove a bucket and its files."""
        opened = self._open.pop(name, None)
        if opened is None:
            raise BucketError(f"there is no bucket {name}")
        self._busy.add(name)
        try:
            opened.bucket.trouble = "the bucket is being removed"
            for session in [*opened.ends.values(), *opened.taps.values()]:
                session.leave("its bucket is being removed")
            await opened.close()
            await asyncio.to_thread(self._remove, opened.bucket.disk.directory)
        finally:
            self._busy.discard(name)

    def _remove(self, directory: Path) -> None:
        """Under another name first: a removal that is cut short must not leave a bucket with a part of its files."""
        doomed = directory.with_name(f"{_REMOVED}{secrets.token_hex(8)}")
        directory.rename(doomed)
        sync_directory(doomed.parent)
        shutil.rmtree(doomed)

    def _sweep(self) -> None:
        """Finish the removals that were cut short."""
        for doomed in (self.data / "buckets").glob(f"{_REMOVED}*"):
            shutil.rmtree(doomed)

    async def close(self) -> None:
        """Close all buckets, then leave the directory to others; raise when one lost what was acknowledged."""
        lost = [opened.bucket.name for opened in list(self._open.values()) if not await opened.close()]
        self._open.clear()
        self._lock.close()
        if lost:
            raise BucketError(f"closed with changes that are not on disk, in {', '.join(lost)}: the log says why")
