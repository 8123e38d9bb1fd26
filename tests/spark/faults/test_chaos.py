"""Trouble that a node makes under a running query: failovers, rollbacks, purges, broken and slow connections."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from headrace.client import NotFoundError
from headrace.testing import Chaos, LiveNode
from tests.spark.faults.buckets import Bucket, Writers, live_nodes
from tests.spark.faults.copies import EVENT, FAIL, REBUILD, Copy
from tests.spark.faults.queries import WAIT_S, Query, connection_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

VBUCKETS = 8
FIRST = [f"key-{number}" for number in range(1000)]
OURS = "headrace-spark*"
"""What the connections of the source are called."""


@pytest.fixture(params=[pytest.param(1, id="one node"), pytest.param(2, id="two nodes", marks=pytest.mark.slow)])
def nodes(request: pytest.FixtureRequest) -> Iterator[list[LiveNode]]:
    """A node, or two that share the vbuckets, with a few items."""
    with live_nodes(request.param, VBUCKETS) as started:
        with Bucket(*started) as bucket:
            bucket.fill(FIRST)
        yield started


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT])
@pytest.mark.parametrize("lost", [0, 1, 25])
def test_a_failover_is_undone(spark: SparkSession, nodes: list[LiveNode], tmp_path: Path, on_rollback: str, lost: int):
    """Whatever was lost by a failover of some vbuckets, once and again, the copy ends equal."""
    options = {"connection": connection_to(*nodes), "onRollback": on_rollback}
    with Bucket(*nodes) as bucket, Query(spark, options, tmp_path, Copy(on_rollback)) as running:
        running.until_rows(len(FIRST))
        with Writers(*nodes) as writers:
            for _ in range(2):
                writers.wait(40)
                for place, node in enumerate(nodes):
                    node.chaos.failover([vb for vb in (0, 1, 2, 3) if vb % len(nodes) == place], lost=lost)
            writers.wait(40)
            writers.stop()
        running.ends_equal(bucket.documents({*FIRST, *writers.keys}))
        back = {row.vbucket for row in running.copy.rollbacks}
    assert back <= {0, 1, 2, 3}
    if lost == 25:  # more than a batch that was just under way
        assert back == {0, 1, 2, 3}


@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT])
def test_a_rollback_to_an_early_seqno_is_undone(
    spark: SparkSession, nodes: list[LiveNode], tmp_path: Path, on_rollback: str
):
    """A vbucket that goes back to its beginning, and one that goes back to its middle, end equal."""
    options = {"connection": connection_to(*nodes), "onRollback": on_rollback, "maxOffsetsPerTrigger": 200}
    with Bucket(*nodes) as bucket, Query(spark, options, tmp_path, Copy(on_rollback)) as running:
        running.until_rows(len(FIRST))
        node_of = {vb: nodes[vb % len(nodes)] for vb in (0, 1)}
        node_of[0].chaos.rollback(0, to=0)
        node_of[1].chaos.rollback(1, to=60)
        bucket.fill([f"new-{number}" for number in range(100)])
        keys = {*FIRST, *(f"new-{number}" for number in range(100))}
        running.ends_equal(bucket.documents(keys))
        assert {row.vbucket for row in running.copy.rollbacks} == {0, 1}


@pytest.mark.parametrize("node", [8], indirect=True)
@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT, FAIL])
def test_a_purge_is_data_loss(spark: SparkSession, node: LiveNode, tmp_path: Path, on_rollback: str):
    """A query that missed purged deletions stops and tells; with `failOnDataLoss` false it reads anew, and is equal."""
    options = {"connection": connection_to(node), "onRollback": on_rollback}
    copy = Copy(on_rollback)
    with Bucket(node) as bucket:
        bucket.fill(FIRST)
        with Query(spark, options, tmp_path, copy) as running:
            running.until_rows(len(FIRST))
        for key in FIRST[::4]:
            bucket.delete(key)
        node.flush()
        node.chaos.purge()
        bucket.fill(["after"])
        with Query(spark, options, tmp_path, copy) as running:
            said = running.until_failed()
        assert re.search(r"vbucket \d+ stands at seqno \d+, holds up to 0 \(.+\)", said), said
        assert "Set failOnDataLoss to false" in said
        if on_rollback == FAIL:
            options["onRollback"] = copy.on_rollback = REBUILD
        with Query(spark, {**options, "failOnDataLoss": False}, tmp_path, copy) as running:
            running.ends_equal(bucket.documents([*FIRST, "after"]))
            assert {row.seqno for row in copy.rollbacks} == {0}


class Stalled(Copy):
    """A copy that holds its query up in one batch until it is let go."""

    def __init__(self, on_rollback: str) -> None:
        super().__init__(on_rollback)
        self.waiting, self.may_go_on = threading.Event(), threading.Event()
        self.stalls = False

    def __call__(self, frame: DataFrame, number: int) -> None:
        super().__call__(frame, number)
        if self.stalls:
            self.stalls = False
            self.waiting.set()
            assert self.may_go_on.wait(WAIT_S)


@pytest.mark.parametrize("node", [8], indirect=True)
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT, FAIL])
def test_a_purge_under_a_running_query(
    spark: SparkSession, node: LiveNode, tmp_path: Path, on_rollback: str, fails: bool
):
    """Deletions that are purged before a query gets there stop it by its task, or have their vbuckets read anew.

    The driver has just asked whether it may go on from there, and does not ask again so soon.
    """
    options = {"connection": connection_to(node), "onRollback": on_rollback}
    copy = Stalled(on_rollback)
    with Bucket(node) as bucket:
        bucket.fill(FIRST)
        with Query(spark, {**options, "failOnDataLoss": fails}, tmp_path, copy) as running:
            running.until_rows(len(FIRST))
            running.query.processAllAvailable()
            copy.stalls = True
            bucket.fill([f"one-{number}" for number in range(100)])
            running.until(copy.waiting.is_set, "a batch is held up")
            for key in FIRST[::4]:
                bucket.delete(key)
            bucket.fill(["after"])
            node.flush()
            node.chaos.purge()
            copy.may_go_on.set()
            keys = [*FIRST, "after", *(f"one-{number}" for number in range(100))]
            if not fails and on_rollback != FAIL:
                running.ends_equal(bucket.documents(keys))
                assert {row.seqno for row in copy.rollbacks} == {0}
                return
            said = running.until_failed()
        assert re.search(r"the changes after seqno \d+ cannot be had any more", said), said
        assert "Set failOnDataLoss to false, and onRollback to rebuild or event, to read the vbucket anew" in said
        assert not copy.rollbacks
        if on_rollback == FAIL:
            options["onRollback"] = copy.on_rollback = REBUILD
        with Query(spark, {**options, "failOnDataLoss": False}, tmp_path, copy) as running:
            running.ends_equal(bucket.documents(keys))


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("on_rollback", [REBUILD, EVENT, FAIL])
def test_a_node_is_replaced_by_an_empty_one(spark: SparkSession, tmp_path: Path, on_rollback: str, fails: bool):
    """A bucket that is another one, at the same address, stops a query; or is read from its beginning, and equal."""
    options = {"connection": "", "onRollback": on_rollback, "failOnDataLoss": fails}
    with LiveNode(vbuckets=VBUCKETS) as node:
        options["connection"] = connection_to(node)
        with Bucket(node) as bucket:
            bucket.fill(FIRST)
        port = node.port
        query = Query(spark, options, tmp_path, Copy(on_rollback))
        query.until_rows(len(FIRST))
    keys = [f"new-{number}" for number in range(2000)]
    with query as running, LiveNode(vbuckets=VBUCKETS, port=port) as other, Bucket(other) as bucket:
        bucket.fill(keys)
        if not fails and on_rollback != FAIL:
            running.ends_equal(bucket.documents(keys))
            back = running.copy.rollbacks
            assert {row.vbucket for row in back} == set(range(VBUCKETS))
            assert {row.seqno for row in back} == {0}
            return
        said = running.until_failed()
    assert re.search(r"vbucket \d+ stands at seqno \d+, holds up to 0 \(.+ not in the failover log\)", said), said
    assert ("Set failOnDataLoss to false" if fails else "Set onRollback to rebuild or event") in said


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[LiveNode]:
    """An empty node."""
    with LiveNode(vbuckets=request.param) as started:
        yield started


def cut_mid_message(chaos: Chaos) -> None:
    """Cut connections in the middle of a message."""
    chaos.cut(name=OURS, after_messages=20, mid_message=True)


def cut_each_again(chaos: Chaos) -> None:
    """Cut every connection after some bytes, and those that come instead, for a while."""
    chaos.cut(name=OURS, after_bytes=5000, again=True)
    time.sleep(1.5)
    chaos.calm()


def end_streams(chaos: Chaos) -> None:
    """End streams for several reasons."""
    for reason in ("state_changed", "too_slow", "disconnected", "closed"):
        with suppress(NotFoundError):  # between two batches there is no stream
            chaos.end(reason=reason, name=OURS)
        time.sleep(0.1)


def refuse_streams(chaos: Chaos) -> None:
    """Refuse streams for a moment, and say once that the vbucket is elsewhere."""
    chaos.refuse("temporary_failure", count=10, name=OURS)
    chaos.refuse("not_my_vbucket", count=2, name=OURS)


def freeze_and_thaw(chaos: Chaos) -> None:
    """Let connections fall silent for a second."""
    chaos.freeze(name=OURS)
    time.sleep(1)
    chaos.thaw(name=OURS)


def slow_down(chaos: Chaos) -> None:
    """Let streams crawl for a while."""
    chaos.slow(20_000, name=OURS)
    time.sleep(1.5)
    chaos.calm()


CUTS = [cut_mid_message, cut_each_again]
OTHERS = [end_streams, refuse_streams, freeze_and_thaw, slow_down]
TROUBLES = [
    pytest.param(trouble, on_rollback, id=f"{trouble.__name__}-{on_rollback}")
    for trouble in (*CUTS, *OTHERS)
    for on_rollback in ((REBUILD, EVENT, FAIL) if trouble in CUTS else (FAIL,))
]


@pytest.mark.parametrize(("trouble", "on_rollback"), TROUBLES)
def test_a_bad_line_changes_nothing(
    spark: SparkSession, nodes: list[LiveNode], tmp_path: Path, trouble: Callable[[Chaos], None], on_rollback: str
):
    """Connections that break, end, refuse, fall silent or crawl cost time and no row: nothing is rolled back."""
    options = {"connection": connection_to(*nodes), "onRollback": on_rollback}
    limits = {"maxOffsetsPerTrigger": 300, "timeout": 3}
    with Bucket(*nodes) as bucket, Query(spark, {**options, **limits}, tmp_path, Copy(on_rollback)) as running:
        with Writers(*nodes) as writers:
            running.until_rows(100)
            for _ in range(2):
                for node in nodes:
                    trouble(node.chaos)
                writers.wait(50)
            writers.stop()
        running.ends_equal(bucket.documents({*FIRST, *writers.keys}))
        assert not running.copy.rollbacks
