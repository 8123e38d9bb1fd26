"""A disk that refuses: the node says so instead of acknowledging, goes on serving, and recovers when the disk does."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from headrace.ids import Seqno, VBucketId
from headrace.wire import encode
from headrace.wire.catalogue import Get, SeqnoPersistence, Set, Touch
from headrace.wire.codes import Status
from tests.crash.disks import refusing
from tests.crash.raw import GoneError, Raw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.crash.disks import Refusing
    from tests.processes import Server

VALUE_BYTES = 16 * 1024
WRITES_MAX = 4000
QUEUE_BYTES = 256 * 1024
RECOVERY_S = 30.0
VB = VBucketId(0)

pytestmark = pytest.mark.slow


@pytest.fixture(params=["full disk", "full file", "failing sync"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Refusing]:
    """A disk that can be made to refuse."""
    with refusing(request.param, tmp_path) as one:
        yield one


def value_of(key: bytes) -> bytes:
    """A value that no other key has, and that does not begin like JSON."""
    return b"<%s>" % key + b"." * VALUE_BYTES


def fill(port: int, name: bytes) -> tuple[list[bytes], str]:
    """Set keys until one is refused; give those that were not, and the words of the refusal."""
    done: list[bytes] = []
    with Raw(port) as raw:
        for number in range(WRITES_MAX):
            key = b"%s-%d" % (name, number)
            frame = raw.send(Set(key=key, value=value_of(key)))
            if frame.header.specific:
                assert frame.header.specific == Status.TEMPORARY_FAILURE, frame
                return done, frame.value.decode()
            done.append(key)
            if number % 16 == 0:
                _await_queue(raw)
    raise AssertionError(f"{WRITES_MAX} writes, and none was refused")


def _await_queue(raw: Raw) -> None:
    """Let the disk take or refuse what waits, so that memory alone never has more than there is room for."""
    while True:
        stats = raw.stats()
        if int(stats["ep_diskqueue_bytes"]) < QUEUE_BYTES or stats["ep_degraded_mode"] == "1":
            return
        time.sleep(0.005)


def await_success(port: int) -> None:
    """Wait until the node acknowledges again."""
    end = time.monotonic() + RECOVERY_S
    while True:
        with Raw(port) as raw:
            frame = raw.send(Set(key=b"again", value=b"<again>"))
            if frame.header.specific == Status.SUCCESS:
                return
        assert time.monotonic() < end, frame
        time.sleep(0.05)


def assert_there(port: int, keys: list[bytes]) -> None:
    """See that every key has its value."""
    with Raw(port) as raw:
        for key in keys:
            assert raw.send(Get(key=key)).value == value_of(key), key


def end(node: Server) -> None:
    """Leave nothing behind."""
    if node.running:
        node.kill()
    node.close()


def test_a_node_whose_disk_refuses_stops_acknowledging(disk: Refusing) -> None:
    """Writes are refused by name and cause, gets are served, and all that was acknowledged survives a clean stop."""
    node = disk.start("--vbuckets", "1")
    try:
        with Raw(node.port) as raw:
            before = [b"before-%d" % number for number in range(10)]
            for key in before:
                raw.ask(Set(key=key, value=value_of(key)))
            seqno = Seqno(int(raw.stats(b"vbucket-seqno")["vb_0:high_seqno"]))
            raw.ask(SeqnoPersistence(vbucket=VB, seqno=seqno))
        disk.refuse(node)
        acknowledged, words = fill(node.port, b"fill")
        assert any(cause in words for cause in disk.causes), words
        with Raw(node.port) as raw:
            stats = raw.stats()
            assert stats["ep_degraded_mode"] == "1"
            assert any(cause in stats["ep_disk_trouble"] for cause in disk.causes), stats
            assert int(stats["ep_item_flush_failed"]) >= 1
            for request in (Set(key=b"no", value=b"<no>"), Set(key=b"no", value=b"{}"), Touch(key=before[0], expiry=9)):
                assert raw.send(request).header.specific == Status.TEMPORARY_FAILURE, request
        assert_there(node.port, before)
        assert_there(node.port, acknowledged)
        disk.relent(node)
        await_success(node.port)
        with Raw(node.port) as raw:
            assert raw.stats()["ep_degraded_mode"] == "0"
            assert raw.send(Get(key=b"no")).header.specific == Status.KEY_NOT_FOUND
        node.restart()
        assert_there(node.port, before + acknowledged)
        with Raw(node.port) as raw:
            assert int(raw.stats()["curr_items"]) == len(before) + len(acknowledged) + 1
            assert raw.stats(b"failovers")["vb_0:num_entries"] == "1"
        assert node.stop() == 0
    finally:
        end(node)


def test_what_was_on_disk_survives_a_kill_while_the_disk_refuses(disk: Refusing) -> None:
    """Killed while it could not write, a node comes back with all it told to be on disk, and with a new branch."""
    node = disk.start("--vbuckets", "1")
    try:
        with Raw(node.port) as raw:
            raw.ask(Set(key=b"again", value=b"<again>"))
            raw.ask(SeqnoPersistence(vbucket=VB, seqno=Seqno(1)))
        disk.refuse(node)
        acknowledged, _ = fill(node.port, b"fill")
        with Raw(node.port) as raw:
            seqnos = raw.stats(b"vbucket-seqno")
        persisted, high = (int(seqnos[f"vb_0:{name}"]) for name in ("last_persisted_seqno", "high_seqno"))
        assert high == len(acknowledged) + 1
        assert persisted < high
        node.kill()
        disk.relent(None)
        node.start()
        with Raw(node.port) as raw:
            assert int(raw.stats(b"vbucket-seqno")["vb_0:high_seqno"]) == persisted
            assert int(raw.stats()["curr_items"]) == persisted
            logs = raw.stats(b"failovers")
            assert (logs["vb_0:num_entries"], logs["vb_0:0:seq"]) == ("2", str(persisted))
        assert_there(node.port, acknowledged[: persisted - 1])
        await_success(node.port)
        assert node.stop() == 0
    finally:
        end(node)


def test_with_every_write_synced_no_success_is_missing(disk: Refusing) -> None:
    """A success means on disk: killed while its disk refuses, the node has every write that it acknowledged."""
    arguments = ("--vbuckets", "1", "--sync", "every-write")
    node = disk.start(*arguments)
    try:
        with Raw(node.port) as raw:
            raw.ask(Set(key=b"early", value=value_of(b"early")))
        disk.refuse(node)
        acknowledged, words = fill(node.port, b"fill")
        assert any(cause in words for cause in disk.causes), words
        pipelined = _pipeline(node.port, b"pipe", 50)
        assert not pipelined, "all of these were refused"
        with Raw(node.port) as raw:  # one connection for many gets: the disk is not their business
            for key in (b"early", *acknowledged):
                assert raw.send(Get(key=key)).value == value_of(key)
        node.kill()
        disk.relent(None)
        node.start()
        assert_there(node.port, [b"early", *acknowledged])
        await_success(node.port)
        assert node.stop() == 0
    finally:
        end(node)


def _pipeline(port: int, name: bytes, count: int) -> list[bytes]:
    """Send many sets at once; give the keys that were acknowledged."""
    keys = [b"%s-%d" % (name, number) for number in range(count)]
    statuses = []
    with Raw(port) as raw, suppress(GoneError, OSError):
        raw.socket.sendall(b"".join(encode(Set(key=key, value=value_of(key))) for key in keys))
        for _ in keys:
            statuses.append(raw.receive().header.specific)  # noqa: PERF401 - the line may break at any of them
    return [key for key, status in zip(keys, statuses, strict=False) if status == Status.SUCCESS]


def test_a_node_does_not_start_where_there_is_no_room(tmp_path: Path) -> None:
    """A first start on a full disk ends with the cause, and succeeds when there is room."""
    with refusing("full disk", tmp_path) as disk:
        place = disk.data.parent
        room = os.statvfs(place)
        with (place / "more").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
        with pytest.raises(AssertionError, match=r"exit code 1\)[\s\S]*(No space left|0 bytes free)") as failure:
            disk.start("--vbuckets", "1")
        assert "Traceback" not in str(failure.value)
        (place / "more").unlink()
        node = disk.start("--vbuckets", "1")
        try:
            await_success(node.port)
            assert node.stop() == 0
        finally:
            end(node)
