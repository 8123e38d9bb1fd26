"""What a value may be, and how it is told to clients that did not agree on its form."""

from __future__ import annotations

import msgspec

from headrace.errors import RemoteProtocolError
from headrace.node.limits import VALUE_BYTES_MAX
from headrace.node.refused import Refused
from headrace.wire.codes import Datatype, Status
from headrace.wire.snappy import inflate, inflated_length
from headrace.wire.xattrs import split_xattrs

JSON, SNAPPY, XATTR = int(Datatype.JSON), int(Datatype.SNAPPY), int(Datatype.XATTR)

_XATTR_LENGTH_BYTES = 4

MAY_BE_JSON = bytes(byte in b'{["-0123456789tfn \t\r\n' for byte in range(256))
"""By its first byte: most values that are no JSON are told apart by this alone."""


# A text that is only looked at: to build a document of 20 MB of brackets would stop all clients for seconds.
_look_at = msgspec.json.Decoder(msgspec.Raw).decode


def is_json(value: bytes) -> bool:
    """Whether a value is a JSON text: the server marks it, whatever the client said."""
    if not value or not MAY_BE_JSON[value[0]]:
        return False
    try:
        _look_at(value)
        value.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def accepted(value: bytes, datatype: int, allowed: int) -> int:
    """The datatype that a value is kept with, or a refusal. A compressed one is kept compressed."""
    if datatype & ~allowed:
        raise Refused(Status.INVALID, "a datatype that hello did not agree on")
    plain = value
    if datatype & SNAPPY:
        plain = _inflated(value)
    if len(plain) > VALUE_BYTES_MAX:
        raise too_big()
    if datatype & XATTR:
        try:
            _, plain = split_xattrs(plain)
        except RemoteProtocolError as error:
            raise Refused(Status.XATTR_INVALID, error.text) from error
    return datatype & (SNAPPY | XATTR) | (JSON if is_json(plain) else 0)


def body_of(value: bytes, datatype: int) -> tuple[bytes, bytes]:
    """A kept value in two: its section of xattrs, which may be empty, and its body, inflated."""
    plain = plain_value(value, datatype)
    if not datatype & XATTR:
        return b"", plain
    end = _XATTR_LENGTH_BYTES + int.from_bytes(plain[:_XATTR_LENGTH_BYTES], "big")
    return plain[:end], plain[end:]


def too_big() -> Refused:
    """The value is larger than an item may be."""
    return Refused(Status.TOO_BIG, f"a value has at most {VALUE_BYTES_MAX} bytes")


def _inflated(value: bytes) -> bytes:
    try:
        if inflated_length(value) > VALUE_BYTES_MAX:
            raise too_big()
        return inflate(value, inflated_bytes_max=VALUE_BYTES_MAX)
    except RemoteProtocolError as error:
        raise Refused(Status.INVALID, error.text) from error


def plain_value(value: bytes, datatype: int) -> bytes:
    """A kept value, inflated."""
    return inflate(value) if datatype & SNAPPY else value


def told(value: bytes, datatype: int, allowed: int) -> tuple[bytes, int]:
    """A kept value in a form that the client agreed on: never with xattrs, and inflated where it must be."""
    if datatype & XATTR:
        return body_of(value, datatype)[1], datatype & JSON & allowed
    if datatype & SNAPPY and not allowed & SNAPPY:
        value, datatype = inflate(value), datatype & ~SNAPPY
    return value, datatype & allowed
