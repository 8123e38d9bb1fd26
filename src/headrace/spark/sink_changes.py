"""Rows of changes, as the source of this format gives them: each item becomes what it is there, unless newer here.

Mutations are stored, and deletions and expirations leave tombstones, with their revision and CAS. The vbucket of a row
is the source's and says nothing of where the item goes. A flush or a rollback cannot be said by a write. After the
rollback of a vbucket, its rows in the same task are written without asking which is newer, since the branch that they
are on counts now: so what was changed again is right, and what is only gone stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from headrace.client import ItemVersion, OptionError
from headrace.columns import unsigned
from headrace.errors import LocalProtocolError
from headrace.spark.sink_rows import TEXT, WHOLE, Columns, fault_of_value, wrong_type
from headrace.wire import join_xattrs
from headrace.wire.codes import Datatype

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from headrace.client.writing import BucketWriter
    from headrace.spark.options import Options
    from headrace.spark.sink_rows import Skipped, Wrong

MUTATION, DELETION, EXPIRATION = "mutation", "deletion", "expiration"
ROLLBACK, FLUSH = "rollback", "flush"
SIGNS = frozenset({"event", "key", "rev", "cas"})
"""The columns by which rows of changes are known."""

_ITEMS = frozenset({MUTATION, DELETION, EXPIRATION})
_CAS_MAX = 0xFFFF_FFFF_FFFF_FFFE
_XATTR, _JSON = int(Datatype.XATTR), int(Datatype.JSON)

_NEEDED: dict[str, tuple[type[t.DataType], ...]] = {
    "event": (t.StringType,),
    "key": TEXT,
    "value": TEXT,
    "rev": WHOLE,
    "cas": WHOLE,
}
_USED: dict[str, tuple[type[t.DataType], ...]] = {
    **_NEEDED,
    **dict.fromkeys(("vbucket", "datatype", "flags", "expiry", "delete_time"), WHOLE),
    **dict.fromkeys(("scope", "collection"), (t.StringType,)),
}


def changes_for(options: Options, schema: t.StructType) -> ChangeRows:
    """Check the columns of rows of changes."""
    kinds = {field.name: field.dataType for field in schema.fields}
    for name in _NEEDED:
        if name not in kinds:
            raise OptionError(f"rows of changes have a column {name}, and there is none among {', '.join(kinds)}")
    for name, wanted in _USED.items():
        if name in kinds and not isinstance(kinds[name], wanted):
            raise wrong_type(name, kinds[name], wanted, "rows of changes have")
    xattrs = kinds.get("xattrs")
    if xattrs is not None and xattrs.simpleString() != "map<string,string>":
        raise OptionError(f"column xattrs is {xattrs.simpleString()}: rows of changes have it as map<string,string>")
    return ChangeRows(replaces=options.conflicts == "source")


class ChangeRows:
    """Puts rows of changes; `replaces` whatever the bucket has, or only what is older."""

    def __init__(self, *, replaces: bool) -> None:
        self._replaces = replaces
        self._rolled_back: set[int] = set()

    def __repr__(self) -> str:
        return f"ChangeRows(replaces={self._replaces})"

    def begin(self) -> ChangeRows:
        """One for a task: it remembers which vbuckets were rolled back."""
        return ChangeRows(replaces=self._replaces)

    def put(self, batch: pa.RecordBatch, writer: BucketWriter, wrong: Wrong, skipped: Skipped) -> None:
        """Put the rows of a batch."""
        columns = Columns(batch)
        vbuckets = columns.plain("vbucket")
        # What an item is, in the order in which `_put` takes it.
        each_row = zip(
            columns.plain("event"),
            columns.octets("key"),
            columns.octets("value"),
            columns.plain("rev"),
            columns.plain("cas"),
            columns.plain("flags", 0),
            columns.plain("expiry", 0),
            columns.plain("delete_time", 0),
            columns.plain("datatype", 0),
            columns.xattrs(),
            strict=True,
        )
        elsewhere = columns.collections()
        for place, item in enumerate(each_row):
            if item[0] not in _ITEMS:
                self._pass_over(item[0], vbuckets[place], skipped)
                continue
            key = item[1]
            because = _fault(*item[:5])
            if because is None and elsewhere[place] is not None:
                because = f"it is of collection {elsewhere[place]}, and writes go to the default collection"
            if because is None:
                skips = self._replaces or vbuckets[place] in self._rolled_back
                try:
                    _put(writer, (batch, place), item, skips_conflicts=skips)
                except LocalProtocolError as error:
                    because = str(error)
            if because is not None:
                wrong(batch, place, key, because)

    def _pass_over(self, event: str | None, vbucket: int | None, skipped: Skipped) -> None:
        if event == ROLLBACK and vbucket is not None:
            self._rolled_back.add(vbucket)
        if event in (ROLLBACK, FLUSH):
            skipped.unapplied += 1
        else:
            skipped.skipped += 1


def _fault(event: str, key: bytes | None, value: bytes | None, rev: int | None, cas: int | None) -> str | None:
    """Say what is wrong with the row of an item; None where nothing is."""
    if key is None:
        return "it has no key"
    if rev is None or cas is None:
        return "it has no revision or no CAS"
    if not 0 < unsigned(cas) <= _CAS_MAX:
        return f"{unsigned(cas)} is no CAS of an item"
    if event != MUTATION:
        return None
    if value is None:
        return "it is a mutation without its value; was it read with noValue?"
    return fault_of_value(value)


def _put(writer: BucketWriter, row: Any, item: tuple[Any, ...], *, skips_conflicts: bool) -> None:
    event, key, value, rev, cas, flags, expiry, delete_time, datatype, xattrs = item
    if event == MUTATION:
        datatype &= _JSON
        if xattrs:
            value, datatype = join_xattrs(_encoded(xattrs), value), datatype | _XATTR
        version = ItemVersion(flags, expiry, unsigned(rev), unsigned(cas))
        writer.set_version(row, key, value, version, datatype=datatype, skips_conflicts=skips_conflicts)
        return
    left = join_xattrs(_encoded(xattrs), b"") if xattrs else b""
    writer.delete_version(
        row,
        key,
        left,
        ItemVersion(0, delete_time, unsigned(rev), unsigned(cas)),
        datatype=_XATTR if left else 0,
        expired=event == EXPIRATION,
        skips_conflicts=skips_conflicts,
    )


def _encoded(pairs: Iterable[tuple[str, str | None]]) -> dict[bytes, bytes]:
    return {name.encode(): (text if text is not None else "null").encode() for name, text in pairs}


__all__ = ["SIGNS", "ChangeRows", "changes_for"]
