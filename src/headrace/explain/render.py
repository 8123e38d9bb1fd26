"""An explained message as the documents print it, or as one line of JSON.

The text is the documents' own: the byte picture (if asked for), then a table of names, offsets and values.
Bytes that a peer chose never reach the terminal raw: what is not printable is escaped.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.explain.events import counted, printable
from headrace.explain.messages import Explained
from headrace.wire import FieldView

SHOWN_BYTES = 64
"""How much of a long value is shown when not all is asked for."""

SHOWN_PICTURE_BYTES = 1024
"""How much of a long message is drawn likewise."""

_LABEL_WIDTH = 13
_OFFSET_WIDTH = 7
_ROW_BYTES = 4
_ROW_MARGIN = " " * 8
# The documents write small counts in decimal beside the hex, and leave seqnos, opaques and CAS alone.
_COUNTED = frozenset({"key_length", "vbucket", "total_body"})
_TWO_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStyle:
    """How much of a message the text shows."""

    picture: bool = False
    full: bool = False
    located: bool = True


def render_text(explained: Explained, style: TextStyle) -> str:
    """Return the lines for one message, without a newline at the end."""
    return "\n".join(_lines(explained, style))


def render_json(explained: Explained) -> str:
    """Return one line of ASCII JSON for one message."""
    dissection = explained.dissection
    entry: dict[str, Any] = {
        "dialect": explained.dialect,
        "message": explained.message,
        "kind": dissection.kind if dissection else None,
        "opcode": dissection.opcode if dissection else None,
        "fields": [_json_field(view, explained.data) for view in dissection.fields] if dissection else [],
        "problems": [{"offset": problem.offset, "text": problem.text} for problem in explained.problems],
        "connection": explained.connection,
        "direction": explained.direction,
        "origin": explained.origin,
        "length": len(explained.data),
    }
    if dissection is None:
        entry["hex"] = explained.data.hex()
    return json.dumps(entry)


def comment_line(text: str) -> str:
    """Return words of the input as a line that cannot be taken for a message."""
    return "# " + printable(text)


def _json_field(view: FieldView, data: bytes) -> dict[str, Any]:
    raw = data[view.offset : view.offset + view.length]
    entry: dict[str, Any] = {"name": view.name, "offset": view.offset, "length": view.length}
    entry["value"] = view.value
    if isinstance(view.value, bytes):
        entry["value"] = view.value.hex()
        entry["encoding"] = "hex"
    entry["hex"] = raw.hex()
    entry["meaning"] = view.meaning
    return entry


def _lines(explained: Explained, style: TextStyle) -> Iterator[str]:
    if style.located:
        yield _location(explained)
    dissection = explained.dissection
    if dissection is None:
        yield "NO MESSAGE"
        if style.picture and explained.data:
            yield from _picture(explained.data, (), full=style.full)
        elif explained.data:
            yield f"Bytes: {_bytes_text(explained.data, full=style.full)}"
    else:
        yield f"{dissection.title}: {dissection.sentence}" if dissection.sentence else dissection.title
        if style.picture:
            yield from _picture(dissection.data, dissection.fields, full=style.full)
        yield from _table(dissection.fields, full=style.full)
    for problem in explained.problems:
        yield f"! byte {problem.offset}: {printable(problem.text)}"


def _location(explained: Explained) -> str:
    arrows = {"c2s": "client to server", "s2c": "server to client", None: ""}
    connection = "" if explained.origin.endswith(f" of {explained.connection}") else explained.connection
    parts = [explained.origin, connection, arrows[explained.direction], counted(len(explained.data), "byte")]
    return comment_line(", ".join(part for part in parts if part))


def _table(fields: tuple[FieldView, ...], *, full: bool) -> Iterator[str]:
    names = ["  " * view.depth + view.label for view in fields]
    longest = max(map(len, names), default=0)
    # A label that just fills the column touches the offset, as "start seqno(32-39)" does in the documents.
    label_width = _LABEL_WIDTH if longest <= _LABEL_WIDTH else longest + 1
    offsets = [_offset(view) for view in fields]
    offset_width = max(_OFFSET_WIDTH, *map(len, offsets), 0)
    yield f"{'Field':<{label_width}}(offset) (value)"
    for view, name, offset in zip(fields, names, offsets, strict=True):
        value = _value(view, full=full)
        yield f"{name:<{label_width}}{offset:<{offset_width}}: {value}".rstrip()


def _offset(view: FieldView) -> str:
    last = view.offset + view.length - 1
    if view.length == 0:
        return "(-)"
    if view.length == 1:
        return f"({view.offset})"
    if view.length == 2 and last < _TWO_DIGITS:  # noqa: PLR2004 - the documents write (2,3) and (52-53)
        return f"({view.offset},{last})"
    return f"({view.offset}-{last})"


def _value(view: FieldView, *, full: bool) -> str:
    if isinstance(view.value, int):
        text = f"0x{view.value:0{view.width}x}"
        meaning = view.meaning or (str(view.value) if view.name in _COUNTED else "")
    elif isinstance(view.value, str):
        text, meaning = _cut_text(view.value, view.length, full=full), view.meaning
    else:
        text, meaning = _bytes_text(view.value, full=full), view.meaning
    return f"{text} ({printable(meaning)})" if meaning else text


def _cut_text(text: str, length: int, *, full: bool) -> str:
    if full or len(text) <= SHOWN_BYTES:
        return printable(text)
    return f"{printable(text[:SHOWN_BYTES])}… ({length} bytes)"


def _bytes_text(data: bytes, *, full: bool) -> str:
    if not data:
        return ""
    if full or len(data) <= SHOWN_BYTES:
        return "0x" + data.hex()
    return f"0x{data[:SHOWN_BYTES].hex()}… ({len(data)} bytes)"


def _picture(data: bytes, fields: tuple[FieldView, ...], *, full: bool) -> Iterator[str]:
    """Draw the bytes four to a row, as every message of the documents is drawn."""
    rule = _ROW_MARGIN + "+---------------" * _ROW_BYTES + "+"
    yield "      Byte/     0       |       1       |       2       |       3       |"
    yield "         /              |               |               |               |"
    yield _ROW_MARGIN + "|0 1 2 3 4 5 6 7" * _ROW_BYTES + "|"
    yield rule
    readable = _readable_bytes(data, fields)
    shown = len(data) if full else min(len(data), SHOWN_PICTURE_BYTES)
    for start in range(0, shown, _ROW_BYTES):
        row = range(start, min(start + _ROW_BYTES, shown))
        cells = "".join(f"|{_cell(data[place], readable=place in readable):<15}" for place in row)
        yield f"{start:>8}{cells}|"
        yield rule if len(row) == _ROW_BYTES else _ROW_MARGIN + "+---------------" * len(row) + "+"
    if shown < len(data):
        yield f"{_ROW_MARGIN}… ({len(data)} bytes)"


def _readable_bytes(data: bytes, fields: tuple[FieldView, ...]) -> frozenset[int]:
    places = set[int]()
    for view in fields:
        if not isinstance(view.value, int):
            places.update(range(view.offset, min(view.offset + view.length, len(data))))
    return frozenset(places)


def _cell(byte: int, *, readable: bool) -> str:
    char = chr(byte)
    shown = f" ('{char}')" if readable and char.isascii() and char.isprintable() else ""
    return f" 0x{byte:02x}{shown}"
