"""Snappy values: the block format without framing, as the SNAPPY datatype bit means it.

A block begins with its inflated length as LEB128. That length is read and bounded here before anything is inflated, so
a few bytes cannot ask for gigabytes. The work itself is cramjam's.
"""

import cramjam

from headrace.errors import RemoteProtocolError
from headrace.wire.limits import INFLATED_BYTES_MAX

_LENGTH_BYTES_MAX = 5


def inflated_length(block: bytes) -> int:
    """The length that a block claims to have when inflated."""
    number = 0
    for index, byte in enumerate(block[:_LENGTH_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return number
    raise RemoteProtocolError("a snappy block does not begin with its length")


def inflate(block: bytes, *, inflated_bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
    """Inflate a value, or refuse one that is damaged or too large."""
    length = inflated_length(block)
    if length > inflated_bytes_max:
        raise RemoteProtocolError(f"a snappy block claims {length} bytes; at most {inflated_bytes_max} are taken")
    try:
        inflated = bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise RemoteProtocolError(f"a snappy block is damaged: {error}") from error
    if len(inflated) != length:
        raise RemoteProtocolError(f"a snappy block claims {length} bytes and holds {len(inflated)}")
    return inflated


def deflate(value: bytes) -> bytes:
    """Compress a value."""
    return bytes(cramjam.snappy.compress_raw(value))
