"""What a node may be started with, and that it starts and ends whole."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import KvConnection
from headrace.errors import HeadraceError
from headrace.node import AsyncNode, ExtraMissingError, Node, NodeError, NodeLimits, NodeOptions
from headrace.node.options import host_and_port
from tests.certificates import certificate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"buckets": "abc"}, r'not one name: \["abc"\]'),
        ({"buckets": ("a", 1)}, "list of names"),
        ({"buckets": None}, "list of names"),
        ({"port": 65536}, "port is a number from 0 to 65535, not 65536"),
        ({"port": -1}, "not -1"),
        ({"port": "11210"}, "not '11210'"),
        ({"port": True}, "not True"),
        ({"http": 70000}, "http is a number"),
        ({"vbuckets": "64"}, "whole number, not '64'"),
        ({"vbuckets": 64.0}, "whole number, not 64.0"),
        ({"vbuckets": True}, "whole number, not True"),
        ({"limits": {"connections_max": 1}}, "NodeLimits"),
        ({"limits": NodeLimits(connections_max="many")}, "connections_max is a whole number from 0 on, not 'many'"),  # type: ignore[arg-type]
        ({"limits": NodeLimits(connections_max=1.5)}, "connections_max"),  # type: ignore[arg-type]
        ({"limits": NodeLimits(half_frame_s_max=-1.0)}, "half_frame_s_max is a number from 0 on"),
        ({"limits": NodeLimits(half_frame_s_max=float("nan"))}, "half_frame_s_max"),
        ({"sync": "always"}, "behind or every-write, not 'always'"),
        ({"dialect": "tap"}, "dialect is one of auto, dcp, upr, upr-draft, not 'tap'"),
        ({"data": ""}, "data has no name"),
        ({"data": 7}, "data is a path, not 7"),
        ({"host": ""}, "not ''"),
        ({"tls_cert": "cert.pem"}, "both a certificate and a key"),
    ],
)
@pytest.mark.parametrize("kind", [NodeOptions, Node, AsyncNode])
def test_what_cannot_be_is_told_before_anything_starts(kind: Any, wrong: dict[str, Any], told: str):
    """A wrong option is a sentence, whichever way a node is started."""
    with pytest.raises(NodeError, match=told):
        kind(**wrong)


@pytest.mark.parametrize("kind", [Node, AsyncNode])
def test_both_kinds_take_the_same(kind: Any, tmp_path: Path):
    """The fields of the options by name with a free port by default, or the options as they are; never both."""
    told = kind(data=str(tmp_path), buckets=["a"], sync="every-write", vbuckets=4, http=0).options
    assert (told.port, told.data, told.buckets) == (0, tmp_path, ("a",))
    assert told.sync_every_write
    assert kind(sync_every_write=True).options.sync == "every-write"
    assert kind().options.sync == "behind"
    options = NodeOptions(vbuckets=4)
    assert kind(options).options is options
    assert options.port == 11210
    with pytest.raises(NodeError, match="not both: port"):
        kind(options, port=0)
    with pytest.raises(NodeError, match="not 4"):
        kind(4)
    with pytest.raises(TypeError, match="bukets"):
        kind(bukets=["a"])


def test_an_async_node_says_where_it_is():
    """It has what a node in a thread has."""

    async def main() -> None:
        async with AsyncNode(vbuckets=2, http=0, host="::1") as node:
            assert node.host == "::1"
            assert node.port > 0
            assert node.http_port
            assert node.connection_string == f"couchbase://[::1]:{node.port}"
            with pytest.raises(NodeError, match=rf"runs already, on \[::1\]:{node.port}"):
                await node.start()
        await node.stop()

    asyncio.run(main())


def test_addresses_are_spelled_with_brackets():
    """An IPv6 address has colons of its own."""
    assert host_and_port("::1", 1) == "[::1]:1"
    assert host_and_port("127.0.0.1", 1) == "127.0.0.1:1"


def test_a_node_is_entered_once_at_a_time(tmp_path: Path):
    """A second start of a node that runs is refused, and the node serves on; after a stop it starts again."""
    node = Node(vbuckets=2, data=tmp_path)
    with node:
        with pytest.raises(NodeError, match="runs already"), node:
            pass
        with KvConnection(node.host, node.port) as connection:
            connection.set(b"a", b"1")
    node.stop()
    with node, KvConnection(node.host, node.port) as connection:
        assert connection.get(b"a").value == b"1"


def test_data_keeps_its_number_of_vbuckets(tmp_path: Path):
    """Told no number, a node takes that of its data, and 1024 for new data; told another one, it refuses."""
    with Node(data=tmp_path / "few", vbuckets=8):
        pass
    with Node(data=tmp_path / "few", buckets=("default", "more")) as node:
        assert node.running.services.buckets.vbuckets == 8
    with pytest.raises(HeadraceError, match="--vbuckets 8"):
        Node(data=tmp_path / "few", vbuckets=16).start()
    with Node(data=tmp_path / "new") as node:
        assert node.running.services.buckets.vbuckets == 1024
    (tmp_path / "few" / "buckets" / "default" / "bucket.json").write_text('{"vbuckets": 5}')
    with pytest.raises(NodeError, match=r"bucket.json: 5 vbuckets: a power of two"):
        Node(data=tmp_path / "few").start()


def test_a_directory_that_cannot_be_made(tmp_path: Path):
    """What the system says about the directory is a sentence that names it."""
    (tmp_path / "file").touch()
    with pytest.raises(HeadraceError, match=r"file/data|Not a directory"):
        Node(data=tmp_path / "file" / "data", vbuckets=1).start()


PROGRAM = """
import sys
import headrace
from headrace.client import KvConnection
node = headrace.Node(vbuckets=4, data=sys.argv[1])
node.start()
with KvConnection(node.host, node.port) as connection:
    for number in range(500):
        connection.set(b"k%d" % number, b"v")
"""


def test_a_program_that_ends_without_a_stop_loses_nothing(tmp_path: Path):
    """Acknowledged writes are on disk though nobody stopped the node, and the next start finds a clean end."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with Node(data=tmp_path) as node, KvConnection(node.host, node.port) as connection:
        for number in range(500):
            assert connection.get(b"k%d" % number).value == b"v"
        vbuckets = node.running.services.buckets.get("default")
        assert vbuckets is not None
        assert all(vb is not None and len(list(vb.failover_log)) == 1 for vb in vbuckets.bucket.vbuckets)


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05, 0.15])
def test_a_cancelled_start_leaves_nothing_behind(after_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However far the start had come, its temporary directory is gone when the cancelling is done."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def is_empty() -> bool:
        return not list(tmp_path.iterdir())

    async def main() -> None:
        node = AsyncNode(vbuckets=4)
        task = asyncio.create_task(node.start())
        await asyncio.sleep(after_s)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            assert is_empty()
        else:  # it was done before
            await node.stop()
        assert is_empty()

    asyncio.run(main())


def test_a_failing_check_is_not_the_last(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """What is looked at each second is looked at again after a fault, and the fault is in the log."""
    monkeypatch.setattr("headrace.node.server._CHECK_EVERY_S", 0.01)
    asked = 0

    def sweep(_: object) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ValueError("a fault")

    async def main() -> None:
        async with AsyncNode(vbuckets=1):
            while asked < 3:  # noqa: ASYNC110 - the node knows no event for it
                await asyncio.sleep(0.01)

    monkeypatch.setattr("headrace.node.bucket.Bucket.sweep_locks", sweep)
    asyncio.run(asyncio.wait_for(main(), 20))
    assert [record.message for record in caplog.records if record.exc_info] == [
        "a check that is made each second failed"
    ]


def test_start_and_stop_are_told(caplog: pytest.LogCaptureFixture, tmp_path: Path):
    """One line says what the node is made of, one how it ended."""
    caplog.set_level(logging.INFO, logger="headrace.node")
    with Node(vbuckets=2, data=tmp_path, buckets=("a", "b"), sync="every-write") as node:
        pass
    first, last = [vars(record) for record in caplog.records if record.name == "headrace.node"]
    assert first["msg"] == "the node serves"
    told = {
        name: first[name] for name in ("address", "data", "temporary", "buckets", "vbuckets", "sync", "users", "tls")
    }
    assert told == {
        "address": f"127.0.0.1:{node.port}",
        "data": str(tmp_path),
        "temporary": "no",
        "buckets": "a,b",
        "vbuckets": 2,
        "sync": "every-write",
        "users": "no",
        "tls": "no",
    }
    assert first["connections_max"] == 10_000
    assert first["files_max"] > 0
    assert (last["msg"], last["clean"]) == ("the node stopped", "yes")
    assert last["took_s"] >= 0


def test_certificates_that_cannot_be_used(tmp_path: Path):
    """The sentence names the file that is wrong, and says what it is not."""
    cert, key = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other_key = certificate(tmp_path / "other")
    (tmp_path / "text").write_text("hello")
    encrypted = tmp_path / "encrypted.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", encrypted],
        check=True,
        capture_output=True,
    )
    wrongs = [
        (tmp_path / "no", key, "certificate .*no cannot be read: No such file"),
        (cert, tmp_path / "no", "key .*no cannot be read: No such file"),
        (tmp_path, key, "cannot be read: Is a directory"),
        (tmp_path / "text", key, "text is not a certificate in PEM form"),
        (key, key, "key.pem is not a certificate in PEM form"),
        (cert, tmp_path / "text", "text is not a private key in PEM form"),
        (cert, cert, "cert.pem is not a private key in PEM form"),
        (cert, other_key, "other/key.pem does not belong to the certificate .*cert.pem"),
        (cert, encrypted, "encrypted.pem is encrypted"),
    ]
    for wrong_cert, wrong_key, told in wrongs:
        with pytest.raises(NodeError, match=told):
            Node(vbuckets=1, tls_cert=wrong_cert, tls_key=wrong_key).start()


def test_a_handshake_that_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stranger who connects to a TLS port and says nothing is left in time."""
    monkeypatch.setattr("headrace.node.server.HANDSHAKE_S_MAX", 0.2)
    cert, key = certificate(tmp_path)
    with (
        Node(vbuckets=1, tls_cert=cert, tls_key=key) as node,
        socket.create_connection((node.host, node.port), timeout=10) as stranger,
    ):
        assert node.connection_string == f"couchbases://127.0.0.1:{node.port}"
        assert stranger.recv(100) == b""


def test_an_idle_client_does_not_outlive_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A client that does not answer TLS's farewell is cut off when the node stops, and nothing of it is left."""
    monkeypatch.setattr("headrace.node.server._GOODBYE_S", 0.2)
    cert, key = certificate(tmp_path)
    node = Node(vbuckets=1, tls_cert=cert, tls_key=key)
    with node:
        plain = socket.create_connection((node.host, node.port), timeout=10)
        idle = ssl.create_default_context(cafile=cert).wrap_socket(plain, server_hostname=node.host)
    with idle:
        left = [0 for each in gc.get_objects() if type(each).__name__ == "TCPTransport" and not each.is_closing()]
        assert len(left) == 0


def test_without_the_extra_one_is_told_what_to_install():
    """The libraries of the node are not in the base package: an ImportError says where they are."""
    program = """
import sys
sys.modules[sys.argv[1]] = None
import headrace
try:
    headrace.Node
except ImportError as error:
    print(type(error).__name__, error)
"""
    for library in ("lmdb", "uvloop", "msgspec"):
        done = subprocess.run([sys.executable, "-c", program, library], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        assert done.stdout.startswith(ExtraMissingError.__name__)
        assert f"needs {library}, which is not installed: pip install 'headrace[node]'" in done.stdout
    assert issubclass(ExtraMissingError, ImportError)
