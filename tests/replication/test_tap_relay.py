"""A played old server, carried into a real node: whole, cut, refused, slow, and with a disk that is behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import InvalidError, ServerAnswerError
from headrace.client.tap_node import TapConnection
from headrace.ids import Opaque
from headrace.node import Node, NodeLimits
from headrace.pipelines.replicate import RefusedError
from headrace.pipelines.servers import Vbuckets
from headrace.pipelines.tap_relay import TapRelay
from headrace.pipelines.tap_replicate import TapReplication
from headrace.testing import LiveNode
from headrace.wire import Dialect, Response, encode
from headrace.wire.catalogue import (
    Noop,
    Set,
    StartPersistence,
    StopPersistence,
    TapConnect,
    TapDelete,
    TapFlush,
    TapMutation,
    TapRequest,
)
from headrace.wire.codes import Status, TapConnectFlag, TapFlag, TapOpaqueCode
from tests.client.servers import refused
from tests.client.tap_server import TapServer, bytes_of, details, item, opaque, options, playing, read, whole
from tests.processes import start_node
from tests.replication.nodes import WAIT_S, dump, eventually, running, server_at

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from headrace.pipelines.servers import Server
    from headrace.wire import FrameReader

ASKED = TapFlag.ACK | TapFlag.NETWORK_BYTE_ORDER


def held() -> dict[str, str]:
    """One vbucket with items."""
    return details({0: 1})


def items(count: int, size: int = 10) -> list[TapRequest]:
    """Some items, the last of which asks for an ack."""
    return [
        item(b"key%d" % number, b"x" * size, opaque=Opaque(number), tap_flags=ASKED if number == count - 1 else 4)
        for number in range(count)
    ]


def bounded() -> Callable[[], bool]:
    """Stop after a while, so that a job which should have ended is seen not to."""
    end = time.monotonic() + WAIT_S
    return lambda: time.monotonic() > end


def once(played: TapServer, target: Server, **more: Any) -> TapReplication:
    """Dump into a target."""
    job = TapReplication(options(played), target, **more)
    assert job.run(bounded(), once=True).caught_up
    return job


def test_a_dump():
    """Every item arrives, every ack goes back, and signs of life are given by the relay."""
    sent = whole(*items(50), Noop())
    with playing(TapServer(sent, held)) as played, LiveNode(vbuckets=1) as node:
        job = once(played, server_at(node.host, node.port))
        assert node.count() == 50
    assert (job.progress.items, job.progress.joins, job.progress.vbuckets) == (50, 1, 1)
    assert len(played.acks) == 5


def test_an_empty_server():
    """There is nothing to dump, and that is all."""
    with playing(TapServer([], lambda: details({0: 0}))) as played, LiveNode(vbuckets=1) as node:
        assert once(played, server_at(node.host, node.port)).progress.items == 0
    assert not played.connects


@dataclass
class Breaking(TapServer):
    """One that breaks off at given places, connection after connection, and then no more."""

    cuts: Sequence[int] = ()

    def _dump(self, connection: socket.socket, reader: FrameReader, asked: TapConnect) -> None:
        number = len(self.connects) - 1
        self.cut_bytes = self.cuts[number] if number < len(self.cuts) else None
        super()._dump(connection, reader, asked)


def test_cut_anywhere():
    """However often and wherever the source breaks off, the copy ends as an undisturbed one, seqnos too."""
    sent = whole(*items(6))
    size = len(b"".join(sent))
    with playing(TapServer(sent, held)) as played, Node(vbuckets=1) as node:
        once(played, server_at(node.host, node.port))
        undisturbed = dump(server_at(node.host, node.port), 0)
    for first in range(1, size, 61):
        cuts = (first, size - first, first // 2 + 30)
        with playing(Breaking(sent, held, cuts=cuts)) as played, Node(vbuckets=1) as node:
            target = server_at(node.host, node.port)
            assert once(played, target).progress.joins >= 3
            assert dump(target, 0) == undisturbed


def test_a_source_that_closes_a_stream_which_goes_on():
    """Also after all old items: the job joins again, and does not take it for an end."""
    with playing(TapServer(whole(*items(5)), held)) as played, LiveNode(vbuckets=1) as node:
        with running(TapReplication(options(played), server_at(node.host, node.port))) as failures:
            eventually(lambda: len(played.connects) > 1, "the source is asked again")
        assert not failures
        assert node.count() == 5


def test_the_target_refuses():
    """What the target does not have ends the job, with a sentence that says what was refused."""
    spent = whole(item(b"key", ttl=0, tap_flags=ASKED))
    with playing(TapServer(spent, held, stays=True)) as played, Node(vbuckets=1) as node:
        job = TapReplication(options(played), server_at(node.host, node.port))
        with pytest.raises(RefusedError, match="message 0x41, status 0x04"):
            job.run(bounded())


def test_no_tap_stream():
    """A server that refuses TAP ends the job with what it says."""
    strange = [encode(refused(TapConnect(), Status.INVALID, b"?"))]
    with playing(TapServer(strange, held)) as played, Node(vbuckets=1) as node:
        job = TapReplication(options(played), server_at(node.host, node.port))
        with pytest.raises(InvalidError, match="TAP from"):
            job.run(bounded())


def test_itself():
    """A server is no copy of itself."""
    with playing(TapServer([], held)) as played, pytest.raises(RefusedError, match="of itself"):
        TapReplication(options(played), server_at("127.0.0.1", played.port)).run(bounded())


def test_acks_wait_for_the_disk():
    """Nothing is acknowledged that the target has in memory alone."""
    frames = bytes_of(opaque(TapOpaqueCode.ENABLE_AUTO_NACK), *items(20))
    with playing(TapServer(frames, held, stays=True)) as played, LiveNode(vbuckets=1) as node:
        node.items.request(StopPersistence())
        with running(TapReplication(options(played), server_at(node.host, node.port))) as failures:
            eventually(lambda: node.count() == 20, "the items are there")
            time.sleep(0.3)
            assert len(played.acks) == 1, "of the message that is no item"
            node.items.request(StartPersistence())
            eventually(lambda: len(played.acks) == 2, "the ack goes when the disk has them")
        assert not failures


@dataclass
class Patient(TapServer):
    """One that sends again what was refused for now, as servers do."""

    again: int = 0

    def _dump(self, connection: socket.socket, reader: FrameReader, asked: TapConnect) -> None:
        del asked
        for frame in self.frames:
            message = read(frame)
            connection.sendall(frame)
            while isinstance(message, TapRequest) and message.tap_flags & TapFlag.ACK:
                ack = self._next(connection, reader)
                if not isinstance(ack, Response) or ack.status != Status.TEMPORARY_FAILURE:
                    break
                self.again += 1
                time.sleep(0.01)
                connection.sendall(frame)


def test_a_disk_that_is_behind():
    """What the target refuses for now is sent again by the source, until it is taken."""
    sent = [item(b"key%d" % number, b"x" * 10_000, opaque=Opaque(number), tap_flags=ASKED) for number in range(60)]
    frames = whole(*sent)
    limits = NodeLimits(dirty_bytes_max=200_000)
    with playing(Patient(frames, held)) as played, LiveNode(vbuckets=1, limits=limits) as node:
        assert isinstance(played, Patient)
        node.items.request(StopPersistence())

        number = 0
        while node.items.ask_all([Set(key=b"full%d" % number, value=b"x" * 20_000)])[0].status == Status.SUCCESS:
            number += 1
        starter = threading.Timer(1.0, start_again, [server_at(node.host, node.port)])
        starter.start()
        try:
            once(played, server_at(node.host, node.port))
        finally:
            starter.join()
        assert played.again > 0
        assert {b"key%d" % number for number in range(60)} <= dump(server_at(node.host, node.port), 0).keys()


def start_again(server: Server) -> None:
    """Let the disk go on, by a connection of its own: another thread uses the node's."""
    with server.connect() as manager:
        manager.request(StartPersistence())


def test_a_flush_is_waited_for():
    """A flush touches every vbucket, and its ack waits for all of them."""
    frames = whole(*items(20), TapFlush(tap_flags=TapFlag.ACK, opaque=Opaque(77)))
    with playing(TapServer(frames, held)) as played, LiveNode(vbuckets=2) as node:
        node.write(30, prefix="old-")
        once(played, server_at(node.host, node.port))
        assert node.count() == 0


def test_a_slow_target():
    """A target that does not read stops the source; nothing gathers in between, and all arrives when it reads on."""
    frames = whole(*items(600, 100_000))
    node = start_node("--vbuckets", "1")
    try:
        target = server_at(node.host, node.port)
        with playing(TapServer(frames, held)) as played:
            how = options(played)
            with TapConnection(how.seeds[0], how) as source:
                relay = TapRelay(source, target, expected={0})
                flags = TapConnectFlag.DUMP | TapConnectFlag.SUPPORT_ACK
                relay.tell_source(encode(TapConnect(flags=flags, name=b"slow"), Dialect.TAP))
                os.kill(node.pid, signal.SIGSTOP)
                try:
                    while relay.step(1.0):
                        pass
                    stalled_at = relay.total_bytes
                finally:
                    os.kill(node.pid, signal.SIGCONT)
                end = time.monotonic() + WAIT_S
                while not (relay.is_over and relay.is_settled):
                    assert time.monotonic() < end
                    relay.step(0.1)
                relay.close()
        assert stalled_at < 20_000_000 < relay.total_bytes
        with Vbuckets(target) as vbuckets:
            assert vbuckets.seqnos()[0] == 600
    finally:
        node.stop()
        node.close()


@pytest.mark.parametrize("message", [TapMutation, TapDelete, TapFlush])
def test_an_item_without_its_fields(message: type[TapRequest]):
    """What is too short for what it says it is is no TAP message, and nothing worse."""
    short = bytearray(encode(Noop()))  # a header alone
    short[1] = message.spec.opcodes[Dialect.TAP]
    with playing(TapServer([], held)) as played, Node(vbuckets=1) as node:
        how = options(played)
        with TapConnection(how.seeds[0], how) as source:
            relay = TapRelay(source, server_at(node.host, node.port))
            try:
                with pytest.raises(ServerAnswerError, match="no TAP stream has"):
                    relay._down.take(bytes(short))
            finally:
                relay.close()


def test_what_a_target_must_not_send():
    """A request of the target is no ack."""
    frames = whole(*items(3))
    with playing(TapServer(frames, held)) as played, Node(vbuckets=1) as node:
        how = options(played)
        with TapConnection(how.seeds[0], how) as source:
            relay = TapRelay(source, server_at(node.host, node.port))
            try:
                with pytest.raises(ServerAnswerError, match="acks are expected"):
                    relay._up.take(encode(Noop()))
            finally:
                relay.close()
