"""How far vbuckets are, in memory and on disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.history import State
from headrace.ids import Seqno
from headrace.node.commands.items import bucket_of
from headrace.node.dispatch import answer, handles
from headrace.node.refused import Refused
from headrace.node.users import Role
from headrace.wire import Dialect
from headrace.wire.catalogue import (
    Done,
    FailoverEntry,
    FailoverLog,
    GetAllVBSeqnos,
    GetFailoverLog,
    Observed,
    ObserveSeqno,
    SeqnoPersistence,
    Seqnos,
    VBucketSeqno,
)
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from headrace.node.session import Session

PERSISTENCE_S_MAX = 30.0
"""How long a client is kept waiting for the disk: Couchbase's number."""

_NOT_DEAD = frozenset({State.ACTIVE, State.REPLICA, State.PENDING})


@handles(GetAllVBSeqnos, needs=Role.READ, also=Role.STREAM)
def all_seqnos(session: Session, request: GetAllVBSeqnos) -> Seqnos:
    """Give the high seqno of every vbucket, or of those in a state."""
    if request.collection:
        raise Refused(Status.UNKNOWN_COLLECTION, "this bucket has the default collection alone")
    wanted = _NOT_DEAD
    if request.state is not None:
        if request.state not in {state.value for state in State}:
            raise Refused(Status.INVALID, "Invalid vbucket state")  # 0 too: capture 11_seqnos
        wanted = frozenset({State(request.state)})
    there = [vb for vb in bucket_of(session).vbuckets if vb is not None and vb.state in wanted]
    return answer(request, Seqnos, seqnos=tuple(VBucketSeqno(vb.id, Seqno(vb.high_seqno)) for vb in there))


@handles(ObserveSeqno, needs=Role.READ, also=Role.STREAM)
def observe(session: Session, request: ObserveSeqno) -> Observed:
    """Tell how far a branch is; and, for an old one, where it ended."""
    vb = bucket_of(session).vbucket(request.vbucket)
    known = {
        "vbucket": vb.id,
        "vbuuid": vb.vbuuid,
        "persisted_seqno": Seqno(vb.durable_seqno),
        "current_seqno": Seqno(vb.high_seqno),
    }
    if request.vbuuid == vb.vbuuid:
        return answer(request, Observed, **known)
    if vb.failover_log.find(request.vbuuid) is None:
        raise Refused(Status.KEY_NOT_FOUND)
    ended = vb.failover_log.end_of(request.vbuuid)
    return answer(request, Observed, **known, old_vbuuid=request.vbuuid, last_seqno=ended)


@handles(SeqnoPersistence, needs=Role.READ, also=Role.STREAM)
async def seqno_persistence(session: Session, request: SeqnoPersistence) -> Done:
    """Answer when a seqno is on disk; a temporary failure when that takes too long."""
    vb = bucket_of(session).vbucket(request.vbucket)
    assert session.opened is not None
    try:
        async with asyncio.timeout(PERSISTENCE_S_MAX):
            await session.opened.flusher.persisted(vb, request.seqno)
    except TimeoutError:
        text = f"vbucket {vb.id} has {vb.durable_seqno} on disk, not {request.seqno}"
        raise Refused(Status.TEMPORARY_FAILURE, text) from None
    return answer(request, Done)


@handles(GetFailoverLog, needs=Role.READ, also=Role.STREAM)
def failover_log(session: Session, request: GetFailoverLog) -> FailoverLog | None:
    """Give the failover log of a vbucket; also before OPEN, as gomemcached asks for it."""
    if session.end is not None and not session.end.is_producer:
        session.leave("a consumer is not asked for a failover log")
        return None
    vb = bucket_of(session).vbucket(request.vbucket)
    entries = tuple(FailoverEntry(*branch) for branch in vb.failover_log)
    spoken = Dialect.UPR_DRAFT if session.dialect is Dialect.UPR_DRAFT else Dialect.DCP
    return FailoverLog(opcode=request.spec.opcodes[spoken], opaque=request.opaque, entries=entries)
