"""Changes of an old server, by TAP, as they happen: what `ChangeReader` is for DCP, as far as TAP goes.

TAP has no seqnos and no positions, so nothing can be gone on from. What comes is **at least once**: after a connection
broke, a reader from the beginning gets all again; a reader of what is to come may have missed something, and says so.
The exception is a registered client: the server keeps, in its memory, what such a client has not acknowledged, until
someone deregisters it (`deregister`).

A message is acknowledged when what it told was given and the next is asked for: what was lost with a process that died
in between comes again to a registered client.

Each node is read by one connection; nodes are those of the cluster map where servers tell one. Memory is bounded by the
server's window of unacknowledged messages and `buffer_bytes` for each node.
"""

from __future__ import annotations

import dataclasses
import math
import select
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from headrace.client.changes import changes_of
from headrace.client.errors import ClientError, ConnectionLostError
from headrace.client.options import ChangeOptions, OptionError
from headrace.client.planning import BEGINNING
from headrace.client.tap_feed import TapFeed, TapWish, registered_name
from headrace.client.tap_node import TapConnection, tap_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.changes import Change

NOW = "now"
PAUSE_S_FIRST, PAUSE_S_MAX = 0.25, 10.0
"""How long to wait before a broken connection is made again."""
LOOK_S_MAX = 5.0
"""How often, at least, the silence of a server is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TapInterrupted:
    """A connection broke, and is made again."""

    host: str
    reason: str
    misses: bool
    """Whether changes may be missing: those that happened until the connection is there again."""
    repeats: bool
    """Whether all comes again from the beginning."""


@dataclass(slots=True)
class _Due:
    """Vbuckets that are to be read, once a server lets us."""

    vbuckets: tuple[int, ...] | None
    at: float
    pause_s: float = PAUSE_S_FIRST
    failing_since: float | None = None


class TapReader:
    """Reads changes by TAP, one by one or as Arrow batches; a context manager that closes its connections.

    >>> with TapReader(ChangeOptions(connection="couchbase://old-host"), start="now") as changes:  # doctest: +SKIP
    ...     for change in changes:
    ...         print(change)

    It gives `Change`, whose seqno and vbuuid are 0, and `TapInterrupted`. `start` is "beginning" or "now", `until`
    "now" for an end where all is read that was there, or None. With `registered`, the server knows this client by
    `name` and goes on where it was; who does not come back fills the server's memory.
    """

    def __init__(
        self,
        options: ChangeOptions | None = None,
        *,
        start: str = BEGINNING,
        until: str | None = None,
        name: str | None = None,
        registered: bool = False,
    ) -> None:
        self.options = options if options is not None else ChangeOptions()
        self._check(start, until, name, registered=registered)
        if name is not None:
            self.options = dataclasses.replace(self.options, name=name)
        self.vbuckets: tuple[int, ...] = ()
        """The vbuckets that are read, as far as servers told."""
        self.gaps = 0
        """How often changes may have been missed."""
        self._wish = TapWish(
            dump=until == NOW, backfill=start == BEGINNING, name=self.options.name if registered else None
        )
        self._feeds: list[TapFeed] = []
        self._due: list[_Due] = []
        if start == BEGINNING or until is None:
            self._due = [_Due(self.options.vbuckets, at=0.0)]
        self._events: deque[pa.RecordBatch | TapInterrupted] = deque()
        self._rest: deque[Change] = deque()
        self._closed = False

    def _check(self, start: str, until: str | None, name: str | None, *, registered: bool) -> None:
        if start not in (BEGINNING, NOW):
            raise OptionError(f"by TAP, changes are read from {BEGINNING!r} or from {NOW!r}: it has no positions")
        if until not in (None, NOW):
            raise OptionError(f"by TAP, changes are read without an end or until {NOW!r}")
        if registered and (name is None or until is not None):
            raise OptionError("a registered client has a name, and no end")
        if self.options.collections is not None or self.options.xattrs or self.options.mitigate_rollbacks:
            raise OptionError("TAP knows no collections, no extended attributes and no rollbacks")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.connection}, bucket={self.options.bucket!r})"

    def close(self) -> None:
        """Close every connection; what was not taken is not acknowledged."""
        self._closed = True
        for feed in self._feeds:
            feed.close()
        self._feeds.clear()

    @property
    def is_done(self) -> bool:
        """Whether everything up to the end was read and taken."""
        return not (self._feeds or self._due or self._events or self._rest)

    # -- changes and batches

    def __iter__(self) -> Iterator[Change | TapInterrupted]:
        return self

    def __next__(self) -> Change | TapInterrupted:
        found = self.next_change()
        if found is None:
            raise StopIteration
        return found

    def next_change(self, timeout_s: float | None = None) -> Change | TapInterrupted | None:
        """Wait for the next; None when everything up to the end was read, or after `timeout_s`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._rest:
                return self._rest.popleft()
            event = self.next_event(None if end is None else max(end - time.monotonic(), 0.0))
            if event is None or isinstance(event, TapInterrupted):
                return event
            self._rest.extend(changes_of(_numbered(event)))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Give batches until the end; `gaps` tells if changes may be missing between two of them."""
        while (event := self.next_event()) is not None:
            if isinstance(event, pa.RecordBatch):
                yield event

    def next_event(self, timeout_s: float | None = None) -> pa.RecordBatch | TapInterrupted | None:
        """Wait for the next batch, or for word that a connection broke; what was given before counts as taken."""
        end = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if not self._events:  # else some of what they brought is still to be given
            for feed in self._feeds:
                feed.acknowledge()
        while not self._events:
            if self._closed:
                raise OptionError("the reader is closed")
            if self.is_done:
                return None
            self._open_due()
            if self._take_in():
                continue
            left = min([end, time.monotonic() + LOOK_S_MAX, *(due.at for due in self._due)]) - time.monotonic()
            if time.monotonic() >= end:
                return None
            self._wait(max(left, 0.0))
        return self._events.popleft()

    # -- connections

    def deregister(self) -> None:
        """Have every node forget this registered client, and close."""
        self.close()
        if self._wish.name is None:
            raise OptionError("this client is not registered")
        for part in tap_parts(self.options):
            with TapConnection(part.node, self.options) as connection:
                connection.deregister(registered_name(self._wish.name, part))

    def _open_due(self) -> None:
        now = time.monotonic()
        for due in [each for each in self._due if each.at <= now]:
            opened: list[TapFeed] = []
            try:
                for part in tap_parts(dataclasses.replace(self.options, vbuckets=due.vbuckets)):
                    opened.append(TapFeed(self.options, part, self._wish))  # noqa: PERF401 - those before are closed
            except ClientError as error:
                for feed in opened:
                    feed.close()
                self._put_off(due, error)
                continue
            except BaseException:
                for feed in opened:
                    feed.close()
                raise
            self._due.remove(due)
            self._feeds += opened
            known = {vb for feed in opened for vb in feed.part.vbuckets or ()}
            self.vbuckets = tuple(sorted(known | set(self.vbuckets)))

    def _put_off(self, due: _Due, error: ClientError) -> None:
        now = time.monotonic()
        due.failing_since = now if due.failing_since is None else due.failing_since
        give_up_s = self.options.give_up_s
        if not error.retriable or (give_up_s is not None and now - due.failing_since >= give_up_s):
            raise error
        due.at = now + due.pause_s
        due.pause_s = min(2 * due.pause_s, PAUSE_S_MAX)

    def _take_in(self) -> bool:
        """Take in what has come on all connections; tell if something did."""
        came = False
        for feed in list(self._feeds):
            try:
                came |= feed.fill()
            except ConnectionLostError as error:
                self._lost(feed, error)
                came = True
            if feed.has_rows:
                self._events.append(feed.batch())
            else:
                feed.acknowledge()
                came |= feed.is_broken
            if feed.is_over:
                feed.close()
                self._feeds.remove(feed)
                came = True
        return came

    def _lost(self, feed: TapFeed, error: ConnectionLostError) -> None:
        if feed.has_rows:
            self._events.append(feed.batch())
        feed.close()
        self._feeds.remove(feed)
        now = time.monotonic()
        self._due.append(_Due(feed.part.vbuckets, at=now + PAUSE_S_FIRST, failing_since=now))
        is_known = self._wish.name is not None
        misses = not self._wish.backfill and not is_known
        self.gaps += misses
        self._events.append(
            TapInterrupted(
                host=str(feed.part.node),
                reason=str(error),
                misses=misses,
                repeats=self._wish.backfill and not is_known,
            )
        )

    def _wait(self, seconds: float) -> None:
        # Not select(), which refuses a descriptor past 1023: a busy process has more files open.
        ready = select.poll()
        for feed in self._feeds:
            ready.register(feed.fileno(), select.POLLIN)
        ready.poll(math.ceil(seconds * 1000))


def _numbered(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Put 0 for the numbers that TAP does not tell: a change has them as plain numbers."""
    for name in ("vbuuid", "seqno"):
        place = rows.schema.get_field_index(name)
        zeros = pa.array([0] * rows.num_rows, rows.schema.field(place).type)
        rows = rows.set_column(place, rows.schema.field(place), zeros)
    return rows


__all__ = ["TapInterrupted", "TapReader"]
