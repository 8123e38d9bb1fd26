from collections.abc import Iterator

import pytest

from headrace import __version__
from headrace.client import (
    AuthFailedError,
    KeyExistsError,
    KvConnection,
    ManyNodesError,
    NoAccessError,
    NoBucketError,
    NotFoundError,
    NotSupportedError,
    StatusError,
    TooBigError,
)
from headrace.errors import LocalProtocolError
from headrace.wire import Request, Response
from headrace.wire.catalogue import GetClusterConfig, Hello, Item, Noop, SelectBucket, Text, Version
from headrace.wire.codes import Datatype, Feature
from tests.client.servers import HOST, MAP, but, couchbase, headrace_node, memcached, refused, scripted, text

PASSWORD = "pencil case"


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
        scripted(but(GetClusterConfig=lambda request: text(request, many))) as server,
        pytest.raises(ManyNodesError, match="2 nodes"),
    ):
        KvConnection(HOST, server.port)
    with (
        scripted(but(GetClusterConfig=lambda request: refused(request, 0x08))) as server,
        pytest.raises(NoBucketError),
    ):
        KvConnection(HOST, server.port)
