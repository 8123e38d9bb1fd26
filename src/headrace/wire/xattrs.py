"""The block of extended attributes in front of a value whose datatype has the XATTR bit.

    u32 length of all pairs | u32 length of a pair | name 00 text 00 | u32 ... | the document itself

Each text is JSON. Names are kept in the order of the wire; a name twice, a pair without its two zero bytes or a length
that leads out of the block is refused.
"""

import struct
from collections.abc import Mapping

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.limits import XATTR_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_PAIRS_MAX

_LENGTH = struct.Struct(">I")


def split_xattrs(value: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Part a value into its attributes and the document."""
    if len(value) < _LENGTH.size:
        raise RemoteProtocolError("a value with xattrs has no room for their length", offset=len(value))
    (total,) = _LENGTH.unpack_from(value)
    end = _LENGTH.size + total
    if end > len(value):
        raise RemoteProtocolError(f"xattrs of {total} bytes in a value of {len(value)}", offset=0)
    pairs: dict[bytes, bytes] = {}
    start = _LENGTH.size
    while start < end:
        start = _read_pair(value, start, end, pairs)
    return pairs, value[end:]


def _read_pair(value: bytes, start: int, end: int, pairs: dict[bytes, bytes]) -> int:
    if len(pairs) >= XATTR_PAIRS_MAX:
        raise RemoteProtocolError(f"more than {XATTR_PAIRS_MAX} xattrs", offset=start)
    if start + _LENGTH.size > end:
        raise RemoteProtocolError("an xattr pair has no room for its length", offset=start)
    length = int.from_bytes(value[start : start + _LENGTH.size])
    first = start + _LENGTH.size
    if first + length > end:
        raise RemoteProtocolError(f"an xattr pair of {length} bytes leads out of its block", offset=start)
    match value[first : first + length].split(b"\0"):
        case [name, _, b""] if len(name) > XATTR_NAME_BYTES_MAX:
            raise RemoteProtocolError(f"an xattr's name has {len(name)} bytes", offset=first)
        case [name, text, b""] if name not in pairs:
            pairs[name] = text
        case [name, _, b""]:
            raise RemoteProtocolError(f"the xattr {name!r} stands twice", offset=first)
        case _:
            raise RemoteProtocolError("an xattr pair is not name, zero, text, zero", offset=first)
    return first + length


def join_xattrs(pairs: Mapping[bytes, bytes], document: bytes) -> bytes:
    """Put attributes in front of a document."""
    if len(pairs) > XATTR_PAIRS_MAX:
        raise LocalProtocolError(f"{len(pairs)} xattrs; at most {XATTR_PAIRS_MAX} are sent")
    block = bytearray()
    for name, text in pairs.items():
        if len(name) > XATTR_NAME_BYTES_MAX:
            raise LocalProtocolError(f"an xattr's name has {len(name)} bytes; at most {XATTR_NAME_BYTES_MAX} are sent")
        if b"\0" in name or b"\0" in text:
            raise LocalProtocolError(f"the xattr {name!r} holds a zero byte, which ends it on the wire")
        block += _LENGTH.pack(len(name) + len(text) + 2) + name + b"\0" + text + b"\0"
    if len(block) > XATTR_BYTES_MAX:
        raise LocalProtocolError(f"xattrs of {len(block)} bytes; at most {XATTR_BYTES_MAX} are sent")
    return _LENGTH.pack(len(block)) + bytes(block) + document
