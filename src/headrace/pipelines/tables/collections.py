"""The names behind the ids of collections.

Rows tell collections by name. A system event that drops one tells its id only, so the names have to be kept from the
events that made it. Ids are never used again, and names never change: what was learned once stays true, and to learn
it again does no harm.

The value of a system event is, in big-endian order: the manifest's uid (8 bytes), the scope's id (4) and, where a
collection is concerned, the collection's id (4).
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.schema import DEFAULT_NAME, EVENTS, SYSTEM
from headrace.wire.codes import SystemEventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

_SCOPE_IDS, _COLLECTION_IDS = struct.Struct(">QI"), struct.Struct(">QII")
_ENDS = (SystemEventKind.DROP_COLLECTION, SystemEventKind.FLUSH_COLLECTION)


class Dropped(NamedTuple):
    """What a vbucket has in a collection before a seqno is gone."""

    vbucket: int
    scope: str
    collection: str
    seqno: int


class CollectionNames:
    """The names of scopes and collections by their ids; those with id 0 were never made, and always there."""

    def __init__(self) -> None:
        self._scopes = {0: DEFAULT_NAME}
        self._collections = {0: (0, DEFAULT_NAME)}

    def learn(self, rows: pa.Table) -> bool:
        """Take in the system events among change rows; whether there was a new name."""
        before = len(self._scopes) + len(self._collections)
        for row in _system_events(rows):
            key = row["key"]
            name = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
            value = row["value"] or b""
            if row["flags"] == SystemEventKind.CREATE_SCOPE and len(value) >= _SCOPE_IDS.size:
                _, scope = _SCOPE_IDS.unpack_from(value)
                self._scopes[scope] = name
            elif row["flags"] == SystemEventKind.CREATE_COLLECTION and len(value) >= _COLLECTION_IDS.size:
                _, scope, collection = _COLLECTION_IDS.unpack_from(value)
                self._collections[collection] = (scope, name)
        return len(self._scopes) + len(self._collections) > before

    def dropped(self, rows: pa.Table) -> Iterable[Dropped]:
        """Give what system events among change rows make void."""
        for row in _system_events(rows):
            value = row["value"] or b""
            if row["flags"] not in _ENDS or len(value) < _COLLECTION_IDS.size:
                continue
            number = _COLLECTION_IDS.unpack_from(value)[2]
            # A change that came when the server had forgotten the name already stands under the id.
            yield Dropped(row["vbucket"], "", f"0x{number:x}", row["seqno"])
            scope, name = self._collections.get(number, (0, ""))
            if name:
                yield Dropped(row["vbucket"], self._scopes.get(scope, ""), name, row["seqno"])

    def to_json(self) -> str:
        """Give the names as text."""
        collections = {str(number): list(each) for number, each in self._collections.items()}
        return json.dumps({"scopes": self._scopes, "collections": collections}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text again."""
        found, plain = cls(), json.loads(text)
        found._scopes |= {int(number): str(name) for number, name in plain["scopes"].items()}
        found._collections |= {int(number): (scope, name) for number, (scope, name) in plain["collections"].items()}
        return found


def _system_events(rows: pa.Table) -> list[dict[str, Any]]:
    """The few rows that are system events."""
    found = rows.filter(pc.equal(rows["event"], EVENTS[SYSTEM]))
    plain: list[dict[str, Any]] = found.select(["vbucket", "seqno", "key", "value", "flags"]).to_pylist()
    return plain


__all__ = ["CollectionNames", "Dropped"]
