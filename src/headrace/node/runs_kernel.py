"""The compiled loop behind `runs`: quiet sets -> records. Imported only to compile, see `headrace.columns.machine`.

All is done by address, with the numbers of `runs`. It makes no record that the plain loop in `hot` would not make: it
stops at the first request that is anything else than a plain quiet set.
"""

from __future__ import annotations

from headrace.columns.kernel_bytes import copy_bytes, load8, load16, load32, load64, native64, store8, store32, store64
from headrace.columns.kernel_values import compiled
from headrace.node import runs as r
from headrace.node.limits import RELATIVE_EXPIRY_S_MAX
from headrace.store.records import (
    BODY_BYTES_AT,
    CAS_AT,
    DATATYPE_AT,
    EXPIRY_AT,
    EXPIRY_END,
    EXTRAS_BYTES_AT,
    FLAGS_AT,
    LIVE,
    MUTATION_EXTRAS_BYTES,
    OPAQUE_AT,
    OPCODE_AT,
    REVISION_AT,
    SEQNO_AT,
)
from headrace.wire.limits import HEADER_BYTES, KEY_BYTES_MAX


@compiled
def swapped64(number: int) -> int:
    """A number with its bytes the other way round: stores are in the machine's order, records in the network's."""
    number = ((number & 0x00FF00FF00FF00FF) << 8) | ((number >> 8) & 0x00FF00FF00FF00FF)
    number = ((number & 0x0000FFFF0000FFFF) << 16) | ((number >> 16) & 0x0000FFFF0000FFFF)
    return ((number & 0xFFFFFFFF) << 32) | ((number >> 32) & 0xFFFFFFFF)


@compiled
def swapped32(number: int) -> int:
    """The same for 32 bits."""
    number = ((number & 0x00FF00FF) << 8) | ((number >> 8) & 0x00FF00FF)
    return ((number & 0xFFFF) << 16) | ((number >> 16) & 0xFFFF)


def take(args: int) -> int:  # noqa: PLR0915 - one compiled loop: a call per request costs what the kernel is for
    """Make records of the sets from one place on, until something else comes or the room is used up."""
    data = native64(args + 8 * r.A_DATA)
    at = data + native64(args + 8 * r.A_AT)
    end = data + native64(args + 8 * r.A_END)
    room = native64(args + 8 * r.A_RECORDS)
    room_end = room + native64(args + 8 * r.A_RECORD_BYTES)
    rows_max = native64(args + 8 * r.A_ROWS_MAX)
    keys = native64(args + 8 * r.A_KEYS)
    values = native64(args + 8 * r.A_VALUES)
    ends = native64(args + 8 * r.A_ENDS)
    vbuckets = native64(args + 8 * r.A_VBUCKETS)
    serving = native64(args + 8 * r.A_SERVING)
    seqnos = native64(args + 8 * r.A_SEQNOS)
    may_be_json = native64(args + 8 * r.A_MAY_BE_JSON)
    json_rows = native64(args + 8 * r.A_JSON_ROWS)
    cas = native64(args + 8 * r.A_CAS)
    now = native64(args + 8 * r.A_NOW)
    vbuckets_max = native64(args + 8 * r.A_VBUCKETS_MAX)
    json_too = native64(args + 8 * r.A_JSON_TOO)
    rows = flagged = 0
    out = room
    while rows < rows_max and at + HEADER_BYTES + r.STORING_BYTES <= end:
        key_bytes = load16(at + 2)
        vb_id = load16(at + 6)
        body_bytes = load32(at + 8)
        shape = load16(at + 4)
        if load16(at) != r.SETQ or load64(at + 16) != 0 or vb_id >= vbuckets_max:
            break
        if shape != r.STORING and shape != json_too:  # noqa: PLR1714 - compiled
            break
        if key_bytes == 0 or key_bytes > KEY_BYTES_MAX or body_bytes > r.STORING_BYTES_MAX:
            break
        key_at = at + HEADER_BYTES + r.STORING_BYTES
        stop = at + HEADER_BYTES + body_bytes
        if body_bytes < r.STORING_BYTES + key_bytes or stop > end or load8(serving + vb_id) == 0:
            break
        rest_bytes = stop - key_at
        if out + r.RECORD_BYTES + rest_bytes > room_end:
            break
        expiry = load32(at + HEADER_BYTES + 4)
        if 0 < expiry <= RELATIVE_EXPIRY_S_MAX:
            expiry += now
        cas += 1
        seqno = native64(seqnos + 8 * vb_id) + 1
        store64(seqnos + 8 * vb_id, seqno)
        store64(out, native64(at))  # magic, key length and vbucket are those of the request
        store8(out + DATATYPE_AT, 0)
        store8(out + OPCODE_AT, LIVE)
        store8(out + EXTRAS_BYTES_AT, MUTATION_EXTRAS_BYTES)
        store32(out + BODY_BYTES_AT, swapped32(body_bytes - r.STORING_BYTES + MUTATION_EXTRAS_BYTES))
        store32(out + OPAQUE_AT, 0)
        store64(out + CAS_AT, swapped64(cas))
        store64(out + SEQNO_AT, swapped64(seqno))
        store64(out + REVISION_AT, swapped64(1))
        store32(out + FLAGS_AT, swapped32(load32(at + HEADER_BYTES)))
        store32(out + EXPIRY_AT, swapped32(expiry))
        store32(out + EXPIRY_END, 0)  # lock time, length of metadata and nru: seven bytes
        store32(out + r.RECORD_BYTES - 4, 0)
        copy_bytes(out + r.RECORD_BYTES, key_at, rest_bytes)
        value_at = key_at + key_bytes
        if value_at < stop and load8(may_be_json + load8(value_at)) != 0:
            store64(json_rows + 8 * flagged, rows)
            flagged += 1
        out += r.RECORD_BYTES + rest_bytes
        store64(keys + 8 * rows, key_at - data)
        store64(values + 8 * rows, value_at - data)
        store64(ends + 8 * rows, out - room)
        store64(vbuckets + 8 * rows, vb_id)
        rows += 1
        at = stop
    store64(args + 8 * r.A_AT, at - data)
    store64(args + 8 * r.A_CAS, cas)
    store64(args + 8 * r.A_ROWS, rows)
    store64(args + 8 * r.A_FLAGGED, flagged)
    return 0
