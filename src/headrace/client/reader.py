"""Readers that block: sockets around a `Follower`, one thread, no event loop.

`BatchReader` gives Arrow record batches: bytes go from the socket into one buffer and from there into columns, without
a Python loop over changes. `ChangeReader` gives the same one by one.

Memory is bounded: by the window for each node, which the server keeps, and the buffer of each connection.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from headrace.client.changes import Change, SnapshotMarked, each_change
from headrace.client.errors import ConnectionLostError, told_of
from headrace.client.events import Batch, RolledBack, StreamEnded, StreamStarted
from headrace.client.follower import Follower
from headrace.client.link import Link, LinkState
from headrace.client.options import ChangeOptions, OptionError
from headrace.client.planning import BEGINNING, Plan
from headrace.columns.rollback import rollback_row
from headrace.protocol.subscription import branch_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    import pyarrow as pa

    from headrace.client.events import Event
    from headrace.client.planning import Start, Until
    from headrace.client.positions import Positions

WAIT_S_MAX = 3600.0
BULK_BYTES = 64 * 1024
"""Who sent so much at once has more: it is waited for, a moment, before what is there is decoded."""
BULK_WAIT_MS = 2
BULK_PIECE_BYTES = 256 * 1024
"""What has to come, meanwhile, for the waiting thread to be woken before that moment is over."""
_READ_BYTES_MIN = 64 * 1024
_SEND_BYTES = 1 << 20


class _Line:
    """The socket of one link."""

    def __init__(self, link: Link, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self.link = link
        self.switch_at: float | None = None
        """When to try the next address that the name stands for; None where this is the last, or it works."""
        self.is_connected = False
        self._handshake_wants = select.POLLOUT
        self._wakes_at = 1
        self._tls = tls
        self._handshake = tls is not None
        address = link.address
        self._candidates = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        self._share_s = timeout_s / len(self._candidates)
        self.socket = self._begin()
        self._waits: tuple[type[OSError], ...] = (BlockingIOError, InterruptedError)
        if tls is not None:
            import ssl  # noqa: PLC0415 - 15 ms that an open connection need not wait

            self._waits = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

    @property
    def wants(self) -> int:
        """What to wait for."""
        if not self.is_connected:
            return self._handshake_wants
        return select.POLLIN | select.POLLOUT if self.link.out else select.POLLIN

    def _begin(self) -> socket.socket:
        """Begin to connect to the next address that the name stands for, past those that fail at once."""
        while True:
            candidate = self._candidates.pop(0)
            self.switch_at = time.monotonic() + self._share_s if self._candidates else None
            try:
                return self._begin_at(*candidate)
            except OSError:  # as when localhost is ::1 first, and the machine has no IPv6
                if not self._candidates:
                    raise

    def _begin_at(
        self,
        family: socket.AddressFamily,
        kind: socket.SocketKind,
        number: int,
        _name: str,
        where: tuple[Any, ...],
    ) -> socket.socket:
        plain = socket.socket(family, kind, number)
        try:
            plain.setblocking(False)  # noqa: FBT003 - the socket's own name for it
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(BlockingIOError):
                plain.connect(where)
            if self._tls is None:
                return plain
            host = self.link.address.host
            return self._tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        except BaseException:
            plain.close()
            raise

    @property
    def has_more(self) -> bool:
        """Whether TLS holds bytes that no poll would tell of."""
        return self.is_connected and self._handshake and self.socket.pending() > 0  # type: ignore[attr-defined]

    def connect(self) -> bool:
        """Go on connecting; True when it is done."""
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code and self._candidates:  # as when localhost is ::1 first, and the server has IPv4 only
            self.switch()
            return False
        if code:
            raise OSError(code, os.strerror(code))
        self.switch_at = None
        if self._handshake:
            try:
                self.socket.do_handshake()  # type: ignore[attr-defined]
            except self._waits as wait:  # the last of them is for writing; to poll for both would never wait
                self._handshake_wants = select.POLLOUT if isinstance(wait, self._waits[-1]) else select.POLLIN
                return False
        self.is_connected = True
        return True

    def switch(self) -> None:
        """Try the next address: this one failed, or is silent for its share of the time."""
        self.socket.close()
        self._handshake_wants = select.POLLOUT
        self.socket = self._begin()

    def fill(self) -> tuple[int, bool]:
        """Receive what is there; how much, and whether the server closed the connection."""
        room, filled = self.link.room(), 0
        enough = len(room) - len(room) // 8
        with room:
            try:
                while filled < len(room):
                    try:
                        count = self.socket.recv_into(room[filled:])
                    except self._waits:
                        if BULK_BYTES <= filled < enough and self._more_soon(enough - filled):
                            continue
                        break
                    if not count:
                        return filled, True
                    filled += count
            finally:
                self._wake_at(1)
        return filled, False

    def _more_soon(self, bytes_wanted: int) -> bool:
        """Wait a moment for more of what flows: a batch costs much the same, however few its rows are.

        The system is asked not to wake this thread for every piece of it.
        """
        self._wake_at(min(bytes_wanted, BULK_PIECE_BYTES))
        ready = select.poll()
        ready.register(self.socket, select.POLLIN)
        return bool(ready.poll(BULK_WAIT_MS))

    def _wake_at(self, bytes_min: int) -> None:
        """Have the system tell of bytes when there are so many."""
        if self._wakes_at != bytes_min:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, bytes_min)
            self._wakes_at = bytes_min

    def flush(self) -> None:
        """Send what the socket takes."""
        out = self.link.out
        while out:
            try:
                sent = self.socket.send(memoryview(out)[:_SEND_BYTES])
            except self._waits:
                return
            del out[:sent]

    def close(self) -> None:
        """Close."""
        with suppress(OSError):
            self.socket.close()


class Reader:
    """What both blocking readers share; a context manager that closes the connections.

    It may be used by one thread at a time. Nothing is connected before the first change is asked for.
    """

    _wants_markers = False

    def __init__(self, options: ChangeOptions | None = None, *, start: Start = BEGINNING, until: Until = None) -> None:
        self.options = options if options is not None else ChangeOptions()
        self._follower = self._follow(Plan(start, until))
        self._tls = self.options.tls()
        self._lines: dict[Link, _Line] = {}
        self._closed = False

    def _follow(self, plan: Plan) -> Follower:
        return Follower(self.options, plan, time.monotonic(), wants_markers=self._wants_markers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.connection}, bucket={self.options.bucket!r})"

    def close(self) -> None:
        """Close every connection; what was not taken is dropped, and `positions` stay as they are."""
        self._closed = True
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    @property
    def positions(self) -> Positions:
        """Where to go on after what was taken: to save, and to start from again."""
        return self._follower.positions

    @property
    def is_done(self) -> bool:
        """Whether everything up to the ends was read and taken."""
        return self._follower.is_done

    def _wait(self, timeout_s: float | None) -> Event | None:
        follower = self._follower
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not follower.events:
            if self._closed:
                raise OptionError("the reader is closed")
            if follower.failure is not None:
                raise follower.failure
            if follower.is_done:
                return None
            now = time.monotonic()
            if end is not None and now > end:
                return None
            self._turn(now, end)
        return follower.events.popleft()

    def _turn(self, now: float, end: float | None) -> None:
        """Do what is due, wait for sockets, and take in what came."""
        follower = self._follower
        follower.tick(now)
        self._open_and_close()
        if follower.events or follower.failure is not None or follower.is_done:
            return
        self._flush()
        switches = (line.switch_at for line in self._lines.values())
        times = [at for at in (follower.deadline(), end, *switches) if at is not None]
        pause_s = min(max(min(times, default=now + WAIT_S_MAX) - time.monotonic(), 0.0), WAIT_S_MAX)
        for line in self._ready(pause_s):
            self._serve(line)
        self._switch()

    def _switch(self) -> None:
        now = time.monotonic()
        for line in list(self._lines.values()):
            if line.switch_at is not None and now >= line.switch_at:
                try:
                    line.switch()
                except OSError as error:
                    self._lost(line.link, "cannot connect", error)

    def _ready(self, pause_s: float) -> list[_Line]:
        # Not select(), which refuses a descriptor past 1023: a busy process has more files open.
        ready = select.poll()
        by_number = {}
        for line in self._lines.values():
            by_number[line.socket.fileno()] = line
            ready.register(line.socket, line.wants)
        waiting = [line for line in self._lines.values() if line.has_more]
        found = [by_number[number] for number, _ in ready.poll(0 if waiting else math.ceil(pause_s * 1000))]
        return found + [line for line in waiting if line not in found]

    def _serve(self, line: _Line) -> None:
        follower, link = self._follower, line.link
        if link.state is LinkState.CLOSED:  # by what another one brought
            return
        try:
            if not line.is_connected:
                if line.connect():
                    follower.connected(link, time.monotonic())
                    line.flush()
                return
            line.flush()
            count, closed = line.fill()
        except OSError as error:
            self._lost(link, "the connection broke" if line.is_connected else "cannot connect", error)
            return
        if count:
            follower.received(link, count, time.monotonic())
        if closed:
            gone = ConnectionLostError(f"{link.address}: the server closed the connection")
            follower.lost(link, gone, time.monotonic())
        self._open_and_close()
        self._flush()

    def _lost(self, link: Link, what: str, error: OSError | UnicodeError) -> None:
        lost = ConnectionLostError(f"{link.address}: {what}: {told_of(error)}")
        self._follower.lost(link, lost, time.monotonic())

    def _open_and_close(self) -> None:
        follower = self._follower
        while follower.nodes.to_close or follower.nodes.to_connect:
            while follower.nodes.to_close:
                line = self._lines.pop(follower.nodes.to_close.pop(), None)
                if line is not None:
                    line.close()
            while follower.nodes.to_connect:
                link = follower.nodes.to_connect.pop()
                try:
                    self._lines[link] = _Line(link, self._tls, self.options.timeout_s)
                except (OSError, UnicodeError) as error:  # the second is of names that cannot be looked up
                    self._lost(link, "cannot connect", error)

    def _flush(self) -> None:
        for line in list(self._lines.values()):
            if line.is_connected and line.link.out:
                try:
                    line.flush()
                except OSError as error:
                    self._lost(line.link, "the connection broke", error)


class BatchReader(Reader):
    """Reads changes as Arrow record batches (the columns are in `headrace.columns.schema`).

    >>> with BatchReader(ChangeOptions(connection="couchbase://127.0.0.1"), until="now") as batches:  # doctest: +SKIP
    ...     for batch in batches:
    ...         print(batch.num_rows)

    A rollback is a batch of one row whose event is `rollback`: what was read after its seqno is to be given up.
    """

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        rows = self.next_batch()
        if rows is None:
            raise StopIteration
        return rows

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Wait for what happens next; None when everything up to the ends was read, or after `timeout_s`.

        `is_done` tells which. What is given counts as taken.
        """
        event = self._wait(timeout_s)
        if event is not None:
            self._follower.taken.take(event)
            self._flush()
        return event

    def next_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """Wait for the next batch; None when everything up to the ends was read, or after `timeout_s`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            event = self.next_event(None if end is None else max(end - time.monotonic(), 0.0))
            if event is None:
                return None
            if isinstance(event, Batch) and event.rows.num_rows:
                return event.rows
            if isinstance(event, RolledBack):
                vbuuid = branch_of(event.log, event.whole)
                return rollback_row(event.vbucket, vbuuid, event.whole, keys=self.options.keys)


class ChangeReader(Reader):
    """Reads changes one by one, and between them what happened to the streams.

    >>> with ChangeReader(start="now") as changes:  # doctest: +SKIP
    ...     for change in changes:
    ...         print(change)

    It gives `Change`, `RolledBack`, `StreamStarted`, `StreamEnded` and `SnapshotMarked`, in the order of each vbucket.
    `positions` are always those after the last thing that was given.
    """

    _wants_markers = True

    def __init__(self, options: ChangeOptions | None = None, *, start: Start = BEGINNING, until: Until = None) -> None:
        super().__init__(options, start=start, until=until)
        self._rest: Iterator[Change | SnapshotMarked] = iter(())

    def __iter__(self) -> Iterator[Change | SnapshotMarked | RolledBack | StreamStarted | StreamEnded]:
        return self

    def __next__(self) -> Change | SnapshotMarked | RolledBack | StreamStarted | StreamEnded:
        found = self.next_change()
        if found is None:
            raise StopIteration
        return found

    def next_change(
        self, timeout_s: float | None = None
    ) -> Change | SnapshotMarked | RolledBack | StreamStarted | StreamEnded | None:
        """Wait for the next; None when everything up to the ends was read, or after `timeout_s`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            for each in self._rest:
                return each
            event = self._wait(None if end is None else max(end - time.monotonic(), 0.0))
            if event is None:
                return None
            if not isinstance(event, Batch):
                self._follower.taken.take(event)
                return event
            self._rest = each_change(event, self._follower.taken)


__all__ = ["BatchReader", "ChangeReader", "Reader"]
