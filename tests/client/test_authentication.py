import ssl
from pathlib import Path

import pytest

from headrace.client import AuthFailedError, ConnectionLostError, KvConnection, NotFoundError, StatusError
from headrace.errors import LocalProtocolError
from headrace.node.sasl import Continue, SaslServer, Success
from headrace.node.users import ITERATIONS_MIN, Role, User, Users
from headrace.wire import Request
from headrace.wire.catalogue import GetClusterConfig, Hello, HelloReply, SaslAuth, SaslListMechs, SaslStep, SelectBucket
from headrace.wire.codes import Status
from tests.client.servers import HOST, Answer, but, couchbase, headrace_node, refused, scripted, text, tls_server

PASSWORD = "pencil case"


class Guard:
    """The server's side of SASL, by the code of the node."""

    def __init__(self, mechanisms: bytes = b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN") -> None:
        self._sasl = SaslServer(Users([User.create("ann", PASSWORD, [Role.READ], iterations=ITERATIONS_MIN)]))
        self._mechanisms = mechanisms
        self.used: list[bytes] = []

    def answer(self, request: Request) -> Answer:
        """Answer as a Couchbase server with users."""
        if isinstance(request, SaslListMechs):
            return text(request, self._mechanisms)
        if not isinstance(request, SaslAuth | SaslStep):
            return couchbase(request)
        self.used.append(request.mechanism)
        take = self._sasl.auth if isinstance(request, SaslAuth) else self._sasl.step
        outcome = take(request.mechanism, request.challenge)
        if isinstance(outcome, Continue):
            return text(request, outcome.data, Status.AUTH_CONTINUE)
        if isinstance(outcome, Success):
            return text(request, outcome.data)
        return refused(request, Status.AUTH_ERROR, b"Auth failure")


@pytest.mark.parametrize(
    ("offered", "used"),
    [
        (b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN", b"SCRAM-SHA512"),
        (b"PLAIN SCRAM-SHA1 SCRAM-SHA256", b"SCRAM-SHA256"),
        (b"CRAM-MD5 SCRAM-SHA1", b"SCRAM-SHA1"),
    ],
)
def test_best_mechanism(offered: bytes, used: bytes):
    """The best SCRAM that the server offers is used, in two steps, before the bucket is selected."""
    guard = Guard(offered)
    with scripted(guard.answer) as server, KvConnection(HOST, server.port, username="ann", password=PASSWORD):
        assert guard.used == [used, used]
        kinds = [type(request) for request in server.requests]
        assert kinds == [Hello, Hello, SaslListMechs, SaslAuth, SaslStep, SelectBucket, GetClusterConfig]


@pytest.mark.parametrize("offered", [b"PLAIN", b"CRAM-MD5", b""])
def test_no_plain_without_tls(offered: bytes):
    """A password is never sent over an open line, whatever the server offers."""
    guard = Guard(offered)
    with (
        scripted(guard.answer) as server,
        pytest.raises(AuthFailedError, match="no mechanism that both know") as caught,
    ):
        KvConnection(HOST, server.port, username="ann", password=PASSWORD)
    assert guard.used == []
    assert ("needs TLS" in str(caught.value)) is (offered == b"PLAIN")


def test_wrong_password():
    """A refusal names the user, and not the password."""
    guard = Guard()
    with (
        scripted(guard.answer) as server,
        pytest.raises(AuthFailedError, match=r"user ann at .*not authenticated, status 0x20") as caught,
    ):
        KvConnection(HOST, server.port, username="ann", password="pencils")
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize("shown", [b"v=AAAA", b"", b"v=" + b"A" * 86 + b"=="])
def test_false_server(shown: bytes):
    """A server that cannot show that it knows the password is left, though it says yes."""
    guard = Guard()
    script = lambda request: text(request, shown) if isinstance(request, SaslStep) else guard.answer(request)  # noqa: E731
    with scripted(script) as server, pytest.raises(AuthFailedError):
        KvConnection(HOST, server.port, username="ann", password=PASSWORD)
    with (
        scripted(but(SaslAuth=lambda request: text(request, b""), SaslListMechs=guard.answer)) as server,
        pytest.raises(AuthFailedError, match="did not show that it knows the password"),
    ):
        KvConnection(HOST, server.port, username="ann", password=PASSWORD)


def test_half_a_user():
    """A name without a password, or the other way round, is the caller's mistake."""
    with pytest.raises(LocalProtocolError):
        KvConnection(HOST, 1, username="ann")
    with pytest.raises(LocalProtocolError):
        KvConnection(HOST, 1, password=PASSWORD)


def test_node_with_users(tmp_path: Path):
    """Our node lets in who proves to know the password, and nobody else."""
    path = tmp_path / "users.json"
    Users([User.create("ann", PASSWORD, [Role.READ], iterations=ITERATIONS_MIN)]).save(path)
    with headrace_node("--users", path) as port:
        with (
            KvConnection(HOST, port, username="ann", password=PASSWORD) as node,
            pytest.raises(NotFoundError),
        ):
            node.get(b"none")
        for name, password in (("ann", "pencils"), ("bob", PASSWORD)):
            with pytest.raises(AuthFailedError) as caught:
                KvConnection(HOST, port, username=name, password=password)
            assert password not in str(caught.value)
        with pytest.raises(StatusError):
            KvConnection(HOST, port)


@pytest.mark.parametrize("offered", [b"PLAIN", b"SCRAM-SHA512 PLAIN"])
def test_tls(tmp_path: Path, offered: bytes):
    """Inside TLS everything goes as outside, and PLAIN is used where there is nothing better."""
    context, cert = tls_server(tmp_path)
    guard = Guard(offered)
    with scripted(guard.answer, context) as server:
        trusted = ssl.create_default_context(cafile=cert)
        with KvConnection(HOST, server.port, username="ann", password=PASSWORD, tls=trusted) as connection:
            assert guard.used[0] == offered.split()[0]
            big = connection.request(Hello(agent=b"x" * 250, features=tuple(range(1000))))
            assert isinstance(big, HelloReply)
            assert len(big.features) == 1000
        with pytest.raises(ConnectionLostError, match="certificate verify failed"):
            KvConnection(HOST, server.port, tls=ssl.create_default_context())
        with pytest.raises(AuthFailedError):
            KvConnection(HOST, server.port, username="ann", password="pencils", tls=trusted)
