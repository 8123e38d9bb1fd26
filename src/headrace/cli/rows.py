"""Rows of a file as documents: JSON lines, CSV and Parquet, in bounded memory whatever the file's size.

Reading goes on after a row that cannot be a document: it comes out as a `WrongRow` with its place and the reason. Only
a file that cannot be read at all, or not further, raises.

    JSON lines   the line is the document, byte for byte; its place is its line
    CSV          an object of texts, named by the first line; its place is the line on which the row ends
    Parquet      an object of the columns; its place is the row, from 1. Times become ISO 8601, decimals text, bytes
                 base64, and a float that is not a number null
"""

import base64
import csv
import datetime as dt
import decimal
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, BinaryIO, NamedTuple

from headrace.cli.connect import CommandError
from headrace.client.items import VALUE_BYTES_MAX
from headrace.client.loading import LoadRow
from headrace.wire.limits import KEY_BYTES_MAX

LINE_BYTES_MAX = 2 * VALUE_BYTES_MAX
"""The longest line that is read: JSON has at most 20 MiB, and CSV may double its quotes."""

_BOM = b"\xef\xbb\xbf"
PARQUET_ROWS = 1024
"""How many rows of Parquet are turned into documents at a time."""


class WrongRow(NamedTuple):
    """A row that cannot be a document."""

    place: str
    reason: str


@dataclass(slots=True)
class Seen:
    """How far the reading is, in bytes of the file or rows of Parquet; `total` is None where nobody knows."""

    done: int = 0
    total: int | None = None


class _WrongError(Exception):
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
            raise _WrongError("its key is not UTF-8") from None
        if not 0 < len(octets) <= KEY_BYTES_MAX:
            raise _WrongError(f"its key has {len(octets)} bytes; a key has 1 to {KEY_BYTES_MAX}")
        return octets


def _key_text(row: Mapping[str, Any], column: str) -> str:
    found = row.get(column)
    if isinstance(found, str):
        text = found
    elif found is None:
        raise _WrongError(f"no {column!r} to make its key of")
    elif isinstance(found, bool):
        text = "true" if found else "false"
    elif isinstance(found, int | float | decimal.Decimal):
        text = str(found)
    elif isinstance(found, dt.date | dt.time):
        text = found.isoformat()
    else:
        raise _WrongError(f"{column!r} is {_kind(found)}, of which no key can be made")
    if not text:
        raise _WrongError(f"{column!r} is empty, and its key is made of it")
    return text


def _kind(found: object) -> str:
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
            yield LoadRow(place, key.of(_object(load, document)), _checked(document))
        except _WrongError as error:
            yield WrongRow(place, str(error))


def _object(load: Any, document: bytes) -> dict[str, Any]:
    try:
        found = load(document.decode())
    except UnicodeDecodeError as error:
        raise _WrongError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _WrongError(f"not JSON at column {error.pos + 1}: {error.msg}") from None
    except RecursionError:
        raise _WrongError("nested too deeply") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise _WrongError(f"not readable: {error}") from None
    if not isinstance(found, dict):
        raise _WrongError("not a JSON object")
    return found


def _no_constant(name: str) -> None:
    raise _WrongError(f"{name} is no JSON")


def _checked(value: bytes) -> bytes:
    if len(value) > VALUE_BYTES_MAX:
        raise _WrongError(f"its document has {len(value)} bytes; a value has at most {VALUE_BYTES_MAX}")
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
    _check_columns(names, key)
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
        return LoadRow(place, key.of(row), _checked(json.dumps(row, ensure_ascii=False).encode()))
    except UnicodeEncodeError:
        return WrongRow(place, "not UTF-8")
    except _WrongError as error:
        return WrongRow(place, str(error))


def _check_columns(names: list[str], key: KeyTemplate) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CommandError(f"two columns are named {twice!r}")
    for column in key.columns:
        if column not in names:
            raise CommandError(f"--key: there is no column {column!r}; there are {', '.join(map(repr, names))}")


# ---------------------------------------------------------------------------------------------------------------------
# Parquet
# ---------------------------------------------------------------------------------------------------------------------


def parquet_rows(path: Path, key: KeyTemplate, seen: Seen) -> Iterator[LoadRow | WrongRow]:
    """Read Parquet, a batch of rows at a time."""
    import pyarrow as pa  # noqa: PLC0415 - a tenth of a second that the other formats need not wait
    from pyarrow import parquet  # noqa: PLC0415

    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:  # pre-buffering would hold whole row groups
            seen.total = file.metadata.num_rows
            _check_columns(file.schema_arrow.names, key)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in batch.to_pylist():
                    seen.done += 1
                    yield _parquet_row(f"row {seen.done}", row, key)
    except (pa.ArrowException, OSError) as error:
        raise CommandError(f"{path}: after row {seen.done}: {error}") from None


def _parquet_row(place: str, row: dict[str, Any], key: KeyTemplate) -> LoadRow | WrongRow:
    try:
        return LoadRow(place, key.of(row), _checked(_dump(row)))
    except _WrongError as error:
        return WrongRow(place, str(error))


def _dump(row: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:  # some float is not a number, deep within
        text = json.dumps(_without_nan(row), ensure_ascii=False, allow_nan=False, default=_plain)
    return text.encode()


def _plain(found: object) -> object:
    if isinstance(found, dt.date | dt.time):
        return found.isoformat()
    if isinstance(found, dt.timedelta):
        return found.total_seconds()
    if isinstance(found, decimal.Decimal):
        return str(found)
    if isinstance(found, bytes):
        return base64.b64encode(found).decode()
    raise _WrongError(f"{_kind(found)} has no form in JSON")


def _without_nan(found: Any) -> Any:
    if isinstance(found, float) and not math.isfinite(found):
        if math.isnan(found):
            return None
        raise _WrongError("an infinite number has no form in JSON")
    if isinstance(found, dict):
        return {name: _without_nan(each) for name, each in found.items()}
    if isinstance(found, list | tuple):
        return [_without_nan(each) for each in found]
    return found
