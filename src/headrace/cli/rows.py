"""Rows of a file as documents: JSON lines and CSV, in bounded memory whatever the file's size; and what a key is.

Reading goes on after a row that cannot be a document: it comes out as a `WrongRow` with its place and the reason. Only
a file that cannot be read at all, or not further, raises. `headrace.cli.parquet` reads Parquet by the same rules.

    JSON lines   the line is the document, byte for byte; its place is its line
    CSV          an object of texts, named by the first line; its place is the line on which the row ends
"""

import csv
import datetime as dt
import decimal
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, BinaryIO, NamedTuple

from headrace.cli.connect import CommandError
from headrace.client.items import VALUE_BYTES_MAX
from headrace.client.loading import LoadRow
from headrace.wire.limits import KEY_BYTES_MAX

LINE_BYTES_MAX = 2 * VALUE_BYTES_MAX
"""The longest line that is read: JSON has at most 20 MiB, and CSV may double its quotes."""

_BOM = b"\xef\xbb\xbf"


class WrongRow(NamedTuple):
    """A row that cannot be a document."""

    place: str
    reason: str


@dataclass(slots=True)
class Seen:
    """How far the reading is, in bytes of the file or rows of Parquet; `total` is None where nobody knows."""

    done: int = 0
    total: int | None = None


class WrongRowError(Exception):
    """The reason why a row cannot be a document."""


class KeyTemplate:
    """Makes a row's key: of one column, or of several as `{type}::{id}` says; `{{` is a brace."""

    def __init__(self, text: str) -> None:
        self._parts = self._parse(text) if "{" in text or "}" in text else [("", text)]
        self.columns = tuple(column for _, column in self._parts if column is not None)
        if not self.columns:
            raise CommandError(f"--key {text!r} names no column: every row would have the same key")

    @staticmethod
    def _parse(text: str) -> list[tuple[str, str | None]]:
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise CommandError(f"--key {text!r} is no template such as {{type}}::{{id}}: {error}") from None
        for _, column, form, conversion in parts:
            if column == "" or form or conversion:
                raise CommandError(f"--key {text!r}: between braces stands the name of a column, and nothing else")
        return [(literal, column) for literal, column, _, _ in parts]

    def of(self, row: Mapping[str, Any]) -> bytes:
        """Give the key of a row."""
        key = "".join([literal + ("" if column is None else _key_text(row, column)) for literal, column in self._parts])
        try:
            octets = key.encode()
        except UnicodeEncodeError:
            raise WrongRowError("its key is not UTF-8") from None
        if not 0 < len(octets) <= KEY_BYTES_MAX:
            raise WrongRowError(f"its key has {len(octets)} bytes; a key has 1 to {KEY_BYTES_MAX}")
        return octets


def _key_text(row: Mapping[str, Any], column: str) -> str:
    found = row.get(column)
    if isinstance(found, str):
        text = found
    elif found is None:
        raise WrongRowError(f"no {column!r} to make its key of")
    elif isinstance(found, bool):
        text = "true" if found else "false"
    elif isinstance(found, int | float | decimal.Decimal):
        text = str(found)
    elif isinstance(found, dt.date | dt.time):
        text = found.isoformat()
    elif isinstance(found, dt.timedelta):
        text = str(found.total_seconds())
    elif isinstance(found, uuid.UUID):
        text = str(found)
    elif isinstance(found, WrongRowError):  # the value could not be read
        raise found
    else:
        raise WrongRowError(f"{column!r} is {kind_of(found)}, of which no key can be made")
    if not text:
        raise WrongRowError(f"{column!r} is empty, and its key is made of it")
    return text


def kind_of(found: object) -> str:
    """Name what a value is."""
    known: dict[type, str] = {dict: "an object", list: "a list", bytes: "bytes"}
    return known.get(type(found), f"a {type(found).__name__}")


# ---------------------------------------------------------------------------------------------------------------------
# JSON lines
# ---------------------------------------------------------------------------------------------------------------------


def json_rows(file: BinaryIO, key: KeyTemplate, seen: Seen) -> Iterator[LoadRow | WrongRow]:
    """Read JSON lines; blank lines are no rows."""
    load = json.JSONDecoder(parse_constant=_no_constant).decode
    for number, line in _lines(file, seen):
        place = f"line {number}"
        if line is None:
            yield WrongRow(place, f"it has more than {LINE_BYTES_MAX} bytes")
            continue
        document = (line.removeprefix(_BOM) if number == 1 else line).strip()
        if not document:
            continue
        try:
            yield LoadRow(place, key.of(_object(load, document)), checked(document))
        except WrongRowError as error:
            yield WrongRow(place, str(error))


def _object(load: Any, document: bytes) -> dict[str, Any]:
    try:
        found = load(document.decode())
    except UnicodeDecodeError as error:
        raise WrongRowError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise WrongRowError(f"not JSON at column {error.pos + 1}: {error.msg}") from None
    except RecursionError:
        raise WrongRowError("nested too deeply") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise WrongRowError(f"not readable: {error}") from None
    if not isinstance(found, dict):
        raise WrongRowError("not a JSON object")
    return found


def _no_constant(name: str) -> None:
    raise WrongRowError(f"{name} is no JSON")


def checked(value: bytes) -> bytes:
    """Give a document that is no bigger than a value may be."""
    if len(value) > VALUE_BYTES_MAX:
        raise WrongRowError(f"its document has {len(value)} bytes; a value has at most {VALUE_BYTES_MAX}")
    return value


def _lines(file: BinaryIO, seen: Seen) -> Iterator[tuple[int, bytes | None]]:
    """Number the lines; one that is too long is None, and is not kept."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        seen.done += len(line)
        if len(line) < LINE_BYTES_MAX or line.endswith(b"\n"):
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LINE_BYTES_MAX)
            seen.done += len(line)
        yield number, None


# ---------------------------------------------------------------------------------------------------------------------
# CSV
# ---------------------------------------------------------------------------------------------------------------------


def csv_rows(file: BinaryIO, key: KeyTemplate, seen: Seen) -> Iterator[LoadRow | WrongRow]:
    """Read CSV with a line of names; every value is a text."""
    csv.field_size_limit(VALUE_BYTES_MAX)
    reader = csv.reader(_texts(file, seen), strict=True)
    names = _next_fields(reader)
    if names is None:
        return
    if isinstance(names, WrongRow):
        raise CommandError(f"{names.place}: {names.reason}")
    check_columns(names, key)
    while (fields := _next_fields(reader)) is not None:
        if isinstance(fields, WrongRow):
            yield fields
        elif fields:  # a blank line is no row
            yield _csv_row(f"line {reader.line_num}", names, fields, key)


def _texts(file: BinaryIO, seen: Seen) -> Iterator[str]:
    for number, line in _lines(file, seen):
        if line is None:
            raise CommandError(f"line {number} has more than {LINE_BYTES_MAX} bytes: is this CSV?")
        # What is not UTF-8 stays visible in its row, and does not end the reading.
        yield line.decode("utf-8-sig" if number == 1 else "utf-8", errors="surrogateescape")


def _next_fields(reader: Any) -> list[str] | WrongRow | None:
    try:
        fields: list[str] = next(reader)
    except StopIteration:
        return None
    except csv.Error as error:
        return WrongRow(f"line {reader.line_num}", f"not CSV: {error}")
    return fields


def _csv_row(place: str, names: list[str], fields: list[str], key: KeyTemplate) -> LoadRow | WrongRow:
    if len(fields) != len(names):
        return WrongRow(place, f"the first line names {len(names)} fields, and it has {len(fields)}")
    try:
        row = dict(zip(names, fields, strict=True))
        return LoadRow(place, key.of(row), checked(json.dumps(row, ensure_ascii=False).encode()))
    except UnicodeEncodeError:
        return WrongRow(place, "not UTF-8")
    except WrongRowError as error:
        return WrongRow(place, str(error))


def check_columns(names: list[str], key: KeyTemplate) -> None:
    """Refuse a file whose columns cannot be told apart, or cannot make the key."""
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CommandError(f"two columns are named {twice!r}")
    for column in key.columns:
        if column not in names:
            raise CommandError(f"--key: there is no column {column!r}; there are {', '.join(map(repr, names))}")
