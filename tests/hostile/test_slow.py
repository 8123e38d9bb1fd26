"""Clients that are slow, many, silent or gone: they take time and memory of nobody else."""

from __future__ import annotations

import random
import resource
import selectors
import socket
import struct
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from headrace.ids import VBucketId
from headrace.wire import Header, encode
from headrace.wire.catalogue import Get, Noop, Set
from headrace.wire.codes import Magic, Status
from tests.hostile.witness import MIB, RSS_BYTES_MAX, dial, read_to_end, witnessed

if TYPE_CHECKING:
    from tests.processes import Server

IDLE = 3000
DEAF = 20
GETS = 200
HALF_FRAMES = 40
HALF_FRAME_BYTES = 20 * MIB
HALF_FRAMES_BYTES_MAX = 256 * MIB
FLOODS = 16
RESET = struct.pack("ii", 1, 0)


def test_a_byte_at_a_time_is_served(node: Server) -> None:
    """A request that comes byte by byte is served like any other, and so are hundreds of them side by side."""
    whole = encode(Set(key=b"slow", value=b"<slow>"))
    with witnessed(node), ExitStack() as stack:
        connections = [stack.enter_context(dial(node.port)) for _ in range(100)]
        for at in range(len(whole)):
            for connection in connections:
                connection.send(whole[at : at + 1])
        for connection in connections:
            assert Header.parse(connection.recv(24)).specific == Status.SUCCESS


def test_requests_that_never_end_hurt_nobody(node: Server) -> None:
    """Hundreds of connections stop in the middle of a header or a body and stay."""
    whole = encode(Set(key=b"slow", value=b"." * 50_000))
    with witnessed(node), ExitStack() as stack:
        for number in range(300):
            connection = stack.enter_context(dial(node.port))
            connection.sendall(whole[: 1 + number * 160])
        time.sleep(1.0)


def test_clients_that_never_read_are_not_read_for(node: Server) -> None:
    """Who asks for gigabytes and reads nothing is stalled: a node keeps a few MiB for each, not what was asked for."""
    with dial(node.port) as connection:
        connection.sendall(encode(Set(key=b"large", value=b"." * MIB, vbucket=VBucketId(3))))
        assert Header.parse(connection.recv(24)).specific == Status.SUCCESS
    asked = encode(Get(key=b"large", vbucket=VBucketId(3))) * GETS
    with witnessed(node, rss_bytes_max=RSS_BYTES_MAX + DEAF * 8 * MIB), ExitStack() as stack:
        deaf = []
        for _ in range(DEAF):
            connection = socket.socket()
            stack.enter_context(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            connection.connect((node.host, node.port))
            connection.sendall(asked)
            deaf.append(connection)
        time.sleep(1.5)
        # One that reads at last gets all it asked for, in order.
        deaf[0].settimeout(30)
        deaf[0].shutdown(socket.SHUT_WR)
        assert len(read_to_end(deaf[0])) == GETS * (24 + 4 + MIB)


def test_thousands_of_idle_connections(node: Server) -> None:
    """A few thousand clients that say nothing cost little, and newcomers are let in."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    idle = min(IDLE, soft // 2)
    with witnessed(node), ExitStack() as stack:
        for number in range(idle):
            connection = stack.enter_context(dial(node.port))
            if number % 100 == 0:
                connection.sendall(encode(Noop()))
                assert Header.parse(connection.recv(24)).specific == Status.SUCCESS
        time.sleep(0.5)


def test_a_client_that_says_no_more_gets_all_its_answers(node: Server) -> None:
    """A half-closed connection is answered to the last request, then closed."""
    asked = b"".join(encode(Set(key=b"half-%d" % number, value=b"." * 2000)) for number in range(500))
    with witnessed(node):
        for _ in range(20):
            with dial(node.port) as connection:
                connection.sendall(asked)
                connection.shutdown(socket.SHUT_WR)
                reply = read_to_end(connection)
            assert len(reply) == 500 * 24
            assert {Header.parse(reply, at).specific for at in range(0, len(reply), 24)} == {Status.SUCCESS}


def test_resets_at_any_moment(node: Server) -> None:
    """Connections that are torn down while they send, wait or receive leave nothing behind."""
    draw = random.Random(4)
    asked = encode(Get(key=b"large", vbucket=VBucketId(3))) * 5 + encode(Set(key=b"reset", value=b"." * 5000))
    with witnessed(node):
        for _ in range(500):
            connection = dial(node.port)
            connection.sendall(asked[: draw.randrange(1, len(asked))])
            if draw.random() < 0.3:
                connection.recv(100)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()


def test_large_half_frames_are_bounded_together(node: Server) -> None:
    """Of many large messages that are begun at once, as many are taken as there is room for; the rest is told so."""
    header = Header(Magic.REQUEST, 0x01, 0, 4, 8, 0, 5, HALF_FRAME_BYTES, 0, 0).pack()
    piece = bytes(MIB)
    room = HALF_FRAMES_BYTES_MAX // (HALF_FRAME_BYTES - MIB)  # what each sends of its message
    with witnessed(node, rss_bytes_max=RSS_BYTES_MAX + HALF_FRAMES_BYTES_MAX), ExitStack() as stack:
        begun = [stack.enter_context(dial(node.port)) for _ in range(HALF_FRAMES)]
        taken = [connection for connection in begun if _goes_through(connection, header + bytes(8) + b"half")]
        for _ in range(HALF_FRAME_BYTES // MIB - 1):
            taken = [connection for connection in taken if _goes_through(connection, piece)]
        time.sleep(0.5)
        taken = [connection for connection in taken if _goes_through(connection, b"")]
        assert 1 <= len(taken) <= room
    with witnessed(node), dial(node.port) as connection:  # they are gone, and their room is free
        connection.sendall(header + bytes(8) + b"half" + bytes(HALF_FRAME_BYTES - 12))
        assert Header.parse(connection.recv(24)).specific == Status.SUCCESS


def _goes_through(connection: socket.socket, data: bytes) -> bool:
    """Send more of a message; False when the node has turned it away, and said why."""
    connection.settimeout(0.001)
    try:
        reply = connection.recv(1000)
    except TimeoutError:
        reply = None
    except ConnectionError:
        return False
    if reply is not None:
        assert not reply or Header.parse(reply).specific == Status.OUT_OF_MEMORY
        return False
    connection.settimeout(30)
    try:
        connection.sendall(data)
    except ConnectionError:
        return False
    return True


def test_floods_of_small_requests_leave_turns_to_others(node: Server) -> None:
    """Connections that pipeline as much as they can are served in turns, and a turn is short."""
    block = encode(Noop()) * 10_000
    with witnessed(node), ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(FLOODS):
            connection = stack.enter_context(dial(node.port))
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, _Flood(connection, block))
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            for key, _ in selector.select(0.1):
                key.data.go_on()


class _Flood:
    """Sends a block again and again and reads what comes."""

    def __init__(self, connection: socket.socket, block: bytes) -> None:
        self._connection = connection
        self._block = self._rest = block

    def go_on(self) -> None:
        with suppress(BlockingIOError):
            self._connection.recv(MIB)
        with suppress(BlockingIOError):
            self._rest = self._rest[self._connection.send(self._rest) :] or self._block
