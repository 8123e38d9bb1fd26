"""Many sets, fast, and none lost silently.

Quiet sets travel in blocks, each with a noop at its end: a server answers only the sets that it refuses, and the noop
tells that the block was read to its end. A block's opaques are the places of its rows, so that a refusal finds its row.

    encode block 2                 encode block 3
    [block 1 ------- server ---->] [block 2 ------- server ---->]
                       take answers of 1, retry, send 2

One block is under way while the next is encoded, and a block is sent only when the one before is settled. So a row that
is tried again never overtakes a later row with the same key: within a block, the later ones of that key are sent again
behind it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.client.errors import ServerAnswerError, StatusError, error_of
from headrace.ids import Opaque
from headrace.wire import Header, decode, encode
from headrace.wire.catalogue import ErrorReply, Noop, SetQ
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.client.connection import KvConnection

BLOCK_BYTES = 256 * 1024
BLOCK_ROWS_MAX = 4096
BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.02, 1.0
RETRY_S_MAX = 60.0
"""How long a block is tried again while the server says that it cannot now."""

_END = Opaque(0xFFFF_FFFF)
_NOOP = Header.parse(encode(Noop())).opcode


class LoadRow(NamedTuple):
    """One item to store; `place` tells people where it came from."""

    place: str
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frames:
    """Writes SetQ frames. Everything that rows share is taken from one message that the catalogue encoded."""

    header: Header
    extras: bytes

    @classmethod
    def of(cls, *, flags: int, expiry: int, datatype: int) -> _Frames:
        model = encode(SetQ(key=b"k", flags=flags, expiry=expiry, datatype=datatype))
        header = Header.parse(model)
        return cls(header=header, extras=model[HEADER_BYTES : HEADER_BYTES + header.extras_length])

    def write(self, into: bytearray, row: LoadRow, *, vbucket: int, opaque: int) -> None:
        model, key, value = self.header, row.key, row.value
        length = model.extras_length + len(key) + len(value)
        into += Header(
            model.magic, model.opcode, 0, len(key), model.extras_length, model.datatype, vbucket, length, opaque, 0
        ).pack()
        into += self.extras
        into += key
        into += value


@dataclass(slots=True)
class _Block:
    rows: list[LoadRow] = field(default_factory=list)
    frames: bytearray = field(default_factory=bytearray)


class Loader:
    """Stores rows by a connection that nobody else uses meanwhile; a context manager that ends with `finish`.

    `acknowledged` counts the rows that the server took for good. A refused row goes to `refused`, with its error, and
    the load goes on; `refused` may raise to stop it. After an exception, up to `unsettled` rows more may be stored.
    """

    def __init__(  # noqa: PLR0913 - what the items of a load share
        self,
        connection: KvConnection,
        *,
        refused: Callable[[LoadRow, StatusError], None],
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
        sleep: Callable[[float], None] = time.sleep,
        retry_s_max: float = RETRY_S_MAX,
    ) -> None:
        self.acknowledged = 0
        self._connection = connection
        self._refused = refused
        self._frames = _Frames.of(flags=flags, expiry=expiry, datatype=datatype)
        self._sleep = sleep
        self._retry_s_max = retry_s_max
        self._filling = _Block()
        self._under_way: _Block | None = None

    @property
    def unsettled(self) -> int:
        """How many rows were sent, of which nobody knows yet what became."""
        return len(self._under_way.rows) if self._under_way is not None else 0

    def add(self, row: LoadRow) -> None:
        """Store a row, soon."""
        self._write(self._filling, row)
        if len(self._filling.frames) >= BLOCK_BYTES or len(self._filling.rows) >= BLOCK_ROWS_MAX:
            self._turn()

    def finish(self) -> None:
        """Store what is left, and wait until all is settled."""
        self._turn()
        self._settle()

    def settle(self) -> None:
        """Wait for what was sent, and send no more: to tell truly, after an interruption, what is stored."""
        self._settle()

    def _write(self, block: _Block, row: LoadRow) -> None:
        vbucket = self._connection.vbucket_of(row.key)
        self._frames.write(block.frames, row, vbucket=vbucket, opaque=len(block.rows))
        block.rows.append(row)

    def _turn(self) -> None:
        self._settle()
        block, self._filling = self._filling, _Block()
        if block.rows:
            self._send(block)

    def _send(self, block: _Block) -> None:
        self._under_way = block
        block.frames += encode(Noop(opaque=_END))
        self._connection.send(block.frames)

    def _settle(self) -> None:
        """Take the answers of the block under way; send again, in order, what the server could not do just now."""
        waited_s, pause_s = 0.0, BACKOFF_S_FIRST
        while self._under_way is not None:
            block = self._under_way
            errors = self._answers(block)
            self._under_way = None
            again = []
            if waited_s < self._retry_s_max:
                again = _to_retry(block.rows, errors)
            self._count(block.rows, errors, again)
            if again:
                self._sleep(pause_s)
                waited_s += pause_s
                pause_s = min(2 * pause_s, BACKOFF_S_MAX)
                self._send_again(block.rows[place] for place in again)

    def _send_again(self, rows: Iterable[LoadRow]) -> None:
        block = _Block()
        for row in rows:
            self._write(block, row)
        self._send(block)

    def _count(self, rows: list[LoadRow], errors: dict[int, StatusError], again: list[int]) -> None:
        """Count what is settled. A row that is sent again is counted when that is."""
        open_places = set(again)
        self.acknowledged += len(rows) - len(open_places | errors.keys())
        for place in sorted(errors.keys() - open_places):
            self._refused(rows[place], errors[place])

    def _answers(self, block: _Block) -> dict[int, StatusError]:
        errors: dict[int, StatusError] = {}
        while True:
            frame = self._connection.next_frame()
            opaque = frame.header.opaque
            if opaque == _END and frame.header.opcode == _NOOP:
                return errors
            reply = decode(frame)
            if not isinstance(reply, ErrorReply) or opaque >= len(block.rows):
                self._connection.close()
                raise ServerAnswerError(f"{self._connection.address}: an answer that nothing asked for: {reply!r}")
            row = block.rows[opaque]
            asked = f"set {row.key.decode(errors='backslashreplace')}"
            errors[opaque] = error_of(asked, reply.status, reply.value)


def _to_retry(rows: list[LoadRow], errors: dict[int, StatusError]) -> list[int]:
    """The places of the rows to send again: those with a retriable error, and all later ones of the same keys."""
    first: dict[bytes, int] = {}
    for place in sorted(errors):
        if errors[place].retriable:
            first.setdefault(rows[place].key, place)
    if not first:
        return []
    return [place for place, row in enumerate(rows) if first.get(row.key, len(rows)) <= place]
