"""Locks on items: only the holder of the CAS that get locked gave may change the item, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import Cas
from headrace.node.commands.items import bucket_of, check_key, told_item
from headrace.node.dispatch import answer, handles
from headrace.node.limits import LOCK_S_DEFAULT, LOCK_S_MAX
from headrace.node.refused import Refused
from headrace.node.users import Role
from headrace.wire.catalogue import Done, GetLocked, Item, Unlock
from headrace.wire.codes import Feature, Status

if TYPE_CHECKING:
    from headrace.node.session import Session


def _locked(session: Session) -> Refused:
    """Who asks for a lock before hello 0x07 was told a temporary failure, not `exists` as writers are."""
    status = Status.LOCKED if Feature.XERROR in session.features else Status.TEMPORARY_FAILURE
    return Refused(status, "Locked")


@handles(GetLocked, needs=Role.WRITE)
def get_locked(session: Session, request: GetLocked) -> Item:
    """Give an item and lock it. The CAS in the answer is the lock's alone; the item keeps its own."""
    bucket = bucket_of(session)
    check_key(request.key)
    vb, item = bucket.item(request.vbucket, request.key)
    if bucket.lock_of(vb, request.key) is not None:
        raise _locked(session)
    seconds = request.lock_time or LOCK_S_DEFAULT
    if seconds > LOCK_S_MAX:
        seconds = LOCK_S_DEFAULT
    lock = Cas(bucket.clock.next())
    reply = told_item(session, request, vb, item._replace(cas=lock))
    bucket.locks[vb.id, request.key] = (lock, bucket.clock.seconds + seconds)
    return reply


@handles(Unlock, needs=Role.WRITE)
def unlock(session: Session, request: Unlock) -> Done:
    """Give a lock up."""
    bucket = bucket_of(session)
    vb, _ = bucket.item(request.vbucket, request.key)
    lock = bucket.lock_of(vb, request.key)
    if lock is None:
        raise Refused(Status.NOT_LOCKED, "Not locked")
    if request.cas != lock:
        raise _locked(session)
    del bucket.locks[vb.id, request.key]
    return answer(request, Done)
