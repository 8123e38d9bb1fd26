"""Extended attributes and collections in the rows of format `dcp`, in batch and as a stream.

Extended attributes come from a node. It has the default collection alone, so that collections are tried against a
server that a test leads (`collections_server`), behind sockets like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import BucketWriter, ItemVersion
from headrace.client.options import ChangeOptions
from headrace.testing import LiveNode
from headrace.wire import join_xattrs
from headrace.wire.codes import Datatype, SystemEventKind
from tests.spark.collections_server import ScopedCluster, scoped
from tests.spark.faults.queries import Query
from tests.spark.faults.test_errors import is_one_sentence, of_a_batch, of_a_stream
from tests.spark.sinks import CAS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("event", "vbucket", "seqno", "scope", "collection", "key", "value", "datatype", "flags", "xattrs")
SYNC, MEANT = '{"rev":1}', '["café"]'
BODY = b'{"a":1}'
BLOCK = {b"_sync": SYNC.encode(), b"meant": MEANT.encode()}
NAMED = {"_sync": SYNC, "meant": MEANT}


class Rows:
    """All rows that a query brought; called by `foreachBatch`."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def __call__(self, frame: DataFrame, _number: int) -> None:
        self.found += taken(frame)

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.found)

    def has(self, *keys: str) -> bool:
        """Whether there is a row of each of these keys."""
        return set(keys) <= {row["key"] for row in self.found}


def taken(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a DataFrame."""
    return [
        {**row, "xattrs": None if row["xattrs"] is None else dict(row["xattrs"])}
        for row in frame.select(*COLUMNS).toArrow().to_pylist()
    ]


def read(spark: SparkSession, connection: str, **options: object) -> list[dict[str, Any]]:
    """Read in batch."""
    given = {name: str(value) for name, value in options.items()}
    return taken(spark.read.format("dcp").option("connection", connection).options(**given).load())


def query(spark: SparkSession, connection: str, folder: Path, **options: object) -> Query:
    """Start a query."""
    return Query(spark, {"connection": connection, **options}, folder, Rows())  # type: ignore[arg-type]


def rows_of(running: Query) -> Rows:
    """What a query brought."""
    assert isinstance(running.copy, Rows)
    return running.copy


# -- extended attributes


def write_xattrs(node: LiveNode, key: bytes, *, rev: int = 1, gone: bool = False, **named: str) -> None:
    """Store an item with xattrs, or the tombstone of one."""
    block = {name.encode(): text.encode() for name, text in named.items()} or BLOCK
    with BucketWriter(ChangeOptions(connection=node.connection_string)) as writer:
        version = ItemVersion(0, 0, rev, CAS + rev)
        if gone:
            writer.delete_version("", key, join_xattrs(block, b""), version, datatype=int(Datatype.XATTR))
        else:
            both = int(Datatype.XATTR | Datatype.JSON)
            writer.set_version("", key, join_xattrs(block, BODY), version, datatype=both)
        writer.finish()


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with an item that has xattrs, one that has none, and one that is gone and left some."""
    with LiveNode(vbuckets=4) as started:
        started.write({"plain": BODY})
        write_xattrs(started, b"with")
        write_xattrs(started, b"gone", gone=True, _sync=SYNC)
        yield started


@pytest.mark.parametrize("compression", [True, False], ids=["snappy", "plain"])
@pytest.mark.parametrize("mode", ["changes", "documents"])
def test_xattrs_are_beside_the_value(spark: SparkSession, node: LiveNode, mode: str, compression: bool):
    """With `xattrs`, their texts are in the column by their names, and the value is the document alone."""
    rows = read(spark, node.connection_string, mode=mode, xattrs=True, compression=compression)
    found = {row["key"]: (row["value"], row["datatype"], row["xattrs"]) for row in rows}
    wanted: dict[str, Any] = {"plain": (BODY, 1, None), "with": (BODY, 1, NAMED)}
    if mode == "changes":
        wanted["gone"] = (None, 0, {"_sync": SYNC})
    assert found == wanted


@pytest.mark.parametrize("mode", ["changes", "documents"])
def test_without_the_option_there_are_no_xattrs(spark: SparkSession, node: LiveNode, mode: str):
    """The column is null in every row, and the values are the same."""
    rows = read(spark, node.connection_string, mode=mode)
    assert {row["xattrs"] is None for row in rows} == {True}
    live = {row["key"]: (row["value"], row["datatype"]) for row in rows if row["event"] == "mutation"}
    assert live == {"plain": (BODY, 1), "with": (BODY, 1)}
    assert {row["key"]: row["value"] for row in rows if row["event"] == "deletion"} == (
        {"gone": None} if mode == "changes" else {}
    )


def test_spark_can_ask_for_one_xattr(spark: SparkSession, node: LiveNode):
    """The column is a map: one of them is a field of it, and rows can be chosen by it."""
    frame = spark.read.format("dcp").option("connection", node.connection_string).option("xattrs", "true").load()
    found = frame.filter("get_json_object(xattrs['_sync'], '$.rev') = 1 and event = 'mutation'")
    assert [tuple(row) for row in found.selectExpr("key", "xattrs['meant']").collect()] == [("with", MEANT)]


def test_xattrs_in_a_stream(spark: SparkSession, node: LiveNode, tmp_path: Path):
    """A change of xattrs alone is a change, and two queries see it as each has asked for it."""
    with (
        query(spark, node.connection_string, tmp_path / "one", xattrs=True) as running,
        query(spark, node.connection_string, tmp_path / "two") as bare,
    ):
        for each in (running, bare):
            each.until_rows(3)
        write_xattrs(node, b"with", rev=2, _sync='{"rev":2}')
        write_xattrs(node, b"plain", rev=9, late="1")
        for each in (running, bare):
            each.until_rows(5)
    shown = [(row["key"], row["value"], row["xattrs"]) for row in rows_of(running).found]
    assert sorted(shown[:3], key=str) == [
        ("gone", None, {"_sync": SYNC}),
        ("plain", BODY, None),
        ("with", BODY, NAMED),
    ]
    assert sorted(shown[3:]) == [("plain", BODY, {"late": "1"}), ("with", BODY, {"_sync": '{"rev":2}'})]
    assert [row["xattrs"] for row in rows_of(bare).found] == [None] * 5
    assert {row["value"] for row in rows_of(bare).found if row["event"] == "mutation"} == {BODY}


# -- collections, at a server that has none


def test_a_server_without_collections_is_the_default_one(spark: SparkSession, node: LiveNode, tmp_path: Path):
    """All collections of it are one; who names another is told so, in batch and as a stream."""
    rows = read(spark, node.connection_string, collections="*", mode="documents")
    assert {(row["scope"], row["collection"], row["key"]) for row in rows} == {
        ("_default", "_default", "plain"),
        ("_default", "_default", "with"),
    }
    options = {"connection": node.connection_string, "collections": "shop.beer"}
    sentence = (
        f"collections at {node.host}:{node.port}: the server does not support it, status 0x83 (the server has none)"
    )
    is_one_sentence(of_a_batch(spark, options), sentence)
    is_one_sentence(of_a_stream(spark, options, tmp_path), sentence)


# -- collections


@pytest.fixture
def cluster() -> Iterator[ScopedCluster]:
    """A server with two collections beside the default one, and a few items in each."""
    with scoped() as started:
        started.put("_default._default", "one", "two", "three")
        started.put("shop.beer", *(f"ale-{number}" for number in range(10)))
        started.put("bar.beer", *(f"stout-{number}" for number in range(6)))
        started.put("shop.beer", "ale-0", value=None)
        yield started


def items(rows: list[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """The keys of the items among rows, by scope and collection."""
    found: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row["event"] in ("mutation", "deletion"):
            found.setdefault((row["scope"], row["collection"]), set()).add(row["key"])
    return found


DEFAULT = {("_default", "_default"): {"one", "two", "three"}}
ALES = {("shop", "beer"): {f"ale-{number}" for number in range(10)}}
STOUTS = {("bar", "beer"): {f"stout-{number}" for number in range(6)}}
CHOICES: list[tuple[dict[str, str], dict[tuple[str, str], set[str]]]] = [
    ({}, DEFAULT),
    ({"collections": "*"}, DEFAULT | ALES | STOUTS),
    ({"collections": "shop.beer"}, ALES),
    ({"scope": "bar", "collections": "beer"}, STOUTS),
    ({"collections": "bar.beer,_default._default"}, DEFAULT | STOUTS),
    ({"scope": "_default"}, DEFAULT),
]
NAMES = ["none", "all", "one", "by scope", "two", "scope alone"]


@pytest.mark.parametrize(("options", "wanted"), CHOICES, ids=NAMES)
def test_a_batch_has_the_collections_that_were_asked_for(
    spark: SparkSession, cluster: ScopedCluster, options: dict[str, str], wanted: dict[tuple[str, str], set[str]]
):
    """Rows are of those alone, up to the last change, with keys as users know them; documents are those that live."""
    assert items(read(spark, cluster.connection, **options)) == wanted
    rows = read(spark, cluster.connection, mode="documents", **options)
    assert {row["event"] for row in rows} == {"mutation"}
    assert items(rows) == {names: keys - {"ale-0"} for names, keys in wanted.items()}


def test_a_stream_has_the_collections_that_were_asked_for(spark: SparkSession, cluster: ScopedCluster, tmp_path: Path):
    """What changes elsewhere moves the query on without a row of it, and what is new in them comes."""
    with query(spark, cluster.connection, tmp_path, collections="shop.beer") as running:
        rows = rows_of(running)
        running.until(lambda: items(rows.found) == ALES, "the ales")
        cluster.put("bar.beer", *(f"more-{number}" for number in range(20)))
        running.query.processAllAvailable()
        cluster.put("shop.beer", "ale-new")
        running.until(lambda: rows.has("ale-new"), "the new ale")
        cluster.put("_default._default", "last")
        running.query.processAllAvailable()
    assert items(rows.found) == {("shop", "beer"): {*ALES["shop", "beer"], "ale-new"}}
    assert {row["event"] for row in rows.found} <= {"mutation", "deletion", "system", "seqno_advanced"}
    seqnos = [(row["vbucket"], row["seqno"]) for row in rows.found]
    assert len(set(seqnos)) == len(seqnos)


def test_a_collection_that_is_made_meanwhile(spark: SparkSession, cluster: ScopedCluster, tmp_path: Path):
    """A stream of all collections has it from its first change on, by its name, and tells that it came."""
    with query(spark, cluster.connection, tmp_path, collections="*") as running:
        rows = rows_of(running)
        running.until(lambda: items(rows.found) == DEFAULT | ALES | STOUTS, "what was there")
        cluster.make("shop.wine", 0xB)
        cluster.put("shop.wine", "red-1", "red-2")
        running.until(lambda: rows.has("red-1", "red-2"), "the first wine")
        cluster.put("shop.wine", "red-3", "red-4", "red-5")
        running.until(lambda: rows.has("red-3", "red-4", "red-5"), "more wine")
    assert items(rows.found)["shop", "wine"] == {f"red-{number}" for number in range(1, 6)}
    assert len(items(rows.found)) == 4
    made = [row["vbucket"] for row in rows.found if row["event"] == "system" and row["key"] == "wine"]
    assert sorted(made) == [0, 1, 2, 3]


def test_a_collection_that_is_dropped(spark: SparkSession, cluster: ScopedCluster, tmp_path: Path):
    """A stream of all tells that it went and goes on; a batch has nothing of it any more."""
    with query(spark, cluster.connection, tmp_path, collections="*") as running:
        rows = rows_of(running)
        running.until(lambda: items(rows.found) == DEFAULT | ALES | STOUTS, "what was there")
        cluster.drop("shop.beer")
        cluster.put("bar.beer", "stout-new")
        running.until(lambda: rows.has("stout-new"), "what came after")
        running.query.processAllAvailable()
    told = [row for row in rows.found if row["event"] == "system" and row["flags"] == SystemEventKind.DROP_COLLECTION]
    assert sorted(row["vbucket"] for row in told) == [0, 1, 2, 3]
    left = DEFAULT | {("bar", "beer"): {*STOUTS["bar", "beer"], "stout-new"}}
    for mode in ("documents", "changes"):
        assert items(read(spark, cluster.connection, collections="*", mode=mode)) == left


def test_the_collection_of_a_stream_is_dropped(spark: SparkSession, cluster: ScopedCluster, tmp_path: Path):
    """The query fails and says so, when there is more to read; one that is started again has one sentence for it."""
    with query(spark, cluster.connection, tmp_path, collections="shop.beer", giveUp=20) as running:
        running.until(lambda: items(rows_of(running).found) == ALES, "the ales")
        cluster.drop("shop.beer")
        cluster.put("bar.beer", *(f"more-{number}" for number in range(8)))
        said = running.until_failed()
    assert "there is no such collection" in said
    options = {"connection": cluster.connection, "collections": "shop.beer"}
    is_one_sentence(
        of_a_stream(spark, options, tmp_path), _missing(cluster, "shop.beer", "_default._default, bar.beer")
    )


def test_a_collection_that_is_not_there(spark: SparkSession, cluster: ScopedCluster, tmp_path: Path):
    """It is told at once, with those that are there, in batch and as a stream; also where nothing is to be read."""
    options = {"connection": cluster.connection, "collections": "shop.wine"}
    sentence = _missing(cluster, "shop.wine", "_default._default, bar.beer, shop.beer")
    is_one_sentence(of_a_batch(spark, options), sentence)
    is_one_sentence(of_a_stream(spark, options, tmp_path / "one"), sentence)
    is_one_sentence(of_a_batch(spark, {**options, "vbuckets": "0", "endingOffsets": '{"0": 0}'}), sentence)
    with scoped() as empty:
        options["connection"] = empty.connection
        is_one_sentence(of_a_stream(spark, options, tmp_path / "two", now=False), _missing(empty, "shop.wine", ""))


def _missing(cluster: ScopedCluster, name: str, there: str) -> str:
    return f"collection {name} at {cluster.nodes[0]}: there is no such collection, status 0x88 (there are {there}"
