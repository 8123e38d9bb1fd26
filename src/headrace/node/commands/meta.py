"""Items with the revision and CAS that they have elsewhere: what replication and restore write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import Cas, Seqno
from headrace.node.commands.items import bucket_of, check_key, mutated
from headrace.node.dispatch import answer, handles
from headrace.node.refused import Refused, exists, not_found
from headrace.node.users import Role
from headrace.node.values import JSON, SNAPPY, XATTR, accepted
from headrace.store.records import DELETED, EXPIRED, LIVE, Record, unpack
from headrace.wire.catalogue import (
    DeleteWithMeta,
    DeleteWithMetaQ,
    GetMeta,
    Meta,
    Mutated,
    SetWithMeta,
    SetWithMetaQ,
    StoringWithMeta,
)
from headrace.wire.codes import Status, WithMetaOption

if TYPE_CHECKING:
    from headrace.node.session import Session

CAS_MAX = 0xFFFF_FFFF_FFFF_FFFE
REVISION_MAX = 0x7FFF_FFFF_FFFF_FFFF
"""Every change adds one: the largest number would leave no next one."""
_WITH_DATATYPE = 2
_SKIPS = WithMetaOption.SKIP_CONFLICT_RESOLUTION | WithMetaOption.FORCE
"""Either says that conflicts are not settled: the first since 5.0, the second always."""


@handles(GetMeta, needs=Role.READ)
def get_meta(session: Session, request: GetMeta) -> Meta:
    """Tell what is known of an item or of its tombstone."""
    bucket = bucket_of(session)
    check_key(request.key)
    vb = bucket.active(request.vbucket)
    bucket.live(vb, request.key)  # one that has expired is a tombstone from here on
    record = bucket.find(vb, request.key)
    if record is None:
        raise not_found()
    item = unpack(record)
    return answer(
        request,
        Meta,
        cas=item.cas,
        deleted=int(not item.live),
        flags=item.flags,
        expiry=item.expiry if item.live else item.delete_time,
        rev_seqno=item.rev_seqno,
        item_datatype=item.datatype if request.version == _WITH_DATATYPE else None,
    )


@handles(SetWithMeta, SetWithMetaQ, needs=Role.WRITE)
def set_with_meta(session: Session, request: StoringWithMeta) -> Mutated:
    """Store an item as it is elsewhere, unless what is here is newer."""
    datatype = accepted(request.value, request.datatype, JSON | SNAPPY | XATTR)
    return _write(session, request, opcode=LIVE, datatype=datatype)


@handles(DeleteWithMeta, DeleteWithMetaQ, needs=Role.WRITE)
def delete_with_meta(session: Session, request: StoringWithMeta) -> Mutated:
    """Leave a tombstone as it is elsewhere, unless what is here is newer."""
    expired = (request.options or 0) & WithMetaOption.IS_EXPIRATION
    datatype = accepted(request.value, request.datatype, JSON | SNAPPY | XATTR)
    kept = datatype & (SNAPPY | XATTR) if datatype & XATTR else 0  # of a value, only xattrs outlive it
    return _write(session, request, opcode=EXPIRED if expired else DELETED, datatype=kept)


def _write(session: Session, request: StoringWithMeta, *, opcode: int, datatype: int) -> Mutated:
    bucket = bucket_of(session)
    check_key(request.key)
    options = WithMetaOption(request.options or 0)
    if not 0 < request.item_cas <= CAS_MAX:
        raise Refused(Status.KEY_EXISTS, f"{request.item_cas} is no CAS of an item")
    if request.rev_seqno > REVISION_MAX:
        raise Refused(Status.INVALID, f"{request.rev_seqno} is no revision of an item: at most {REVISION_MAX}")
    vb = bucket.active(request.vbucket)
    live = opcode == LIVE
    new = Record(
        opcode=opcode,
        vbucket=vb.id,
        key=request.key,
        value=request.value if live or datatype else b"",
        datatype=datatype,
        cas=Cas(request.item_cas),
        seqno=Seqno(0),
        rev_seqno=request.rev_seqno,
        flags=request.flags if live else 0,
        expiry=request.expiry if live else 0,
        delete_time=0 if live else request.expiry or bucket.clock.seconds,
    )
    bucket.live(vb, request.key)
    record = bucket.find(vb, request.key)
    old = unpack(record) if record is not None else None
    _check_version(bucket.lock_of(vb, request.key), request, old)
    if old is not None and not options & _SKIPS and not wins(new, old):
        raise exists()
    if options & WithMetaOption.REGENERATE_CAS:
        new = new._replace(cas=Cas(0))
    else:
        bucket.clock.see(request.item_cas)
    changed = bucket.replace(vb, new)
    return mutated(session, request, vb, changed.cas)


def _check_version(lock: int | None, request: StoringWithMeta, old: Record | None) -> None:
    if lock is not None and request.cas != lock:
        raise Refused(Status.LOCKED, "Locked")
    if request.cas and lock is None:
        if old is None or not old.live:
            raise not_found()
        if old.cas != request.cas:
            raise exists()


def wins(new: Record, old: Record) -> bool:
    """Which of two versions of an item is kept everywhere: more revisions, then CAS, expiry and flags in this order."""

    def rank(one: Record) -> tuple[int, int, int, int]:
        return one.rev_seqno, one.cas, one.expiry if one.live else one.delete_time, one.flags

    return rank(new) > rank(old)
