"""The four dialects, and who speaks which.

All four share the 24-byte header and the plain commands (get, set, hello, ...). They differ in what 0x40-0x65
mean: the draft and UPR give the same opcodes to different messages, UPR and DCP different lengths to the same.
"""

from enum import StrEnum


class Dialect(StrEnum):
    """How the bytes of one connection are to be read."""

    TAP = "tap"
    UPR_DRAFT = "upr-draft"
    UPR = "upr"
    DCP = "dcp"


ALL = frozenset(Dialect)
TAP = frozenset({Dialect.TAP})
DRAFT = frozenset({Dialect.UPR_DRAFT})
UPR = frozenset({Dialect.UPR})
DCP = frozenset({Dialect.DCP})
UPR_DCP = UPR | DCP
STREAMS = DRAFT | UPR | DCP
