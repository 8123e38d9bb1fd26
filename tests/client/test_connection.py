import json
import pickle
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import __version__
from headrace.client import (
    AuthFailedError,
    ClientError,
    CommonFlags,
    ConnectionLostError,
    KeyExistsError,
    KvConnection,
    ManyNodesError,
    NoAccessError,
    NoBucketError,
    NotFoundError,
    NotMyVBucketError,
    NotSupportedError,
    ServerAnswerError,
    StatusError,
    TemporaryFailureError,
    TooBigError,
    UnknownCommandError,
    beside,
    error_of,
    json_beside,
    wire_expiry,
)
from headrace.errors import LocalProtocolError
from headrace.node.sasl import Continue, SaslServer, Success
from headrace.node.users import ITERATIONS_MIN, Role, User, Users
from headrace.wire import Message, Request, Response
from headrace.wire.catalogue import (
    GetClusterConfig,
    Hello,
    HelloReply,
    Item,
    Noop,
    SaslAuth,
    SaslListMechs,
    SaslStep,
    SelectBucket,
    Text,
    Version,
)
from headrace.wire.codes import Datatype, Feature, Status
from tests.client.servers import (
    HOST,
    Answer,
    done,
    free_port,
    headrace_node,
    memcached,
    opcode_of,
    refused,
    scripted,
    tls_server,
)

PASSWORD = "pencil case"
MAP = json.dumps({"vBucketServerMap": {"serverList": ["$HOST:1"], "vBucketMap": [[0]] * 64}}).encode()


@pytest.fixture(scope="module", params=["memcached", "node"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A foreign server, and ours."""
    with memcached() if request.param == "memcached" else headrace_node() as found:
        yield found


@pytest.fixture
def server(port: int) -> Iterator[KvConnection]:
    """A connection to either."""
    with KvConnection(HOST, port) as connection:
        yield connection


def test_set_get_delete(server: KvConnection):
    """An item is stored, read and removed, by its version too."""
    stored = server.set(b"item", b"\0value\xff", flags=0xDEADBEEF)
    assert stored.cas
    item = server.get(b"item")
    assert (item.value, item.flags, item.cas) == (b"\0value\xff", 0xDEADBEEF, stored.cas)
    again = server.set(b"item", b"", cas=stored.cas)
    assert again.cas not in (0, stored.cas)
    assert server.get(b"item").value == b""
    with pytest.raises(KeyExistsError):
        server.set(b"item", b"late", cas=stored.cas)
    with pytest.raises(KeyExistsError):
        server.delete(b"item", cas=stored.cas)
    server.delete(b"item", cas=again.cas)
    with pytest.raises(NotFoundError, match=r"get item at 127.0.0.1:.*: not found, status 0x01"):
        server.get(b"item")
    with pytest.raises(NotFoundError):
        server.delete(b"item")
    with pytest.raises(NotFoundError):
        server.set(b"item", b"none", cas=7)


def test_errors_leave_the_connection(server: KvConnection):
    """After a status of failure, the connection goes on."""
    for _ in range(3):
        with pytest.raises(NotFoundError):
            server.get(b"no such item")
    assert isinstance(server.request(Noop()), Response)
    version = server.request(Version())
    assert isinstance(version, Text)
    assert version.value[:1].isdigit()


def test_wrong_keys(server: KvConnection):
    """A key that servers would close the connection over is not sent."""
    for key in (b"", b"k" * 251):
        with pytest.raises(LocalProtocolError, match="a key has 1 to 250 bytes"):
            server.get(key)
    server.set(b"k" * 250, b"longest")
    assert server.get(b"k" * 250).value == b"longest"


def test_memcached_is_plain():
    """Memcached has no features, no vbuckets and no buckets, says when a value is too big, and has no users."""
    with memcached("-I", "1m") as port:
        with KvConnection(HOST, port) as plain:
            assert plain.features == frozenset()
            assert plain.vbuckets is None
            assert plain.vbucket_of(b"any") == 0
            with pytest.raises(TooBigError, match="too big"):
                plain.set(b"big", bytes(2 << 20))
            assert plain.set(b"small", b"x").cas
        with pytest.raises(NotSupportedError, match=r"bucket beer at .*it has no buckets"):
            KvConnection(HOST, port, bucket="beer")
        with pytest.raises(AuthFailedError, match="the server has no users"):
            KvConnection(HOST, port, username="ann", password=PASSWORD)


def test_node_has_vbuckets():
    """Our node grants what is asked for, and its map tells how many vbuckets there are."""
    with headrace_node() as port, KvConnection(HOST, port) as node:
        assert node.features == {Feature.MUTATION_SEQNO, Feature.SELECT_BUCKET, Feature.JSON}
        assert node.vbuckets == 64
        stored = node.set(b"hello", b"{}", datatype=Datatype.JSON)
        assert stored.seqno == 1
        assert stored.vbuuid
        assert node.get(b"hello").datatype == Datatype.JSON
        with pytest.raises(StatusError):
            KvConnection(HOST, port, bucket="nonesuch")


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


# -- a server that says what a test wants


def couchbase(request: Request) -> Answer:
    """Open as a Couchbase server does that wants no password."""
    match request:
        case Hello():
            return HelloReply(opcode=opcode_of(request), opaque=request.opaque, features=request.features)
        case GetClusterConfig():
            return _text(request, MAP)
        case _:
            return done(request)


def _text(request: Message, value: bytes, status: int = 0) -> Text:
    return Text(opcode=opcode_of(request), opaque=request.opaque, value=value, status=status)


def but(**answers: Callable[[Request], Answer]) -> Callable[[Request], Answer]:
    """A Couchbase server that answers some requests in another way."""
    return lambda request: answers.get(type(request).__name__, couchbase)(request)


def test_opening():
    """The connection opens in order, says who it is, and asks for what it uses only."""
    with scripted(couchbase) as server, KvConnection(HOST, server.port, bucket="beer") as connection:
        assert connection.vbuckets == 64
        probe, hello, select, config = server.requests
        assert isinstance(probe, Hello)
        assert (probe.agent, probe.features) == (b"", ())
        assert isinstance(hello, Hello)
        assert hello.agent == f"headrace/{__version__}".encode()
        assert hello.features == (0x04, 0x08, 0x0B)
        assert isinstance(select, SelectBucket)
        assert select.name == b"beer"
        assert isinstance(config, GetClusterConfig)
        assert repr(connection) == f"KvConnection(127.0.0.1:{server.port}, bucket='beer')"


def test_requests_carry_their_vbucket():
    """An item is asked for under the vbucket of its key."""
    item = lambda request: Item(opcode=0, opaque=request.opaque, flags=0, value=b"v")  # noqa: E731
    with scripted(but(Get=item)) as server, KvConnection(HOST, server.port) as connection:
        assert connection.get(b"hello").value == b"v"
        assert isinstance(server.requests[-1], Request)
        assert server.requests[-1].vbucket == 528 % 64


class Guard:
    """The server's side of SASL, by the code of the node."""

    def __init__(self, mechanisms: bytes = b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN") -> None:
        self._sasl = SaslServer(Users([User.create("ann", PASSWORD, [Role.READ], iterations=ITERATIONS_MIN)]))
        self._mechanisms = mechanisms
        self.used: list[bytes] = []

    def answer(self, request: Request) -> Answer:
        """Answer as a Couchbase server with users."""
        if isinstance(request, SaslListMechs):
            return _text(request, self._mechanisms)
        if not isinstance(request, SaslAuth | SaslStep):
            return couchbase(request)
        self.used.append(request.mechanism)
        take = self._sasl.auth if isinstance(request, SaslAuth) else self._sasl.step
        outcome = take(request.mechanism, request.challenge)
        if isinstance(outcome, Continue):
            return _text(request, outcome.data, Status.AUTH_CONTINUE)
        if isinstance(outcome, Success):
            return _text(request, outcome.data)
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
    script = lambda request: _text(request, shown) if isinstance(request, SaslStep) else guard.answer(request)  # noqa: E731
    with scripted(script) as server, pytest.raises(AuthFailedError):
        KvConnection(HOST, server.port, username="ann", password=PASSWORD)
    with (
        scripted(but(SaslAuth=lambda request: _text(request, b""), SaslListMechs=guard.answer)) as server,
        pytest.raises(AuthFailedError, match="did not show that it knows the password"),
    ):
        KvConnection(HOST, server.port, username="ann", password=PASSWORD)


def test_half_a_user():
    """A name without a password, or the other way round, is the caller's mistake."""
    with pytest.raises(LocalProtocolError):
        KvConnection(HOST, 1, username="ann")
    with pytest.raises(LocalProtocolError):
        KvConnection(HOST, 1, password=PASSWORD)


@pytest.mark.parametrize(
    ("status", "kind"), [(0x24, NoAccessError), (0x01, NotFoundError), (0x20, AuthFailedError), (0x86, StatusError)]
)
def test_buckets_that_are_refused(status: int, kind: type[StatusError]):
    """A bucket that one may not use, or that is not there, is named."""
    script = but(SelectBucket=lambda request: refused(request, status, b"no"))
    with scripted(script) as server, pytest.raises(kind, match="bucket beer at "):
        KvConnection(HOST, server.port, bucket="beer")


def test_configs_that_do_not_do():
    """No bucket, and a bucket on many nodes, are errors of their own."""
    many = MAP.replace(b'"$HOST:1"', b'"a:1", "b:1"')
    with (
        scripted(but(GetClusterConfig=lambda request: _text(request, many))) as server,
        pytest.raises(ManyNodesError, match="2 nodes"),
    ):
        KvConnection(HOST, server.port)
    with (
        scripted(but(GetClusterConfig=lambda request: refused(request, 0x08))) as server,
        pytest.raises(NoBucketError),
    ):
        KvConnection(HOST, server.port)


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


@pytest.mark.parametrize("status", sorted(Status))
def test_errors_travel(status: Status):
    """An error is found by its code, names what was asked, and comes whole out of a pickle."""
    error = error_of("get x", status, b"text\x1b[31m of the server\0")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.asked, again.status, again.text, str(again)) == (error.asked, error.status, error.text, str(error))
    assert isinstance(error, ClientError)
    assert str(error).startswith("get x: ")
    assert f"0x{status:02x}" in str(error)
    assert "\x1b" not in str(error)


def test_which_errors_may_be_retried():
    """What may be served later is told from what may not."""
    retriable = {status for status in Status if error_of("", status).retriable}
    assert {Status.TEMPORARY_FAILURE, Status.BUSY, Status.LOCKED} <= retriable
    assert not retriable & {Status.KEY_NOT_FOUND, Status.TOO_BIG, Status.NO_ACCESS, Status.NOT_MY_VBUCKET}
    assert isinstance(error_of("", Status.TEMPORARY_FAILURE), TemporaryFailureError)
    assert isinstance(error_of("", Status.UNKNOWN_COMMAND), UnknownCommandError)
    moved = error_of("", Status.NOT_MY_VBUCKET, MAP)
    assert isinstance(moved, NotMyVBucketError)
    assert moved.text == ""


def test_beside():
    """A value is marked as what it is where the marks are understood, and nowhere else."""
    features = frozenset({Feature.JSON})
    assert beside(b'{"a": 1}', features) == (CommonFlags.JSON, Datatype.JSON) == json_beside(features)
    assert beside(b"hello", features) == (CommonFlags.TEXT, 0)
    assert beside(b"\xff", features) == (CommonFlags.BINARY, 0)
    assert beside(b'{"a": 1}', frozenset()) == json_beside(frozenset()) == (0, 0)


def test_expiry():
    """Up to thirty days an expiry counts from now, beyond from the epoch."""
    month = 30 * 86400
    assert [wire_expiry(seconds, now=1e9) for seconds in (0, 60, month)] == [0, 60, month]
    assert wire_expiry(month + 1, now=1e9) == 1_000_000_000 + month + 1
    assert wire_expiry(1 << 40, now=1e9) == 0xFFFF_FFFF
