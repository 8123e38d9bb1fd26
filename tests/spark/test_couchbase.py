"""The format `dcp` against Couchbase's own server, where there is one; tests/client/test_dcp_couchbase.py says how.

The server is an old one (4.1.2): it deduplicates and snapshots by its own rules, which is what counts here.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from headrace.client import KvConnection
from headrace.wire.catalogue import StopPersistence
from tests.client.servers import HOST, free_port
from tests.client.test_dcp_couchbase import PROGRAM, VBUCKETS, on_disk, server
from tests.spark.faults.buckets import Bucket, Writers
from tests.spark.faults.copies import EVENT, FAIL, REBUILD, Copy, difference, rows_of
from tests.spark.faults.queries import Query

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="no Couchbase server: HEADRACE_COUCHBASE_SERVER is not set"),
    pytest.mark.slow,
]
FIRST = [f"key-{number}" for number in range(1000)]


class Place:
    """Where the server is, as `Bucket` wants to know it."""

    def __init__(self) -> None:
        self.host, self.port = HOST, free_port()

    @property
    def options(self) -> dict[str, object]:
        """The options of a read."""
        return {"connection": f"couchbase://{self.host}:{self.port}"}


def copied(spark: SparkSession, options: dict[str, object]) -> Copy:
    """A batch read as a copy."""
    copy = Copy()
    given = {name: str(value) for name, value in options.items()}
    copy(spark.read.format("dcp").options(**given).load(), 0)
    return copy


def test_a_batch_is_the_bucket(spark: SparkSession, tmp_path: Path):
    """Documents and changes are what GET and GET_META say, also under writers and from disk after a restart."""
    place = Place()
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(FIRST)
        for key in FIRST[::5]:
            bucket.delete(key)
        with Writers(place, deletes=0.0) as writers:
            writers.wait(300)
            found = {str(row.key) for row in rows_of(copied(spark, {**place.options, "mode": "documents"}).batches[0])}
            writers.stop()
        assert {key for key in FIRST if key not in FIRST[::5]} <= found
        keys = {*FIRST, *writers.keys}
        truth = bucket.documents(keys)
        for mode in ("documents", "changes"):
            assert not difference(copied(spark, {**place.options, "mode": mode}).documents(), truth)
        on_disk(place.port, tmp_path)
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        truth = bucket.documents(keys)
        for mode in ("documents", "changes"):
            assert not difference(copied(spark, {**place.options, "mode": mode}).documents(), truth)


def test_a_batch_ends_where_it_was_told_to(spark: SparkSession, tmp_path: Path):
    """The server sends to the end of a snapshot; the read cuts at its end, and the stream goes on right there."""
    place = Place()
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(FIRST)
        ends = "{" + ",".join(f'"{vb}": 30' for vb in range(VBUCKETS)) + "}"
        rows = rows_of(copied(spark, {**place.options, "endingOffsets": ends}).batches[0])
        assert {vb: sum(row.vbucket == vb for row in rows) for vb in range(VBUCKETS)} == dict.fromkeys(
            range(VBUCKETS), 30
        )
        assert {row.seqno for row in rows} == set(range(1, 31))
        rest = rows_of(copied(spark, {**place.options, "startingOffsets": ends}).batches[0])
        assert len(rows) + len(rest) == len(FIRST)


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT, FAIL])
def test_a_stream_goes_on_after_a_clean_restart(spark: SparkSession, tmp_path: Path, on_rollback: str):
    """Writers, limits, a restart of the query and one of the server: it ends equal and nothing is rolled back."""
    place = Place()
    options = {**place.options, "onRollback": on_rollback, "maxOffsetsPerTrigger": 300}
    copy = Copy(on_rollback)
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(FIRST)
        with Writers(place) as writers:
            with Query(spark, options, tmp_path / "checkpoint", copy) as running:
                running.until_rows(500)
            with Query(spark, options, tmp_path / "checkpoint", copy) as running:
                running.until_rows(900)
                writers.stop()
                running.ends_equal(bucket.documents({*FIRST, *writers.keys}))
        on_disk(place.port, tmp_path)
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(["after"])
        with Query(spark, options, tmp_path / "checkpoint", copy) as running:
            running.ends_equal(bucket.documents({*FIRST, *writers.keys, "after"}))
    assert not copy.rollbacks


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT])
def test_what_a_killed_server_lost_is_undone(spark: SparkSession, tmp_path: Path, on_rollback: str):
    """After kill -9 with changes that were in memory alone, a running query ends equal to what the server has."""
    place = Place()
    copy = Copy(on_rollback)
    lost = [f"lost-{number}" for number in range(60)]
    query = None
    with server(tmp_path / "db", place.port), Bucket(place) as bucket:
        bucket.fill(FIRST)
        on_disk(place.port, tmp_path)
        query = Query(spark, {**place.options, "onRollback": on_rollback}, tmp_path / "checkpoint", copy)
        query.until_rows(len(FIRST))
        with KvConnection(place.host, place.port) as items:
            items.request(StopPersistence())
        bucket.fill(lost)
        query.until(lambda: set(lost) <= copy.documents().keys(), "what will be lost was read")
        os.kill(int((tmp_path / "db" / "pid").read_text()), signal.SIGKILL)
    with query, server(tmp_path / "db", place.port), Bucket(place) as bucket:
        new = [f"new-{number}" for number in range(60)]
        bucket.fill(new)
        truth = bucket.documents([*FIRST, *lost, *new])
        assert not set(lost) & truth.keys()
        query.ends_equal(truth)
        assert copy.rollbacks
