import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from headrace.pipelines.tables import TableError
from headrace.pipelines.tables.change_log import ChangeLog, current_state
from headrace.wire.codes import SystemEventKind
from tests.pipelines.batches import gone, put, rollback, row, system, table


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a log is to be."""
    return tmp_path / "log"


def left(path: Path) -> dict[str, bytes]:
    """The items that a log leaves, by key."""
    rows = current_state(path).to_pylist()
    found = {each["key"]: each["value"] for each in rows}
    assert len(found) == len(rows), "an item is there twice"
    return found


def test_every_row_is_kept(path: Path):
    """Each batch is a file with all its rows, in the order of vbucket and seqno, and the number of the batch."""
    log = ChangeLog(path)
    assert log.append("app", 0, table(put("b", 2, 4), put("a", 1, 9), put("a", 1, 3), row("seqno_advanced", 1, 10)))
    assert log.append("app", 3, table(rollback(1), gone("b", 2, 5)))
    files = sorted(each.name for each in path.iterdir())
    assert files == ["_headrace.json", "batch-000000000000.parquet", "batch-000000000003.parquet"]
    rows = dataset.dataset(path, format="parquet").to_table().to_pylist()
    assert [(each["batch"], each["event"], each["vbucket"], each["seqno"]) for each in rows] == [
        (0, "mutation", 1, 3),
        (0, "mutation", 1, 9),
        (0, "seqno_advanced", 1, 10),
        (0, "mutation", 2, 4),
        (3, "rollback", 1, 0),
        (3, "deletion", 2, 5),
    ]


def test_a_batch_is_in_the_log_once(path: Path):
    """One that is played again changes nothing, and neither does what a killed process left."""
    ChangeLog(path).append("app", 0, table(put("a", 1, 1, b"1")))
    (path / ".batch-000000000001.parquet.new").write_bytes(b"half a file")
    assert not ChangeLog(path).append("app", 0, table(put("a", 1, 1, b"other")))
    assert ChangeLog(path).append("app", 1, table(put("b", 1, 2, b"2")))
    assert left(path) == {"a": b"1", "b": b"2"}
    assert not list(path.glob(".*"))


def test_an_empty_batch_is_no_file(path: Path):
    """The log is there all the same, and leaves nothing."""
    assert not ChangeLog(path).append("app", 0, table())
    assert left(path) == {}
    assert [each.name for each in path.iterdir()] == ["_headrace.json"]


def test_another_checkpoint_is_refused(path: Path):
    """A log cannot be begun anew: it would hold everything twice."""
    ChangeLog(path).append("app", 0, table(put("a", 1, 1)))
    with pytest.raises(TableError, match="log of another checkpoint"):
        ChangeLog(path).append("other", 0, table(put("a", 1, 1)))


def test_a_checkpoint_without_its_log_is_refused(path: Path):
    """What was in it is lost, and the rest alone is no log."""
    with pytest.raises(TableError, match="stands at batch 4"):
        ChangeLog(path).append("app", 4, table(put("a", 1, 1)))


@pytest.mark.parametrize("what", ["file", "folder", "below a file"])
def test_a_path_that_holds_something_else(tmp_path: Path, what: str):
    """Nothing is written into what is no log."""
    path = tmp_path / "x"
    if what == "folder":
        path.mkdir()
        parquet.write_table(pa.table({"id": [1]}), path / "mine.parquet")
    else:
        path.write_text("mine")
        path = path / "y" if what == "below a file" else path
    with pytest.raises(TableError, match=str(path)):
        ChangeLog(path)


def test_what_is_no_log_is_told(tmp_path: Path):
    """A folder is not read as a log because there is Parquet in it."""
    with pytest.raises(TableError, match="no log of changes"):
        current_state(tmp_path)


def test_a_rollback_takes_back_what_came_in_batches_before(path: Path):
    """Rows of its own batch came after it, whatever their seqno; rows up to its seqno stay."""
    log = ChangeLog(path)
    log.append("app", 0, table(put("a", 1, 5, b"5"), put("b", 1, 6, b"6"), put("c", 2, 7, b"7")))
    log.append("app", 1, table(gone("a", 1, 8), put("d", 1, 9, b"9")))
    log.append("app", 2, table(rollback(1, 5), put("b", 1, 6, b"again"), put("e", 1, 7, b"e")))
    assert left(path) == {"a": b"5", "b": b"again", "c": b"7", "e": b"e"}
    log.append("app", 3, table(rollback(1), put("a", 1, 2, b"anew")))
    assert left(path) == {"a": b"anew", "c": b"7"}
    assert current_state(path, [2])["key"].to_pylist() == ["c"]


def test_dropped_collections_leave_nothing(path: Path):
    """The log has the events that tell their names."""
    log = ChangeLog(path)
    log.append(
        "app", 0, table(system(SystemEventKind.CREATE_COLLECTION, 1, 1, "c", 0, 8), put("a", 1, 2, collection="c"))
    )
    log.append("app", 1, table(put("b", 1, 3), system(SystemEventKind.DROP_COLLECTION, 1, 4, "", 0, 8)))
    assert set(left(path)) == {"b"}


def replayed(batches: list[list[dict[str, Any]]]) -> dict[tuple[int, str], bytes]:
    """What batches leave, worked out row by row: the oracle."""
    kept: dict[int, list[dict[str, Any]]] = {}
    for batch in batches:
        for each in batch:
            if each["event"] == "rollback":
                held = kept.get(each["vbucket"], [])
                kept[each["vbucket"]] = [one for one in held if one["seqno"] <= each["seqno"]]
        for each in batch:
            if each["event"] != "rollback":
                kept.setdefault(each["vbucket"], []).append(each)
    found: dict[tuple[int, str], bytes] = {}
    for vbucket, rows in kept.items():
        for each in sorted(rows, key=lambda one: one["seqno"]):
            if each["event"] == "mutation":
                found[vbucket, each["key"]] = each["value"]
            else:
                found.pop((vbucket, each["key"]), None)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_any_rollbacks_leave_what_they_say(path: Path, seed: int):
    """Whatever is rolled back, however often and how far: the items equal the oracle's."""
    draw = random.Random(seed)
    log, batches, high = ChangeLog(path), list[list[dict[str, Any]]](), dict.fromkeys(range(3), 0)
    for number in range(20):
        batch = []
        for vbucket in draw.sample(range(3), draw.choice([0, 0, 1, 2])):
            high[vbucket] = draw.randrange(high[vbucket] + 1)
            batch.append(rollback(vbucket, high[vbucket]))
        for _ in range(draw.randrange(8)):
            vbucket, key = draw.randrange(3), f"k{draw.randrange(6)}"
            high[vbucket] += 1
            change = put(key, vbucket, high[vbucket], b"%d" % number) if draw.random() < 0.7 else None
            batch.append(change or gone(key, vbucket, high[vbucket]))
        draw.shuffle(batch)
        log.append("app", number, table(*batch))
        batches.append(batch)
    rows = current_state(path).to_pylist()
    assert {(each["vbucket"], each["key"]): each["value"] for each in rows} == replayed(batches)
