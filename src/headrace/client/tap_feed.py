"""One TAP stream of some vbuckets of a node: connected, read without blocking, and acknowledged when told to.

**A backfill must be asked for twice.** ep-engine leaves it out, whatever BACKFILL says, when it has the checkpoint in
memory that a client is to begin with, and without a word of the client that is the first one. After a restart it has
that, empty (4.1.2: 20 items on disk, BACKFILL from 0, and none of them came). So a checkpoint is named that no server
has (`NO_CHECKPOINT`): then it has to go to its disk. A registered client that the server still knows, and that has had
its backfill, names none, and goes on where it was.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client.errors import ConnectionLostError
from headrace.client.tap_intake import Intake, prepare_dump
from headrace.client.tap_node import SILENCE_S_MAX, TapConnection
from headrace.client.tap_rows import TapRows
from headrace.ids import VBucketId
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import TapConnect, VBucketCheckpoint
from headrace.wire.codes import Feature, TapConnectFlag

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from headrace.client.options import ChangeOptions
    from headrace.client.tap_node import TapPart
    from headrace.wire import Frame

FUTURE = 0xFFFF_FFFF_FFFF_FFFF
"""The backfill date that asks for what is to come, and nothing else."""

NO_CHECKPOINT = (1 << 63) - 2
"""The id of a checkpoint that no server ever comes to, and the next of which it does not come to either."""

_FLAGS = TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_BYTEORDER


@dataclass(frozen=True, slots=True, kw_only=True)
class TapWish:
    """What is asked of a server."""

    dump: bool = False
    """All that is there, and then an end."""
    backfill: bool = True
    """All that is there before what is to come."""
    name: str | None = None
    """The name of a client that the server knows until it is deregistered; None for one that is new each time."""

    def is_known(self, connection: TapConnection, part: TapPart) -> bool:
        """Whether a server has a registered client still, to go on where it was."""
        return self.name is not None and connection.knows(registered_name(self.name, part))

    def message(
        self, options: ChangeOptions, part: TapPart, vbuckets: tuple[int, ...] | None, *, is_known: bool
    ) -> TapConnect:
        """Put it into words; `vbuckets` are those to list."""
        flags = _FLAGS
        date = None
        checkpoints = None
        if self.dump:
            flags |= TapConnectFlag.DUMP
        else:
            flags |= TapConnectFlag.BACKFILL
            date = 0 if self.backfill else FUTURE
            if self.backfill and vbuckets is not None and not is_known:
                flags |= TapConnectFlag.CHECKPOINT
                checkpoints = no_checkpoints(vbuckets)
        if vbuckets is not None:
            flags |= TapConnectFlag.LIST_VBUCKETS
        if options.no_value:
            flags |= TapConnectFlag.KEYS_ONLY
        name = f"{options.name}-{secrets.token_hex(8)}"
        if self.name is not None:
            flags |= TapConnectFlag.REGISTERED_CLIENT
            name = registered_name(self.name, part)
        return TapConnect(
            flags=flags, name=name.encode(), backfill_date=date, vbuckets=vbuckets, checkpoints=checkpoints
        )


def no_checkpoints(vbuckets: Iterable[int]) -> tuple[VBucketCheckpoint, ...]:
    """Name checkpoints that are nowhere, so that vbuckets are read from disk."""
    return tuple(VBucketCheckpoint(VBucketId(vb), NO_CHECKPOINT) for vb in vbuckets)


def registered_name(name: str, part: TapPart) -> str:
    """What a registered client is called at one node: nodes are read by one connection each."""
    return f"{name}:{part.node}"


class TapFeed:
    """One stream. What it gave counts as taken, and is acknowledged, when `acknowledge` is called."""

    def __init__(self, options: ChangeOptions, part: TapPart, wish: TapWish) -> None:
        self.part = part
        self.is_dump = wish.dump
        self.is_broken = False
        """Whether nothing can be sent any more; what came before is still to be read."""
        self._connection = TapConnection(part.node, options)
        try:
            self._begin(options, wish)
        except BaseException:
            self.close()
            raise

    def _begin(self, options: ChangeOptions, wish: TapWish) -> None:
        connection = self._connection
        datatypes = Feature.JSON in connection.features
        self._rows = TapRows(
            keys=options.keys, bytes_max=options.buffer_bytes, datatypes=datatypes, values=not options.no_value
        )
        vbuckets, expected = prepare_dump(connection, self.part) if wish.dump else (self.part.vbuckets, None)
        self._intake = Intake(connection, expected)
        self.is_over = expected is not None and not expected
        """Whether a dump is whole."""
        self.heard_at = time.monotonic()
        if self.is_over:
            return
        is_known = wish.is_known(connection, self.part)
        connection.send(encode(wish.message(options, self.part, vbuckets, is_known=is_known), Dialect.TAP))
        if not wish.dump:
            # OPAQUE 0 comes at once to who supports acks: from here on the server keeps what changes.
            self._take(connection.next_frame())

    @property
    def has_rows(self) -> bool:
        """Whether there is something to give."""
        return len(self._rows) > 0

    def batch(self) -> pa.RecordBatch:
        """Give what has come."""
        return self._rows.batch()

    def fileno(self) -> int:
        """What to poll."""
        return self._connection.fileno()

    def fill(self) -> bool:
        """Take in what is there; tell if there was something. It raises when the connection broke."""
        try:
            frames = self._connection.take()
        except ConnectionLostError as error:
            missing = self._intake.progress.missing
            if self.is_dump and missing is None:
                self.is_over = True
                return True
            if not self.is_dump:
                raise
            raise ConnectionLostError(f"{error}, and the dump is not whole: {missing}") from error
        for frame in frames:
            self._take(frame)
        if frames:
            self.heard_at = time.monotonic()
        elif time.monotonic() > self.heard_at + SILENCE_S_MAX:
            raise ConnectionLostError(f"{self.part.node}: not a word for {SILENCE_S_MAX:g} s")
        self._send(self._intake.signs)
        return bool(frames)

    def acknowledge(self) -> None:
        """What was given has been taken."""
        self._send(self._intake.acks)

    def _take(self, frame: Frame) -> None:
        self._intake.take(frame, self._rows)

    def _send(self, data: bytearray) -> None:
        """Send and forget; when the connection broke, what was received before is still to be read."""
        sent = bytes(data)
        data.clear()
        if sent and not self.is_broken:
            try:
                self._connection.send(sent)
            except ConnectionLostError:
                self.is_broken = True

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


__all__ = ["FUTURE", "NO_CHECKPOINT", "TapFeed", "TapWish", "no_checkpoints", "registered_name"]
