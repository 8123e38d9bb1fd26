"""JSON-lines captures: a line that names the scenario, then one line per message or note.

`{"dir": "c2s"|"s2c", "hex": ..., "conn": ..., "t": ..., "text": ...}`; `dir` "note" carries only a text.
Lines of one `conn` are one conversation; `t` and the text of a message are for people and are not read.
"""

import json
from collections.abc import Iterable

from headrace.explain.events import Comment, Events, Fault, InputError, Piece
from headrace.explain.hextext import parse_hex
from headrace.explain.limits import FAULTS_MAX

DEFAULT_CONNECTION = "main"


def read_capture(lines: Iterable[bytes], name: str) -> Events:
    """Yield the messages and the notes of a capture; a damaged line is a fault, and reading goes on."""
    faults = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        origin = f"line {number} of {name}"
        try:
            event = _read_line(line, origin)
        except InputError as error:
            faults += 1
            yield Fault(origin=origin, text=str(error))
            if faults == FAULTS_MAX:
                yield Fault(origin=origin, text=f"{faults} lines are damaged; the rest is not read")
                return
        else:
            if event is not None:
                yield event


def _read_line(line: bytes, origin: str) -> Piece | Comment | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "no text that JSON allows"
        raise InputError(f"this is no JSON object: {reason}") from None
    if not isinstance(entry, dict):
        raise InputError("each line must be a JSON object")
    direction = entry.get("dir")
    if direction is None and "hex" not in entry:
        words = [str(entry[name]) for name in ("scenario", "server", "note") if entry.get(name)]
        return Comment(text="; ".join(words)) if words else None
    if direction == "note":
        return Comment(text=str(entry.get("text", "")))
    if direction not in ("c2s", "s2c", None):
        raise InputError(f'"dir" is {direction!r}; it must be "c2s", "s2c" or "note"')
    digits = entry.get("hex")
    if not isinstance(digits, str):
        raise InputError('"hex" must hold the bytes of the message')
    connection = str(entry.get("conn", DEFAULT_CONNECTION))
    return Piece(conversation=connection, direction=direction, data=parse_hex(digits), origin=origin, whole=True)
