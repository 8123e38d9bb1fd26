"""The simulation itself: it is the same again, it reaches what it is for, and it can fail."""

import subprocess
import sys

import pytest

from headrace.history import FailoverLog, State
from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.node.commands import items
from headrace.node.vbucket import VBucket
from headrace.store.records import DELETED, LIVE, Record
from headrace.testing.sim import SeedError, run
from headrace.testing.sim.loop import SimLoop, StuckError
from headrace.testing.sim.model import BrokenError, Model, Place, Shown
from headrace.testing.sim.world import World
from headrace.wire.catalogue import Set

A, B = VbUuid(0xA), VbUuid(0xB)


def record(seqno: int, key: bytes, value: bytes, *, opcode: int = LIVE) -> Record:
    """A change of vbucket 0."""
    return Record(opcode, VBucketId(0), key, value, 0, Cas(seqno), Seqno(seqno), 1)


@pytest.fixture
def model() -> Model:
    """Branch a with three changes, and branch b that left it after the second and has one of its own."""
    model = Model()
    log = FailoverLog.new(A)
    model.branched(0, log)
    for seqno, key in ((1, b"x"), (2, b"y"), (3, b"x")):
        model.wrote(0, A, record(seqno, key, b"a%d" % seqno), "here")
    model.branched(0, log.branch(vbuuid=B, seqno=Seqno(2)))
    model.wrote(0, B, record(3, b"y", b"", opcode=DELETED), "there")
    return model


def test_the_same_seed_is_the_same_run():
    """Two runs of a seed tell the same, line by line."""
    assert list(run(7).lines) == list(run(7).lines)


def test_hashes_do_not_matter():
    """A run does not depend on how Python hashes: a seed found on one machine fails on another."""
    told = {
        subprocess.run(
            [sys.executable, "-m", "headrace.testing.sim", "--seed", "5", "--trace"],
            env={"PYTHONHASHSEED": str(hashes), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout.rpartition(b" seeds in ")[0]
        for hashes in (1, 2)
    }
    assert len(told) == 1


def test_seeds_reach_what_they_are_for():
    """Within some seeds, everything happens that the simulation is there for."""
    lines = "\n".join(line for seed in range(25) for line in run(seed).lines)
    for happens in (
        "crashes",
        "power and all",
        "has stopped",
        "cut off",
        "(takeover)",
        "has moved to",
        "the mediator of",
        "dies",
        "fails vb",
        "rolled back to",
        "rolls back: asked",
        "restarts",
        "the disk refuses writes",
        "flushes",
    ):
        assert happens in lines, happens


def test_a_failure_tells_its_seed(monkeypatch: pytest.MonkeyPatch):
    """What is broken is told with the seed, what happened before it, and the command to have it again."""
    newer = VBucket.newer

    def all_but_one(vb: VBucket, after: int) -> list[bytes] | None:
        found = newer(vb, after)
        return found[1:] if found and len(found) > 1 else found

    monkeypatch.setattr(VBucket, "newer", all_but_one)
    with pytest.raises(SeedError, match=r"again: python -m headrace\.testing\.sim --seed") as raised:
        _run_some()
    assert "starts, lost" in str(raised.value)
    assert "is not what it was at" in str(raised.value)


def _run_some() -> None:
    for seed in range(10):
        run(seed)


def test_a_rollback_takes_the_state_with_it():
    """A vbucket that is no owner any more is none after a rollback and a crash, though its disk had not heard of it."""
    world = World(1)
    node = world.nodes[0]

    async def story() -> State | None:
        node.start()
        node.serve(items.store, Set(vbucket=VBucketId(0), key=b"key", value=b"value"))
        await node.flusher.on_disk()
        node.flusher.stop_persistence()
        await node.set_vbucket(0, State.REPLICA)
        vb = node.vb(0)
        assert vb is not None
        assert await node.flusher.rolled_back(vb, 0) == 0
        node.crash(power=False)
        node.start()
        vb = node.vb(0)
        return None if vb is None else vb.state

    assert world.loop.run(story()) is State.REPLICA


def test_a_place_is_all_changes_up_to_it(model: Model):
    """A branch goes on from where it left the one before, and has nothing of what came after on that one."""
    state = model.state(0, Place(B, 3))
    assert state[b"x"].value == b"a1"
    assert not state[b"y"].is_live
    assert model.state(0, Place(A, 3))[b"x"].value == b"a3"
    assert set(model.state(0, Place(B, 1))) == {b"x"}


def test_what_is_in_a_history(model: Model):
    """What branch a had when b left it is in the history of b; what came later is not."""
    assert model.contains(0, Place(B, 3), Place(A, 2))
    assert model.contains(0, Place(B, 3), Place(B, 2))
    assert not model.contains(0, Place(B, 3), Place(A, 3))
    assert not model.contains(0, Place(A, 3), Place(B, 3))


def test_a_branch_gives_each_seqno_once(model: Model):
    """A seqno that is given again, or left out, is refused."""
    for seqno in (3, 5):
        with pytest.raises(BrokenError, match="each seqno is given once"):
            model.wrote(0, A, record(seqno, b"z", b""), "here")


def test_a_copy_is_compared_item_by_item(model: Model):
    """A missing item, one too many and one with another CAS are told; a purged tombstone may be missing."""
    state = model.state(0, Place(B, 3))
    model.require_copy(0, Place(B, 3), state, "here")
    without = {key: shown for key, shown in state.items() if key != b"y"}
    with pytest.raises(BrokenError, match="b'y' should be"):
        model.require_copy(0, Place(B, 3), without, "here")
    model.purged[0] = 3
    model.require_copy(0, Place(B, 3), without, "here")
    other: Shown = state[b"x"]._replace(cas=9)
    for wrong in ({**state, b"x": other}, {**state, b"z": other}, {b"y": state[b"y"]}):
        assert model.differences(0, Place(B, 3), wrong)


def test_a_loop_in_which_nothing_can_happen_says_so():
    """Where all wait for each other, the run ends instead of standing still."""
    loop = SimLoop()
    with pytest.raises(StuckError):
        loop.run_until_complete(loop.create_future())
    loop.close()
