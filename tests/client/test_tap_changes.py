"""Changes by TAP as they happen: from captured frames, from a server that breaks off, and from Couchbase's own."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Change, ChangeOptions, ConnectionLostError, KvConnection, OptionError, TapInterrupted
from headrace.client.tap_changes import TapReader
from headrace.columns import BINARY_KEYS
from headrace.wire import FrameReader
from headrace.wire.catalogue import Done, Noop, TapConnect, TapFlush
from headrace.wire.codes import TapConnectFlag, TapOpaqueCode
from tests.client.servers import HOST, free_port
from tests.client.tap_server import CLOCK, TapServer, bytes_of, details, item, opaque, options, playing, whole
from tests.client.test_dcp_couchbase import PROGRAM, on_disk, server

WAIT_S = 30.0

couchbase = pytest.mark.skipif(not PROGRAM, reason="no Couchbase server: HEADRACE_COUCHBASE_SERVER is not set")

HELD = details({0: 1})


def held() -> dict[str, str]:
    """One vbucket with items."""
    return HELD


def gather(reader: TapReader, until: Callable[[list[Any]], bool]) -> list[Any]:
    """Read until enough was seen."""
    seen: list[Any] = []
    end = time.monotonic() + WAIT_S
    while not until(seen):
        assert time.monotonic() < end, seen[-3:]
        found = reader.next_change(0.2)
        if found is not None:
            seen.append(found)
    return seen


def keys(seen: list[Any]) -> list[Any]:
    """The keys of changes."""
    return [each.key for each in seen if isinstance(each, Change)]


def test_until_now():
    """A dump comes to an end, each item is a change without a seqno, and nothing is acknowledged before it is taken."""
    sent = whole(item(b"a", b"1", item_flags=5, expiry=9), item(b"b"), Noop())
    with playing(TapServer(sent, held)) as played, TapReader(options(played), until="now") as reader:
        seen = list(reader)
        assert reader.is_done
        assert reader.vbuckets == (0,)
    assert keys(seen) == ["a", "b"]
    first = seen[0]
    assert isinstance(first, Change)
    assert (first.event, first.vbucket, first.seqno, first.vbuuid, first.cas, first.flags, first.expiry, first.rev) == (
        "mutation", 0, 0, 0, CLOCK, 5, 9, 1,
    )  # fmt: skip
    assert len(played.acks) == 4
    (connect,) = played.connects
    assert connect.flags == 0x116
    assert any(isinstance(each, Done) for each in played.acks)


def test_nothing_to_read():
    """From now until now there is nothing, and nobody is asked."""
    with playing(TapServer()) as played, TapReader(options(played), start="now", until="now") as reader:
        assert reader.is_done
        assert reader.next_change(0) is None
    assert not played.requests


def test_batches_of_a_dump():
    """The same as Arrow batches."""
    with (
        playing(TapServer(whole(item(b"a"), TapFlush()), held)) as played,
        TapReader(options(played), until="now") as reader,
    ):
        rows = [row for batch in reader.batches() for row in batch.to_pylist()]
    assert [(row["event"], row["key"], row["seqno"]) for row in rows] == [
        ("mutation", "a", None),
        ("flush", None, None),
    ]


@pytest.mark.parametrize(("start", "flags", "date"), [("beginning", 0x155, 0), ("now", 0x115, (1 << 64) - 1)])
def test_a_stream_goes_on(start: str, flags: int, date: int):
    """It asks for all or for what is to come, gives what there is, and waits for more."""
    played_frames = bytes_of(opaque(TapOpaqueCode.ENABLE_AUTO_NACK), item(b"a"), item(b"b", tap_flags=5))
    with (
        playing(TapServer(played_frames, held, stays=True)) as played,
        TapReader(options(played), start=start) as reader,
    ):
        seen = gather(reader, lambda seen: len(keys(seen)) == 2)
        acked = len(played.acks)
        assert reader.next_change(0.3) is None
        assert not reader.is_done
        assert (acked, reader.gaps) == (1, 0)
        end = time.monotonic() + WAIT_S
        while len(played.acks) < 2:
            assert time.monotonic() < end
    assert keys(seen) == ["a", "b"]
    assert (played.connects[0].flags, played.connects[0].backfill_date) == (flags, date)


@dataclass
class Held(TapServer):
    """One whose items come when a test says so."""

    go: threading.Event = field(default_factory=threading.Event)

    def _dump(self, connection: socket.socket, reader: FrameReader, asked: TapConnect) -> None:
        del asked
        connection.sendall(self.frames[0])
        self.go.wait(WAIT_S)
        connection.sendall(self.frames[1])
        while (ack := self._next(connection, reader)) is not None:
            self.acks.append(ack)


def test_what_another_node_sent_is_acknowledged_when_it_was_taken():
    """Not when the changes of the first node were, which came at the same time."""
    both = [
        Held(bytes_of(opaque(TapOpaqueCode.ENABLE_AUTO_NACK), item(key, tap_flags=5)), partial(details, {vb: 1}))
        for vb, key in enumerate((b"a", b"b"))
    ]
    with playing(both[0]) as one, playing(both[1]) as other:
        hosts = f"couchbase://{HOST}:{one.port},{HOST}:{other.port}"
        with TapReader(ChangeOptions(connection=hosts), start="now", name="me", registered=True) as reader:
            assert reader.next_change(0.1) is None
            for each in both:
                each.go.set()
            time.sleep(0.3)
            seen = keys([reader.next_change(WAIT_S), reader.next_change(WAIT_S)])
            time.sleep(0.3)
            assert sorted(seen) == ["a", "b"]
            assert len(both[seen[-1] == "b"].acks) == 1, "of the message that is no item"
            assert reader.next_change(0.3) is None
            end = time.monotonic() + WAIT_S
            while [len(each.acks) for each in both] != [2, 2]:
                assert time.monotonic() < end


def test_a_broken_stream_from_the_beginning_comes_again():
    """After a break all is asked for again, and it is told."""
    frames = bytes_of(opaque(TapOpaqueCode.ENABLE_AUTO_NACK), item(b"a"))
    with playing(TapServer(frames, held)) as played, TapReader(options(played)) as reader:
        seen = gather(reader, lambda seen: len(keys(seen)) >= 3)
        assert reader.gaps == 0
    told = [each for each in seen if isinstance(each, TapInterrupted)]
    assert told
    assert all((each.repeats, each.misses) == (True, False) for each in told)
    assert [connect.backfill_date for connect in played.connects][:3] == [0, 0, 0]


@pytest.mark.parametrize("registered", [False, True])
def test_a_broken_stream_of_what_is_to_come(registered: bool):
    """After a break changes may be missing, and it is told; not for a registered client, whose name stays the same."""
    frames = bytes_of(opaque(TapOpaqueCode.ENABLE_AUTO_NACK))
    name = "me" if registered else None
    with (
        playing(TapServer(frames, held)) as played,
        TapReader(options(played), start="now", name=name, registered=registered) as reader,
    ):
        told = gather(reader, lambda seen: len(seen) == 2)
        assert [each.misses for each in told] == [not registered] * 2
        assert not any(each.repeats for each in told)
        assert reader.gaps == (0 if registered else 2)
        if registered:
            reader.deregister()
        else:
            with pytest.raises(OptionError, match="not registered"):
                reader.deregister()
    names = {connect.name for connect in played.connects}
    assert (len(names) == 1) == registered
    if registered:
        assert names == {f"me:{HOST}:{played.port}".encode()}
        assert played.connects[0].flags is not None
        assert played.connects[0].flags & TapConnectFlag.REGISTERED_CLIENT


def test_a_dump_that_breaks_off_is_read_again():
    """Until it is whole; what came before comes again."""
    sent = whole(item(b"a"), item(b"b"))
    cut = TapServer(sent, held, cut_bytes=len(b"".join(sent)) - 3)
    with playing(cut) as played, TapReader(options(played), until="now") as reader:
        seen = gather(reader, lambda seen: len(keys(seen)) == 2)
        played.cut_bytes = None
        seen += list(reader)
    assert keys(seen)[-2:] == ["a", "b"]
    assert any(isinstance(each, TapInterrupted) for each in seen)


def test_values_that_nobody_wants():
    """With no_value only keys are asked for, and a value that comes all the same is dropped."""
    sent = whole(item(b"a", b"value"))
    with (
        playing(TapServer(sent, held)) as played,
        TapReader(options(played, no_value=True), until="now") as reader,
    ):
        (change,) = list(reader)
    assert isinstance(change, Change)
    assert change.value is None
    assert played.connects[0].flags is not None
    assert played.connects[0].flags & TapConnectFlag.KEYS_ONLY


def test_nobody_there():
    """A server that does not answer is asked for as long as the options say."""
    nowhere = ChangeOptions(connection=f"couchbase://{HOST}:{free_port()}", give_up_s=0.5)
    with TapReader(nowhere) as reader, pytest.raises(ConnectionLostError):
        reader.next_change()


def test_what_cannot_be():
    """What TAP has not, a registered client without a name, and a reader that was closed are refused."""
    wrong: list[dict[str, Any]] = [
        {"start": "2020"},
        {"until": "later"},
        {"registered": True},
        {"registered": True, "name": "me", "until": "now"},
    ]
    for told in wrong:
        with pytest.raises(OptionError):
            TapReader(**told)
    with pytest.raises(OptionError, match="no collections"):
        TapReader(ChangeOptions(collections=()))
    reader = TapReader()
    reader.close()
    with pytest.raises(OptionError, match="closed"):
        reader.next_change()
    assert repr(reader) == "TapReader(couchbase://127.0.0.1:11210, bucket='default')"


# ---------------------------------------------------------------------------------------------- Couchbase's own server


def at(port: int, **more: Any) -> ChangeOptions:
    """How to reach it."""
    return ChangeOptions(connection=f"couchbase://{HOST}:{port}", keys=BINARY_KEYS, **more)


@couchbase
def test_couchbase_from_now_on(tmp_path: Path):
    """Only what is written after the start comes, with its value, and its deletion."""
    port = free_port()
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        for number in range(100):
            items.set(b"before-%d" % number, b"x")
        with TapReader(at(port), start="now") as reader:
            while reader.next_change(1.0) is not None:
                """Servers tell some of what is in the open checkpoint (capture 08b2_tap_backfill_future)."""
            assert len(reader.vbuckets) == 8
            for number in range(50):
                items.set(b"after-%d" % number, b'{"n": %d}' % number, flags=number)
            items.delete(b"after-7")
            seen = gather(reader, lambda seen: any(each.event == "deletion" for each in seen) and len(seen) >= 50)
    assert not [key for key in keys(seen) if key.startswith(b"before")]
    newest = {each.key: each for each in seen}
    assert newest.keys() == {b"after-%d" % number for number in range(50)}
    assert (newest[b"after-9"].value, newest[b"after-9"].flags) == (b'{"n": 9}', 9)
    assert newest[b"after-7"].event == "deletion"


@couchbase
def test_couchbase_all_and_on(tmp_path: Path):
    """All that is there comes, then what is written, and the same again after the server was killed and started."""
    port = free_port()
    written = {b"key-%d" % number for number in range(300)}
    with TapReader(at(port), start="beginning") as reader:
        with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
            for key in written:
                items.set(key, b"x" * 100)
            gather(reader, lambda seen: written <= set(keys(seen)))
            items.set(b"live", b"1")
            gather(reader, lambda seen: b"live" in keys(seen))
            os.kill(int((tmp_path / "db" / "pid").read_text()), signal.SIGKILL)
            gather(reader, lambda seen: any(isinstance(each, TapInterrupted) for each in seen))
        with server(tmp_path / "db2", port), KvConnection(HOST, port) as items:
            for key in written:
                items.set(key, b"y")
            gather(reader, lambda seen: {each.key for each in seen if each.key and each.value == b"y"} >= written)


@couchbase
def test_couchbase_after_a_restart(tmp_path: Path):
    """What a server has on disk alone comes, too; asked for it once, 4.1.2 leaves it out."""
    port = free_port()
    written = {b"key-%d" % number for number in range(100)}
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        for key in written:
            items.set(key, b"x" * 100)
        on_disk(port, tmp_path)
        os.kill(int((tmp_path / "db" / "pid").read_text()), signal.SIGKILL)
    with server(tmp_path / "db", port), TapReader(at(port), start="beginning") as reader:
        gather(reader, lambda seen: written <= set(keys(seen)))


@couchbase
def test_couchbase_registered(tmp_path: Path):
    """What was written while a registered client was away comes when it is back."""
    port = free_port()
    with server(tmp_path / "db", port), KvConnection(HOST, port) as items:
        items.set(b"one", b"1")
        with TapReader(at(port), name="stable", registered=True) as reader:
            gather(reader, lambda seen: b"one" in keys(seen))
            reader.next_change(0)
        items.set(b"two", b"2")
        with TapReader(at(port), start="now", name="stable", registered=True) as reader:
            gather(reader, lambda seen: b"two" in keys(seen))
            reader.deregister()
