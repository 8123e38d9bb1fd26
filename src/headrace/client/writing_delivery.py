"""Blocks of rows on their way to the nodes of a bucket: sent, settled, sent again, and waited for until on disk.

    filling block of a node ---> under way ---> taken, kept, refused
               ^                     |
               +------ again --------+    lost, temporarily refused, gone to another node

When rows are to be sent again, everything stops: what is under way anywhere is settled, the map is asked for where that
may help, and they are sent before anything new is. So a row never overtakes an older one with the same key.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.errors import (
    AuthFailedError,
    ClientError,
    ConnectionLostError,
    InvalidError,
    LockedError,
    NotMyVBucketError,
    NotStoredError,
    ServerAnswerError,
    StatusError,
    TooBigError,
)
from headrace.client.writing_frames import DELETE, END, Block
from headrace.client.writing_journal import Found, Journal
from headrace.client.writing_lanes import Lane, Lanes, error_at, key_shown
from headrace.wire import decode
from headrace.wire.catalogue import Mutated
from headrace.wire.codes import Feature, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.options import ChangeOptions
    from headrace.client.writing_frames import Entry
    from headrace.client.writing_lanes import Line
    from headrace.wire import Frame

BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.02, 1.0
DISK_PAUSE_S_FIRST, DISK_PAUSE_S_MAX = 0.005, 0.08

_OF_THE_ROW = (TooBigError, InvalidError, NotStoredError, LockedError)
"""What a server has against one row; whatever else it refuses, it would refuse of all."""
_OF_THE_ROW_TOO = frozenset({Status.UNKNOWN_COLLECTION, Status.XATTR_INVALID})
_FINAL = (AuthFailedError, ServerAnswerError)
_SUCCESS, _EXISTS, _NOT_FOUND = int(Status.SUCCESS), int(Status.KEY_EXISTS), int(Status.KEY_NOT_FOUND)


class NotWrittenError(ClientError):
    """Rows could not be written in all the time that there was for it."""


@dataclass(slots=True)
class WriteCounts:
    """What became of rows; each is counted once."""

    written: int = 0
    deleted: int = 0
    """Removed; or not there, where nothing but its removal was asked for."""
    kept: int = 0
    """Not written, since what the bucket has is as new or newer."""
    refused: int = 0


class _Again(NamedTuple):
    """A row to send again, and why."""

    block: Block
    place: int
    error: ClientError


@dataclass(slots=True)
class Tries:
    """For how long something is tried, and the pauses between: each twice the one before."""

    until: float
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    pause_s: float = BACKOFF_S_FIRST
    pause_s_max: float = BACKOFF_S_MAX

    @property
    def are_over(self) -> bool:
        """Whether it was long enough."""
        return self.clock() >= self.until

    def pause(self) -> None:
        """Wait for the next try."""
        self.sleep(self.pause_s)
        self.pause_s = min(2 * self.pause_s, self.pause_s_max)


class Delivery:
    """The lanes of a bucket, and what is on them. `refused` is told of each row that is refused for good."""

    def __init__(
        self,
        options: ChangeOptions,
        *,
        refused: Callable[[Any, bytes, StatusError], None],
        retry_s_max: float,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self.counts = WriteCounts()
        self.lanes = Lanes(options)
        self.tells_expirations = True
        """Whether the servers know a deletion from the end of an item, as far as they were asked."""
        self._bucket = options.bucket
        self._refused = refused
        self._retry_s_max = retry_s_max
        self._sleep = sleep
        self._clock = clock

    def open(self) -> Line:
        """Find the nodes, waiting for them where they are away; gives a connection to one."""
        tries = self._tries()
        while True:
            try:
                self.lanes.learn()
                line = next(lane for lane in self.lanes if lane.is_open).line()
            except ClientError as error:
                if not error.retriable or tries.are_over:
                    raise
                tries.pause()
            else:
                self.vbuckets = len(self.lanes.at)
                self.journal = Journal(self.vbuckets, is_kept=Feature.MUTATION_SEQNO in line.features)
                return line

    def finish(self) -> None:
        """Send what is left, and wait until all is settled and on disk."""
        while any(lane.filling.rows or lane.under_way is not None for lane in self.lanes):
            for lane in self.lanes:
                self.turn(lane)
        self.harden()

    def _tries(self, first_s: float = BACKOFF_S_FIRST, max_s: float = BACKOFF_S_MAX) -> Tries:
        return Tries(self._clock() + self._retry_s_max, self._sleep, self._clock, first_s, max_s)

    # -- blocks

    def turn(self, lane: Lane) -> None:
        """Settle what is under way at a node, and send what was filled meanwhile."""
        again = self._take(lane)
        if not again:
            self._send(lane)
            return
        self._recover(again)
        for each in self.lanes:
            if each.filling.is_full:
                self._send(each)

    def _send(self, lane: Lane) -> None:
        block, lane.filling = lane.filling, Block()
        if block.rows:
            self.journal.add(block)
            lane.send(block)

    def _take(self, lane: Lane) -> list[_Again]:
        """Take the answers of the block under way, and count what is settled; gives what is to be sent again."""
        block = lane.under_way
        if block is None:
            return []
        kept: set[int] = set()
        errors: dict[int, StatusError] = {}
        lost: ClientError | None = None
        try:
            for frame in lane.answers():
                if frame.header.opaque == END:
                    break
                self._answer(block, frame, kept, errors)
        except _FINAL:
            raise
        except ClientError as error:
            lost = error
        lane.under_way = None
        if lost is not None:
            return [_Again(*block.origin(place), lost) for place in range(len(block.rows))]
        again = self._to_retry(block, errors)
        if block.is_counted:
            self._count(block, kept - again.keys(), errors.keys() | again.keys())
        for place in sorted(errors.keys() - again.keys()):
            self._refuse(block, place, errors[place])
        return [_Again(*block.origin(place), error) for place, error in sorted(again.items())]

    def _answer(self, block: Block, frame: Frame, kept: set[int], errors: dict[int, StatusError]) -> None:
        place, status = frame.header.opaque, frame.header.specific
        if place >= len(block.rows):
            raise ServerAnswerError(f"bucket {self._bucket}: an answer that nothing asked for: {decode(frame)!r}")
        form = block.forms[place]
        if status == _SUCCESS:
            vbucket = form.vbucket(block.entry(place).head)
            if vbucket not in self.journal.branches:
                reply = decode(frame)
                if isinstance(reply, Mutated) and reply.vbuuid is not None:
                    self.journal.branches[vbucket] = reply.vbuuid
        elif status == _EXISTS and form.with_meta:
            kept.add(place)
        elif status != _NOT_FOUND or form is not DELETE:
            errors[place] = error_at(block, place, status, frame.value)

    def _count(self, block: Block, kept: set[int], others: set[int]) -> None:
        counts = self.counts
        counts.kept += len(kept)
        unwritten = kept | others
        deletes = sum(form.deletes for form in block.forms)
        deletes_unwritten = sum(block.forms[place].deletes for place in unwritten)
        counts.deleted += deletes - deletes_unwritten
        counts.written += len(block.rows) - deletes - (len(unwritten) - deletes_unwritten)

    def _refuse(self, block: Block, place: int, error: StatusError) -> None:
        of_the_row = isinstance(error, _OF_THE_ROW) or error.status in _OF_THE_ROW_TOO
        if not of_the_row or not block.is_counted:  # one that was counted as written cannot be refused any more
            raise error
        origin, at = block.origin(place)
        origin.dead.add(at)
        self.counts.refused += 1
        self._refused(origin.rows[at], origin.key(at), error)

    # -- again

    def _to_retry(self, block: Block, errors: dict[int, StatusError]) -> dict[int, StatusError]:
        """The rows to send again: those that may be taken later, and all behind them with the same key."""
        first: dict[bytes, int] = {}
        for place in sorted(errors):
            if self._may_be_taken(block, place, errors[place]):
                first.setdefault(block.key(place), place)
        if not first:
            return {}
        return {
            place: errors[first[key]]
            for place, key in enumerate(block.keys())
            if first.get(key, len(block.rows)) <= place
        }

    def _may_be_taken(self, block: Block, place: int, error: StatusError) -> bool:
        if error.retriable or isinstance(error, NotMyVBucketError):
            return True
        form, head, _, _ = block.entry(place)
        if isinstance(error, InvalidError) and form.is_expiration(head):
            self.tells_expirations = False  # an older server: to it, it is a deletion like others
            origin, at = block.origin(place)
            origin.replace_head(at, form.as_deletion(head))
            return True
        return False

    def _recover(self, again: list[_Again], *, is_counted: bool = True) -> None:
        """Send rows again until they are settled; nothing is under way then. What was filled is routed anew."""
        for lane in self.lanes:
            again += self._take(lane)
        held = [lane.filling for lane in self.lanes]
        for lane in self.lanes:
            lane.filling = Block()
        tries = self._tries()
        while again:
            if tries.are_over:
                self._give_up(again)
            tries.pause()
            if not all(each.error.retriable and isinstance(each.error, StatusError) for each in again):
                self._learn()
            again = self._send_again(again, is_counted=is_counted)
        for block in held:
            for place, row in enumerate(block.rows):
                form, head, _, _ = entry = block.entry(place)
                self._put_again(self.lanes.at[form.vbucket(head)].filling, row, entry)

    def _send_again(self, again: list[_Again], *, is_counted: bool) -> list[_Again]:
        blocks: dict[Lane, Block] = {}
        for origin, place, _ in again:
            form, head, _, _ = entry = origin.entry(place)
            lane = self.lanes.at[form.vbucket(head)]
            if lane not in blocks:
                blocks[lane] = Block(is_again=True, is_counted=is_counted)
            self._put_again(blocks[lane], (origin, place), entry)
        for lane, block in blocks.items():
            lane.send(block)
        return [each for lane in blocks for each in self._take(lane)]

    def _put_again(self, block: Block, row: Any, entry: Entry) -> None:
        form, head, key, value = entry
        vbucket = form.vbucket(head)
        head = form.readdressed(head, place=len(block.rows), quiet=vbucket in self.journal.branches)
        block.add(row, form, head, key, value, vbucket)

    def _learn(self) -> None:
        try:
            self.lanes.learn()
        except _FINAL:
            raise
        except ClientError:
            return  # nobody knows better just now: what is sent by the old map tells, too
        if len(self.lanes.at) != self.vbuckets:
            raise ServerAnswerError(
                f"bucket {self._bucket} had {self.vbuckets} vbuckets and has {len(self.lanes.at)}: it is another one"
            )

    def _give_up(self, again: list[_Again]) -> None:
        """Refuse rows that are locked; nothing else that lasts is the fault of a row."""
        for each in again:
            if not isinstance(each.error, LockedError):
                count, key = len(again), key_shown(each.block.key(each.place))
                told = f"{key} and {count - 1} more rows" if count > 1 else key
                raise NotWrittenError(
                    f"bucket {self._bucket}: {told} could not be written within {self._retry_s_max:g} s: {each.error}"
                )
        for each in again:
            assert isinstance(each.error, LockedError)
            self._refuse(each.block, each.place, each.error)
        again.clear()

    # -- the disk

    def harden(self) -> None:
        """Wait until all that was taken is on disk; send again what a crash lost."""
        again = [each for lane in self.lanes for each in self._take(lane)]
        if again:
            self._recover(again)
        waiting = self.journal.vbuckets()
        tries = self._tries(DISK_PAUSE_S_FIRST, DISK_PAUSE_S_MAX)
        while waiting:
            lost, trouble = self._observe(waiting)
            if lost:
                error = ConnectionLostError(f"bucket {self._bucket}: a failover took back what was written")
                self._recover([_Again(*each, error) for each in self.journal.entries(lost)], is_counted=False)
                waiting = self.journal.vbuckets() & (waiting | lost)
                tries = self._tries(DISK_PAUSE_S_FIRST, DISK_PAUSE_S_MAX)
            elif waiting:
                if tries.are_over:
                    because = trouble or f"vbucket {min(waiting)} has not come so far"
                    told = f"bucket {self._bucket}: what was written is not on disk within {self._retry_s_max:g} s"
                    raise NotWrittenError(f"{told}: {because}")
                tries.pause()
                if trouble is not None:
                    self._learn()
                else:
                    self._hurry(waiting)
        self.journal.clear()

    def _observe(self, waiting: set[int]) -> tuple[set[int], ClientError | None]:
        """Ask how far vbuckets are; what is on disk waits no more. Gives those on another branch, and any trouble."""
        lost: set[int] = set()
        trouble: ClientError | None = None
        for lane, vbuckets in self._by_lane(waiting).items():
            try:
                replies = lane.ask_all([self.journal.question(vbucket) for vbucket in vbuckets])
            except _FINAL:
                raise
            except ClientError as error:
                trouble = error
                continue
            for vbucket, reply in zip(vbuckets, replies, strict=True):
                found = self.journal.observed(vbucket, reply)
                if found is Found.ON_DISK:
                    waiting.discard(vbucket)
                elif found is Found.OTHER_BRANCH:
                    lost.add(vbucket)
                elif isinstance(found, StatusError):
                    trouble = found
        return lost, trouble

    def _hurry(self, waiting: set[int]) -> None:
        """Wait for one vbucket of each node: who is waited for like this writes to disk at once."""
        for lane, vbuckets in self._by_lane(waiting).items():
            with suppress(ConnectionLostError):  # its disk may be slow; the next question tells
                lane.ask_all([self.journal.demand(vbuckets[0])])

    def _by_lane(self, vbuckets: set[int]) -> dict[Lane, list[int]]:
        found: dict[Lane, list[int]] = {}
        for vbucket in vbuckets:
            found.setdefault(self.lanes.at[vbucket], []).append(vbucket)
        return found


__all__ = ["Delivery", "NotWrittenError", "WriteCounts"]
