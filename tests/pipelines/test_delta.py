import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.pipelines.tables import TableError, parts
from headrace.pipelines.tables.delta import CHECKPOINT_COMMITS, DeltaSink
from headrace.wire.codes import SystemEventKind
from tests.pipelines.batches import Item, gone, items, keys, put, rollback, row, system, table, version


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a table is to be."""
    return tmp_path / "table"


@pytest.fixture
def sink(path: Path) -> DeltaSink:
    """A new table."""
    return DeltaSink(path)


def test_items_come_change_and_go(sink: DeltaSink, path: Path):
    """A table holds the newest value of each item that there is, and nothing of one that went."""
    sink.commit("app", 0, table(put("a", 1, 1, b"1"), put("b", 1, 2, b"1"), put("c", 2, 1, b"1")))
    assert keys(path) == {"a": b"1", "b": b"1", "c": b"1"}
    sink.commit("app", 1, table(put("a", 1, 3, b"2"), gone("b", 1, 4), gone("c", 2, 2, "expiration"), put("d", 3, 1)))
    assert keys(path) == {"a": b"2", "d": b"{}"}


def test_a_row_has_what_the_change_had(sink: DeltaSink, path: Path):
    """The columns of an item are those of its newest change, in the types that are documented."""
    change = put(
        "a", 9, 5, b"\xff\x00", vbuuid=-3, rev=4, cas=1_700_000_000_000_000_000, flags=2, expiry=77, datatype=0
    )
    sink.commit("app", 0, table(change))
    found = DeltaTable(str(path)).to_pyarrow_table()
    assert found.to_pylist() == [
        {
            "key": "a",
            "value": b"\xff\x00",
            "vbucket": 9,
            "vbuuid": -3,
            "seqno": 5,
            "rev": 4,
            "cas": 1_700_000_000_000_000_000,
            "flags": 2,
            "expiry": 77,
            "datatype": 0,
            "scope": "_default",
            "collection": "_default",
            "changed_at": None,
            "part": 9,
        }
    ]
    assert DeltaTable(str(path)).metadata().partition_columns == ["part"]


def test_the_largest_seqno_of_a_key_counts(sink: DeltaSink, path: Path):
    """A batch may bring several versions of an item, in any order."""
    versions = [put("a", 1, seqno, b"%d" % seqno) for seqno in (5, 9, 2)]
    sink.commit("app", 0, table(*versions, gone("b", 1, 3), put("b", 1, 4, b"new"), put("c", 1, 6), gone("c", 1, 7)))
    assert keys(path) == {"a": b"9", "b": b"new"}
    sink.commit("app", 1, table(gone("a", 1, 11), put("a", 1, 10, b"10"), put("b", 1, 13, b"13"), gone("b", 1, 12)))
    assert keys(path) == {"b": b"13"}


def test_a_key_in_two_vbuckets_is_two_items(sink: DeltaSink, path: Path):
    """Servers do not check that a key lies where clients look for it: so does not the table."""
    sink.commit("app", 0, table(put("a", 1, 1, b"one"), put("a", 65, 1, b"two"), put("a", 2, 1, b"three")))
    sink.commit("app", 1, table(gone("a", 65, 2)))
    assert {item[0]: value for item, value in items(path).items()} == {1: b"one", 2: b"three"}


def test_one_commit_for_a_batch(sink: DeltaSink, path: Path):
    """Updates, inserts and deletes of a batch are one version of the table, and its rollbacks are in it."""
    sink.commit("app", 0, table(*(put(f"k{n}", n % 8, n + 1) for n in range(80))))
    before = version(path)
    anew = [put(f"k{n}", 3, n + 1, b"again") for n in (3, 11)]
    done = sink.commit(
        "app", 1, table(rollback(3), *anew, put("k0", 0, 200, b"2"), gone("k1", 1, 201), put("n", 5, 202))
    )
    assert (done.version, version(path), done.written, done.removed) == (before + 1, before + 1, 4, 1)
    found = items(path)
    assert {item[3] for item in found if item[0] == 3} == {"k3", "k11"}
    assert len(found) == 80 - 8 - 1 + 1
    assert found[(3, "_default", "_default", "k11")] == b"again"


def test_a_rolled_back_vbucket_may_be_empty(sink: DeltaSink, path: Path):
    """Nothing is left of a vbucket that has nothing any more, though the batch has no row of its items."""
    sink.commit("app", 0, table(put("a", 1, 1), put("b", 2, 1), put("c", 65, 1)))
    sink.commit("app", 1, table(rollback(1)))
    assert set(keys(path)) == {"b", "c"}


def test_deletions_after_a_rollback_hold(sink: DeltaSink, path: Path):
    """What follows a rollback in its batch is taken as it comes, whatever its place in the batch."""
    sink.commit("app", 0, table(put("a", 1, 50), put("b", 1, 51)))
    sink.commit("app", 1, table(put("b", 1, 3, b"old"), gone("a", 1, 4), rollback(1)))
    assert keys(path) == {"b": b"old"}


def test_a_rollback_that_keeps_something_is_refused(sink: DeltaSink):
    """A table has no older versions to go back to."""
    with pytest.raises(TableError, match="onRollback=rebuild"):
        sink.commit("app", 0, table(rollback(1, 5)))


def test_a_batch_that_is_played_again_is_not_committed(sink: DeltaSink, path: Path):
    """The table tells by itself which batches it holds, also to a process that starts anew."""
    sink.commit("app", 0, table(put("a", 1, 1, b"1")))
    sink.commit("app", 1, table(put("a", 1, 2, b"2")))
    at = version(path)
    assert sink.commit("app", 1, table(put("a", 1, 2, b"other"))).version is None
    assert DeltaSink(path).commit("app", 0, table(put("a", 1, 1, b"1"))).version is None
    assert (keys(path), version(path)) == ({"a": b"2"}, at)


def test_a_batch_without_items_is_no_commit(sink: DeltaSink, path: Path):
    """What moves seqnos only leaves the table as it is; the first batch is a commit all the same."""
    first = sink.commit("app", 0, table(row("seqno_advanced", 1, 5)))
    assert first.version == version(path)
    assert sink.commit("app", 1, table(row("seqno_advanced", 1, 6), row("flush", 1, None))).version is None
    assert sink.commit("app", 2, table()).version is None
    assert version(path) == first.version


def test_a_new_checkpoint_begins_the_table_anew(sink: DeltaSink, path: Path):
    """Its first batch leaves nothing of what was there: an item may be gone of which no deletion is left."""
    sink.commit("old", 0, table(*(put(f"k{n}", n, n + 1) for n in range(100))))
    before = version(path)
    sink.commit("new", 0, table(put("k1", 1, 2, b"1")))
    assert (keys(path), version(path)) == ({"k1": b"1"}, before + 1)
    sink.commit("new", 1, table(put("k2", 2, 3, b"2")))
    assert sink.commit("new", 0, table(put("k9", 1, 2))).version is None
    assert keys(path) == {"k1": b"1", "k2": b"2"}


def test_a_new_checkpoint_of_an_empty_bucket_empties_the_table(sink: DeltaSink, path: Path):
    """There is no row to tell it; the first batch does."""
    sink.commit("old", 0, table(put("a", 1, 1)))
    sink.commit("new", 0, table())
    assert keys(path) == {}


def test_a_checkpoint_that_lost_its_table_is_refused(sink: DeltaSink, path: Path):
    """Another one began the table anew: what it holds is not what the old one made of it."""
    sink.commit("old", 0, table(put("a", 1, 1)))
    sink.commit("new", 0, table(put("b", 1, 2)))
    for batch in (0, 1):
        with pytest.raises(TableError, match="begun anew with another checkpoint"):
            sink.commit("old", batch, table(put("c", 1, 3)))
    assert set(keys(path)) == {"b"}


def test_a_checkpoint_without_its_table_is_refused(path: Path):
    """A table that was removed does not come back as the changes since."""
    with pytest.raises(TableError, match="stands at batch 7"):
        DeltaSink(path).commit("app", 7, table(put("a", 1, 1)))


@pytest.mark.parametrize("what", ["file", "folder", "below a file", "other table"])
def test_a_path_that_holds_something_else(tmp_path: Path, what: str):
    """Nothing is written into what is no table of ours."""
    path = tmp_path / "x"
    if what == "folder":
        path.mkdir()
        (path / "mine.txt").write_text("mine")
    elif what == "other table":
        write_deltalake(str(path), pa.table({"id": [1]}))
    else:
        path.write_text("mine")
        path = path / "y" if what == "below a file" else path
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TableError, match=str(path)):
        DeltaSink(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_kinds_of_keys_are_not_mixed(sink: DeltaSink, path: Path):
    """A table of texts is not continued with bytes."""
    sink.commit("app", 0, table(put("a", 1, 1)))
    with pytest.raises(TableError, match="its keys are string"):
        DeltaSink(path, keys="binary")


def test_binary_keys(path: Path):
    """Keys that are no text are kept, and found again."""
    sink = DeltaSink(path, keys="binary")
    rows = table(put("a", 1, 1), put("b", 1, 2))
    binary = rows.set_column(rows.schema.get_field_index("key"), "key", pa.chunked_array([[b"\xff"], [b"\xfe"]]))
    sink.commit("app", 0, binary)
    sink.commit("app", 1, binary.slice(0, 1).set_column(0, "event", pa.array(["deletion"])))
    assert DeltaTable(str(path)).to_pyarrow_table()["key"].to_pylist() == [b"\xfe"]


def test_files_stay_few(sink: DeltaSink, path: Path):
    """Batches that only add rows do not leave a file each for ever."""
    for batch in range(60):
        sink.commit("app", batch, table(*(put(f"k{batch}-{n}", 1, 100 * batch + n + 1) for n in range(5))))
    assert len(keys(path)) == 300
    assert len(DeltaTable(str(path)).file_uris()) <= 2 * parts.FILES_MANY


def test_large_parts_are_several_files(sink: DeltaSink, path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file has a bound, and only those with changes are written anew."""
    monkeypatch.setattr(parts, "FILE_BYTES_MAX", 4096)
    sink.commit("app", 0, table(*(put(f"k{n:03}", 1, n + 1, b"x" * 200) for n in range(100))))
    before = set(DeltaTable(str(path)).file_uris())
    assert len(before) > 4
    sink.commit("app", 1, table(put("k050", 1, 200, b"new")))
    after = set(DeltaTable(str(path)).file_uris())
    assert len(before - after) == 1
    assert keys(path)["k050"] == b"new"
    assert len(keys(path)) == 100


def test_old_files_and_versions_go(path: Path):
    """What no version of the history needs is removed, from the disk and from the log; the marks of batches stay."""
    sink = DeltaSink(path, history_s=0)
    for batch in range(2 * CHECKPOINT_COMMITS + 5):
        sink.commit("app", batch, table(put("a", 1, batch + 1, b"%d" % batch)))
    sink.clean(now=True)
    there = {str(each.relative_to(path)) for each in (path / "part=1").iterdir()}
    assert len(there) == 1
    assert len(list((path / "_delta_log").glob("*.json"))) < 2 * CHECKPOINT_COMMITS
    again = DeltaSink(path, history_s=0)
    assert again.commit("app", 2 * CHECKPOINT_COMMITS, table(put("a", 1, 9, b"other"))).version is None
    assert keys(path) == {"a": b"%d" % (2 * CHECKPOINT_COMMITS + 4)}


def test_a_longer_history_is_kept_from_now_on(sink: DeltaSink, path: Path):
    """The table's properties follow what a run is told."""
    sink.commit("app", 0, table(put("a", 1, 1)))
    DeltaSink(path, history_s=7200)
    found = DeltaTable(str(path)).metadata().configuration
    assert found["delta.deletedFileRetentionDuration"] == "interval 7200 seconds"
    assert keys(path) == {"a": b"{}"}


CREATE, DROP = SystemEventKind.CREATE_COLLECTION, SystemEventKind.DROP_COLLECTION


def test_a_dropped_collection_takes_its_items_along(sink: DeltaSink, path: Path):
    """No deletions come for them; of other vbuckets and other collections nothing goes."""
    made = [system(SystemEventKind.CREATE_SCOPE, vb, 1, "shop", 8) for vb in (1, 2)]
    made += [system(CREATE, vb, 2, "orders", 8, 9) for vb in (1, 2)]
    held = [put(key, vb, 3, scope="shop", collection="orders") for key, vb in (("a", 1), ("b", 2))]
    sink.commit("app", 0, table(*made, *held, put("c", 1, 4)))
    late = put("d", 1, 5, scope="shop", collection="orders")
    unnamed = put("e", 1, 6, scope=None, collection="0x9")
    assert DeltaSink(path).commit("app", 1, table(late, unnamed, system(DROP, 1, 7, "", 8, 9))).version is not None
    assert set(keys(path)) == {"b", "c"}
    sink.commit("app", 2, table(system(DROP, 2, 8, "", 8, 9)))
    assert set(keys(path)) == {"c"}


def test_a_collection_that_is_made_again_is_another(sink: DeltaSink, path: Path):
    """What was written after the drop stays, in the same batch too."""
    sink.commit("app", 0, table(system(CREATE, 1, 1, "c", 0, 8), put("old", 1, 2, collection="c")))
    again = [put("old", 1, 3, b"late", collection="c"), system(DROP, 1, 4, "", 0, 8), system(CREATE, 1, 5, "c", 0, 9)]
    sink.commit("app", 1, table(*again, put("new", 1, 6, collection="c")))
    assert set(keys(path)) == {"new"}


def test_a_damaged_file_of_names_is_told(sink: DeltaSink, path: Path):
    """It is not taken for an empty one."""
    sink.commit("app", 0, table(system(CREATE, 1, 1, "c", 0, 8)))
    (path / "_headrace" / "collections.json").write_text(json.dumps([1]))
    with pytest.raises(TableError, match="names of collections"):
        DeltaSink(path)


class Model:
    """What a table is to hold: the oracle."""

    def __init__(self) -> None:
        self.items: dict[Item, bytes] = {}

    def take(self, rows: list[dict[str, Any]]) -> None:
        """Take in a batch, one row after the other in the order of seqnos; rollbacks come first."""
        for each in sorted(rows, key=lambda one: (one["event"] != "rollback", one["seqno"])):
            item = (each["vbucket"], "_default", "_default", each["key"])
            if each["event"] == "rollback":
                self.items = {held: value for held, value in self.items.items() if held[0] != each["vbucket"]}
            elif each["event"] == "mutation":
                self.items[item] = each["value"]
            else:
                self.items.pop(item, None)


@pytest.mark.parametrize("seed", range(6))
def test_any_batches_leave_what_they_say(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch):
    """Whatever comes, in whatever order, with restarts and batches played again: the table equals the oracle."""
    monkeypatch.setattr(parts, "FILE_BYTES_MAX", 2000)
    draw = random.Random(seed)
    path, model, seqno = tmp_path / "t", Model(), 0
    sink = DeltaSink(path)
    for batch in range(25):
        rows: list[dict[str, Any]] = []
        rows += [rollback(vbucket) for vbucket in draw.sample(range(4), draw.choice([0, 0, 0, 1, 3]))]
        for _ in range(draw.randrange(12)):
            seqno += 1
            key, vbucket = f"k{draw.randrange(15)}", draw.choice([0, 1, 2, 3, 64])
            rows.append(put(key, vbucket, seqno, b"%d" % seqno) if draw.random() < 0.7 else gone(key, vbucket, seqno))
        draw.shuffle(rows)
        sink.commit("app", batch, table(*rows))
        model.take(rows)
        if draw.random() < 0.3:
            sink = DeltaSink(path)
            sink.commit("app", batch, table(*rows))
        assert items(path) == model.items, f"batch {batch}"
