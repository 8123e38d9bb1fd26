from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client import KvConnection
from headrace.wire.catalogue import Flush
from tests.examples.conftest import VBUCKETS
from tests.examples.programs import Program, run_to_end
from tests.replication.nodes import dump, eventually, is_equal, server_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Server


def same(one: Server, two: Server) -> bool:
    """Whether both nodes have the same items and tombstones, with all that belongs to them."""
    source, target = server_at(one.host, one.port), server_at(two.host, two.port)
    return is_equal(source, target, range(VBUCKETS)) and all(
        dump(source, vb) == dump(target, vb) for vb in range(VBUCKETS)
    )


def expired(server: Server) -> bool:
    """Whether an item has gone by itself."""
    return any(
        key == b"session::1" and row[0] != "mutation"
        for vb in range(VBUCKETS)
        for key, row in dump(server_at(server.host, server.port), vb).items()
    )


def test_the_copy_follows(start: Callable[[], Server], tmp_path: Path):
    """What was there, what changes, what is removed, what expires and a flush: the copy has it, item by item."""
    one, two = start(), start()
    addresses = [f"{server.host}:{server.port}" for server in (one, two)]
    with KvConnection(one.host, one.port) as items:
        for number in range(300):
            items.set(b"user::%d" % number, b"number %d" % number, flags=number)
        with Program(tmp_path, "replicate", *addresses) as program:
            program.wait_for("caught up")
            for number in range(0, 300, 3):
                items.delete(b"user::%d" % number)
            items.set(b"session::1", b"soon gone", expiry=1)
            eventually(lambda: expired(one), "the item did not expire")
            program.wait_until(lambda: same(one, two), "the copy is not equal")
            items.request(Flush())
            items.set(b"after", b"the flush")
            program.wait_until(lambda: same(one, two), "the copy is not equal after a flush")
        assert program.lines[-1].startswith("carried ")
    assert len(live(two)) == 1


def live(server: Server) -> set[bytes]:
    """The keys of all items that are there."""
    at = server_at(server.host, server.port)
    return {key for vb in range(VBUCKETS) for key, row in dump(at, vb).items() if row[0] == "mutation"}


def test_a_killed_copier_goes_on(start: Callable[[], Server], tmp_path: Path):
    """After the program was killed, another run brings what is missing, and no more is needed than to start it."""
    one, two = start(), start()
    addresses = [f"{server.host}:{server.port}" for server in (one, two)]
    with KvConnection(one.host, one.port) as items:
        items.set(b"first", b"1")
        with Program(tmp_path, "replicate", *addresses) as program:
            program.wait_for("caught up")
            program.kill()
        items.set(b"second", b"2")
        items.delete(b"first")
    code, lines = run_to_end(tmp_path, "replicate", *addresses, "--once")
    assert code == 0, lines
    assert same(one, two)
    assert live(two) == {b"second"}


def test_what_would_be_lost_is_refused(start: Callable[[], Server], tmp_path: Path):
    """A second server with changes of its own is not overwritten; one sentence says why."""
    one, two = start(), start()
    with KvConnection(two.host, two.port) as items:
        items.set(b"mine", b"1")
    code, lines = run_to_end(tmp_path, "replicate", *(f"{each.host}:{each.port}" for each in (one, two)))
    assert code == 1
    assert len(lines) == 1
    assert "changes of its own" in lines[0]
    assert live(two) == {b"mine"}
