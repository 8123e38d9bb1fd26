"""Everything that an old server holds, by TAP: the way out of a release that knows nothing better.

A connection is opened, told what is wanted (TAP_CONNECT with DUMP, SUPPORT_ACK, the byte order of flags and a list of
vbuckets), and sent everything; then the server closes it. TAP has neither seqnos nor positions: what breaks off is read
again from its beginning, and an item that is changed meanwhile may come twice.

**The end.** That the socket closes proves nothing: a server that dies does that, too. A server opens the backfill of a
vbucket by OPAQUE 1 and closes it by OPAQUE 8, once every item of it was sent and acknowledged; ep-engine has done so
since 2011 (captures 08c, 08e, 08f). A dump is whole when all that was opened is closed, and all that has items by the
server's statistics was opened: a vbucket without items is never mentioned, even when tombstones of it are left. How the
connection ends after that does not matter any more.

**Memory.** What is received and not yet taken is bounded by the server's window of unacknowledged messages and by the
socket; a batch ends at `buffer_bytes`. Acks are gathered while messages wait here, so that sending them takes no more
in than is worked off.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Self

from headrace.client.errors import ConnectionLostError
from headrace.client.tap_intake import Intake, Progress, prepare_dump
from headrace.client.tap_node import TapConnection, TapPart, tap_parts
from headrace.client.tap_rows import TapRows
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import TapConnect
from headrace.wire.codes import Feature, TapConnectFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headrace.client.options import ChangeOptions

DUMP_FLAGS = TapConnectFlag.DUMP | TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_BYTEORDER
_ACK_BYTES_MAX = 4096


class TapDump:
    """One dump: iterate to get Arrow batches of `headrace.columns`; a context manager that closes the connection.

    It raises where the dump is not whole. What it gave before is a part then, and to be thrown away.

    >>> with TapDump(ChangeOptions(), tap_parts(ChangeOptions())[0]) as dump:  # doctest: +SKIP
    ...     rows = sum(batch.num_rows for batch in dump)
    """

    def __init__(self, options: ChangeOptions, part: TapPart) -> None:
        self._options = options
        self._connection = TapConnection(part.node, options)
        self._lost = ""
        try:
            self._begin(part)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _begin(self, part: TapPart) -> None:
        vbuckets, expected = prepare_dump(self._connection, part)
        self._intake = Intake(self._connection, expected)
        self._is_empty = expected is not None and not expected
        if not self._is_empty:
            flags = DUMP_FLAGS if vbuckets is None else DUMP_FLAGS | TapConnectFlag.LIST_VBUCKETS
            name = f"{self._options.name}-{secrets.token_hex(8)}".encode()  # a name used again ends the older dump
            self._send(encode(TapConnect(flags=flags, name=name, vbuckets=vbuckets), Dialect.TAP))

    def _send(self, data: bytes | bytearray) -> None:
        """Send; when the connection broke, what was received before is still to be read, and tells what it means."""
        try:
            self._connection.send(data)
        except ConnectionLostError as error:
            self._lost = self._lost or str(error)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Give the batches; they can be had once."""
        if self._is_empty:
            return
        datatypes = Feature.JSON in self._connection.features
        rows = TapRows(keys=self._options.keys, bytes_max=self._options.buffer_bytes, datatypes=datatypes)
        while self._receive(rows):
            if rows.is_full:
                yield rows.batch()
        if len(rows):
            yield rows.batch()

    def _receive(self, rows: TapRows) -> bool:
        """Take the next message in; False at the end of a dump that is whole."""
        node, progress = self._connection, self._intake.progress
        try:
            frame = node.next_frame()
        except ConnectionLostError as error:
            missing = progress.missing
            if missing is None:
                return False
            raise ConnectionLostError(
                f"{self._lost or error}, after {progress.items} items of a dump, which is not whole: {missing}"
            ) from error
        self._intake.take(frame, rows)
        owed = len(self._intake.acks) + len(self._intake.signs)
        if owed and (node.is_drained or owed > _ACK_BYTES_MAX):
            self._send(self._intake.acks + self._intake.signs)
            self._intake.acks.clear()
            self._intake.signs.clear()
        return True


__all__ = ["DUMP_FLAGS", "Progress", "TapDump", "TapPart", "tap_parts"]
