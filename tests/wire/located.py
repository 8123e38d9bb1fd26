"""Where each attribute of a decoded message stood, worked out from its layout without the codec or the dissector.

So a test can hold what `decode` gave against a golden table of offsets, and not only what `dissect` shows.
"""

from typing import Any

from headrace.wire import Dialect, Message, Response
from headrace.wire.fields import DERIVED, Integer, Rows
from headrace.wire.message import Layout
from headrace.wire.registry import lookup

_HEADER_BYTES = 24
_COUNT_BYTES = 2
_SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8}

Places = dict[tuple[int, int], Any]


def layout_of(message: Message, dialect: Dialect) -> Layout:
    """The layout that a decoded message came in."""
    if isinstance(message, Response):
        found = lookup(message.spec.kind, message.opcode, dialect)
    else:
        found = next(
            ((type(message), spoken) for spoken in (dialect, *Dialect) if spoken in message.spec.dialects), None
        )
    assert found is not None
    return next(one for one in message.spec.layouts[found[1]] if one.name == message.layout)


def places(message: Message, dialect: Dialect) -> Places:
    """Offset and length of every attribute that has bytes, with its value."""
    layout = layout_of(message, dialect)
    specific: Any = getattr(message, "status" if isinstance(message, Response) else "vbucket")
    found: Places = {(5, 1): message.datatype, (6, 2): specific, (12, 4): message.opaque, (16, 8): message.cas}
    at = _HEADER_BYTES + len(message.framing or b"")
    if message.framing:
        found[_HEADER_BYTES, at - _HEADER_BYTES] = message.framing
    for name in layout.extras:
        at = _place(message, name, at, found)
    for name in (*layout.engine, layout.key, *layout.value, layout.meta):
        if name:
            at = _place(message, name, at, found)
    return found


def _place(message: Message, name: str, at: int, found: Places) -> int:
    """Enter one attribute; give where the next one begins."""
    kind = message.spec.field(name).kind
    if name in DERIVED:
        return at + message.spec.integer(name).size
    content = getattr(message, name)
    if content is None:
        return at
    if isinstance(kind, Rows):
        return _place_rows(kind, content, at, found)
    length = kind.size if isinstance(kind, Integer) else len(content)
    if length:
        found[at, length] = content
    return at + length


def _place_rows(kind: Rows, rows: Any, at: int, found: Places) -> int:
    if kind.counted:
        found[at, _COUNT_BYTES] = len(rows)
        at += _COUNT_BYTES
    for row in rows:
        for code, number in zip(kind.layout, row if isinstance(row, tuple) else (row,), strict=True):
            found[at, _SIZES[code]] = number
            at += _SIZES[code]
    return at
