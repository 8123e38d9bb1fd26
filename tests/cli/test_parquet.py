import datetime as dt
import decimal
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.cli import parquet as reading
from headrace.cli.rows import KeyTemplate, Seen, WrongRow
from headrace.client import LoadRow
from headrace.errors import HeadraceError
from tests.cli.tools import got, load

NANOSECONDS = 1_767_323_045_000_000_006
"""2026-01-02T03:04:05.000000006Z since the epoch."""


def test_parquet(server: str, tmp_path: Path):
    """Each row becomes an object; what JSON has no form for gets the form that the help names."""
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=dt.UTC)
    table = pa.table(
        {
            "id": pa.array(range(2500)),
            "number": pa.array([1.5, float("nan"), None] + [0.0] * 2497),
            "at": pa.array([moment] * 2500, pa.timestamp("ms", "UTC")),
            "day": pa.array([moment.date()] * 2500),
            "price": pa.array([decimal.Decimal("1.10")] * 2500),
            "octets": pa.array([b"\xff\0"] * 2500),
            "list": pa.array([[{"a": float("nan")}]] * 2500),
            "took": pa.array([dt.timedelta(seconds=1.5)] * 2500),
        }
    )
    parquet.write_table(table, tmp_path / "f.parquet", row_group_size=1000)
    done = load(server, tmp_path / "f.parquet", "--key", "pq::{id}")
    assert done.exit_code == 0, done.stderr
    assert "loaded 2500 documents" in done.stderr
    first = got(server, "pq::0")
    assert first == {
        "id": 0,
        "number": 1.5,
        "at": "2026-01-02T03:04:05.006000+00:00",
        "day": "2026-01-02",
        "price": "1.10",
        "octets": "/wA=",
        "list": [{"a": None}],
        "took": 1.5,
    }
    assert [got(server, f"pq::{number}")["number"] for number in (1, 2, 2499)] == [None, None, 0.0]


def test_infinite_numbers(server: str, tmp_path: Path):
    """A number that JSON cannot say makes its row wrong."""
    parquet.write_table(pa.table({"id": [1, 2], "v": [float("inf"), 1.0]}), tmp_path / "f.parquet")
    done = load(server, tmp_path / "f.parquet", "--key", "inf::{id}")
    assert done.exit_code == 2
    assert "row 1: an infinite number has no form in JSON" in done.stderr
    assert got(server, "inf::2")


def column(kind: pa.DataType, *values: Any) -> pa.Array:
    """A column of raw numbers or bytes, unchecked, as a file may hold it."""
    raw = pa.array(values, pa.binary() if isinstance(values[0], bytes) else f"int{kind.bit_width}")
    return raw.view(kind)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (column(pa.timestamp("ns"), NANOSECONDS), "2026-01-02T03:04:05.000000006"),
        (column(pa.timestamp("ns"), -1), "1969-12-31T23:59:59.999999999"),
        (column(pa.timestamp("ns", "UTC"), NANOSECONDS), "2026-01-02T03:04:05.000000006+00:00"),
        (column(pa.timestamp("ns", "Asia/Tokyo"), NANOSECONDS), "2026-01-02T12:04:05.000000006+09:00"),
        (column(pa.timestamp("ns", "-01:30"), NANOSECONDS), "2026-01-02T01:34:05.000000006-01:30"),
        (column(pa.time64("ns"), 3_600_000_000_001), "01:00:00.000000001"),
        (column(pa.duration("ns"), 1_500_000_001), 1.500000001),
        (column(pa.duration("s"), 1 << 62), float(1 << 62)),
        (pa.array([[NANOSECONDS, None]], pa.list_(pa.timestamp("ns"))), ["2026-01-02T03:04:05.000000006", None]),
        (pa.array([{"a": 1}], pa.struct([("a", pa.time64("ns"))])), {"a": "00:00:00.000000001"}),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.duration("ns"))), [["a", 1e-9]]),
        (pa.array([uuid.UUID(int=7).bytes], pa.uuid()), str(uuid.UUID(int=7))),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else "",
)
def test_times_that_python_cannot_hold(server: str, tmp_path: Path, values: pa.Array, shown: object):
    """What `datetime` is too coarse or too small for comes out whole; the rest of the column comes out as ever."""
    coarse = pa.nulls(1, values.type)
    table = pa.table({"id": [1, 2], "v": pa.chunked_array([values, coarse]).combine_chunks()})
    parquet.write_table(table, tmp_path / "f.parquet")
    done = load(server, tmp_path / "f.parquet", "--key", "ns::{id}")
    assert done.exit_code == 0, done.stderr
    assert [got(server, f"ns::{number}")["v"] for number in (1, 2)] == [shown, None]


def test_nanoseconds_beside_none(server: str, tmp_path: Path):
    """A column's values have one form, whichever of them has nanoseconds."""
    values = column(pa.timestamp("ns", "UTC"), NANOSECONDS, NANOSECONDS - 6, NANOSECONDS + 994)
    parquet.write_table(pa.table({"id": [1, 2, 3], "v": values}), tmp_path / "f.parquet")
    assert load(server, tmp_path / "f.parquet", "--key", "{v}").exit_code == 0
    keys = [f"2026-01-02T03:04:05{fraction}+00:00" for fraction in (".000000006", "", ".000001")]
    assert [got(server, key)["v"] for key in keys] == keys


def test_old_timestamps_of_spark(server: str, tmp_path: Path):
    """INT96 reaches the year 9999, and does not come out as another year."""
    table = pa.table({"id": [1], "v": pa.array([dt.datetime(9999, 12, 31)], pa.timestamp("us"))})  # noqa: DTZ001
    parquet.write_table(table, tmp_path / "f.parquet", use_deprecated_int96_timestamps=True)
    assert load(server, tmp_path / "f.parquet", "--key", "int96::{id}").exit_code == 0
    assert got(server, "int96::1")["v"] == "9999-12-31T00:00:00"


@pytest.mark.parametrize(
    ("bad", "good", "reason"),
    [
        (column(pa.timestamp("us"), 884_541_000_000_000_000), 0, "'v', timestamp[us], cannot be read: "),
        (column(pa.timestamp("ms"), -(1 << 62)), 0, "'v', timestamp[ms], cannot be read: "),
        (column(pa.date32(), (1 << 31) - 1), 0, "'v', date32[day], cannot be read: "),
        (column(pa.string(), b"a\xff"), "good", "'v' is not UTF-8"),
        (pa.array([[1 << 62]], pa.list_(pa.timestamp("us"))), [0], "'v', list<element: timestamp[us]>, cannot be read"),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else "",
)
def test_wrong_values(server: str, tmp_path: Path, bad: pa.Array, good: Any, reason: str):
    """A value that has no form is told with its row, its column and the reason; the rows around it are loaded."""
    beside = pa.array([good], bad.type)
    values = pa.chunked_array([beside, bad, beside]).combine_chunks()
    parquet.write_table(pa.table({"id": [1, 2, 3], "v": values}), tmp_path / "f.parquet")
    done = load(server, tmp_path / "f.parquet", "--key", "wrong::{id}")
    assert done.exit_code == 2
    assert f"f.parquet: row 2: {reason}" in done.stderr
    assert "loaded 2 documents" in done.stderr
    assert done.stderr.endswith("1 of 3 rows were not loaded\n")
    assert got(server, "wrong::3")["id"] == 3


def test_wrong_keys(server: str, tmp_path: Path):
    """A key that cannot be read is told as what it is."""
    parquet.write_table(pa.table({"id": column(pa.string(), b"\xff", b"key")}), tmp_path / "f.parquet")
    done = load(server, tmp_path / "f.parquet", "--key", "id")
    assert (done.exit_code, "row 1: 'id' is not UTF-8" in done.stderr) == (2, True)
    assert got(server, "key") == {"id": "key"}


def test_wrong_types(server: str, tmp_path: Path):
    """A type of which no value can be read makes every row wrong, and no trace."""
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    for values in (twice, column(pa.timestamp("us", "Nowhere/Never"), 1)):
        parquet.write_table(pa.table({"id": [1], "v": values}), tmp_path / "f.parquet")
        done = load(server, tmp_path / "f.parquet", "--key", "id")
        assert (done.exit_code, "row 1: 'v', " in done.stderr) == (2, True), done.stderr


def test_damaged_files(tmp_path: Path):
    """Whatever byte of a file is another, it gives rows, wrong rows or a sentence."""
    table = pa.table(
        {
            "id": ["a", "b"],
            "at": column(pa.timestamp("ns", "UTC"), 1, 2),
            "day": column(pa.date32(), 1, 2),
            "list": [[{"a": "x"}], []],
        }
    )
    parquet.write_table(table, tmp_path / "whole.parquet", compression="none")
    whole = (tmp_path / "whole.parquet").read_bytes()
    ends: set[type] = set()
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x81
        (tmp_path / "f.parquet").write_bytes(damaged)
        try:
            ends.update(map(type, reading.parquet_rows(tmp_path / "f.parquet", KeyTemplate("id"), Seen())))
        except HeadraceError:
            ends.add(HeadraceError)
    assert ends == {LoadRow, WrongRow, HeadraceError}
