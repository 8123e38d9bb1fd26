"""What becomes of rows: the work of one task, without a Spark around it."""

import base64
import json
import pickle
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.client import CommonFlags, NotFoundError, OptionError
from headrace.client.writing_delivery import NotWrittenError
from headrace.spark.options import Options, Use
from headrace.spark.sink import SinkPlan, Written, batch_writer, stream_writer
from headrace.spark.sink_letters import DeadLetterError
from headrace.spark.sink_rows import RowError
from headrace.testing import LiveNode
from headrace.wire.catalogue import GetMeta, Meta
from headrace.wire.codes import Datatype
from tests.spark.sinks import CAS, CHANGE_COLUMNS, change, held, plan_of, write_changes, write_documents

DAY_S = 24 * 3600


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    """A node."""
    with LiveNode(data=tmp_path / "node", vbuckets=4) as found:
        yield found


def meta_of(node: LiveNode, key: str) -> Meta:
    """What a node knows of an item."""
    key_bytes = key.encode()
    reply = node.items.request(GetMeta(key=key_bytes, vbucket=node.items.vbucket_of(key_bytes), version=2))
    assert isinstance(reply, Meta)
    return reply


def letters(folder: Path) -> list[dict[str, Any]]:
    """What was put aside."""
    files = list(folder.iterdir())
    assert all(each.suffix == ".jsonl" and not each.name.startswith(".") for each in files)
    return [json.loads(line) for each in files for line in each.read_text().splitlines()]


# -- changes


def test_rows_become_what_they_say(node: LiveNode):
    """Mutations, deletions and expirations are at the node as they were elsewhere, xattrs and all."""
    high = -(1 << 62)  # a CAS with the top bit: a negative long
    rows = [
        change(key="a", value=b'{"n":1}', datatype=1, flags=7, expiry=4_000_000_000, rev=5),
        change(key="b", value=b"\x00\xff", rev=2, cas=high),
        change(key="c", value=b'{"n":2}', datatype=1, xattrs=[("_sync", '{"r":1}'), ("meta", "2")]),
        change("deletion", key="d", value=None, rev=9, delete_time=1_700_000_000),
        change("expiration", key="e", value=None, rev=3, delete_time=1_700_000_001),
        change("deletion", key="f", value=None, rev=2, delete_time=1_700_000_002, xattrs=[("_sync", "1")]),
    ]
    done = write_changes(node, rows)
    assert done == Written(written=3, deleted=3)
    found = {row[1]: row for row in held(node)}
    assert found["a"] == ("mutation", "a", b'{"n":1}', 5, CAS, 7, 4_000_000_000, 1, None, None)
    assert found["b"] == ("mutation", "b", b"\x00\xff", 2, high, 0, 0, 0, None, None)
    assert found["c"][2] == b'{"n":2}'
    assert dict(found["c"][9]) == {"_sync": '{"r":1}', "meta": "2"}
    assert [found[key][0] for key in "def"] == ["deletion", "expiration", "deletion"]
    assert [(found[key][3], found[key][8]) for key in "def"] == [
        (9, 1_700_000_000),
        (3, 1_700_000_001),
        (2, 1_700_000_002),
    ]
    assert dict(found["f"][9]) == {"_sync": "1"}


def test_the_same_twice_and_older_ones_change_nothing(node: LiveNode):
    """What is as new or newer at the bucket stays; with conflicts=source the row wins."""
    write_changes(node, [change(value=b"second", rev=2)])
    before = node.high_seqnos()
    assert write_changes(node, [change(value=b"second", rev=2)]) == Written(kept=1)
    assert write_changes(node, [change(value=b"first", rev=1), change("deletion", rev=1)]) == Written(kept=2)
    assert node.high_seqnos() == before
    assert write_changes(node, [change(value=b"first", rev=1)], conflicts="source") == Written(written=1)
    assert node.get("k") == b"first"


def test_rows_that_are_no_items_are_counted(node: LiveNode):
    """Seqno advances and system events are skipped; a flush is told as not applied."""
    rows = [change("seqno_advanced", key=None), change("system", key="c"), change("flush", key=None), change()]
    assert write_changes(node, rows) == Written(written=1, skipped=2, unapplied=1)


def test_after_a_rollback_its_vbucket_is_written_whatever_is_there(node: LiveNode):
    """What the source has on its new branch replaces what came from the old one; other vbuckets are as ever."""
    old = [change(key="a", vbucket=7, rev=9, value=b"lost"), change(key="b", vbucket=8, rev=9, value=b"newer")]
    write_changes(node, old)
    new = [change(key="a", vbucket=7, rev=2, value=b"found"), change(key="b", vbucket=8, rev=2, value=b"older")]
    done = write_changes(node, [change("rollback", key=None, vbucket=7, seqno=1), *new])
    assert done == Written(written=1, kept=1, unapplied=1)
    assert (node.get("a"), node.get("b")) == (b"found", b"newer")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"key": None}, "it has no key"),
        ({"key": ""}, "a key has 1 to 250 bytes, not 0"),
        ({"key": "x" * 251}, "a key has 1 to 250 bytes, not 251"),
        ({"value": None}, "without its value; was it read with noValue?"),
        ({"value": bytes(20 * 1024 * 1024 + 1)}, "a value of 20971521 bytes; at most 20971520 are stored"),
        ({"rev": None}, "no revision or no CAS"),
        ({"cas": 0}, "0 is no CAS of an item"),
        ({"cas": -1}, "18446744073709551615 is no CAS of an item"),
        ({"flags": 1 << 32}, "a set cannot carry"),
        ({"rev": -1}, "the server takes it for wrong"),
        ({"scope": "inventory", "collection": "hotel"}, "it is of collection inventory.hotel"),
        ({"xattrs": [("a\0b", "1")]}, "holds a zero byte"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_wrong_rows_are_put_aside(node: LiveNode, tmp_path: Path, wrong: dict[str, Any], reason: str):
    """A row that cannot be written is a line with the reason and all its columns; the rows around it are written."""
    rows = [change(key="before"), change(**{"key": "bad", **wrong}), change(key="after")]
    done = write_changes(node, rows, deadLetterPath=str(tmp_path / "dead"))
    assert (done.written, done.dead) == (2, 1)
    (letter,) = letters(tmp_path / "dead")
    assert done.dead_letters == (str(next((tmp_path / "dead").iterdir())),)
    assert reason in letter["reason"]
    assert letter["key"] == {"key": "bad", **wrong}["key"]
    assert (letter["vbucket"], letter["row"]["event"]) == (0, "mutation")
    value = {"value": b"{}", **wrong}["value"]
    assert letter["row"]["value"] == (base64.b64encode(value).decode() if value is not None else None)
    assert {row[1] for row in held(node)} == {"before", "after"}


def test_without_a_place_for_them_the_first_wrong_row_fails_the_task(node: LiveNode):
    """The sentence names the row, the reason and the option."""
    told = r"the row with key x{40}… cannot be written to bucket default: a key has 1 to 250 bytes, not 300; .*Letter"
    with pytest.raises(RowError, match=told):
        write_changes(node, [change(key="x" * 300)])


def test_a_task_that_fails_leaves_no_letters(node: LiveNode, tmp_path: Path):
    """All its rows will be tried again, and what was put aside would stand there twice."""
    node.chaos.pause()
    with pytest.raises(NotWrittenError):
        write_changes(
            node, [change(key=None), change()], deadLetterPath=f"file://{tmp_path}/dead", retry="0.2", timeout="0.2"
        )
    node.chaos.resume()
    assert list((tmp_path / "dead").iterdir()) == []


def test_a_folder_that_cannot_be_written_to(node: LiveNode, tmp_path: Path):
    """The sentence names the option and the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DeadLetterError, match=r"option deadLetterPath: .*/file/dead cannot be written to: Not a directory"
    ):
        write_changes(node, [change(key=None)], deadLetterPath=str(tmp_path / "file" / "dead"))


def test_a_task_without_rows_connects_to_nobody():
    """Many tasks of a plan have none."""
    plan = plan_of(CHANGE_COLUMNS, connection="couchbase://127.0.0.1:1")
    assert plan.write(iter([])) == Written()


# -- documents


def test_documents_of_a_value_column(node: LiveNode):
    """The value is stored as it is, marked as the JSON, text or bytes that it is."""
    documents = {"json": b'{"a": 1}', "text": b"a text", "octets": b"\xff\x00"}
    table = {"key": list(documents), "doc": list(documents.values())}
    assert write_documents(node, {"key": "string", "doc": "binary"}, table, valueColumn="DOC") == Written(written=3)
    assert {key: node.get(key) for key in documents} == documents
    flags = [meta_of(node, key).flags for key in documents]
    assert flags == [CommonFlags.JSON, CommonFlags.TEXT, CommonFlags.BINARY]
    assert meta_of(node, "json").item_datatype == Datatype.JSON


def test_documents_of_text_with_keys_of_bytes(node: LiveNode):
    """Keys may be bytes and values text."""
    table = {"id": [b"\xf0\x01", b"two"], "v": ["one", "two"]}
    assert write_documents(node, {"id": "binary", "v": "string"}, table, keyColumn="id", valueColumn="v").written == 2
    assert node.items.get(b"\xf0\x01").value == b"one"


def test_documents_of_whole_rows(node: LiveNode):
    """All columns but the key are a JSON object; what JSON has no word for is text."""
    table = pa.table(
        {
            "key": ["k"],
            "n": [3],
            "x": [1.5],
            "none": [float("nan")],
            "null": pa.array([None], pa.string()),
            "text": ["Zürich"],
            "yes": [True],
            "day": [date(2026, 1, 31)],
            "at": pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC)], pa.timestamp("us", tz="Europe/Zurich")),
            "local": pa.array([datetime(2026, 1, 31, 12)], pa.timestamp("us")),  # noqa: DTZ001 - Spark's has no zone
            "price": pa.array([Decimal("12.50")]),
            "octets": [b"\x00\x01"],
            "list": [[1, 2]],
            "struct": [{"a": 1, "b": None}],
            "map": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    kinds = dict.fromkeys(table.column_names, "string")  # the check of types has a test of its own
    assert write_documents(node, kinds, table) == Written(written=1)
    assert json.loads(node.get("k")) == {
        "n": 3,
        "x": 1.5,
        "none": None,
        "null": None,
        "text": "Zürich",
        "yes": True,
        "day": "2026-01-31",
        "at": "2026-01-31T12:00:00+00:00",
        "local": "2026-01-31T12:00:00",
        "price": "12.50",
        "octets": "AAE=",
        "list": [1, 2],
        "struct": {"a": 1, "b": None},
        "map": {"x": 1},
    }
    assert "Zürich" in node.get("k").decode()
    found = meta_of(node, "k")
    assert (found.flags, found.item_datatype) == (CommonFlags.JSON, Datatype.JSON)


@pytest.mark.parametrize("rev", [{}, {"revColumn": "rev"}], ids=["plain", "rev"])
def test_times_to_live(node: LiveNode, rev: dict[str, str]):
    """A document ends after the seconds that the option or the column says; 0 and null are for ever."""
    kinds = {"key": "string", "v": "string", "ttl": "long", "rev": "long"}
    table = {"key": ["a", "b", "c", "d"], "v": ["1"] * 4, "ttl": [60, 0, None, 90 * DAY_S], "rev": [1] * 4}
    assert write_documents(node, kinds, table, valueColumn="v", ttlColumn="ttl", **rev).written == 4
    ends = [meta_of(node, key).expiry for key in "abcd"]
    assert (ends[1], ends[2]) == (0, 0)
    assert ends[0] == pytest.approx(time.time() + 60, abs=30)
    assert ends[3] == pytest.approx(time.time() + 90 * DAY_S, abs=30)
    table = {"key": ["e"], "v": ["1"], "rev": [1]}
    write_documents(node, {"key": "string", "v": "string", "rev": "long"}, table, valueColumn="v", ttl="600", **rev)
    assert meta_of(node, "e").expiry == pytest.approx(time.time() + 600, abs=30)


@pytest.mark.parametrize("rev", [{}, {"revColumn": "rev"}], ids=["plain", "rev"])
def test_rows_that_remove_their_document(node: LiveNode, rev: dict[str, str]):
    """The boolean column says which; null is no, and what is not there is removed all the same."""
    node.write({"a": "1", "b": "1"})
    kinds = {"key": "string", "v": "string", "gone": "boolean", "rev": "long"}
    table = {"key": ["a", "b", "c"], "v": ["2", "2", None], "gone": [True, None, True], "rev": [7, 7, 7]}
    done = write_documents(node, kinds, table, valueColumn="v", deleteColumn="gone", **rev)
    assert done == Written(written=1, deleted=2)
    assert node.get("b") == b"2"
    for key in ("a", "c"):
        with pytest.raises(NotFoundError):
            node.get(key)


def test_the_larger_revision_wins_whichever_comes_first(node: LiveNode):
    """With a column of revisions, the order of writes does not matter, and the same twice changes nothing."""
    kinds = {"key": "string", "v": "string", "version": "long"}
    table = {"key": ["a", "a", "b", "b"], "v": ["new", "old", "old", "new"], "version": [7, 3, 3, 7]}
    options = {"valueColumn": "v", "revColumn": "version"}
    assert write_documents(node, kinds, table, **options) == Written(written=3, kept=1)
    assert (node.get("a"), node.get("b")) == (b"new", b"new")
    before = node.high_seqnos()
    assert write_documents(node, kinds, table, **options) == Written(kept=4)
    assert node.high_seqnos() == before
    table = {"key": ["a"], "v": ["older"], "version": [1]}
    assert write_documents(node, kinds, table, conflicts="source", **options) == Written(written=1)
    assert node.get("a") == b"older"


def test_wrong_documents_are_put_aside(node: LiveNode, tmp_path: Path):
    """No key, no value, a time or a revision that is none: each with its reason."""
    kinds = {"key": "binary", "v": "string", "ttl": "long", "rev": "long"}
    table = {
        "key": [None, b"a\xff", b"b", b"c", b"d"],
        "v": ["1", None, "1", "1", "1"],
        "ttl": [0, 0, -1, 0, 0],
        "rev": [1, 1, 1, None, 1],
    }
    options = {"valueColumn": "v", "ttlColumn": "ttl", "revColumn": "rev", "deadLetterPath": str(tmp_path / "dead")}
    done = write_documents(node, kinds, table, **options)
    assert (done.written, done.dead) == (1, 4)
    assert [(each["key"], each["reason"]) for each in letters(tmp_path / "dead")] == [
        (None, "it has no key"),
        ({"base64": "Yf8="}, "it has no value"),
        ("b", "-1 seconds are no time to live"),
        ("c", "null is no revision: it is a number from 1 on"),
    ]


# -- on the driver

DOCUMENT = {"key": "string", "name": "string", "n": "long", "ok": "boolean"}
CHANGE = {field.name: field.dataType.typeName() for field in CHANGE_COLUMNS.fields if field.name != "xattrs"}


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"id": "string", "n": "long"}, {}, "option keyColumn: there is no column key; there are id, n"),
        (DOCUMENT, {"keyColumn": "nme"}, "there is no column nme; did you mean name?"),
        (DOCUMENT, {"keyColumn": "n"}, "column n is bigint: option keyColumn wants it as string or binary"),
        (DOCUMENT, {"valueColumn": "n"}, "column n is bigint: option valueColumn wants it as string or binary"),
        (DOCUMENT, {"ttlColumn": "name"}, "column name is string: option ttlColumn wants it as tinyint"),
        (DOCUMENT, {"deleteColumn": "n"}, "column n is bigint: option deleteColumn wants it as boolean"),
        (DOCUMENT, {"valueColumn": "key"}, "column key is named by two of the options"),
        (DOCUMENT, {"ttl": "3", "ttlColumn": "n"}, "options ttl and ttlColumn both say when documents end"),
        ({"key": "string"}, {}, "there is no column for the documents beside key"),
        ({"key": "string", "v": "variant"}, {}, "column v has values of type variant"),
        (DOCUMENT, {"mode": "changes"}, "rows of changes have a column event, and there is none among key, name"),
        (CHANGE, {"mode": "changes", "ttl": "3"}, "option ttl is of documents, and option mode says that the rows are"),
        ({**CHANGE, "rev": "string"}, {}, "column rev is string: rows of changes have it as tinyint"),
        ({**CHANGE, "value": "long"}, {}, "column value is bigint: rows of changes have it as string or binary"),
        ({**CHANGE, "xattrs": "string"}, {}, "column xattrs is string: rows of changes have it as map<string,string>"),
        ({k: v for k, v in CHANGE.items() if k != "rev"}, {}, "look like changes without their rev"),
        ({k: v for k, v in CHANGE.items() if k != "value"}, {}, "rows of changes have a column value"),
        (DOCUMENT, {"deadLetterPath": "s3a://bucket/dead"}, "option deadLetterPath is a folder that each executor has"),
        (DOCUMENT, {"retries": "3"}, "there is no option retries: did you mean retry?"),
        (DOCUMENT, {"startingOffsets": "latest"}, "option startingOffsets has no meaning in a write"),
    ],
    ids=lambda each: each[:60] if isinstance(each, str) else "",
)
def test_what_does_not_fit_is_told_on_the_driver(columns: dict[str, str], options: dict[str, str], sentence: str):
    """One sentence says which column or option, and what it should be."""
    with pytest.raises(OptionError) as caught:
        plan_of(columns, **options)
    assert sentence in str(caught.value)


def test_two_columns_of_one_name():
    """A write knows columns by their names."""
    columns = plan_columns("key", "v", "v")
    with pytest.raises(OptionError, match="two columns are called v"):
        SinkPlan.of(Options({}, Use.WRITE), columns, overwrite=False)


def plan_columns(*names: str) -> Any:
    """Columns of text."""
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415 - only here

    return StructType([StructField(name, StringType()) for name in names])


def test_a_bucket_is_not_emptied():
    """To overwrite means to empty first, and nobody may mean that."""
    for make in (batch_writer, stream_writer):
        with pytest.raises(OptionError, match='never empties the bucket first: use mode\\("append"\\)'):
            make(Options({}, Use.WRITE), plan_columns("key", "v"), True)


def test_the_mode_of_documents_takes_any_columns():
    """Rows that look like changes are documents when somebody says so."""
    assert "DocumentRows" in repr(plan_of(CHANGE_COLUMNS, mode="documents"))
    assert "DocumentRows" in repr(plan_of(CHANGE_COLUMNS, valueColumn="value"))
    assert "ChangeRows" in repr(plan_of(CHANGE_COLUMNS))


def test_nobody_shows_the_password():
    """A plan travels with the password and shows it nowhere."""
    plan = plan_of(DOCUMENT, username="ann", password="s3cret-word")
    assert "s3cret-word" not in repr(plan)
    assert "s3cret-word" not in repr(pickle.loads(pickle.dumps(plan)))
    assert pickle.loads(pickle.dumps(plan)).target.password == "s3cret-word"


def test_counts_add_up():
    """The counts of tasks are added, and told in words."""
    total = sum([Written(written=2, dead=1, dead_letters=("a",)), Written(kept=3, dead_letters=("b",))], Written())
    assert total == Written(written=2, kept=3, dead=1, dead_letters=("a", "b"))
    assert str(total) == "2 written, 0 deleted, 3 kept, 0 skipped, 0 unapplied, 1 dead"
