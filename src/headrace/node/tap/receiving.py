"""TAP in: whoever may rule the bucket sends TAP messages on a plain connection, and what they tell happens here.

There is no connect and no stream on this side of TAP: a message is a request as any other, and only who sends it knows
that there is a stream (capture 08l_tap_consumer).

**Answers.** A message is acknowledged when its flag 0x01 asks for it. What is refused is told when that was asked, or
after OPAQUE 0 in any case; else nobody hears of it. A sender that wants to know asks.

**Items** are stored in the order in which they come, with the CAS, revision, flags and expiry that they have elsewhere,
and with this node's next seqno: so streams of this node are whole, whatever feeds it. One that the vbucket has already
changes nothing. TAP begins from the beginning after each broken connection, and in a ring all comes back; neither may
look like changes to who reads this node.

**History.** Seqnos that are given here belong to no other server's history. A replica may have been fed by DCP, and
have its producer's failover log: before the first item by TAP it begins a branch of its own.

**Takeover.** A vbucket becomes active by the connection that put it in the state before (pending, or replica), if
nobody changed that since. A step that was still on its way when its sender was given up makes no second owner then.

**What is acknowledged and means no more:** checkpoints, and the opaque messages but for OPAQUE 0. Couchbase empties a
vbucket at OPAQUE 1, when its backfill begins; here it stays as it is, since streams of this node would see every item
go and come again. Online update (OPAQUE 4 to 6) stops nothing: everything goes to disk as ever.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from headrace.history import State, Transition
from headrace.ids import Seqno, VBucketId
from headrace.node import replies
from headrace.node.commands.admin import flush_all
from headrace.node.commands.items import bucket_of, check_key
from headrace.node.commands.meta import CAS_MAX, REVISION_MAX
from headrace.node.commands.vbuckets import set_state
from headrace.node.dcp.copies import is_fed
from headrace.node.dispatch import handles
from headrace.node.refused import Refused
from headrace.node.users import Role
from headrace.node.values import JSON, SNAPPY, XATTR, accepted
from headrace.store import StoreError
from headrace.store.records import DELETED, LIVE, Record, unpack
from headrace.wire import Dialect
from headrace.wire.catalogue import (
    TapCheckpoint,
    TapCheckpointEnd,
    TapCheckpointStart,
    TapDelete,
    TapFlush,
    TapMutation,
    TapOpaque,
    TapRequest,
    TapVBucketSet,
)
from headrace.wire.codes import Status, TapFlag, TapOpaqueCode

if TYPE_CHECKING:
    from headrace.node.bucket import Bucket
    from headrace.node.buckets import OpenBucket
    from headrace.node.session import Session
    from headrace.node.vbucket import VBucket

log = logging.getLogger("headrace.node.tap")

_TAKING = frozenset({State.ACTIVE, State.REPLICA, State.PENDING})
_BRANCHES: WeakKeyDictionary[Bucket, dict[int, int]] = WeakKeyDictionary()
"""The branches that vbuckets began here to take items by TAP, by their ids."""

_TURNS: WeakKeyDictionary[Bucket, _Turns] = WeakKeyDictionary()

Work = Callable[["Session", Any], Awaitable[None] | None]


def _receives(*messages: type[TapRequest]) -> Callable[[Work], Work]:
    """Enter a function as what is done at these messages; acks and refusals are the same for all."""

    def enter(work: Work) -> Work:
        @functools.wraps(work)
        def serve(session: Session, message: TapRequest) -> Awaitable[None] | None:
            try:
                _check(session, message)
                pending = work(session, message)
            except (Refused, StoreError) as error:
                _tell(session, message, error)
                return None
            if pending is not None:
                return _finish(session, message, pending)
            _tell(session, message)
            return None

        handles(*messages, needs=Role.ADMIN)(serve)
        return work

    return enter


def _check(session: Session, message: TapRequest) -> None:
    """Refuse a message that has gone as far as it may, and one from a connection that is something else."""
    if message.ttl == 0:
        raise _invalid()
    if session.end is not None:
        raise Refused(Status.INVALID, "this connection is an end of streams itself")


async def _finish(session: Session, message: TapRequest, pending: Awaitable[None]) -> None:
    try:
        await pending
    except (Refused, StoreError) as error:
        _tell(session, message, error)
    else:
        _tell(session, message)


def _tell(session: Session, message: TapRequest, error: Refused | StoreError | None = None) -> None:
    """Acknowledge a message or refuse it, where that is to be said."""
    opcode = message.spec.opcodes[Dialect.TAP]
    asked = message.tap_flags & TapFlag.ACK
    if error is None:
        if asked and session.left is None:
            session.send(replies.done(opcode, message.opaque, 0))
        return
    refused = error if isinstance(error, Refused) else Refused(Status.TEMPORARY_FAILURE, str(error))
    if asked or session.tap_nacks:
        session.send(replies.error(opcode, message.opaque, refused))
    else:
        log.info("a TAP message was refused, unheard", extra={"peer": session.peer, "why": str(refused)})


def _invalid() -> Refused:
    return Refused(Status.INVALID, "Invalid arguments")


# --------------------------------------------------------------------------------------------------------------- items


@_receives(TapMutation)
def mutation(session: Session, message: TapMutation) -> None:
    """Store an item as it is elsewhere."""
    if message.tap_flags & TapFlag.NO_VALUE:  # it would be an item without its value
        raise _invalid()
    flags = message.item_flags
    if not message.tap_flags & TapFlag.NETWORK_BYTE_ORDER:  # as the sender's machine has them, which is a PC
        flags = int.from_bytes(flags.to_bytes(4, "big"), "little")
    _apply(
        session,
        message,
        Record(
            opcode=LIVE,
            vbucket=message.vbucket,
            key=message.key,
            value=message.value,
            datatype=accepted(message.value, message.datatype, JSON | SNAPPY | XATTR),
            cas=message.cas,
            seqno=Seqno(0),
            rev_seqno=message.rev_seqno or 0,
            flags=flags,
            expiry=message.expiry,
        ),
    )


@_receives(TapDelete)
def deletion(session: Session, message: TapDelete) -> None:
    """Leave a tombstone as it is elsewhere."""
    _apply(
        session,
        message,
        Record(
            opcode=DELETED,
            vbucket=message.vbucket,
            key=message.key,
            value=b"",
            datatype=0,
            cas=message.cas,
            seqno=Seqno(0),
            rev_seqno=message.rev_seqno or 0,
            flags=0,
            expiry=0,
            delete_time=bucket_of(session).clock.seconds,
        ),
    )


def _apply(session: Session, message: TapMutation | TapDelete, new: Record) -> None:
    bucket = bucket_of(session)
    check_key(new.key)
    if new.cas > CAS_MAX or new.rev_seqno > REVISION_MAX:
        raise _invalid()
    vb = _taking(bucket, new.vbucket)
    bucket.check_writable()
    found = bucket.find(vb, new.key)
    old = unpack(found) if found is not None else None
    if _is_there(old, new, told_revision=message.rev_seqno is not None):
        return
    if message.rev_seqno is None:
        new = new._replace(rev_seqno=old.rev_seqno + 1 if old is not None else 1)
    _own(bucket, vb)
    if new.cas:
        bucket.clock.see(new.cas)
    changed = bucket.replace(vb, new)
    bucket.hops.note(vb.id, changed.seqno, message.ttl)


def _taking(bucket: Bucket, vb_id: int) -> VBucket:
    """A vbucket that takes items by TAP: not a dead one, and none that has half a snapshot of a DCP stream."""
    vb = bucket.vbucket(vb_id)
    if vb.state not in _TAKING or is_fed(bucket, vb.id) or vb.is_spilled:
        raise Refused(Status.NOT_MY_VBUCKET)
    if vb.in_snapshot:  # of a stream that is gone
        bucket.drop_partial(vb)
    return vb


def _is_there(old: Record | None, new: Record, *, told_revision: bool) -> bool:
    """Whether a vbucket has a version of an item already, by as much as the message tells of it."""
    if old is None:
        return not new.live and not told_revision  # nothing is to be removed, and nothing tells one removal apart
    if old.live != new.live:
        return False
    if not told_revision and not new.cas:
        return not new.live
    return (not told_revision or old.rev_seqno == new.rev_seqno) and (not new.cas or old.cas == new.cas)


def _own(bucket: Bucket, vb: VBucket) -> None:
    """Begin a branch of our own in a copy, once: its failover log may be that of another server."""
    if vb.state is State.ACTIVE:
        return
    branches = _BRANCHES.setdefault(bucket, {})
    if branches.get(vb.id) != vb.vbuuid:
        bucket.begin_branch(vb)
        branches[vb.id] = vb.vbuuid


# -------------------------------------------------------------------------------------------------- buckets, vbuckets


@_receives(TapFlush)
def flush(session: Session, message: TapFlush) -> Awaitable[None]:
    """Remove every item, as a flush does here; of copies too, but for those that a DCP stream feeds."""
    del message
    opened = _opened(session)
    bucket = opened.bucket

    def is_ours(vb: VBucket) -> bool:
        return vb.state in _TAKING and not is_fed(bucket, vb.id) and not vb.in_snapshot

    for vb in bucket.vbuckets:
        if vb is not None and vb.live_items and is_ours(vb):
            _own(bucket, vb)
    return _flushed(session, opened, is_ours)


async def _flushed(session: Session, opened: OpenBucket, is_ours: Callable[[VBucket], bool]) -> None:
    await flush_all(opened, is_ours)
    if session.services.sync_every_write:
        await opened.flusher.on_disk()


@_receives(TapVBucketSet)
def vbucket_set(session: Session, message: TapVBucketSet) -> Awaitable[None] | None:
    """Put a vbucket in a state, making it where it is not; a step of a takeover, done when the disk knows."""
    try:
        state = State(message.state)
    except ValueError:
        session.leave(f"{message.state} is no state of a vbucket")
        return None
    if message.vbucket >= len(bucket_of(session).vbuckets):
        raise Refused(Status.NOT_MY_VBUCKET)
    return _set(_opened(session), session, message.vbucket, state)


async def _set(opened: OpenBucket, session: Session, vb_id: VBucketId, state: State) -> None:
    bucket, flusher = opened.bucket, opened.flusher
    bucket.check_writable()
    vb, turns, steps = bucket.vbuckets[vb_id], _turns_of(bucket), session.tap_steps
    if state is State.ACTIVE and (vb is None or (vb.state is not state and steps.get(vb_id) != turns.of(vb))):
        raise Refused(Status.NOT_MY_VBUCKET)
    if vb is None:
        vb = bucket.make_vbucket(vb_id, state)
        _BRANCHES.setdefault(bucket, {})[vb.id] = vb.vbuuid
    elif vb.state is not state:
        await set_state(opened, vb, state)
    steps[vb_id] = turns.of(vb)
    seqno = vb.whole_seqno
    while vb.state_on_disk is not state or vb.persisted_seqno < seqno:
        if bucket.vbuckets[vb_id] is not vb or vb.state is not state:  # its manager decided otherwise meanwhile
            raise Refused(Status.NOT_MY_VBUCKET)
        batch: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flusher.after.append(lambda batch=batch: batch.done() or batch.set_result(None))  # type: ignore[misc]
        flusher.hurry()
        await batch


class _Turns:
    """How often vbuckets of a bucket have changed their states, as far as that was looked at."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._states: dict[int, State] = {}

    def of(self, vb: VBucket) -> int:
        """Give the number of the turn that a vbucket is in."""
        self.look(vb)
        return self._counts[vb.id]

    def look(self, vb: VBucket, _: Transition | None = None) -> None:
        """Count a new state; not a new branch."""
        if self._states.get(vb.id) is not vb.state:
            self._states[vb.id] = vb.state
            self._counts[vb.id] = self._counts.get(vb.id, 0) + 1


def _turns_of(bucket: Bucket) -> _Turns:
    turns = _TURNS.get(bucket)
    if turns is None:
        turns = _TURNS[bucket] = _Turns()
        bucket.state_watchers.append(turns.look)
    return turns


def _opened(session: Session) -> OpenBucket:
    assert session.opened is not None
    return session.opened


# ------------------------------------------------------------------------------------------------- turns of the stream


@_receives(TapOpaque)
def opaque(session: Session, message: TapOpaque) -> None:
    """Take note that refusals are to be told in any case; the other codes are the sender's own business."""
    if message.code == TapOpaqueCode.ENABLE_AUTO_NACK:
        session.tap_nacks = True


@_receives(TapCheckpointStart, TapCheckpointEnd)
def checkpoint(session: Session, message: TapCheckpoint) -> None:
    """Nothing: what a node has whole does not depend on the sender's checkpoints."""
    del session, message


__all__ = ["checkpoint", "deletion", "flush", "mutation", "opaque", "vbucket_set"]
