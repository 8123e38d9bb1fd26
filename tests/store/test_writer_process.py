from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from headrace.ids import VBucketId
from headrace.store import DictStore, FormatError, LmdbReader, LmdbWriter, StoreError, WriterProcess, framing, layout
from tests.store.builders import batch, changes, dead, live
from tests.store.consistency import assert_consistent, assert_same
from tests.store.test_lmdb_store import rewrite_meta

if TYPE_CHECKING:
    import socket
    from pathlib import Path

VB = VBucketId(2)
KILLS = 12


def pid_of(writer: WriterProcess) -> int:
    """The child's id; a child must be there."""
    assert writer.pid is not None
    return writer.pid


def test_calls_and_answers(tmp_path: Path) -> None:
    """Every call of the contract goes to the child, and its answer comes back."""
    writer = WriterProcess(tmp_path)
    reader = LmdbReader(tmp_path)
    writer.write([changes(VB, [dead(VB, 1, b"a"), live(VB, 2, b"b")], 2), changes(3, [], 0)])
    writer.compact()
    assert writer.purge(deleted_before=2000, limit=5) == {VB: 1}
    assert writer.purge(VB, deleted_before=2000, limit=5) == {}
    writer.delete_vbucket(VBucketId(3))
    with reader.snapshot() as snapshot:
        assert list(snapshot.vbuckets()) == [VB]
        assert_consistent(snapshot)
    reader.close()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.compact()


def test_errors_come_back(tmp_path: Path) -> None:
    """The child's errors are raised here with their text and their class, and the child goes on."""
    writer = WriterProcess(tmp_path)
    pid = writer.pid
    with pytest.raises(StoreError, match="no record"):
        writer.write([changes(VB, [b"x", live(VB, 1, b"a")], 1)])
    writer.write([changes(VB, [live(VB, 1, b"a")], 1)])
    assert writer.pid == pid
    writer.close()
    rewrite_meta(tmp_path, layout.META_FORMAT, b"7")
    with pytest.raises(FormatError, match="has format 7"):
        WriterProcess(tmp_path)
    with pytest.raises(StoreError, match="not a directory"):
        WriterProcess(tmp_path / layout.DATA_FILE)


def test_a_large_batch_comes_through(tmp_path: Path) -> None:
    """Records of many sizes, more than one system call takes, arrive as they were."""
    random_sizes = random.Random(5)
    values = [random_sizes.randbytes(random_sizes.choice([0, 1, 100, 5000, 70_000])) for _ in range(3000)]
    values.append(random_sizes.randbytes(20 << 20))
    records = [live(VB, seqno, b"key-%d" % seqno, value) for seqno, value in enumerate(values, 1)]
    writer = WriterProcess(tmp_path)
    writer.write([changes(VB, records, len(records)), batch(9, 1, 1)])
    writer.close()
    reader = LmdbReader(tmp_path)
    assert list(reader.latest.records(VB)) == records
    reader.close()


def test_signals_to_end_are_for_the_parent(tmp_path: Path) -> None:
    """A Ctrl-C in a terminal or a SIGTERM to the group does not stop the child."""
    writer = WriterProcess(tmp_path)
    pid = pid_of(writer)
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, one)
    writer.write([batch(VB, 1, 3)])
    assert writer.pid == pid
    writer.close()


def test_the_death_of_the_child_is_an_error_and_the_next_call_has_a_new_one(tmp_path: Path) -> None:
    """A write that a dead child did not do says so; the store is whole and the next write goes to a new child."""
    writer = WriterProcess(tmp_path)
    writer.write([batch(VB, 1, 10)])
    pid = pid_of(writer)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(StoreError, match=rf"\(pid {pid}\) was ended by SIGKILL during a call"):
        writer.write([batch(VB, 11, 10)])
    writer.write([batch(VB, 11, 10)])
    assert writer.pid not in {None, pid}
    os.kill(pid_of(writer), signal.SIGKILL)
    with pytest.raises(StoreError, match="SIGKILL"):
        writer.compact()
    writer.compact()
    writer.close()


def test_a_write_that_was_done_is_not_reported_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the child dies between commit and answer, the write returns."""
    writer = WriterProcess(tmp_path)
    receive = framing.receive

    def receive_and_lose(connection: socket.socket) -> NoReturn:
        receive(connection)
        monkeypatch.setattr(framing, "receive", receive)
        os.kill(pid_of(writer), signal.SIGKILL)
        raise EOFError

    monkeypatch.setattr(framing, "receive", receive_and_lose)
    writer.write([batch(VB, 1, 10)])
    writer.write([batch(VB, 11, 10)])
    writer.close()


def test_a_child_that_never_starts_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few tries the caller is told, both at the beginning and when the outcome of a write is not known."""
    writer = WriterProcess(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    os.kill(pid_of(writer), signal.SIGKILL)
    with pytest.raises(StoreError, match=r"whether it was kept is not known: .* ended with code 1"):
        writer.write([batch(VB, 1, 1)])
    with pytest.raises(StoreError, match="ended with code 1"):
        WriterProcess(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(StoreError, match="cannot start a writer process"):
        writer.compact()
    writer.close()


def test_kill_9_in_the_middle_of_writes(tmp_path: Path) -> None:
    """Whenever the child is killed, the store holds exactly the writes that returned."""
    chance = random.Random(11)
    oracle = DictStore()
    writer = WriterProcess(tmp_path)
    reader = LmdbReader(tmp_path)
    high = dict.fromkeys(range(4), 0)
    failed = 0
    for _ in range(KILLS):
        writer.compact()
        timer = threading.Timer(chance.uniform(0, 0.08), os.kill, (pid_of(writer), signal.SIGKILL))
        timer.start()
        pid = writer.pid
        while writer.pid == pid:
            some = [
                batch(vbucket, high[vbucket] + 1, chance.randrange(1, 300)) for vbucket in chance.sample(range(4), 3)
            ]
            try:
                writer.write(some)
            except StoreError:
                failed += 1
                continue
            oracle.write(some)
            high.update({one.vbucket: one.now.high_seqno for one in some})
        timer.join()
        with reader.snapshot() as snapshot, oracle.snapshot() as expected:
            assert_same(snapshot, expected)
    assert failed > 0
    with reader.snapshot() as snapshot:
        assert_consistent(snapshot)
    reader.close()
    writer.close()
    again = LmdbWriter(tmp_path)
    again.write([batch(0, high[0] + 1, 1)])
    again.close()


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    """A killed parent leaves no writer behind."""
    code = (
        "import os, sys; from headrace.store import WriterProcess;"
        "w = WriterProcess(sys.argv[1]); print(w.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, check=False)
    child = int(done.stdout)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail(f"process {child} is still there")


def test_the_child_imports_little() -> None:
    """What the child imports stays small: not the catalogue, nor what only others need."""
    code = "import sys, headrace.store.writer_child; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert not {"headrace.wire", "asyncio", "subprocess", "numpy"} & set(done.stdout.split())
