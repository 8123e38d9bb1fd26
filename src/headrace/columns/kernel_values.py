"""The compiled parts that look inside a value: UTF-8, snappy and xattrs. They say -1 for what cannot be read.

The rules are those of `wire.snappy` and `wire.xattrs`, byte for byte; the plain twin of the decoder is the judge.
"""

from __future__ import annotations

from numba import njit

from headrace.columns import slots as s
from headrace.columns.kernel_bytes import copy_bytes, load8, load32, native32, native64, store8, store32, store64
from headrace.wire.limits import XATTR_NAME_BYTES_MAX, XATTR_PAIRS_MAX

compiled = njit(nogil=True, boundscheck=False, error_model="numpy", forceinline=True)

HIGH_BITS = -0x7F7F7F7F7F7F7F80
_LENGTH_BYTES = 4
_LEB_BYTES = 5


@compiled
def is_utf8(at: int, end: int) -> bool:
    """Whether these bytes are well-formed UTF-8: shortest forms only, no surrogates, nothing past U+10FFFF."""
    while at + 8 <= end and native64(at) & HIGH_BITS == 0:
        at += 8
    while at < end:
        byte = load8(at)
        if byte < 0x80:
            at += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        if at + more >= end or not low <= load8(at + 1) <= high:
            return False
        for index in range(2, more + 1):
            if load8(at + index) & 0xC0 != 0x80:
                return False
        at += more + 1
    return True


@compiled
def little_endian(at: int, size: int) -> int:
    """A number of up to four bytes, lowest first, as snappy writes it."""
    number = 0
    for index in range(size):
        number |= load8(at + index) << (8 * index)
    return number


@compiled
def inflated_length(at: int, end: int) -> int:
    """The length that a snappy block claims; -1 when it claims none."""
    number = 0
    for index in range(_LEB_BYTES):
        if at + index >= end:
            return -1
        byte = load8(at + index)
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number
    return -1


@compiled
def inflate(at: int, end: int, target: int, expected: int) -> int:
    """Inflate a snappy block to `target`, which has room for the length that it claims; 0 when all was well."""
    while load8(at) >= 0x80:
        at += 1
    at += 1
    made = 0
    while at < end:
        tag = load8(at)
        at += 1
        length = tag >> 2
        form = tag & 3
        if form == 0:
            if length >= 60:
                size = length - 59
                if at + size > end:
                    return -1
                length = little_endian(at, size)
                at += size
            length += 1
            if at + length > end or made + length > expected:
                return -1
            copy_bytes(target + made, at, length)
            at += length
            made += length
            continue
        size = 4 if form == 3 else form
        if at + size > end:
            return -1
        offset = little_endian(at, size)
        at += size
        if form == 1:
            offset |= (tag >> 5) << 8
            length = (length & 7) + 4
        else:
            length += 1
        if offset == 0 or offset > made or made + length > expected:
            return -1
        source = target + made - offset
        if offset >= length:
            copy_bytes(target + made, source, length)
        else:
            # A copy that overlaps what it makes repeats it, byte by byte.
            for index in range(length):
                store8(target + made + index, load8(source + index))
        made += length
    return 0 if made == expected else -1


@compiled
def same_bytes(one: int, other: int, length: int) -> bool:
    """Whether two runs of bytes are equal."""
    at = 0
    while at + 8 <= length:
        if native64(one + at) != native64(other + at):
            return False
        at += 8
    while at < length:
        if load8(one + at) != load8(other + at):
            return False
        at += 1
    return True


@compiled
def zero_of(at: int, size: int) -> int:
    """Where the name of a pair ends; -1 unless the pair is name, zero, text, zero."""
    if size < 2 or load8(at + size - 1) != 0:
        return -1
    zero = -1
    for index in range(size - 1):
        if load8(at + index) == 0:
            if zero >= 0:
                return -1
            zero = index
    return zero


@compiled
def split_pairs(args: int, at: int, length: int) -> int:
    """Move the xattrs of a value out of it, and the document to where the value began; 0 when they could be read."""
    report = native64(args + 8 * s.A_REPORT)
    name_offsets = native64(args + 8 * s.A_NAME_OFFSETS)
    text_offsets = native64(args + 8 * s.A_TEXT_OFFSETS)
    names = native64(args + 8 * s.A_NAMES)
    texts = native64(args + 8 * s.A_TEXTS)
    if length < _LENGTH_BYTES:
        return -1
    total = load32(at)
    if _LENGTH_BYTES + total > length:
        return -1
    pos = at + _LENGTH_BYTES
    end = pos + total
    first = native64(report + 8 * s.PAIR)
    pair = first
    name_at = native64(report + 8 * s.NAME_AT)
    text_at = native64(report + 8 * s.TEXT_AT)
    while pos < end:
        if pos + _LENGTH_BYTES > end or pair - first >= XATTR_PAIRS_MAX:
            return -1
        size = load32(pos)
        pos += _LENGTH_BYTES
        if pos + size > end:
            return -1
        zero = zero_of(pos, size)
        if zero < 0 or zero > XATTR_NAME_BYTES_MAX or not is_utf8(pos, pos + size):
            return -1
        for other in range(first, pair):
            start = native32(name_offsets + 4 * other)
            known = native32(name_offsets + 4 * other + 4) - start
            if known == zero and same_bytes(names + start, pos, zero):
                return -1
        copy_bytes(names + name_at, pos, zero)
        name_at += zero
        copy_bytes(texts + text_at, pos + zero + 1, size - zero - 2)
        text_at += size - zero - 2
        pair += 1
        store32(name_offsets + 4 * pair, name_at)
        store32(text_offsets + 4 * pair, text_at)
        pos += size
    for index in range(length - _LENGTH_BYTES - total):
        store8(at + index, load8(end + index))
    store64(report + 8 * s.REMOVED, _LENGTH_BYTES + total)
    store64(report + 8 * s.PAIR, pair)
    store64(report + 8 * s.NAME_AT, name_at)
    store64(report + 8 * s.TEXT_AT, text_at)
    return 0
