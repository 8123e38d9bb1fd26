"""Ranges of seqnos against a node of ours; the Spark tests read them from other servers too."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.client import ChangeOptions, ConnectionLostError
from headrace.client.options import OnRollback
from headrace.client.ranges import PurgedError, Range, RangeReader
from headrace.client.scout import Scout
from headrace.history import Position, SnapshotRange
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.testing import LiveNode

VBUCKETS = 4


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with some items."""
    with LiveNode(vbuckets=VBUCKETS) as made:
        made.write(200)
        yield made


@pytest.fixture
def scout(node: LiveNode) -> Iterator[Scout]:
    """Somebody who asks."""
    with Scout(ChangeOptions(connection=node.connection_string, give_up_s=5)) as made:
        yield made


@pytest.fixture
def reader(node: LiveNode) -> Iterator[RangeReader]:
    """Somebody who reads."""
    with RangeReader(ChangeOptions(connection=node.connection_string, give_up_s=20)) as made:
        yield made


def planned(scout: Scout, *, start: int = 0, less: int = 0) -> list[Range]:
    """All there is of each vbucket, but for some at its end."""
    seen = scout.sightings()
    heads = {vb: log.latest.vbuuid for vb, log in scout.logs(seen).items()}
    return [
        Range(vbucket=vb, start=start, end=each.high - less, vbuuid=heads[vb] if start else 0, head=heads[vb])
        for vb, each in seen.items()
    ]


def places(reader: RangeReader, ranges: list[Range], *, cut: bool = True) -> set[tuple[int, int]]:
    """Read ranges; where each change stands."""
    found: set[tuple[int, int]] = set()
    for rows in reader.read(ranges, cut=cut):
        some = set(zip(rows.column("vbucket").to_pylist(), rows.column("seqno").to_pylist(), strict=True))
        assert not some & found
        found |= some
    return found


def wanted(ranges: list[Range]) -> set[tuple[int, int]]:
    """Where each change of ranges stands, of a bucket without a gap."""
    return {(each.vbucket, seqno) for each in ranges for seqno in range(each.start + 1, each.end + 1)}


def test_ranges_are_cut(scout: Scout, reader: RangeReader):
    """Exactly what lies in the ranges comes, by one reader, one reading after the other."""
    for ranges in (planned(scout, less=3), planned(scout, start=7, less=5), planned(scout), planned(scout, less=3)):
        assert places(reader, ranges) == wanted(ranges)


def test_a_range_that_is_not_cut(node: LiveNode, scout: Scout, reader: RangeReader):
    """An item that is written all the time is there, past the end that was planned."""
    ranges = planned(scout)
    node.write({"key-3": "newer"})
    keys = [key for rows in reader.read(ranges, cut=False) for key in rows.column("key").to_pylist()]
    assert sorted(keys) == sorted(f"key-{n}" for n in range(200))
    node.write({"key-3": "newest"})
    keys = [key for rows in reader.read(ranges) for key in rows.column("key").to_pylist()]
    assert sorted(keys) == sorted(f"key-{n}" for n in range(200) if n != 3)


def test_a_branch_that_was_left(node: LiveNode, scout: Scout, reader: RangeReader):
    """Of a vbucket that failed over since the plan nothing comes, and the others are whole."""
    ranges = planned(scout)
    node.chaos.failover(2, lost=2)
    assert places(reader, ranges) == wanted([each for each in ranges if each.vbucket != 2])
    assert reader.left == {2}
    later = planned(scout)
    assert places(reader, later) == wanted(later)
    assert not reader.left


def test_a_start_off_the_history(node: LiveNode, scout: Scout, reader: RangeReader):
    """A start that the new branch does not have is left as well: who plans next goes back."""
    ranges = planned(scout, start=10)
    node.chaos.failover("all", lost=10_000)
    assert places(reader, ranges) == set()
    assert reader.left == set(range(VBUCKETS))


@pytest.mark.parametrize("on_rollback", [OnRollback.FAIL, OnRollback.REBUILD])
def test_purged_deletions(node: LiveNode, scout: Scout, on_rollback: OnRollback):
    """Where deletions are gone, it is told, or the vbucket is read anew after a rollback row."""
    node.delete(*(f"key-{n}" for n in range(100)))
    node.flush()
    ranges = [each for each in planned(scout, start=5) if each.vbucket == 1]
    node.chaos.purge()
    options = ChangeOptions(connection=node.connection_string, give_up_s=5, on_rollback=on_rollback)
    with RangeReader(options) as reader:
        if on_rollback is OnRollback.FAIL:
            with pytest.raises(PurgedError, match=r"vbucket 1 .* after seqno 5 cannot be had"):
                list(reader.read(ranges))
            return
        batches = list(reader.read(ranges))
    assert batches[0].column("event").to_pylist() == ["rollback"]
    assert batches[0].column("seqno").to_pylist() == [0]
    keys = {key for rows in batches[1:] for key in rows.column("key").to_pylist()}
    assert {f"key-{n}" for n in range(100, 200) if node.items.vbucket_of(f"key-{n}".encode()) == 1} <= keys


@pytest.mark.parametrize("on_rollback", [OnRollback.FAIL, OnRollback.REBUILD])
def test_purged_deletions_of_a_part(node: LiveNode, scout: Scout, on_rollback: OnRollback):
    """A part of a vbucket is never read anew: its rows would come twice. The next reading is whole."""
    node.delete(*(f"key-{n}" for n in range(100)))
    node.flush()
    ranges = [each for each in planned(scout, start=5) if each.vbucket == 1]
    node.chaos.purge()
    options = ChangeOptions(connection=node.connection_string, give_up_s=5, on_rollback=on_rollback)
    with RangeReader(options) as reader:
        with pytest.raises(PurgedError, match=r"vbucket 1 .* after seqno 5 cannot be had"):
            list(reader.read([replace(each, part=True) for each in ranges]))
        whole = [replace(each, start=0, vbuuid=0) for each in ranges]
        keys = {key for rows in reader.read(whole) for key in rows.column("key").to_pylist()}
    assert {f"key-{n}" for n in range(100, 200) if node.items.vbucket_of(f"key-{n}".encode()) == 1} <= keys


def test_an_end_that_never_comes(scout: Scout, node: LiveNode):
    """A range that cannot be whole is an error, after a while."""
    ranges = planned(scout, less=-5)
    with RangeReader(ChangeOptions(connection=node.connection_string, give_up_s=1)) as reader:
        with pytest.raises(ConnectionLostError, match="nothing came after seqno"):
            list(reader.read(ranges))
        assert places(reader, planned(scout)) == wanted(planned(scout))


def test_a_reading_that_was_left_in_the_middle(scout: Scout, reader: RangeReader):
    """The next one is whole all the same."""
    ranges = planned(scout)
    next(iter(reader.read(ranges)))
    assert places(reader, ranges) == wanted(ranges)


def test_cut_connections(node: LiveNode, scout: Scout, reader: RangeReader):
    """A connection that breaks in the middle, again and again, costs nothing."""
    ranges = planned(scout)
    node.chaos.cut(after_messages=40, mid_message=True, again=True)
    try:
        assert places(reader, ranges) == wanted(ranges)
    finally:
        node.chaos.calm()


def test_a_node_that_was_restarted(node: LiveNode, scout: Scout, reader: RangeReader):
    """A reader whose node went away between two readings, and one who asks, connect anew."""
    ranges = planned(scout)
    assert places(reader, ranges) == wanted(ranges)
    port = node.port
    node.stop()
    again = LiveNode(vbuckets=VBUCKETS, port=port)
    with again:
        again.write(50)
        assert sum(each.high for each in scout.await_sightings().values()) == 50
        later = planned(scout)
        assert places(reader, later) == wanted(later)


def test_what_servers_refuse(node: LiveNode, scout: Scout):
    """Positions that are off the history are told before anything is read, with what may be kept."""
    log = scout.logs([VBucketId(0)])[VBucketId(0)]
    high = scout.sightings()[VBucketId(0)].high

    def position(vbuuid: int, seqno: int) -> dict[VBucketId, Position]:
        at = Seqno(seqno)
        return {VBucketId(0): Position(vbuuid=VbUuid(vbuuid), seqno=at, snapshot=SnapshotRange.at(at))}

    assert scout.refusals(position(log.latest.vbuuid, high)) == {}
    assert scout.refusals(position(log.latest.vbuuid, high + 9)) == {0: high}
    assert scout.refusals(position(12345, 3)) == {0: 0}
    node.flush()
    assert scout.persisted({VBucketId(0): log.latest.vbuuid}) == {0: high}
    assert scout.persisted({VBucketId(0): VbUuid(12345)}) == {0: 0}
