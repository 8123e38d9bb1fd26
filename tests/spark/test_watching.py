"""What the driver asks of servers between two batches, against a node of ours."""

from collections.abc import Iterator

import pytest

from headrace.client import ChangeOptions, ConnectionLostError, OptionError
from headrace.client.options import OnRollback
from headrace.spark import watching
from headrace.spark.offsets import Offset
from headrace.spark.planning import Limits, plan
from headrace.spark.watching import Watch
from headrace.testing import LiveNode

EVENT = Limits(on_rollback=OnRollback.EVENT)


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with some items."""
    with LiveNode(vbuckets=4) as made:
        made.write(100)
        yield made


@pytest.fixture
def watch(node: LiveNode) -> Iterator[Watch]:
    """A driver's view of it."""
    made = Watch(ChangeOptions(connection=node.connection_string, give_up_s=3), None)
    yield made
    made.close()


def caught_up(watch: Watch) -> Offset:
    """Plan everything that there is, and look once more."""
    offset = plan(Offset("default"), watch.seen(Offset("default"), None), EVENT)
    assert plan(offset, watch.seen(offset, None), EVENT) is offset
    return offset


def test_a_quiet_bucket_is_asked_little(watch: Watch, monkeypatch: pytest.MonkeyPatch):
    """Once a position is known to be whole, its log is asked for now and then only."""
    offset = caught_up(watch)
    assert watch.seen(offset, None) == {}
    monkeypatch.setattr(watching, "SWEEP_S", -1.0)
    assert set(watch.seen(offset, None)) == {0, 1, 2, 3}


def test_a_failover_to_the_same_seqno(node: LiveNode, watch: Watch, monkeypatch: pytest.MonkeyPatch):
    """A vbucket that lost a change and got another in its place is found, though its seqno is what it was."""
    offset = caught_up(watch)
    node.chaos.failover(1, lost=1)
    key = next(f"new-{n}" for n in range(100) if node.items.vbucket_of(f"new-{n}".encode()) == 1)
    node.write({key: "x"})
    assert watch.look()[1].high == offset.of(1).seqno  # type: ignore[index]
    monkeypatch.setattr(watching, "SWEEP_S", -1.0)
    end = plan(offset, watch.seen(offset, None), EVENT)
    assert set(end.rollbacks) == {1}
    assert end.rollbacks[1].seqno < offset.of(1).seqno == end.of(1).seqno


def test_a_failover_that_lost_nothing(node: LiveNode, watch: Watch, monkeypatch: pytest.MonkeyPatch):
    """Where the vbucket was quiet, nothing is rolled back, and the next change is read on the new branch."""
    offset = caught_up(watch)
    node.chaos.failover("all", lost=0)
    monkeypatch.setattr(watching, "SWEEP_S", -1.0)
    assert plan(offset, watch.seen(offset, None), EVENT) is offset
    node.write(100, prefix="more-")
    end = plan(offset, watch.seen(offset, None), EVENT)
    assert not end.rollbacks
    assert all(end.of(vb).seqno > offset.of(vb).seqno and end.of(vb).head != offset.of(vb).head for vb in range(4))


def test_purged_deletions_are_found(node: LiveNode, watch: Watch):
    """A position that the server would not go on from is known before a batch is planned."""
    offset = caught_up(watch)
    node.delete(*(f"key-{n}" for n in range(50)))
    node.flush()
    node.chaos.purge()
    again = Watch(ChangeOptions(connection=node.connection_string, give_up_s=3), None)
    try:
        assert any(each.refused for each in again.seen(offset, None).values())
    finally:
        again.close()


def test_caps_and_mitigation(node: LiveNode, watch: Watch):
    """An end is not planned past what was there at a moment, nor past what is on disk."""
    caps = {vb: each.high for vb, each in watch.look().items()}
    node.write(100, prefix="later-")
    assert {vb: each.end for vb, each in watch.seen(Offset("default"), caps).items()} == caps
    node.flush()
    node.chaos.pause()
    careful = Watch(ChangeOptions(connection=node.connection_string), None, mitigated=True)
    try:
        on_disk = {vb: each.end for vb, each in careful.seen(Offset("default"), None).items()}
        node.write(100, prefix="unsafe-")
        assert {vb: each.end for vb, each in careful.seen(Offset("default"), None).items()} == on_disk
    finally:
        careful.close()
        node.chaos.resume()


def test_patience(node: LiveNode):
    """A new query hears at once that nobody is there; one that goes on waits for as long as it may."""
    connection = node.connection_string
    node.stop()
    gone = Watch(ChangeOptions(connection=connection, give_up_s=1), None)
    for patient in (False, True):
        with pytest.raises(ConnectionLostError, match="cannot connect"):
            gone.look(patient=patient)


def test_a_vbucket_that_is_none(node: LiveNode):
    """An option that names one says how many there are."""
    wrong = Watch(ChangeOptions(connection=node.connection_string), (2, 9))
    with pytest.raises(OptionError, match="no vbucket 9, bucket default has 0 to 3"):
        wrong.look()
    wrong.close()


def test_the_size_of_changes(watch: Watch):
    """The mean of a sample is what changes have on the wire, near enough."""
    start = Offset("default")
    assert 60 < watch.mean_bytes(start, watch.seen(start, None)) < 90
    offset = caught_up(watch)
    assert watch.mean_bytes(offset, {}) == 0.0
