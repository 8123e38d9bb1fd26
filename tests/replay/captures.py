"""The captured traffic as a script: what a client sent, what a server sent, and what was noted between.

A note either says that the server closed a connection, which is an event like a frame, or it is a remark. Some remarks
stand where something happened that was not recorded (a write on another connection, a kill): what to do there is told
in tests/replay/stories.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

from headrace.errors import RemoteProtocolError
from headrace.wire import Message, Unknown, decode
from headrace.wire.catalogue import Open
from tests.wire.vectors import TESTS

if TYPE_CHECKING:
    from pathlib import Path

RELEASES = ("3.0.3", "4.1.2")
CAPTURES = TESTS / "captures"
_CLOSED = "server closed the connection"


class Kind(Enum):
    """What a line of a capture is."""

    SENT = "c2s"
    RECEIVED = "s2c"
    CLOSED = "closed by the server"
    REMARK = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a capture. `time_s` counts from the start of the capture."""

    number: int
    kind: Kind
    connection: str
    time_s: float
    wire: bytes = b""
    remark: str = ""

    @property
    def message(self) -> Message | None:
        """The frame as a message; None for a remark, and for bytes that are no frame at all."""
        return read(self.wire)

    @property
    def named(self) -> bytes:
        """The key of the frame, or the name that an OPEN gives: what a stage direction may wait for."""
        message = self.message
        return message.name if isinstance(message, Open) else getattr(message, "key", b"")


def read(wire: bytes) -> Message | None:
    """A message of the DCP dialect; None where bytes are no frame."""
    try:
        message = decode(wire) if wire else None
    except RemoteProtocolError:
        return None
    return None if isinstance(message, Unknown) else message


@cache
def script(release: str, scenario: str) -> tuple[Line, ...]:
    """The lines of one capture, without the one that describes it."""
    return tuple(_line(number, text) for number, text in _texts(release, scenario) if number > 1)


def description(release: str, scenario: str) -> str:
    """What a capture says it shows."""
    _, text = _texts(release, scenario)[0]
    return str(json.loads(text)["scenario"])


def scenarios() -> list[str]:
    """Every scenario that was captured, of any protocol."""
    return sorted({path.stem for path in CAPTURES.glob("*/*.jsonl")})


def _texts(release: str, scenario: str) -> list[tuple[int, str]]:
    path: Path = CAPTURES / release / f"{scenario}.jsonl"
    return list(enumerate(path.read_text(encoding="utf-8").splitlines(), start=1))


def _line(number: int, text: str) -> Line:
    entry = json.loads(text)
    remark = entry.get("text", "")
    kind = Kind.CLOSED if remark == _CLOSED else Kind(entry["dir"])
    return Line(
        number=number,
        kind=kind,
        connection=entry.get("conn", ""),
        time_s=entry["t"],
        wire=bytes.fromhex(entry.get("hex", "")),
        remark=remark,
    )
