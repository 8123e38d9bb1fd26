from collections import Counter
from collections.abc import Iterator

import pytest

from headrace.client import KvConnection, Loader, LoadRow, NotFoundError, ServerAnswerError, StatusError
from headrace.client.errors import ConnectionLostError
from headrace.wire import Request
from headrace.wire.catalogue import Noop, SetQ
from headrace.wire.codes import Status
from tests.client.servers import HOST, Answer, couchbase, headrace_node, memcached, refused, scripted


@pytest.fixture(scope="module", params=["memcached", "node"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A foreign server, and ours."""
    with memcached("-I", "1m") if request.param == "memcached" else headrace_node() as found:
        yield found


class Kept:
    """Keeps what was refused."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []

    def __call__(self, row: LoadRow, error: StatusError) -> None:
        """Take one."""
        self.rows.append((row.place, error.status))


def rows(count: int, size: int = 100) -> Iterator[LoadRow]:
    """Rows with keys and values of their own."""
    for number in range(count):
        yield LoadRow(f"row {number}", b"load::%d" % number, b"%d " % number + b"v" * size)


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_all_rows_are_stored(port: int, count: int):
    """Every row is acknowledged, and is there."""
    kept = Kept()
    with KvConnection(HOST, port) as connection:
        loader = Loader(connection, refused=kept, flags=7)
        for row in rows(count):
            loader.add(row)
        loader.finish()
        assert (loader.acknowledged, loader.unsettled, kept.rows) == (count, 0, [])
        for row in list(rows(count))[:: max(1, count // 20)]:
            item = connection.get(row.key)
            assert (item.value, item.flags) == (row.value, 7)


def test_refused_rows_are_named():
    """A value that memcached does not take is refused by its row; the rows around it are stored."""
    kept = Kept()
    with memcached("-I", "1m") as port, KvConnection(HOST, port) as connection:
        loader = Loader(connection, refused=kept)
        for row in rows(30):
            loader.add(row)
            if row.place in ("row 3", "row 20"):
                loader.add(LoadRow(f"big after {row.place}", b"big", bytes(2 << 20)))
        loader.finish()
        assert kept.rows == [("big after row 3", Status.TOO_BIG), ("big after row 20", Status.TOO_BIG)]
        assert loader.acknowledged == 30
        assert connection.get(b"load::29").value.startswith(b"29 ")
        with pytest.raises(NotFoundError):
            connection.get(b"big")


class Moody:
    """A Couchbase server that cannot take each key at the first `times`, and remembers what it took in the end."""

    def __init__(self, times: int, *, status: int = Status.TEMPORARY_FAILURE, only: bytes = b"") -> None:
        self.stored: dict[bytes, bytes] = {}
        self.sets = 0
        self._times = times
        self._status = status
        self._only = only
        self._tries: Counter[bytes] = Counter()

    def answer(self, request: Request) -> Answer:
        """Answer a request."""
        if not isinstance(request, SetQ):
            return couchbase(request)
        self.sets += 1
        self._tries[request.key] += 1
        if request.key.startswith(self._only) and self._tries[request.key] <= self._times:
            return refused(request, self._status, b"later")
        self.stored[request.key] = request.value
        return []


def test_temporary_failures_are_retried():
    """What the server cannot do now is sent again, after longer and longer pauses, and counted once."""
    moody, kept = Moody(3, only=b"load::1"), Kept()
    pauses: list[float] = []
    with scripted(moody.answer) as server, KvConnection(HOST, server.port) as connection:
        loader = Loader(connection, refused=kept, sleep=pauses.append)
        for row in rows(20):
            loader.add(row)
        loader.finish()
    assert (loader.acknowledged, kept.rows) == (20, [])
    assert moody.stored == {row.key: row.value for row in rows(20)}
    assert pauses == [0.02, 0.04, 0.08]
    assert moody.sets == 20 + 3 * 11


def test_retries_keep_the_order():
    """A row that is sent again does not overtake a later row of the same key."""
    moody = Moody(1)
    with scripted(moody.answer) as server, KvConnection(HOST, server.port) as connection:
        loader = Loader(connection, refused=Kept(), sleep=lambda _: None)
        for value in (b"first", b"second", b"third"):
            loader.add(LoadRow("", b"one", value))
        loader.finish()
        assert loader.acknowledged == 3
    assert moody.stored == {b"one": b"third"}


def test_retries_end():
    """A server that never can is believed in the end, and each row is told."""
    moody, kept = Moody(1_000_000), Kept()
    with scripted(moody.answer) as server, KvConnection(HOST, server.port) as connection:
        loader = Loader(connection, refused=kept, sleep=lambda _: None, retry_s_max=5)
        for row in rows(3):
            loader.add(row)
        loader.finish()
    assert loader.acknowledged == 0
    assert kept.rows == [(f"row {number}", Status.TEMPORARY_FAILURE) for number in range(3)]


def test_refusals_are_not_retried():
    """What will never do is sent once."""
    moody, kept = Moody(1, status=Status.NO_ACCESS), Kept()
    with scripted(moody.answer) as server, KvConnection(HOST, server.port) as connection:
        loader = Loader(connection, refused=kept)
        for row in rows(3):
            loader.add(row)
        loader.finish()
    assert (loader.acknowledged, moody.sets, len(kept.rows)) == (0, 3, 3)


def _add_all(loader: Loader, wanted: Iterator[LoadRow]) -> None:
    for row in wanted:
        loader.add(row)


def test_broken_connection():
    """When the line breaks, the count is of what was acknowledged, and what was sent is told as unsettled."""
    noops = []

    def answer(request: Request) -> Answer:
        if isinstance(request, SetQ):
            return []
        if isinstance(request, Noop):
            noops.append(request)
            return None if len(noops) == 2 else couchbase(request)
        return couchbase(request)

    with scripted(answer) as server, KvConnection(HOST, server.port) as connection:
        loader = Loader(connection, refused=Kept())
        with pytest.raises(ConnectionLostError):
            _add_all(loader, rows(10_000, size=1000))
    assert 0 < loader.acknowledged < 1000
    assert 0 < loader.unsettled < 1000


def test_answers_that_nobody_asked_for():
    """An answer to no row ends the load: nothing could be believed any more."""
    script = lambda request: refused(Noop(opaque=77), 1) if isinstance(request, SetQ) else couchbase(request)  # type: ignore[arg-type]  # noqa: E731
    with scripted(script) as server, KvConnection(HOST, server.port) as connection:
        loader = Loader(connection, refused=Kept())
        for row in rows(3):
            loader.add(row)
        with pytest.raises(ServerAnswerError, match="nothing asked for"):
            loader.finish()
