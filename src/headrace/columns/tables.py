"""What the kernel has to know of the catalogue, as small arrays of numbers. No offset is typed here.

The answer to a stream request ends a batch, since it may bring the uuid that the next rows carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from headrace.columns import slots as s
from headrace.columns.schema import DELETION, EXPIRATION, FLUSH, MUTATION, SEQNO_ADVANCED, SYSTEM
from headrace.wire import catalogue
from headrace.wire.fields import Rule
from headrace.wire.header import MAGICS, REQUEST_MAGICS, RESPONSE_MAGICS
from headrace.wire.message import Layout, Request, Spec, key_rule
from headrace.wire.registry import REQUESTS

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.wire.dialects import Dialect

CHANGES: dict[type[Request], int] = {
    catalogue.Mutation: MUTATION,
    catalogue.Deletion: DELETION,
    catalogue.Expiration: EXPIRATION,
    catalogue.DcpFlush: FLUSH,
    catalogue.SystemEvent: SYSTEM,
    catalogue.SeqnoAdvanced: SEQNO_ADVANCED,
}
"""The messages that become rows."""

_FIELDS = {
    s.AT_SEQNO: "by_seqno",
    s.AT_REV: "rev_seqno",
    s.AT_FLAGS: "flags",
    s.AT_EXPIRY: "expiry",
    s.AT_LOCK_TIME: "lock_time",
    s.AT_DELETE_TIME: "delete_time",
    s.AT_META_LENGTH: "meta_length",
    s.AT_SYSTEM_KIND: "event",
}
_RULES = {Rule.MUST_NOT: s.MUST_NOT, Rule.MAY: s.MAY, Rule.MUST: s.MUST}


@dataclass(frozen=True, slots=True)
class Tables:
    """The numbers of one dialect."""

    magics: npt.NDArray[np.uint8]
    layout_of: npt.NDArray[np.uint8]
    layouts: npt.NDArray[np.int64]
    markers: npt.NDArray[np.int64]
    counted: npt.NDArray[np.uint8]
    arguments: npt.NDArray[np.int64]
    """The kernel's block of arguments with all this entered, to be copied and completed."""


@cache
def tables(dialect: Dialect) -> Tables:
    """Make the tables of a dialect from the catalogue."""
    rows: list[list[int]] = []
    layout_of = np.full((256, 256), s.NO_LAYOUT, np.uint8)
    for cls, event in CHANGES.items():
        spec = cls.spec
        for layout in spec.layouts.get(dialect, ()):
            layout_of[spec.opcodes[dialect], spec.extras_size(layout)] = len(rows)
            rows.append(_layout_row(spec, layout, event))
    magics = _magics()
    layouts = np.array(rows, np.int64).reshape(-1, s.LAYOUT_COLUMNS)
    markers = np.array(_marker_rows(dialect), np.int64).reshape(-1, s.MARKER_COLUMNS)
    counted = _counted(dialect)
    arguments = np.zeros(s.ARGUMENTS, np.int64)
    for place, array in (
        (s.A_MAGICS, magics),
        (s.A_LAYOUT_OF, layout_of),
        (s.A_LAYOUTS, layouts),
        (s.A_MARKERS, markers),
        (s.A_COUNTED, counted),
    ):
        arguments[place] = array.ctypes.data
    arguments[s.A_MARKER_ROWS] = len(markers)
    arguments[s.A_MARKER_OPCODE] = catalogue.SnapshotMarker.spec.opcodes.get(dialect, -1)
    arguments[s.A_STOP_OPCODE] = catalogue.StreamRequest.spec.opcodes.get(dialect, -1)
    return Tables(magics, layout_of, layouts, markers, counted, arguments)


def _counted(dialect: Dialect) -> npt.NDArray[np.uint8]:
    """Which opcodes count for flow control."""
    counted = np.zeros(256, np.uint8)
    for cls in REQUESTS:
        opcode = cls.spec.opcodes.get(dialect)
        if opcode is not None:
            counted[opcode] = cls.spec.flow_controlled
    return counted


def _magics() -> npt.NDArray[np.uint8]:
    magics = np.full(256, s.UNKNOWN_MAGIC, np.uint8)
    for magic in MAGICS:
        magics[magic] = s.OTHER_FRAME
        if magic in REQUEST_MAGICS:
            magics[magic] = s.REQUEST_FRAME
        elif magic in RESPONSE_MAGICS:
            magics[magic] = s.RESPONSE_FRAME
    return magics


def _layout_row(spec: Spec, layout: Layout, event: int) -> list[int]:
    row = [-1] * s.LAYOUT_COLUMNS
    row[s.EVENT] = event
    row[s.KEY_RULE] = _RULES[key_rule(spec, layout)]
    row[s.HAS_VALUE] = bool(layout.value)
    for column, name in _FIELDS.items():
        row[column] = spec.extras_offset(layout, name) if name in layout.extras else -1
    return row


def _marker_rows(dialect: Dialect) -> list[list[int]]:
    spec = catalogue.SnapshotMarker.spec
    rows = []
    for layout in spec.layouts.get(dialect, ()):
        offsets = {}
        at = 0
        for name in (*layout.extras, *layout.value):
            offsets[name] = at
            at += spec.integer(name).size
        if "start_seqno" in offsets:
            rows.append(
                [
                    spec.extras_size(layout),
                    layout.constants.get("version", -1),
                    at,
                    offsets["start_seqno"],
                    offsets["end_seqno"],
                    offsets["flags"],
                ]
            )
    return rows
