"""Received bytes -> Arrow record batches of change rows.

schema   the row                                   kernel   the loops that numba compiles; kernel_bytes, kernel_values
changes  what decoding takes and gives             machine  the compiled kernel, kept on disk
tables   the catalogue as numbers for the kernel   decode   the kernel's shell
slots    how shell and kernel number things        plain    the same in plain Python: the oracle
"""

from headrace.columns.changes import Beside, Changes, Controls, Positions, Settings
from headrace.columns.decode import decode_changes
from headrace.columns.schema import BINARY_KEYS, EVENTS, TEXT_KEYS, schema, signed, unsigned

__all__ = [
    "BINARY_KEYS",
    "EVENTS",
    "TEXT_KEYS",
    "Beside",
    "Changes",
    "Controls",
    "Positions",
    "Settings",
    "decode_changes",
    "schema",
    "signed",
    "unsigned",
]
