"""What goes by time: items that expire without being asked for, and tombstones that are old enough to forget.

Both are found by an index of the store, so that a turn costs what it finds and not what the bucket holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from headrace.history import State
from headrace.store.records import unpack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.ids import VBucketId
    from headrace.node.bucket import Bucket
    from headrace.node.flusher import Flusher

EXPIRE_EVERY_S = 5.0
PURGE_EVERY_S = 60.0
AT_ONCE_MAX = 1000
"""How many items one step takes, so that clients are served between steps."""

log = logging.getLogger("headrace.node.pager")


class Pager:
    """Works for one bucket, in the background."""

    def __init__(self, bucket: Bucket, flusher: Flusher) -> None:
        self._bucket = bucket
        self._flusher = flusher
        self._tasks = [
            asyncio.get_running_loop().create_task(self._every(EXPIRE_EVERY_S, self.expire)),
            asyncio.get_running_loop().create_task(self._every(PURGE_EVERY_S, self.purge)),
        ]

    async def expire(self) -> int:
        """Turn every item on disk whose time has come into a tombstone; give how many there were."""
        bucket, total = self._bucket, 0
        while bucket.trouble is None and not self._flusher.stopped:
            bucket.clock.tick()
            # Of the others, whoever is active says when their items end.
            found = bucket.disk.expired(now=bucket.clock.seconds, limit=AT_ONCE_MAX, of=bucket.serving)
            gone = 0
            for one in found:
                vb = bucket.vbuckets[one.vbucket]
                record = None if vb is None else bucket.find(vb, one.key)
                if vb is not None and record is not None and bucket.is_over(record) and vb.state is State.ACTIVE:
                    bucket.expire(vb, unpack(record))
                    gone += 1
            total += gone
            if not gone:
                return total
            bucket.changed()
            await self._flusher.on_disk()  # the index drops them with the tombstones' arrival
        return total

    async def purge(self, *, deleted_before: int | None = None, vbucket: VBucketId | None = None) -> None:
        """Forget tombstones that are older than the limit, or than a given second."""
        before = int(time.time()) - self._bucket.limits.tombstone_s_min if deleted_before is None else deleted_before
        while await self._flusher.purge(vbucket, deleted_before=before, limit=AT_ONCE_MAX):
            pass

    async def _every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - whatever it was, the next turn may do better
                log.warning(
                    "the disk refused; tried again later", extra={"bucket": self._bucket.name, "why": str(error)}
                )

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
