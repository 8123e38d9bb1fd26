"""TAP messages -> Arrow batches of change rows.

The kernel of `headrace.columns` reads DCP and UPR. TAP is read here by a loop in Python, which is what a dump of an old
server, made once, is worth: items of the usual layout straight from their bytes, all else through `wire.decode`. The
offsets are the catalogue's in either case, and a test holds the two ways equal.

What TAP does not tell is null: seqno and vbuuid, the snapshot, the lock, when an item was removed. Its datatypes are
told to those only who agreed on them in hello. The TTL of a message, counted down where servers feed each other in a
ring, says nothing to who reads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.columns.schema import CLOCK_NS, DEFAULT_NAME, DELETION, EVENTS, FLUSH, MUTATION, TEXT_KEYS, schema, signed
from headrace.errors import RemoteProtocolError
from headrace.wire.catalogue import TapDelete, TapFlush, TapMutation
from headrace.wire.codes import Datatype, Magic, TapFlag
from headrace.wire.dialects import Dialect
from headrace.wire.snappy import inflate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.wire import Frame

ROWS_MAX = 1 << 16
"""The most rows of one batch."""

_ROW_BYTES = 64
"""What a row counts beside its key and its value."""

_SPEC = TapMutation.spec
_OPCODE = _SPEC.opcodes[Dialect.TAP]
_USUAL = next(each for each in _SPEC.layouts[Dialect.TAP] if each.engine == ("rev_seqno", "nru"))
_NAMES = (*_USUAL.extras, *_USUAL.engine)
_HEAD = struct.Struct(">" + "".join({1: "B", 2: "H", 4: "I", 8: "Q"}[_SPEC.integer(name).size] for name in _NAMES))
_EXTRAS_BYTES = _SPEC.extras_size(_USUAL)
_ENGINE_BYTES = _HEAD.size - _EXTRAS_BYTES
_ENGINE_LENGTH, _TAP_FLAGS, _ITEM_FLAGS, _EXPIRY, _REV = (
    _NAMES.index(name) for name in ("engine_length", "tap_flags", "item_flags", "expiry", "rev_seqno")
)

_EVENT_NAMES = pa.array(EVENTS)


class TapRows:
    """Rows that wait to become a batch.

    `datatypes` tells if the server agreed to say what values are, `values` if they are wanted: servers that are asked
    for keys alone may send them all the same.
    """

    def __init__(self, *, keys: str = TEXT_KEYS, bytes_max: int, datatypes: bool = False, values: bool = True) -> None:
        self._is_text = keys == TEXT_KEYS
        self._values = values
        self._schema = schema(keys)
        self._bytes_max = bytes_max
        self._datatypes = datatypes
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether it is time for a batch."""
        return self._bytes >= self._bytes_max or len(self._rows) >= ROWS_MAX

    def add_frame(self, frame: Frame) -> int | None:
        """Take an item of the usual layout from its frame, and give its tap flags; None for all other frames."""
        header, body = frame
        if header.opcode != _OPCODE or header.magic != Magic.REQUEST or header.extras_length != _EXTRAS_BYTES:
            return None
        if len(body) < _HEAD.size + header.key_length:
            return None
        numbers = _HEAD.unpack_from(body)
        if numbers[_ENGINE_LENGTH] != _ENGINE_BYTES or not header.key_length:
            return None
        key_end = _HEAD.size + header.key_length
        tap_flags: int = numbers[_TAP_FLAGS]
        self._add_item(
            vbucket=header.specific,
            cas=header.cas,
            rev=numbers[_REV],
            key=body[_HEAD.size : key_end],
            value=body[key_end:],
            datatype=header.datatype,
            tap_flags=tap_flags,
            item_flags=numbers[_ITEM_FLAGS],
            expiry=numbers[_EXPIRY],
        )
        return tap_flags

    def add(self, message: TapMutation | TapDelete | TapFlush) -> None:
        """Take a message that is a change."""
        if isinstance(message, TapFlush):
            self._add((FLUSH, message.vbucket, None, signed(message.cas), *(None,) * 5))
        elif isinstance(message, TapDelete):
            rev = None if message.rev_seqno is None else signed(message.rev_seqno)
            key = self._key(message.key)
            self._add((DELETION, message.vbucket, rev, signed(message.cas), key, *(None,) * 4), len(message.key))
        else:
            self._add_item(
                vbucket=message.vbucket,
                cas=message.cas,
                rev=message.rev_seqno,
                key=message.key,
                value=message.value,
                datatype=message.datatype,
                tap_flags=message.tap_flags,
                item_flags=message.item_flags,
                expiry=message.expiry,
            )

    def _add_item(  # noqa: PLR0913 - what an item has
        self,
        *,
        vbucket: int,
        cas: int,
        rev: int | None,
        key: bytes,
        value: bytes | None,
        datatype: int,
        tap_flags: int,
        item_flags: int,
        expiry: int,
    ) -> None:
        if datatype & Datatype.SNAPPY and value:
            value = inflate(value)
        if tap_flags & TapFlag.NO_VALUE or not self._values:
            value = None
        if not tap_flags & TapFlag.NETWORK_BYTE_ORDER:  # as the server's machine has them, which is a PC
            item_flags = int.from_bytes(item_flags.to_bytes(4, "big"), "little")
        kind = datatype & ~Datatype.SNAPPY if self._datatypes or datatype else None
        row = (
            MUTATION,
            vbucket,
            None if rev is None else signed(rev),
            signed(cas),
            self._key(key),
            value,
            kind,
            item_flags,
            expiry,
        )
        self._add(row, len(key) + (0 if value is None else len(value)))

    def _add(self, row: tuple[Any, ...], size: int = 0) -> None:
        self._rows.append(row)
        self._bytes += _ROW_BYTES + size

    def _key(self, key: bytes) -> str | bytes:
        if not self._is_text:
            return key
        try:
            return key.decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError(f"the key {key!r} is not UTF-8; read it with keys=binary") from None

    def batch(self) -> pa.RecordBatch:
        """Give what waits, and begin anew."""
        rows = self._rows
        self._rows, self._bytes = [], 0
        events, vbuckets, revs, cases, keys, values, datatypes, flags, expiries = zip(*rows, strict=True)
        given: dict[str, Sequence[Any] | pa.Array] = {
            "event": _EVENT_NAMES.take(pa.array(events, pa.int8())),
            "vbucket": vbuckets,
            "rev": revs,
            "cas": cases,
            "key": keys,
            "value": values,
            "datatype": datatypes,
            "flags": flags,
            "expiry": expiries,
            "scope": (DEFAULT_NAME,) * len(rows),
            "collection": (DEFAULT_NAME,) * len(rows),
            "changed_at": [cas // 1000 if CLOCK_NS[0] <= cas < CLOCK_NS[1] else None for cas in cases],
        }
        columns = []
        for field in self._schema:
            found = given.get(field.name)
            if found is None:
                columns.append(pa.nulls(len(rows), field.type))
            elif isinstance(found, pa.Array):
                columns.append(found)
            else:
                columns.append(pa.array(found, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


__all__ = ["ROWS_MAX", "TapRows"]
