"""Every message of every dialect, once.

This file is a table. The codec, the columnar offsets, `headrace explain`, the pages under docs/protocol/ and the test
strategies are made of it; nobody types an offset a second time. A class's docstring is its sentence, its first
decorator argument its source: a document with the line, or a file of Couchbase's kv_engine (`kv:` for short).

Responses stand first, since requests name what answers them. One response class serves every command whose answer has
that shape; an answer with a status that a request does not name is an `ErrorReply`.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.ids import Seqno, VbUuid
from headrace.wire.codes import (
    Datatype,
    DurabilityLevel,
    Feature,
    OpenFlag,
    OsoFlag,
    ParamKind,
    SnapshotFlag,
    Status,
    StreamEndReason,
    StreamFlag,
    SystemEventKind,
    TapConnectFlag,
    TapFlag,
    TapOpaqueCode,
    UprStreamEndReason,
    VBucketState,
    WithMetaOption,
)
from headrace.wire.dialects import ALL, DCP, DRAFT, TAP, UPR, UPR_DCP, Dialect
from headrace.wire.fields import Rows, Rule, Section, key, octets, rows, u8, u16, u32, u64, value
from headrace.wire.message import (
    Answered,
    Direction,
    Replies,
    Request,
    Response,
    ServerRequest,
    ServerResponse,
    layout,
    message,
    shape,
)

END_NEVER = Seqno(0xFFFF_FFFF_FFFF_FFFF)
"""The end seqno of a stream that follows its vbucket for as long as the connection lives."""

CONSUMER, MANAGER, PRODUCER = Direction.CONSUMER, Direction.MANAGER, Direction.PRODUCER


class FailoverEntry(NamedTuple):
    """One branch of a vbucket's history: its name, and the seqno at which it began."""

    vbuuid: VbUuid
    seqno: Seqno


class VBucketSeqno(NamedTuple):
    """The highest seqno of one vbucket."""

    vbucket: int
    seqno: Seqno


class VBucketCheckpoint(NamedTuple):
    """The last checkpoint that a TAP client closed for one vbucket."""

    vbucket: int
    checkpoint: int


FAILOVER_LOG = Rows("QQ", ("vb UUID", "vb seqno"), FailoverEntry, rows_max=1024)  # upr-transport-draft.md:426
SEQNOS = Rows("HQ", ("vbucket", "seqno"), VBucketSeqno)
FEATURES = Rows("H", ("feature",), int, rows_max=1024)
VBUCKETS = Rows("H", ("vbucket",), int, counted=True)
CHECKPOINTS = Rows("HQ", ("vbucket", "checkpoint"), VBucketCheckpoint, counted=True)


# ---------------------------------------------------------------------------------------------------------------------
# Responses
# ---------------------------------------------------------------------------------------------------------------------


@message("kv: docs/BinaryProtocol.md, response header")
class Done(Response):
    """Says that it was done, and nothing else."""


@message(
    "kv: docs/BinaryProtocol.md, response status",
    layout(ALL, "extras", key="key", value="value", name="any"),
)
class ErrorReply(Response):
    """Says that it was not done: the status tells why, the value may tell it in words or JSON."""

    extras: bytes = octets(Section.EXTRAS, "Extras", "whatever came", default=b"")
    key: bytes = key("the key, from servers that echo it", default=b"")
    value: bytes = value("a text, a JSON error, or a cluster map with `not my vbucket`", default=b"")


@message("kv: docs/Duplex.md", layout(ALL, "extras", key="key", value="value", name="any"))
class ServerReply(ServerResponse):
    """Answers a request of the server. Servers drop it: the one request there is wants no answer."""

    extras: bytes = octets(Section.EXTRAS, "Extras", "whatever came", default=b"")
    key: bytes = key("whatever came", default=b"")
    value: bytes = value("whatever came", default=b"")


@message("tap.md:348; capture 08f_tap_ack", layout(ALL, "extras", key="key", value="value", name="any"))
class TapAck(Response):
    """Acknowledges a TAP message. Its key and value mean nothing: spymemcached fills the key with 36 random bytes."""

    extras: bytes = octets(Section.EXTRAS, "Extras", "ignored", default=b"")
    key: bytes = key("ignored", default=b"")
    value: bytes = value("ignored", default=b"")


@message(
    "kv: docs/BinaryProtocol.md 0x00",
    layout(ALL, "flags", key="key", value="value"),
)
class Item(Response):
    """Gives an item."""

    flags: int = u32("flags", "what the writer stored beside the value")
    key: bytes = key("the key, in answers to the K forms", default=b"")
    value: bytes = value("the value", default=b"")


@message(
    "kv: docs/BinaryProtocol.md 0x01",
    layout(ALL, name="empty"),
    layout(ALL, "vbuuid seqno", name="with seqno"),
)
class Mutated(Response):
    """Says that an item was changed, and which change that was when the client asked to know (hello 0x04)."""

    vbuuid: VbUuid | None = u64("vb UUID", "the branch that the change belongs to", default=None)
    seqno: Seqno | None = u64("by seqno", "the place of the change in its vbucket", default=None)


@message(
    "kv: docs/BinaryProtocol.md 0x05",
    layout(ALL, value="number", name="empty"),
    layout(ALL, "vbuuid seqno", value="number", name="with seqno"),
)
class Counter(Response):
    """Gives the new value of a counter."""

    vbuuid: VbUuid | None = u64("vb UUID", "the branch that the change belongs to", default=None)
    seqno: Seqno | None = u64("by seqno", "the place of the change in its vbucket", default=None)
    number: int = u64("number", "the counter after the change", section=Section.VALUE)


@message(
    "memcached, touch; kv: docs/BinaryProtocol.md 0x1c", layout(ALL, name="empty"), layout(ALL, "flags", name="flags")
)
class Touched(Response):
    """Says that an item has a new expiry; memcached adds the item's flags."""

    flags: int | None = u32("flags", "what the writer stored beside the value", default=None)


@message("kv: docs/BinaryProtocol.md 0x0b")
class Text(Response):
    """Gives a text: a version, a list of mechanisms or buckets, a cluster map, a manifest, an error map."""

    value: bytes = value("the text", default=b"")


@message("kv: docs/BinaryProtocol.md 0x10")
class StatEntry(Response):
    """Gives one statistic; the one with neither key nor value ends the list."""

    key: bytes = key("the name", default=b"")
    value: bytes = value("the value, as text", default=b"")


@message("kv: docs/BinaryProtocol.md 0x1f")
class HelloReply(Response):
    """Names the features, of those asked for, that hold from now on."""

    features: tuple[int, ...] = rows("features", "in the order asked", FEATURES, default=(), names=Feature)


@message("capture 05_dcp_stream_end")
class VBucketStateReply(Response):
    """Gives the state of a vbucket."""

    state: int = u32("state", "active, replica, pending or dead", section=Section.VALUE, names=VBucketState)


@message("kv: docs/dcp/documentation/commands/get_seqno.md; capture 11_seqnos")
class Seqnos(Response):
    """Gives the highest seqno of each vbucket, by ascending id."""

    seqnos: tuple[VBucketSeqno, ...] = rows("seqnos", "one row a vbucket", SEQNOS, default=())


@message(
    "capture 11_seqnos",
    layout(ALL, value="format vbucket vbuuid persisted_seqno current_seqno", name="no failover", format=0),
    layout(
        ALL,
        value="format vbucket vbuuid persisted_seqno current_seqno old_vbuuid last_seqno",
        name="after a failover",
        format=1,
    ),
)
class Observed(Response):
    """Tells how far a vbucket is in memory and on disk, and what an asked-for branch came to if it is an old one."""

    format: int | None = u8("format", "1 when a failover came between", section=Section.VALUE, default=None)
    vbucket: int = u16("vbucket", "which vbucket", section=Section.VALUE)
    vbuuid: VbUuid = u64("vb UUID", "the branch of now", section=Section.VALUE)
    persisted_seqno: Seqno = u64("persisted seqno", "on disk up to here", section=Section.VALUE)
    current_seqno: Seqno = u64("current seqno", "in memory up to here", section=Section.VALUE)
    old_vbuuid: VbUuid | None = u64("old vb UUID", "the branch asked for", section=Section.VALUE, default=None)
    last_seqno: Seqno | None = u64("last seqno", "where that branch ended", section=Section.VALUE, default=None)


@message(
    "kv: include/memcached/protocol_binary.h, GetMetaResponse",
    layout(ALL, "deleted flags expiry rev_seqno", name="v1"),
    layout(ALL, "deleted flags expiry rev_seqno item_datatype", name="v2"),
)
class Meta(Response):
    """Gives what is known of an item apart from its value."""

    deleted: int = u32("deleted", "1 for a tombstone")
    flags: int = u32("flags", "what the writer stored beside the value")
    expiry: int = u32("expiration", "when the item ends, in seconds")
    rev_seqno: int = u64("rev seqno", "how often the item was changed")
    item_datatype: int | None = u8("item data type", "the datatype of the value", names=Datatype, default=None)


@message("capture 08i_tap_registered")
class CheckpointId(Response):
    """Gives the id of the last closed checkpoint."""

    checkpoint: int = u64("checkpoint", "its id", section=Section.VALUE)


@message("capture 08i_tap_registered")
class CheckpointIds(Response):
    """Gives the ids of the open and of the last persisted checkpoint."""

    open_checkpoint: int = u64("open checkpoint", "its id", section=Section.VALUE)
    persisted_checkpoint: int = u64("persisted checkpoint", "its id", section=Section.VALUE)


@message("kv: docs/Collections.md")
class CollectionIdReply(Response):
    """Gives the id of a collection or scope, and the manifest in which it was found."""

    manifest_uid: int = u64("manifest uid", "the manifest's version")
    id: int = u32("id", "the collection's or scope's id")


@message(
    "kv: docs/SubDocument.md",
    layout(ALL, value="results", name="empty"),
    layout(ALL, "vbuuid seqno", value="results", name="with seqno"),
)
class SubdocResults(Response):
    """Gives, path by path, what a multi-path command found or did."""

    vbuuid: VbUuid | None = u64("vb UUID", "the branch that the change belongs to", default=None)
    seqno: Seqno | None = u64("by seqno", "the place of the change in its vbucket", default=None)
    results: bytes = value("status, length and value of each path", label="results", default=b"")


@message("upr-transport.md:195", dialects=UPR_DCP)
class StreamAdded(Response):
    """Says that the stream runs, and which opaque its messages carry."""

    stream_opaque: int = u32("opaque", "the opaque of the stream")


@message("upr-transport.md:331; upr-transport-draft.md:376")
class FailoverLog(Response):
    """Gives the failover log of a vbucket, newest branch first."""

    entries: tuple[FailoverEntry, ...] = rows("failover log", "one row a branch", FAILOVER_LOG, default=())


@message(
    "upr-transport.md:527; capture 03a_dcp_stream_req_errors",
    layout(ALL, value="seqno", name="in value"),
    layout(UPR_DCP, "seqno", name="in extras", read_only=True),  # as drawn; no client reads it there
)
class Rollback(Response):
    """Refuses a stream until the consumer has gone back to a seqno."""

    seqno: Seqno = u64("rollback #", "where to go back to", section=Section.VALUE)


WRITE_REPLY: Replies = {Status.SUCCESS: Mutated}
ITEM_REPLY: Replies = {Status.SUCCESS: Item}
COUNTER_REPLY: Replies = {Status.SUCCESS: Counter}
TEXT_REPLY: Replies = {Status.SUCCESS: Text}
SASL_REPLY: Replies = {Status.SUCCESS: Text, Status.AUTH_CONTINUE: Text}
SUBDOC_REPLY: Replies = {
    Status.SUCCESS: SubdocResults,
    Status.SUBDOC_MULTI_PATH_FAILURE: SubdocResults,
    Status.SUBDOC_SUCCESS_DELETED: SubdocResults,
    Status.SUBDOC_MULTI_PATH_FAILURE_DELETED: SubdocResults,
}
TAP_REPLY: Replies = {Status.SUCCESS: TapAck}


# ---------------------------------------------------------------------------------------------------------------------
# Plain commands, in every dialect
# ---------------------------------------------------------------------------------------------------------------------


@shape
class OfItem(Request):
    """What the commands share that name an item and nothing more."""

    key: bytes = key("the item's key")


@message("kv: docs/BinaryProtocol.md 0x00", opcode=0x00, replies=ITEM_REPLY)
class Get(OfItem):
    """Asks for an item."""


@message("kv: docs/BinaryProtocol.md 0x09", opcode=0x09, replies=ITEM_REPLY, answered=Answered.UNLESS_MISSED)
class GetQ(OfItem):
    """Asks for an item; a miss is not answered."""


@message("kv: docs/BinaryProtocol.md 0x0c", opcode=0x0C, replies=ITEM_REPLY)
class GetK(OfItem):
    """Asks for an item and its key."""


@message("kv: docs/BinaryProtocol.md 0x0d", opcode=0x0D, replies=ITEM_REPLY, answered=Answered.UNLESS_MISSED)
class GetKQ(OfItem):
    """Asks for an item and its key; a miss is not answered."""


@shape
class Storing(Request):
    """What the commands share that store an item."""

    flags: int = u32("flags", "kept beside the value and given back with it", default=0)
    expiry: int = u32("expiration", "when the item ends: seconds from now up to 30 days, else of the epoch", default=0)
    key: bytes = key("the item's key")
    value: bytes = value("the value", default=b"")


@message("kv: docs/BinaryProtocol.md 0x01", opcode=0x01, replies=WRITE_REPLY)
class Set(Storing):
    """Stores an item, whether or not it exists; with a CAS only over that version."""


@message("kv: docs/BinaryProtocol.md 0x11", opcode=0x11, replies=WRITE_REPLY, answered=Answered.WHEN_REFUSED)
class SetQ(Storing):
    """Stores an item; success is not answered."""


@message("kv: docs/BinaryProtocol.md 0x02", opcode=0x02, replies=WRITE_REPLY)
class Add(Storing):
    """Stores an item that must not exist."""


@message("kv: docs/BinaryProtocol.md 0x12", opcode=0x12, replies=WRITE_REPLY, answered=Answered.WHEN_REFUSED)
class AddQ(Storing):
    """Stores an item that must not exist; success is not answered."""


@message("kv: docs/BinaryProtocol.md 0x03", opcode=0x03, replies=WRITE_REPLY)
class Replace(Storing):
    """Stores an item that must exist."""


@message("kv: docs/BinaryProtocol.md 0x13", opcode=0x13, replies=WRITE_REPLY, answered=Answered.WHEN_REFUSED)
class ReplaceQ(Storing):
    """Stores an item that must exist; success is not answered."""


@message("kv: docs/BinaryProtocol.md 0x04", opcode=0x04, replies=WRITE_REPLY)
class Delete(OfItem):
    """Removes an item."""


@message("kv: docs/BinaryProtocol.md 0x14", opcode=0x14, replies=WRITE_REPLY, answered=Answered.WHEN_REFUSED)
class DeleteQ(OfItem):
    """Removes an item; success is not answered."""


@shape
class Counting(Request):
    """What the commands share that change a counter."""

    delta: int = u64("delta", "how much")
    initial: int = u64("initial", "the value of a counter that does not exist", default=0)
    expiry: int = u32("expiration", "when the item ends; 0xffffffff: do not create it", default=0)
    key: bytes = key("the item's key")


@message("kv: docs/BinaryProtocol.md 0x05", opcode=0x05, replies=COUNTER_REPLY)
class Increment(Counting):
    """Adds to a counter."""


@message("kv: docs/BinaryProtocol.md 0x15", opcode=0x15, replies=COUNTER_REPLY, answered=Answered.WHEN_REFUSED)
class IncrementQ(Counting):
    """Adds to a counter; success is not answered."""


@message("kv: docs/BinaryProtocol.md 0x06", opcode=0x06, replies=COUNTER_REPLY)
class Decrement(Counting):
    """Takes from a counter, down to 0."""


@message("kv: docs/BinaryProtocol.md 0x16", opcode=0x16, replies=COUNTER_REPLY, answered=Answered.WHEN_REFUSED)
class DecrementQ(Counting):
    """Takes from a counter, down to 0; success is not answered."""


@message("kv: docs/BinaryProtocol.md 0x07", opcode=0x07)
class Quit(Request):
    """Asks the server to answer and close the connection."""


@message("kv: docs/BinaryProtocol.md 0x17", opcode=0x17, answered=Answered.NEVER)
class QuitQ(Request):
    """Asks the server to close the connection."""


@shape
class Flushing(Request):
    """What both forms of flush share."""

    expiry: int | None = u32("expiration", "when, in seconds", default=None)


@message("kv: docs/BinaryProtocol.md 0x08", layout(ALL, name="now"), layout(ALL, "expiry", name="later"), opcode=0x08)
class Flush(Flushing):
    """Removes every item of the bucket."""


@message(
    "kv: docs/BinaryProtocol.md 0x18",
    layout(ALL, name="now"),
    layout(ALL, "expiry", name="later"),
    opcode=0x18,
    answered=Answered.WHEN_REFUSED,
)
class FlushQ(Flushing):
    """Removes every item of the bucket; success is not answered."""


@message("kv: docs/BinaryProtocol.md 0x0a", opcode=0x0A, direction=Direction.EITHER)
class Noop(Request):
    """Asks for an answer. A TAP producer sends it to an idle consumer as a sign of life."""


@message("kv: docs/BinaryProtocol.md 0x0b", opcode=0x0B, replies=TEXT_REPLY)
class Version(Request):
    """Asks for the server's version."""


@shape
class Extending(Request):
    """What the commands share that add to a value."""

    key: bytes = key("the item's key")
    value: bytes = value("the bytes to add", default=b"")


@message("kv: docs/BinaryProtocol.md 0x0e", opcode=0x0E, replies=WRITE_REPLY)
class Append(Extending):
    """Puts bytes behind the value of an item."""


@message("kv: docs/BinaryProtocol.md 0x19", opcode=0x19, replies=WRITE_REPLY, answered=Answered.WHEN_REFUSED)
class AppendQ(Extending):
    """Puts bytes behind the value of an item; success is not answered."""


@message("kv: docs/BinaryProtocol.md 0x0f", opcode=0x0F, replies=WRITE_REPLY)
class Prepend(Extending):
    """Puts bytes in front of the value of an item."""


@message("kv: docs/BinaryProtocol.md 0x1a", opcode=0x1A, replies=WRITE_REPLY, answered=Answered.WHEN_REFUSED)
class PrependQ(Extending):
    """Puts bytes in front of the value of an item; success is not answered."""


@message("kv: docs/BinaryProtocol.md 0x10", opcode=0x10, replies={Status.SUCCESS: StatEntry})
class Stat(Request):
    """Asks for a group of statistics."""

    key: bytes = key("the group, with its argument; empty for the general ones", default=b"")
    value: bytes = value("JSON arguments, for some groups", default=b"")


@message("kv: docs/BinaryProtocol.md 0x1b", opcode=0x1B)
class Verbosity(Request):
    """Asks the server to log more or less."""

    level: int = u32("verbosity", "the level")


@shape
class Touching(Request):
    """What the commands share that give an item a new expiry."""

    expiry: int = u32("expiration", "when the item ends")
    key: bytes = key("the item's key")


@message("kv: docs/BinaryProtocol.md 0x1c", opcode=0x1C, replies={Status.SUCCESS: Touched})
class Touch(Touching):
    """Gives an item a new expiry."""


@message("kv: docs/BinaryProtocol.md 0x1d", opcode=0x1D, replies=ITEM_REPLY)
class GetAndTouch(Touching):
    """Asks for an item and gives it a new expiry."""


@message("kv: docs/BinaryProtocol.md 0x1e", opcode=0x1E, replies=ITEM_REPLY, answered=Answered.UNLESS_MISSED)
class GetAndTouchQ(Touching):
    """Asks for an item and gives it a new expiry; a miss is not answered."""


@message("kv: docs/BinaryProtocol.md 0x1f", opcode=0x1F, replies={Status.SUCCESS: HelloReply})
class Hello(Request):
    """Tells who the client is and which features it would use."""

    agent: bytes = key("the client's name", label="Key", default=b"")
    features: tuple[int, ...] = rows("features", "what is asked for", FEATURES, default=(), names=Feature)


@message("kv: docs/BinaryProtocol.md 0x20", opcode=0x20, replies=TEXT_REPLY)
class SaslListMechs(Request):
    """Asks for the mechanisms by which one may authenticate."""


@shape
class Authenticating(Request):
    """What the steps of authentication share."""

    mechanism: bytes = key("the mechanism", label="Key")
    challenge: bytes = value("what the mechanism says, secrets among it", default=b"", secret=True)


@message("kv: docs/BinaryProtocol.md 0x21", opcode=0x21, replies=SASL_REPLY)
class SaslAuth(Authenticating):
    """Begins to authenticate."""


@message("kv: docs/BinaryProtocol.md 0x22", opcode=0x22, replies=SASL_REPLY)
class SaslStep(Authenticating):
    """Goes on to authenticate."""


@message(
    "kv: docs/BinaryProtocol.md 0x3d; capture 03a_dcp_stream_req_errors",
    layout(ALL, "state", value="value", name="32 bits"),
    layout(ALL, "state_byte", value="value", name="8 bits"),
    opcode=0x3D,
)
class SetVBucket(Request):
    """Puts a vbucket in a state."""

    state: int | None = u32("state", "active, replica, pending or dead", names=VBucketState, default=None)
    state_byte: int | None = u8("state", "the same, as newer tools send it", names=VBucketState, default=None)
    value: bytes = value("JSON with the replication topology", default=b"")


@message("kv: docs/BinaryProtocol.md 0x3e", opcode=0x3E, replies={Status.SUCCESS: VBucketStateReply})
class GetVBucket(Request):
    """Asks for the state of a vbucket."""

    key: bytes = key("ignored", default=b"")


@message("kv: docs/BinaryProtocol.md 0x3f", opcode=0x3F)
class DeleteVBucket(Request):
    """Removes a vbucket and all it holds."""

    value: bytes = value("`async=0` to be answered only when it is done", default=b"")


@message(
    "kv: docs/dcp/documentation/commands/get_seqno.md; capture 11_seqnos",
    layout(ALL, name="all"),
    layout(ALL, "state", name="of a state"),
    layout(ALL, "state collection", name="of a collection"),
    opcode=0x48,
    replies={Status.SUCCESS: Seqnos},
)
class GetAllVBSeqnos(Request):
    """Asks for the highest seqno of every vbucket."""

    state: int | None = u32("state", "only vbuckets in this state", names=VBucketState, zero="alive", default=None)
    collection: int | None = u32("collection", "only changes of this collection", default=None)


@message("kv: engines/ep, stop persistence; capture 04_failover_log_crash_rollback", opcode=0x80, replies=TEXT_REPLY)
class StopPersistence(Request):
    """Stops writing to disk."""


@message("kv: engines/ep, start persistence", opcode=0x81, replies=TEXT_REPLY)
class StartPersistence(Request):
    """Goes on writing to disk."""


@message("kv: include/memcached/protocol_binary.h, SetParamPayload", opcode=0x82, replies=TEXT_REPLY)
class SetParam(Request):
    """Sets a parameter of the server while it runs."""

    kind: int = u32("type", "which part of the server the parameter belongs to", names=ParamKind, default=0)
    key: bytes = key("the parameter's name")
    value: bytes = value("the parameter's new value", default=b"")


@message("kv: engines/ep, get replica; capture 07a_consumer_basic", opcode=0x83, replies=ITEM_REPLY)
class GetReplica(OfItem):
    """Asks for an item of a replica vbucket."""


@message("kv: docs/BinaryProtocol.md 0x85", opcode=0x85)
class CreateBucket(Request):
    """Makes a bucket."""

    name: bytes = key("the bucket's name", label="Key")
    configuration: bytes = value("module, zero byte, settings", default=b"")


@message("kv: docs/BinaryProtocol.md 0x86", opcode=0x86)
class DeleteBucket(Request):
    """Removes a bucket."""

    name: bytes = key("the bucket's name", label="Key")
    configuration: bytes = value("JSON with `force` and `type`", default=b"")


@message("kv: docs/BinaryProtocol.md 0x87", opcode=0x87, replies=TEXT_REPLY)
class ListBuckets(Request):
    """Asks for the names of the buckets that one may use."""


@message("kv: docs/BinaryProtocol.md 0x89", opcode=0x89)
class SelectBucket(Request):
    """Makes a bucket the one that this connection works on."""

    name: bytes = key("the bucket's name; empty for none", label="Key", default=b"")


@message("capture 11_seqnos", opcode=0x91, replies={Status.SUCCESS: Observed})
class ObserveSeqno(Request):
    """Asks how far a branch of a vbucket is in memory and on disk."""

    vbuuid: VbUuid = u64("vb UUID", "the branch that the client knows", section=Section.VALUE)


@message(
    "kv: docs/BinaryProtocol.md 0x94",
    layout(ALL, key="key", name="default time"),
    layout(ALL, "lock_time", key="key", name="given time"),
    opcode=0x94,
    replies=ITEM_REPLY,
)
class GetLocked(Request):
    """Asks for an item and locks it."""

    lock_time: int | None = u32("lock time", "for how many seconds", default=None)
    key: bytes = key("the item's key")


@message("kv: docs/BinaryProtocol.md 0x95", opcode=0x95)
class Unlock(OfItem):
    """Gives up the lock of an item; the CAS proves it is ours."""


@message("capture 08i_tap_registered", opcode=0x97, replies={Status.SUCCESS: CheckpointId})
class LastClosedCheckpoint(Request):
    """Asks for the last closed checkpoint of a vbucket."""


@message("tap.md:449; capture 08i_tap_registered", opcode=0x9E)
class DeregisterTapClient(Request):
    """Ends a registered TAP client."""

    name: bytes = key("the name it connected with", label="Key")


@message(
    "kv: engines/ep, get meta",
    layout(ALL, key="key", name="v1"),
    layout(ALL, "version", key="key", name="v2"),
    opcode=0xA0,
    replies={Status.SUCCESS: Meta},
)
class GetMeta(Request):
    """Asks what is known of an item apart from its value; tombstones answer too."""

    version: int | None = u8("version", "2 to be told the datatype", default=None)
    key: bytes = key("the item's key")


_WITH_META = "flags expiry rev_seqno item_cas"
_WITH_META_LAYOUTS = (
    layout(ALL, _WITH_META, key="key", value="value", name="plain"),
    layout(ALL, f"{_WITH_META} meta_length", key="key", value="value", meta="meta", name="with meta"),
    layout(ALL, f"{_WITH_META} options", key="key", value="value", name="with options"),
    layout(ALL, f"{_WITH_META} options meta_length", key="key", value="value", meta="meta", name="with both"),
)


@shape
class StoringWithMeta(Request):
    """What the commands share that write an item as it is elsewhere."""

    flags: int = u32("flags", "kept beside the value", default=0)
    expiry: int = u32("expiration", "when the item ends, or the time of a deletion", default=0)
    rev_seqno: int = u64("rev seqno", "how often the item was changed")
    item_cas: int = u64("cas", "the version that the item gets")
    options: int | None = u32("options", "how conflicts are settled", names=WithMetaOption, default=None)
    key: bytes = key("the item's key")
    value: bytes = value("the value", default=b"")
    meta: bytes | None = octets(Section.META, "Metadata", "extended metadata", default=None)


@message("kv: engines/ep/docs, set with meta", *_WITH_META_LAYOUTS, opcode=0xA2, replies=WRITE_REPLY)
class SetWithMeta(StoringWithMeta):
    """Stores an item with the revision and CAS that it has elsewhere; the newer of two versions wins."""


@message(
    "kv: engines/ep/docs, set with meta",
    *_WITH_META_LAYOUTS,
    opcode=0xA3,
    replies=WRITE_REPLY,
    answered=Answered.WHEN_REFUSED,
)
class SetWithMetaQ(StoringWithMeta):
    """Stores an item with its revision and CAS; success is not answered."""


@message("kv: engines/ep/docs, delete with meta", *_WITH_META_LAYOUTS, opcode=0xA8, replies=WRITE_REPLY)
class DeleteWithMeta(StoringWithMeta):
    """Removes an item, leaving a tombstone with the revision and CAS that it has elsewhere."""


@message(
    "kv: engines/ep/docs, delete with meta",
    *_WITH_META_LAYOUTS,
    opcode=0xA9,
    replies=WRITE_REPLY,
    answered=Answered.WHEN_REFUSED,
)
class DeleteWithMetaQ(StoringWithMeta):
    """Removes an item with its revision and CAS; success is not answered."""


@message("capture 08i_tap_registered", opcode=0xAA, replies={Status.SUCCESS: CheckpointIds})
class CreateCheckpoint(Request):
    """Closes the open checkpoint of a vbucket and opens another."""


@message("capture 09a_flush_dcp", opcode=0xAD, replies=TEXT_REPLY)
class EnableTraffic(Request):
    """Lets clients read and write again."""


@message("capture 09a_flush_dcp", opcode=0xAE, replies=TEXT_REPLY)
class DisableTraffic(Request):
    """Turns clients away for a while."""


@message("kv: include/memcached/protocol_binary.h, CompactDbPayload", opcode=0xB3)
class CompactDb(Request):
    """Rewrites a vbucket on disk without what is no longer needed."""

    purge_before_time: int = u64("purge before ts", "drop tombstones older than this time", default=0)
    purge_before_seqno: Seqno = u64("purge before seqno", "drop tombstones up to this seqno", default=Seqno(0))
    drop_deletes: int = u8("drop deletes", "1: drop every tombstone", default=0)
    pad_byte: int = u8("pad", "nothing", default=0)
    vbucket_file: int = u16("db file id", "the vbucket whose file is meant, where the header does not say", default=0)
    pad_word: int = u32("pad", "nothing", default=0)
    value: bytes = value("JSON with more settings", default=b"")


@message(
    "kv: docs/BinaryProtocol.md 0xb5",
    layout(ALL, name="newest"),
    layout(ALL, "epoch revision", name="if newer"),
    opcode=0xB5,
    replies=TEXT_REPLY,
)
class GetClusterConfig(Request):
    """Asks which node holds which vbucket."""

    epoch: int | None = u64("epoch", "the epoch of the map that the client has", default=None)
    revision: int | None = u64("revision", "its revision; the answer is empty when there is none newer", default=None)


@message("kv: docs/dcp/documentation/commands/persist_seqno.md; capture 11_seqnos", opcode=0xB7)
class SeqnoPersistence(Request):
    """Asks to be answered when a seqno is on disk."""

    seqno: Seqno = u64("by seqno", "the seqno to wait for")


@message("kv: docs/Collections.md", opcode=0xBA, replies=TEXT_REPLY)
class GetCollectionsManifest(Request):
    """Asks which scopes and collections a bucket has."""


@message(
    "kv: docs/Collections.md; daemon/mcbp_validators.cc",
    layout(ALL, value="path", name="in value"),
    layout(ALL, key="path", name="in key"),
    opcode=0xBB,
    replies={Status.SUCCESS: CollectionIdReply},
)
class GetCollectionId(Request):
    """Asks for the id of a collection."""

    path: bytes = octets(Section.VALUE, "path", "`scope.collection`", default=b"", rule=Rule.MUST)


@message(
    "kv: docs/Collections.md; daemon/mcbp_validators.cc",
    layout(ALL, value="path", name="in value"),
    layout(ALL, key="path", name="in key"),
    opcode=0xBC,
    replies={Status.SUCCESS: CollectionIdReply},
)
class GetScopeId(Request):
    """Asks for the id of a scope."""

    path: bytes = octets(Section.VALUE, "path", "the scope's name", default=b"", rule=Rule.MUST)


@message(
    "kv: docs/SubDocument.md",
    layout(ALL, key="key", value="paths", name="plain"),
    layout(ALL, "doc_flags", key="key", value="paths", name="with flags"),
    opcode=0xD0,
    replies=SUBDOC_REPLY,
)
class SubdocMultiLookup(Request):
    """Asks for several parts of a document."""

    doc_flags: int | None = u8("doc flags", "how to treat the document", default=None)
    key: bytes = key("the document's key")
    paths: bytes = value("operation, flags, length and path of each", label="paths", default=b"")


@message(
    "kv: docs/SubDocument.md",
    layout(ALL, key="key", value="paths", name="plain"),
    layout(ALL, "doc_flags", key="key", value="paths", name="with flags"),
    layout(ALL, "expiry", key="key", value="paths", name="with expiry"),
    layout(ALL, "expiry doc_flags", key="key", value="paths", name="with both"),
    layout(ALL, "expiry user_flags", key="key", value="paths", name="with user flags"),
    layout(ALL, "expiry user_flags doc_flags", key="key", value="paths", name="with all"),
    opcode=0xD1,
    replies=SUBDOC_REPLY,
)
class SubdocMultiMutation(Request):
    """Changes several parts of a document."""

    expiry: int | None = u32("expiration", "when the document ends", default=None)
    user_flags: int | None = u32("user flags", "kept beside the value, in the client's byte order", default=None)
    doc_flags: int | None = u8("doc flags", "how to treat the document", default=None)
    key: bytes = key("the document's key")
    paths: bytes = value("operation, flags, lengths, path and value of each", label="paths", default=b"")


@message("kv: docs/BinaryProtocol.md 0xfe", opcode=0xFE, replies=TEXT_REPLY)
class GetErrorMap(Request):
    """Asks what the server's statuses mean."""

    version: int = u16("version", "the newest form that the client reads", section=Section.VALUE)


@message(
    "kv: docs/BinaryProtocol.md, server opcodes",
    layout(ALL, "epoch revision", key="name", value="configuration", name="64 bits"),
    layout(ALL, "short_revision", key="name", value="configuration", name="32 bits"),
    opcode=0x01,
    direction=Direction.SERVER,
    answered=Answered.NEVER,
)
class ClustermapChangeNotification(ServerRequest):
    """Tells a client, unasked, that another node holds some vbucket from now on."""

    epoch: int | None = u64("epoch", "the epoch of the new map", default=None)
    revision: int | None = u64("revision", "its revision", default=None)
    short_revision: int | None = u32("revision", "its revision, from older servers", default=None)
    name: bytes = key("the bucket's name", default=b"")
    configuration: bytes = value("the map, as JSON", default=b"")


# ---------------------------------------------------------------------------------------------------------------------
# TAP
# ---------------------------------------------------------------------------------------------------------------------

_CONNECT = "backfill_date vbuckets checkpoints rest"


@message(
    "tap.md:69",
    layout(TAP, "flags", key="name", value=_CONNECT, name="with flags"),
    layout(TAP, key="name", value="rest", name="no extras"),
    opcode=0x40,
    dialects=TAP,
    replies=TAP_REPLY,
    answered=Answered.WHEN_REFUSED,
)
class TapConnect(Request):
    """Turns a connection into a TAP stream. It is not answered, unless by an error."""

    flags: int | None = u32("Flags", "what is asked for", names=TapConnectFlag, default=None)
    name: bytes = key("who the client is; empty lets the server invent a name", label="Name", default=b"")
    backfill_date: int | None = u64(
        "Backfill date",
        "how old the oldest change wanted may be; beyond now: only what is to come",
        section=Section.VALUE,
        when=TapConnectFlag.BACKFILL,
        default=None,
    )
    vbuckets: tuple[int, ...] | None = rows(
        "VBucket list", "only these vbuckets", VBUCKETS, when=TapConnectFlag.LIST_VBUCKETS, default=None
    )
    checkpoints: tuple[VBucketCheckpoint, ...] | None = rows(
        "Checkpoints",
        "where to go on; some clients leave it out where they know none",
        CHECKPOINTS,
        when=TapConnectFlag.CHECKPOINT,
        optional=True,
        default=None,
    )
    rest: bytes = value("bytes that no flag explains; one, from some clients that register", label="Rest", default=b"")


_TAP_HEAD = "engine_length tap_flags ttl reserved_1 reserved_2 reserved_3"
_TAP_ITEM = f"{_TAP_HEAD} item_flags expiry"


@shape
class TapRequest(Request):
    """What the messages of a TAP stream share."""

    tap_flags: int = u16("Flags", "whether an ack is wanted, and how item flags are spelled", names=TapFlag, default=0)
    ttl: int = u8("TTL", "counted down at every hop, so that a ring of servers comes to rest", default=0xFF)
    reserved_1: int = u8("Reserved", "nothing", default=0)
    reserved_2: int = u8("Reserved", "nothing", default=0)
    reserved_3: int = u8("Reserved", "nothing", default=0)


@message(
    "tap.md:569; capture 08c_tap_dump",
    layout(TAP, _TAP_ITEM, key="key", value="value", name="plain"),
    layout(TAP, _TAP_ITEM, engine="rev_seqno nru", key="key", value="value", name="revision and nru"),
    layout(TAP, _TAP_ITEM, engine="rev_seqno", key="key", value="value", name="revision"),
    layout(TAP, _TAP_ITEM, engine="engine", key="key", value="value", name="other engine"),
    opcode=0x41,
    dialects=TAP,
    direction=PRODUCER,
    replies=TAP_REPLY,
    answered=Answered.WHEN_ASKED,
)
class TapMutation(TapRequest):
    """Tells that an item was stored."""

    item_flags: int = u32("Item Flags", "kept beside the value, in the byte order that tap flag 0x04 tells", default=0)
    expiry: int = u32("Item Expiry", "when the item ends", default=0)
    rev_seqno: int | None = u64("rev seqno", "how often it was changed", section=Section.ENGINE, default=None)
    nru: int | None = u8("nru", "the server's own note", section=Section.ENGINE, default=None, ignorable=True)
    engine: bytes | None = octets(Section.ENGINE, "Engine data", "bytes of an engine unknown here", default=None)
    key: bytes = key("the item's key")
    value: bytes = value("the value", default=b"")


@message(
    "tap.md:633; capture 08c_tap_dump",
    layout(TAP, _TAP_HEAD, key="key", value="value", name="plain"),
    layout(TAP, _TAP_HEAD, engine="rev_seqno", key="key", value="value", name="revision"),
    layout(TAP, _TAP_HEAD, engine="engine", key="key", value="value", name="other engine"),
    opcode=0x42,
    dialects=TAP,
    direction=PRODUCER,
    replies=TAP_REPLY,
    answered=Answered.WHEN_ASKED,
)
class TapDelete(TapRequest):
    """Tells that an item was removed."""

    rev_seqno: int | None = u64("rev seqno", "how often it was changed", section=Section.ENGINE, default=None)
    engine: bytes | None = octets(Section.ENGINE, "Engine data", "bytes of an engine unknown here", default=None)
    key: bytes = key("the item's key")
    value: bytes = value("nothing; 4.1.2 leaves one behind now and then", default=b"")


@message(
    "tap.md:687",
    layout(TAP, _TAP_HEAD, engine="engine", name="flush"),
    opcode=0x43,
    dialects=TAP,
    direction=PRODUCER,
    replies=TAP_REPLY,
    answered=Answered.WHEN_ASKED,
)
class TapFlush(TapRequest):
    """Tells that every item was removed."""

    engine: bytes = octets(Section.ENGINE, "Engine data", "bytes of the engine", default=b"")


@message(
    "tap.md:733",
    layout(TAP, _TAP_HEAD, engine="code", name="opaque"),
    opcode=0x44,
    dialects=TAP,
    direction=PRODUCER,
    replies=TAP_REPLY,
    answered=Answered.WHEN_ASKED,
)
class TapOpaque(TapRequest):
    """Tells of a turn in the stream itself: backfill begins or ends, acks are understood, ..."""

    code: int = u32("Opaque code", "which turn", section=Section.ENGINE, names=TapOpaqueCode)


@message(
    "tap.md:834; capture 08j_tap_takeover",
    layout(TAP, _TAP_HEAD, engine="state", name="vbucket set"),
    opcode=0x45,
    dialects=TAP,
    direction=PRODUCER,
    replies=TAP_REPLY,
    answered=Answered.WHEN_ASKED,
)
class TapVBucketSet(TapRequest):
    """Puts a vbucket of the consumer in a state: the two steps of a takeover."""

    state: int = u32("VB State", "pending, then active", section=Section.ENGINE, names=VBucketState)


_CHECKPOINT_LAYOUTS = (
    layout(TAP, _TAP_HEAD, value="checkpoint", name="id in value"),
    layout(TAP, _TAP_HEAD, engine="checkpoint", name="id in engine"),
    layout(TAP, _TAP_ITEM, engine="engine", key="key", value="checkpoint", name="as an item"),
)


@shape
class TapCheckpoint(TapRequest):
    """What the two ends of a checkpoint share."""

    item_flags: int | None = u32("Item Flags", "nothing", default=None, ignorable=True)
    expiry: int | None = u32("Item Expiry", "nothing", default=None, ignorable=True)
    engine: bytes | None = octets(Section.ENGINE, "Engine data", "nothing", default=None, ignorable=True)
    key: bytes = key("the name of the message, from real servers", default=b"")
    checkpoint: int = u64("Checkpoint", "its id", section=Section.VALUE)


@message(
    "tap.md:882; captures 08i_tap_registered, 08l_tap_consumer",
    *_CHECKPOINT_LAYOUTS,
    opcode=0x46,
    dialects=TAP,
    direction=PRODUCER,
    replies=TAP_REPLY,
    answered=Answered.WHEN_ASKED,
)
class TapCheckpointStart(TapCheckpoint):
    """Tells that a checkpoint begins."""


@message(
    "tap.md:931; captures 08i_tap_registered, 08l_tap_consumer",
    *_CHECKPOINT_LAYOUTS,
    opcode=0x47,
    dialects=TAP,
    direction=PRODUCER,
    replies=TAP_REPLY,
    answered=Answered.WHEN_ASKED,
)
class TapCheckpointEnd(TapCheckpoint):
    """Tells that a checkpoint ends."""


# ---------------------------------------------------------------------------------------------------------------------
# UPR's draft, UPR and DCP
# ---------------------------------------------------------------------------------------------------------------------


@message("upr-transport.md:29", opcode=0x50, dialects=UPR_DCP)
class Open(Request):
    """Names a connection and gives the other side its role."""

    seqno: int = u32("seqno", "nothing; 0", default=0)
    flags: int = u32("flags", "the role and what items carry", names=OpenFlag, zero="consumer", default=0)
    name: bytes = key("the connection's name; opening a name again closes the older connection")
    value: bytes = value("JSON, from consumers that give their name", default=b"")


@message(
    "upr-transport.md:134", opcode=0x51, dialects=UPR_DCP, direction=MANAGER, replies={Status.SUCCESS: StreamAdded}
)
class AddStream(Request):
    """Tells a consumer to ask its producer for a vbucket's stream."""

    flags: int = u32("flags", "how the stream is to run", names=StreamFlag, default=0)


@message("upr-transport.md:231", opcode=0x52, dialects=UPR_DCP, direction=Direction.EITHER)
class CloseStream(Request):
    """Ends the stream of a vbucket as soon as may be."""


_STREAM = "flags reserved start_seqno end_seqno vbuuid"


@message(
    "upr-transport.md:403; upr-stream-request.md:1; upr-transport-draft.md:148",
    layout(DRAFT, f"{_STREAM} high_seqno", key="group", name="group"),
    layout(DRAFT, name="header alone", read_only=True),  # how upr-transport-draft.md:18 draws the header
    layout(UPR, f"{_STREAM} high_seqno", name="40 bytes"),
    layout(UPR_DCP, f"{_STREAM} snapshot_start snapshot_end", value="filter", name="48 bytes"),
    opcode={Dialect.UPR_DRAFT: 0x50, Dialect.UPR: 0x53, Dialect.DCP: 0x53},
    direction=CONSUMER,
    replies={Status.SUCCESS: FailoverLog, Status.ROLLBACK: Rollback},
)
class StreamRequest(Request):
    """Asks for the changes of a vbucket from a position on."""

    flags: int = u32("flags", "how the stream is to run", names=StreamFlag, default=0)
    reserved: int = u32("reserved", "nothing", default=0)
    start_seqno: Seqno = u64("start seqno", "the last change that the consumer has", default=Seqno(0))
    end_seqno: Seqno = u64("end seqno", "where to end; all ones: never", default=END_NEVER)
    vbuuid: VbUuid = u64("vb UUID", "the branch of the start; 0 with start 0: whichever", default=VbUuid(0))
    high_seqno: Seqno | None = u64("high seqno", "the vbucket's seqno when that branch began", default=None)
    snapshot_start: Seqno | None = u64("snapshot start seqno", "the snapshot that holds the start", default=None)
    snapshot_end: Seqno | None = u64("snapshot end seqno", "where that snapshot ends", default=None)
    group: bytes = key("a name for the stream", label="Group ID", default=b"")
    filter: bytes = value("JSON with collections, a scope, a stream id", label="Value", default=b"")


@message(
    "upr-transport.md:278; upr-transport-draft.md:336",
    opcode={Dialect.UPR_DRAFT: 0x51, Dialect.UPR: 0x54, Dialect.DCP: 0x54},
    direction=CONSUMER,
    replies={Status.SUCCESS: FailoverLog},
)
class GetFailoverLog(Request):
    """Asks for the branches of a vbucket's history."""


@message(
    "upr-transport-draft.md:428",
    opcode=0x52,
    dialects=DRAFT,
    direction=PRODUCER,
    flow_controlled=True,
    answered=Answered.WHEN_REFUSED,
)
class StreamStart(Request):
    """Tells that a stream begins. UPR has none: the answer to the request says it."""


@message(
    "upr-transport.md:691; upr-transport-draft.md:735",
    opcode={Dialect.UPR_DRAFT: 0x53, Dialect.UPR: 0x55, Dialect.DCP: 0x55},
    direction=PRODUCER,
    flow_controlled=True,
    answered=Answered.WHEN_REFUSED,
)
class StreamEnd(Request):
    """Tells that a stream has no more messages, and why."""

    reason: int = u32(
        "flags",
        "the reason",
        names={
            Dialect.UPR_DRAFT: UprStreamEndReason,
            Dialect.UPR: UprStreamEndReason,
            Dialect.DCP: StreamEndReason,
        },
    )


@message(
    "upr-transport-draft.md:464",
    opcode=0x54,
    dialects=DRAFT,
    direction=PRODUCER,
    flow_controlled=True,
    answered=Answered.WHEN_REFUSED,
)
class SnapshotStart(Request):
    """Tells that a snapshot begins."""


@message(
    "upr-transport-draft.md:498",
    opcode=0x55,
    dialects=DRAFT,
    direction=PRODUCER,
    flow_controlled=True,
    answered=Answered.WHEN_REFUSED,
)
class SnapshotEnd(Request):
    """Tells that a snapshot ends."""


_MARKER_RANGE = "start_seqno end_seqno flags"
_MARKER_VALUE = f"{_MARKER_RANGE} max_visible_seqno high_completed_seqno"


@message(
    "upr-transport.md:740; capture 01a_dcp_memory_stream; kv: docs/dcp/documentation/commands/snapshot-marker.md",
    layout(UPR_DCP, _MARKER_RANGE, name="v1"),
    layout(UPR, name="bare"),
    layout(DCP, "version", value=_MARKER_VALUE, name="v2.0", version=0),
    layout(DCP, "version", value=f"{_MARKER_VALUE} purge_seqno high_prepared_seqno", name="v2.2", version=2),
    opcode=0x56,
    dialects=UPR_DCP,
    direction=PRODUCER,
    flow_controlled=True,
    answered=Answered.WHEN_ASKED,
)
class SnapshotMarker(Request):
    """Tells that the changes up to the next marker belong together, each key at most once.

    UPR's document draws it bare; every server gave it the range and the flags. Version 2 moves them to the value.
    """

    start_seqno: Seqno | None = u64("start seqno", "the first seqno that may come", default=None)
    end_seqno: Seqno | None = u64("end seqno", "the last seqno of the snapshot", default=None)
    flags: int | None = u32("flags", "where the snapshot comes from", names=SnapshotFlag, default=None)
    version: int | None = u8("version", "which form the value has", default=None)
    max_visible_seqno: Seqno | None = u64(
        "max visible seqno", "the last change that clients may see", section=Section.VALUE, default=None
    )
    high_completed_seqno: Seqno | None = u64(
        "high completed seqno", "the last prepare that came to an end", section=Section.VALUE, default=None
    )
    high_prepared_seqno: Seqno | None = u64(
        "high prepared seqno", "the last prepare", section=Section.VALUE, default=None
    )
    purge_seqno: Seqno | None = u64(
        "purge seqno", "tombstones up to here may be gone", section=Section.VALUE, default=None
    )


_DRAFT_ITEM = "by_seqno rev_seqno flags expiry lock_time"


@message(
    "upr-transport.md:783; upr-transport-draft.md:532; dcp-mutation.md:1",
    layout(DRAFT, _DRAFT_ITEM, key="key", value="value", name="28 bytes"),
    layout(UPR, f"{_DRAFT_ITEM} meta_length", key="key", value="value", meta="meta", name="30 bytes"),
    layout(DCP, f"{_DRAFT_ITEM} meta_length nru", key="key", value="value", meta="meta", name="31 bytes"),
    opcode={Dialect.UPR_DRAFT: 0x56, Dialect.UPR: 0x57, Dialect.DCP: 0x57},
    direction=PRODUCER,
    flow_controlled=True,
    changes=True,
    answered=Answered.WHEN_REFUSED,
)
class Mutation(Request):
    """Tells that an item was stored."""

    by_seqno: Seqno = u64("by seqno", "the place of this change in its vbucket")
    rev_seqno: int = u64("rev seqno", "how often the item was changed")
    flags: int = u32("flags", "kept beside the value", default=0)
    expiry: int = u32("expiration", "when the item ends, in seconds of the epoch; 0: never", default=0)
    lock_time: int = u32("lock time", "for how long the item is locked", default=0)
    nru: int | None = u8("nru", "the server's own note of how recently it was used", default=None, ignorable=True)
    key: bytes = key("the item's key, behind its collection id where collections were agreed on")
    value: bytes = value("the value, behind its xattrs where the datatype says so", default=b"")
    meta: bytes = octets(Section.META, "Metadata", "extended metadata", default=b"", ignorable=True)


@shape
class Removal(Request):
    """What deletion and expiration share."""

    by_seqno: Seqno = u64("by seqno", "the place of this change in its vbucket")
    rev_seqno: int = u64("rev seqno", "how often the item was changed")
    flags: int | None = u32("flags", "kept beside the value", default=None)
    expiry: int | None = u32("expiration", "when the item would have ended", default=None)
    lock_time: int | None = u32("lock time", "for how long the item was locked", default=None)
    delete_time: int | None = u32("delete time", "when it was removed, in seconds of the epoch", default=None)
    unused: int | None = u8("unused", "nothing", default=None, ignorable=True)
    key: bytes = key("the item's key, behind its collection id where collections were agreed on")
    value: bytes = value("the xattrs that outlive the item, where the datatype says so", default=b"")
    meta: bytes = octets(Section.META, "Metadata", "extended metadata", default=b"", ignorable=True)


@message(
    "upr-transport.md:873; upr-transport-draft.md:591; kv: docs/dcp/documentation/commands/deletion.md",
    layout(DRAFT, _DRAFT_ITEM, key="key", name="28 bytes"),
    layout(UPR_DCP, "by_seqno rev_seqno meta_length", key="key", value="value", meta="meta", name="v1"),
    layout(DCP, "by_seqno rev_seqno delete_time unused", key="key", value="value", name="v2"),
    opcode={Dialect.UPR_DRAFT: 0x57, Dialect.UPR: 0x58, Dialect.DCP: 0x58},
    direction=PRODUCER,
    flow_controlled=True,
    changes=True,
    answered=Answered.WHEN_REFUSED,
)
class Deletion(Removal):
    """Tells that an item was removed."""


@message(
    "upr-transport.md:944; upr-transport-draft.md:647; kv: docs/dcp/documentation/commands/expiration.md",
    layout(DRAFT, _DRAFT_ITEM, key="key", name="28 bytes"),
    layout(UPR_DCP, "by_seqno rev_seqno meta_length", key="key", value="value", meta="meta", name="v1"),
    layout(DCP, "by_seqno rev_seqno delete_time", key="key", value="value", name="v2"),
    opcode={Dialect.UPR_DRAFT: 0x58, Dialect.UPR: 0x59, Dialect.DCP: 0x59},
    direction=PRODUCER,
    flow_controlled=True,
    changes=True,
    answered=Answered.WHEN_REFUSED,
)
class Expiration(Removal):
    """Tells that an item came to its end by its expiry."""


@message(
    "upr-transport.md:1015; upr-transport-draft.md:703",
    opcode={Dialect.UPR_DRAFT: 0x59, Dialect.UPR: 0x5A, Dialect.DCP: 0x5A},
    direction=PRODUCER,
    flow_controlled=True,
    changes=True,
    answered=Answered.WHEN_REFUSED,
)
class DcpFlush(Request):
    """Tells that every item of a vbucket was removed. Real servers never sent it."""


@message(
    "upr-transport.md:1054; upr-transport-draft.md:817; capture 10b_takeover_two_servers",
    layout(DRAFT | UPR, "state", name="state"),
    layout(DCP, "state", value="value", name="state and topology"),
    opcode={Dialect.UPR_DRAFT: 0x5A, Dialect.UPR: 0x5B, Dialect.DCP: 0x5B},
    direction=PRODUCER,
    flow_controlled=True,
)
class SetVBucketState(Request):
    """Puts the consumer's vbucket in a state: the two steps of a takeover."""

    state: int = u8("state", "pending, then active", names=VBucketState)
    value: bytes = value("JSON with the replication topology", default=b"")


@message("capture 06b_dcp_noop", opcode=0x5C, dialects=UPR_DCP, direction=PRODUCER)
class DcpNoop(Request):
    """Asks an idle consumer for a sign of life."""


@message(
    "capture 06c_dcp_flow_control", opcode=0x5D, dialects=UPR_DCP, direction=CONSUMER, answered=Answered.WHEN_REFUSED
)
class BufferAck(Request):
    """Tells a producer that so many bytes were worked off. It is answered only when it is wrong."""

    bytes_acked: int = u32("bytes", "how many")


@message("capture 06a_dcp_control", opcode=0x5E, dialects=UPR_DCP, direction=CONSUMER)
class Control(Request):
    """Sets something for the whole connection."""

    key: bytes = key("what to set")
    value: bytes = value("what to set it to, as text", default=b"")


@message(
    "kv: docs/dcp/documentation/commands/system_event.md",
    opcode=0x5F,
    dialects=DCP,
    direction=PRODUCER,
    flow_controlled=True,
    changes=True,
    answered=Answered.WHEN_REFUSED,
)
class SystemEvent(Request):
    """Tells that a scope or a collection came, went or changed."""

    by_seqno: Seqno = u64("by seqno", "the place of this change in its vbucket")
    event: int = u32("event", "what happened", names=SystemEventKind)
    version: int = u8("version", "which form the value has")
    key: bytes = key("the name of the scope or collection", default=b"")
    value: bytes = value("manifest, scope and collection ids", default=b"")


@message(
    "kv: docs/dcp/documentation/commands/prepare.md",
    opcode=0x60,
    dialects=DCP,
    direction=PRODUCER,
    flow_controlled=True,
    answered=Answered.WHEN_REFUSED,
)
class Prepare(Request):
    """Tells a replica of a write that waits to be durable."""

    by_seqno: Seqno = u64("by seqno", "the place of this change in its vbucket")
    rev_seqno: int = u64("rev seqno", "how often the item was changed")
    flags: int = u32("flags", "kept beside the value", default=0)
    expiry: int = u32("expiration", "when the item ends", default=0)
    lock_time: int = u32("lock time", "for how long the item is locked", default=0)
    nru: int = u8("nru", "the server's own note", default=0)
    deleted: int = u8("deleted", "1 when the write is a deletion", default=0)
    durability: int = u8("durability", "what the write waits for", names=DurabilityLevel)
    key: bytes = key("the item's key")
    value: bytes = value("the value", default=b"")


@message(
    "kv: docs/dcp/documentation/commands/seqno-acknowledged.md",
    opcode=0x61,
    dialects=DCP,
    direction=CONSUMER,
    answered=Answered.WHEN_REFUSED,
)
class SeqnoAck(Request):
    """Tells how far a replica has prepared."""

    prepared_seqno: Seqno = u64("prepared seqno", "the last prepare that it holds")


@message(
    "kv: docs/dcp/documentation/commands/commit.md",
    opcode=0x62,
    dialects=DCP,
    direction=PRODUCER,
    flow_controlled=True,
    answered=Answered.WHEN_REFUSED,
)
class Commit(Request):
    """Tells a replica that a prepared write holds."""

    prepared_seqno: Seqno = u64("prepared seqno", "the prepare")
    commit_seqno: Seqno = u64("commit seqno", "the place of the commit in its vbucket")
    key: bytes = key("the item's key")


@message(
    "kv: docs/dcp/documentation/commands/abort.md",
    opcode=0x63,
    dialects=DCP,
    direction=PRODUCER,
    flow_controlled=True,
    answered=Answered.WHEN_REFUSED,
)
class Abort(Request):
    """Tells a replica that a prepared write does not hold."""

    prepared_seqno: Seqno = u64("prepared seqno", "the prepare")
    abort_seqno: Seqno = u64("abort seqno", "the place of the abort in its vbucket")
    key: bytes = key("the item's key")


@message(
    "kv: docs/dcp/documentation/commands/seqno-advanced.md",
    opcode=0x64,
    dialects=DCP,
    direction=PRODUCER,
    flow_controlled=True,
    changes=True,
    answered=Answered.WHEN_REFUSED,
)
class SeqnoAdvanced(Request):
    """Tells that the vbucket went on to a seqno whose change the stream does not show."""

    by_seqno: Seqno = u64("by seqno", "the seqno reached")


@message(
    "kv: docs/dcp/documentation/commands/oso_snapshot.md",
    opcode=0x65,
    dialects=DCP,
    direction=PRODUCER,
    flow_controlled=True,
    answered=Answered.WHEN_REFUSED,
)
class OsoSnapshot(Request):
    """Opens or closes a snapshot whose changes are not in the order of their seqnos."""

    flags: int = u32("flags", "start or end", names=OsoFlag)
