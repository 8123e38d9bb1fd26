import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.client import ChangeOptions
from headrace.pipelines.compare import Comparison, compare
from headrace.pipelines.sides import BucketSide, DeltaSide, LogSide
from headrace.pipelines.tables.change_log import ChangeLog
from headrace.pipelines.tables.delta import DeltaSink
from headrace.testing import LiveNode
from tests.cli.tools import run
from tests.client.servers import free_port
from tests.pipelines.batches import put, table
from tests.pipelines.copies import copy_into


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with some items, and some that went."""
    with LiveNode(vbuckets=16) as found:
        found.write(300)
        found.delete(*(f"key-{number}" for number in range(0, 300, 10)))
        yield found


@pytest.fixture
def other() -> Iterator[LiveNode]:
    """A second node."""
    with LiveNode(vbuckets=16) as found:
        yield found


def bucket(node: LiveNode) -> BucketSide:
    """A node's bucket as a side."""
    return BucketSide(ChangeOptions(connection=node.connection_string))


def counts(found: Comparison) -> tuple[int, int, int, int]:
    """How many are equal, missing, extra, stale."""
    return found.equal, found.missing.count, found.extra.count, found.stale.count


def test_a_bucket_equals_itself(node: LiveNode):
    """Every item counts once, and none that was removed."""
    found = compare(bucket(node), bucket(node))
    assert (found.is_equal, counts(found), found.first_items) == (True, (270, 0, 0, 0), 270)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_copy_of_a_bucket_equals_it(node: LiveNode, tmp_path: Path, kind: str):
    """The table and the log hold what the bucket holds, column by column."""
    copy_into(node, tmp_path / "t", kind)
    side = DeltaSide(str(tmp_path / "t")) if kind == "delta" else LogSide(str(tmp_path / "t"))
    assert counts(compare(bucket(node), side)) == (270, 0, 0, 0)
    assert counts(compare(side, bucket(node))) == (270, 0, 0, 0)


def test_what_is_missing_extra_and_stale(node: LiveNode, tmp_path: Path):
    """Each difference is counted once, under its name, with examples of both values."""
    copy_into(node, tmp_path / "t", "delta")
    node.write({"new-1": 1, "new-2": 2, "key-1": "changed"})
    node.delete("key-2", "key-3", "key-4")
    found = compare(bucket(node), DeltaSide(str(tmp_path / "t")), examples=2)
    assert counts(found) == (270 - 4, 2, 3, 1)
    assert {each["key"] for each in found.missing.examples} == {b"new-1", b"new-2"}
    assert len(found.extra.examples) == 2
    assert found.stale.examples[0]["key"] == b"key-1"
    assert found.stale.examples[0]["differing"]["value"] == [b"changed", b'{"n": 1}']
    assert (found.differing["value"], found.differing["rev"]) == (1, 1)


def test_what_is_ignored_is_not_stale(node: LiveNode, other: LiveNode):
    """A copy by plain writes has other CAS values; that may not matter."""
    for nodes in (node, other):
        nodes.write({"a": "1", "b": "2"})
    other.write(300)
    other.delete(*(f"key-{number}" for number in range(0, 300, 10)))
    assert counts(compare(bucket(node), bucket(other)))[3] == 272
    assert counts(compare(bucket(node), bucket(other), ignored=["cas"])) == (272, 0, 0, 0)


def test_buckets_may_have_other_numbers_of_vbuckets(node: LiveNode):
    """A key is found wherever the other bucket has it."""
    with LiveNode(vbuckets=2) as small, LiveNode(vbuckets=256) as large:
        for each in (small, large):
            each.write(300)
            each.delete(*(f"key-{number}" for number in range(0, 300, 10)))
            assert counts(compare(bucket(node), bucket(each), ignored=["cas", "rev"])) == (270, 0, 0, 0)


def test_a_table_of_few_vbuckets_is_found_in_a_bucket_of_many(tmp_path: Path):
    """The number of a table's vbuckets is not known: the largest that it has must do."""
    with LiveNode(vbuckets=4) as few, LiveNode(vbuckets=128) as many:
        few.write(200)
        many.write(200)
        copy_into(few, tmp_path / "t", "delta")
        assert counts(compare(bucket(many), DeltaSide(str(tmp_path / "t")), ignored=["cas"])) == (200, 0, 0, 0)


def test_a_key_in_two_vbuckets_is_two_items(tmp_path: Path):
    """Both are compared, each with its own."""
    for name, value in (("one", b"x"), ("two", b"y")):
        DeltaSink(tmp_path / name).commit("app", 0, table(put("k", 1, 1, b"x"), put("k", 65, 1, value)))
    one, two = (DeltaSide(str(tmp_path / name)) for name in ("one", "two"))
    assert counts(compare(one, one)) == (2, 0, 0, 0)
    assert counts(compare(one, two)) == (1, 0, 0, 1)


def test_collections_tell_items_apart(tmp_path: Path):
    """The same key in another collection is another item."""
    DeltaSink(tmp_path / "one").commit("app", 0, table(put("k", 1, 1), put("k", 1, 2, collection="c")))
    DeltaSink(tmp_path / "two").commit("app", 0, table(put("k", 1, 1), put("k", 1, 2, collection="d")))
    found = compare(DeltaSide(str(tmp_path / "one")), DeltaSide(str(tmp_path / "two")))
    assert counts(found) == (1, 1, 1, 0)
    assert found.missing.examples[0]["collection"] == "c"


def test_nothing_equals_nothing(tmp_path: Path):
    """An empty table and an empty log hold the same."""
    DeltaSink(tmp_path / "t")
    ChangeLog(tmp_path / "l").append("app", 0, table())
    assert compare(DeltaSide(str(tmp_path / "t")), LogSide(str(tmp_path / "l"))).is_equal


def test_a_value_that_is_null_is_not_an_empty_one(tmp_path: Path):
    """Both would be false to Python."""
    DeltaSink(tmp_path / "one").commit("app", 0, table(put("a", 1, 1, b"", expiry=None), put("b", 1, 2, expiry=None)))
    DeltaSink(tmp_path / "two").commit("app", 0, table(put("a", 1, 1, b"", expiry=0), put("b", 1, 2, expiry=None)))
    found = compare(DeltaSide(str(tmp_path / "one")), DeltaSide(str(tmp_path / "two")))
    assert (counts(found), found.differing) == ((1, 0, 0, 1), {"expiry": 1})


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------


def test_the_command_says_equal(node: LiveNode, tmp_path: Path):
    """One line, and exit code 0."""
    copy_into(node, tmp_path / "t", "delta")
    done = run("compare", f"{node.connection_string}/default", f"delta:{tmp_path / 't'}")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"equal: 270 items in {node.connection_string}/default and in delta:{tmp_path / 't'}\n"


def test_the_command_shows_differences(node: LiveNode, tmp_path: Path):
    """Words for people, an object for programs, and exit code 1."""
    copy_into(node, tmp_path / "t", "delta")
    node.write({"new": 1, "key-1": "changed"})
    node.items.set(b"\xff", b"\xfe\x1b")
    done = run("compare", node.connection_string, f"delta:{tmp_path / 't'}", "--examples", "3")
    assert done.exit_code == 1
    assert "missing: 2 not in delta:" in done.stdout
    assert "  \\xff\n" in done.stdout
    assert 'key-1: value changed / {"n": 1}, cas ' in done.stdout
    told: dict[str, Any] = json.loads(
        run("compare", node.connection_string, f"delta:{tmp_path / 't'}", "--output", "json", "--ignore", "cas").stdout
    )
    assert (told["equal"], told["same"], told["stale"]["count"], told["extra"]["count"]) == (False, 269, 1, 0)
    assert {"key_base64": "/w==", "scope": "_default", "collection": "_default"} in told["missing"]["examples"]
    assert told["stale"]["differing"]["value"] == 1
    assert "cas" not in told["stale"]["differing"]


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("delta:nowhere", "there is no such folder"),
        ("delta:.", "is no Delta table"),
        ("parquet:.", "is no log of changes"),
        ("nowhere", "is no place"),
        ("delta:s3://bucket/table", "a path of this machine"),
        ("delta:", "a table is delta:PATH or parquet:PATH"),
        ("couchbase://user:secret@host/b", "an address holds no user name and no password"),
    ],
)
def test_a_wrong_place_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, sentence: str):
    """It tells what is wrong, and ends with exit code 2."""
    monkeypatch.chdir(tmp_path)
    DeltaSink(tmp_path / "t")
    done = run("compare", "delta:t", place)
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "secret" not in done.stderr


def test_a_server_that_is_away(tmp_path: Path):
    """It is exit code 69."""
    DeltaSink(tmp_path / "t")
    done = run("compare", f"couchbase://127.0.0.1:{free_port()}/b", f"delta:{tmp_path / 't'}")
    assert (done.exit_code, len(done.stderr.splitlines())) == (69, 1)


def test_a_bucket_that_is_not_there(node: LiveNode, tmp_path: Path):
    """A server's no is not taken for a difference."""
    DeltaSink(tmp_path / "t")
    done = run("compare", f"{node.connection_string}/nowhere", f"delta:{tmp_path / 't'}")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "nowhere" in done.stderr


def test_a_wrong_column_is_told(tmp_path: Path):
    """Those that can be ignored are named."""
    DeltaSink(tmp_path / "t")
    done = run("compare", f"delta:{tmp_path / 't'}", f"delta:{tmp_path / 't'}", "--ignore", "size")
    assert done.exit_code == 2
    assert "value, cas, rev" in done.stderr
