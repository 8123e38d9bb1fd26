"""What decoding gives, whichever twin did it: rows, the messages beside them, and how far it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

from headrace.columns import slots as s
from headrace.columns.schema import BINARY_KEYS, SNAPSHOT_TYPES, TEXT_KEYS, signed
from headrace.errors import LocalProtocolError
from headrace.spares import Spares
from headrace.wire.codec import decode
from headrace.wire.dialects import Dialect
from headrace.wire.header import Frame, Header
from headrace.wire.limits import BODY_BYTES_MAX, HEADER_BYTES, INFLATED_BYTES_MAX

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from headrace.errors import RemoteProtocolError
    from headrace.ids import VBucketId, VbUuid
    from headrace.wire.message import Message

ROWS_MAX = 1 << 20
"""The most rows of one batch."""

VALUE_BYTES_MAX = 256 * 1024 * 1024
"""How many bytes of values, inflated, one batch may hold, and how many of keys; a larger value comes alone."""

_ARROW_MAX = (1 << 31) - 1
NO_SNAPSHOT = len(SNAPSHOT_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the bytes of a connection are to be read.

    `collections` maps a collection id to its scope and collection where those were agreed on in hello, and is None
    where keys carry no id. `keys` is "text", which refuses a key that is not UTF-8, or "binary".
    """

    dialect: Dialect = Dialect.DCP
    collections: Mapping[int, tuple[str, str]] | None = None
    keys: str = TEXT_KEYS
    body_bytes_max: int = BODY_BYTES_MAX
    inflated_bytes_max: int = INFLATED_BYTES_MAX
    rows_max: int = ROWS_MAX
    value_bytes_max: int = VALUE_BYTES_MAX
    key_bytes_max: int = VALUE_BYTES_MAX

    def __post_init__(self) -> None:
        for name in ("body_bytes_max", "inflated_bytes_max", "rows_max", "value_bytes_max", "key_bytes_max"):
            if not 1 <= getattr(self, name) <= _ARROW_MAX:
                raise LocalProtocolError(f"{name} is {getattr(self, name)}; it has to lie in 1..{_ARROW_MAX}")
        if self.keys not in (TEXT_KEYS, BINARY_KEYS):
            raise LocalProtocolError(f"keys is {self.keys!r}; it has to be {TEXT_KEYS!r} or {BINARY_KEYS!r}")


class Positions:
    """What rows inherit from earlier messages of their vbucket: the branch's uuid, and the snapshot they are in.

    One connection has one of these, and one thread at a time decodes with it.
    """

    def __init__(self) -> None:
        self.table: npt.NDArray[np.int64] = np.zeros((s.POSITIONS, s.VBUCKETS), np.int64)
        self.table[s.P_TYPE] = NO_SNAPSHOT
        self.address: int = self.table.ctypes.data
        self._notes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._notes_at = 0
        self.talk: tuple[Settings, npt.NDArray[np.int64], int] | None = None
        """What the kernel is told of these settings and this table, and where that lies; the decoder's own."""
        self._blocks: Spares[npt.NDArray[np.uint8]] = Spares(lambda size: np.empty(size, np.uint8))

    def notes(self, size: int) -> int:
        """The address of so many bytes for the kernel's own notes, the same from batch to batch while they suffice."""
        if len(self._notes) < size:
            self._notes = np.empty(size, np.uint8)
            self._notes_at = self._notes.ctypes.data
        return self._notes_at

    def block(self, size: int) -> npt.NDArray[np.uint8]:
        """Memory for a batch; that of an earlier one where nobody has it any more."""
        return self._blocks.take(size)

    def set_vbuuid(self, vbucket: VBucketId, vbuuid: VbUuid) -> None:
        """Say which branch the next rows of a vbucket belong to, from the failover log that its stream began with."""
        self.table[s.P_VBUUID, vbucket] = signed(vbuuid)

    def snapshot_end(self, vbucket: VBucketId) -> int:
        """Where the last snapshot ends that a marker announced; 0 before the first."""
        return int(self.table[s.P_END, vbucket])

    def forget(self, vbucket: VBucketId) -> None:
        """Forget a vbucket's snapshot: its stream ended or starts anew."""
        self.table[s.P_START : s.P_TYPE, vbucket] = 0
        self.table[s.P_TYPE, vbucket] = NO_SNAPSHOT


@dataclass(frozen=True, slots=True)
class Beside:
    """A message that is no change, and how many rows of the batch came before it."""

    row: int
    message: Message


class Controls(Sequence[Beside]):
    """The messages beside the rows, in order; each is decoded when it is asked for."""

    def __init__(
        self, rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], data: bytes, dialect: Dialect
    ) -> None:
        self._rows = rows
        self._starts = starts
        self._data = data
        self._dialect = dialect

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Beside: ...
    @overload
    def __getitem__(self, index: slice) -> list[Beside]: ...
    def __getitem__(self, index: int | slice) -> Beside | list[Beside]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        frame = self._data[self._starts[place] : self._starts[place + 1]]
        # The kernel has checked the header by the settings' limits: it is not to be measured by others again.
        message = decode(Frame(Header.parse(frame), frame[HEADER_BYTES:]), self._dialect)
        return Beside(int(self._rows[place]), message)

    def without(self, opcode: int) -> list[int]:
        """The places of all but the messages of one opcode, which cost nothing: markers may be as many as changes."""
        opcodes = np.frombuffer(self._data, np.uint8)[self._starts[:-1] + 1]
        return (opcodes != opcode).nonzero()[0].tolist()  # type: ignore[no-any-return]

    def header(self, place: int) -> Header:
        """What a message is and of which vbucket, before it is decoded."""
        return Header.parse(self._data, int(self._starts[place]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """One batch. `consumed_bytes` were read; the rest is to be given again, with more behind it.

    `flow_bytes` of those count for flow control: the producer waits to hear that they were worked off.

    `error` is set when the byte after those cannot be read. `more` tells that whole frames may be left: the batch was
    full, or an answer to a stream request came, after which `Positions` may want a new uuid.
    """

    rows: pa.RecordBatch
    controls: Sequence[Beside]
    consumed_bytes: int
    flow_bytes: int
    more: bool
    error: RemoteProtocolError | None
