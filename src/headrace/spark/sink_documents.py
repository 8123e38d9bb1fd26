"""Documents with a key, made of columns: a value, or the other columns as a JSON object; how long; and which to remove.

A document without a revision is stored or removed, whatever is there. One with a revision is a version of its item: the
larger revision wins, whichever comes first. Its CAS is the revision, too: so the same row twice is the same version
twice, and in a bucket that goes by time, revisions that are nanoseconds of the epoch are compared with its clock.
"""

from __future__ import annotations

import difflib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from headrace.client import ItemVersion, OptionError, beside, json_beside, wire_expiry
from headrace.errors import LocalProtocolError
from headrace.spark.sink_json import check_type, json_text, rows_of
from headrace.spark.sink_rows import TEXT, WHOLE, Columns, fault_of_value, wrong_type

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.writing import BucketWriter
    from headrace.spark.options import Options
    from headrace.spark.sink_rows import Skipped, Wrong

OPTIONS = ("keyColumn", "valueColumn", "ttl", "ttlColumn", "deleteColumn", "revColumn")
"""The options that only documents have."""

_EXPIRY_MAX = 0xFFFF_FFFF


def documents_for(options: Options, schema: t.StructType) -> DocumentRows:
    """Find the columns that the options name, and check them."""
    kinds = {field.name: field.dataType for field in schema.fields}
    key = _named("keyColumn", options.key_column, kinds, TEXT)
    value = _named("valueColumn", options.value_column, kinds, TEXT)
    ttl = _named("ttlColumn", options.ttl_column, kinds, WHOLE)
    delete = _named("deleteColumn", options.delete_column, kinds, (t.BooleanType,))
    rev = _named("revColumn", options.rev_column, kinds, WHOLE)
    assert key is not None, "keyColumn has a default"
    named = [name for name in (key, value, ttl, delete, rev) if name is not None]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"column {twice} is named by two of the options, and cannot be two things at once")
    fields = tuple(name for name in kinds if name not in named) if value is None else ()
    if value is None and not fields and delete is None:
        raise OptionError(f"there is no column for the documents beside {', '.join(named)}: they would all be empty")
    for name in fields:
        check_type(name, kinds[name])
    return DocumentRows(
        key=key,
        value=value,
        fields=fields,
        ttl_s=options.ttl or 0,
        ttl=ttl,
        delete=delete,
        rev=rev,
        replaces=options.conflicts == "source",
    )


def _named(
    option: str, name: str | None, kinds: dict[str, t.DataType], wanted: tuple[type[t.DataType], ...]
) -> str | None:
    """The column that an option names. Spark minds no case, and neither do we where that leaves one column."""
    if name is None:
        return None
    found = [name] if name in kinds else [each for each in kinds if each.lower() == name.lower()]
    if len(found) != 1:
        near = difflib.get_close_matches(name, kinds, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(kinds)}"
        raise OptionError(f"option {option}: there is no column {name}; {hint}")
    if not isinstance(kinds[found[0]], wanted):
        raise wrong_type(found[0], kinds[found[0]], wanted, f"option {option} wants")
    return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRows:
    """Puts documents; the columns are named by what they are."""

    key: str
    value: str | None
    fields: tuple[str, ...]
    ttl_s: int
    ttl: str | None
    delete: str | None
    rev: str | None
    replaces: bool

    def begin(self) -> DocumentRows:
        """A task remembers nothing."""
        return self

    def put(self, batch: pa.RecordBatch, writer: BucketWriter, wrong: Wrong, skipped: Skipped) -> None:
        """Put the rows of a batch."""
        del skipped  # each row says something
        now = time.time()
        columns, count = Columns(batch), batch.num_rows
        keys = columns.octets(self.key)
        ttls = columns.plain(self.ttl, 0) if self.ttl is not None else [self.ttl_s] * count
        gone = columns.plain(self.delete, otherwise=False) if self.delete is not None else [False] * count
        revs = columns.plain(self.rev) if self.rev is not None else [1] * count
        values = columns.octets(self.value) if self.value is not None else rows_of(batch.select(list(self.fields)))
        for place, (key, value, ttl_s, rev) in enumerate(zip(keys, values, ttls, revs, strict=True)):
            because = _fault(key, ttl_s, rev)
            if because is None:
                try:
                    if gone[place]:
                        self._delete(writer, (batch, place), key, rev)
                        continue
                    document = json_text(value) if self.value is None else value
                    because = fault_of_value(document)
                    if because is None:
                        self._set(writer, (batch, place), key, document, until=(ttl_s, now), rev=rev)
                except LocalProtocolError as error:
                    because = str(error)
            if because is not None:
                wrong(batch, place, key, because)

    def _delete(self, writer: BucketWriter, row: Any, key: bytes, rev: int) -> None:
        if self.rev is None:
            writer.delete(row, key)
        else:
            writer.delete_version(row, key, b"", ItemVersion(0, 0, rev, rev), skips_conflicts=self.replaces)

    def _set(
        self, writer: BucketWriter, row: Any, key: bytes, value: bytes, *, until: tuple[int, float], rev: int
    ) -> None:
        flags, datatype = json_beside(writer.features) if self.value is None else beside(value, writer.features)
        ttl_s, now = until
        if self.rev is None:
            writer.set(row, key, value, flags=flags, expiry=wire_expiry(ttl_s, now=now), datatype=datatype)
            return
        expiry = min(int(now) + ttl_s, _EXPIRY_MAX) if ttl_s else 0
        writer.set_version(
            row, key, value, ItemVersion(flags, expiry, rev, rev), datatype=datatype, skips_conflicts=self.replaces
        )


def _fault(key: bytes | None, ttl_s: int, rev: int | None) -> str | None:
    if key is None:
        return "it has no key"
    if ttl_s < 0:
        return f"{ttl_s} seconds are no time to live"
    if rev is None or rev <= 0:
        return f"{'null' if rev is None else rev} is no revision: it is a number from 1 on"
    return None


__all__ = ["OPTIONS", "DocumentRows", "documents_for"]
