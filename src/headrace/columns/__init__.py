"""Received bytes -> Arrow record batches of change rows.

schema   the row                                   kernel   the loops that numba compiles; kernel_bytes, kernel_values
changes  what decoding takes and gives             machine  the compiled kernel, kept on disk
tables   the catalogue as numbers for the kernel   decode   the kernel's shell
slots    how shell and kernel number things        plain    the same in plain Python: the oracle

What decodes is imported when it is first asked for: who only names the columns, as a driver of Spark, need not wait.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.columns.schema import BINARY_KEYS, EVENTS, TEXT_KEYS, schema, signed, unsigned

if TYPE_CHECKING:
    from headrace.columns.changes import Beside, Changes, Controls, Positions, Settings
    from headrace.columns.decode import decode_changes

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

_HOMES = {
    "Beside": "changes",
    "Changes": "changes",
    "Controls": "changes",
    "Positions": "changes",
    "Settings": "changes",
    "decode_changes": "decode",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
