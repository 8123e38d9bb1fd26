"""The frames of many writes, made fast, and blocks of them that remember which row each frame is of.

Header and extras of a frame are one struct, put together once from the fields that the catalogue names. A block keeps
its frames in parts (head, key, value), so that a row can be sent again without being made again: only the opaque, which
is the row's place in its block, and the opcode change.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import LocalProtocolError
from headrace.ids import Opaque
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import (
    Delete,
    DeleteQ,
    DeleteWithMeta,
    DeleteWithMetaQ,
    Noop,
    Set,
    SetQ,
    SetWithMeta,
    SetWithMetaQ,
)
from headrace.wire.codes import Magic, WithMetaOption
from headrace.wire.limits import HEADER_BYTES, KEY_BYTES_MAX

if TYPE_CHECKING:
    from headrace.wire.message import Request

BLOCK_BYTES = 256 * 1024
BLOCK_ROWS_MAX = 4096

END = Opaque(0xFFFF_FFFF)
"""The opaque of the noop that closes a block; no place of a row is as large."""

_HEADER = ">BBHBBHIIQ"  # as wire.header draws it
_MAGIC = int(Magic.REQUEST)
_PARTS = 3
_END_FRAME = encode(Noop(opaque=END))
_OPCODE_AT, _OPAQUE_AT, _VBUCKET_AT = 1, 7, 5
"""Places among the numbers of a header."""


class Form:
    """One kind of write: how it is packed, and what its answers mean. `quiet` ones are answered when refused only."""

    __slots__ = ("_head", "deletes", "extras_bytes", "has_options", "loud", "name", "quiet", "with_meta")

    def __init__(self, loud: type[Request], quiet: type[Request], layout: str | None = None) -> None:
        spec = loud.spec
        layouts = spec.layouts[Dialect.DCP]
        chosen = layouts[0] if layout is None else next(each for each in layouts if each.name == layout)
        self._head = struct.Struct(_HEADER + "".join(spec.integer(name).code for name in chosen.extras))
        self.loud: int = spec.opcodes[Dialect.DCP]
        self.quiet: int = quiet.spec.opcodes[Dialect.DCP]
        self.extras_bytes = self._head.size - HEADER_BYTES
        self.deletes = issubclass(loud, Delete | DeleteWithMeta)
        self.with_meta = issubclass(loud, SetWithMeta | DeleteWithMeta)
        self.has_options = "options" in chosen.extras
        self.name = "delete" if self.deletes else "set"

    def head(  # noqa: PLR0913, PLR0917 - the numbers of a frame; it is called for each row
        self, opcode: int, key: bytes, value: bytes, datatype: int, vbucket: int, place: int, extras: tuple[int, ...]
    ) -> bytes:
        """Header and extras of a row's frame."""
        key_bytes = len(key)
        if not 0 < key_bytes <= KEY_BYTES_MAX:  # some servers close the connection over it
            raise LocalProtocolError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {key_bytes}")
        extras_bytes = self.extras_bytes
        body_bytes = extras_bytes + key_bytes + len(value)
        try:
            return self._head.pack(
                _MAGIC, opcode, key_bytes, extras_bytes, datatype, vbucket, body_bytes, place, 0, *extras
            )
        except struct.error as error:
            raise LocalProtocolError(f"a {self.name} cannot carry {(datatype, *extras)}: {error}") from None

    def readdressed(self, head: bytes, *, place: int, quiet: bool) -> bytes:
        """The head of the same write, in another block."""
        numbers = list(self._head.unpack(head))
        numbers[_OPCODE_AT] = self.quiet if quiet else self.loud
        numbers[_OPAQUE_AT] = place
        return self._head.pack(*numbers)

    def vbucket(self, head: bytes) -> int:
        """The vbucket that a head names."""
        found: int = self._head.unpack(head)[_VBUCKET_AT]
        return found

    def is_expiration(self, head: bytes) -> bool:
        """Whether a write says that an item ended by itself."""
        return self.has_options and bool(self._head.unpack(head)[-1] & WithMetaOption.IS_EXPIRATION)

    def as_deletion(self, head: bytes) -> bytes:
        """The same write without saying so."""
        *numbers, options = self._head.unpack(head)
        return self._head.pack(*numbers, options & ~WithMetaOption.IS_EXPIRATION)


SET = Form(Set, SetQ)
DELETE = Form(Delete, DeleteQ)
SET_WITH_META = Form(SetWithMeta, SetWithMetaQ, "plain")
SET_WITH_OPTIONS = Form(SetWithMeta, SetWithMetaQ, "with options")
DELETE_WITH_META = Form(DeleteWithMeta, DeleteWithMetaQ, "plain")
DELETE_WITH_OPTIONS = Form(DeleteWithMeta, DeleteWithMetaQ, "with options")


class Entry(NamedTuple):
    """One row of a block, as it goes over the wire."""

    form: Form
    head: bytes
    key: bytes
    value: bytes


class Block:
    """Rows that go to one node at once; a noop closes them.

    `rows` are whatever the rows are called by who wrote them. A block that sends rows of others again has their blocks
    and places there: `is_again`; and where they were counted when they were settled first, it is not `is_counted`.
    """

    __slots__ = ("dead", "forms", "is_again", "is_counted", "parts", "rows", "size_bytes", "vbuckets")

    def __init__(self, *, is_again: bool = False, is_counted: bool = True) -> None:
        self.is_again = is_again
        self.is_counted = is_counted
        self.rows: list[Any] = []
        self.forms: list[Form] = []
        self.parts: list[bytes] = []
        self.vbuckets: set[int] = set()
        self.size_bytes = 0
        self.dead: set[int] = set()
        """The places of rows that were refused for good: they are never sent again."""

    @property
    def is_full(self) -> bool:
        """Whether it should be on its way."""
        return self.size_bytes >= BLOCK_BYTES or len(self.rows) >= BLOCK_ROWS_MAX

    def add(self, row: Any, form: Form, head: bytes, key: bytes, value: bytes, vbucket: int) -> None:
        """Add a row whose head has the next place; it is called for each row."""
        self.rows.append(row)
        self.forms.append(form)
        self.parts += (head, key, value)
        self.vbuckets.add(vbucket)
        self.size_bytes += len(head) + len(key) + len(value)

    def entry(self, place: int) -> Entry:
        """One row of it."""
        return Entry(self.forms[place], *self.parts[_PARTS * place : _PARTS * (place + 1)])

    def key(self, place: int) -> bytes:
        """The key of a row."""
        return self.parts[_PARTS * place + 1]

    def keys(self) -> list[bytes]:
        """The keys of all rows."""
        return self.parts[1::_PARTS]

    def replace_head(self, place: int, head: bytes) -> None:
        """Say something else of a row."""
        self.parts[_PARTS * place] = head

    def origin(self, place: int) -> tuple[Block, int]:
        """The block and the place where a row was first."""
        if self.is_again:
            found: tuple[Block, int] = self.rows[place]
            return found
        return self, place

    def frames(self) -> bytes:
        """What to send."""
        return b"".join((*self.parts, _END_FRAME))


__all__ = [
    "BLOCK_BYTES",
    "BLOCK_ROWS_MAX",
    "DELETE",
    "DELETE_WITH_META",
    "DELETE_WITH_OPTIONS",
    "END",
    "SET",
    "SET_WITH_META",
    "SET_WITH_OPTIONS",
    "Block",
    "Entry",
    "Form",
]
