"""Get, set, delete and the other commands on one item. `hot.py` serves the plain forms of get and set itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import Cas, Seqno
from headrace.node.dispatch import answer, frame_infos, handles
from headrace.node.limits import VALUE_BYTES_MAX
from headrace.node.refused import Refused, not_found
from headrace.node.users import Role
from headrace.node.values import JSON, XATTR, accepted, body_of, is_json, plain_value, told, too_big
from headrace.store.records import LIVE, Record, unpack
from headrace.wire.catalogue import (
    Add,
    AddQ,
    Append,
    AppendQ,
    Delete,
    DeleteQ,
    Extending,
    Get,
    GetAndTouch,
    GetAndTouchQ,
    GetK,
    GetKQ,
    GetQ,
    GetReplica,
    Item,
    Mutated,
    OfItem,
    Prepend,
    PrependQ,
    Replace,
    ReplaceQ,
    Set,
    SetQ,
    Storing,
    Touch,
    Touched,
    Touching,
)
from headrace.wire.codes import RequestFrameInfo, Status
from headrace.wire.limits import KEY_BYTES_MAX

if TYPE_CHECKING:
    from headrace.node.bucket import Bucket
    from headrace.node.session import Session
    from headrace.node.vbucket import VBucket
    from headrace.wire.message import Request

LOCKED_CAS = Cas(0xFFFF_FFFF_FFFF_FFFF)
"""What a get of a locked item shows in the place of the CAS that would unlock it."""

_MUST_EXIST = {Add: False, AddQ: False, Replace: True, ReplaceQ: True}
_BEHIND = {Append, AppendQ}
_WITH_KEY = {GetK, GetKQ, GetReplica}  # a server tells the key of a replica's item too: capture 07a_consumer_basic


def bucket_of(session: Session) -> Bucket:
    """The bucket that dispatch has seen to be there."""
    assert session.bucket is not None
    return session.bucket


def check_key(key: bytes) -> None:
    """Refuse a key that is too long; the catalogue has seen that it is not empty."""
    if len(key) > KEY_BYTES_MAX:
        raise Refused(Status.INVALID, f"a key has at most {KEY_BYTES_MAX} bytes")


def told_item(session: Session, request: Request, vb: VBucket, item: Record) -> Item:
    """An item as this client may see it."""
    value, datatype = told(item.value, item.datatype, session.datatypes)
    locked = bucket_of(session).lock_of(vb, item.key) is not None
    return answer(
        request,
        Item,
        flags=item.flags,
        key=item.key if type(request) in _WITH_KEY else b"",
        value=value,
        datatype=datatype,
        cas=LOCKED_CAS if locked else item.cas,
    )


def mutated(session: Session, request: Request, vb: VBucket, cas: int) -> Mutated:
    """The answer to a change, with its place where the client asked to be told."""
    if session.tells_seqno:
        return answer(request, Mutated, cas=Cas(cas), vbuuid=vb.vbuuid, seqno=vb.high_seqno)
    return answer(request, Mutated, cas=Cas(cas))


@handles(Get, GetQ, GetK, GetKQ, needs=Role.READ)
def get(session: Session, request: OfItem) -> Item:
    """Give an item."""
    check_key(request.key)
    vb, item = _counted_item(bucket_of(session), request)
    return told_item(session, request, vb, item)


def _counted_item(bucket: Bucket, request: OfItem | Touching) -> tuple[VBucket, Record]:
    """An item that a client reads: a hit or a miss."""
    try:
        found = bucket.item(request.vbucket, request.key)
    except Refused:
        bucket.counts.get_misses += 1
        raise
    bucket.counts.get_hits += 1
    return found


@handles(GetReplica, needs=Role.READ)
def get_replica(session: Session, request: GetReplica) -> Item:
    """Give an item of a replica."""
    bucket = bucket_of(session)
    vb = bucket.vbucket(request.vbucket)
    record = bucket.live(vb, request.key)
    if record is None:
        raise not_found()
    return told_item(session, request, vb, unpack(record))


@handles(Set, SetQ, Add, AddQ, Replace, ReplaceQ, needs=Role.WRITE)
def store(session: Session, request: Storing) -> Mutated:
    """Store an item."""
    bucket = bucket_of(session)
    check_key(request.key)
    datatype = accepted(request.value, request.datatype, session.datatypes)
    expiry = request.expiry
    if request.framing and any(info.id == RequestFrameInfo.PRESERVE_EXPIRY for info in frame_infos(request.framing)):
        expiry = _kept_expiry(bucket, request) or expiry
    item = Record(
        opcode=LIVE,
        vbucket=request.vbucket,
        key=request.key,
        value=request.value,
        datatype=datatype,
        cas=Cas(0),
        seqno=Seqno(0),
        rev_seqno=0,
        flags=request.flags,
        expiry=expiry,
    )
    stored = bucket.store(item, cas=request.cas, must_exist=_MUST_EXIST.get(type(request)))
    return mutated(session, request, bucket.vbucket(request.vbucket), stored.cas)


def _kept_expiry(bucket: Bucket, request: Storing) -> int:
    old = bucket.live(bucket.active(request.vbucket), request.key)
    return unpack(old).expiry if old is not None else 0


@handles(Delete, DeleteQ, needs=Role.WRITE)
def delete(session: Session, request: OfItem) -> Mutated:
    """Remove an item."""
    bucket = bucket_of(session)
    check_key(request.key)
    vb, item = bucket.item(request.vbucket, request.key)
    bucket.check_version(vb, request.key, item.cas, request.cas)
    gone = bucket.remove(vb, item)
    # memccapable wants a CAS of 0 here, Couchbase's SDKs that of the tombstone: hello tells them apart.
    return mutated(session, request, vb, gone.cas if session.said_hello else 0)


@handles(Append, AppendQ, Prepend, PrependQ, needs=Role.WRITE)
def extend(session: Session, request: Extending) -> Mutated:
    """Put bytes behind or in front of a value."""
    bucket = bucket_of(session)
    check_key(request.key)
    vb = bucket.active(request.vbucket)
    record = bucket.live(vb, request.key)
    if record is None:
        raise Refused(Status.NOT_STORED, "Not stored")
    item = unpack(record)
    bucket.check_version(vb, request.key, item.cas, request.cas)
    datatype = accepted(request.value, request.datatype, session.datatypes)
    more, (_, body) = plain_value(request.value, datatype), body_of(item.value, item.datatype)
    changed = bucket.replace(vb, rewritten(item, body + more if type(request) in _BEHIND else more + body))
    return mutated(session, request, vb, changed.cas)


def rewritten(item: Record, body: bytes) -> Record:
    """An item with another body, as the next version of it; its xattrs stay."""
    xattrs, _ = body_of(item.value, item.datatype)
    if len(xattrs) + len(body) > VALUE_BYTES_MAX:
        raise too_big()
    datatype = (XATTR if xattrs else 0) | (JSON if is_json(body) else 0)
    return item._replace(value=xattrs + body, datatype=datatype, rev_seqno=item.rev_seqno + 1, cas=Cas(0))


@handles(Touch, needs=Role.WRITE)
def touch(session: Session, request: Touching) -> Touched:
    """Give an item a new expiry."""
    bucket = bucket_of(session)
    check_key(request.key)
    vb, item = bucket.item(request.vbucket, request.key)
    item = _touched(bucket, vb, item, request.expiry)
    return answer(request, Touched, cas=item.cas)


@handles(GetAndTouch, GetAndTouchQ, needs=Role.WRITE)
def get_and_touch(session: Session, request: Touching) -> Item:
    """Give an item, and it a new expiry."""
    bucket = bucket_of(session)
    check_key(request.key)
    vb, item = _counted_item(bucket, request)
    item = _touched(bucket, vb, item, request.expiry)
    return told_item(session, request, vb, item)


def _touched(bucket: Bucket, vb: VBucket, item: Record, expiry: int) -> Record:
    """A new seqno, with the CAS and the revision that it had: so did Couchbase Server 4.1.2."""
    if bucket.lock_of(vb, item.key) is not None:
        raise Refused(Status.LOCKED, "Locked")
    until = bucket.until(expiry)
    return item if until == item.expiry else bucket.replace(vb, item._replace(expiry=until))
