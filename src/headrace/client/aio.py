"""Readers for an event loop: asyncio's transports around the same `Follower` that the blocking readers have.

Bytes are taken in, and signs of life are answered, whether or not somebody waits for a change: the window bounds what
piles up, since what was not taken is not acknowledged. Where a server keeps to no window, the socket is not read on.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from headrace.client.changes import each_change
from headrace.client.errors import ConnectionLostError, told_of
from headrace.client.events import Batch, RolledBack
from headrace.client.follower import Follower
from headrace.client.link import Link, LinkState
from headrace.client.options import ChangeOptions, OptionError
from headrace.client.planning import BEGINNING, Plan
from headrace.columns.rollback import rollback_row
from headrace.protocol.subscription import branch_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import pyarrow as pa

    from headrace.client.changes import Change, SnapshotMarked
    from headrace.client.events import Event, StreamEnded, StreamStarted
    from headrace.client.planning import Start, Until
    from headrace.client.positions import Positions


_NEXT_ADDRESS_S = 0.25
"""After so long without an answer, the next address of a name is tried beside the one before, as RFC 8305 has it."""


class _Protocol(asyncio.BufferedProtocol):
    """The transport of one link."""

    def __init__(
        self, link: Link, received: Callable[[Link, int], None], broken: Callable[[Link, Exception | None], None]
    ) -> None:
        self._link = link
        self._received = received
        self._broken = broken
        self.transport: asyncio.Transport | None = None
        self._is_paused = False

    def pace(self, untaken_bytes_max: int) -> None:
        """Receive no more while too much was not taken."""
        pauses = self._link.untaken_bytes > untaken_bytes_max
        if self.transport is None or pauses == self._is_paused or self.transport.is_closing():
            return
        self._is_paused = pauses
        self._link.hold(held=pauses)
        if pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._link.room() if self._link.state is not LinkState.CLOSED else memoryview(bytearray(sizehint))

    def buffer_updated(self, nbytes: int) -> None:
        if self._link.state is not LinkState.CLOSED:
            self._received(self._link, nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._broken(self._link, exc)


class AsyncReader:
    """What both readers for an event loop share; an asynchronous context manager that closes the connections.

    Nothing is connected before the first change is asked for.
    """

    _wants_markers = False

    def __init__(self, options: ChangeOptions | None = None, *, start: Start = BEGINNING, until: Until = None) -> None:
        self.options = options if options is not None else ChangeOptions()
        self._plan = Plan(start, until)
        self._made: Follower | None = None
        self._tls = self.options.tls()
        # A server that keeps to its window sends one message past it at most.
        self._untaken_bytes_max = 2 * max(self.options.window_bytes, self.options.buffer_bytes)
        self._lines: dict[Link, _Protocol] = {}
        self._connecting: dict[Link, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def _follower(self) -> Follower:
        if self._made is None:
            now = asyncio.get_running_loop().time()
            self._made = Follower(self.options, self._plan, now, wants_markers=self._wants_markers)
        return self._made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.connection}, bucket={self.options.bucket!r})"

    async def close(self) -> None:
        """Close every connection; what was not taken is dropped, and `positions` stay as they are."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._connecting.values():
            task.cancel()
        for task in list(self._connecting.values()):
            with suppress(asyncio.CancelledError):
                await task
        for line in list(self._lines.values()):
            if line.transport is not None:
                line.transport.abort()
        self._lines.clear()
        self._wake.set()
        await asyncio.sleep(0)  # lets the transports go

    @property
    def positions(self) -> Positions:
        """Where to go on after what was taken: to save, and to start from again."""
        return self._follower.positions

    @property
    def is_done(self) -> bool:
        """Whether everything up to the ends was read and taken."""
        return self._follower.is_done

    async def _wait(self, timeout_s: float | None) -> Event | None:
        follower, loop = self._follower, asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        while not follower.events:
            if self._closed:
                raise OptionError("the reader is closed")
            if follower.failure is not None:
                raise follower.failure
            if follower.is_done:
                return None
            self._wake.clear()
            self._tick()
            if self._has_news():
                continue
            try:
                await asyncio.wait_for(self._wake.wait(), None if end is None else max(end - loop.time(), 0.0))
            except TimeoutError:
                if not follower.events:
                    return None
        return follower.events.popleft()

    def _has_news(self) -> bool:
        follower = self._follower
        return bool(follower.events) or follower.failure is not None or follower.is_done

    # -- what the transports bring

    def _received(self, link: Link, count: int) -> None:
        """Bytes came."""
        self._follower.received(link, count, asyncio.get_running_loop().time())
        self._move()

    def _broken(self, link: Link, error: Exception | None) -> None:
        """A connection is gone."""
        self._lines.pop(link, None)
        told = f"the connection broke: {error}" if error is not None else "the server closed the connection"
        lost = ConnectionLostError(f"{link.address}: {told}")
        self._follower.lost(link, lost, asyncio.get_running_loop().time())
        if not self._closed:
            self._move()

    def _tick(self) -> None:
        self._follower.tick(asyncio.get_running_loop().time())
        self._move()

    def _move(self) -> None:
        """Open, close and send what the follower wants, and see to it again when it is due."""
        follower, loop = self._follower, asyncio.get_running_loop()
        while follower.nodes.to_close:
            link = follower.nodes.to_close.pop()
            task = self._connecting.pop(link, None)
            if task is not None:
                task.cancel()
            line = self._lines.pop(link, None)
            if line is not None and line.transport is not None:
                line.transport.abort()
        while follower.nodes.to_connect:
            link = follower.nodes.to_connect.pop()
            self._connecting[link] = loop.create_task(self._connect(link))
        for link, line in self._lines.items():
            if not self.options.mitigate_rollbacks:  # else the answers that let changes go would not be heard
                line.pace(self._untaken_bytes_max)
            if link.out and line.transport is not None:
                line.transport.write(bytes(link.out))
                link.out.clear()
        if self._timer is not None:
            self._timer.cancel()
        due = follower.deadline()
        self._timer = loop.call_at(due, self._tick) if due is not None and not self._closed else None
        if self._has_news():
            self._wake.set()

    async def _connect(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        address = link.address
        try:
            _, line = await loop.create_connection(
                lambda: _Protocol(link, self._received, self._broken),
                address.host,
                address.port,
                ssl=self._tls,
                server_hostname=address.host if self._tls is not None else None,
                happy_eyeballs_delay=_NEXT_ADDRESS_S,
            )
        except (OSError, UnicodeError) as error:  # the second is of names that cannot be looked up
            self._connecting.pop(link, None)
            lost = ConnectionLostError(f"{address}: cannot connect: {told_of(error)}")
            self._follower.lost(link, lost, loop.time())
            self._move()
            return
        self._connecting.pop(link, None)
        if link.state is LinkState.CLOSED or self._closed:
            assert line.transport is not None
            line.transport.abort()
            return
        self._lines[link] = line
        self._follower.connected(link, loop.time())
        self._move()


class AsyncBatchReader(AsyncReader):
    """Reads changes as Arrow record batches, in an event loop; see `BatchReader`.

    >>> async with AsyncBatchReader(until="now") as batches:  # doctest: +SKIP
    ...     async for batch in batches:
    ...         print(batch.num_rows)
    """

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        rows = await self.next_batch()
        if rows is None:
            raise StopAsyncIteration
        return rows

    async def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Wait for what happens next; None when everything up to the ends was read, or after `timeout_s`.

        `is_done` tells which. What is given counts as taken.
        """
        event = await self._wait(timeout_s)
        if event is not None:
            self._follower.taken.take(event)
            self._move()
        return event

    async def next_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """Wait for the next batch; None when everything up to the ends was read, or after `timeout_s`."""
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        while True:
            event = await self.next_event(None if end is None else max(end - loop.time(), 0.0))
            if event is None:
                return None
            if isinstance(event, Batch) and event.rows.num_rows:
                return event.rows
            if isinstance(event, RolledBack):
                vbuuid = branch_of(event.log, event.whole)
                return rollback_row(event.vbucket, vbuuid, event.whole, keys=self.options.keys)


class AsyncChangeReader(AsyncReader):
    """Reads changes one by one, in an event loop; see `ChangeReader`.

    >>> async with AsyncChangeReader(start="now") as changes:  # doctest: +SKIP
    ...     async for change in changes:
    ...         print(change)
    """

    _wants_markers = True

    def __init__(self, options: ChangeOptions | None = None, *, start: Start = BEGINNING, until: Until = None) -> None:
        super().__init__(options, start=start, until=until)
        self._rest: Iterator[Change | SnapshotMarked] = iter(())

    def __aiter__(self) -> AsyncIterator[Change | SnapshotMarked | RolledBack | StreamStarted | StreamEnded]:
        return self

    async def __anext__(self) -> Change | SnapshotMarked | RolledBack | StreamStarted | StreamEnded:
        found = await self.next_change()
        if found is None:
            raise StopAsyncIteration
        return found

    async def next_change(
        self, timeout_s: float | None = None
    ) -> Change | SnapshotMarked | RolledBack | StreamStarted | StreamEnded | None:
        """Wait for the next; None when everything up to the ends was read, or after `timeout_s`."""
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        while True:
            for each in self._rest:
                return each
            self._move()  # what was worked off is acknowledged
            event = await self._wait(None if end is None else max(end - loop.time(), 0.0))
            if event is None:
                return None
            if not isinstance(event, Batch):
                self._follower.taken.take(event)
                return event
            self._rest = each_change(event, self._follower.taken)


__all__ = ["AsyncBatchReader", "AsyncChangeReader", "AsyncReader"]
