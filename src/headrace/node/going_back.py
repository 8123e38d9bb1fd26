"""A vbucket goes back to what it was at an earlier seqno, for good: a failover that loses changes, or a rollback.

The store goes back to the ends of transactions. What a transaction brought is put back as far as it is wanted, where
that makes a state that the vbucket had: so where no change in it replaced another one. Meanwhile the vbucket serves
nobody, as in a real failover; a node that is killed in the middle has it so.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING

from headrace.history import Cause, State
from headrace.ids import Seqno
from headrace.store.records import seqno_of

if TYPE_CHECKING:
    from headrace.node.buckets import OpenBucket
    from headrace.node.vbucket import VBucket
    from headrace.store.contract import Snapshot

PUT_BACK_MAX = 200_000
"""How many changes are put back; a boundary that is farther away is gone back to itself."""
AT_ONCE = 1000
"""How many of them before others are served."""


async def go_back(opened: OpenBucket, vb: VBucket, to: int, *, then: State) -> int:
    """Take a vbucket back to a seqno or below it, and into a state; give the seqno that it has then.

    Its streams end. An active vbucket begins a new branch.
    """
    bucket = opened.bucket
    bucket.set_state(vb, State.REPLICA if vb.state is State.DEAD else State.DEAD, Cause.SET_VBUCKET)
    try:
        if to < vb.high_seqno or vb.is_spilled:
            await _go_back(opened, vb, min(to, vb.whole_seqno))
    finally:
        await opened.flusher.rollbacks_done(vb)  # who is cancelled leaves one under way
        bucket.set_state(vb, then, Cause.SET_VBUCKET)
    if not opened.flusher.stopped:
        await opened.flusher.on_disk()
    return vb.high_seqno


async def _go_back(opened: OpenBucket, vb: VBucket, to: int) -> None:
    log = vb.failover_log
    if not opened.flusher.stopped:
        await opened.flusher.on_disk()
    in_memory = vb.newer(vb.persisted_seqno) or []
    del in_memory[bisect_right(in_memory, to, key=seqno_of) :]
    with opened.bucket.disk.reader.snapshot() as before:
        reached = await opened.flusher.rolled_back(vb, to)
        lacking = to - reached
        if 0 < lacking <= PUT_BACK_MAX:
            await _put_back(opened, vb, to, _between(before, vb, reached, to) + in_memory)
    if reached < vb.high_seqno and any(branch.seqno <= to for branch in log):
        opened.bucket.adopt(vb, log.prune(above=Seqno(to)))  # branches may have begun in what was put back


def _between(before: Snapshot, vb: VBucket, after: int, to: int) -> list[bytes]:
    """What the disk had of the changes behind a seqno, up to another."""
    return list(islice(before.records(vb.id, first=after + 1, last=to), to - after))


async def _put_back(opened: OpenBucket, vb: VBucket, to: int, records: list[bytes]) -> None:
    """Apply changes again, if they are all that there were."""
    bucket, first = opened.bucket, vb.high_seqno
    if len(records) != to - first:
        return
    for at in range(0, len(records), AT_ONCE):
        some = records[at : at + AT_ONCE]
        bucket.begin_snapshot(vb, vb.high_seqno, seqno_of(some[-1]))
        for record in some:
            bucket.apply(vb, record)
        bucket.end_snapshot(vb)
        await asyncio.sleep(0)
