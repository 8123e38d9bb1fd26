"""The states of vbuckets: what a manager of a cluster tells its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.history import Cause, State
from headrace.ids import VBucketId
from headrace.node.commands.items import bucket_of
from headrace.node.dispatch import answer, handles
from headrace.node.refused import Refused
from headrace.node.users import Role
from headrace.store import StoreError
from headrace.wire.catalogue import DeleteVBucket, Done, GetVBucket, SetVBucket, VBucketStateReply
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from headrace.node.buckets import OpenBucket
    from headrace.node.session import Session
    from headrace.node.vbucket import VBucket


@handles(SetVBucket, needs=Role.ADMIN)
async def set_vbucket(session: Session, request: SetVBucket) -> Done:
    """Put a vbucket in a state, making it where it is not; answered when the disk knows, unless it was stopped."""
    bucket = bucket_of(session)
    number = request.state if request.state is not None else request.state_byte
    try:
        state = State(number or 0)
    except ValueError:
        raise Refused(Status.INVALID, f"{number} is no state of a vbucket") from None
    if request.vbucket >= len(bucket.vbuckets):
        raise Refused(Status.OUT_OF_RANGE, f"this bucket has vbuckets 0 to {len(bucket.vbuckets) - 1}")
    assert session.opened is not None
    vb = bucket.vbuckets[request.vbucket]
    if vb is None:
        bucket.make_vbucket(VBucketId(request.vbucket), state)
    else:
        await set_state(session.opened, vb, state)
    if not session.opened.flusher.stopped:
        await session.opened.flusher.on_disk()
    return answer(request, Done)


async def set_state(opened: OpenBucket, vb: VBucket, state: State) -> None:
    """Set it; a replica that has half of a large snapshot on disk gives that up before it becomes active."""
    bucket = opened.bucket
    await opened.flusher.rollbacks_done(vb)
    while state is State.ACTIVE and vb.is_spilled:
        was = vb.state
        bucket.set_state(vb, State.DEAD, Cause.SET_VBUCKET)  # so that nothing more is applied meanwhile
        try:
            await opened.flusher.rolled_back(vb, vb.whole_seqno)
        except StoreError:
            if vb.state is State.DEAD:
                bucket.set_state(vb, was, Cause.SET_VBUCKET)
            raise
    if bucket.vbuckets[vb.id] is not vb:
        raise Refused(Status.NOT_MY_VBUCKET)
    bucket.set_state(vb, state, Cause.SET_VBUCKET)


@handles(GetVBucket, needs=Role.READ, also=Role.STREAM)
def get_vbucket(session: Session, request: GetVBucket) -> VBucketStateReply:
    """Tell the state of a vbucket."""
    return answer(request, VBucketStateReply, state=bucket_of(session).vbucket(request.vbucket).state)


@handles(DeleteVBucket, needs=Role.ADMIN)
async def delete_vbucket(session: Session, request: DeleteVBucket) -> Done:
    """Remove a vbucket and all it holds; it must be dead, so that nobody uses it."""
    vb = bucket_of(session).vbucket(request.vbucket)
    if vb.state is not State.DEAD:
        raise Refused(Status.NOT_MY_VBUCKET)
    assert session.opened is not None
    if not await session.opened.flusher.delete_vbucket(vb):
        raise Refused(Status.NOT_MY_VBUCKET)
    return answer(request, Done)
