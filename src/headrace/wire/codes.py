"""The numbers of the wire that have names: magics, statuses, datatypes, states, flags and reasons.

Messages hold plain ints, since a peer may send a number that nobody has named yet; these enums are for comparing
and for showing. Names and numbers follow Couchbase's server; where a document differs, docs/protocol/errata.md says so.
"""

from enum import IntEnum, IntFlag


class Magic(IntEnum):
    """The first byte: who speaks, and which of the two header forms follows."""

    REQUEST = 0x80
    RESPONSE = 0x81
    FLEXIBLE_REQUEST = 0x08
    FLEXIBLE_RESPONSE = 0x18
    SERVER_REQUEST = 0x82
    SERVER_RESPONSE = 0x83


class Status(IntEnum):
    """What became of a request."""

    SUCCESS = 0x00
    KEY_NOT_FOUND = 0x01
    KEY_EXISTS = 0x02
    TOO_BIG = 0x03
    INVALID = 0x04
    NOT_STORED = 0x05
    DELTA_BAD_VALUE = 0x06
    NOT_MY_VBUCKET = 0x07
    NO_BUCKET = 0x08
    LOCKED = 0x09
    STREAM_NOT_FOUND = 0x0A
    OPAQUE_NO_MATCH = 0x0B
    WOULD_THROTTLE = 0x0C
    CONFIG_ONLY = 0x0D
    NOT_LOCKED = 0x0E
    CAS_INVALID = 0x0F
    AUTH_STALE = 0x1F
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    OUT_OF_RANGE = 0x22
    ROLLBACK = 0x23
    NO_ACCESS = 0x24
    NOT_INITIALIZED = 0x25
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    OUT_OF_MEMORY = 0x82
    NOT_SUPPORTED = 0x83
    INTERNAL_ERROR = 0x84
    BUSY = 0x85
    TEMPORARY_FAILURE = 0x86
    XATTR_INVALID = 0x87
    UNKNOWN_COLLECTION = 0x88
    CANNOT_APPLY_MANIFEST = 0x8A
    UNKNOWN_SCOPE = 0x8C
    STREAM_ID_INVALID = 0x8D
    DURABILITY_INVALID_LEVEL = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    SYNC_WRITE_IN_PROGRESS = 0xA2
    SYNC_WRITE_AMBIGUOUS = 0xA3
    SUBDOC_PATH_NOT_FOUND = 0xC0
    SUBDOC_PATH_MISMATCH = 0xC1
    SUBDOC_PATH_INVALID = 0xC2
    SUBDOC_PATH_TOO_BIG = 0xC3
    SUBDOC_DOC_NOT_JSON = 0xC6
    SUBDOC_PATH_EXISTS = 0xC9
    SUBDOC_MULTI_PATH_FAILURE = 0xCC
    SUBDOC_SUCCESS_DELETED = 0xCD
    SUBDOC_MULTI_PATH_FAILURE_DELETED = 0xD3


class Datatype(IntFlag):
    """How a value is to be read; for a DCP mutation it describes the value as sent."""

    JSON = 0x01
    SNAPPY = 0x02
    XATTR = 0x04


class VBucketState(IntEnum):
    """What a node may do with a vbucket. The UPR documents swap replica and pending; no server ever did."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


class ParamKind(IntEnum):
    """Which part of a server a parameter belongs to. Servers that speak TAP call the second one that."""

    FLUSH = 1
    REPLICATION = 2
    CHECKPOINT = 3
    DCP = 4
    VBUCKET = 5


class TapConnectFlag(IntFlag):
    """What a TAP client asks for; some bits bring a part of the body with them."""

    BACKFILL = 0x01
    DUMP = 0x02
    LIST_VBUCKETS = 0x04
    TAKEOVER_VBUCKETS = 0x08
    SUPPORT_ACK = 0x10
    KEYS_ONLY = 0x20
    CHECKPOINT = 0x40
    REGISTERED_CLIENT = 0x80
    FIX_BYTEORDER = 0x100


class TapFlag(IntFlag):
    """What a TAP message asks of its receiver or says of itself."""

    ACK = 0x01
    NO_VALUE = 0x02
    NETWORK_BYTE_ORDER = 0x04


class TapOpaqueCode(IntEnum):
    """The control messages that travel in TAP opaque."""

    ENABLE_AUTO_NACK = 0
    INITIAL_VBUCKET_STREAM = 1
    ENABLE_CHECKPOINT_SYNC = 2
    OPEN_CHECKPOINT = 3
    START_ONLINE_UPDATE = 4
    STOP_ONLINE_UPDATE = 5
    REVERT_ONLINE_UPDATE = 6
    CLOSE_TAP_STREAM = 7
    CLOSE_BACKFILL = 8


class OpenFlag(IntFlag):
    """The role of a connection and what its items carry. Without PRODUCER the receiver is to consume."""

    PRODUCER = 0x01
    NOTIFIER = 0x02
    INCLUDE_XATTRS = 0x04
    NO_VALUE = 0x08
    INCLUDE_DELETE_TIMES = 0x20
    NO_VALUE_WITH_DATATYPE = 0x40
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_BACKFILL = 0x200


class StreamFlag(IntFlag):
    """How a stream is to run, in stream request and add stream."""

    TAKEOVER = 0x01
    DISK_ONLY = 0x02
    TO_LATEST = 0x04
    NO_VALUE = 0x08
    ACTIVE_ONLY = 0x10
    STRICT_VBUUID = 0x20
    FROM_LATEST = 0x40
    IGNORE_PURGED_TOMBSTONES = 0x80
    CACHE_TRANSFER = 0x100


class SnapshotFlag(IntFlag):
    """Where a snapshot comes from and what it may hold."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08
    HISTORY = 0x10
    MAY_DUPLICATE_KEYS = 0x20


class StreamEndReason(IntEnum):
    """Why a stream ended. UPR's documents give 1 to a state change; every real server sends 2 for it."""

    OK = 0
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    TOO_SLOW = 4
    BACKFILL_FAILED = 5
    ROLLBACK = 6
    FILTER_EMPTY = 7
    LOST_PRIVILEGES = 8


class UprStreamEndReason(IntEnum):
    """The two reasons that the UPR documents know, draft and final."""

    OK = 0
    STATE_CHANGED = 1


class SystemEventKind(IntEnum):
    """What happened to a scope or a collection."""

    CREATE_COLLECTION = 0
    DROP_COLLECTION = 1
    FLUSH_COLLECTION = 2
    CREATE_SCOPE = 3
    DROP_SCOPE = 4
    MODIFY_COLLECTION = 5


class OsoFlag(IntFlag):
    """The two ends of a snapshot that is not in order of seqno."""

    START = 0x01
    END = 0x02


class DurabilityLevel(IntEnum):
    """What a prepared write waits for."""

    NONE = 0
    MAJORITY = 1
    MAJORITY_AND_PERSIST_ACTIVE = 2
    PERSIST_TO_MAJORITY = 3


class WithMetaOption(IntFlag):
    """How a with-meta write treats conflicts and CAS.

    At first FORCE alone skipped conflict resolution. Servers since 5.0 have a bit for that; there, FORCE skips it too,
    but was for long also a leave to write at a replica.
    """

    FORCE = 0x01
    FORCE_ACCEPT = 0x02
    REGENERATE_CAS = 0x04
    SKIP_CONFLICT_RESOLUTION = 0x08
    IS_EXPIRATION = 0x10


class RequestFrameInfo(IntEnum):
    """What the framing extras of a request may hold."""

    BARRIER = 0
    DURABILITY = 1
    STREAM_ID = 2
    IMPERSONATE_USER = 4
    PRESERVE_EXPIRY = 5
    IMPERSONATE_EXTRA_PRIVILEGE = 6


class ResponseFrameInfo(IntEnum):
    """What the framing extras of an answer may hold."""

    SERVER_DURATION = 0
    READ_UNITS = 1
    WRITE_UNITS = 2
    THROTTLE_DURATION = 3


class Feature(IntEnum):
    """What hello can agree on."""

    INVALID = 0x01
    TLS = 0x02
    TCP_NODELAY = 0x03
    MUTATION_SEQNO = 0x04
    XATTR = 0x06
    XERROR = 0x07
    SELECT_BUCKET = 0x08
    SNAPPY = 0x0A
    JSON = 0x0B
    DUPLEX = 0x0C
    CLUSTERMAP_NOTIFICATION = 0x0D
    UNORDERED_EXECUTION = 0x0E
    TRACING = 0x0F
    ALT_REQUEST = 0x10
    SYNC_REPLICATION = 0x11
    COLLECTIONS = 0x12
    SNAPPY_EVERYWHERE = 0x13
    PRESERVE_TTL = 0x14
    VATTR = 0x15
    CREATE_AS_DELETED = 0x17
    DOC_MACRO = 0x18
    REPLACE_BODY_WITH_XATTR = 0x19
    REPORT_UNIT_USAGE = 0x1A
    NONBLOCKING_THROTTLE = 0x1B
    SUBDOC_REPLICA_READ = 0x1C
    CONFIG_KNOWN_VERSION = 0x1D
    DEDUPE_NOT_MY_VBUCKET = 0x1E
    CLUSTERMAP_NOTIFICATION_BRIEF = 0x1F


def names_of(codes: type[IntEnum] | type[IntFlag], number: int) -> str:
    """Spell a number in the words of its enum: `takeover, disk only`; empty where it has no name."""
    if issubclass(codes, IntFlag):
        known = [flag for flag in codes if flag.name and number & flag]
        rest = number & ~sum(known)
        return ", ".join([*(words(flag.name or "") for flag in known), *([f"0x{rest:x}"] if rest else [])])
    return next((words(code.name) for code in codes if code == number), "")


def words(name: str) -> str:
    """NOT_MY_VBUCKET as people say it."""
    return name.replace("_", " ").lower()
