"""Every bound that the wire layer keeps, by name. A bound is checked before memory is taken for what it bounds."""

from dataclasses import dataclass

from headrace.errors import LocalProtocolError

HEADER_BYTES = 24
"""The fixed header in front of every message of every dialect."""

BODY_BYTES_MAX = 30 * 1024 * 1024
"""The largest body accepted by default: an item of 20 MiB with its key, xattrs and metadata, and room to spare.

Couchbase Server's own packet limit is the same 30 MiB.
"""

KEY_BYTES_MAX = 250
"""The longest key of an item, without its collection prefix."""

INFLATED_BYTES_MAX = BODY_BYTES_MAX
"""The largest value that a snappy block may claim to hold."""

XATTR_BYTES_MAX = BODY_BYTES_MAX
"""The largest block of extended attributes."""

XATTR_PAIRS_MAX = 512
"""The most extended attributes that one item may have; each name is compared with all before it."""

XATTR_NAME_BYTES_MAX = 128
"""The longest name of an extended attribute. Couchbase's clients may use 16 bytes."""

BUFFERED_BYTES_MAX = 2 * (HEADER_BYTES + BODY_BYTES_MAX)
"""How far a reader may be fed ahead of what was taken out of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one reader; the defaults suit a peer that is trusted to send items of any legal size."""

    body_bytes_max: int = BODY_BYTES_MAX
    buffered_bytes_max: int = BUFFERED_BYTES_MAX

    def __post_init__(self) -> None:
        if self.buffered_bytes_max < HEADER_BYTES + self.body_bytes_max:
            raise LocalProtocolError(
                f"a buffer of {self.buffered_bytes_max} bytes never holds a frame with a body of {self.body_bytes_max}"
            )
