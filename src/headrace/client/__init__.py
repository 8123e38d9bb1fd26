"""Clients of a node or a Couchbase server. For now the side of items; blocking, one node.

address     where a server is                             address
connection  hello, SCRAM, bucket; get, set, delete        connection, transport
vbuckets    which vbucket a key belongs to                vbuckets
items       flags, datatype and expiry of a value           items
loading     many sets in blocks, each row accounted for   loading
errors      what a server's status means                  errors
"""

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

__all__ = [
    "DEFAULT_BUCKET",
    "TIMEOUT_S",
    "VALUE_BYTES_MAX",
    "Address",
    "AddressError",
    "AuthFailedError",
    "Beside",
    "BusyError",
    "ClientError",
    "CommonFlags",
    "ConnectionLostError",
    "InternalError",
    "InvalidError",
    "KeyExistsError",
    "KvConnection",
    "LoadRow",
    "Loader",
    "LockedError",
    "ManyNodesError",
    "NoAccessError",
    "NoBucketError",
    "NotFoundError",
    "NotMyVBucketError",
    "NotStoredError",
    "NotSupportedError",
    "OutOfMemoryError",
    "ServerAnswerError",
    "StatusError",
    "TemporaryFailureError",
    "TooBigError",
    "UnknownCommandError",
    "beside",
    "count_vbuckets",
    "error_of",
    "json_beside",
    "vbucket_of",
    "wire_expiry",
]
