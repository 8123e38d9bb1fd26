"""docs/reference/stats.md: the groups that STAT gives, and what /metrics gives."""

import ast
import inspect
from collections.abc import Iterator
from inspect import cleandoc

from headrace.node import metrics, stats
from headrace.node.metrics import BUCKET_MEASURES, NODE_MEASURES, PREFIX
from headrace.node.stats import GROUPS
from tools.reference.markdown import page, table

SOURCE = "src/headrace/node/stats.py and src/headrace/node/metrics.py"
MEANINGS = {
    "pid": "process id of the node",
    "uptime": "seconds since it started",
    "time": "seconds of the epoch",
    "version": "what the version command tells",
    "headrace_version": "the version of headrace",
    "pointer_size": "64",
    "rusage_user": "seconds of CPU of the process",
    "rusage_system": "the same, in the kernel",
    "threads": "threads that serve clients",
    "curr_connections": "connections that are there",
    "total_connections": "connections that were accepted",
    "rejected_connections": "connections that were turned away",
    "auth_errors": "logins that failed",
    "cmd_get": "gets",
    "cmd_set": "sets, adds and replaces that stored an item",
    "get_hits": "gets that found an item",
    "get_misses": "gets that found none",
    "delete_hits": "items deleted",
    "curr_items": "items, without tombstones",
    "total_items": "the same",
    "bytes": "memory of the bucket, about",
    "limit_maxbytes": "how much that may be, about",
    "evictions": "items lost for want of memory: always 0, in the settings `off`, for the disk has them",
    "vb_STATE_num": "vbuckets in a state",
    "ep_queue_size": "items that wait for the disk",
    "ep_flusher_todo": "items that the writer has in hand",
    "ep_diskqueue_items": "the sum of these two",
    "ep_diskqueue_bytes": "bytes that wait for the disk, or are on the way to it",
    "mem_used": "memory of the bucket, about",
    "ep_max_size": "how much that may be, about",
    "ep_expired_pager": "items whose time had come",
    "ep_total_persisted": "changes brought to disk",
    "ep_commit_num": "batches brought to disk",
    "ep_item_flush_failed": "batches that the disk refused",
    "ep_flusher_state": "`running`, or `paused` while persistence is stopped",
    "ep_db_file_size": "size of the file of the items",
    "ep_degraded_mode": "1 while no write is acknowledged",
    "ep_disk_trouble": "why; only then",
    "vb_N": "the state",
    "vb_N:num_items": "items, without tombstones",
    "vb_N:num_items_in_memory": "records in memory, with tombstones and versions on their way to disk",
    "vb_N:queue_size": "items that wait for the disk",
    "vb_N:high_seqno": "seqno of the newest change",
    "vb_N:abs_high_seqno": "the same",
    "vb_N:last_persisted_seqno": "seqno of the newest change on disk",
    "vb_N:purge_seqno": "seqno of the newest tombstone that was purged",
    "vb_N:uuid": "uuid of the branch",
    "vb_N:last_persisted_snap_start": "the snapshot on disk",
    "vb_N:last_persisted_snap_end": "the same",
    "vb_N:num_entries": "branches in the failover log",
    "vb_N:I:id": "uuid of a branch, the newest first",
    "vb_N:I:seq": "the seqno at which it began",
    "eq_dcpq:NAME:STAT": "of the connection of that name: `type`, `dialect`, `max_buffer_bytes`, `unacked_bytes`, "
    "`total_bytes_sent`, `total_acked_bytes`, `paused` (its window is full), and of each stream `stream_N_opaque`, "
    "`stream_N_state`, `stream_N_last_sent_seqno`, `stream_N_end_seqno`, and in the UPR draft `stream_N_group`",
    "ep_dcp_count": "connections that were opened for streams",
    "eq_tapq:NAME:STAT": "of the TAP connection of that name: `type`, `connected`, `flags`, `supports_ack`, "
    "`registered`, `vb_filters` (how many vbuckets were listed), `total_backlog_size` (changes still to be sent), "
    "`backfill_completed`, `ack_log_size` (messages not acknowledged), `ack_window_full`, `ack_seqno` (the last "
    "message's number), `num_nack`, `total_bytes_sent`, `total_items_sent`, `suspended` (after a refusal)",
    "ep_tap_count": "TAP connections",
    "ep_tap_registered_count": "TAP clients that may come back",
    "_total:count": "TAP connections",
    "_total:STAT": "the sum of `total_backlog_size`, `ack_log_size`, `num_nack`, `total_bytes_sent` or "
    "`total_items_sent` of all of them",
    "uuid": "uuid of the bucket",
    "headrace_resident_bytes": "memory for items that are on disk, too",
    "headrace_resident_bytes_max": "how much that may be",
    "headrace_dirty_bytes_max": "how much may wait for the disk before writers wait",
    "maxbytes": "memory that a bucket may take, about",
    "maxconns": "connections at a time",
    "tcpport": "the KV port",
    "udpport": "0",
    "inter": "the address that is listened on",
    "cas_enabled": "`yes`",
    "auth_enabled_sasl": "`yes` with a users file",
    "ssl_enabled": "`yes` with a certificate",
    "binding_protocol": "`binary`",
    "item_size_max": "bytes of the largest value",
    "flush_enabled": "`yes`",
    "num_vbuckets": "vbuckets of the bucket",
    "headrace_sync": "`behind` or `every-write`",
}
_PLACES = {
    "vb.id": "N",
    "index": "I",
    "state.name.lower()": "STATE",
    "end.name": "NAME",
    "client": "NAME",
    "name": "STAT",
}


def stats_page() -> str:
    """The whole page."""
    named = {name: list(_names(group.__name__)) for name, group in GROUPS.items()}
    told = {name for names in named.values() for name in names}
    assert told == set(MEANINGS), f"docs/reference/stats.md and the node differ in {told ^ set(MEANINGS)}"
    return page(
        "Statistics and metrics",
        SOURCE,
        "What [a node](node.md) tells of itself: by the command "
        "[stat](../protocol/kv.md#0x10-stat), which memcstat, cbstats and their like send, and at `/metrics` of its "
        "HTTP port, for Prometheus.",
        "## Groups of statistics\n\nThe key of stat names the group; the empty key is the general one. Groups of "
        "vbuckets take the number of one behind a blank, as in `vbucket-seqno 5`. Stat takes the role `read` and a "
        "bucket. A group that is not there is answered with 0x01, a vbucket that is not there with 0x07.",
        table(["group", "what it tells"], ([_spelled(name), cleandoc(GROUPS[name].__doc__ or "")] for name in GROUPS)),
        *(_section(name, names) for name, names in named.items() if names and name != "all"),
        *_metric_parts(),
    )


def _spelled(name: str) -> str:
    return f"`{name}`" if name else "(empty)"


def _section(name: str, names: list[str]) -> str:
    head = f"### {name}" if name else "### The general group"
    return head + "\n\n" + table(["name", "what it is"], ([f"`{each}`", MEANINGS[each]] for each in names))


def _names(function: str) -> Iterator[str]:
    """The names that a group yields, read out of its source: a node need not run for that."""
    tree = ast.parse(inspect.getsource(getattr(stats, function)))
    for found in ast.walk(tree):
        if isinstance(found, ast.Yield) and isinstance(found.value, ast.Tuple):
            yield _name(found.value.elts[0])
        elif isinstance(found, ast.YieldFrom):
            assert isinstance(found.value, ast.Call)
            yield from _names(ast.unparse(found.value.func))


def _name(found: ast.expr) -> str:
    parts = found.values if isinstance(found, ast.JoinedStr) else [found]
    texts = []
    for part in parts:
        if isinstance(part, ast.FormattedValue):
            texts.append(_PLACES[ast.unparse(part.value)])
        else:
            assert isinstance(part, ast.Constant)
            texts.append(str(part.value))
    return "".join(texts)


def _metric_parts() -> list[str]:
    node = [(PREFIX + one.name, "", one.sentence) for one in NODE_MEASURES]
    node.append((metrics.ENDED[0], "reason", metrics.ENDED[1]))
    bucket = [(PREFIX + each.name, "bucket", each.sentence) for each in BUCKET_MEASURES]
    bucket.append((metrics.STATES[0], "bucket, state", metrics.STATES[1]))
    return [
        (
            "## Metrics\n\nNames in `_total` are counters that begin at 0 with the node, and those of a bucket with a "
            "`reset`; all others are gauges. What is measured is measured when it is asked for."
        ),
        "### Of the node",
        _metric_table(node),
        "### Of each bucket",
        _metric_table(bucket),
        (
            f"### Of the process\n\n`{metrics.BUILD[0]}_info` has the version as a label. The metrics `process_*` are "
            "those of Prometheus' Python client: resident and virtual memory, CPU, open files, time of the start. The "
            "processes that write to disk, one a bucket, are not in them."
        ),
    ]


def _metric_table(rows: list[tuple[str, str, str]]) -> str:
    return table(["metric", "labels", "what it is"], ([f"`{name}`", labels, text] for name, labels, text in rows))
