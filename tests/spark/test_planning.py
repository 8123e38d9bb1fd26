"""What the driver decides, held against a model of a vbucket whose history branches."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.options import OnRollback
from headrace.history import Branch, FailoverLog, Reason
from headrace.ids import Seqno, VbUuid
from headrace.spark.offsets import Offset, Place, VBucketOffset
from headrace.spark.planning import DataLossError, Limits, RollbackFoundError, Seen, judge, plan
from headrace.spark.stream import ranges_between


def log(*entries: tuple[int, int]) -> FailoverLog:
    """A failover log, newest first."""
    return FailoverLog(entries=tuple(Branch(VbUuid(vbuuid), Seqno(seqno)) for vbuuid, seqno in entries))


def at(vbuuid: int, seqno: int, *places: tuple[int, int], head: int = 0) -> VBucketOffset:
    """Where a vbucket stands."""
    return VBucketOffset(vbuuid, seqno, head or vbuuid, tuple(Place(*place) for place in places))


OLD = log((7, 0))
BRANCHED = log((8, 10), (7, 0))


@pytest.mark.parametrize(
    ("here", "seen", "to", "because"),
    [
        (at(0, 0), Seen(5, OLD), 0, None),
        (at(7, 12), Seen(20, OLD), 12, None),
        (at(7, 12), Seen(9, OLD), 0, Reason.PAST_HIGH_SEQNO),
        (at(7, 12, (8, 9)), Seen(9, OLD), 8, Reason.PAST_HIGH_SEQNO),
        (at(7, 12, (5, 8), (9, 14)), Seen(30, BRANCHED), 5, Reason.PAST_BRANCH),
        (at(7, 9, (5, 8)), Seen(30, BRANCHED), 5, Reason.SNAPSHOT_CUT),
        (at(7, 9, (5, 8)), Seen(30, BRANCHED, proof=Place(9, 10)), 9, None),
        (at(7, 9, (5, 8)), Seen(30, BRANCHED, proof=Place(9, 11)), 5, Reason.SNAPSHOT_CUT),
        (at(7, 9, (9, 9)), Seen(30, BRANCHED), 9, None),
        (at(6, 9, (5, 8)), Seen(30, BRANCHED), 0, Reason.UNKNOWN_VBUUID),
        (at(7, 9, (5, 8)), Seen(30, OLD, refused=True), 0, Reason.PURGED),
        (at(7, 9, (5, 8), head=99), Seen(30, BRANCHED), 5, Reason.SNAPSHOT_CUT),
        (at(7, 9, head=8), Seen(30, BRANCHED), 9, None),
    ],
)
def test_verdicts(here: VBucketOffset, seen: Seen, to: int, because: Reason | None):
    """A position goes on, or goes back to the last place that the history still holds, with the reason."""
    found = judge(here, seen)
    assert (found.seqno, found.because) == (to, because)
    assert found.lost == (because in (Reason.UNKNOWN_VBUUID, Reason.PURGED))


def test_a_look_becomes_a_place():
    """What was read before the next look is whole up to there, if the history holds up to the look."""
    assert judge(at(7, 12, (5, 8)), Seen(20, OLD)).places == (Place(5, 8), Place(12, 20))
    assert judge(at(7, 12, (5, 8)), Seen(20, OLD, proof=Place(12, 13))).places == (Place(5, 8), Place(12, 13))


def test_a_cap_bounds_a_batch_and_nothing_else():
    """Up to where may be read says nothing of how far the vbucket had gone, nor that a position is off the history."""
    capped = Seen(20, OLD, cap=15)
    assert judge(at(7, 12), capped).places == (Place(12, 20),)
    assert plan(Offset("default", {0: at(7, 12)}), {0: capped}, Limits()).of(0).seqno == 15
    start = Offset("default", {0: at(7, 18)})
    assert plan(start, {0: capped}, Limits()) is start
    assert plan(start, {0: Seen(20, OLD, cap=0)}, Limits()) is start  # nobody can say what is on disk


def test_limits_are_shared_by_backlog():
    """Each vbucket gets a part of the limit by its backlog, and together they get all of it."""
    seen = {0: Seen(1000, OLD), 1: Seen(10, OLD), 2: Seen(90, OLD), 3: Seen(0, OLD)}
    end = plan(Offset("b"), seen, Limits(seqnos=110))
    taken = [end.of(vbucket).seqno for vbucket in range(4)]
    assert taken == [100, 1, 9, 0]
    assert plan(Offset("b"), seen, Limits(seqnos=5000)).of(0).seqno == 1000
    assert sum(plan(Offset("b"), seen, Limits(seqnos=1)).of(vb).seqno for vb in range(4)) == 1


def test_nothing_to_do_is_the_same_offset():
    """Without a change there is no batch."""
    start = Offset("b", {0: at(7, 12)})
    assert plan(start, {0: Seen(12, OLD)}, Limits()) is start
    assert plan(start, {}, Limits()) is start


def test_what_is_read_anew_is_read_whole():
    """A limit lets a rebuild in whole, and others wait for theirs with the position that they had."""
    start = Offset("b", {0: at(7, 50, (50, 50)), 1: at(7, 60, (60, 60)), 2: at(7, 5, (5, 5))})
    seen = {0: Seen(40, BRANCHED), 1: Seen(30, BRANCHED), 2: Seen(9, OLD)}
    end = plan(start, seen, Limits(seqnos=45))
    assert end.rollbacks == {0: (0, 7)}
    assert (end.of(0).seqno, end.of(1), end.of(2).seqno) == (40, start.of(1), 9)
    then = plan(end, {0: Seen(40, BRANCHED), 1: Seen(30, BRANCHED)}, Limits(seqnos=10))
    assert then.rollbacks == {1: (0, 7)}
    assert then.of(1).seqno == 30


def test_errors_name_the_way_out():
    """A query that is told to stop says of which vbuckets, from where, why, and what to do."""
    start = Offset("travel", {vb: at(7, 12) for vb in range(8)})
    with pytest.raises(RollbackFoundError) as found:
        plan(start, {vb: Seen(11, BRANCHED) for vb in range(8)}, Limits(on_rollback=OnRollback.FAIL))
    for wanted in ("bucket travel", "vbucket 0 stands at seqno 12", "and 3 more", "onRollback"):
        assert wanted in str(found.value)
    with pytest.raises(DataLossError) as lost:
        plan(start, {0: Seen(50, OLD, refused=True)}, Limits())
    for wanted in ("vbucket 0 stands at seqno 12", "purged", "failOnDataLoss"):
        assert wanted in str(lost.value)
    found_anew = plan(start, {0: Seen(50, OLD, refused=True)}, Limits(fail_on_data_loss=False))
    assert found_anew.rollbacks == {0: (0, 7)}


# -- a model


@dataclass
class Server:
    """A vbucket that keeps the newest version of each key, and may lose its last changes."""

    entries: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0)])
    branches: int = 1
    history: list[str] = field(default_factory=list)
    """The key of each seqno, from 1 on."""

    @property
    def high(self) -> int:
        return len(self.history)

    def write(self, key: str) -> None:
        self.history.append(key)

    def fail_over(self, keep: int) -> None:
        """Lose everything after a seqno; branches that began beyond it go, too."""
        del self.history[keep:]
        self.branches += 1
        newest = self.branches
        self.entries = [(newest, keep), *(entry for entry in self.entries if entry[1] <= keep)]

    def newest(self) -> dict[str, int]:
        return {key: seqno for seqno, key in enumerate(self.history, 1)}

    def seen(self, proof: Place | None) -> Seen:
        return Seen(self.high, log(*self.entries[:25]), proof=proof)

    def read(self, start: int, end: int) -> list[tuple[int, str]]:
        """What a stream gives that is cut at its end: of each key the newest version, if that lies in the range."""
        return sorted((seqno, key) for key, seqno in self.newest().items() if start < seqno <= end)


class Copy:
    """What a sink keeps: rows, of which a rollback drops those after its seqno."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []

    def apply(self, back: int | None, rows: list[tuple[int, str]]) -> None:
        if back is not None:
            self.rows = [row for row in self.rows if row[0] <= back]
        assert not set(self.rows) & set(rows), "a change came twice"
        self.rows += rows

    def newest(self) -> dict[str, int]:
        return {key: seqno for seqno, key in sorted(self.rows)}


class Query:
    """A query that plans and reads, with a server that goes on meanwhile."""

    def __init__(self, chance: random.Random, limits: Limits, *, remembers: bool) -> None:
        self.server, self.copy = Server(), Copy()
        self._chance, self._limits, self._remembers = chance, limits, remembers
        self._offset = Offset("b")
        self._proof: tuple[int, Place] | None = None

    def trouble(self) -> None:
        """Write a little, or fail over."""
        for _ in range(self._chance.randrange(4)):
            if self._chance.random() < 0.8:
                self.server.write(self._chance.choice("abcdef"))
            elif self.server.high:
                self.server.fail_over(self._chance.randrange(max(self.server.high - 5, 0), self.server.high + 1))

    def _look(self) -> Seen:
        here, proof = self._offset.of(0), self._proof
        at_hand = self._remembers and proof is not None and (proof[0], proof[1].seqno) == (here.head, here.seqno)
        seen = self.server.seen(proof[1] if at_hand and proof is not None else None)
        if here.seqno and here.head == seen.log.latest.vbuuid and here.seqno <= seen.high:
            self._proof = here.head, Place(here.seqno, seen.high)
        return seen

    def turn(self, *, calm: bool) -> bool:
        """Plan and read one batch; False when there is nothing to do."""
        end = plan(self._offset, {0: self._look()}, self._limits)
        if end is self._offset:
            return False
        end = Offset.from_json(end.to_json())
        if not calm:
            self.trouble()
        rows = []
        for each in ranges_between(self._offset, end):
            if each.head == self.server.entries[0][0]:
                rows += self.server.read(each.start, each.end)
        back = end.rollbacks.get(0)
        self.copy.apply(back.seqno if back else None, rows)
        self._offset = end
        return True


@settings(max_examples=400)
@given(st.integers(0, 2**32), st.sampled_from([OnRollback.REBUILD, OnRollback.EVENT]), st.booleans(), st.booleans())
def test_a_copy_ends_equal(seed: int, on_rollback: OnRollback, limited: bool, remembers: bool):
    """However writes, failovers, looks, readings and restarts mix, a copy ends equal to the vbucket."""
    chance = random.Random(seed)
    limits = Limits(on_rollback=on_rollback, seqnos=3 if limited else None)
    query = Query(chance, limits, remembers=remembers)
    for _ in range(chance.randrange(30)):
        query.trouble()
        query.turn(calm=False)
    turns = 0
    while query.turn(calm=True):
        turns += 1
        assert turns < 200, "it never ends"
    assert query.copy.newest() == query.server.newest()


def test_a_failover_is_never_loss():
    """A second failover to before the first takes the branch of the position out of the log: a rollback, no loss."""
    server = Server()
    for key in "abcdefghij":
        server.write(key)
    server.fail_over(8)
    server.write("k")
    end = plan(Offset("b"), {0: server.seen(None)}, Limits())
    assert (end.of(0).vbuuid, end.of(0).root) == (2, (1, 8))
    server.fail_over(5)
    assert [vbuuid for vbuuid, _ in server.entries] == [3, 1]
    again = Offset.from_json(end.to_json())
    assert plan(again, {0: server.seen(None)}, Limits()).rollbacks == {0: (0, 1)}
