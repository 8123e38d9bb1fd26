from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from headrace.history import State
from headrace.ids import VBucketId
from headrace.pipelines.servers import Vbuckets
from headrace.wire.catalogue import Delete, Get, Item, Set
from tests.examples.programs import EXAMPLES, WAIT_S, run_to_end
from tests.replication.nodes import dump, server_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.pipelines.servers import Server as Place
    from tests.processes import Server

VB = 2


def states(*servers: Place) -> list[State | None]:
    """What the vbucket is at each."""
    found = []
    for server in servers:
        with Vbuckets(server) as vbuckets:
            found.append(vbuckets.state(VB))
    return found


def test_it_has_one_owner_and_nothing_is_lost(start: Callable[[], Server], tmp_path: Path):
    """With writers going on, the vbucket gets another owner, which has every item and each acknowledged write."""
    processes = [start(), start()]
    one, two = (server_at(process.host, process.port) for process in processes)
    with one.connect() as items:
        for number in range(500):
            items.request(Set(key=b"item-%d" % number, value=b"%d" % number, vbucket=VBucketId(VB)))
        items.request(Delete(key=b"item-7", vbucket=VBucketId(VB)))
    code, lines = run_to_end(tmp_path, "move_vbucket", str(one), str(two), "--vbucket", str(VB), "--writers", "2")
    assert code == 0, lines
    assert states(one, two) == [State.DEAD, State.ACTIVE]
    found = dump(two, VB)
    assert {key for key, row in found.items() if row[0] == "mutation"} == {
        *(b"item-%d" % number for number in range(500) if number != 7),
        b"writer-0",
        b"writer-1",
    }
    told = [re.fullmatch(r"(writer-\d): (\d+) writes, \d+ refused meanwhile, none lost", line) for line in lines[-2:]]
    for each in told:
        assert each is not None, lines
        with two.connect() as items:
            item = items.request(Get(key=each[1].encode(), vbucket=VBucketId(VB)))
            assert isinstance(item, Item)
            assert item.value == each[2].encode()


def test_to_run_it_again_changes_nothing(start: Callable[[], Server], tmp_path: Path):
    """A vbucket that has moved stays where it is."""
    processes = [start(), start()]
    one, two = (server_at(process.host, process.port) for process in processes)
    with one.connect() as items:
        items.request(Set(key=b"item", value=b"1", vbucket=VBucketId(VB)))
    for _ in range(2):
        code, lines = run_to_end(tmp_path, "move_vbucket", str(one), str(two), "--vbucket", str(VB), "--writers", "1")
        assert code == 0, lines
        assert states(one, two) == [State.DEAD, State.ACTIVE]
        assert set(dump(two, VB)) == {b"item", b"writer-0"}


@pytest.mark.parametrize("vbucket", ["-1", "1024"])
def test_a_number_that_no_vbucket_has(vbucket: str, tmp_path: Path):
    """It is refused in one sentence, before anything is asked."""
    code, lines = run_to_end(tmp_path, "move_vbucket", f"--vbucket={vbucket}", "--writers", "1")
    assert code == 2
    assert lines[-1].endswith(f"--vbucket is a number from 0 to 1023, not {vbucket}")


def test_a_writer_whose_server_is_gone(start: Callable[[], Server], monkeypatch: pytest.MonkeyPatch):
    """It ends, and says what became of its writes; the one that was under way may be there or not."""
    process = start()
    server = server_at(process.host, process.port)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    writer = import_module("move_vbucket").Writer([server, server], VB, 0)
    writer.begin()
    process.restart()
    writer.join(WAIT_S)
    assert not writer.is_alive()
    writer.end()
    assert writer.check(server).startswith(f"writer-0: {writer.written} writes, none lost; then {server}: ")
