"""The guide "Keep a TAP client alive on a DCP cluster": a node that copies another by DCP, and an old client at it."""

from __future__ import annotations

import re
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from headrace.client import KvConnection
from headrace.ids import Opaque
from headrace.wire import NEED_DATA, Dialect, FrameReader, decode, encode
from headrace.wire.catalogue import TapAck, TapConnect, TapDelete, TapMutation, TapRequest
from headrace.wire.codes import TapConnectFlag, TapFlag
from tests.examples.programs import ROOT, WAIT_S, Program, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from tests.processes import Server

GUIDE = ROOT / "docs" / "guides" / "keep-a-tap-client-alive.md"
SPYMEMCACHED = TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_BYTEORDER
FUTURE = 2**64 - 1


class Seen(NamedTuple):
    """What the client made of a message."""

    value: bytes | None
    flags: int = 0


class OldClient:
    """Connects as spymemcached's TapClient does, acknowledges with odd keys, and keeps what it is told."""

    def __init__(self, server: Server, connect: TapConnect) -> None:
        self.items: dict[bytes, Seen] = {}
        self._socket = socket.create_connection((server.host, server.port), timeout=WAIT_S)
        self._frames = FrameReader()
        self._socket.sendall(encode(connect, Dialect.TAP))

    def read(self, until: Callable[[], bool]) -> None:
        """Take messages until something holds, or the server closes."""
        while not until():
            received = self._socket.recv(65536)
            if not received:
                return
            self._frames.receive(received)
            while (frame := self._frames.next_frame()) is not NEED_DATA:
                self._take(decode(frame, Dialect.TAP), frame.header.opcode)

    def _take(self, message: object, opcode: int) -> None:
        if isinstance(message, TapMutation):
            self.items[message.key] = Seen(message.value, message.item_flags)
        elif isinstance(message, TapDelete):
            self.items[message.key] = Seen(None)
        if isinstance(message, TapRequest) and message.tap_flags & TapFlag.ACK:
            ack = TapAck(opcode=opcode, opaque=Opaque(message.opaque), key=b"0" * 36)
            self._socket.sendall(encode(ack, Dialect.TAP))

    def close(self) -> None:
        self._socket.close()


@contextmanager
def old_client(server: Server, connect: TapConnect) -> Iterator[OldClient]:
    """A client for as long as a `with` lasts."""
    client = OldClient(server, connect)
    try:
        yield client
    finally:
        client.close()


def test_an_old_client_dumps_and_follows(start: Callable[[], Server], tmp_path: Path):
    """A dump without a list has every item of the cluster with its flags and ends; a later client sees changes only."""
    cluster, node = start(), start()
    source_of(node, "tap")
    with KvConnection(cluster.host, cluster.port) as items:
        for number in range(100):
            items.set(b"user::%d" % number, b"number %d" % number, flags=number)
        items.delete(b"user::7")
        addresses = [f"{server.host}:{server.port}" for server in (cluster, node)]
        with Program(tmp_path, "replicate", *addresses) as program:
            program.wait_for("caught up")
            with old_client(node, TapConnect(flags=SPYMEMCACHED | TapConnectFlag.DUMP, name=b"old")) as dump:
                dump.read(lambda: False)
            expected = {b"user::%d" % number: Seen(b"number %d" % number, number) for number in range(100)}
            expected.pop(b"user::7")
            assert {key: seen for key, seen in dump.items.items() if seen.value is not None} == expected
            later = TapConnect(flags=SPYMEMCACHED | TapConnectFlag.BACKFILL, name=b"old", backfill_date=FUTURE)
            with old_client(node, later) as follower:
                number = 0
                while b"first" not in follower.items:  # a connect is not answered: write until one is seen
                    number += 1
                    items.set(b"first", b"%d" % number)
                    follower._socket.settimeout(0.2)
                    try:
                        follower.read(lambda: b"first" in follower.items)
                    except TimeoutError:
                        assert number < 100, "nothing came"
                follower._socket.settimeout(WAIT_S)
                items.set(b"user::1", b"changed", flags=9)
                items.delete(b"user::2")
                follower.read(lambda: {b"user::1", b"user::2"} <= follower.items.keys())
            assert follower.items.keys() == {b"first", b"user::1", b"user::2"}
            assert follower.items[b"user::1"] == Seen(b"changed", 9)
            assert follower.items[b"user::2"] == Seen(None)


def test_the_program_of_the_guide_counts_every_item(
    start: Callable[[], Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The program by which the guide checks the node finds as many items as the cluster has."""
    cluster, node = start(), start()
    source_of(node, "tap")
    with KvConnection(cluster.host, cluster.port) as items:
        for number in range(20):
            items.set(b"user::%d" % number, b"Ann")
        items.delete(b"user::3")
    (program,) = re.findall(r"^```py\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert '("127.0.0.1", 11210)' in program
    code = program.replace('("127.0.0.1", 11210)', repr((node.host, node.port)))
    addresses = [f"{server.host}:{server.port}" for server in (cluster, node)]
    with Program(tmp_path, "replicate", *addresses) as copier:
        copier.wait_for("caught up")
        exec(compile(code, str(GUIDE), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "19 items\n"
