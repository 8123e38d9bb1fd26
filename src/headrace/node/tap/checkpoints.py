"""The checkpoints of a bucket, and the two commands that ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.node.commands.items import bucket_of
from headrace.node.dispatch import answer, handles
from headrace.node.users import Role
from headrace.protocol.tap_checkpoints import Checkpoints
from headrace.wire.catalogue import CheckpointId, CheckpointIds, CreateCheckpoint, LastClosedCheckpoint

if TYPE_CHECKING:
    from headrace.node.buckets import OpenBucket
    from headrace.node.session import Session
    from headrace.node.vbucket import VBucket


def checkpoints_of(opened: OpenBucket, vb: VBucket) -> Checkpoints:
    """The table of a vbucket, up to now; a new one on a new branch."""
    table = opened.checkpoints.get(vb.id)
    if table is None or not table.holds(vbuuid=vb.vbuuid, high_seqno=vb.whole_seqno):
        table = opened.checkpoints[vb.id] = Checkpoints(
            vbuuid=vb.vbuuid, is_first_branch=len(vb.failover_log) == 1, high_seqno=vb.whole_seqno
        )
    table.advance(vb.whole_seqno)
    return table


def _opened(session: Session) -> OpenBucket:
    assert session.opened is not None
    return session.opened


@handles(CreateCheckpoint, needs=Role.WRITE)
def create_checkpoint(session: Session, request: CreateCheckpoint) -> CheckpointIds:
    """Close the open checkpoint of a vbucket, where something is in it; tell which is open and which is on disk."""
    opened, vb = _opened(session), bucket_of(session).active(request.vbucket)
    table = checkpoints_of(opened, vb)
    persisted = table.persisted(vb.durable_seqno)
    created = table.create(vb.whole_seqno)
    for tap in opened.tap_ends():
        tap.checkpointed(vb.id)
    return answer(request, CheckpointIds, open_checkpoint=created, persisted_checkpoint=persisted)


@handles(LastClosedCheckpoint, needs=Role.READ, also=Role.STREAM)
def last_closed_checkpoint(session: Session, request: LastClosedCheckpoint) -> CheckpointId:
    """Tell which checkpoint of a vbucket was closed last."""
    vb = bucket_of(session).vbucket(request.vbucket)
    return answer(request, CheckpointId, checkpoint=checkpoints_of(_opened(session), vb).last_closed)
