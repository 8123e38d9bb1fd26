"""Rows of a Parquet file as documents, a batch at a time.

A document is an object of the columns, and its place is the row, from 1:

    timestamp, date, time   ISO 8601, with nine digits of a second where the file has nanoseconds
    duration                seconds
    decimal, UUID           text
    bytes                   base64
    map                     a list of pairs
    not a number            null

Arrow checks neither texts nor times when it reads: a value may be no UTF-8, or of a year that Python has not. Such a
value makes its row a `WrongRow`, and the rows around it are read.
"""

import base64
import datetime as dt
import decimal
import json
import math
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from headrace.cli.connect import CommandError
from headrace.cli.rows import KeyTemplate, Seen, WrongRow, WrongRowError, check_columns, checked, kind_of
from headrace.client.loading import LoadRow

BATCH_ROWS = 1024
"""How many rows are turned into documents at a time."""

_UNREADABLE = (
    pa.ArrowException,
    ArithmeticError,  # a time past what Python holds
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,  # a text that is no UTF-8, a struct with two fields of one name
)
"""What Arrow raises over foreign bytes, and Python over foreign times."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def parquet_rows(path: Path, key: KeyTemplate, seen: Seen) -> Iterator[LoadRow | WrongRow]:
    """Read Parquet."""
    for rows in _batches(path, key, seen):
        for row in rows:
            seen.done += 1
            yield _row(f"row {seen.done}", row, key)


def _batches(path: Path, key: KeyTemplate, seen: Seen) -> Iterator[list[dict[str, Any]]]:
    try:
        # Pre-buffering would hold whole row groups. INT96 is the timestamp of older Sparks, which count microseconds:
        # read as nanoseconds, which is Arrow's default, the year 9999 would be 1816 without a word.
        with parquet.ParquetFile(path, pre_buffer=False, coerce_int96_timestamp_unit="us") as file:
            seen.total = file.metadata.num_rows
            names = file.schema_arrow.names
            check_columns(names, key)
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                columns = map(_values, names, batch.columns)
                yield [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    except _UNREADABLE as error:
        raise CommandError(f"{path}: after row {seen.done}: {error}") from None


def _row(place: str, row: dict[str, Any], key: KeyTemplate) -> LoadRow | WrongRow:
    try:
        return LoadRow(place, key.of(row), checked(_dump(row)))
    except WrongRowError as error:
        return WrongRow(place, str(error))


# ---------------------------------------------------------------------------------------------------------------------
# From Arrow to Python
# ---------------------------------------------------------------------------------------------------------------------


def _values(name: str, column: Any) -> list[Any]:
    """Give the values of a column; in place of one that cannot be read stands the error that its row is to end with."""
    try:
        values: list[Any] = column.to_pylist()
    except _UNREADABLE:
        return [_value(name, scalar) for scalar in column]
    return values


def _value(name: str, scalar: Any) -> Any:
    try:
        return _python(scalar)
    except UnicodeDecodeError:
        return WrongRowError(f"{name!r} is not UTF-8")
    except _UNREADABLE as error:
        return WrongRowError(f"{name!r}, {scalar.type}, cannot be read: {error}")


def _python(scalar: Any) -> Any:  # noqa: PLR0911 - one for each kind
    """Give a value as `as_py` does, but times that `datetime` is too coarse or too small for in their JSON form."""
    if not scalar.is_valid:
        return None
    match scalar:
        case pa.TimestampScalar() | pa.Time64Scalar() if scalar.type.unit == "ns":
            return _nanoseconds(scalar)
        case pa.DurationScalar():
            return scalar.value / _PER_SECOND[scalar.type.unit]
        case pa.StructScalar() if len({field.name for field in scalar.type}) == scalar.type.num_fields:
            return {name: _python(each) for name, each in scalar.items()}
        case pa.MapScalar():
            return [[_python(each) for each in pair.values()] for pair in scalar.values]
        case pa.ListScalar():
            return [_python(each) for each in scalar.values]
    return scalar.as_py()  # which refuses a struct with two fields of one name


def _nanoseconds(scalar: Any) -> str:
    coarse = pa.time64("us") if isinstance(scalar, pa.Time64Scalar) else pa.timestamp("us", scalar.type.tz)
    microseconds, rest = divmod(scalar.value, 1000)
    found = pa.scalar(microseconds, coarse).as_py()
    if not rest:
        return str(found.isoformat())
    whole, _, fraction = found.isoformat(timespec="microseconds").partition(".")
    return f"{whole}.{fraction[:6]}{rest:03}{fraction[6:]}"  # a zone may follow the digits


# ---------------------------------------------------------------------------------------------------------------------
# From Python to JSON
# ---------------------------------------------------------------------------------------------------------------------


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
    if isinstance(found, decimal.Decimal | uuid.UUID):
        return str(found)
    if isinstance(found, bytes):
        return base64.b64encode(found).decode()
    if isinstance(found, WrongRowError):
        raise found
    raise WrongRowError(f"{kind_of(found)} has no form in JSON")


def _without_nan(found: Any) -> Any:
    if isinstance(found, float) and not math.isfinite(found):
        if math.isnan(found):
            return None
        raise WrongRowError("an infinite number has no form in JSON")
    if isinstance(found, dict):
        return {name: _without_nan(each) for name, each in found.items()}
    if isinstance(found, list | tuple):
        return [_without_nan(each) for each in found]
    return found
