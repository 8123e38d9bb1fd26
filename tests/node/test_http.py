"""The HTTP port, asked by the standard library's clients."""

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.ids import VBucketId
from headrace.node import Node, NodeError, rest
from headrace.node import http as node_http
from headrace.node.commands.session import VERSION
from headrace.node.rest import ROUTES
from headrace.node.users import Role, User, Users
from headrace.wire.catalogue import CreateBucket, DeleteBucket, GetClusterConfig, Noop, SelectBucket, SetVBucket, Text
from tests.node.asked import PASSWORD, TIMEOUT_S, Asked, basic
from tests.node.talk import Talk, on_loop

OPEN_ENDED = {"/pools/default/bs/{bucket}", "/pools/default/bucketsStreaming/{bucket}"}
PATHS = [entry.path.replace("{bucket}", "default") for entry in ROUTES if entry.path not in OPEN_ENDED]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with an HTTP port, open to all."""
    with Node(vbuckets=8, http=0) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that asks who one is."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    users = [
        User.create("reader", PASSWORD, {Role.READ}, iterations=4096),
        User.create("streamer", PASSWORD, {Role.STREAM}, {"other"}, iterations=4096),
        User.create("admin", PASSWORD, {Role.ADMIN}, iterations=4096),
    ]
    Users(users).save(path)
    with Node(vbuckets=4, http=0, users=path, buckets=("default", "other")) as running:
        yield running


def opened(node: Node, name: str = "default") -> Any:
    """The bucket of a node, to reach into."""
    found = node.running.services.buckets.get(name)
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------------------------- routes


@pytest.mark.parametrize("path", PATHS)
def test_every_route_answers(node: Node, path: str):
    """Each route is there, is not cached, and takes no other method than GET and HEAD."""
    asked = Asked(node, path)
    assert asked.status == 200
    assert asked.headers["Cache-Control"] == "no-store"
    head = Asked(node, path, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    for method in ("POST", "PUT", "DELETE"):
        refused = Asked(node, path, method=method)
        assert refused.status == 405
        assert "GET" in refused.headers["Allow"]


def test_an_unknown_address_names_the_routes(node: Node):
    """Whoever asks for what is not there learns what is."""
    asked = Asked(node, "/ui/index.html")
    assert asked.status == 404
    assert asked.json["routes"] == [entry.path for entry in ROUTES]
    missing = Asked(node, "/pools/default/buckets/none")
    assert (missing.status, missing.json) == (404, {"error": "there is no bucket none"})


def test_the_index_is_a_page_and_json(node: Node):
    """The same address gives a page without script, and JSON to who asks for it."""
    page = Asked(node, "/")
    assert page.headers["Content-Type"].startswith("text/html")
    assert b"default" in page.body
    assert b"<script" not in page.body
    told = Asked(node, "/", Accept="application/json").json
    assert [bucket["name"] for bucket in told["buckets"]] == ["default"]
    assert told["buckets"][0]["vbuckets"]["active"] == 8


def test_clients_find_the_node(node: Node):
    """The version is the one of the KV port, and the node stands there with the ports that it has."""
    assert Asked(node, "/pools").json["implementationVersion"] == VERSION.decode()
    assert Asked(node, "/whoami").json["id"] == "Administrator"
    (there,) = Asked(node, "/pools/default").json["nodes"]
    assert there["hostname"] == f"127.0.0.1:{node.http_port}"
    assert there["ports"] == {"direct": node.port}
    (bucket,) = Asked(node, "/pools/default/buckets").json
    assert (bucket["bucketType"], bucket["storageBackend"]) == ("membase", "couchstore")
    assert bucket["vBucketServerMap"]["serverList"] == [f"127.0.0.1:{there['ports']['direct']}"]
    assert bucket == Asked(node, "/pools/default/buckets/default").json


def test_the_map_is_that_of_the_kv_port(node: Node):
    """Over REST the map is the same but for the host, which is written out as the client dialled it."""
    with Talk(node) as talk:
        told = talk.get(GetClusterConfig(), Text).value
    for host in ("127.0.0.1", "localhost", "[::1]", "db.example.org"):
        asked = Asked(node, "/pools/default/b/default", Host=f"{host}:{node.http_port}")
        assert asked.body.strip() == told.replace(b"$HOST", host.encode())
    strange = Asked(node, "/pools/default/b/default", Host='"><b>')
    assert strange.body.strip() == told.replace(b"$HOST", b"127.0.0.1")


# ------------------------------------------------------------------------------------------------------------- health


def test_health_follows_the_disk(node: Node):
    """A bucket whose writes are not acknowledged makes the node unhealthy; what the disk said is not told to all."""
    assert Asked(node, "/health").json.items() >= {"status": "ok", "buckets": {"default": {"status": "ok"}}}.items()
    bucket = opened(node).bucket
    on_loop(node, lambda: setattr(bucket, "trouble", "not on disk: /secret/place is full"))
    try:
        asked = Asked(node, "/health")
        assert asked.status == 503
        assert (asked.json["status"], asked.json["buckets"]["default"]["status"]) == ("degraded", "degraded")
        assert b"secret" not in asked.body
        assert b"/secret/place is full" in Asked(node, "/").body
    finally:
        on_loop(node, lambda: setattr(bucket, "trouble", None))
    assert Asked(node, "/health").status == 200


def test_stopped_persistence_is_no_sickness(node: Node):
    """Persistence that was stopped on demand is told, and the node is well."""
    on_loop(node, opened(node).flusher.stop_persistence)
    try:
        asked = Asked(node, "/health")
        assert (asked.status, asked.json["status"]) == (200, "ok")
        assert "persistence is stopped" in asked.json["buckets"]["default"]["why"]
    finally:
        on_loop(node, opened(node).flusher.start_persistence)


# --------------------------------------------------------------------------------------------------------------- users


def test_everything_but_health_wants_a_user(guarded: Node):
    """Without a name only /health answers, and without the names of the buckets."""
    for path in (*PATHS, "/pools/default/bs/default"):
        asked = Asked(guarded, path)
        if path == "/health":
            assert (asked.status, asked.json["buckets"]) == (200, {})
        else:
            assert asked.status == 401
            assert asked.headers["WWW-Authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    "header",
    [basic("reader", "wrong"), basic("nobody"), basic("", ""), basic("a\0b", "c\0d"), "Basic !", "Bearer x", "Basic",
     "Basic " + "A" * 5000, basic("reader", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"))],
    ids=["password", "name", "empty", "NULs", "no base64", "bearer", "bare", "long", "no UTF-8"],
)  # fmt: skip
def test_a_wrong_login_is_refused(guarded: Node, header: str):
    """Whatever else stands in the header is answered with 401, on /health, too."""
    assert Asked(guarded, "/", Authorization=header).status == 401
    assert Asked(guarded, "/health", Authorization=header).status == 401


def test_refused_logins_are_counted(guarded: Node):
    """A refused login is seen in the metrics."""
    before = guarded.running.services.counts.refused_logins
    Asked(guarded, "/", Authorization=basic("reader", "wrong"))
    assert guarded.running.services.counts.refused_logins == before + 1


def test_a_user_sees_the_buckets_of_their_roles(guarded: Node):
    """Buckets in which a user has no role are as if they were not there."""
    streamer, reader = basic("streamer"), basic("reader")
    names = [bucket["name"] for bucket in Asked(guarded, "/pools/default/buckets", Authorization=streamer).json]
    assert names == ["other"]
    assert Asked(guarded, "/pools/default/b/other", Authorization=streamer).status == 200
    assert Asked(guarded, "/pools/default/b/default", Authorization=streamer).status == 404
    assert set(Asked(guarded, "/health", Authorization=reader).json["buckets"]) == {"default", "other"}
    metrics = Asked(guarded, "/metrics", Authorization=streamer).body
    assert b'bucket="other"' in metrics
    assert b'bucket="default"' not in metrics
    assert Asked(guarded, "/whoami", Authorization=streamer).json["roles"] == [{"role": "stream"}]


# ------------------------------------------------------------------------------------------------------------- streams


class MapStream:
    """A map that is kept open."""

    def __init__(self, node: Node, path: str) -> None:
        assert node.http_port is not None
        self._connection = http.client.HTTPConnection(node.host, node.http_port, timeout=TIMEOUT_S)
        self._connection.request("GET", path)
        self.response = self._connection.getresponse()

    def next(self) -> Any:
        """Wait for the next document; None when the stream ends."""
        text = b""
        while not text.endswith(b"\n\n\n\n"):
            line = self.response.readline()
            if not line:
                return None
            text += line
        return json.loads(text)

    def close(self) -> None:
        """Leave."""
        self.response.close()
        self._connection.close()


@pytest.mark.parametrize("path", ["/pools/default/bs/", "/pools/default/bucketsStreaming/"])
def test_a_stream_follows_the_map(node: Node, path: str):
    """A streamed map comes at once, again after a change, and ends with its bucket."""
    with Talk(node) as talk:
        talk.ask(CreateBucket(name=b"streamed"))
        stream = MapStream(node, path + "streamed")
        assert stream.response.headers["Transfer-Encoding"] == "chunked"
        first = stream.next()
        assert first["vBucketServerMap"]["vBucketMap"][3] == [0]
        talk.ask(SelectBucket(name=b"streamed"))
        talk.ask(SetVBucket(vbucket=VBucketId(3), state=4))
        while (later := stream.next())["vBucketServerMap"]["vBucketMap"][3] == [0]:
            pass
        assert later["vBucketServerMap"]["vBucketMap"].count([0]) == 7
        talk.ask(DeleteBucket(name=b"streamed"))
        while stream.next() is not None:
            pass
        stream.close()


def test_a_stream_that_is_left_is_forgotten(node: Node, monkeypatch: pytest.MonkeyPatch):
    """There are so many streams at a time and no more; one that its client left makes room."""
    monkeypatch.setattr(rest, "STREAMS_MAX", 1)
    stream = MapStream(node, "/pools/default/bs/default")
    assert stream.next()["name"] == "default"
    assert Asked(node, "/pools/default/bs/default").status == 503
    stream.close()
    end = time.monotonic() + TIMEOUT_S
    while (again := MapStream(node, "/pools/default/bs/default")).response.status == 503:
        assert time.monotonic() < end
        again.close()
    again.close()


def test_a_node_stops_though_maps_are_streamed():
    """An open stream does not keep a node from stopping, and the client sees its end."""
    node = Node(vbuckets=2, http=0)
    node.start()
    stream = MapStream(node, "/pools/default/bs/default")
    stream.next()
    began = time.monotonic()
    node.stop()
    assert time.monotonic() - began < 5
    assert stream.next() is None
    stream.close()
    with pytest.raises(OSError):  # noqa: PT011 - refused or reset
        Asked(node, "/health")


# -------------------------------------------------------------------------------------------------------------- bounds


def test_a_failing_route_is_not_the_end(node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """A route that fails is answered with 500 and logged; the node serves on."""

    def fail(*_: object) -> bytes:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(rest, "metrics_text", fail)
    asked = Asked(node, "/metrics")
    assert asked.status == 500
    assert b"mistake" not in asked.body
    assert Asked(node, "/health").status == 200
    with Talk(node) as talk:
        assert talk.status(Noop()) == 0
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError]


def test_a_long_head_is_refused(node: Node):
    """A request head beyond the limit is refused."""
    assert Asked(node, "/health", Filler="x" * (rest.HEAD_BYTES_MAX - 1000)).status == 200
    assert Asked(node, "/health", Filler="x" * (rest.HEAD_BYTES_MAX + 1000)).status in {400, 431}
    with socket.create_connection((node.host, node.http_port or 0), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nFiller: ")
        time.sleep(0.1)
        connection.sendall(b"x" * rest.HEAD_BYTES_MAX)
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")


def test_what_is_no_http_is_refused(node: Node):
    """Bytes that are no request end the connection, and nothing else."""
    with socket.create_connection((node.host, node.http_port or 0), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"\x80\x0a" + bytes(22) + b"\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")
    assert Asked(node, "/health").status == 200


def test_a_silent_client_is_left(node: Node, monkeypatch: pytest.MonkeyPatch):
    """Who connects and does not finish a request is disconnected, however slowly they go on."""
    monkeypatch.setattr(node_http, "IDLE_S_MAX", 0.5)
    with socket.create_connection((node.host, node.http_port or 0), timeout=TIMEOUT_S) as connection:
        end = time.monotonic() + 5
        try:
            while time.monotonic() < end:
                connection.sendall(b"G")
                time.sleep(0.05)
        except OSError:
            return
    pytest.fail("the node waited")


def test_connections_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch):
    """A connection too many is closed; those that were there are served."""
    monkeypatch.setattr(node_http, "CONNECTIONS_MAX", 2)
    there = [socket.create_connection((node.host, node.http_port or 0), timeout=TIMEOUT_S) for _ in range(2)]
    time.sleep(0.1)
    with pytest.raises((OSError, http.client.HTTPException)):
        Asked(node, "/health")
    there[0].sendall(b"GET /health HTTP/1.0\r\n\r\n")
    assert there[0].recv(1000).startswith(b"HTTP/1.1 200")
    for one in there:
        one.close()


def test_many_clients_at_once(node: Node):
    """Clients that ask at the same time are all answered."""
    statuses: list[int] = []

    def ask() -> None:
        statuses.extend(Asked(node, path).status for path in PATHS * 3)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * len(PATHS) * 24


def test_a_taken_port_is_told(node: Node):
    """A node that cannot have its HTTP port does not start, and says which port."""
    with pytest.raises(NodeError, match=f"{node.http_port} \\(--http\\)"):
        Node(vbuckets=1, http=node.http_port).start()


def test_http_speaks_tls_with_the_node(tmp_path: Path):
    """With a certificate the HTTP port speaks TLS, too: a password never goes over the wire in the clear."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    subprocess.run([*make, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True)
    with Node(vbuckets=1, http=0, tls_cert=cert, tls_key=key) as node:
        assert node.http_port is not None
        context = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection(node.host, node.http_port, timeout=TIMEOUT_S, context=context)
        connection.request("GET", "/pools/default")
        (there,) = json.loads(connection.getresponse().read())["nodes"]
        assert there["ports"] == {"sslDirect": node.port}
        connection.close()


SDK = """
import sys
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions

cluster = Cluster(sys.argv[1], ClusterOptions(PasswordAuthenticator("Administrator", "password")))
cluster.bucket("default")  # brings the map, and with it the HTTP port
found = cluster.buckets().get_bucket("default")
print([bucket.name for bucket in cluster.buckets().get_all_buckets()], found.num_replicas, found.flush_enabled)
cluster.close()
"""


def test_a_couchbase_sdk_reads_the_buckets(node: Node):
    """Couchbase's SDK lists buckets over REST; a field that it misses would end its process, so it has one."""
    pytest.importorskip("couchbase")
    command = [sys.executable, "-c", SDK, node.connection_string]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("['default'] 0 False\n", 0), done.stderr
