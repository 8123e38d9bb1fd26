"""The groups of statistics, by name. Names and spellings are those that Couchbase's and memcached's tools look for.

A group tells what is so and leaves out what the node does not have: no zero stands for "not measured". What tools ask
of memcached's slabs is an empty group, since there are none.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace import __version__
from headrace.history import State
from headrace.node.limits import VALUE_BYTES_MAX
from headrace.node.refused import Refused
from headrace.node.users import Role
from headrace.store.layout import DATA_FILE
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from headrace.node.bucket import Bucket
    from headrace.node.buckets import OpenBucket
    from headrace.node.session import Session
    from headrace.node.vbucket import VBucket

Entries = Iterable[tuple[str, object]]

_VBUCKET_DIGITS_MAX = 5


def _opened(session: Session) -> OpenBucket:
    assert session.opened is not None, "a group is asked of a bucket"
    return session.opened


def _bucket(session: Session) -> Bucket:
    return _opened(session).bucket


def _vbuckets(session: Session, argument: str) -> list[VBucket]:
    """All vbuckets, or the one that is named."""
    bucket = _bucket(session)
    if not argument:
        return [vb for vb in bucket.vbuckets if vb is not None]
    if not (argument.isascii() and argument.isdecimal() and len(argument) <= _VBUCKET_DIGITS_MAX):
        raise Refused(Status.INVALID, f"{argument[:100]!r} is no vbucket")
    return [bucket.vbucket(int(argument))]


def store_bytes(opened: OpenBucket) -> int:
    """How large the file of a bucket's items is."""
    try:
        return (opened.bucket.disk.directory / "store" / DATA_FILE).stat().st_size
    except OSError:
        return 0


def general(session: Session, argument: str) -> Entries:
    """What memcached tells of itself, and the most of what cbstats calls `all`."""
    del argument
    yield from _of_the_node(session)
    bucket, counts = _bucket(session), _bucket(session).counts
    yield "cmd_get", counts.get_hits + counts.get_misses
    yield "cmd_set", counts.sets
    yield "get_hits", counts.get_hits
    yield "get_misses", counts.get_misses
    yield "delete_hits", counts.deletes
    yield "curr_items", bucket.live_items
    yield "total_items", counts.sets
    yield "bytes", bucket.waiting_bytes + bucket.resident_bytes
    yield "limit_maxbytes", memory_max(bucket)
    yield "evictions", 0
    yield from _of_the_disk(session)


def _of_the_node(session: Session) -> Entries:
    from headrace.node.commands.session import VERSION  # noqa: PLC0415 - the commands import this module

    services = session.services
    now, used = time.time(), resource.getrusage(resource.RUSAGE_SELF)
    yield "pid", os.getpid()
    yield "uptime", int(now - services.started_at)
    yield "time", int(now)
    yield "version", VERSION.decode()
    yield "headrace_version", __version__
    yield "pointer_size", 64
    yield "rusage_user", f"{used.ru_utime:.6f}"
    yield "rusage_system", f"{used.ru_stime:.6f}"
    yield "threads", 1
    yield "curr_connections", len(services.connections)
    yield "total_connections", services.counts.accepted
    yield "rejected_connections", services.counts.refused_connections
    yield "auth_errors", services.counts.refused_logins


def _of_the_disk(session: Session) -> Entries:
    opened = _opened(session)
    bucket, flusher = opened.bucket, opened.flusher
    there = [vb for vb in bucket.vbuckets if vb is not None]
    for state in State:
        yield f"vb_{state.name.lower()}_num", sum(vb.state is state for vb in there)
    yield "ep_queue_size", sum(len(vb.dirty) for vb in there)
    yield "ep_flusher_todo", sum(len(vb.flushing) for vb in there)
    yield "ep_diskqueue_items", sum(len(vb.dirty) + len(vb.flushing) for vb in there)
    yield "ep_diskqueue_bytes", bucket.waiting_bytes
    yield "mem_used", bucket.waiting_bytes + bucket.resident_bytes
    yield "ep_max_size", memory_max(bucket)
    yield "ep_expired_pager", bucket.counts.expired
    yield "ep_total_persisted", flusher.items
    yield "ep_commit_num", flusher.flushes
    yield "ep_item_flush_failed", flusher.failures
    yield "ep_flusher_state", "paused" if flusher.stopped else "running"
    yield "ep_db_file_size", store_bytes(opened)
    yield "ep_degraded_mode", int(bucket.trouble is not None)
    if bucket.trouble is not None:
        yield "ep_disk_trouble", bucket.trouble


def memory_max(bucket: Bucket) -> int:
    """How much memory a bucket may take, about."""
    return bucket.limits.resident_bytes_max + bucket.limits.dirty_bytes_max


def vbucket_states(session: Session, argument: str) -> Entries:
    """The state of each vbucket, or of the one that is named."""
    for vb in _vbuckets(session, argument):
        yield f"vb_{vb.id}", vb.state.name.lower()


def vbucket_details(session: Session, argument: str) -> Entries:
    """State, items and seqnos of each vbucket, or of the one that is named."""
    for vb in _vbuckets(session, argument):
        yield f"vb_{vb.id}", vb.state.name.lower()
        yield f"vb_{vb.id}:num_items", vb.live_items
        yield f"vb_{vb.id}:num_items_in_memory", len(vb.items) + len(vb.flushing) + len(vb.dirty)
        yield f"vb_{vb.id}:queue_size", len(vb.dirty) + len(vb.flushing)
        yield from _seqnos(vb)


def vbucket_seqnos(session: Session, argument: str) -> Entries:
    """How far each vbucket is, or the one that is named: in memory, and on disk."""
    for vb in _vbuckets(session, argument):
        yield from _seqnos(vb)


def _seqnos(vb: VBucket) -> Entries:
    yield f"vb_{vb.id}:high_seqno", vb.high_seqno
    yield f"vb_{vb.id}:abs_high_seqno", vb.high_seqno
    yield f"vb_{vb.id}:last_persisted_seqno", vb.durable_seqno
    yield f"vb_{vb.id}:uuid", vb.vbuuid
    yield f"vb_{vb.id}:purge_seqno", vb.purge_seqno
    yield f"vb_{vb.id}:last_persisted_snap_start", vb.durable_seqno
    yield f"vb_{vb.id}:last_persisted_snap_end", vb.durable_seqno


def failovers(session: Session, argument: str) -> Entries:
    """The failover log of each vbucket, or of the one that is named; newest branch first."""
    for vb in _vbuckets(session, argument):
        yield f"vb_{vb.id}:num_entries", len(vb.failover_log)
        for index, branch in enumerate(vb.failover_log):
            yield f"vb_{vb.id}:{index}:id", branch.vbuuid
            yield f"vb_{vb.id}:{index}:seq", branch.seqno


def dcp(session: Session, argument: str) -> Entries:
    """The connections that were opened for streams, each under its name, and their streams."""
    del argument
    ends = [one.end for one in _opened(session).ends.values() if one.end is not None]
    for end in ends:
        for name, content in end.stats():
            yield f"eq_dcpq:{end.name}:{name}", content
    yield "ep_dcp_count", len(ends)


_AWAY = (("connected", "false"), ("registered", "true"), ("backfill_completed", "true"))
"""What is told of a registered client that is away. It goes on where it is, be that among the old items, so nothing is
to be sent to it once more."""


def tap(session: Session, argument: str) -> Entries:
    """The TAP connections, each under its name, and how many clients may come back."""
    del argument
    opened = _opened(session)
    clients = {**dict.fromkeys(opened.registered, _AWAY), **{end.name: end.stats() for end in opened.tap_ends()}}
    for client, told in clients.items():
        for name, content in told:
            yield f"eq_tapq:{client}:{name}", content
    yield "ep_tap_count", len(opened.taps)
    yield "ep_tap_registered_count", len(opened.registered)


def tapagg(session: Session, argument: str) -> Entries:
    """What the TAP connections have in common: how many there are, and what is sent and to be sent on all of them."""
    del argument
    ends = _opened(session).tap_ends()
    told = [dict(end.stats()) for end in ends]
    yield "_total:count", len(ends)
    for name in ("total_backlog_size", "ack_log_size", "num_nack", "total_bytes_sent", "total_items_sent"):
        yield f"_total:{name}", sum(int(str(one[name])) for one in told)


def uuid(session: Session, argument: str) -> Entries:
    """The name that the bucket got when it was made."""
    del argument
    yield "uuid", _bucket(session).disk.facts.uuid


def memory(session: Session, argument: str) -> Entries:
    """What the bucket holds in memory, and may hold."""
    del argument
    bucket = _bucket(session)
    yield "mem_used", bucket.waiting_bytes + bucket.resident_bytes
    yield "ep_diskqueue_bytes", bucket.waiting_bytes
    yield "headrace_resident_bytes", bucket.resident_bytes
    yield "headrace_resident_bytes_max", bucket.limits.resident_bytes_max
    yield "headrace_dirty_bytes_max", bucket.limits.dirty_bytes_max
    yield "ep_max_size", memory_max(bucket)


def diskinfo(session: Session, argument: str) -> Entries:
    """The size of the file that holds the bucket's items."""
    del argument
    yield "ep_db_file_size", store_bytes(_opened(session))


def settings(session: Session, argument: str) -> Entries:
    """How the node was started, in memcached's words."""
    del argument
    services, bucket = session.services, _bucket(session)
    yield "maxbytes", memory_max(bucket)
    yield "maxconns", services.limits.connections_max
    yield "tcpport", services.address.port
    yield "udpport", 0
    yield "inter", services.address.host
    yield "evictions", "off"
    yield "cas_enabled", "yes"
    yield "auth_enabled_sasl", "no" if services.open_user else "yes"
    yield "ssl_enabled", "yes" if services.address.tls else "no"
    yield "binding_protocol", "binary"
    yield "item_size_max", VALUE_BYTES_MAX
    yield "flush_enabled", "yes"
    yield "num_vbuckets", len(bucket.vbuckets)
    yield "headrace_sync", "every-write" if services.sync_every_write else "behind"


def slabs(session: Session, argument: str) -> Entries:
    """Nothing: memory is not parted into slabs here."""
    del session, argument
    return ()


def reset(session: Session, argument: str) -> Entries:
    """Begin to count the bucket's commands anew; takes the role admin."""
    del argument
    if not session.may(Role.ADMIN):
        raise Refused(Status.NO_ACCESS, "to reset the statistics takes the role admin")
    _bucket(session).counts.__init__()  # type: ignore[misc]
    return ()


GROUPS: dict[str, Callable[[Session, str], Entries]] = {
    "": general,
    "all": general,
    "vbucket": vbucket_states,
    "vbucket-details": vbucket_details,
    "vbucket-seqno": vbucket_seqnos,
    "failovers": failovers,
    "dcp": dcp,
    "tap": tap,
    "tapagg": tapagg,
    "uuid": uuid,
    "memory": memory,
    "diskinfo": diskinfo,
    "settings": settings,
    "items": slabs,
    "slabs": slabs,
    "sizes": slabs,
    "reset": reset,
}
"""What STAT gives, by its key; behind a blank the key may name a vbucket, where the group is of vbuckets."""
