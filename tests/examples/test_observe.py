from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import headrace.client
from headrace.client import KvConnection
from headrace.wire.catalogue import Flush
from tests.examples.programs import Program, run_to_end, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Server


def counted(program: Program, name: str) -> int:
    """How many changes of a kind the lines of each second tell of, together."""
    told = [line for line in program.lines if line.startswith("-- last second: ")]
    return sum(int(found) for line in told for found in re.findall(rf"{re.escape(name)} (\d+)", line))


@pytest.mark.parametrize("scheme", ["couchbase", "tap"])
def test_future_changes_are_shown_and_counted(scheme: str, node: Server, tmp_path: Path):
    """What was there before is not shown; each later change is a line, and counted by its prefix and event."""
    with KvConnection(node.host, node.port) as items:
        items.set(b"user::before", b"old")
        with Program(tmp_path, "observe", source_of(node, scheme)) as program:
            program.wait_for("following ")
            for number in range(20):
                items.set(b"user::%d" % number, b"Ann")
            items.set(b"order::1", b"12 bytes long")
            items.set(b"plain", b"")
            items.delete(b"user::7")
            program.wait_until(lambda: counted(program, "user deletion") == 1, "the deletion was not counted")
        lines = program.lines
    assert not any("before" in line for line in lines)
    assert [line.split() for line in lines if "order::1" in line] == [["mutation", "order::1", "13", "bytes"]]
    assert [line.split() for line in lines if "user::19" in line] == [["mutation", "user::19", "3", "bytes"]]
    (total,) = (line for line in lines if line.startswith("-- in all: "))
    assert "order mutation 1" in total
    assert "(no prefix) mutation 1" in total
    assert "user deletion 1" in total


def test_expirations_and_a_flush_are_seen(node: Server, tmp_path: Path):
    """An item that expires and items that a flush removes are changes, too."""
    with KvConnection(node.host, node.port) as items:
        items.set(b"user::1", b"Ann")
        with Program(tmp_path, "observe", source_of(node, "couchbase"), "--counts") as program:
            program.wait_for("following ")
            items.set(b"session::1", b"soon gone", expiry=1)
            program.wait_until(lambda: counted(program, "session expiration") == 1, "the expiration was not seen")
            items.request(Flush())
            program.wait_until(lambda: counted(program, "user deletion") == 1, "the flush was not seen")
        assert not any(line.startswith("mutation") for line in program.lines)


@pytest.mark.parametrize("scheme", ["couchbase", "tap"])
def test_without_a_server_there_is_one_sentence(scheme: str, tmp_path: Path):
    """Where nothing listens, the program ends at once and says so."""
    if scheme == "tap" and not hasattr(headrace.client, "TapReader"):
        pytest.skip("this headrace has no reader of TAP")
    code, lines = run_to_end(tmp_path, "observe", f"{scheme}://127.0.0.1:9")
    assert code == 1
    assert lines == ["observe.py: 127.0.0.1:9: cannot connect: Connection refused"]
