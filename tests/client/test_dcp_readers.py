"""Both kinds of readers over sockets: against a model of nodes, and against a node of ours."""

import asyncio
import pickle
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from headrace.client import (
    Address,
    AsyncBatchReader,
    AsyncChangeReader,
    AuthFailedError,
    BatchReader,
    Change,
    ChangeOptions,
    ChangeReader,
    ConnectionLostError,
    KvConnection,
    NoAccessError,
    OptionError,
    Positions,
    RolledBack,
    SnapshotMarked,
    StreamEnded,
    StreamStarted,
)
from headrace.client.events import Batch
from headrace.columns import schema
from headrace.node.users import ITERATIONS_MIN, Role, User, Users
from headrace.testing.live import LiveNode
from headrace.wire.catalogue import Control, StreamRequest
from headrace.wire.codes import Status
from tests.certificates import certificate
from tests.client.fake_dcp import FakeCluster, served
from tests.processes import start_node

WAIT_S = 30.0
PASSWORD = "pencil case"

Read = Callable[..., list[Any]]


def blocking(options: ChangeOptions, *, until_seen: int | None = None, batches: bool = False, **plan: Any) -> list[Any]:
    """Read with sockets that block, to the end or until so many changes were seen."""
    found: list[Any] = []
    with BatchReader(options, **plan) if batches else ChangeReader(options, **plan) as reader:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            each = reader.next_batch(1.0) if isinstance(reader, BatchReader) else reader.next_change(1.0)
            if each is None and reader.is_done:
                return found
            if each is not None:
                found.append(each)
            if until_seen is not None and _count(found) >= until_seen:
                return found
    raise AssertionError(f"{_count(found)} changes after {WAIT_S} s")


def in_a_loop(
    options: ChangeOptions, *, until_seen: int | None = None, batches: bool = False, **plan: Any
) -> list[Any]:
    """Read in an event loop."""

    async def read() -> list[Any]:
        found: list[Any] = []
        async with AsyncBatchReader(options, **plan) if batches else AsyncChangeReader(options, **plan) as reader:
            async for each in reader:
                found.append(each)
                if until_seen is not None and _count(found) >= until_seen:
                    break
        return found

    return asyncio.run(asyncio.wait_for(read(), WAIT_S))


def _count(found: list[Any]) -> int:
    return sum(each.num_rows if isinstance(each, pa.RecordBatch) else isinstance(each, Change) for each in found)


def changes(found: list[Any]) -> list[Change]:
    """The changes alone."""
    return [each for each in found if isinstance(each, Change)]


@pytest.fixture(params=[blocking, in_a_loop], ids=["blocking", "asyncio"])
def read(request: pytest.FixtureRequest) -> Read:
    """Either way to read."""
    found: Read = request.param
    return found


def at(cluster: FakeCluster, **more: Any) -> ChangeOptions:
    """Options for a model."""
    return ChangeOptions(connection=f"couchbase://{cluster.nodes[0]}", **more)


def filled() -> FakeCluster:
    """Two nodes with two vbuckets each."""
    cluster = FakeCluster(4, 2)
    for number, vb in enumerate(cluster.vbuckets):
        vb.node = number % 2
        vb.add(*(f"{number}-{item}" for item in range(7)))
        vb.delete(f"{number}-gone")
    return cluster


def test_changes_one_by_one(read: Read):
    """Each change is a value with names; markers, starts and ends stand where they belong."""
    with served(filled()) as cluster:
        found = read(at(cluster), until="now")
    assert [(each.vbucket, each.seqno) for each in sorted(changes(found), key=lambda c: c[1:4])] == [
        (vb, seqno) for vb in range(4) for seqno in range(1, 9)
    ]
    of = [each for each in found if each.vbucket == 1]
    assert isinstance(of[0], StreamStarted)
    assert [type(each) for each in of[1:6]] == [SnapshotMarked, Change, Change, Change, SnapshotMarked]
    assert (of[1].start, of[1].end, of[1].kind) == (0, 3, "memory")
    assert isinstance(of[-1], StreamEnded)
    assert of[-1].finished
    first = of[2]
    assert (first.event, first.key, first.value, first.vbuuid) == ("mutation", "1-0", b"value of 1-0", 0xA0)
    assert of[-2].event == "deletion"
    assert of[-2].value is None


def test_batches(read: Read):
    """Rows have the columns of a change, in order within each vbucket."""
    with served(filled()) as cluster:
        found = read(at(cluster), batches=True, until="now")
    table = pa.Table.from_batches(found)
    assert table.schema == schema()
    assert table.num_rows == 32
    assert set(table.column("event").to_pylist()) == {"mutation", "deletion"}


def test_a_change_that_comes_later(read: Read):
    """A reader from now on waits, and is given what comes."""
    with served(filled()) as cluster:

        def write() -> None:
            end = time.monotonic() + WAIT_S
            while time.monotonic() < end and sum(len(each.streams) for each in cluster.connections) < 4:
                time.sleep(0.01)
            cluster.vbuckets[3].add("late")

        thread = threading.Thread(target=write)
        thread.start()
        found = read(at(cluster), start="now", until_seen=1)
        thread.join()
    assert [each.key for each in changes(found)] == ["late"]


def test_a_connection_that_breaks(read: Read):
    """The server closes in the middle; what is missing comes by a new connection."""
    with served(filled()) as cluster:
        for vb in cluster.vbuckets:
            vb.add(*(f"more {n}" for n in range(400)))
        broken: list[Any] = []

        def hurt(connection: Any, request: Any) -> None:
            if request.vbucket == 2 and not broken:
                broken.append(connection)
                connection.closed = True

        cluster.answers = {StreamRequest: hurt}
        found = read(at(cluster, window_bytes=5000), until="now")
    assert broken
    seen = [(each.vbucket, each.seqno) for each in changes(found)]
    assert len(seen) == len(set(seen)) == 4 * 408


def test_a_rollback_as_a_row(read: Read):
    """In batches a rollback is a row: what came after its seqno is gone."""
    with served(FakeCluster(1)) as cluster:
        vb = cluster.vbuckets[0]
        vb.add(*(f"{n}" for n in range(9)))
        with BatchReader(at(cluster), until="now") as reader:
            list(reader)
            saved = Positions.from_json(reader.positions.to_json())
        vb.lose(5, 0xB0)
        vb.add("new")
        rows = pa.Table.from_batches(read(at(cluster), batches=True, start=saved, until="now")).to_pylist()
    assert (rows[0]["event"], rows[0]["vbucket"], rows[0]["seqno"]) == ("rollback", 0, 0)
    assert rows[0]["key"] is None
    assert [row["seqno"] for row in rows[1:]] == [1, 2, 3, 4, 5, 6]


def test_waiting_has_an_end():
    """With a timeout a reader that has nothing to give says so, and goes on when asked again."""
    with served(FakeCluster(1)) as cluster, BatchReader(at(cluster)) as reader:
        began = time.monotonic()
        assert reader.next_batch(0.2) is None
        assert 0.2 <= time.monotonic() - began < 5
        assert not reader.is_done
        cluster.vbuckets[0].add("a")
        rows = reader.next_batch(WAIT_S)
        assert rows is not None
        assert rows.column("key").to_pylist() == ["a"]


def test_waiting_in_a_loop_has_an_end():
    """The same in an event loop, and leaving does not hang."""

    async def wait(cluster: FakeCluster) -> None:
        async with AsyncChangeReader(at(cluster)) as reader:
            end = time.monotonic() + WAIT_S
            while await reader.next_change(0.2) is not None:
                assert time.monotonic() < end
            assert not reader.is_done
            assert reader.positions.vbuckets[0].seqno == 0  # type: ignore[index]

    with served(FakeCluster(1)) as cluster:
        asyncio.run(wait(cluster))


def test_a_closed_reader_says_so():
    """Nothing is connected after the end."""
    with served(FakeCluster(1)) as cluster:
        reader = BatchReader(at(cluster))
        reader.close()
        with pytest.raises(OptionError, match="the reader is closed"):
            reader.next_batch()


def test_nobody_listens(read: Read):
    """It is told at once which server does not answer."""
    with pytest.raises(ConnectionLostError, match=r"127.0.0.1:1: cannot connect"):
        read(ChangeOptions(connection="couchbase://127.0.0.1:1"))


def test_a_name_with_several_addresses(read: Read):
    """Localhost may be IPv6 first, where nobody listens."""
    with served(filled()) as cluster:
        options = ChangeOptions(connection=f"couchbase://localhost:{cluster.nodes[0].port}")
        assert len(changes(read(options, until="now"))) == 32


@pytest.mark.parametrize("first", ["2001:db8::1", "192.0.2.1"])
def test_an_address_that_does_not_answer(read: Read, first: str, monkeypatch: pytest.MonkeyPatch):
    """Where a name's first address has no route, or is silent, the next one serves."""
    with served(filled()) as cluster:
        port = cluster.nodes[0].port
        found = socket.getaddrinfo(first, port, type=socket.SOCK_STREAM)
        found += socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)
        known = socket.getaddrinfo

        def looked_up(host: str, *more: Any, **options: Any) -> list[Any]:
            return list(found) if host == "dual.example" else known(host, *more, **options)

        monkeypatch.setattr(socket, "getaddrinfo", looked_up)
        cluster.nodes[0] = Address(host="dual.example", port=port)
        options = ChangeOptions(connection=f"couchbase://dual.example:{port}", timeout_s=2.0)
        assert len(changes(read(options, until="now"))) == 32


def test_a_name_that_cannot_be_looked_up(read: Read):
    """It is told as every other server that does not answer."""
    with pytest.raises(ConnectionLostError, match="cannot connect"):
        read(ChangeOptions(connection=f"couchbase://{'a' * 80}.example"))


def test_a_handshake_that_stands_still_costs_nothing():
    """While a server says nothing, the reader sleeps."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = ChangeOptions(connection=f"couchbases://127.0.0.1:{silent.getsockname()[1]}", timeout_s=1.0)
        with BatchReader(options) as reader:
            with (
                patch.object(reader, "_turn", wraps=reader._turn) as turn,
                pytest.raises(ConnectionLostError, match="no answer within 1 s to open"),
            ):
                reader.next_batch()
            assert turn.call_count < 20


def test_tls_where_there_is_none(read: Read):
    """The words say what is wrong, not only what OpenSSL thinks of it."""
    with LiveNode(vbuckets=1) as node, pytest.raises(ConnectionLostError, match="no TLS is spoken there"):
        read(ChangeOptions(connection=f"couchbases://{node.host}:{node.port}"))


def test_a_server_without_a_window_fills_no_memory():
    """In a loop that takes nothing, what piles up is bounded, and it goes on when somebody takes it."""
    cluster = FakeCluster(1)
    cluster.vbuckets[0].add(*(f"{number:01000}" for number in range(2000)))
    cluster.answers = {Control: lambda connection, request: [connection.refuse(request, Status.INVALID)]}

    async def slowly(options: ChangeOptions) -> tuple[int, int]:
        async with AsyncBatchReader(options, until="now") as reader:
            assert await reader.next_batch() is not None
            await asyncio.sleep(0.5)
            waiting = sum(each.flow_bytes for each in reader._follower.events if isinstance(each, Batch))
            count = 0
            async for batch in reader:
                count += batch.num_rows
            return waiting, count

    with served(cluster):
        options = at(cluster, window_bytes=65536, buffer_bytes=65536)
        waiting, count = asyncio.run(asyncio.wait_for(slowly(options), WAIT_S))
    assert waiting < 300_000
    assert count > 1500


def test_options_travel():
    """A Spark task gets them by pickle, errors come back by it; no repr shows the password."""
    options = ChangeOptions(username="ann", password=PASSWORD, vbuckets=(1, 2))
    assert pickle.loads(pickle.dumps(options)) == options
    assert PASSWORD not in repr(options)
    assert PASSWORD not in repr(BatchReader(options))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keys": "words"}, "keys is 'text' or 'binary'"),
        ({"username": "ann"}, "a user name and a password go together"),
        ({"window_bytes": -1}, "window_bytes"),
        ({"buffer_bytes": 1}, "buffer_bytes"),
        ({"noop_interval_s": 0}, "noop_interval_s"),
        ({"idle_s": 0}, "idle_s"),
        ({"mitigation_interval_s": 0}, "mitigation_interval_s"),
        ({"give_up_s": -1}, "give_up_s"),
        ({"name": ""}, "a name has"),
        ({"priority": "top"}, "priority is"),
        ({"collections": ("beer",)}, "a collection is scope.collection"),
        ({"on_rollback": "panic"}, "on_rollback is one of event, rebuild, fail"),
        ({"tls_ca": "ca.pem"}, "tls_ca needs"),
    ],
)
def test_wrong_options(wrong: dict[str, Any], words: str):
    """What cannot be is said before anything is connected."""
    with pytest.raises(OptionError, match=words):
        ChangeOptions(**wrong)


@pytest.mark.parametrize("plan", [{"start": "yesterday"}, {"until": "tomorrow"}])
def test_wrong_plans(plan: dict[str, Any]):
    """Where to start and to end is one of few words, or positions."""
    with pytest.raises(OptionError, match=r"start is|until is"):
        BatchReader(**plan)


# -- a node of ours


def test_a_node_from_the_beginning_and_live(read: Read):
    """Items and deletions come in order; what is written while the reader runs follows."""
    with LiveNode(vbuckets=8) as node:
        written = node.write(200)
        written += node.delete("key-0", "key-7")
        options = ChangeOptions(connection=node.connection_string)
        found = changes(read(options, until="now"))
        newest = {each.key: each for each in written}
        assert {(c.key, c.vbucket, c.seqno, c.vbuuid) for c in found} == {
            (each.key, each.vbucket, each.seqno, each.vbuuid) for each in newest.values()
        }
        assert {c.key for c in found if c.event == "deletion"} == {"key-0", "key-7"}


def test_a_node_that_fails_over(read: Read):
    """What a failover lost is rolled back, and what came instead is read."""
    with LiveNode(vbuckets=1) as node:
        node.write(20)
        options = ChangeOptions(connection=node.connection_string)
        with BatchReader(options, until="now") as reader:
            list(reader)
            saved = reader.positions
        node.chaos.failover(0, lost=5)
        node.write({"instead": "1"})
        found = read(options, start=saved, until="now")
        (event,) = [each for each in found if isinstance(each, RolledBack)]
        assert event.vbucket == 0
        assert event.to <= 15
        assert event.whole <= event.to
        assert changes(found)[-1].key == "instead"
        assert changes(found)[-1].vbuuid == event.log.latest.vbuuid


def test_a_node_that_is_killed_while_it_is_read():
    """The reader outlives the crash: what is on disk comes once, what was lost is rolled back, new writes follow."""
    server = start_node("--vbuckets", "4")
    try:
        with KvConnection(server.host, server.port) as items:
            for number in range(500):
                items.set(b"k%d" % number, b"v")
        options = ChangeOptions(connection=f"couchbase://{server.host}:{server.port}")
        with ChangeReader(options) as reader:
            copy: dict[int, dict[int, str]] = {vb: {} for vb in range(4)}
            _follow(reader, copy, lambda: sum(map(len, copy.values())) == 500)
            server.kill()
            server.start()
            with KvConnection(server.host, server.port) as items:
                for number in range(500, 520):
                    items.set(b"k%d" % number, b"v")
            wanted = {f"k{number}" for number in range(500, 520)}
            _follow(reader, copy, lambda: wanted <= {key for each in copy.values() for key in each.values()})
        with ChangeReader(options, until="now") as again:
            fresh: dict[int, dict[int, str]] = {vb: {} for vb in range(4)}
            for each in again:
                if isinstance(each, Change):
                    fresh[each.vbucket][each.seqno] = str(each.key)
        assert copy == fresh
    finally:
        server.stop()
        server.close()


def _follow(reader: ChangeReader, copy: dict[int, dict[int, str]], done: Callable[[], bool]) -> None:
    """Keep a copy by the rules: a change is new, and a rollback takes away what is after it."""
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end
        found = reader.next_change(1.0)
        if isinstance(found, Change):
            assert found.seqno > max(copy[found.vbucket], default=0)
            copy[found.vbucket][found.seqno] = str(found.key)
        elif isinstance(found, RolledBack):
            kept = {seqno: key for seqno, key in copy[found.vbucket].items() if seqno <= found.whole}
            copy[found.vbucket] = kept


def test_users_and_tls(read: Read, tmp_path: Path):
    """SCRAM inside TLS; a wrong password, a user without the right and an unknown authority are told apart."""
    cert, key = certificate(tmp_path)
    users = Users(
        [
            User.create("ann", PASSWORD, [Role.STREAM, Role.READ], iterations=ITERATIONS_MIN),
            User.create("bob", PASSWORD, [Role.READ], iterations=ITERATIONS_MIN),
        ]
    )
    file = tmp_path / "users.json"
    users.save(file)
    node = start_node("--vbuckets", "4", "--users", str(file), "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        where = f"couchbases://{node.host}:{node.port}"

        def options(name: str, password: str, ca: str | None = str(cert)) -> ChangeOptions:
            return ChangeOptions(connection=where, username=name, password=password, tls_ca=ca)

        assert changes(read(options("ann", PASSWORD), until="now")) == []
        with pytest.raises(AuthFailedError, match="user ann at") as told:
            read(options("ann", "wrong"))
        assert "wrong" not in str(told.value)
        with pytest.raises(NoAccessError):
            read(options("bob", PASSWORD))
        with pytest.raises(ConnectionLostError, match="cannot connect"):
            read(options("ann", PASSWORD, ca=None))
    finally:
        node.stop()
        node.close()


def test_certificates_that_are_not_there(tmp_path: Path):
    """A file that cannot be read is told with its name."""
    with pytest.raises(OptionError, match=r"nowhere.pem: no certificates"):
        BatchReader(ChangeOptions(connection="couchbases://127.0.0.1", tls_ca=str(tmp_path / "nowhere.pem")))


def test_values_of_megabytes(read: Read):
    """A value larger than the buffer and the window comes whole."""
    with LiveNode(vbuckets=1) as node:
        node.write({"small": "1", "large": "x" * 9_000_000, "after": "2"})
        options = ChangeOptions(connection=node.connection_string, buffer_bytes=65536, window_bytes=65536)
        found = changes(read(options, until="now"))
        assert [(each.key, len(each.value or b"")) for each in found] == [
            ("small", 1),
            ("large", 9_000_000),
            ("after", 1),
        ]
