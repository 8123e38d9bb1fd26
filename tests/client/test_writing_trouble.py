"""The writer of many rows when something goes wrong: crashes, moods of servers, users, other servers."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.client import ConnectionLostError, KvConnection, NotFoundError, StatusError
from headrace.client import writing_delivery as delivery_module
from headrace.client.errors import AuthFailedError, NoAccessError
from headrace.client.options import ChangeOptions
from headrace.client.writing import BucketWriter, ItemVersion, NotWrittenError, WriteCounts
from headrace.errors import LocalProtocolError
from headrace.node.users import Role, User, Users
from headrace.testing import LiveNode
from headrace.wire import Request
from headrace.wire.catalogue import (
    DeleteWithMeta,
    DeleteWithMetaQ,
    GetClusterConfig,
    Hello,
    HelloReply,
    Noop,
    Set,
    SetQ,
    Stat,
    StatEntry,
    StoringWithMeta,
)
from headrace.wire.codes import Datatype, Feature, Status, WithMetaOption
from tests.certificates import certificate
from tests.client.servers import HOST, Answer, Scripted, but, couchbase, memcached, opcode_of, refused, scripted, text
from tests.client.writes import CAS, VBUCKETS, Kept, key_of, meta_of, options, put_many


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    """A node on a disk."""
    with LiveNode(data=tmp_path / "node", vbuckets=VBUCKETS) as found:
        yield found


# -- crashes


def test_a_node_that_restarts_is_waited_for(tmp_path: Path):
    """A node that is stopped and started in the middle has every row in the end."""
    with LiveNode(data=tmp_path / "node", vbuckets=VBUCKETS) as node:
        port = node.port
        with BucketWriter(options(node)) as writer:
            put_many(writer, 2000)
            node.stop()
            again = LiveNode(data=tmp_path / "node", vbuckets=VBUCKETS, port=port)
            again.start()
            try:
                put_many(writer, 4000, rev=2)
                writer.finish()
                assert writer.counts.written + writer.counts.kept == 6000
                assert again.count() == 4000
                assert {meta_of(again.items, key_of(number))[3] for number in range(0, 4000, 97)} == {2}
            finally:
                again.stop()


@pytest.mark.parametrize("kind", ["versions", "plain"])
def test_what_a_failover_took_back_is_written_again(node: LiveNode, kind: str):
    """Rows that a node took and then lost, since they were not on disk, are there in the end."""
    node.chaos.pause()
    with BucketWriter(options(node)) as writer:
        for number in range(10_000):
            if kind == "versions":
                writer.set_version(number, key_of(number), b"1", ItemVersion(0, 0, 1, CAS))
            else:
                writer.set(number, key_of(number), b"1")
        assert writer.counts.written > 0
        lost = sum(each.lost for each in node.chaos.failover("all", lost=20))
        assert lost > 0
        node.chaos.resume()
        writer.finish()
        assert writer.counts == WriteCounts(written=10_000)
    assert node.count() == 10_000


def test_a_disk_that_does_not_write_is_told(node: LiveNode):
    """Without persistence nothing is called written, and the error says so."""
    node.chaos.pause()
    with BucketWriter(options(node, timeout_s=0.2), retry_s_max=0.5) as writer:
        put_many(writer, 10)
        with pytest.raises(NotWrittenError, match=r"bucket default: what was written is not on disk within 0\.5 s"):
            writer.finish()
    node.chaos.resume()


def test_the_disk_is_waited_for_when_much_is_under_way(node: LiveNode, monkeypatch: pytest.MonkeyPatch):
    """What is kept to be sent again has a bound, and rows that are on disk are kept no longer."""
    monkeypatch.setattr("headrace.client.writing.JOURNAL_BYTES_MAX", 400_000)
    hardened = []
    harden = delivery_module.Delivery.harden

    def counted(delivery: delivery_module.Delivery) -> None:
        hardened.append(delivery.journal.size_bytes)
        harden(delivery)

    monkeypatch.setattr(delivery_module.Delivery, "harden", counted)
    with BucketWriter(options(node)) as writer:
        put_many(writer, 6000, value=bytes(1000))
        writer.finish()
        assert writer.counts == WriteCounts(written=6000)
    assert len(hardened) > 10
    assert max(hardened) < 400_000 + 300_000
    assert node.count() == 6000


# -- servers that make trouble


class Moody:
    """A Couchbase server of one node that answers writes as a test says, and remembers what it took."""

    def __init__(self, mood: Callable[[Any, int], Answer]) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.writes: list[Any] = []
        self.server: Scripted
        self._mood = mood
        self._tries: Counter[bytes] = Counter()

    def answer(self, request: Request) -> Answer:
        """Answer a request."""
        if isinstance(request, GetClusterConfig):
            servers = {"serverList": [f"$HOST:{self.server.port}"], "vBucketMap": [[0]] * 64}
            return text(request, json.dumps({"vBucketServerMap": servers}).encode())
        if not isinstance(request, Set | SetQ | StoringWithMeta):
            return couchbase(request)
        self.writes.append(request)
        self._tries[request.key] += 1
        said = self._mood(request, self._tries[request.key])
        if said == []:
            self.stored[request.key] = request.value
        return couchbase(request) if said == [] and not type(request).__name__.endswith("Q") else said

    @contextmanager
    def writer(self, **more: Any) -> Iterator[BucketWriter]:
        """Write to it."""
        with scripted(self.answer) as self.server:
            at = ChangeOptions(connection=f"couchbase://{HOST}:{self.server.port}", timeout_s=5.0)
            with BucketWriter(at, **more) as writer:
                yield writer


def not_before(times: int, status: int, only: bytes = b"") -> Callable[[Any, int], Answer]:
    """Refuse each key, or some, at the first `times`."""

    def mood(request: Any, tries: int) -> Answer:
        return refused(request, status, b"later") if request.key.startswith(only) and tries <= times else []

    return mood


def test_temporary_failures_are_retried():
    """What a server cannot do now is sent again after longer and longer pauses, and counted once."""
    moody, pauses = Moody(not_before(3, Status.TEMPORARY_FAILURE, b"write::1")), list[float]()
    with moody.writer(sleep=pauses.append) as writer:
        put_many(writer, 20)
        writer.finish()
        assert writer.counts == WriteCounts(written=20)
    assert len(moody.stored) == 20
    assert pauses == [0.02, 0.04, 0.08]
    assert len(moody.writes) == 20 + 3 * 11


def test_retries_keep_the_order():
    """A row that is sent again does not overtake a later row with the same key."""
    moody = Moody(not_before(1, Status.BUSY))
    with moody.writer(sleep=lambda _: None) as writer:
        for value in (b"first", b"second", b"third"):
            writer.set("", b"one", value)
        writer.set("", b"two", b"first")
        writer.finish()
        assert writer.counts == WriteCounts(written=4)
    assert moody.stored == {b"one": b"third", b"two": b"first"}


def test_retries_end():
    """A server that never can is believed in the end: the error names a row, how many more, and what was said."""
    moody = Moody(not_before(1_000_000, Status.TEMPORARY_FAILURE))
    with moody.writer(retry_s_max=0.1) as writer:
        put_many(writer, 3)
        told = r"write::0 and 2 more rows could not be written within 0\.1 s: set write::0: the server cannot do it now"
        with pytest.raises(NotWrittenError, match=told):
            writer.finish()


def test_what_is_refused_of_all_stops_the_write():
    """A missing right is no matter of rows: it is raised, and nothing is sent again."""
    moody, kept = Moody(not_before(1, Status.NO_ACCESS)), Kept()
    with moody.writer(refused=kept) as writer:
        put_many(writer, 3)
        with pytest.raises(NoAccessError):
            writer.finish()
    assert (len(moody.writes), kept.rows) == (3, [])


def test_a_block_whose_line_broke_is_sent_again():
    """Whatever became of it: all its rows are sent once more, and counted once."""
    noops = []

    def mood(_request: Any, _tries: int) -> Answer:
        return []

    class Cut(Moody):
        def answer(self, request: Request) -> Answer:
            if isinstance(request, Noop):
                noops.append(request)
                if len(noops) == 2:
                    return None
            return super().answer(request)

    moody = Cut(mood)
    with moody.writer(sleep=lambda _: None) as writer:
        put_many(writer, 10_000)
        writer.finish()
        assert writer.counts == WriteCounts(written=10_000)
    assert len(moody.stored) == 10_000
    assert len(moody.writes) > 10_000


def test_a_server_that_does_not_know_expirations_is_told_of_deletions():
    """The option is left out when it is refused, of the row and of those behind it."""

    def mood(request: Any, _tries: int) -> Answer:
        return refused(request, Status.INVALID) if (request.options or 0) & WithMetaOption.IS_EXPIRATION else []

    moody = Moody(mood)
    with moody.writer(sleep=lambda _: None) as writer:
        writer.delete_version("", b"a", b"", ItemVersion(0, 9, 2, CAS), expired=True)
        writer.finish()
        writer.delete_version("", b"b", b"", ItemVersion(0, 9, 2, CAS), expired=True)
        writer.finish()
        assert writer.counts == WriteCounts(deleted=2)
    asked = [(each.key, each.options) for each in moody.writes if isinstance(each, DeleteWithMeta | DeleteWithMetaQ)]
    assert asked == [(b"a", WithMetaOption.IS_EXPIRATION), (b"a", 0), (b"b", None)]


def test_a_bucket_that_settles_by_time_is_told_that_it_may():
    """Such a bucket refuses with-meta writes that do not say so."""

    class ByTime(Moody):
        def answer(self, request: Request) -> Answer:
            if isinstance(request, Stat):
                told = {"opcode": opcode_of(request), "opaque": request.opaque}
                named = StatEntry(key=b"ep_conflict_resolution_type", value=b"lww", **told)  # type: ignore[arg-type]
                return [named, StatEntry(**told)]  # type: ignore[arg-type]
            return super().answer(request)

    moody = ByTime(lambda _request, _tries: [])
    with moody.writer() as writer:
        put_many(writer, 2)
        writer.finish()
    assert [each.options for each in moody.writes] == [WithMetaOption.FORCE_ACCEPT] * 2


@pytest.mark.parametrize(
    ("granted", "sent"),
    [
        ((Feature.SELECT_BUCKET, Feature.XATTR), WithMetaOption.SKIP_CONFLICT_RESOLUTION),
        ((Feature.SELECT_BUCKET,), WithMetaOption.FORCE),
    ],
    ids=["since 5.0", "before"],
)
def test_conflicts_are_skipped_by_the_bit_that_the_server_knows(granted: tuple[int, ...], sent: WithMetaOption):
    """One bit and not both: the old one may let a write in at a replica, the new one means nothing to old servers."""

    class Aged(Moody):
        def answer(self, request: Request) -> Answer:
            if isinstance(request, Hello):
                return HelloReply(opcode=opcode_of(request), opaque=request.opaque, features=granted)
            return super().answer(request)

    moody = Aged(lambda _request, _tries: [])
    with moody.writer() as writer:
        writer.set_version("", b"a", b"1", ItemVersion(0, 0, 2, CAS), skips_conflicts=True)
        writer.delete_version("", b"b", b"", ItemVersion(0, 9, 2, CAS), skips_conflicts=True)
        writer.set_version("", b"c", b"1", ItemVersion(0, 0, 2, CAS))
        writer.finish()
    assert {each.key: each.options for each in moody.writes} == {b"a": sent, b"b": sent, b"c": None}


def test_an_old_server_is_told_no_datatype_that_it_does_not_know():
    """JSON goes without its mark, which 4.1.2 gives it by itself; an item with xattrs cannot be said to it."""

    class Old(Moody):
        def answer(self, request: Request) -> Answer:
            if isinstance(request, Hello):
                return HelloReply(opcode=opcode_of(request), opaque=request.opaque, features=(Feature.MUTATION_SEQNO,))
            return super().answer(request)

    moody, version = Old(lambda _request, _tries: []), ItemVersion(0, 0, 2, CAS)
    with moody.writer() as writer:
        writer.set("", b"a", b"1", datatype=Datatype.JSON)
        writer.set_version("", b"b", b"1", version, datatype=Datatype.JSON)
        for mark in (Datatype.XATTR, Datatype.XATTR | Datatype.JSON):
            with pytest.raises(LocalProtocolError, match="it has xattrs, and the server knows none"):
                writer.set_version("", b"c", b"1", version, datatype=mark)
        with pytest.raises(LocalProtocolError, match="it has xattrs, and the server knows none"):
            writer.delete_version("", b"d", b"1", version, datatype=Datatype.XATTR)
        writer.finish()
        assert writer.counts == WriteCounts(written=2)
    assert {each.key: each.datatype for each in moody.writes} == {b"a": 0, b"b": 0}


def test_a_server_that_does_not_know_its_cluster_yet_is_waited_for():
    """After a start the map is empty for a while, as of 4.1.2: at the beginning of a write, and in the middle."""
    asked = []

    class Starting(Moody):
        def answer(self, request: Request) -> Answer:
            if isinstance(request, GetClusterConfig):
                asked.append(request)
                if len(asked) in (1, 2, 4):
                    return text(request, b"")
            return super().answer(request)

    moody = Starting(lambda request, tries: refused(request, Status.NOT_MY_VBUCKET) if tries < 3 else [])
    with moody.writer(sleep=lambda _: None) as writer:
        put_many(writer, 20)
        writer.finish()
        assert writer.counts == WriteCounts(written=20)
    assert (len(asked), len(moody.stored)) == (5, 20)


def test_a_server_that_never_hears_of_its_cluster_is_told():
    """When the time to try is over, the error says what is missing."""
    with (
        scripted(but(GetClusterConfig=lambda request: text(request, b""))) as server,
        pytest.raises(ConnectionLostError, match="it was told of no cluster; the bucket may not be ready yet"),
    ):
        BucketWriter(ChangeOptions(connection=f"couchbase://{HOST}:{server.port}"), retry_s_max=0.05)


def test_answers_that_nobody_asked_for():
    """An answer to no row ends the write: nothing could be believed any more."""
    moody = Moody(lambda request, _tries: refused(Set(key=b"x", opaque=request.opaque + 77), 1))
    with moody.writer() as writer:
        put_many(writer, 3)
        with pytest.raises(Exception, match="nothing asked for"):
            writer.finish()


# -- other servers


def test_memcached_is_written_to():
    """A server without vbuckets, maps and disks takes plain writes."""
    with memcached() as port:
        at = ChangeOptions(connection=f"couchbase://{HOST}:{port}")
        with BucketWriter(at) as writer:
            for number in range(5000):
                writer.set(number, key_of(number), b"%d" % number)
            writer.delete("", key_of(0))
            writer.delete("", b"never was")
            writer.finish()
            assert writer.counts == WriteCounts(written=5000, deleted=2)
        with KvConnection(HOST, port) as kv:
            assert kv.get(key_of(4999)).value == b"4999"
            with pytest.raises(NotFoundError):
                kv.get(key_of(0))


def test_nobody_there():
    """An address where nobody listens is told when the time to try is over."""
    with pytest.raises(ConnectionLostError, match="cannot connect"):
        BucketWriter(ChangeOptions(connection="couchbase://127.0.0.1:1"), retry_s_max=0.05)


@pytest.mark.parametrize("roles", [{Role.WRITE}, {Role.READ, Role.WRITE}], ids=["write", "read and write"])
def test_users(tmp_path: Path, roles: set[Role]):
    """Who may write is enough; who may read as well is told what is on disk. A wrong password is told at once."""
    path = tmp_path / "users.json"
    Users([User.create("ann", "right", roles, iterations=4096)]).save(path)
    with LiveNode(data=tmp_path / "node", vbuckets=VBUCKETS, users=path) as guarded:
        with BucketWriter(options(guarded, username="ann", password="right")) as writer:
            put_many(writer, 200)
            writer.finish()
            assert writer.counts == WriteCounts(written=200)
        assert guarded.count() == 200
        with pytest.raises(AuthFailedError, match="user ann at"):
            BucketWriter(options(guarded, username="ann", password="wrong"))


def test_who_may_not_write_is_told(tmp_path: Path):
    """A user without the right gets one error, and not a row each."""
    path, kept = tmp_path / "users.json", Kept()
    Users([User.create("ann", "right", {Role.READ}, iterations=4096)]).save(path)
    with (
        LiveNode(data=tmp_path / "node", vbuckets=VBUCKETS, users=path) as guarded,
        BucketWriter(options(guarded, username="ann", password="right"), refused=kept) as writer,
    ):
        put_many(writer, 3)
        with pytest.raises(NoAccessError, match="takes the role write"):
            writer.finish()
    assert kept.rows == []


def test_tls(tmp_path: Path):
    """Every connection speaks TLS where the first one does."""
    cert, key = certificate(tmp_path)
    with LiveNode(data=tmp_path / "node", vbuckets=VBUCKETS, tls_cert=cert, tls_key=key) as node:
        with BucketWriter(options(node, tls_ca=str(cert))) as writer:
            put_many(writer, 300)
            writer.finish()
            assert writer.counts == WriteCounts(written=300)
        with pytest.raises(ConnectionLostError, match="certificate"):
            BucketWriter(options(node), retry_s_max=0.0)


def test_no_such_bucket(node: LiveNode):
    """A bucket that is not there is told at once."""
    with pytest.raises(StatusError, match="bucket nowhere"):
        BucketWriter(options(node, bucket="nowhere"))
