"""The numbers by which the shell and the compiled kernel talk: which argument, which count, which column."""

# The arguments of the kernel: one block of 64-bit numbers, addresses among them.
(
    A_DATA,
    A_END,
    A_MAGICS,
    A_LAYOUT_OF,
    A_LAYOUTS,
    A_MARKERS,
    A_MARKER_ROWS,
    A_MARKER_OPCODE,
    A_STOP_OPCODE,
    A_BODY_MAX,
    A_INFLATED_MAX,
    A_ROWS_MAX,
    A_VALUE_MAX,
    A_COLLECTIONS,
    A_TEXT,
    A_STATE,
    A_PLACES,
    A_KINDS,
    A_REPORT,
    A_LONGS,
    A_INTS,
    A_EVENTS,
    A_KEYS,
    A_VALUES,
    A_CONTROLS,
    A_CONTROL_BYTES,
    A_NAME_OFFSETS,
    A_TEXT_OFFSETS,
    A_NAMES,
    A_TEXTS,
    A_WIDE,
    A_COUNTED,
    A_KEY_MAX,
    ARGUMENTS,
) = range(34)

# What the kernel reports.
(
    CONSUMED,
    FRAMES,
    ROWS,
    KEY_BYTES,
    VALUE_BYTES,
    CONTROLS,
    CONTROL_BYTES,
    XATTR_BYTES,
    STOPPED,
    SEEN_EVENTS,
    TIMED,
    SEEN_TYPES,
    CLOCKS,
    PAIR,
    NAME_AT,
    TEXT_AT,
    REMOVED,
    FLOW_BYTES,
    REPORT,
) = range(19)

# Why a pass ended.
NEEDS_DATA, BAD_FRAME, BATCH_FULL, ANSWERED = range(4)

# The columns of 64-bit and of 32-bit numbers. Most batches have mutations only, without expiry and unlocked: they are
# narrow, and do without the last three.
VBUUID, SEQNO, REV, CAS, FLAGS, SNAP_START, SNAP_END, CHANGED_AT, EXPIRY, LOCK_TIME, DELETE_TIME, WIDE_LONGS = range(12)
NARROW_LONGS = EXPIRY
VBUCKET, DATATYPE, SNAP_TYPE, KEY_AT, VALUE_AT, COLLECTION, XATTRS_AT, INTS = range(8)

ABSENT = -1
"""In a column of 32-bit numbers or of times: the message does not carry it."""

# The rows of a position table: what a row inherits from earlier messages of its vbucket.
P_VBUUID, P_START, P_END, P_TYPE, POSITIONS = range(5)
VBUCKETS = 1 << 16

NO_LAYOUT = 0xFF
"""In the table of layouts by opcode and extras length: this frame is no row."""

# The columns of the table of layouts; -1 where a layout lacks the field.
(
    EVENT,
    KEY_RULE,
    HAS_VALUE,
    AT_SEQNO,
    AT_REV,
    AT_FLAGS,
    AT_EXPIRY,
    AT_LOCK_TIME,
    AT_DELETE_TIME,
    AT_META_LENGTH,
    AT_SYSTEM_KIND,
    LAYOUT_COLUMNS,
) = range(12)
MUST_NOT, MAY, MUST = range(3)

# The columns of the table of markers: how to know a form of snapshot marker, and where its range stands in the body.
MARKER_EXTRAS, MARKER_VERSION, MARKER_BODY, AT_START, AT_END, AT_TYPE, MARKER_COLUMNS = range(7)

# What a magic stands for.
UNKNOWN_MAGIC, REQUEST_FRAME, RESPONSE_FRAME, OTHER_FRAME = range(4)
