"""Bytes in any pieces, requests that wait, ends of every kind."""

from __future__ import annotations

import random
import socket
import time
from typing import TYPE_CHECKING

import pytest

from headrace.ids import Seqno
from headrace.node import Node
from headrace.store.records import unpack
from headrace.wire import encode
from headrace.wire.catalogue import (
    CreateBucket,
    Done,
    Flush,
    Get,
    Item,
    Mutated,
    Noop,
    SelectBucket,
    SeqnoPersistence,
    Set,
    SetQ,
    StartPersistence,
    StopPersistence,
    Text,
)
from headrace.wire.codes import Feature, Status
from tests.node.talk import Talk, on_loop

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.wire.message import Request


def test_requests_come_in_any_pieces(node: Node):
    """A pipeline cut at random places is answered as if it came at once."""
    draw = random.Random(3)
    for _ in range(20):
        with Talk(node) as talk:
            requests: list[Request] = []
            for index in range(60):
                key = b"piece%d" % draw.randrange(10)
                requests.append(Set(key=key, value=draw.randbytes(draw.randrange(300))))
                requests.append(draw.choice([Get(key=key), Noop(), SetQ(key=key, value=b"%d" % index)]))
            data = b"".join(map(encode, requests))
            answers = sum(not isinstance(request, SetQ) for request in requests)
            while data:
                size = draw.choice([1, 5, 23, 24, 25, 100, 1000])
                talk.socket.sendall(data[:size])
                data = data[size:]
                if draw.random() < 0.05:
                    time.sleep(0.001)
            assert [talk.receive().status for _ in range(answers)] == [Status.SUCCESS] * answers


def test_a_large_value_comes_in_pieces(node: Node):
    """Megabytes that arrive bit by bit are put together once, and counted while they are on their way."""
    value = random.Random(1).randbytes(5 << 20)
    with Talk(node) as talk:
        data = encode(Set(key=b"large", value=value))
        talk.socket.sendall(data[: 1 << 20])
        deadline = time.monotonic() + 10
        while not node.running.services.half_frame_bytes and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 0 < node.running.services.half_frame_bytes <= 1 << 20
        talk.socket.sendall(data[1 << 20 :])
        assert talk.receive().status == Status.SUCCESS
        assert talk.get(Get(key=b"large"), Item).value == value
        assert node.running.services.half_frame_bytes == 0


def test_what_follows_a_request_that_waits_waits_too(node: Node):
    """Answers come in the order of the requests, and the connection beside is served meanwhile."""
    with Talk(node, Feature.MUTATION_SEQNO) as talk, Talk(node) as other:
        other.get(StopPersistence(), Text)
        stored = talk.get(Set(key=b"wait", value=b"1"), Mutated)
        assert stored.seqno is not None
        opaques = talk.send(SeqnoPersistence(seqno=Seqno(stored.seqno)), Get(key=b"wait"), Noop())
        talk.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            talk.socket.recv(1)
        talk.socket.settimeout(20)
        assert other.status(Noop()) == Status.SUCCESS
        other.get(StartPersistence(), Text)
        assert [talk.receive().opaque for _ in opaques] == opaques


def test_who_has_said_all_still_hears_all(node: Node):
    """A client that shuts its side down is answered to the end, also behind a request that waits."""
    with Talk(node, Feature.MUTATION_SEQNO) as talk:
        stored = talk.get(Set(key=b"half", value=b"1"), Mutated)
        assert stored.seqno is not None
        talk.send(SeqnoPersistence(seqno=Seqno(stored.seqno)), Get(key=b"half"), Noop())
        talk.socket.shutdown(socket.SHUT_WR)
        assert [talk.receive().status for _ in range(3)] == [Status.SUCCESS] * 3
        assert talk.ends()


@pytest.mark.parametrize(
    "data",
    [
        b"get x\r\n",
        b"\x55" + bytes(23),
        bytes.fromhex("810a0000000000000000000000000001") + bytes(8),
        bytes.fromhex("80000010000000000000000400000001") + bytes(8) + b"four",
        bytes.fromhex("8001000008000000ffffffff00000001") + bytes(8),
    ],
    ids=["ascii", "no magic", "an answer", "key longer than body", "4 GiB"],
)
def test_what_is_no_request_ends_the_connection(node: Node, data: bytes):
    """What stood before it is answered; the node goes on for others."""
    with Talk(node) as talk, Talk(node) as other:
        talk.socket.sendall(encode(Noop()) + data)
        assert talk.receive().status == Status.SUCCESS
        assert talk.ends()
        assert other.status(Noop()) == Status.SUCCESS


def test_nothing_is_acknowledged_early_whatever_follows_it(tmp_path: Path):
    """With every write synced: a change of bucket, a flush or garbage behind a write lets no answer out before."""
    with Node(vbuckets=4, data=tmp_path, sync_every_write=True) as node, Talk(node) as talk:
        talk.get(CreateBucket(name=b"other"), Done)
        found = node.running.services.buckets.get("default")
        assert found is not None
        disk = found.bucket.disk

        def on_disk(key: bytes) -> bytes | None:
            with disk.reader.snapshot() as snapshot:
                record = snapshot.get(0, key)  # type: ignore[arg-type]
            return unpack(record).value if record is not None else None

        talk.send(Set(key=b"a", value=b"1"), SelectBucket(name=b"other"), Set(key=b"a", value=b"elsewhere"))
        assert talk.receive().status == Status.SUCCESS
        assert on_loop(node, lambda: on_disk(b"a")) == b"1"
        assert [talk.receive().status for _ in range(2)] == [0, 0]
        talk.get(SelectBucket(name=b"default"), Done)
        talk.get(Flush(), Done)
        assert on_loop(node, lambda: on_disk(b"a")) == b""
        talk.socket.sendall(encode(Set(key=b"b", value=b"2")) + b"garbage that is no header")
        assert talk.ends()
