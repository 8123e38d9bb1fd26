"""The bounds that take time to reach, on a node with shorter ones; and strangers before a node with users."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from headrace.client import KvConnection
from headrace.node.embedded import Node
from headrace.node.limits import NodeLimits
from headrace.node.users import Role, User, Users
from headrace.wire import Header, encode
from headrace.wire.catalogue import Get, Noop, SaslAuth, Set
from headrace.wire.codes import Magic, Status
from tests.hostile.witness import dial, read_to_end, say, serving, witnessed

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

    from tests.processes import Server

NAME, PASSWORD = "ann", "correct-horse-battery"
UNAUTHENTICATED_BYTES_MAX = NodeLimits().unauthenticated_bytes_max
SOON_S = 5.0
GUESS = encode(SaslAuth(mechanism=b"PLAIN", challenge=b"\0ann\0wrong"))


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A users file with one user."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    Users([User.create(NAME, PASSWORD, {Role.ADMIN}, iterations=4096)]).save(path)
    return path


@pytest.fixture(scope="module")
def guarded(users: Path) -> Iterator[Server]:
    """A node that wants to know who asks."""
    with serving("--users", str(users)) as node:
        yield node


def known(node: Server) -> KvConnection:
    """A connection of someone who may."""
    return KvConnection(node.host, node.port, username=NAME, password=PASSWORD)


def test_strangers_may_say_little(guarded: Server) -> None:
    """Who does not say who they are is left after some bytes, be they whole requests or the beginning of one."""
    header = Header(Magic.REQUEST, 0x01, 0, 1, 8, 0, 0, UNAUTHENTICATED_BYTES_MAX + 1, 0, 0).pack()
    requests = {
        "noops": encode(Noop()),
        "sets": encode(Set(key=b"k", value=b"." * 1000)),
        "gets": encode(Get(key=b"k")),
        "hellos": bytes.fromhex("801f0000000000000000000000000000") + bytes(8),
    }
    with witnessed(guarded, connect=lambda: known(guarded)):
        with dial(guarded.port) as connection:
            say(connection, header + bytes(100))
            assert read_to_end(connection) == b""
        for name, request in requests.items():
            for _ in range(2):
                with dial(guarded.port) as connection:
                    say(connection, request * (20 * UNAUTHENTICATED_BYTES_MAX // len(request)))
                    reply = read_to_end(connection)
                assert len(reply) < 20 * UNAUTHENTICATED_BYTES_MAX, name
                if name in {"sets", "gets"}:
                    assert not reply or Header.parse(reply).specific == Status.AUTH_ERROR


def test_guesses_of_passwords_hold_nobody_up(guarded: Server) -> None:
    """Hundreds of wrong passwords at once, on many connections, are refused while others are served."""
    with witnessed(guarded, connect=lambda: known(guarded)), ExitStack() as stack:
        connections = [stack.enter_context(dial(guarded.port)) for _ in range(60)]
        for connection in connections:
            say(connection, GUESS * 5)
        for connection in connections:
            reply = b""
            while len(reply) < 24:
                reply += connection.recv(1000)
            assert Header.parse(reply).specific == Status.AUTH_ERROR


def test_a_stranger_has_little_time(users: Path) -> None:
    """Who does not authenticate in time is left, also when they keep talking."""
    limits = NodeLimits(unauthenticated_s_max=1.0)
    with ExitStack() as stack:
        node = stack.enter_context(Node(vbuckets=1, users=users, limits=limits))
        client = stack.enter_context(KvConnection(node.host, node.port, username=NAME, password=PASSWORD))
        silent, talking = (stack.enter_context(dial(node.port, SOON_S)) for _ in range(2))
        began = time.monotonic()
        while time.monotonic() < began + SOON_S and _answers(talking):
            time.sleep(0.05)
        assert time.monotonic() - began < SOON_S
        assert read_to_end(silent) == b""
        client.set(b"k", b"v")


def _answers(connection: socket.socket) -> bool:
    say(connection, encode(Noop()))
    try:
        return bool(connection.recv(24))
    except ConnectionError:
        return False


def test_a_request_that_does_not_go_on_is_given_up(tmp_path: Path) -> None:
    """A begun message without a byte of progress ends its connection; one that goes on slowly does not."""
    limits = NodeLimits(half_frame_s_max=2.0)
    whole = encode(Set(key=b"slow", value=b"<slow>"))
    with Node(data=tmp_path, vbuckets=1, limits=limits) as node, dial(node.port) as stuck, dial(node.port) as slow:
        say(stuck, whole[:30])
        for at in range(0, len(whole), 5):
            say(slow, whole[at : at + 5])
            time.sleep(0.3)
        assert Header.parse(slow.recv(24)).specific == Status.SUCCESS
        stuck.settimeout(SOON_S)
        assert read_to_end(stuck) == b""


def test_a_client_that_was_idle_may_send_in_pieces(tmp_path: Path) -> None:
    """How long a client was silent before does not count against the message that it begins now."""
    limits = NodeLimits(half_frame_s_max=3.0)
    whole = encode(Set(key=b"slow", value=b"." * 1000))
    with Node(data=tmp_path, vbuckets=1, limits=limits) as node, dial(node.port) as connection:
        time.sleep(3.5)
        say(connection, whole[:10])
        time.sleep(1.5)
        say(connection, whole[10:500])
        time.sleep(1.5)
        say(connection, whole[500:])
        assert Header.parse(connection.recv(24)).specific == Status.SUCCESS


def test_too_many_connections_are_turned_away(tmp_path: Path) -> None:
    """Beyond the limit a client is left at once; when another has gone there is room again."""
    limits = NodeLimits(connections_max=20)
    with Node(data=tmp_path, vbuckets=1, limits=limits) as node, ExitStack() as stack:
        inside = [stack.enter_context(dial(node.port)) for _ in range(20)]
        for connection in inside:
            say(connection, encode(Noop()))
            assert len(connection.recv(24)) == 24
        for _ in range(20):
            with dial(node.port) as connection:
                say(connection, encode(Noop()))
                assert read_to_end(connection) == b""
        inside[0].close()
        end = time.monotonic() + SOON_S
        while True:
            with dial(node.port) as connection:
                say(connection, encode(Noop()), is_all=True)
                if read_to_end(connection):
                    break
            assert time.monotonic() < end
