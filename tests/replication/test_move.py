"""Moving a vbucket between two nodes: one owner at every moment, and no promised write is lost."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import ConnectionLostError
from headrace.history import State
from headrace.ids import Seqno, VBucketId, VbUuid
from headrace.node import Node
from headrace.pipelines import move as moving
from headrace.pipelines.failover import promote
from headrace.pipelines.lines import Line
from headrace.pipelines.move import Move, NotMovedError, Step, UnresolvedError
from headrace.pipelines.replicate import RefusedError, add_streams
from headrace.pipelines.servers import Server, Vbuckets
from headrace.wire import decode, encode
from headrace.wire.catalogue import FailoverEntry, FailoverLog, Mutation, SnapshotMarker, StreamRequest
from tests.replication.nodes import copy_once, dump, eventually, replicating, server_at
from tests.replication.writers import Writer, check, stop_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VB = 1


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """Two nodes that know nothing of each other."""
    with Node(vbuckets=2) as one, Node(vbuckets=2) as two:
        yield server_at(one.host, one.port), server_at(two.host, two.port)


def states(source: Server, target: Server) -> tuple[State | None, State | None]:
    """What the vbucket is at both."""
    with Vbuckets(source) as one, Vbuckets(target) as two:
        return one.state(VB), two.state(VB)


def fill(server: Server, count: int = 50, prefix: bytes = b"item") -> None:
    """Store some items; about half of them belong to the vbucket."""
    with server.connect() as node:
        for number in range(count):
            node.set(b"%s%d" % (prefix, number), b"%d" % number)


def never() -> bool:
    """Nobody stops it."""
    return False


def test_moved(pair: tuple[Server, Server]):
    """The target has every item and owns them on the same branch; the source is dead, and refuses writes."""
    source, target = pair
    fill(source)
    before = dump(source, VB)
    told: list[Step] = []
    moved = Move(source, target, VB, tell=lambda step, _: told.append(step)).run(never)
    assert states(source, target) == (State.DEAD, State.ACTIVE)
    assert dump(target, VB) == before
    assert (moved.already, moved.attempts, moved.items) == (False, 1, len(before))
    assert told == [Step.PREPARED, Step.COPYING, Step.PENDING, Step.ACTIVE, Step.MOVED]
    with Line.to_producer(source, "log") as one, Line.to_producer(target, "log") as two:
        assert one.failover_log(VB) == two.failover_log(VB)


def test_moved_again(pair: tuple[Server, Server]):
    """To run it again does nothing; to run it the other way gives it back."""
    source, target = pair
    fill(source)
    Move(source, target, VB).run(never)
    assert Move(source, target, VB).run(never).already
    Move(target, source, VB).run(never)
    assert states(source, target) == (State.ACTIVE, State.DEAD)


def test_empty(pair: tuple[Server, Server]):
    """A vbucket that never had an item moves, too."""
    source, target = pair
    Move(source, target, VB).run(never)
    assert states(source, target) == (State.DEAD, State.ACTIVE)


def test_a_replica_takes_over(pair: tuple[Server, Server]):
    """A replica that has nearly all needs the rest only."""
    source, target = pair
    fill(source, 100)
    copy_once(source, target)
    fill(source, 6, b"more")
    moved = Move(source, target, VB).run(never)
    assert moved.items <= 6
    assert states(source, target) == (State.DEAD, State.ACTIVE)


@pytest.mark.slow
def test_with_writes_going_on(pair: tuple[Server, Server]):
    """To and fro under load: what was promised is there, and no seqno was given twice."""
    source, target = pair
    writers = [Writer(pair, VB, f"writer{number}") for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for turn in range(6):
            seen = [len(writer.promises) for writer in writers]
            ends = pair if turn % 2 == 0 else (target, source)
            Move(*ends, VB).run(never)
            eventually(
                lambda seen=seen: all(len(w.promises) > n + 3 for w, n in zip(writers, seen, strict=True)),  # type: ignore[misc]
                "the writers go on",
            )
    finally:
        stop_all(writers)
    assert states(source, target) == (State.ACTIVE, State.DEAD)
    check(writers, source, VB)
    assert {promise.server for writer in writers for promise in writer.promises} == {str(source), str(target)}


@pytest.mark.slow
def test_two_runs_at_once(pair: tuple[Server, Server]):
    """Two runs that begin together may hinder each other, and do no harm; one more run ends it."""
    source, target = pair
    writers = [Writer(pair, VB, f"writer{number}") for number in range(2)]
    with Vbuckets(target) as two:
        two.set_state(VB, State.REPLICA)
    for writer in writers:
        writer.start()

    def run() -> None:
        with suppress(RefusedError, NotMovedError, UnresolvedError):
            Move(source, target, VB).run(never)

    try:
        runs = [Thread(target=run) for _ in range(2)]
        for each in runs:
            each.start()
        for each in runs:
            each.join(60)
        assert not any(each.is_alive() for each in runs)
        Move(source, target, VB).run(never)
        seen = [len(writer.promises) for writer in writers]
        eventually(lambda: all(len(w.promises) > n for w, n in zip(writers, seen, strict=True)), "the writers go on")
    finally:
        stop_all(writers)
    assert states(source, target) == (State.DEAD, State.ACTIVE)
    check(writers, target, VB)


# -- what is refused


def test_two_owners_are_not_joined(pair: tuple[Server, Server]):
    """A target with changes of its own keeps them, unless it is forced."""
    source, target = pair
    fill(source)
    fill(target, 10, b"other")
    with pytest.raises(RefusedError, match="changes of its own"):
        Move(source, target, VB).run(never)
    assert states(source, target) == (State.ACTIVE, State.ACTIVE)
    Move(source, target, VB, force=True).run(never)
    assert states(source, target) == (State.DEAD, State.ACTIVE)
    assert not [key for key in dump(target, VB) if key.startswith(b"other")]


def test_who_owns_nothing_gives_nothing(pair: tuple[Server, Server]):
    """From one that is no owner to one that is none: refused, and nothing becomes active."""
    source, target = pair
    for server, state in ((source, State.REPLICA), (target, State.REPLICA)):
        with Vbuckets(server) as vbuckets:
            vbuckets.set_state(VB, state)
    with pytest.raises(RefusedError, match="neither owns"):
        Move(source, target, VB).run(never)
    assert states(source, target) == (State.REPLICA, State.REPLICA)


def test_an_owner_that_went_on_is_not_replaced(pair: tuple[Server, Server]):
    """Two dead ones are left alone where the target had it after the source."""
    source, target = pair
    fill(source)
    Move(source, target, VB).run(never)
    fill(target)
    with Vbuckets(target) as two:
        two.set_state(VB, State.DEAD)
    with pytest.raises(RefusedError, match="neither owns"):
        Move(source, target, VB).run(never)


def test_to_itself(pair: tuple[Server, Server]):
    """A vbucket does not move to where it is."""
    with pytest.raises(RefusedError, match="itself"):
        Move(pair[0], pair[0], VB).run(never)


def test_to_itself_by_another_name(pair: tuple[Server, Server]):
    """Nor to where it was, under whatever name: nothing that was given up comes back."""
    source, target = pair
    Move(source, target, VB).run(never)
    with pytest.raises(RefusedError, match="itself"):
        Move(source, server_at("localhost", source.address.port), VB).run(never)
    assert states(source, target) == (State.DEAD, State.ACTIVE)


def test_other_numbers_of_vbuckets(pair: tuple[Server, Server]):
    """A key would have another vbucket there."""
    with Node(vbuckets=4) as other, pytest.raises(RefusedError, match="another vbucket"):
        Move(pair[0], server_at(other.host, other.port), VB).run(never)


def test_another_copies_it(pair: tuple[Server, Server]):
    """While a replication feeds the vbucket, a move says so and changes nothing."""
    source, target = pair
    fill(source)
    with replicating(source, target) as job:
        eventually(lambda: job.progress.caught_up, "the copy catches up")
        with pytest.raises(RefusedError, match="another connection copies"):
            Move(source, target, VB).run(never)
        assert states(source, target) == (State.ACTIVE, State.REPLICA)


def test_another_moves_it(pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch):
    """Two runs for one vbucket at a time are one too many."""
    monkeypatch.setattr(moving, "LEFTOVER_S", 0.2)
    source, target = pair
    with Line.to_consumer(target, f"headrace-move:{VB}"), pytest.raises(RefusedError, match="by another"):
        Move(source, target, VB).run(never)


# -- what was left half done


@pytest.mark.parametrize(("at_target", "force"), [(State.PENDING, False), (State.DEAD, True)])
def test_left_between_two_owners(pair: tuple[Server, Server], at_target: State, force: bool):
    """A run that was killed after the source gave up is resolved by the next one, which then moves."""
    source, target = pair
    fill(source)
    copy_once(source, target)
    with Vbuckets(source) as one, Vbuckets(target) as two:
        one.set_state(VB, State.DEAD)
        two.set_state(VB, at_target)
    told: list[Step] = []
    Move(source, target, VB, force=force, tell=lambda step, _: told.append(step)).run(never)
    assert Step.RESOLVED in told
    assert states(source, target) == (State.DEAD, State.ACTIVE)


def test_a_finished_move_is_not_done_again(pair: tuple[Server, Server]):
    """Where the vbucket went on to a third server, the first command run again makes no second owner."""
    source, target = pair
    fill(source)
    with Node(vbuckets=2) as node:
        third = server_at(node.host, node.port)
        Move(source, target, VB).run(never)
        Move(target, third, VB).run(never)
        with pytest.raises(RefusedError, match="if no third server owns it, --force"):
            Move(source, target, VB).run(never)
        assert states(source, target) == (State.DEAD, State.DEAD)
        assert states(third, third)[0] is State.ACTIVE


class CutMove(Move):
    """A move whose lines break when the producer says a certain word."""

    def __init__(self, *args: object, word: State, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.word = word
        self.cuts = 0

    def _take_over(self, stop: Callable[[], bool]) -> str:
        tell = self._tell

        def listen(step: Step, text: str) -> None:
            tell(step, text)
            wanted = Step.ACTIVE if self.word is State.ACTIVE else Step.PENDING
            if step is wanted and not self.cuts:
                self.cuts += 1
                raise ConnectionLostError("a test cuts the line")

        self._tell = listen
        try:
            return super()._take_over(stop)
        finally:
            self._tell = tell


@pytest.mark.parametrize("word", [State.PENDING, State.ACTIVE])
def test_cut_and_tried_again(pair: tuple[Server, Server], word: State):
    """A line that breaks at any step is resolved, and the next attempt moves."""
    source, target = pair
    fill(source)
    move = CutMove(source, target, VB, word=word)
    moved = move.run(never)
    assert (move.cuts, moved.attempts) == (1, 2)
    assert states(source, target) == (State.DEAD, State.ACTIVE)
    assert len(dump(target, VB)) == len(dump(source, VB))


@pytest.mark.parametrize("word", [State.PENDING, State.ACTIVE])
def test_interrupted(pair: tuple[Server, Server], word: State):
    """Who is interrupted leaves the source as the owner."""
    source, target = pair
    fill(source)
    move = CutMove(source, target, VB, word=word)
    with pytest.raises(NotMovedError, match="owns it"):
        move.run(lambda: move.cuts > 0)
    eventually(lambda: states(source, target)[0] is State.ACTIVE, "the source owns it")
    assert states(source, target)[1] in {State.REPLICA, State.DEAD}


def test_a_target_that_is_away(monkeypatch: pytest.MonkeyPatch):
    """Where nobody knows who owns it, that is what is told; when both answer again, it is found out."""
    monkeypatch.setattr(moving, "RESOLVE_S", 0.5)
    with Node(vbuckets=2) as one:
        source = server_at(one.host, one.port)
        fill(source)
        with Node(vbuckets=2) as two:
            target = server_at(two.host, two.port)

            class Away(CutMove):
                def _resolve(self) -> bool:
                    two.stop()
                    return super()._resolve()

            with pytest.raises(UnresolvedError, match="nobody knows"):
                Away(source, target, VB, word=State.ACTIVE).run(never)
        with Vbuckets(source) as only:
            assert only.state(VB) is State.DEAD, "the target may own it"


def test_promoted(pair: tuple[Server, Server]):
    """A promoted replica is on a new branch, from the end of what it has."""
    source, target = pair
    fill(source)
    copy_once(source, target)
    high = max(item[3] for item in dump(source, VB).values())
    promotion = promote(target, VB)
    assert (promotion.was, promotion.seqno, promotion.dropped) == (State.REPLICA, high, 0)
    with Line.to_producer(target, "log") as line:
        log = line.failover_log(VB)
    assert (log.latest.vbuuid, log.latest.seqno) == (promotion.vbuuid, high)
    with pytest.raises(RefusedError, match="owns it already"):
        promote(target, VB)
    assert promote(target, VB, force=True).vbuuid == promotion.vbuuid
    with pytest.raises(RefusedError, match="no vbucket 7"):
        promote(target, 7)


def test_what_was_given_up_is_not_promoted(pair: tuple[Server, Server]):
    """A dead vbucket may have another owner."""
    source, target = pair
    Move(source, target, VB).run(never)
    with pytest.raises(RefusedError, match="gave it up"):
        promote(source, VB)


def test_an_unfinished_copy_is_promoted(pair: tuple[Server, Server]):
    """What came of a snapshot that was never finished goes, and is told."""
    _, target = pair
    with Vbuckets(target) as vbuckets:
        vbuckets.set_state(VB, State.REPLICA)
        with Line.to_consumer(target, "half") as line:
            line.send(add_streams([VB]))
            while not isinstance(message := decode(line.next_frame()), StreamRequest):
                pass
            log = (FailoverEntry(VbUuid(7), Seqno(0)),)
            line.send(encode(FailoverLog(opcode=0x53, opaque=message.opaque, entries=log)))
            fields: dict[str, Any] = {"vbucket": VBucketId(VB), "opaque": message.opaque}
            line.send(encode(SnapshotMarker(start_seqno=Seqno(0), end_seqno=Seqno(9), flags=2, **fields)))
            line.send(encode(Mutation(by_seqno=Seqno(5), rev_seqno=1, nru=0, key=b"half", **fields)))
            eventually(lambda: vbuckets.seqno(VB, State.REPLICA) == 5, "the item comes")
        promotion = promote(target, VB)
    assert (promotion.seqno, promotion.dropped, promotion.is_first_copy_lost) == (0, 5, True)
    assert dump(target, VB) == {}
