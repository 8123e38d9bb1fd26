"""The commands of a node, a module for each part of the protocol. Importing this enters all of them in the dispatch."""

from headrace.node.commands import admin, buckets, counters, items, locks, meta, seqnos, session, stats, vbuckets

__all__ = ["admin", "buckets", "counters", "items", "locks", "meta", "seqnos", "session", "stats", "vbuckets"]
