"""One connection: bytes from the socket to the session, answers back, in order and within bounds.

A connection is stalled while a request waits for something, while its client does not read its answers, and while the
disk is so far behind that writers must wait. A stalled connection is not read from, so its client's own buffers fill;
what it had sent before stays in `_rest`, at most one read's worth and one begun message.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from headrace.node import replies
from headrace.node.hot import serve
from headrace.node.options import host_and_port
from headrace.node.refused import Refused
from headrace.node.session import Session
from headrace.node.writes import WRITES
from headrace.store import StoreError
from headrace.wire.codes import Status
from headrace.wire.header import MAGICS, Header
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from headrace.errors import HeadraceError
    from headrace.node.buckets import OpenBucket
    from headrace.node.services import Services

log = logging.getLogger("headrace.node.connection")

NO_MESSAGE = "it sent what is no message"
OF_STREAMS = "by the rules of streams"
"""Reasons are counted and shown by their names: one for all that a peer can choose the words of."""
GOODBYE_S = 5.0
"""How long a client that was told to go has to read what it is owed."""
FAREWELL_S = 600.0
"""How long a client may read nothing of the last that it asked for, or keep a connection that has come to its end."""
SLOWEST_BYTES_A_SECOND = 50_000
"""A begun message that comes slower than this only keeps memory from others."""
TURN_S = 0.005
"""How long a client is served before it is the turn of others, if it has sent that much."""
_LARGE_BYTES = 64 * 1024
"""A begun message beyond this counts against what all connections may hold."""


STREAM_BUFFER_BYTES = 2560 << 10
"""What may wait in the socket's buffer for a consumer of streams to read it."""
SMALL_BYTES = 16 << 10
GATHERED_BYTES_MAX = 64 << 10
"""What streams send in small pieces is put together up to this."""
CHANGES_S = 0.002
"""How long changes gather before streams tell of them: a turn costs the same for one as for many."""


class ConnectionLine:
    """What the end of a stream connection talks through."""

    def __init__(self, connection: Connection, transport: asyncio.Transport, session: Session) -> None:
        self.peer = session.peer
        self._connection = connection
        self._transport = transport
        self._session = session
        self._timer: asyncio.TimerHandle | None = None
        self._is_awake = False

    def begin(self) -> None:
        """The connection has become an end: have it told in time that the peer reads."""
        self._transport.set_write_buffer_limits(high=STREAM_BUFFER_BYTES // 2, low=STREAM_BUFFER_BYTES // 8)

    def send(self, block: bytes | memoryview) -> None:
        """Send whole messages, behind all that was answered before."""
        self._connection.send(block)

    def room_bytes(self) -> int:
        """How much may be sent now before the peer has to read."""
        return STREAM_BUFFER_BYTES - self._transport.get_write_buffer_size() - self._session.out_bytes

    def leave(self, why: str) -> None:
        """Close the connection without an answer."""
        self._connection.leave(why)

    def finish(self, why: str) -> None:
        """Close the connection when the peer has read all that was sent, however long that takes it."""
        self._connection.finish(why)

    def wake(self) -> None:
        """Have `pump` called soon."""
        if not self._is_awake:
            self._is_awake = True
            self._arm(asyncio.get_running_loop().call_later(CHANGES_S, self.pump))

    def pump(self) -> None:
        """Let the end send what it has, and see when it wants to be asked again."""
        self._is_awake = False
        self._timer = None
        end = self._session.end
        if end is None or self._transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        try:
            with self._connection.gathering():
                has_more = end.pump(loop.time())
        except Exception:
            log.exception("streams met a fault of ours", extra={"peer": self.peer})
            self.leave("a fault of the node")
            return
        if has_more:
            self._is_awake = True
            self._arm(loop.call_later(0, self.pump))
        else:
            self.look()

    def look(self) -> None:
        """See when the end wants to be asked again: what it was told may have changed that."""
        end = self._session.end
        deadline = None if end is None else end.deadline
        if deadline is None or self._is_awake or self._transport.is_closing():
            return
        if self._timer is None or self._timer.cancelled() or deadline < self._timer.when():
            self._arm(asyncio.get_running_loop().call_at(deadline, self.pump))

    def _arm(self, timer: asyncio.TimerHandle) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def close(self) -> None:
        """Nothing is sent any more."""
        if self._timer is not None:
            self._timer.cancel()


class Connection(asyncio.Protocol):
    """Serves one client."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.session: Session
        self._transport: asyncio.Transport
        self._rest: bytes | bytearray = b""
        self._wanted_bytes = HEADER_BYTES
        self._counted_bytes = 0
        self._stalls = 0
        self._working = False
        self._gathers = False
        self._received_bytes = 0
        self.sent_bytes = 0
        self._closed = False
        self._eof = False
        self._left_at: float | None = None
        self._finished_at: float | None = None
        self._last_bytes = 0
        self._is_paused = False
        self._unread_since: float | None = None
        self._unread_bytes = 0
        self._begun_at = 0.0
        self.began_at = self.progress_at = 0.0

    # ------------------------------------------------------------------------------------------------- from the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a client, or turn it away when there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        services = self._services
        peer = transport.get_extra_info("peername")
        self.session = Session(services, peer=_spelled(peer), local=_spelled(transport.get_extra_info("sockname")))
        self._line = ConnectionLine(self, self._transport, self.session)
        self.session.line = self._line
        self.began_at = self.progress_at = asyncio.get_running_loop().time()
        if len(services.connections) >= services.limits.connections_max:
            services.counts.refused_connections += 1
            self._leave("too many connections")
            return
        services.counts.accepted += 1
        log.debug("a client connected", extra={"peer": self.session.peer})
        services.connections.add(self)
        self._transport.set_write_buffer_limits(high=services.limits.reply_bytes_max)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        log.debug("a client is gone", extra={"peer": self.session.peer, "why": str(exc or "")})
        self._closed = True
        self._end_streams()
        self._count_half_frame(0)
        self._count_unread(0)
        self._rest = b""
        self._services.counts.requests += self.session.requests
        self._services.connections.discard(self)

    def _end_streams(self) -> None:
        session = self.session
        self._line.close()
        if session.end is not None:
            ends = session.ends
            if ends.get(session.end.name) is session:
                del ends[session.end.name]
            session.end.close()

    def data_received(self, data: bytes) -> None:
        """Serve what has come in whole, and keep the rest."""
        self._received_bytes += len(data)
        if self._finished_at is not None:
            return
        if self._stalls:  # what was on its way when reading was paused
            self._rest += data
            return
        if self._rest:
            if len(self._rest) + len(data) < self._wanted_bytes:
                self._keep_begun(data)
                return
            data = bytes(self._rest) + data
            self._rest = b""
        self._work(data)
        if self.session.user is None and self._received_bytes > self._services.limits.unauthenticated_bytes_max:
            self._leave("too much was sent before authenticating")

    def eof_received(self) -> bool:
        """The client has said all; what it asked is still answered before the connection closes."""
        self._eof = True
        return bool(self._stalls)

    def pause_writing(self) -> None:
        """The client does not read: its requests wait.

        Streams stop by themselves, and their consumer must be heard, or it could not say that they go on; only when its
        requests have answers that it does not read does it wait as others do.
        """
        self._is_paused = True
        if self.session.end is None:
            self._stall_unread()

    def _stall_unread(self) -> None:
        """Read no more of a client that does not read; it goes when all such clients are owed too much."""
        self._unread_since = asyncio.get_running_loop().time()
        self._count_unread(self._transport.get_write_buffer_size())
        self._stall()
        if self._services.unread_bytes > self._services.limits.unread_bytes_max:
            self._leave("too much waits to be read")
            self._transport.abort()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._is_paused = False
        if self.session.end is not None:
            self._line.pump()
        if self._unread_since is not None:
            self._unread_since = None
            self._count_unread(0)
            self._unstall()

    def _owes_too_much(self) -> bool:
        """Whether the answers to the consumer of a stream are more than it reads."""
        owed_max = STREAM_BUFFER_BYTES + self._services.limits.reply_bytes_max
        return self._is_paused and self._unread_since is None and self._transport.get_write_buffer_size() > owed_max

    def _count_unread(self, size: int) -> None:
        self._services.unread_bytes += size - self._unread_bytes
        self._unread_bytes = size

    # ---------------------------------------------------------------------------------------------------------- work

    def _work(self, data: bytes) -> None:
        """Serve requests until they are all served or one has to wait; then put the rest aside."""
        session, at, goes_on = self.session, 0, True
        turn_ends = asyncio.get_running_loop().time() + TURN_S
        self._working = True
        try:
            while goes_on:
                opened = session.opened
                before = _ticked(opened)
                at = serve(session, data, at)
                # Nothing else runs while a block is served: what waits for the disk has grown by this client's changes.
                wrote = opened if opened is not None and _unwritten(opened) != before else None
                goes_on = self._answer(wrote) and not self._is_begun(data, at) and self._keeps_turn(turn_ends)
        except StoreError as error:  # a read that failed in the middle of a block: nobody knows what was answered
            self._leave("the disk cannot be read", str(error))
        finally:
            self._working = False
        if not self._closed:
            self._put_aside(data, at)
        if session.end is not None:
            self._line.look()
        if self._eof and not self._stalls:
            self._transport.close()

    def _answer(self, wrote: OpenBucket | None) -> bool:
        """Send what was answered, or hold it back; tell whether what follows may be served now."""
        session = self.session
        if wrote is not None:
            wrote.bucket.changed()
        if session.fault is not None:
            self._end_at_fault(wrote)
            return False
        if wrote is not None and self._services.sync_every_write:
            self._hold(wrote)
            return False
        self._send()
        if session.pending is not None:
            pending, session.pending = session.pending, None
            self._wait_for(pending)
            return False
        if session.left is not None:
            self._leave(OF_STREAMS, session.left)
        elif session.close_after_reply:
            self._closed = True
            self._transport.close()
        if self._closed:
            return False
        if self._owes_too_much():
            self._stall_unread()
        if wrote is not None and self._disk_is_behind(wrote):
            return False
        return not self._stalls and not self._closed

    def _keeps_turn(self, turn_ends: float) -> bool:
        """Let others be served before a client that has sent very much."""
        loop = asyncio.get_running_loop()
        if loop.time() < turn_ends:
            return True
        self._stall()
        loop.call_soon(self._unstall)
        return False

    def _end_at_fault(self, wrote: OpenBucket | None) -> None:
        """Answer what stood in front of bytes that are no message, and go; what is not on disk is not acknowledged."""
        if wrote is not None and self._services.sync_every_write:
            self.session.out.clear()
        self._send()
        self._leave(NO_MESSAGE, self.session.fault or "")

    @staticmethod
    def _is_begun(data: bytes, at: int) -> bool:
        """Whether no whole request is left."""
        end = at + HEADER_BYTES
        return end > len(data) or end + Header.parse(data, at).body_length > len(data)

    def _put_aside(self, data: bytes, at: int) -> None:
        """Keep what is not served yet; a message that can never be whole ends the connection."""
        self._rest = data[at:] if at else data
        if self._rest:
            self._begun_at = self.progress_at = asyncio.get_running_loop().time()
        if self._rest and self._rest[0] not in MAGICS:
            self._leave(NO_MESSAGE, f"0x{self._rest[0]:02x} is no magic of the binary protocol, the only one served")
            return
        if len(self._rest) < HEADER_BYTES:
            self._wanted_bytes = HEADER_BYTES
            self._count_half_frame(0)
            return
        header = Header.parse(self._rest)
        limits = self._services.limits
        known = self.session.user is not None
        problem = header.problem(limits.body_bytes_max if known else limits.unauthenticated_bytes_max)
        if problem:
            self._leave(NO_MESSAGE, f"byte {problem[0]}: {problem[1]}")
            return
        self._wanted_bytes = HEADER_BYTES + header.body_length
        self._keep_within_bounds()

    def _keep_begun(self, data: bytes) -> None:
        """Gather a message that comes in pieces."""
        if isinstance(self._rest, bytes):
            self._rest = bytearray(self._rest)
        self._rest += data
        self.progress_at = asyncio.get_running_loop().time()
        if self._wanted_bytes > HEADER_BYTES:
            self._keep_within_bounds()
        elif len(self._rest) >= HEADER_BYTES:
            self._put_aside(bytes(self._rest), 0)

    def _keep_within_bounds(self) -> None:
        """Turn a begun message away for which there is no room beside those of all others."""
        if not self._count_half_frame(len(self._rest)):
            header = Header.parse(self._rest)
            refused = Refused(Status.OUT_OF_MEMORY, "too many large messages are coming in")
            self._transport.write(replies.error(header.opcode, header.opaque, refused))
            self._leave("no memory for a begun message")

    def _count_half_frame(self, size: int) -> bool:
        """Count a begun message against what all may hold; False when it would be too much."""
        services = self._services
        size = size if size > _LARGE_BYTES else 0
        total = services.half_frame_bytes - self._counted_bytes + size
        if size and total > services.limits.half_frame_bytes_max:
            return False
        services.half_frame_bytes, self._counted_bytes = total, size
        return True

    def send(self, block: bytes | memoryview) -> None:
        """Send what is no answer, behind all that was answered before; what is small goes with what comes after it."""
        # Answers that wait for the disk are put aside, and what stood among them would come too late.
        gathers = self._gathers or (self._working and not self._services.sync_every_write)
        if gathers and len(block) <= SMALL_BYTES:
            self.session.out.append(bytes(block))
            self.session.out_bytes += len(block)
            if self.session.out_bytes <= GATHERED_BYTES_MAX:
                return
            block = b""
        self._send(block)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Send what is small in larger pieces, the last of it at the end: a call of the system is more than a copy."""
        self._gathers = True
        try:
            yield
        finally:
            self._gathers = False
            self._send()

    def leave(self, why: str) -> None:
        """Close the connection, after what stood before; in the middle of a request, when that was answered."""
        if self._working:
            self.session.left = why
        else:
            self._send()
            self._leave(OF_STREAMS, why)

    def finish(self, why: str) -> None:
        """Send nothing more, and close the connection when the client has read what was sent.

        Only the way to the client is closed at once: were all of it closed, an answer that is still on its way here
        would make the system throw away what the client has yet to read.
        """
        self._send()
        log.debug("a connection has come to its end", extra={"peer": self.session.peer, "why": why})
        self._finished_at = asyncio.get_running_loop().time()
        self._last_bytes = self._transport.get_write_buffer_size()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _look_at_last(self, now: float) -> None:
        """End a finished connection: under TLS when all is out, and when the client does not read or does not go."""
        assert self._finished_at is not None
        left = self._transport.get_write_buffer_size()
        if left < self._last_bytes:
            self._last_bytes, self._finished_at = left, now
        if not left and not self._transport.can_write_eof():
            self._transport.close()
        elif now - self._finished_at > FAREWELL_S:
            self._transport.abort() if left else self._transport.close()

    def _send(self, block: bytes | memoryview = b"") -> None:
        """Send what waits, and a block behind it, by one call of the system."""
        session = self.session
        blocks = [each for each in (b"".join(session.out), block) if each]
        session.out.clear()
        session.out_bytes = 0
        if blocks and not self._transport.is_closing():
            self.sent_bytes += sum(map(len, blocks))
            self._transport.writelines(blocks)

    # --------------------------------------------------------------------------------------------------------- waits

    def _stall(self) -> None:
        self._stalls += 1
        if self._stalls == 1 and not self._closed:
            self._transport.pause_reading()

    def _unstall(self) -> None:
        """Go on where the connection was left, once nothing holds it any more."""
        self._stalls -= 1
        if self._stalls or self._closed or self._transport.is_closing():
            return
        self._transport.resume_reading()
        self.progress_at = asyncio.get_running_loop().time()
        if self.session.close_after_reply:
            self._transport.close()
        elif not self._working:
            data, self._rest = bytes(self._rest), b""
            self._work(data)

    def _wait_for(self, pending: Awaitable[None]) -> None:
        self._stall()

        async def wait() -> None:
            try:
                await pending
            except Exception:
                log.exception("a request ended in a fault of ours", extra={"peer": self.session.peer})
                self._leave("a fault of the node")
            finally:
                self._send()
                self._unstall()

        self._services.background(wait())

    def _disk_is_behind(self, opened: OpenBucket) -> bool:
        """Make a writer wait for the disk."""
        if opened.bucket.waiting_bytes < self._services.limits.dirty_bytes_max or opened.bucket.trouble is not None:
            return False
        if self.session.end is not None and not self.session.end.is_producer:
            # A replica's producer is not refused; it waits, unless there is nothing that the disk could be waited for.
            if not opened.bucket.dirty_vbuckets and not opened.bucket.flushing_bytes:
                return False
        elif opened.flusher.stopped:
            opened.flusher.refuse_more()
            return False
        self._stall()
        opened.flusher.after.append(self._unstall)
        return True

    def _hold(self, opened: OpenBucket) -> None:
        """Acknowledge nothing before it is on disk."""
        held = list(self.session.out)
        self.session.out.clear()
        self.session.out_bytes = 0
        pending, self.session.pending = self.session.pending, None

        async def hold() -> None:
            try:
                await opened.flusher.on_disk()
                self.session.out.extend(held)
            except StoreError as error:
                self._refuse_held(held, error)
            if pending is not None:
                await pending

        self._wait_for(hold())

    def _refuse_held(self, held: list[bytes], error: HeadraceError) -> None:
        """Tell of each write that it is not on disk. Quiet ones have no answer to change: the connection ends."""
        refused = Refused(Status.TEMPORARY_FAILURE, str(error))
        for reply in held:
            header = Header.parse(reply)
            wrote = header.opcode in WRITES and header.specific == Status.SUCCESS
            self.session.out.append(replies.error(header.opcode, header.opaque, refused) if wrote else reply)
        self.session.close_after_reply = True

    # ----------------------------------------------------------------------------------------------------------- end

    def check(self, now: float) -> None:
        """End a connection that takes too long: to say who it is or what it wants, to read, or to go."""
        limits = self._services.limits
        slowest_s = limits.half_frame_s_max + self._wanted_bytes / SLOWEST_BYTES_A_SECOND
        if self._finished_at is not None and self._left_at is None:
            self._look_at_last(now)
        elif self._left_at is not None:
            if now - self._left_at > GOODBYE_S:
                self._transport.abort()
        elif self.session.user is None and now - self.began_at > limits.unauthenticated_s_max:
            self._leave("it took too long to authenticate")
        elif self._unread_since is not None and now - self._unread_since > limits.unread_s_max:
            self._leave("it does not read its answers")
            self._transport.abort()
        elif (self._rest and not self._stalls) and (
            now - self.progress_at > limits.half_frame_s_max or now - self._begun_at > slowest_s
        ):
            self._leave("a begun message did not go on")

    def close(self) -> None:
        """End the connection, with what is yet to be sent."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def _leave(self, why: str, detail: str = "") -> None:
        """End a connection that cannot go on. What is yet to be sent has a moment; then it is cut off."""
        if self._left_at is not None:
            return
        counts = self._services.counts.closed_for
        counts[why] = counts.get(why, 0) + 1
        log.info(
            "a connection was ended", extra={"peer": self.session.peer, "why": f"{why}: {detail}" if detail else why}
        )
        self._left_at = asyncio.get_running_loop().time()
        self._rest = b""
        self._count_half_frame(0)
        self._closed = True
        self._transport.close()


def _unwritten(opened: OpenBucket) -> int:
    """What a bucket has in memory alone, but for what the writer has in hand."""
    return opened.bucket.dirty_bytes + opened.bucket.partial_bytes


def _ticked(opened: OpenBucket | None) -> int:
    """What waits for the disk in a bucket whose clock has just been looked at; no CAS: a touch takes no new one."""
    if opened is None:
        return 0
    opened.bucket.clock.tick()
    return _unwritten(opened)


def _spelled(name: object) -> str:
    """A socket's address, as logs and stats show it."""
    if isinstance(name, tuple) and len(name) >= 2:  # noqa: PLR2004 - host and port
        return host_and_port(str(name[0]), int(name[1]))
    return str(name or "")
