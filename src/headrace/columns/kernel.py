"""The compiled loops: received bytes -> columns.

Two passes over the same frames. `scan` finds where whole frames begin, which are rows, and how much room their parts
need when inflated; `fill` writes columns of just that size. Neither raises: a frame that cannot be read ends the pass
at its first byte, and Python asks the plain codec for the reason.

A row's parts are checked by the same rules as in `wire.plan`: a change whose body fits no layout is no row but goes out
beside the rows, where the plain codec makes it `Malformed`.

All is done by address, with the numbers of `slots`. This module is imported only to compile: see `machine`.
"""

from __future__ import annotations

from headrace.columns import slots as s
from headrace.columns.kernel_bytes import (
    copy_bytes,
    load8,
    load16,
    load32,
    load64,
    native64,
    prefetch,
    store8,
    store32,
    store64,
)
from headrace.columns.kernel_values import HIGH_BITS, compiled, inflate, inflated_length, is_utf8, split_pairs
from headrace.columns.schema import CLOCK_NS, DISK, EXPIRATION, HISTORY, MEMORY, OTHER
from headrace.wire.codes import Datatype, SnapshotFlag
from headrace.wire.limits import HEADER_BYTES

_SNAPPY, _XATTR = int(Datatype.SNAPPY), int(Datatype.XATTR)
_PACKED = _SNAPPY | _XATTR
_HISTORY_FLAG, _DISK_FLAG, _MEMORY_FLAG = int(SnapshotFlag.HISTORY), int(SnapshotFlag.DISK), int(SnapshotFlag.MEMORY)
_CLOCK_FROM, _CLOCK_TO = CLOCK_NS
_FLEXIBLE_MAX = 0x18
_SHAPE = -0x0000_FFFF_0100_0000  # the bytes 0, 1 and 4 of a header: 0xffff0000ff000000
_LEB_BYTES = 5
_AHEAD_BYTES = 2048
_LINE_BYTES = 64


@compiled
def argument(args: int, which: int) -> int:
    """One of the kernel's arguments, an address among them; also one of the counts of its report."""
    return native64(args + 8 * which)


@compiled
def layout_row(layouts: int, layout: int) -> int:
    """Where the table of layouts describes one."""
    return layouts + 8 * layout * s.LAYOUT_COLUMNS


def scan(args: int) -> int:
    """Find the frames of the next batch: where each begins, which layout it has, what they need."""
    data = argument(args, s.A_DATA)
    end = data + argument(args, s.A_END)
    magics = argument(args, s.A_MAGICS)
    layout_of = argument(args, s.A_LAYOUT_OF)
    layouts = argument(args, s.A_LAYOUTS)
    stop_opcode = argument(args, s.A_STOP_OPCODE)
    body_max = argument(args, s.A_BODY_MAX)
    inflated_max = argument(args, s.A_INFLATED_MAX)
    rows_max = argument(args, s.A_ROWS_MAX)
    value_max = argument(args, s.A_VALUE_MAX)
    key_max = argument(args, s.A_KEY_MAX)
    places = argument(args, s.A_PLACES)
    kinds = argument(args, s.A_KINDS)
    report = argument(args, s.A_REPORT)
    pos = ahead = data
    frames = rows = key_bytes = value_bytes = control_bytes = xattr_bytes = seen_events = timed = 0
    # What the last frame's magic, opcode and extras length came to; most frames are like the one before.
    shape = kind = opcode = -1
    layout = s.NO_LAYOUT
    at_meta = at_expiry = at_lock = rule = has_value = -1
    packs = False
    stopped = s.NEEDS_DATA
    while pos + HEADER_BYTES <= end:
        head = load64(pos)
        body = load32(pos + 8)
        if head & _SHAPE != shape:
            shape = head & _SHAPE
            kind = load8(magics + load8(pos))
            opcode = load8(pos + 1)
            layout = s.NO_LAYOUT
            if kind == s.REQUEST_FRAME:
                layout = load8(layout_of + 256 * opcode + load8(pos + 4))
            if layout != s.NO_LAYOUT:
                at_meta = argument(layout_row(layouts, layout), s.AT_META_LENGTH)
                at_expiry = argument(layout_row(layouts, layout), s.AT_EXPIRY)
                at_lock = argument(layout_row(layouts, layout), s.AT_LOCK_TIME)
                rule = argument(layout_row(layouts, layout), s.KEY_RULE)
                has_value = argument(layout_row(layouts, layout), s.HAS_VALUE)
                event = argument(layout_row(layouts, layout), s.EVENT)
                seen_events |= 1 << event
                packs = event <= EXPIRATION
        extras = pos + HEADER_BYTES
        key_length = (head >> 32) & 0xFFFF
        if load8(pos) <= _FLEXIBLE_MAX:
            extras += key_length >> 8
            key_length &= 0xFF
        extras_length = (head >> 24) & 0xFF
        frame_end = pos + HEADER_BYTES + body
        length = frame_end - extras - extras_length - key_length
        if kind == s.UNKNOWN_MAGIC or body > body_max or length < 0:
            stopped = s.BAD_FRAME
            break
        if frame_end > end:
            break
        # The next header is known only when this one is read: without this, every frame waits for memory.
        while ahead < frame_end + _AHEAD_BYTES and ahead < end:
            prefetch(ahead)
            ahead += _LINE_BYTES
        is_row = layout != s.NO_LAYOUT
        if is_row:
            if at_meta >= 0:
                length -= load16(extras + at_meta)
            is_row = length >= 0 and not (length > 0 and has_value == 0)
            if (rule == s.MUST and key_length == 0) or (rule == s.MUST_NOT and key_length > 0):
                is_row = False
        if is_row:
            if at_expiry >= 0:
                timed |= load32(extras + at_expiry) | load32(extras + at_lock)
            if packs and head & _SNAPPY << 16 != 0 and length > 0:
                start = extras + extras_length + key_length
                length = inflated_length(start, start + length)
                if length < 0 or length > inflated_max:
                    stopped = s.BAD_FRAME
                    break
            full = rows >= rows_max or value_bytes + length > value_max or key_bytes + key_length > key_max
            if rows > 0 and full:
                stopped = s.BATCH_FULL
                break
            if packs and head & _XATTR << 16 != 0:
                xattr_bytes += length
            rows += 1
            key_bytes += key_length
            value_bytes += length
            store8(kinds + frames, layout)
        else:
            control_bytes += frame_end - pos
            store8(kinds + frames, s.NO_LAYOUT)
        store64(places + 8 * frames, pos)
        frames += 1
        pos = frame_end
        if kind == s.RESPONSE_FRAME and opcode == stop_opcode:
            stopped = s.ANSWERED
            break
    store64(places + 8 * frames, pos)
    store64(report + 8 * s.CONSUMED, pos - data)
    store64(report + 8 * s.FRAMES, frames)
    store64(report + 8 * s.ROWS, rows)
    store64(report + 8 * s.KEY_BYTES, key_bytes)
    store64(report + 8 * s.VALUE_BYTES, value_bytes)
    store64(report + 8 * s.CONTROLS, frames - rows)
    store64(report + 8 * s.CONTROL_BYTES, control_bytes)
    store64(report + 8 * s.XATTR_BYTES, xattr_bytes)
    store64(report + 8 * s.STOPPED, stopped)
    store64(report + 8 * s.SEEN_EVENTS, seen_events)
    store64(report + 8 * s.TIMED, timed)
    return 0


@compiled
def note_marker(args: int, pos: int, frame_end: int) -> None:
    """Keep the range of a snapshot marker for the rows of its vbucket."""
    state = argument(args, s.A_STATE)
    magic = load8(pos)
    framing = load8(pos + 2) if magic <= _FLEXIBLE_MAX else 0
    key_length = load8(pos + 3) if magic <= _FLEXIBLE_MAX else load16(pos + 2)
    body = pos + HEADER_BYTES + framing
    for row in range(argument(args, s.A_MARKER_ROWS)):
        marker = argument(args, s.A_MARKERS) + 8 * row * s.MARKER_COLUMNS
        version = argument(marker, s.MARKER_VERSION)
        if (
            key_length == 0
            and load8(pos + 4) == argument(marker, s.MARKER_EXTRAS)
            and frame_end - body == argument(marker, s.MARKER_BODY)
            and (version < 0 or load8(body) == version)
        ):
            place = state + 8 * load16(pos + 6)
            flags = load32(body + argument(marker, s.AT_TYPE))
            kind = OTHER
            if flags & _HISTORY_FLAG:
                kind = HISTORY
            elif flags & _DISK_FLAG:
                kind = DISK
            elif flags & _MEMORY_FLAG:
                kind = MEMORY
            store64(place + 8 * s.VBUCKETS * s.P_START, load64(body + argument(marker, s.AT_START)))
            store64(place + 8 * s.VBUCKETS * s.P_END, load64(body + argument(marker, s.AT_END)))
            store64(place + 8 * s.VBUCKETS * s.P_TYPE, kind)


@compiled
def collection_of(at: int, length: int) -> int:
    """The collection id in front of a key times 8, plus its length; -1 when there is none to read."""
    number = 0
    for index in range(min(length, _LEB_BYTES)):
        byte = load8(at + index)
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if (index > 0 and byte == 0) or number > 0xFFFF_FFFF:
                return -1
            return number * 8 + index + 1
    return -1


@compiled
def unpack(args: int, datatype: int, value: int, length: int, target: int, first_pair: int) -> int:
    """Put a snappy value, or one with xattrs, in its column; the length that the document has there, or -1."""
    if datatype & _SNAPPY:
        inflated = inflated_length(value, value + length)
        if inflate(value, value + length, target, inflated) < 0:
            return -1
        length = inflated
    else:
        copy_bytes(target, value, length)
    if datatype & _XATTR and length > 0:
        store32(first_pair, argument(argument(args, s.A_REPORT), s.PAIR) + 1)
        if split_pairs(args, target, length) < 0:
            return -1
        length -= argument(argument(args, s.A_REPORT), s.REMOVED)
    return length


@compiled
def copy_key(target: int, key: int, length: int, text: int) -> bool:
    """Put a key in its column; False when it has to be text and is not."""
    if 8 <= length <= 16:
        # Two overlapping words hold a key of usual length: tested and copied without a call.
        first = native64(key)
        last = native64(key + length - 8)
        store64(target, first)
        store64(target + length - 8, last)
        if (first | last) & HIGH_BITS == 0:
            return True
    else:
        copy_bytes(target, key, length)
    return text == 0 or is_utf8(key, key + length)


@compiled
def number64(extras: int, offset: int) -> int:
    """A field of 64 bits, where the layout has it."""
    return load64(extras + offset) if offset >= 0 else s.ABSENT


@compiled
def number32(extras: int, offset: int) -> int:
    """A field of 32 bits, where the layout has it."""
    return load32(extras + offset) if offset >= 0 else s.ABSENT


@compiled
def store_longs(args: int, layout: int, pos: int, extras: int, place: int, target: int, column: int) -> int:
    """Write the 64-bit columns of a row; 1 when its CAS is a clock. `layout` is the layout's row in its table."""
    cas = load64(pos + 16)
    dated = _CLOCK_FROM <= cas < _CLOCK_TO
    # A system event has no flags: its kind stands in their column.
    at_kind = argument(layout, s.AT_SYSTEM_KIND)
    store64(target + s.VBUUID * column, native64(place + 8 * s.VBUCKETS * s.P_VBUUID))
    store64(target + s.SEQNO * column, number64(extras, argument(layout, s.AT_SEQNO)))
    store64(target + s.REV * column, number64(extras, argument(layout, s.AT_REV)))
    store64(target + s.CAS * column, cas)
    store64(target + s.FLAGS * column, number32(extras, at_kind if at_kind >= 0 else argument(layout, s.AT_FLAGS)))
    store64(target + s.SNAP_START * column, native64(place + 8 * s.VBUCKETS * s.P_START))
    store64(target + s.SNAP_END * column, native64(place + 8 * s.VBUCKETS * s.P_END))
    store64(target + s.CHANGED_AT * column, cas // 1000 if dated else s.ABSENT)
    if argument(args, s.A_WIDE) != 0:
        store64(target + s.EXPIRY * column, number32(extras, argument(layout, s.AT_EXPIRY)))
        store64(target + s.LOCK_TIME * column, number32(extras, argument(layout, s.AT_LOCK_TIME)))
        store64(target + s.DELETE_TIME * column, number32(extras, argument(layout, s.AT_DELETE_TIME)))
    return 1 if dated else 0


@compiled
def put_beside(args: int, pos: int, frame_end: int, number: int, row: int, at: int) -> int:
    """Keep a frame that is no row, behind those kept before it; what it counts for flow control."""
    controls = argument(args, s.A_CONTROLS) + 16 * number
    store64(controls, row)
    store64(controls + 8, at)
    copy_bytes(argument(args, s.A_CONTROL_BYTES) + at, pos, frame_end - pos)
    opcode = load8(pos + 1)
    if load8(argument(args, s.A_MAGICS) + load8(pos)) != s.REQUEST_FRAME:
        return 0
    if opcode == argument(args, s.A_MARKER_OPCODE):
        note_marker(args, pos, frame_end)
    return frame_end - pos if load8(argument(args, s.A_COUNTED) + opcode) != 0 else 0


def fill(args: int) -> int:
    """Write the columns of a scanned batch; end early at a frame whose key or value cannot be read."""
    collections = argument(args, s.A_COLLECTIONS)
    text = argument(args, s.A_TEXT)
    places = argument(args, s.A_PLACES)
    kinds = argument(args, s.A_KINDS)
    report = argument(args, s.A_REPORT)
    ints = argument(args, s.A_INTS)
    longs = argument(args, s.A_LONGS)
    keys = argument(args, s.A_KEYS)
    values = argument(args, s.A_VALUES)
    events = argument(args, s.A_EVENTS)
    state = argument(args, s.A_STATE)
    layouts = argument(args, s.A_LAYOUTS)
    frames = argument(report, s.FRAMES)
    long_column = 8 * argument(report, s.ROWS)
    int_column = 4 * (argument(report, s.ROWS) + 1)
    row = control = key_at = value_at = control_at = seen_types = clocks = flow_bytes = 0
    end = native64(places + 8 * frames)
    for frame in range(frames):
        pos = native64(places + 8 * frame)
        frame_end = native64(places + 8 * frame + 8)
        if load8(kinds + frame) == s.NO_LAYOUT:
            flow_bytes += put_beside(args, pos, frame_end, control, row, control_at)
            control_at += frame_end - pos
            control += 1
            continue
        layout = layout_row(layouts, load8(kinds + frame))
        event = argument(layout, s.EVENT)
        extras = pos + HEADER_BYTES
        key_length = load16(pos + 2)
        if load8(pos) <= _FLEXIBLE_MAX:
            extras += key_length >> 8
            key_length &= 0xFF
        key = extras + load8(pos + 4)
        value = key + key_length
        length = frame_end - value
        if argument(layout, s.AT_META_LENGTH) >= 0:
            length -= load16(extras + argument(layout, s.AT_META_LENGTH))
        datatype = load8(pos + 5)
        int_row = ints + 4 * row
        readable = True
        if collections != 0 and event <= EXPIRATION:
            found = collection_of(key, key_length)
            readable = found >= 0
            store32(int_row + s.COLLECTION * int_column, found >> 3)
            key += found & 7
            key_length -= found & 7
        readable = readable and copy_key(keys + key_at, key, key_length, text)
        target = values + value_at
        if datatype & _PACKED == 0 or length == 0 or event > EXPIRATION:
            copy_bytes(target, value, length)
        elif readable:
            length = unpack(args, datatype, value, length, target, int_row + s.XATTRS_AT * int_column)
        if not readable or length < 0:
            store64(report + 8 * s.STOPPED, s.BAD_FRAME)
            end = pos
            break
        vbucket = load16(pos + 6)
        place = state + 8 * vbucket
        kind = native64(place + 8 * s.VBUCKETS * s.P_TYPE)
        seen_types |= 1 << kind
        store32(int_row + s.VBUCKET * int_column, vbucket)
        store32(int_row + s.DATATYPE * int_column, datatype & ~_PACKED)
        store32(int_row + s.SNAP_TYPE * int_column, kind)
        store32(int_row + s.KEY_AT * int_column, key_at)
        store32(int_row + s.VALUE_AT * int_column, value_at)
        store8(events + row, event)
        clocks += store_longs(args, layout, pos, extras, place, longs + 8 * row, long_column)
        key_at += key_length
        value_at += length
        flow_bytes += frame_end - pos
        row += 1
    store32(ints + 4 * row + s.KEY_AT * int_column, key_at)
    store32(ints + 4 * row + s.VALUE_AT * int_column, value_at)
    store64(argument(args, s.A_CONTROLS) + 16 * control, row)
    store64(argument(args, s.A_CONTROLS) + 16 * control + 8, control_at)
    store64(report + 8 * s.CONSUMED, end - argument(args, s.A_DATA))
    store64(report + 8 * s.ROWS, row)
    store64(report + 8 * s.CONTROLS, control)
    store64(report + 8 * s.SEEN_TYPES, seen_types)
    store64(report + 8 * s.CLOCKS, clocks)
    store64(report + 8 * s.FLOW_BYTES, flow_bytes)
    return 0
