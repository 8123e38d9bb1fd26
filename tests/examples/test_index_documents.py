from __future__ import annotations

import json
from contextlib import closing
from importlib import import_module
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import pytest

from headrace.client import Change, KvConnection, NotFoundError
from headrace.wire.catalogue import Flush, StopPersistence
from tests.examples.programs import EXAMPLES, Program, run_to_end, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Server

WORDS = ("river", "mill", "wheel", "sluice", "pond")


class Search:
    """What a user of the index finds."""

    def __init__(self, searchd: Server) -> None:
        pymysql = pytest.importorskip("pymysql")
        self._connection = pymysql.connect(host=searchd.host, port=searchd.port, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def find(self, words: str) -> set[str]:
        """The keys of all documents with these words."""
        with self._connection.cursor() as cursor:
            asked = "SELECT doc_key FROM documents WHERE MATCH(%s) LIMIT 0, 1000"
            cursor.execute(asked, (words,))
            return {key for (key,) in cursor.fetchall()}

    def everything(self) -> set[str]:
        """The keys of all documents, found by any word or by none."""
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT doc_key FROM documents WHERE id > 1024 LIMIT 0, 1000")
            return {key for (key,) in cursor.fetchall()}


@pytest.fixture
def search(searchd: Server):
    """A connection to the search server."""
    made = Search(searchd)
    yield made
    made.close()


def index_of(searchd: Server) -> tuple[str, str]:
    """Tell the program where to write."""
    return "--index", f"{searchd.host}:{searchd.port}"


def note(*words: str) -> bytes:
    """Make a document with words in it."""
    return json.dumps({"kind": "note", "text": " ".join(words)}).encode()


@pytest.mark.parametrize("scheme", ["couchbase", "tap"])
def test_searches_find_what_is_there_and_nothing_else(
    scheme: str, node: Server, searchd: Server, search: Search, tmp_path: Path
):
    """Documents of before and of now are found by their words; changed, deleted, expired and flushed ones are not."""
    with KvConnection(node.host, node.port) as items:
        items.set(b"note::1", note("river", "mill"))
        items.set(b"note::2", note("river", "wheel"))
        with Program(tmp_path, "index_documents", source_of(node, scheme), *index_of(searchd)) as program:
            program.wait_until(lambda: search.find("river") == {"note::1", "note::2"}, "what was there is not found")
            items.set(b"note::3", b"no JSON, but a river all the same")
            items.set(b"note::1", note("pond"))
            items.delete(b"note::2")
            program.wait_until(lambda: search.find("river") == {"note::3"}, "changes are not found")
            assert search.find("pond") == {"note::1"}
            assert search.find("text") == set()
            items.set(b"note::4", note("pond"))
            program.wait_until(lambda: search.find("pond") == {"note::1", "note::4"}, "a new document is not found")
            items.set(b"note::4", note("pond"), expiry=1)
            program.wait_until(lambda: search.find("pond") == {"note::1"}, "an expired document is found")
            items.request(Flush())
            items.set(b"note::5", note("sluice"))
            program.wait_until(lambda: search.everything() == {"note::5"}, "a flush is not seen")
            code, lines = run_to_end(tmp_path, "index_documents", *index_of(searchd), "--find", "sluice")
            assert (code, lines) == (0, ["note::5"])


def test_many_documents_and_many_changes(node: Server, searchd: Server, search: Search, tmp_path: Path):
    """After thousands of changes each word finds just the documents that have it, also where the program was killed."""
    random = Random(7)
    expected: dict[str, str] = {}
    with KvConnection(node.host, node.port) as items:
        arguments = (source_of(node, "couchbase"), *index_of(searchd))
        for _ in range(3):
            with Program(tmp_path, "index_documents", *arguments) as program:
                for number in range(800):
                    key = f"note::{random.randrange(300)}"
                    if random.random() < 0.25 and key in expected:
                        items.delete(key.encode())
                        del expected[key]
                    else:
                        expected[key] = random.choice(WORDS)
                        items.set(key.encode(), note(expected[key]))
                    if number == 400:
                        program.wait_for("wrote ")
                program.kill()
        with Program(tmp_path, "index_documents", *arguments) as last:
            last.wait_until(lambda: search.everything() == set(expected), "the index is not the bucket")
            wanted = {word: {key for key, each in expected.items() if each == word} for word in WORDS}
            last.wait_until(lambda: {word: search.find(word) for word in WORDS} == wanted, "words find others")


def test_what_the_server_lost_is_undone(node: Server, searchd: Server, search: Search, tmp_path: Path):
    """After a crash that lost changes, the index has neither them nor lacks what they had replaced or removed."""
    with KvConnection(node.host, node.port) as items:
        for number in range(40):
            items.set(b"note::%d" % number, note("river"))
    node.restart()
    before = {f"note::{number}" for number in range(40)}
    with Program(tmp_path, "index_documents", source_of(node, "couchbase"), *index_of(searchd)) as program:
        program.wait_until(lambda: search.find("river") == before, "what was there is not found")
        with KvConnection(node.host, node.port) as items:
            items.request(StopPersistence())
            for number in range(0, 40, 4):
                items.set(b"note::%d" % number, note("flood"))
                items.delete(b"note::%d" % (number + 1))
                items.set(b"new::%d" % number, note("flood"))
            changed = {f"{kind}::{number}" for number in range(0, 40, 4) for kind in ("note", "new")}
            program.wait_until(lambda: search.find("flood") == changed, "changes are not found")
        node.kill()
        node.start()
        program.wait_until(lambda: search.everything() == before, "what was lost is not undone")
        program.wait_until(lambda: search.find("river") == before, "what was replaced is not back")
        assert search.find("flood") == set()
        assert "was rolled back" in program.said
        with KvConnection(node.host, node.port) as again:
            again.set(b"note::1", note("wheel"))
            program.wait_until(lambda: search.find("wheel") == {"note::1"}, "it does not go on")
            with pytest.raises(NotFoundError):
                again.get(b"new::0")


def test_what_was_lost_while_the_program_was_away_is_undone(
    node: Server, searchd: Server, search: Search, tmp_path: Path
):
    """The positions in the index tell which history it is of: a run that begins after the crash undoes it, too."""
    arguments = (source_of(node, "couchbase"), *index_of(searchd))
    with KvConnection(node.host, node.port) as items:
        items.set(b"note::1", note("river"))
    node.restart()
    with KvConnection(node.host, node.port) as items, Program(tmp_path, "index_documents", *arguments) as program:
        items.request(StopPersistence())
        items.set(b"note::1", note("flood"))
        items.set(b"note::2", note("flood"))
        program.wait_until(lambda: search.find("flood") == {"note::1", "note::2"}, "changes are not found")
    node.kill()
    node.start()
    with Program(tmp_path, "index_documents", *arguments) as program:
        program.wait_until(lambda: search.find("river") == {"note::1"}, "what was replaced is not back")
        program.wait_until(lambda: search.everything() == {"note::1"}, "what was lost is found")


def test_a_run_goes_on_where_the_index_is(node: Server, searchd: Server, search: Search, tmp_path: Path):
    """Another run writes what has changed meanwhile, and not what it has."""
    arguments = (source_of(node, "couchbase"), *index_of(searchd))
    with KvConnection(node.host, node.port) as items:
        for number in range(50):
            items.set(b"note::%d" % number, note("river"))
        with Program(tmp_path, "index_documents", *arguments) as program:
            program.wait_until(lambda: len(search.find("river")) == 50, "what was there is not found")
        items.set(b"note::1", note("mill"))
        with Program(tmp_path, "index_documents", *arguments) as program:
            program.wait_until(lambda: search.find("mill") == {"note::1"}, "a change is not found")
            program.wait_for("wrote ")
        assert [line for line in program.lines if "wrote" in line] == ["wrote 1 documents"]


@pytest.mark.parametrize("flush", ["2", "0"])
def test_a_search_server_that_crashes_misses_nothing(flush: str, node: Server, searchd: Server, tmp_path: Path):
    """Whether or not its log had all, an index that comes back is brought up to date by the next run."""
    (settings,) = tmp_path.glob("search/sphinx.conf")
    settings.write_text(settings.read_text().replace("binlog_flush = 2", f"binlog_flush = {flush}"))
    searchd.restart()
    arguments = (source_of(node, "couchbase"), *index_of(searchd))
    expected = {f"note::{number}" for number in range(200)}
    with KvConnection(node.host, node.port) as items:
        for key in expected:
            items.set(key.encode(), note("river"))
        with Program(tmp_path, "index_documents", *arguments) as program:
            with closing(Search(searchd)) as search:
                program.wait_until(lambda: search.everything() == expected, "what was there is not found")
            searchd.kill()
            items.set(b"note::0", note("mill"))
            assert program.wait() == 1
            assert program.lines[-1].startswith(
                f"index_documents.py: the search server at {searchd.host}:{searchd.port}: "
            )
        items.delete(b"note::1")
        searchd.start()
        wanted = expected - {"note::0", "note::1"}
        with closing(Search(searchd)) as after, Program(tmp_path, "index_documents", *arguments) as again:
            again.wait_until(lambda: after.find("river") == wanted, "the index is not the bucket")
            assert after.find("mill") == {"note::0"}


def test_half_a_character_is_indexed_all_the_same(node: Server, searchd: Server, search: Search, tmp_path: Path):
    """JSON may have half of a surrogate pair, which is no text: the words beside it are found."""
    with KvConnection(node.host, node.port) as items:
        items.set(b"note::1", rb'{"text": "river \ud83d mill"}')
    with Program(tmp_path, "index_documents", source_of(node, "couchbase"), *index_of(searchd)) as program:
        program.wait_until(lambda: search.find("river mill") == {"note::1"}, "the document is not found")


def test_keys_that_change_all_the_time_are_written(monkeypatch: pytest.MonkeyPatch):
    """A group ends though changes of the same few keys never do."""
    pytest.importorskip("pymysql")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    program = import_module("index_documents")
    written: list[dict[bytes, object]] = []
    given = count(1)

    class Endless:
        by_tap = True

        def next(self, _wait_s: float) -> Change:
            seqno = next(given)
            assert seqno < 100_000, "nothing was written"
            return Change._make([None] * len(Change._fields))._replace(event="mutation", vbucket=0, key=b"hot")

        def check(self, _found: object) -> None:
            """Nothing is missed."""

    class Index:
        def write(self, group: dict[bytes, object], _positions: object) -> None:
            written.append(group)

    program.take_group(Index(), Endless())
    assert [list(group) for group in written] == [[b"hot"]]


def test_without_a_search_server_there_is_one_sentence(node: Server, tmp_path: Path):
    """Where no searchd listens, the program ends at once and says so."""
    pytest.importorskip("pymysql")
    address = f"couchbase://{node.host}:{node.port}"
    code, lines = run_to_end(tmp_path, "index_documents", address, "--index", "127.0.0.1:9")
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("index_documents.py: the search server at 127.0.0.1:9: ")
