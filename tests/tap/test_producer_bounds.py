"""What a client costs that does not read: its cursors and its socket, and no time of writers."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.client import KvConnection, Loader, LoadRow
from headrace.ids import Seqno
from headrace.node import Node, NodeLimits
from headrace.testing import LiveNode
from headrace.wire import Dialect, FrameReader, NeedData, encode
from headrace.wire.catalogue import CompactDb, TapConnect
from headrace.wire.codes import TapConnectFlag
from tests.certificates import certificate
from tests.node.talk import Talk, on_loop
from tests.processes import start_node
from tests.tap.tap_reader import TapReader, keys, shapes
from tests.tap.test_producer_connect import put, wait_for_tap

if TYPE_CHECKING:
    from headrace.client import StatusError
    from tests.processes import Server

F = TapConnectFlag
CHANGES = 1_000_000
VALUE = b"v" * 100
ROOM_BYTES = 48 << 20
"""How much more a node may take with a client that does not read than without it. Two runs of the same load differ by
about 20 MB, as memory is given back or not; the client may have 2 MB in its socket and 2 MB of what was begun. A node
that kept what the client has yet to read would keep 250 MB: keys, values and what Python takes beside them."""


def resident_bytes(pid: int) -> int:
    """How much memory a process has."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines())
    return int(fields["VmRSS"].split()[0]) << 10


def load(server: Server) -> None:
    """Make a million changes, of keys that are all there in the end."""
    with KvConnection(server.host, server.port) as connection:
        loader = Loader(connection, refused=_refused)
        for number in range(CHANGES):
            loader.add(LoadRow(f"row {number}", f"key-{number}".encode(), VALUE))
        loader.finish()


def _refused(row: LoadRow, error: StatusError) -> None:
    pytest.fail(f"{row} was refused: {error}")


def loaded_bytes(*, with_client: bool) -> int:
    """How much memory a node has after a load, perhaps with a registered client that never reads."""
    server = start_node("--vbuckets", "16")
    try:
        tap = None
        if with_client:
            flags = F.REGISTERED_CLIENT
            tap = TapReader(server, flags=flags, name="never")  # type: ignore[arg-type]  # it has a host and a port
            wait_for_tap(server)  # type: ignore[arg-type]
        load(server)
        with Talk(server) as talk:  # type: ignore[arg-type]
            end = time.monotonic() + 60
            while talk.stats()["ep_diskqueue_items"] != "0":
                assert time.monotonic() < end
                time.sleep(0.1)
            backlog = talk.stats(b"tapagg")["_total:total_backlog_size"]
        assert int(backlog) > CHANGES * 9 // 10 if with_client else backlog == "0"
        size = resident_bytes(server.pid)
        if tap is not None:
            tap.socket.close()
        return size
    finally:
        server.stop()
        server.close()


@pytest.mark.slow
def test_a_registered_client_that_never_reads_does_not_grow_the_node():
    """A million changes behind it, the node has the memory that it has without it."""
    assert loaded_bytes(with_client=True) < loaded_bytes(with_client=False) + ROOM_BYTES


def test_what_was_begun_is_let_go_and_found_again(node: LiveNode):
    """A client that stops in the middle of a large vbucket keeps neither memory nor pages, and then gets the rest."""
    value = b"x" * 50_000
    for number in range(200):
        put(node, f"key-{number:03}", value)
    node.flush()
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    with TapReader(node, flags=F.DUMP) as tap:
        got = [tap.next()]
        end = time.monotonic() + 30

        def kept() -> tuple[int, int]:
            (producer,) = opened.tap_ends()
            return len(opened.bucket.backfills), sum(one.in_snapshot for one in producer.streams.values())

        while on_loop(node, kept) != (0, 0) or not on_loop(node, lambda: opened.tap_ends()[0].sent_items):
            assert time.monotonic() < end
            time.sleep(0.05)
        (producer,) = opened.tap_ends()
        assert 0 < producer.sent_items < 200
        got += tap.read_all()
    assert keys(got) == [f"key-{number:03}".encode() for number in range(200)]


def test_clients_that_do_not_read_do_not_hold_up_a_writer(node: LiveNode):
    """A writer is answered, however many wait; and they have everything when they read."""
    value = b"x" * 10_000
    readers = [TapReader(node, vbuckets=[0]) for _ in range(5)]
    try:
        with Talk(node) as talk:
            while talk.stats(b"tap")["ep_tap_count"] != "5":
                pass
        for number in range(1500):  # 15 MB: more than the sockets of a client hold; each answer is waited for
            put(node, f"key-{number}", value)
        for tap in readers:
            got = tap.read(lambda one: keys([one]) == [b"key-1499"])
            assert len(keys(got)) == 1500
    finally:
        for tap in readers:
            tap.socket.close()


def test_trouble_on_purpose(node: LiveNode):
    """Chaos cuts, freezes and slows TAP connections by their names, and says so."""
    for number in range(20):
        put(node, f"key-{number}")
    with TapReader(node, name="victim", vbuckets=[0]) as tap:
        tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
        node.chaos.freeze(name="victim")
        put(node, "held")
        assert any(one.get("connection") == "victim" and "frozen" in one["is"] for one in node.chaos.show())
        node.chaos.thaw(name="victim")
        assert keys([tap.next()]) == [b"held"]
        node.chaos.cut(name="victim")
        assert tap.ends()
    with TapReader(node, name="slow", vbuckets=[0]) as tap:
        node.chaos.slow(1_000_000, name="slow")
        assert len(keys(tap.read(lambda one: keys([one]) == [b"held"]))) == 21


def test_stats_tell_of_connections(node: LiveNode):
    """Each under its name, and all together."""
    put(node, "a")
    with TapReader(node, name="one", flags=F.SUPPORT_ACK) as tap:
        tap.read(lambda one: shapes([one]) == [("opaque", 8, 7)])
        with Talk(node) as talk:
            while (told := talk.stats(b"tap"))["eq_tapq:one:ack_log_size"] != "0":
                pass
            together = talk.stats(b"tapagg")
    assert told["eq_tapq:one:total_items_sent"] == "1"
    assert told["eq_tapq:one:supports_ack"] == "true"
    assert told["eq_tapq:one:backfill_completed"] == "true"
    assert together["_total:count"] == "1"
    assert together["_total:total_items_sent"] == "1"


def test_purged_deletions_that_a_slow_client_has_not_seen():
    """Its vbucket is sent anew, from the start: what is gone is not among the items then."""
    limits = NodeLimits(recent_bytes_max=0, tap_ack_interval=5, tap_ack_window=2)
    with LiveNode(vbuckets=1, limits=limits) as node:
        put(node, "first")
        with TapReader(node, flags=F.SUPPORT_ACK) as tap:
            got = tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
            tap.acks = False
            for number in range(30):
                put(node, f"key-{number}")
            got = [tap.next() for _ in range(10)]  # a window
            node.delete("key-29")
            put(node, "last")
            node.flush()
            with Talk(node) as talk:
                assert talk.status(CompactDb(drop_deletes=1, purge_before_time=0, purge_before_seqno=Seqno(0))) == 0
            tap.acks = True
            tap.ack(got[-1])
            again = tap.read(lambda one: shapes([one]) == [("opaque", 8, 0)])
    anew = again[shapes(again).index(("opaque", 1, 0)) :]  # behind what was begun before
    assert keys(anew) == [b"first", *(f"key-{number}".encode() for number in range(29)), b"last"]


def test_a_dump_under_tls_ends(tmp_path: Path):
    """All of it comes, then the end; under TLS there is no half of a connection to close."""
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(cert))
    with Node(vbuckets=1, tls_cert=cert, tls_key=key) as node:
        with KvConnection(node.host, node.port, tls=context) as kv:
            for number in range(100):
                kv.set(f"key-{number}".encode(), b"v" * 1000)
        with (
            socket.create_connection((node.host, node.port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname=node.host) as connection,
        ):
            connection.sendall(encode(TapConnect(flags=F.DUMP), Dialect.TAP))
            data = b""
            while piece := connection.recv(1 << 16):
                data += piece
    reader = FrameReader()
    reader.receive(data)
    found = []
    while not isinstance(frame := reader.next_frame(), NeedData):
        found.append(frame.header.opcode)
    assert found == [0x44, *[0x41] * 100, 0x44]
