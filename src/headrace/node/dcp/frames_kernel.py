"""The compiled loop behind `frames`: records get an opaque where they lie. Imported only to compile.

By address, with the numbers of `frames`. It stops at the first record that must be made anew, and at one
that is none: a damaged disk must not make it write behind the block.
"""

from __future__ import annotations

from headrace.columns.kernel_bytes import load8, load32, load64, native64, store32, store64
from headrace.node.dcp import frames as f
from headrace.store.records import (
    BODY_BYTES_AT,
    DATATYPE_AT,
    DELETED,
    EXPIRED,
    LIVE,
    OPAQUE_AT,
    OPCODE_AT,
    SEQNO_AT,
    SEQNO_END,
)
from headrace.wire.limits import HEADER_BYTES


def patch(args: int) -> int:
    """Give the records from one place on their opaque, until their bytes reach the budget."""
    data = native64(args + 8 * f.A_DATA)
    at = data + native64(args + 8 * f.A_AT)
    end = data + native64(args + 8 * f.A_END)
    stop = at + native64(args + 8 * f.A_BUDGET)
    opaque = native64(args + 8 * f.A_OPAQUE)
    refused = 0xFF & ~native64(args + 8 * f.A_DATATYPES)
    live = native64(args + 8 * f.A_LIVE)
    deleted = native64(args + 8 * f.A_DELETED)
    expired = native64(args + 8 * f.A_EXPIRED)
    seqno = 0
    while at + SEQNO_END <= end and at < stop:
        opcode = load8(at + OPCODE_AT)
        if opcode == LIVE:
            copies = live
        elif opcode == DELETED:
            copies = deleted
        elif opcode == EXPIRED:
            copies = expired
        else:
            break
        after = at + HEADER_BYTES + load32(at + BODY_BYTES_AT)
        if copies == 0 or load8(at + DATATYPE_AT) & refused != 0 or after < at + SEQNO_END or after > end:
            break
        store32(at + OPAQUE_AT, opaque)
        seqno = load64(at + SEQNO_AT)
        at = after
    store64(args + 8 * f.A_AT, at - data)
    store64(args + 8 * f.A_SEQNO, seqno)
    return 0
