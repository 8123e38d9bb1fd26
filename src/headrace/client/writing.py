"""Many writes into a bucket, over all its nodes: fast, in order for each key, and each row accounted for.

Rows go to the node that owns their vbucket, in blocks of quiet commands. A server answers only what it refuses, and the
noop at the end of a block when it was read to its end. One block is under way at each node while the next is filled.

    frames     how rows are packed; blocks                   writing_frames
    lanes      connections, and which vbucket is where       writing_lanes
    delivery   blocks sent, settled, sent again              writing_delivery
    journal    what a crash may still take back              writing_journal

To send a row twice does no harm: with its revision, the second is refused as not newer (`kept`); without one, it is
written again. So whatever breaks, rows are sent again until they are settled, for as long as `retry_s_max` says. What
was taken is waited for until it is on disk, and sent again where a crash lost it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from headrace.client.vbuckets import vbucket_of
from headrace.client.writing_delivery import Delivery, NotWrittenError, WriteCounts
from headrace.client.writing_frames import (
    DELETE,
    DELETE_WITH_META,
    DELETE_WITH_OPTIONS,
    SET,
    SET_WITH_META,
    SET_WITH_OPTIONS,
    Form,
)
from headrace.client.writing_journal import JOURNAL_BYTES_MAX
from headrace.errors import LocalProtocolError
from headrace.wire.codes import Datatype, Feature, WithMetaOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.errors import StatusError
    from headrace.client.options import ChangeOptions

_EXPIRED = int(WithMetaOption.IS_EXPIRATION)
_JSON, _XATTR = int(Datatype.JSON), int(Datatype.XATTR)

RETRY_S_MAX = 60.0
"""How long a row is tried again while servers cannot take it, or are away."""


class ItemVersion(NamedTuple):
    """What an item is elsewhere: `expiry` in seconds of the epoch, of a deletion the time when it was made."""

    flags: int
    expiry: int
    rev: int
    cas: int


class BucketWriter:
    """Writes rows into a bucket; a context manager that closes its connections. `finish` waits for all that was put.

    A row is named by whatever its writer likes, and is told by that when it is refused for good: `refused` gets the
    name, the key and the error, and may raise to stop it all. What the protocol cannot say of a row is a
    `LocalProtocolError` at once, and nothing came of it. One thread at a time.

    >>> with BucketWriter(ChangeOptions(connection=...)) as writer:  # doctest: +SKIP
    ...     writer.set("row 1", b"hello", b"world")
    ...     writer.finish()
    """

    def __init__(
        self,
        options: ChangeOptions,
        *,
        refused: Callable[[Any, bytes, StatusError], None] | None = None,
        retry_s_max: float = RETRY_S_MAX,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._delivery = Delivery(
            options,
            refused=refused if refused is not None else _raise,
            retry_s_max=retry_s_max,
            sleep=sleep,
            clock=clock,
        )
        try:
            line = self._delivery.open()
            self.features = line.features
            """What hello agreed on: for one, whether values may be marked as JSON."""
            # A bucket that settles conflicts by time refuses all with-meta writes that do not say this.
            by_time = self._delivery.journal.is_kept and line.settles_by_time()
            self._options = int(WithMetaOption.FORCE_ACCEPT) if by_time else 0
            # Servers before 5.0, which have no xattrs, know the other bit alone. Since then that one may write at a
            # replica, where nobody would see it (MB-67207).
            knows = Feature.XATTR in line.features
            self._skips = int(WithMetaOption.SKIP_CONFLICT_RESOLUTION if knows else WithMetaOption.FORCE)
            # Over a datatype that hello did not agree on, 4.1.2 closes the connection. It finds by itself what is JSON.
            self._unsaid = (0 if Feature.JSON in line.features else _JSON) | (0 if knows else _XATTR)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counts(self) -> WriteCounts:
        """What became of the rows that are settled."""
        return self._delivery.counts

    def close(self) -> None:
        """Close every connection. What was put and not finished may be written or not."""
        self._delivery.lanes.close()

    def finish(self) -> None:
        """Write what is left, and wait until all is settled and on disk."""
        self._delivery.finish()

    def set(self, row: Any, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0, datatype: int = 0) -> None:
        """Store an item, whatever is there. `expiry` is as on the wire: see `wire_expiry`."""
        self._put(SET, row, key, value, datatype, (flags, expiry))

    def delete(self, row: Any, key: bytes) -> None:
        """Remove an item, if it is there."""
        self._put(DELETE, row, key, b"", 0, ())

    def set_version(
        self,
        row: Any,
        key: bytes,
        value: bytes,
        version: ItemVersion,
        *,
        datatype: int = 0,
        skips_conflicts: bool = False,
    ) -> None:
        """Store an item as it is elsewhere, unless what is here is as new; or in any case, if conflicts are skipped."""
        options = self._options
        if skips_conflicts:
            options |= self._skips
        if options:
            self._put(SET_WITH_OPTIONS, row, key, value, datatype, (*version, options))
        else:
            self._put(SET_WITH_META, row, key, value, datatype, version)

    def delete_version(  # noqa: PLR0913 - what a deletion is made of
        self,
        row: Any,
        key: bytes,
        xattrs: bytes,
        version: ItemVersion,
        *,
        datatype: int = 0,
        expired: bool = False,
        skips_conflicts: bool = False,
    ) -> None:
        """Leave a tombstone as it is elsewhere, with the xattrs that outlive the item; else as `set_version`.

        A server that does not know `expired` is told of a deletion.
        """
        options = self._options
        if skips_conflicts:
            options |= self._skips
        if expired and self._delivery.tells_expirations:
            options |= _EXPIRED
        if options:
            self._put(DELETE_WITH_OPTIONS, row, key, xattrs, datatype, (*version, options))
        else:
            self._put(DELETE_WITH_META, row, key, xattrs, datatype, version)

    def _put(self, form: Form, row: Any, key: bytes, value: bytes, datatype: int, extras: tuple[int, ...]) -> None:
        if datatype & self._unsaid:
            datatype = self._sayable(datatype)
        delivery = self._delivery
        vbucket = vbucket_of(key, delivery.vbuckets)
        lane = delivery.lanes.at[vbucket]
        block = lane.filling
        opcode = form.quiet if vbucket in delivery.journal.branches else form.loud
        head = form.head(opcode, key, value, datatype, vbucket, len(block.rows), extras)
        block.add(row, form, head, key, value, vbucket)
        if block.is_full:
            delivery.turn(lane)
            if delivery.journal.size_bytes >= JOURNAL_BYTES_MAX:
                delivery.harden()

    def _sayable(self, datatype: int) -> int:
        if datatype & self._unsaid & _XATTR:
            raise LocalProtocolError("it has xattrs, and the server knows none")
        return datatype & ~self._unsaid


def _raise(_row: Any, _key: bytes, error: StatusError) -> None:
    raise error


__all__ = ["RETRY_S_MAX", "BucketWriter", "ItemVersion", "NotWrittenError", "WriteCounts"]
