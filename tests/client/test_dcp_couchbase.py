"""The readers against Couchbase's own server, where there is one.

HEADRACE_COUCHBASE_SERVER names a program that is called `PROGRAM PORT DIRECTORY VBUCKETS`, serves the bucket `default`
without users in the foreground, writes its server's process id to DIRECTORY/pid, and prints `ready` when it serves.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.client import (
    BatchReader,
    Change,
    ChangeOptions,
    ChangeReader,
    KvConnection,
    RolledBack,
)
from headrace.wire.catalogue import StopPersistence
from tests.client.servers import HOST, free_port
from tests.client.test_dcp_readers import in_a_loop

PROGRAM = os.environ.get("HEADRACE_COUCHBASE_SERVER", "")
VBUCKETS = 8
WAIT_S = 30.0

pytestmark = pytest.mark.skipif(not PROGRAM, reason="no Couchbase server: HEADRACE_COUCHBASE_SERVER is not set")


@contextmanager
def server(folder: Path, port: int) -> Iterator["subprocess.Popen[str]"]:
    """Run the server, and stop it."""
    process = subprocess.Popen(
        [PROGRAM, str(port), str(folder), str(VBUCKETS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
            process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def on_disk(port: int, folder: Path) -> None:
    """Wait until everything that was written is on disk."""
    options = ChangeOptions(connection=f"couchbase://{HOST}:{port}", mitigate_rollbacks=True)
    with BatchReader(options, until="now") as reader:
        end = time.monotonic() + WAIT_S
        while not reader.is_done:
            assert time.monotonic() < end, f"not on disk; see {folder}"
            reader.next_batch(1.0)


def copy_of(reader: ChangeReader, done: int) -> dict[str, tuple[int, int]]:
    """Read until so many keys were seen: where each stands."""
    found: dict[str, tuple[int, int]] = {}
    end = time.monotonic() + WAIT_S
    while len(found) < done:
        assert time.monotonic() < end, f"{len(found)} of {done}"
        each = reader.next_change(1.0)
        if isinstance(each, Change):
            assert found.get(str(each.key), (0, 0))[1] < each.seqno
            found[str(each.key)] = each.vbucket, each.seqno
    return found


def test_everything_and_what_comes(tmp_path: Path):
    """Both readers see every item once, from the beginning and from a saved position, then live."""
    port = free_port()
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        for number in range(1000):
            items.set(b"key-%d" % number, b'{"n": %d}' % number)
        options = ChangeOptions(connection=f"couchbase://{HOST}:{port}")
        with BatchReader(options, until="now") as batches:
            keys = [key for batch in batches for key in batch.column("key").to_pylist()]
            saved = batches.positions
        assert sorted(keys) == sorted(f"key-{number}" for number in range(1000))
        assert len([each for each in in_a_loop(options, until="now") if isinstance(each, Change)]) == 1000
        items.delete(b"key-5")
        with ChangeReader(options, start=saved, until="now") as reader:
            changes = [each for each in reader if isinstance(each, Change)]
        assert [(each.event, each.key) for each in changes] == [("deletion", "key-5")]


def test_a_small_window_and_a_clean_restart(tmp_path: Path):
    """A window of a few items never stalls; the reader goes on after the server was stopped and started."""
    port = free_port()
    options = ChangeOptions(connection=f"couchbase://{HOST}:{port}", window_bytes=2000)
    with ChangeReader(options) as reader:
        with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
            for number in range(300):
                items.set(b"before-%d" % number, b"x" * 100)
            copy_of(reader, 300)
        with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
            for number in range(300):
                items.set(b"after-%d" % number, b"x" * 100)
            found = copy_of(reader, 300)
        assert all(key.startswith("after-") for key in found)


def test_a_crash_rolls_back(tmp_path: Path):
    """What was in memory alone is lost by kill -9: the reader hears of it, and ends up with what the server has."""
    port = free_port()
    options = ChangeOptions(connection=f"couchbase://{HOST}:{port}")
    with ChangeReader(options) as reader:
        copy: dict[int, dict[int, str]] = {vb: {} for vb in range(VBUCKETS)}
        rollbacks = []

        def follow(wanted: set[str]) -> None:
            end = time.monotonic() + WAIT_S
            while not wanted <= {key for each in copy.values() for key in each.values()}:
                assert time.monotonic() < end
                each = reader.next_change(1.0)
                if isinstance(each, Change):
                    copy[each.vbucket][each.seqno] = str(each.key)
                elif isinstance(each, RolledBack):
                    rollbacks.append(each)
                    copy[each.vbucket] = {s: k for s, k in copy[each.vbucket].items() if s <= each.whole}

        with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
            for number in range(200):
                items.set(b"kept-%d" % number, b"1")
            on_disk(port, tmp_path)
            items.request(StopPersistence())
            for number in range(50):
                items.set(b"lost-%d" % number, b"1")
            follow({f"kept-{n}" for n in range(200)} | {f"lost-{n}" for n in range(50)})
            os.kill(int((tmp_path / "db" / "pid").read_text()), signal.SIGKILL)
        with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
            for number in range(50):
                items.set(b"new-%d" % number, b"1")
            follow({f"new-{n}" for n in range(50)})
            with ChangeReader(options, until="now") as fresh:
                truth = {(c.vbucket, c.seqno): str(c.key) for c in fresh if isinstance(c, Change)}
        assert rollbacks
        assert {(vb, seqno): key for vb, each in copy.items() for seqno, key in each.items()} == truth
        assert not any(key.startswith("lost") for key in truth.values())
