"""Dumps of Couchbase's own server, where there is one; `test_dcp_couchbase` says what HEADRACE_COUCHBASE_SERVER is."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.client import ChangeOptions, ConnectionLostError, KvConnection
from headrace.client.tap_dump import TapDump, TapPart, tap_parts
from headrace.columns import BINARY_KEYS
from headrace.wire.catalogue import GetMeta, Meta, StopPersistence
from tests.client.servers import HOST, free_port
from tests.client.test_dcp_couchbase import PROGRAM, VBUCKETS, server

EXPIRY = 4_000_000_000

pytestmark = pytest.mark.skipif(not PROGRAM, reason="no Couchbase server: HEADRACE_COUCHBASE_SERVER is not set")


def at(port: int, **more: Any) -> ChangeOptions:
    """How to reach the server."""
    return ChangeOptions(connection=f"couchbase://{HOST}:{port}", keys=BINARY_KEYS, **more)


def rows_of(options: ChangeOptions, parts: list[TapPart]) -> list[dict[str, Any]]:
    """Every row of a bucket."""
    rows = []
    for part in parts:
        with TapDump(options, part) as dump:
            rows += [row for batch in dump for row in batch.to_pylist()]
    return rows


def test_what_was_written(tmp_path: Path):
    """A dump has each item as it was written, also what the server had in memory alone, and each deletion."""
    port = free_port()
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        written: dict[bytes, tuple[Any, ...]] = {}
        for number in range(1500):
            key = b"\xff\x00%d" % number if number % 100 == 7 else b"key-%d" % number
            value = b'{"n": %d}' % number * (1 + number % 50)
            flags, expiry = (number * 0x01010101) & 0xFFFFFFFF, EXPIRY + number if number % 3 else 0
            items.set(key, b"an older one")
            items.set(key, value, flags=flags, expiry=expiry)
            written[key] = "mutation", value, flags, expiry
            if number % 10 == 3:
                items.delete(key)
                written[key] = "deletion", None, None, None
        options = at(port)
        parts = tap_parts(options, 3)
        assert sorted(vb for part in parts for vb in part.vbuckets or ()) == list(range(VBUCKETS))
        assert len(parts) == 3
        rows = rows_of(options, parts)
        assert len(rows) == len(written)
        assert {row["key"]: (row["event"], row["value"], row["flags"], row["expiry"]) for row in rows} == written
        for row in rows:
            meta = items.request(GetMeta(key=row["key"], vbucket=items.vbucket_of(row["key"])))
            assert isinstance(meta, Meta)
            assert (row["vbucket"], row["rev"], row["cas"]) == (items.vbucket_of(row["key"]), meta.rev_seqno, meta.cas)
            assert (row["event"] == "deletion") == bool(meta.deleted)
            assert row["seqno"] is None
            assert row["changed_at"] is not None


def test_some_vbuckets_and_an_empty_bucket(tmp_path: Path):
    """Only the vbuckets asked for are dumped, and a bucket without items is a dump without rows."""
    port = free_port()
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        assert rows_of(at(port), tap_parts(at(port))) == []
        keys = [b"key-%d" % number for number in range(200)]
        for key in keys:
            items.set(key, b"1")
        options = at(port, vbuckets=(1, 6))
        rows = rows_of(options, tap_parts(options))
        assert sorted(row["key"] for row in rows) == sorted(key for key in keys if items.vbucket_of(key) in {1, 6})


def test_writers_go_on(tmp_path: Path):
    """What nobody touches is in a dump once, whatever is written beside it; what is changed may come more than once."""
    port = free_port()
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        for number in range(2000):
            items.set(b"still-%d" % number, b"x" * 500)
            items.set(b"busy-%d" % (number % 50), b"0")
        done = threading.Event()

        def write() -> None:
            with KvConnection(HOST, port) as busy:
                number = 0
                while not done.is_set():
                    busy.set(b"busy-%d" % (number % 50), b"%d" % number)
                    number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            rows = rows_of(at(port), tap_parts(at(port), 2))
        finally:
            done.set()
            writer.join(30)
    still = [row["key"] for row in rows if row["key"].startswith(b"still")]
    assert sorted(still) == sorted(b"still-%d" % number for number in range(2000))
    assert {row["key"] for row in rows} - set(still) == {b"busy-%d" % number for number in range(50)}


def test_killed_in_the_middle(tmp_path: Path):
    """A server that is killed while it dumps leaves an error, not a short dump."""
    port = free_port()
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        for number in range(3000):
            items.set(b"key-%d" % number, b"x" * 10_000)
        options = at(port, buffer_bytes=64 * 1024)
        with TapDump(options, tap_parts(options)[0]) as dump:
            batches = iter(dump)
            rows = next(batches).num_rows
            os.kill(int((tmp_path / "db" / "pid").read_text()), signal.SIGKILL)
            with pytest.raises(ConnectionLostError, match=r"which is not whole: vbuckets? \d"):
                rows += sum(batch.num_rows for batch in batches)
    assert rows < 3000


def test_persistence_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the server does not write would be missing: the dump is refused."""
    from headrace.client import tap_node  # noqa: PLC0415 - its bound is set for this test alone

    monkeypatch.setattr(tap_node, "SILENCE_S_MAX", 1.0)
    port = free_port()
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        items.request(StopPersistence())
        items.set(b"lost", b"1")
        with pytest.raises(tap_node.NotOnDiskError, match="is persistence stopped"):
            rows_of(at(port), tap_parts(at(port)))
