"""What concerns a bucket as a whole: flush, persistence, compaction, traffic."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from headrace.history import State
from headrace.node.commands.items import bucket_of
from headrace.node.dcp.sender import Sender
from headrace.node.dispatch import answer, handles
from headrace.node.users import Role
from headrace.store.records import LIVE, OPCODE_AT, seqno_of, unpack
from headrace.wire.catalogue import (
    CompactDb,
    DisableTraffic,
    Done,
    EnableTraffic,
    Flush,
    Flushing,
    FlushQ,
    StartPersistence,
    StopPersistence,
    Text,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.node.buckets import OpenBucket
    from headrace.node.session import Session
    from headrace.node.vbucket import VBucket

_KEYS_AT_ONCE = 1000


def _opened(session: Session) -> OpenBucket:
    assert session.opened is not None
    return session.opened


@handles(Flush, FlushQ, needs=Role.WRITE)
def flush(session: Session, request: Flushing) -> Done | Awaitable[Done]:
    """Remove every item that is there now, one deletion each, so that streams and replicas see it go.

    With a time it is done then, and answered at once; one that was put off before is forgotten.
    """
    opened = _opened(session)
    if request.expiry:
        delay_s = max(0, opened.bucket.until(request.expiry) - int(time.time()))
        opened.later(delay_s, lambda: flush_all(opened))
        return answer(request, Done)
    return _flush_now(session, request)


async def _flush_now(session: Session, request: Flushing) -> Done:
    opened = _opened(session)
    await flush_all(opened)
    if session.services.sync_every_write:
        await opened.flusher.on_disk()
    return answer(request, Done)


def _is_active(vb: VBucket) -> bool:
    return vb.state is State.ACTIVE


async def flush_all(opened: OpenBucket, of: Callable[[VBucket], bool] = _is_active) -> None:
    """Remove every item of some vbuckets, for as long as each of them is one of those: the active, unless told."""
    opened.bucket.check_writable()
    marks = [(vb, vb.high_seqno) for vb in opened.bucket.vbuckets if vb is not None and vb.live_items and of(vb)]
    for tap in opened.tap_ends() if marks else ():
        tap.flushed({vb.id for vb, _ in marks})
    for vb, last in marks:
        # Before a later change is sent, so that it does not fall to the flush; the deletions follow.
        for one in list(opened.ends.values()):
            if isinstance(one.end, Sender):
                one.end.flushed(vb.id)
        await _flush_vbucket(opened, vb, last, of)


async def _flush_vbucket(opened: OpenBucket, vb: VBucket, last: int, of: Callable[[VBucket], bool]) -> None:
    """Memory first, then what only the disk has; nothing that came after the flush."""
    keys = [*vb.items, *vb.flushing, *vb.dirty]
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        if not await _remove(opened, vb, keys[start : start + _KEYS_AT_ONCE], last, of):
            return
    after = b""
    while vb.live_items and vb.persisted_seqno:
        with opened.bucket.disk.reader.snapshot() as snapshot:
            found = snapshot.keys(vb.id, after=after, limit=_KEYS_AT_ONCE)
        if not found:
            return
        after = found[-1][0]
        if not await _remove(opened, vb, [key for key, _ in found], last, of):
            return


async def _remove(opened: OpenBucket, vb: VBucket, keys: list[bytes], last: int, of: Callable[[VBucket], bool]) -> bool:
    """Remove some items, then let others be served, and the disk catch up where it must; False when that is all."""
    bucket = opened.bucket
    for key in keys:
        if not of(vb):  # what is a copy by now is not ours to change
            return False
        record = bucket.live(vb, key) if vb.state is State.ACTIVE else bucket.find(vb, key)
        if record is not None and record[OPCODE_AT] == LIVE and seqno_of(record) <= last:
            bucket.remove(vb, unpack(record))
    bucket.changed()
    if bucket.waiting_bytes > bucket.limits.dirty_bytes_max and not opened.flusher.stopped:
        await opened.flusher.on_disk()
    else:
        await asyncio.sleep(0)
    return True


@handles(StopPersistence, needs=Role.ADMIN)
def stop_persistence(session: Session, request: StopPersistence) -> Text:
    """Leave changes in memory, as a test of crashes wants it."""
    _opened(session).flusher.stop_persistence()
    return answer(request, Text)


@handles(StartPersistence, needs=Role.ADMIN)
def start_persistence(session: Session, request: StartPersistence) -> Text:
    """Bring changes to disk again."""
    _opened(session).flusher.start_persistence()
    return answer(request, Text)


@handles(CompactDb, needs=Role.ADMIN)
async def compact(session: Session, request: CompactDb) -> Done:
    """Forget tombstones of a vbucket: all of them, or those older than a time."""
    vb = bucket_of(session).vbucket(request.vbucket)
    before = 0xFFFF_FFFF if request.drop_deletes else min(request.purge_before_time, 0xFFFF_FFFF)
    opened = _opened(session)
    if before:
        if not opened.flusher.stopped:
            await opened.flusher.on_disk()
        await opened.pager.purge(deleted_before=before, vbucket=vb.id)
    return answer(request, Done)


@handles(EnableTraffic, DisableTraffic, needs=Role.ADMIN)
def traffic(session: Session, request: EnableTraffic | DisableTraffic) -> Text:
    """Agree: a node serves always. Managers of old servers disable traffic around a flush."""
    del session
    state = "enabled" if isinstance(request, EnableTraffic) else "disabled"
    return answer(request, Text, value=b"Data traffic to persistence engine is " + state.encode())
