import math
import os
import resource
import ssl
import threading

import pytest

from headrace.client import ConnectionLostError, KvConnection, ServerAnswerError
from headrace.errors import RemoteProtocolError
from headrace.wire import Message, Response
from headrace.wire.catalogue import Item, Noop
from headrace.wire.codes import Status
from tests.client.servers import HOST, but, couchbase, free_port, refused, scripted


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n....",
        Noop(),
        Item(opcode=0x1F, flags=0),
        Item(opcode=0x00, opaque=1, flags=0),  # type: ignore[arg-type]
    ],
)
def test_no_server_of_this_protocol(answer: bytes | Message):
    """Whatever else listens there is told from a server, and left."""
    with scripted(lambda _: answer) as server, pytest.raises(ServerAnswerError):
        KvConnection(HOST, server.port)


def test_server_that_closes():
    """A server that hangs up is told from one that refuses, and a closed connection stays closed."""
    with scripted(but(Get=lambda _: None)) as server:
        connection = KvConnection(HOST, server.port)
        with pytest.raises(ConnectionLostError, match="the server closed the connection"):
            connection.get(b"item")
        with pytest.raises(ConnectionLostError):
            connection.get(b"item")


def test_silent_server():
    """A server that says nothing is not waited for without end."""
    with (
        scripted(lambda _: []) as server,
        pytest.raises(ConnectionLostError, match=r"no answer within 0.05 s") as caught,
    ):
        KvConnection(HOST, server.port, timeout_s=0.05)
    assert caught.value.retriable


def test_nobody_there():
    """A port that nobody listens on, and a host that nobody knows, are told with the address."""
    port = free_port()
    with pytest.raises(ConnectionLostError, match=f"127.0.0.1:{port}: cannot connect: Connection refused"):
        KvConnection(HOST, port)
    with pytest.raises(ConnectionLostError, match=r"host\.invalid:1: cannot connect: "):
        KvConnection("host.invalid", 1)


def test_tls_to_an_open_port():
    """TLS to a server without it fails with a sentence, not with a trace."""
    with scripted(lambda _: b"no") as server, pytest.raises(ConnectionLostError, match="cannot connect"):
        KvConnection(HOST, server.port, tls=ssl.create_default_context(), timeout_s=0.2)


def test_long_writes_and_long_answers():
    """A server that answers while it is written to does not block: what it says is read meanwhile."""
    text = b"x" * 20_000
    with scripted(but(Noop=lambda request: refused(request, Status.NOT_SUPPORTED, text))) as server:
        connection = KvConnection(HOST, server.port, timeout_s=20)
        frame = bytes.fromhex("800a00000000000000000000000000070000000000000000")
        connection.send(frame * 20_000)
        answers = [len(connection.next_frame().body) for _ in range(20_000)]
        assert set(answers) == {len(text)}
        connection.close()
    assert threading.active_count() < 20


@pytest.fixture
def many_files():
    """More open files than select() can wait for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("no more than 1024 files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1100:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_many_open_files():
    """A process may have more files open than select() knows of, and connect, write, read and wait all the same."""
    answer = lambda request: refused(request, Status.NOT_SUPPORTED, b"x" * 20_000)  # noqa: E731
    with scripted(but(Noop=answer)) as server, KvConnection(HOST, server.port, timeout_s=5) as connection:
        connection.send(bytes.fromhex("800a00000000000000000000000000070000000000000000") * 2000)
        assert {len(connection.next_frame().body) for _ in range(2000)} == {20_000}
    with scripted(lambda _: []) as server, pytest.raises(ConnectionLostError, match=r"no answer within 0.05 s"):
        KvConnection(HOST, server.port, timeout_s=0.05)


@pytest.mark.parametrize("timeout_s", [1e10, math.inf])
def test_patience_without_end(timeout_s: float):
    """Who would wait for ever waits for long, and gets answers."""
    with scripted(but()) as server, KvConnection(HOST, server.port, timeout_s=timeout_s) as connection:
        assert isinstance(connection.request(Noop()), Response)


def test_no_answer_of_this_protocol_while_a_request_is_sent(monkeypatch: pytest.MonkeyPatch):
    """Such bytes may come before a request is wholly sent: they are told as at any other time."""

    def came(_data: bytes) -> None:
        raise RemoteProtocolError("0x48 is no magic of this protocol")

    with scripted(couchbase) as server, KvConnection(HOST, server.port) as node:
        monkeypatch.setattr(node._transport, "send", came)
        with pytest.raises(ServerAnswerError, match="no server of the binary protocol"):
            node.get(b"key")
