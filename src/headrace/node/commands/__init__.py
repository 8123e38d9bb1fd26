"""The commands of a node, a module for each part of the protocol. Importing this enters all of them in the dispatch."""

from headrace.node.commands import admin, buckets, chaos, counters, items, locks, meta, seqnos, session, stats, vbuckets
from headrace.node.dcp import opening as streams
from headrace.node.tap import checkpoints, connecting
from headrace.node.tap import receiving as tap_in

__all__ = [
    "admin",
    "buckets",
    "chaos",
    "checkpoints",
    "connecting",
    "counters",
    "items",
    "locks",
    "meta",
    "seqnos",
    "session",
    "stats",
    "streams",
    "tap_in",
    "vbuckets",
]
