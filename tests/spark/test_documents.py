"""The newest version of each document, as a task finds it: from a file, from several snapshots, after a failover."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import ChangeOptions, ConnectionLostError
from headrace.client.ranges import Range, RangeReader
from headrace.client.scout import Scout
from headrace.spark import documents, reading
from headrace.spark.documents import read_documents
from headrace.spark.filters import Wanted
from headrace.spark.reading import read_share
from headrace.spark.sharing import Share
from headrace.testing import LiveNode
from tests.spark.faults.buckets import Bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

VBUCKETS = 4
COUNT = 400


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with some items, and some that are gone; what a task leaves for the next one is closed."""
    with LiveNode(vbuckets=VBUCKETS) as made:
        made.write(COUNT)
        made.flush()  # a failover goes back to what is on disk
        made.delete(*(f"key-{number}" for number in range(0, COUNT, 10)))
        yield made
        for reader in reading._idle.pop(options_of(made), []):
            reader.close()


def options_of(node: LiveNode) -> ChangeOptions:
    """How a task reads."""
    return ChangeOptions(connection=node.connection_string, give_up_s=20)


def planned(node: LiveNode) -> Share:
    """All that there is, as one task has it."""
    with Scout(options_of(node)) as scout:
        seen = scout.sightings()
        heads = {vb: log.latest.vbuuid for vb, log in scout.logs(seen).items()}
    return Share(tuple(Range(vbucket=vb, start=0, end=each.high, head=heads[vb]) for vb, each in seen.items()))


def found_by(node: LiveNode, share: Share) -> dict[str, bytes]:
    """What a task gives; nothing may come twice."""
    rows = [row for batch in read_documents(options_of(node), share, Wanted()) for row in batch.to_pylist()]
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


def truth_of(node: LiveNode) -> dict[str, bytes]:
    """What the node has."""
    with Bucket(node) as bucket:
        return {key: each.value for key, each in bucket.documents(f"key-{number}" for number in range(COUNT)).items()}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every file that a task makes from now on; it makes one for its second row already."""
    made: list[Any] = []
    make = tempfile.TemporaryFile

    def remember(*arguments: Any, **named: Any) -> Any:
        made.append(make(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", remember)
    monkeypatch.setattr(documents, "HELD_BYTES_MAX", 1)
    return made


def test_rows_that_are_too_many_wait_in_a_file(node: LiveNode, files: list[Any]):
    """What did not fit into memory is given all the same, once, and the file is gone then."""
    assert found_by(node, planned(node)) == truth_of(node)
    assert len(files) == 1
    assert files[0].closed


@pytest.mark.parametrize("spilled", [False, True])
def test_of_several_snapshots_the_newest_version_is_kept(node: LiveNode, spilled: bool, request: pytest.FixtureRequest):
    """A key that came by two snapshots is given once, as it was last, whether rows waited in memory or in a file."""
    files = request.getfixturevalue("files") if spilled else []
    with documents._Held() as held, RangeReader(options_of(node)) as reader:
        before = planned(node).ranges
        for rows in reader.read(before):
            held.add(rows)
        node.write({f"key-{number}": "newer" for number in range(1, 40)})
        ends = {each.vbucket: each.end for each in before}
        later = [
            Range(vbucket=each.vbucket, start=ends[each.vbucket], end=each.end, vbuuid=each.head, head=each.head)
            for each in planned(node).ranges
        ]
        for rows in reader.read(later):
            held.add(rows)
        rows = [row for batch in held.newest(frozenset({2})) for row in batch.to_pylist()]
    assert len(files) == int(spilled)
    live = {row["key"]: row["value"] for row in rows if row["event"] == "mutation"}
    assert len({row["key"] for row in rows}) == len(rows)
    elsewhere = {key: value for key, value in truth_of(node).items() if node.items.vbucket_of(key.encode()) != 2}
    assert live == elsewhere
    assert list(live.values()).count(b"newer") > 10


@pytest.mark.parametrize("lost", [0, 2, 10_000])
def test_a_vbucket_that_failed_over_since_the_plan_is_read_anew(node: LiveNode, lost: int):
    """What the new branch has is given, and nothing that was lost; all of it may be."""
    share = planned(node)
    back = node.chaos.failover(2, lost=lost)
    truth = truth_of(node)
    assert found_by(node, share) == truth
    assert bool(back[0].lost) == bool(lost)
    assert bool(back[0].now) == (lost < 10_000)


def test_changes_of_a_vbucket_that_failed_over_since_the_plan_are_refused(node: LiveNode):
    """A batch of changes says so, for the planned end is of another history; its connection serves the next task."""
    share = planned(node)
    node.chaos.failover(2)
    with pytest.raises(ConnectionLostError, match="vbucket 2 of bucket default failed over while it was read"):
        list(read_share(options_of(node), share, Wanted(), may_leave=False))
    assert len(reading._idle[options_of(node)]) == 1
    assert list(read_share(options_of(node), planned(node), Wanted(), may_leave=False))
    assert len(reading._idle[options_of(node)]) == 1


def test_a_vbucket_that_fails_over_each_time_is_told(node: LiveNode, monkeypatch: pytest.MonkeyPatch):
    """A task does not try for ever: it names the vbucket, and says what to do."""
    share = planned(node)
    anew = documents._anew

    def again(options: ChangeOptions, ranges: list[Range]) -> list[Range]:
        heads = {each.vbucket: each.head for each in share.ranges}
        return [
            Range(vbucket=each.vbucket, start=0, end=each.end, head=heads[each.vbucket])
            for each in anew(options, ranges)
        ]

    node.chaos.failover(2)
    monkeypatch.setattr(documents, "_anew", again)
    with pytest.raises(ConnectionLostError, match="vbucket 2 of bucket default failed over 5 times"):
        found_by(node, share)
