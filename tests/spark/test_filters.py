from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from headrace.client import vbucket_of
from headrace.columns import schema
from headrace.spark.filters import Wanted, push


def rows(*found: dict[str, Any]) -> pa.RecordBatch:
    """Change rows with some columns set."""
    return pa.RecordBatch.from_pylist([{"event": "mutation", "seqno": 5, **each} for each in found], schema=schema())


KEYS = rows({"key": "a1"}, {"key": "a2"}, {"key": "b1", "event": "deletion"}, {"key": None, "event": "rollback"})


@pytest.mark.parametrize(
    ("each", "wanted"),
    [
        (EqualTo(("vbucket",), 3), Wanted(vbuckets=frozenset({3}))),
        (EqualNullSafe(("event",), "deletion"), Wanted(events=frozenset({"deletion"}))),
        (In(("key",), ("a1", "zz")), Wanted(keys=frozenset({"a1", "zz"}))),
        (StringStartsWith(("key",), "a"), Wanted(prefix="a")),
        (GreaterThan(("seqno",), 5), Wanted(seqno_from=6)),
        (GreaterThanOrEqual(("seqno",), 5), Wanted(seqno_from=5)),
        (LessThan(("seqno",), 5), Wanted(seqno_to=4)),
        (LessThanOrEqual(("seqno",), 5), Wanted(seqno_to=5)),
        (EqualTo(("seqno",), 5), Wanted(seqno_from=5, seqno_to=5)),
    ],
)
def test_filters_that_are_taken(each: Filter, wanted: Wanted):
    """Vbucket, seqno, event, whole keys and prefixes are done before rows go to the JVM."""
    assert push(Wanted(), [each], text_keys=True) == (wanted, [])


@pytest.mark.parametrize(
    "each",
    [
        IsNotNull(("key",)),
        Not(EqualTo(("key",), "a")),
        EqualTo(("rev",), 5),
        EqualTo(("xattrs", "a"), "b"),
        EqualNullSafe(("key",), None),
        In(("seqno",), (4, 5)),
        StringContains(("key",), "a"),
    ],
)
def test_filters_that_are_left(each: Filter):
    """What is not done here is Spark's to do."""
    assert push(Wanted(), [each], text_keys=True) == (Wanted(), [each])


def test_binary_keys_are_spark_s():
    """A filter on a key that is bytes is not compared with text."""
    each = EqualTo(("key",), b"a")
    assert push(Wanted(), [each], text_keys=False) == (Wanted(), [each])


def test_filters_together():
    """Two filters want what both want."""
    found, left = push(
        Wanted(), [In(("vbucket",), (1, 2)), In(("vbucket",), (2, 3)), GreaterThan(("seqno",), 5)], text_keys=True
    )
    assert (found.vbuckets, found.seqno_from, left) == (frozenset({2}), 6, [])


def test_rows_that_are_kept():
    """Rows are left out by event, key and prefix; a rollback never is."""

    def kept(wanted: Wanted) -> list[str | None]:
        found: list[str | None] = wanted.of(KEYS).column("key").to_pylist()
        return found

    assert kept(Wanted()) == ["a1", "a2", "b1", None]
    assert kept(Wanted(events=frozenset({"deletion"}))) == ["b1", None]
    assert kept(Wanted(keys=frozenset({"a2"}))) == ["a2", None]
    assert kept(Wanted(prefix="a", keys=frozenset({"a2", "b1"}))) == ["a2", None]
    assert kept(Wanted(seqno_from=6)) == kept(Wanted(seqno_to=4)) == [None]
    assert kept(Wanted(seqno_from=5, seqno_to=5)) == ["a1", "a2", "b1", None]


def test_times():
    """What is older by the clock of its CAS is left out; what has none is not."""
    old, new = (datetime.fromtimestamp(seconds, UTC) for seconds in (99, 100))
    found = Wanted(since_s=100.0).of(
        rows({"key": "a", "changed_at": old}, {"key": "b", "changed_at": new}, {"key": "c"})
    )
    assert found.column("key").to_pylist() == ["b", "c"]


def test_where_a_key_can_be():
    """A key is in the vbucket of its hash, unless somebody puts keys elsewhere."""
    wanted = Wanted(keys=frozenset({"hello"}))
    assert [vb for vb in range(64) if wanted.may_hold(vb, 64, hashed=True)] == [vbucket_of(b"hello", 64)]
    assert all(wanted.may_hold(vb, 64, hashed=False) for vb in range(64))
    assert not Wanted(vbuckets=frozenset({1})).may_hold(2, 64, hashed=False)
