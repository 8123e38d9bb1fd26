"""Clients of a node or a Couchbase server: items at one node, and the changes of a bucket over all its nodes.

address     where a server is                             address
opening     hello, SCRAM, bucket, whoever moves bytes     opening
connection  get, set, delete                              connection, transport
vbuckets    which vbucket a key belongs to                vbuckets
items       flags, datatype and expiry of a value         items
loading     many sets in blocks, each row accounted for   loading
writing     many writes, over all nodes of a bucket       writing, writing_delivery, _frames, _journal, _lanes
errors      what a server's status means                  errors

options     what a reader of changes is told              options, planning, positions
readers     sockets that block, or an event loop          reader, aio
follower    all nodes and streams, without a socket       follower, nodes, link, cluster_map, manifest
events      what a reader gives, and when                 events, changes, sifting, taken, mitigation
ranges      planned ranges, read once and whole           ranges, scout
tap         a dump of a server that is too old for DCP    tap_dump, tap_node, tap_rows

What reads changes needs Arrow and the kernel, and is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.client.address import Address
from headrace.client.connection import DEFAULT_BUCKET, TIMEOUT_S, KvConnection
from headrace.client.errors import (
    AddressError,
    AuthFailedError,
    BusyError,
    ClientError,
    ConnectionLostError,
    InternalError,
    InvalidError,
    KeyExistsError,
    LockedError,
    ManyNodesError,
    NoAccessError,
    NoBucketError,
    NoCollectionError,
    NotFoundError,
    NotMyVBucketError,
    NotStoredError,
    NotSupportedError,
    OutOfMemoryError,
    ServerAnswerError,
    StatusError,
    TemporaryFailureError,
    TooBigError,
    UnknownCommandError,
    error_of,
)
from headrace.client.items import VALUE_BYTES_MAX, Beside, CommonFlags, beside, json_beside, wire_expiry
from headrace.client.loading import Loader, LoadRow
from headrace.client.vbuckets import count_vbuckets, vbucket_of

if TYPE_CHECKING:
    from headrace.client.aio import AsyncBatchReader, AsyncChangeReader
    from headrace.client.changes import Change, SnapshotMarked
    from headrace.client.cluster_map import ClusterMap
    from headrace.client.events import Batch, RolledBack, StreamEnded, StreamStarted
    from headrace.client.follower import RollbackError
    from headrace.client.options import ChangeOptions, OnRollback, OptionError
    from headrace.client.positions import Positions, PositionsError
    from headrace.client.reader import BatchReader, ChangeReader
    from headrace.client.tap_changes import TapInterrupted, TapReader
    from headrace.client.writing import BucketWriter, ItemVersion, NotWrittenError, WriteCounts

__all__ = [
    "DEFAULT_BUCKET",
    "TIMEOUT_S",
    "VALUE_BYTES_MAX",
    "Address",
    "AddressError",
    "AsyncBatchReader",
    "AsyncChangeReader",
    "AuthFailedError",
    "Batch",
    "BatchReader",
    "Beside",
    "BucketWriter",
    "BusyError",
    "Change",
    "ChangeOptions",
    "ChangeReader",
    "ClientError",
    "ClusterMap",
    "CommonFlags",
    "ConnectionLostError",
    "InternalError",
    "InvalidError",
    "ItemVersion",
    "KeyExistsError",
    "KvConnection",
    "LoadRow",
    "Loader",
    "LockedError",
    "ManyNodesError",
    "NoAccessError",
    "NoBucketError",
    "NoCollectionError",
    "NotFoundError",
    "NotMyVBucketError",
    "NotStoredError",
    "NotSupportedError",
    "NotWrittenError",
    "OnRollback",
    "OptionError",
    "OutOfMemoryError",
    "Positions",
    "PositionsError",
    "RollbackError",
    "RolledBack",
    "ServerAnswerError",
    "SnapshotMarked",
    "StatusError",
    "StreamEnded",
    "StreamStarted",
    "TapInterrupted",
    "TapReader",
    "TemporaryFailureError",
    "TooBigError",
    "UnknownCommandError",
    "WriteCounts",
    "beside",
    "count_vbuckets",
    "error_of",
    "json_beside",
    "vbucket_of",
    "wire_expiry",
]

_HOMES = {
    "AsyncBatchReader": "aio",
    "AsyncChangeReader": "aio",
    "Batch": "events",
    "BatchReader": "reader",
    "BucketWriter": "writing",
    "Change": "changes",
    "ChangeOptions": "options",
    "ChangeReader": "reader",
    "ClusterMap": "cluster_map",
    "ItemVersion": "writing",
    "NotWrittenError": "writing",
    "OnRollback": "options",
    "OptionError": "options",
    "Positions": "positions",
    "PositionsError": "positions",
    "RollbackError": "follower",
    "RolledBack": "events",
    "SnapshotMarked": "changes",
    "StreamEnded": "events",
    "StreamStarted": "events",
    "TapInterrupted": "tap_changes",
    "TapReader": "tap_changes",
    "WriteCounts": "writing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
