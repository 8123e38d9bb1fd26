"""Increment and decrement: numbers kept as decimal text, as memcached keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import Cas, Seqno
from headrace.node.commands.items import bucket_of, check_key, rewritten
from headrace.node.dispatch import answer, handles
from headrace.node.refused import Refused, not_found
from headrace.node.users import Role
from headrace.node.values import JSON, body_of
from headrace.store.records import LIVE, Record, unpack
from headrace.wire.catalogue import Counter, Counting, Decrement, DecrementQ, Increment, IncrementQ
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from headrace.node.bucket import Bucket
    from headrace.node.session import Session
    from headrace.node.vbucket import VBucket

_DO_NOT_CREATE = 0xFFFF_FFFF
_COUNTER_MAX = 0xFFFF_FFFF_FFFF_FFFF
_DIGITS_MAX = 20
_UP = {Increment, IncrementQ}


@handles(Increment, IncrementQ, Decrement, DecrementQ, needs=Role.WRITE)
def count(session: Session, request: Counting) -> Counter:
    """Change a counter: it wraps at 64 bits on the way up and stops at 0 on the way down."""
    bucket = bucket_of(session)
    check_key(request.key)
    vb = bucket.active(request.vbucket)
    record = bucket.live(vb, request.key)
    if record is None:
        number, changed = request.initial, _created(bucket, vb, request)
    else:
        item = unpack(record)
        bucket.check_version(vb, request.key, item.cas, request.cas)
        number = _number(item)
        up = type(request) in _UP
        number = (number + request.delta) & _COUNTER_MAX if up else max(0, number - request.delta)
        changed = bucket.replace(vb, rewritten(item, b"%d" % number))
    where = {"vbuuid": vb.vbuuid, "seqno": Seqno(vb.high_seqno)} if session.tells_seqno else {}
    return answer(request, Counter, number=number, cas=changed.cas, **where)


def _number(item: Record) -> int:
    # memcached pads a number that lost a digit with a space, and reads what strtoull reads.
    text = body_of(item.value, item.datatype)[1].strip().removeprefix(b"+")
    if not text.isdigit() or len(text) > _DIGITS_MAX or int(text) > _COUNTER_MAX:
        raise Refused(Status.DELTA_BAD_VALUE, "Non-numeric server-side value for incr or decr")
    return int(text)


def _created(bucket: Bucket, vb: VBucket, request: Counting) -> Record:
    if request.expiry == _DO_NOT_CREATE or request.cas:
        raise not_found()
    old = bucket.find(vb, request.key)
    revision = unpack(old).rev_seqno + 1 if old is not None else 1
    return bucket.replace(
        vb,
        Record(
            opcode=LIVE,
            vbucket=vb.id,
            key=request.key,
            value=b"%d" % request.initial,
            datatype=JSON,
            cas=Cas(0),
            seqno=Seqno(0),
            rev_seqno=revision,
            expiry=bucket.until(request.expiry),
        ),
    )
