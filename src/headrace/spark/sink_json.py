"""Rows as JSON: documents that are made of columns, and rows that are put aside.

Numbers, text, booleans and null are themselves; an array is an array; a struct or a map is an object. What JSON has no
word for is text: a decimal with all its digits, a date and a time in ISO 8601 (in UTC, where it has a zone), bytes in
base64. A number that is none (NaN, infinity) is null.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t

from headrace.client import OptionError
from headrace.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = (
    t.StringType,
    t.BinaryType,
    t.BooleanType,
    t.NumericType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
    t.NullType,
)


def check_type(name: str, kind: t.DataType) -> None:
    """Refuse a column that has no form in JSON here."""
    for inner in _leaves(kind):
        if not isinstance(inner, _PLAIN):
            raise OptionError(
                f"column {name} has values of type {inner.simpleString()}, which are not made JSON of here: make the "
                "document with to_json, and name it by option valueColumn"
            )


def _leaves(kind: t.DataType) -> Iterator[t.DataType]:
    if isinstance(kind, t.StructType):
        for field in kind.fields:
            yield from _leaves(field.dataType)
    elif isinstance(kind, t.ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, t.StringType | t.IntegralType | t.BooleanType):
            yield kind
        yield from _leaves(kind.valueType)
    else:
        yield kind


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch as dicts."""
    if any(_has_map(kind) for kind in batch.schema.types):
        return list(batch.to_pylist(maps_as_pydicts="strict"))
    return list(batch.to_pylist())


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(place).type) for place in range(kind.num_fields))


def json_text(row: Any) -> bytes:
    """One row as JSON."""
    try:
        try:
            text = _ENCODER.encode(row)
        except ValueError:
            text = _ENCODER.encode(_finite(row))
        return text.encode()
    except (TypeError, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"it has no form in JSON: {error}") from None


def _told(content: object) -> str:
    if isinstance(content, bytes):
        return base64.b64encode(content).decode()
    if isinstance(content, datetime):
        return (content if content.tzinfo is None else content.astimezone(UTC)).isoformat()
    if isinstance(content, date):
        return content.isoformat()
    if isinstance(content, Decimal):
        return str(content)
    raise TypeError(f"a {type(content).__name__}")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_told)


def _finite(content: Any) -> Any:
    """The same without numbers that are none."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _finite(each) for name, each in content.items()}
    if isinstance(content, list):
        return [_finite(each) for each in content]
    return content


__all__ = ["check_type", "json_text", "rows_of"]
