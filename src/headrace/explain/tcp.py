"""TCP connections put together again: each direction's bytes in the order of their sequence numbers.

Theory of operation. A `Half` is one direction: it knows the position up to which bytes were given out, and
keeps segments that came too early. Bytes already given out are dropped (retransmission, overlap: the first
copy wins). A hole is given up when more waits behind it than `REASSEMBLY_BYTES_MAX`, or when the connection
or the file ends; then a piece says how many bytes are missing, and the cutter finds the next message.

A `Tracker` holds the connections. One that begins with a SYN replaces an older one of the same addresses.
Which side is the server: the port that was asked for, else who got the SYN, else a well-known port, else
the lower one. A connection on other ports counts only if its first bytes look like a message.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterator

from headrace.explain.events import Direction, Ended, Event, InputError, Note, Piece, counted
from headrace.explain.headers import may_start
from headrace.explain.limits import CONNECTIONS_MAX, REASSEMBLY_BYTES_MAX, REASSEMBLY_SEGMENTS_MAX, SPLIT_CAPTURE
from headrace.explain.link import ACK, FIN, RST, SYN, Endpoint, Segment

KNOWN_PORTS = (11210, 11211, 11207)
TLS_HANDSHAKE = b"\x16\x03"
_CYCLE = 1 << 32

Run = tuple[bytes, int, int]
"""Bytes, how many are missing after them, and the number of the packet that brought them."""


class Half:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.finished = False
        self.first_seq: int | None = None
        self._position = 0  # bytes given out or given up since first_seq
        self._early: list[tuple[int, int, bytes, int]] = []  # position, packet, bytes, missing
        self._early_bytes = 0

    @property
    def waiting(self) -> bool:
        """Whether bytes came that an earlier hole keeps back."""
        return bool(self._early)

    def begin(self, seq: int) -> None:
        """Say which sequence number the first byte has."""
        self.first_seq = seq

    def add(self, segment: Segment) -> Iterator[Run]:
        """Take a segment; yield what is now in order."""
        if self.first_seq is None:
            self.begin(segment.seq)
        assert self.first_seq is not None
        # The nearest position with this sequence number: they wrap around every 4 GiB.
        expected = (self.first_seq + self._position) % _CYCLE
        ahead = (segment.seq - expected + _CYCLE // 2) % _CYCLE - _CYCLE // 2
        start = self._position + ahead
        if ahead > 0:
            insort(self._early, (start, segment.number, segment.data, segment.missing))
            self._early_bytes += len(segment.data)
            if self._early_bytes > REASSEMBLY_BYTES_MAX or len(self._early) > REASSEMBLY_SEGMENTS_MAX:
                yield from self._give_up_hole()
            return
        yield from self._take(start, segment.number, segment.data, segment.missing)
        yield from self._take_early()

    def flush(self) -> Iterator[Run]:
        """Give up every hole and yield what waits behind them."""
        while self._early:
            yield from self._give_up_hole()

    def _take(self, start: int, number: int, data: bytes, missing: int) -> Iterator[Run]:
        end = start + len(data) + missing
        if end <= self._position:
            return
        known = self._position - start
        fresh = data[known:]
        lost = end - self._position - len(fresh)
        self._position = end
        yield fresh, lost, number

    def _take_early(self) -> Iterator[Run]:
        taken = 0
        for start, number, data, missing in self._early:
            if start > self._position:
                break
            taken += 1
            self._early_bytes -= len(data)
            yield from self._take(start, number, data, missing)
        del self._early[:taken]

    def _give_up_hole(self) -> Iterator[Run]:
        start, number, _, _ = self._early[0]
        if start > self._position:
            yield b"", start - self._position, number
            self._position = start
        yield from self._take_early()


class _Connection:
    def __init__(self, name: str, server: Endpoint, *, trusted: bool) -> None:
        self.name = name
        self.server = server
        self.trusted = trusted  # its port says what it is; otherwise its first bytes must
        self.judged = False
        self.passed_over = False
        self.halves = {True: Half(), False: Half()}  # by "sent by the server"
        self.done = False


class Tracker:
    """Turns segments of any connections into pieces of conversations."""

    def __init__(self, file_name: str, port: int | None = None) -> None:
        self._file_name = file_name
        self._port = port
        self._connections: dict[tuple[Endpoint, Endpoint], _Connection] = {}
        self._names: Counter[str] = Counter()
        self._passed_over: Counter[str] = Counter()

    def add(self, segment: Segment) -> Iterator[Event]:
        """Take one segment; yield the pieces that it completes."""
        if self._port is not None and self._port not in (segment.source[1], segment.target[1]):
            return
        low, high = sorted((segment.source, segment.target))
        connection = self._connections.get((low, high))
        if connection is None or self._begins_anew(connection, segment):
            if connection is not None:
                yield from self._end(connection)
            connection = self._connections[low, high] = self._open(segment)
        if connection.passed_over or connection.done:
            return
        yield from self._follow(connection, segment)

    def finish(self) -> Iterator[Event]:
        """Give out what still waits, and say what was passed over."""
        for connection in self._connections.values():
            yield from self._end(connection)
        for reason, count in self._passed_over.items():
            yield Note(text=f"{counted(count, 'connection')} passed over: {reason}")

    def _begins_anew(self, connection: _Connection, segment: Segment) -> bool:
        if segment.flags & (SYN | ACK) != SYN:
            return False
        half = connection.halves[segment.source == connection.server]
        return connection.done or half.first_seq != (segment.seq + 1) % _CYCLE

    def _open(self, segment: Segment) -> _Connection:
        if self._names.total() >= CONNECTIONS_MAX:
            raise InputError(
                f"{self._file_name} has more than {CONNECTIONS_MAX} connections, the most that are followed; "
                f"choose those of one server with --port, or split it: {SPLIT_CAPTURE}"
            )
        server = self._server(segment)
        client = segment.target if server == segment.source else segment.source
        name = f"{_show(client)}-{_show(server)}"
        self._names[name] += 1
        if self._names[name] > 1:
            name += f"#{self._names[name]}"
        return _Connection(name, server, trusted=self._port is not None or server[1] in KNOWN_PORTS)

    def _server(self, segment: Segment) -> Endpoint:
        sides = (segment.target, segment.source)
        if self._port is not None and sides[0][1] != sides[1][1]:
            return next(side for side in sides if side[1] == self._port)
        if segment.flags & SYN:
            return segment.source if segment.flags & ACK else segment.target
        for side in sides:
            if side[1] in KNOWN_PORTS:
                return side
        return min(sides, key=lambda side: side[1])

    def _follow(self, connection: _Connection, segment: Segment) -> Iterator[Event]:
        by_server = segment.source == connection.server
        half = connection.halves[by_server]
        if segment.flags & SYN:
            if half.first_seq is None:
                half.begin((segment.seq + 1) % _CYCLE)
            return  # data on a SYN (fast open) comes again in practice, and never from these clients
        if segment.data or segment.missing:
            yield from self._pieces(connection, half.add(segment), by_server=by_server)
        half.finished = half.finished or bool(segment.flags & FIN)
        over = all(each.finished and not each.waiting for each in connection.halves.values())
        if over or segment.flags & RST:
            yield from self._end(connection)

    def _pieces(self, connection: _Connection, runs: Iterator[Run], *, by_server: bool) -> Iterator[Event]:
        direction: Direction = "s2c" if by_server else "c2s"
        for data, missing, number in runs:
            if data and not connection.judged:
                self._judge(connection, data)
            if connection.passed_over:
                return
            yield Piece(
                conversation=connection.name,
                direction=direction,
                data=data,
                origin=f"frame {number} of {self._file_name}",
                missing=missing,
            )

    def _judge(self, connection: _Connection, data: bytes) -> None:
        """Find out from its first bytes whether a connection is worth reading."""
        connection.judged = True
        if data.startswith(TLS_HANDSHAKE):
            reason = "encrypted with TLS"
        elif not connection.trusted and not may_start(data):
            reason = "their first bytes are no message of this family (--port reads them anyway)"
        else:
            return
        connection.passed_over = True
        self._passed_over[reason] += 1

    def _end(self, connection: _Connection) -> Iterator[Event]:
        if connection.done:
            return
        connection.done = True
        for by_server, half in connection.halves.items():
            yield from self._pieces(connection, half.flush(), by_server=by_server)
        if not connection.passed_over:
            yield Ended(conversation=connection.name)


def _show(endpoint: Endpoint) -> str:
    address, port = endpoint
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
