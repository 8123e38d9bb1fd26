"""What a consumer may do to a node: nothing that costs without bound, and nothing that its role does not allow."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from headrace.history import Cause, State
from headrace.ids import Cas, Opaque, Seqno, VBucketId
from headrace.node import Node
from headrace.node.dcp.producer import Producer
from headrace.node.users import Role, User, Users
from headrace.store.records import LIVE, Record
from headrace.wire import encode
from headrace.wire.catalogue import (
    CloseStream,
    DeleteVBucket,
    Done,
    ErrorReply,
    Get,
    GetVBucket,
    SelectBucket,
    Set,
    SetVBucket,
    SetVBucketState,
    SnapshotMarker,
    StreamEnd,
    StreamRequest,
)
from headrace.wire.codes import SnapshotFlag, Status, StreamFlag
from tests.node.talk import Talk, on_loop
from tests.streams.reader import Reader, write

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.node.buckets import OpenBucket

VB = VBucketId(3)
_MARKER, _SET_STATE = 0x56, 0x5B


def opened(node: Node) -> OpenBucket:
    """The bucket of a node."""
    found = node.running.services.buckets.get("default")
    assert found is not None
    return found


def accept(reader: Reader, opcode: int) -> None:
    """Answer a message of the stream of vbucket 3."""
    reader.socket.sendall(encode(Done(opcode=opcode, opaque=Opaque(1003))))


def test_answers_that_nobody_reads_are_bounded(node: Node):
    """A consumer that asks for items and reads none of them waits, as any other client does."""
    with Talk(node) as talk:
        assert talk.status(Set(vbucket=VB, key=b"k", value=bytes(1 << 20))) == 0
    with Reader(node) as reader:
        reader.socket.sendall(encode(Get(vbucket=VB, key=b"k")) * 200)
        time.sleep(1)
        (connection,) = [one for one in node.running.services.connections if one.session.end is not None]
        owed = on_loop(node, connection._transport.get_write_buffer_size)
        assert 1 << 20 < owed < 16 << 20
        for _ in range(200):
            assert len(reader.receive_raw().body) > 1 << 20


def test_a_takeover_takes_the_role_admin(tmp_path: Path):
    """Who may only stream cannot take a vbucket out of service."""
    path = tmp_path / "users.json"
    Users([User.create("reader", "secret-1", {Role.STREAM}, iterations=4096)]).save(path)
    with Node(vbuckets=8, users=path) as node, Talk(node) as talk:
        assert talk.log_in("reader", "secret-1").status == 0
        assert talk.status(SelectBucket(name=b"default")) == 0
        Reader.open_on(talk)
        asked = StreamRequest(vbucket=VB, flags=StreamFlag.TAKEOVER, snapshot_start=Seqno(0), snapshot_end=Seqno(0))
        assert talk.status(asked) == Status.NO_ACCESS


def test_streams_that_ended_are_forgotten(node: Node):
    """Asked for and closed again and again behind a full window, they leave nothing."""
    write(node, VB, [f"k{n}" for n in range(50)])
    with Reader(node, controls={"connection_buffer_size": "10"}) as reader:
        reader.begin(VB)
        reader.message()
        for _ in range(300):
            assert reader.request(4).status == 0
            assert reader.status(CloseStream(vbucket=VBucketId(4))) == 0
        (session,) = opened(node).ends.values()
        assert isinstance(session.end, Producer)
        assert len(session.end._turns._ready) <= 2


def test_a_name_is_free_when_its_connection_is_gone(node: Node):
    """Also when another bucket was selected after open."""
    with Reader(node) as reader:
        reader.ask(SelectBucket(name=b"nonesuch"))
    deadline = time.monotonic() + 10
    while opened(node).ends and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not opened(node).ends


def test_reasons_are_few(node: Node):
    """What a peer can choose the words of is not counted by its words."""
    for number in range(5):
        with Reader(node) as reader:
            reader.socket.sendall(encode(Done(opcode=0x0A, opaque=Opaque(number))))
            assert reader.ends()
    assert len(node.running.services.counts.closed_for) == 1


def test_a_vbucket_removed_during_its_takeover_stays_removed(node: Node):
    """The source of a takeover that drains is dead, so a manager may remove it: nobody serves it after that."""
    write(node, VB, [f"k{n}" for n in range(20)])
    with Reader(node) as reader, Talk(node) as talk:
        reader.begin(VB, flags=StreamFlag.TAKEOVER)
        while not isinstance(message := reader.message(), SetVBucketState):
            if isinstance(message, SnapshotMarker) and (message.flags or 0) & SnapshotFlag.ACK:
                accept(reader, _MARKER)
        write(node, VB, ["late"])
        accept(reader, _SET_STATE)
        assert isinstance(reader.message(), SnapshotMarker)  # it drains: its marker is not answered
        assert talk.status(DeleteVBucket(vbucket=VB)) == 0
        assert talk.status(GetVBucket(vbucket=VB)) == Status.NOT_MY_VBUCKET
        assert talk.status(Set(vbucket=VB, key=b"k", value=b"v")) == Status.NOT_MY_VBUCKET
        assert talk.status(SetVBucket(vbucket=VB, state=State.ACTIVE)) == 0
        assert talk.status(Get(vbucket=VB, key=b"k0")) == Status.KEY_NOT_FOUND
        assert opened(node).bucket.trouble is None


@pytest.mark.parametrize("cut_in", ["offered", "draining"])
def test_a_takeover_that_is_cut_leaves_the_source_active(node: Node, cut_in: str):
    """Before it has told the other side to be active, it takes writes again by itself, on the same branch."""
    write(node, VB, ["a", "b"])
    before = opened(node).bucket.vbucket(VB).vbuuid
    with Reader(node) as reader:
        reader.begin(VB, flags=StreamFlag.TAKEOVER)
        while not isinstance(message := reader.message(), SetVBucketState):
            if isinstance(message, SnapshotMarker) and (message.flags or 0) & SnapshotFlag.ACK:
                accept(reader, _MARKER)
        if cut_in == "draining":
            write(node, VB, ["late"])
            accept(reader, _SET_STATE)
            assert isinstance(reader.message(), SnapshotMarker)
            with Talk(node) as talk:
                assert talk.status(Set(vbucket=VB, key=b"c", value=b"v")) == Status.NOT_MY_VBUCKET
    with Talk(node) as talk:
        deadline = time.monotonic() + 10
        while (status := talk.status(Set(vbucket=VB, key=b"c", value=b"v"))) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert status == 0
    assert opened(node).bucket.vbucket(VB).vbuuid == before


@pytest.mark.parametrize(
    ("ended_by", "state"),
    [("close", State.DEAD), ("error to a marker", State.DEAD), ("cut", State.DEAD), ("refusal", State.ACTIVE)],
)
def test_behind_the_last_step_the_target_decides(node: Node, ended_by: str, state: State):
    """Once the target was told to be active, only its refusal gives the vbucket back: there are never two owners."""
    write(node, VB, ["a"])
    with Reader(node, controls={"send_stream_end_on_client_close_stream": "true"}) as reader:
        reader.begin(VB, flags=StreamFlag.TAKEOVER)
        told: list[int] = []
        while told != [State.PENDING, State.ACTIVE]:
            message = reader.message()
            if isinstance(message, SnapshotMarker) and (message.flags or 0) & SnapshotFlag.ACK:
                accept(reader, _MARKER)
            elif isinstance(message, SetVBucketState):
                told.append(message.state)
                if message.state == State.PENDING:
                    accept(reader, _SET_STATE)
        if ended_by == "close":
            assert reader.status(CloseStream(vbucket=VB)) == 0
        elif ended_by != "cut":
            opcode = _MARKER if ended_by == "error to a marker" else _SET_STATE
            reader.socket.sendall(encode(ErrorReply(opcode=opcode, opaque=Opaque(1003), status=Status.INVALID)))
            assert isinstance(reader.message(), StreamEnd)
    time.sleep(0.2)
    assert opened(node).bucket.vbucket(VB).state is state


def test_a_stream_of_a_replica_goes_on_behind_a_large_snapshot():
    """What a replica got in a snapshot that did not fit into memory is shown when the disk has it whole."""
    with Node(vbuckets=8) as node:
        bucket = opened(node).bucket
        vb = bucket.vbucket(VB)
        on_loop(node, lambda: bucket.set_state(vb, State.REPLICA, Cause.SET_VBUCKET))
        with Reader(node) as reader:
            reader.begin(VB)

            async def receive() -> None:
                bucket.begin_snapshot(vb, 0, 400)
                for number in range(1, 401):
                    bucket.apply(vb, _record(number))
                    if not number % 50:
                        await asyncio.sleep(0.06)
                await asyncio.sleep(0.5)
                assert vb.is_spilled
                bucket.drop_recent(vb)
                bucket.end_snapshot(vb)
                bucket.changed()

            on_loop(node, receive)
            assert [one.by_seqno for one in reader.items(400)] == list(range(1, 401))


def _record(number: int) -> bytes:
    return Record(
        opcode=LIVE, vbucket=VB, key=b"k%d" % number, seqno=Seqno(number), rev_seqno=1, cas=Cas(number + 1),
        value=b"x" * (60 << 10), datatype=0,
    ).pack()  # fmt: skip
