"""The golden bytes under tests/vectors and tests/captures, as typed values.

A vector's bytes are told twice: `wire` as hex, and `fields` with offset, length and value. A document's vector has also
`drawn`, the bytes of the picture, which is not `wire` where the document contradicts itself.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from headrace.wire import Dialect

TESTS = Path(__file__).resolve().parents[1]
ERRATA = TESTS.parent / "docs" / "protocol" / "errata.md"

DOCUMENTS = {
    "tap": 16,
    "upr-transport-draft": 18,
    "upr-transport": 18,
    "upr-stream-request": 4,
    "dcp-mutation": 1,
}
"""How many messages each document draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of a legend. A text that begins with 0x and has the field's length in hex stands for those bytes."""

    label: str
    offset: int
    length: int
    value: int | str
    encoding: str = ""
    inflated: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands."""
        return self.offset, self.length

    @property
    def spelled(self) -> bytes:
        """The value as the wire spells it."""
        return spell(self.value, self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Where picture and legend, or a document and the world, say different things, and what the codec follows."""

    erratum: str
    field: str
    offset: int
    picture: int | str | None
    legend: int | str | None
    truth: int | str | None
    follows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """One golden message. `group` is the vector's dialect, or `kv` for what all dialects share."""

    id: str
    group: str
    message: str
    kind: str
    document: str
    wire: bytes
    drawn: bytes
    fields: tuple[Field, ...]
    disagreements: tuple[Disagreement, ...]
    error_offset: int | None
    collections: bool

    @property
    def dialect(self) -> Dialect:
        """The dialect to read it in."""
        return Dialect.DCP if self.group == "kv" else Dialect(self.group)

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """Every dialect in which it means the same."""
        return tuple(Dialect) if self.group == "kv" else (self.dialect,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One frame that went between a real server and a client."""

    server: str
    scenario: str
    line: int
    direction: str
    connection: str
    wire: bytes

    @property
    def id(self) -> str:
        """File and line."""
        return f"{self.server}/{self.scenario}:{self.line}"


def spell(value: int | str | bytes, length: int) -> bytes:
    """Give a value of a table as the bytes that it stands for."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, int):
        return value.to_bytes(length)
    if value.startswith("0x") and len(value) == 2 + 2 * length:
        return bytes.fromhex(value[2:])
    return value.encode()


def _field(row: dict[str, Any]) -> Field:
    return Field(**{name: row[name] for name in row if name in Field.__dataclass_fields__})


def _disagreement(row: dict[str, Any]) -> Disagreement:
    return Disagreement(**{name: row[name] for name in Disagreement.__dataclass_fields__})


def _vector(document: str, entry: dict[str, Any]) -> Vector:
    wire = bytes.fromhex(entry["wire"])
    return Vector(
        id=entry["id"],
        group=entry["dialect"],
        message=entry["message"],
        kind=entry["kind"],
        document=document,
        wire=wire,
        drawn=bytes.fromhex(entry["drawn"]) if "drawn" in entry else wire,
        fields=tuple(map(_field, entry["legend"] if "legend" in entry else entry["fields"])),
        disagreements=tuple(map(_disagreement, entry.get("disagreements", ()))),
        error_offset=entry["error"]["offset"] if "error" in entry else None,
        collections=bool(entry.get("collections")),
    )


def _read(folder: str) -> tuple[Vector, ...]:
    return tuple(
        _vector(path.stem, json.loads(line))
        for path in sorted((TESTS / "vectors" / folder).glob("*.jsonl"))
        for line in path.read_text().splitlines()
    )


@cache
def documents() -> tuple[Vector, ...]:
    """Every message that a document draws."""
    return _read("documents")


@cache
def handmade() -> tuple[Vector, ...]:
    """Messages put together by hand from the server's and the clients' sources."""
    return _read("handmade")


@cache
def captures() -> tuple[Captured, ...]:
    """Every frame of every capture, in the order in which it was seen."""
    found = []
    for path in sorted((TESTS / "captures").glob("*/*.jsonl")):
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            entry = json.loads(text)
            if "hex" in entry:
                found.append(
                    Captured(
                        server=path.parent.name,
                        scenario=path.stem,
                        line=line,
                        direction=entry["dir"],
                        connection=entry.get("conn", ""),
                        wire=bytes.fromhex(entry["hex"]),
                    )
                )
    return tuple(found)
