"""The loop that serves a block of requests, with the commands in it that make up the load: get and set.

Everything else goes to `dispatch`, message by message. The two ways give the same answers: a test sends the same
requests through both. The loop is one function since a call costs as much as a tenth of a set; it reads a header once
and makes no object that is not kept. Numbers and places come from the catalogue.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from headrace.node import replies
from headrace.node.dcp.consumer import Consumer
from headrace.node.dispatch import dispatch
from headrace.node.limits import VALUE_BYTES_MAX
from headrace.node.memory import RECORD_OVERHEAD_BYTES
from headrace.node.refused import Refused
from headrace.node.seen import SEEN_MASK
from headrace.node.values import JSON, MAY_BE_JSON, is_json, told
from headrace.store.records import (
    CAS_AT,
    CAS_END,
    DATATYPE_AT,
    EXPIRY_AT,
    EXPIRY_END,
    FLAGS_AT,
    FLAGS_END,
    LIVE,
    MUTATION_EXTRAS_BYTES,
    MUTATION_PLAIN,
    OPCODE_AT,
    REVISION,
    REVISION_AT,
)
from headrace.wire import Dialect, Frame, Header
from headrace.wire.catalogue import Get, GetK, GetKQ, GetQ, Set, SetQ
from headrace.wire.codes import Magic, Status
from headrace.wire.limits import HEADER_BYTES, KEY_BYTES_MAX

if TYPE_CHECKING:
    from headrace.node.session import Session
    from headrace.wire.message import Request


def _kind(request: type[Request]) -> int:
    """Magic and opcode of a request, as one number."""
    return Magic.REQUEST << 8 | request.spec.opcodes[Dialect.DCP]


_unpack_header = Struct(">HHHHIIQ").unpack_from
_unpack_storing = Struct(">II").unpack_from
_unpack_revision = REVISION.unpack_from
_pack_item = Struct(">HHBBHIIQQQII7x").pack  # MUTATION_PLAIN, with its first two bytes as one number
_RECORD = Magic.REQUEST << 8 | LIVE
_STORING_BYTES = Set.spec.extras_size(Set.spec.layouts[Dialect.DCP][0])
_STORING = _STORING_BYTES << 8  # and datatype 0
_STORING_BYTES_MAX = _STORING_BYTES + VALUE_BYTES_MAX  # what is near it may be served by the catalogue as well
_KEY_AT = HEADER_BYTES + _STORING_BYTES
_MORE_EXTRAS_BYTES = MUTATION_EXTRAS_BYTES - _STORING_BYTES
_SET, _SETQ = _kind(Set), _kind(SetQ)
_GETS = frozenset(map(_kind, (Get, GetQ, GetK, GetKQ)))
_KEYED = frozenset(map(_kind, (GetK, GetKQ)))
_QUIET_GETS = frozenset(map(_kind, (GetQ, GetKQ)))
OTHERS_AT_ONCE = 128
"""How many requests that are not plain gets and sets one client is served before others have a turn."""
_TRY_RUNS_EVERY = 64
"""After a set that the compiled loop does not take, so many are served one by one before it is asked again."""
_NEVER = bytes(4)
_LOCKED_CAS = b"\xff" * 8
_MISS = Refused(Status.KEY_NOT_FOUND, "Not found")


def serve(session: Session, data: bytes, at: int = 0) -> int:  # noqa: C901, PLR0912, PLR0915 - see above
    """Serve the whole requests of a block, and give the place up to which it was read.

    The caller has looked at the clock. Serving stops early at a request that waits for something (`session.pending`),
    when the client is to be left, when so much is to be sent that it should be sent first, when others should have a
    turn, when the bucket has changed, and at bytes that are no message (`session.fault`).
    """
    bucket = session.bucket
    if bucket is None:
        return _serve_plainly(session, data, at)
    if isinstance(session.end, Consumer):
        return _serve_consumer(session, session.end, data, at)
    end, start = len(data), at
    out, out_bytes_max = session.out, session.services.limits.reply_bytes_max // 4
    clock, serving, seen, locks = bucket.clock, bucket.serving, bucket.seen, bucket.locks
    may_read, may_write = session.may_read, session.may_write and bucket.trouble is None
    # What the client says of JSON is looked at again; that it may say so, hello has to have agreed.
    json_too = _STORING | session.datatypes & JSON
    seqnos = bucket.seqnos
    # Who takes streams asks for a thousand of them at once, and stores nothing.
    may_store = session.end is None
    runs = bucket.runs if may_write and may_store else None
    sets = hits = misses = others = 0
    if runs is not None:
        at, sets = runs.take(data, at, json_too)
    while at + HEADER_BYTES <= end:
        kind, key_bytes, extras_datatype, vb_id, body_bytes, opaque, cas = _unpack_header(data, at)
        stop = at + HEADER_BYTES + body_bytes
        if stop > end:
            break
        # What is looked at together stands in the header side by side: magic and opcode, extras length and datatype.
        if (
            (kind == _SETQ or kind == _SET)  # noqa: PLR1714, SIM109 - a tuple to look in takes longer
            and may_write
            and (extras_datatype == _STORING or extras_datatype == json_too)  # noqa: PLR1714, SIM109 - as above
            and not cas
            and _STORING_BYTES + key_bytes <= body_bytes <= _STORING_BYTES_MAX
            and 0 < key_bytes <= KEY_BYTES_MAX
            and (vb := serving.get(vb_id)) is not None
        ):
            key_at = at + _KEY_AT
            value_at = key_at + key_bytes
            key = data[key_at:value_at]
            dirty = vb.dirty
            old = dirty_before = dirty.get(key)
            if old is None:
                slot = hash(key) & SEEN_MASK
                if seen is None or seen[slot]:
                    old = bucket.find(vb, key)
                else:
                    seen[slot] = 1
            if old is None:
                revision = 1
                vb.live_items += 1
            elif old[OPCODE_AT] == LIVE and old[EXPIRY_AT:EXPIRY_END] == _NEVER and not locks:
                revision = _unpack_revision(old, REVISION_AT)[0] + 1
            else:
                revision = 0
            if revision:
                flags, expiry = _unpack_storing(data, at + HEADER_BYTES)
                if expiry:
                    expiry = bucket.until(expiry)
                datatype = 0
                if value_at < stop and MAY_BE_JSON[data[value_at]] and is_json(data[value_at:stop]):
                    datatype = JSON
                seqno = seqnos[vb_id] = seqnos[vb_id] + 1
                new_cas = clock.last = clock.last + 1
                record = _pack_item(
                    _RECORD, key_bytes, MUTATION_EXTRAS_BYTES, datatype, vb_id, body_bytes + _MORE_EXTRAS_BYTES, 0,
                    new_cas, seqno, revision, flags, expiry,
                ) + data[key_at:stop]  # fmt: skip
                if dirty_before is not None:
                    del dirty[key]  # to its end: dirty is in order of seqno
                elif not dirty:
                    bucket.begin_dirty(vb)
                dirty[key] = record
                sets += 1
                at = stop
                if kind == _SET:
                    if session.tells_seqno:
                        out.append(replies.done_at(_SET & 0xFF, opaque, new_cas, vb.vbuuid, seqno))
                    else:
                        out.append(replies.done(_SET & 0xFF, opaque, new_cas))
                elif runs is not None and not sets % _TRY_RUNS_EVERY:
                    at, more = runs.take(data, at, json_too)
                    sets += more
                continue
        elif (
            kind in _GETS
            and may_read
            and not extras_datatype
            and key_bytes == body_bytes
            and 0 < key_bytes <= KEY_BYTES_MAX
            and (vb := serving.get(vb_id)) is not None
        ):
            key = data[at + HEADER_BYTES : stop]
            at = stop
            found = vb.resident(key)
            if found is None or found[OPCODE_AT] != LIVE or found[EXPIRY_AT:EXPIRY_END] != _NEVER:
                found = bucket.live(vb, key)
            if found is None:
                misses += 1
                if kind not in _QUIET_GETS:
                    session.send(replies.error(kind & 0xFF, opaque, _MISS))
                continue
            hits += 1
            value = found[MUTATION_PLAIN.size + key_bytes :]
            datatype = found[DATATYPE_AT]
            if datatype:
                value, datatype = told(value, datatype, session.datatypes)
            told_cas = found[CAS_AT:CAS_END]
            if locks and bucket.lock_of(vb, key) is not None:
                told_cas = _LOCKED_CAS
            told_key = key if kind in _KEYED else b""
            out.append(
                replies.item(kind & 0xFF, opaque, datatype, told_cas, found[FLAGS_AT:FLAGS_END], told_key, value)
            )
            session.out_bytes += len(value) + HEADER_BYTES
            if session.out_bytes > out_bytes_max:
                break
            continue
        at = _serve_one(session, data, at, stop)
        others += 1
        if (
            session.bucket is not bucket
            or session.stops
            or session.out_bytes > out_bytes_max
            or others == OTHERS_AT_ONCE
        ):
            break
        may_read, may_write = session.may_read, session.may_write and bucket.trouble is None
        runs = bucket.runs if may_write and may_store else None
        if runs is not None:
            at, more = runs.take(data, at, json_too)
            sets += more
    session.requests += sets + hits + misses
    counts = bucket.counts
    counts.sets += sets
    counts.get_hits += hits
    counts.get_misses += misses
    if sets:
        # Near enough: a record is 23 bytes longer than its request.
        bucket.dirty_bytes += at - start + RECORD_OVERHEAD_BYTES * sets
    return at


def _serve_plainly(session: Session, data: bytes, at: int) -> int:
    """The same without a bucket: few clients, and few of their requests."""
    others = 0
    while at + HEADER_BYTES <= len(data):
        stop = at + HEADER_BYTES + Header.parse(data, at).body_length
        if stop > len(data):
            break
        at = _serve_one(session, data, at, stop)
        others += 1
        if session.bucket is not None or session.stops or others == OTHERS_AT_ONCE:
            break
    return at


def _serve_consumer(session: Session, end: Consumer, data: bytes, at: int) -> int:
    """The same for a connection that takes streams in: runs of items go straight to their vbuckets."""
    others = 0
    while others < OTHERS_AT_ONCE and not session.stops:
        at = end.receive_block(data, at, session.now())
        if end.is_leaving or at + HEADER_BYTES > len(data):
            break
        stop = at + HEADER_BYTES + Header.parse(data, at).body_length
        if stop > len(data):
            break
        at = _serve_one(session, data, at, stop)
        others += 1
    return at


def _serve_one(session: Session, data: bytes, at: int, stop: int) -> int:
    """Serve a request of any kind by the catalogue."""
    header = Header.parse(data, at)
    problem = header.problem(header.body_length)
    if problem:
        session.fault = f"byte {problem[0]} of a message: {problem[1]}"
        return at
    session.requests += 1
    dispatch(session, Frame(header, data[at + HEADER_BYTES : stop]))
    return stop
