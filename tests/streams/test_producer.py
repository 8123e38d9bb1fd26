"""What a node streams: all changes, in order, in snapshots with unique keys, from memory and from disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headrace.history import State
from headrace.ids import Seqno, VBucketId
from headrace.node.dcp import feed
from headrace.node.dcp.producer import Producer
from headrace.wire import Dialect, Message, Response, encode
from headrace.wire.catalogue import (
    AddStream,
    CloseStream,
    Control,
    DcpFlush,
    DcpNoop,
    Delete,
    Deletion,
    Flush,
    GetFailoverLog,
    Mutation,
    Noop,
    Open,
    Rollback,
    SeqnoPersistence,
    Set,
    SetVBucket,
    SnapshotMarker,
    StartPersistence,
    StopPersistence,
    StreamEnd,
    StreamRequest,
    SystemEvent,
)
from headrace.wire.codes import OpenFlag, SnapshotFlag, Status, StreamEndReason, StreamFlag
from tests.node.talk import Talk, on_loop
from tests.streams.reader import ITEMS, Reader, keys_of, size_of, write

if TYPE_CHECKING:
    from headrace.node import Node

VB = VBucketId(3)


def persist(node: Node, seqno: int) -> None:
    """Wait until vbucket 3 has a seqno on disk."""
    with Talk(node) as talk:
        talk.get(SeqnoPersistence(vbucket=VB, seqno=Seqno(seqno)), Response)


def check_snapshots(messages: list[Message]) -> None:
    """Seqnos rise, lie within their marker, markers join, and no key is there twice in one."""
    marker, last, seen = None, 0, set[bytes]()
    for message in messages:
        if isinstance(message, SnapshotMarker):
            assert marker is None or message.start_seqno == marker.end_seqno
            marker, seen = message, set()
        elif isinstance(message, ITEMS):
            assert marker is not None
            assert marker.start_seqno is not None
            assert marker.end_seqno is not None
            assert max(last, marker.start_seqno) < message.by_seqno <= marker.end_seqno
            assert message.key not in seen
            last = message.by_seqno
            seen.add(message.key)


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_everything_then_what_changes(node: Node, is_on_disk: bool):
    """A stream from 0 gives each key once, then every later change; nothing twice, nothing missing."""
    write(node, VB, [f"k{n % 50}" for n in range(120)])
    if is_on_disk:
        persist(node, 120)
        on_loop(node, lambda: drop_memory(node))
    with Reader(node) as reader:
        reader.begin(VB)
        first = reader.items(50)
        assert [one.by_seqno for one in first] == list(range(71, 121))
        write(node, VB, ["a", "b", "a"])
        assert keys_of(reader.items(2)) == ["b", "a"]
        assert reader.is_quiet()


def drop_memory(node: Node) -> None:
    """Have memory forget what is on disk."""
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    for vb in opened.bucket.vbuckets:
        assert vb is not None
        vb.drop_recent()


def test_backfill_then_tail_while_writes_go_on(node: Node):
    """Written before, during and after the backfill: the newest of each key arrives, in snapshots that join."""
    write(node, VB, [f"k{n}" for n in range(2000)], b"x" * 100)
    persist(node, 2000)
    on_loop(node, lambda: drop_memory(node))
    with Reader(node) as reader:
        reader.begin(VB)
        found = [reader.message() for _ in range(10)]
        for part in range(20):
            write(node, VB, [f"k{n}" for n in range(part * 10, part * 10 + 30)], b"y" * 100)
        state: dict[bytes, int] = {}
        while len(state) < 2000 or max(state.values()) < 2600:
            found.append(reader.message())
            state |= {one.key: one.by_seqno for one in found if isinstance(one, Mutation)}
        check_snapshots(found)
        assert {one.flags for one in found if isinstance(one, SnapshotMarker)} >= {SnapshotFlag.DISK}


def test_the_end_does_not_cut_a_snapshot(node: Node):
    """A stream that ends in the middle goes on to the end of the snapshot, then says that it ended."""
    write(node, VB, [f"k{n}" for n in range(6)])
    with Reader(node) as reader:
        reader.begin(VB, 0, 3)
        found = reader.until_end()
        assert [one.by_seqno for one in found[1:-1]] == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]
        assert found[-1].reason == StreamEndReason.OK  # type: ignore[attr-defined]


@pytest.mark.parametrize("flag", [StreamFlag.TO_LATEST, StreamFlag.DISK_ONLY])
def test_flags_that_end_a_stream(node: Node, flag: StreamFlag):
    """To latest ends at the high seqno of the request; disk only reads the disk though memory has it."""
    write(node, VB, [f"k{n}" for n in range(5)])
    persist(node, 5)
    with Reader(node) as reader:
        reader.begin(VB, flags=flag)
        found = reader.until_end()
        assert len(keys_of(found)) == 5
        expected = SnapshotFlag.DISK if flag is StreamFlag.DISK_ONLY else SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT
        assert found[0].flags == expected  # type: ignore[attr-defined]


def test_resume_goes_on_behind_the_position(node: Node):
    """A reader that comes back with its branch and seqno gets what it has not, and no more."""
    write(node, VB, [f"k{n}" for n in range(10)])
    with Reader(node) as reader:
        uuid = reader.begin(VB)
        assert len(reader.items(10)) == 10
    write(node, VB, ["late"])
    with Reader(node) as reader:
        reader.begin(VB, 10, vbuuid=uuid)
        assert keys_of(reader.items(1)) == ["late"]
    with Reader(node) as reader:
        rollback = reader.request(VB, 30, vbuuid=uuid)
        assert isinstance(rollback, Rollback)
        assert rollback.seqno == 11


def test_streams_of_many_vbuckets_take_turns(node: Node):
    """Eight large backfills on one connection come on side by side, not one after the other."""
    for vb in range(8):
        write(node, vb, [f"k{n}" for n in range(1500)], b"z" * 1000)
    with Reader(node, controls={"connection_buffer_size": str(4 << 20), "set_priority": "low"}) as reader:
        requests = (
            StreamRequest(vbucket=VBucketId(vb), snapshot_start=Seqno(0), snapshot_end=Seqno(0)) for vb in range(8)
        )
        reader.socket.sendall(b"".join(map(encode, requests)))  # one by one, the first could be far before the last
        seen: set[int] = set()
        size = 0
        while size < 2 << 20:
            message = reader.message()
            if isinstance(message, Mutation):
                seen.add(message.vbucket)
                size += size_of(message)
        assert seen == set(range(8))


def test_a_window_is_kept_and_passed_by_one_message(node: Node):
    """A producer stops once what is not acknowledged has reached the window, and goes on when it may."""
    write(node, VB, [f"key{n:03}" for n in range(200)], b"v" * 50)
    with Reader(node, controls={"connection_buffer_size": "1000"}) as reader:
        reader.begin(VB)
        keys: list[str] = []
        while len(keys) < 200:
            got = 0
            while got < 1000 and len(keys) < 200:
                message = reader.message()
                got += size_of(message)
                keys += keys_of([message])
            assert got < 1000 + 200
            if len(keys) < 200:
                assert reader.is_quiet(0.05)
            reader.ack(got)
        assert keys == [f"key{n:03}" for n in range(200)]


def test_a_reader_that_never_reads_costs_a_bounded_amount(node: Node):
    """Nothing beyond the socket's own buffers and one block is held for it, and others are served."""
    write(node, VB, [f"k{n}" for n in range(30_000)], b"w" * 1000)
    persist(node, 30_000)
    with Reader(node) as slow, Reader(node) as quick:
        slow.begin(VB)
        quick.begin(VB)
        assert len(quick.items(30_000)) == 30_000
        least, most = sorted(sent_bytes(node))
        assert most > 30_000 * 1000
        assert least < 16 << 20


def sent_bytes(node: Node) -> list[int]:
    """What each connection that was opened for streams has sent."""
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    ends = [session.end for session in opened.ends.values()]
    return [end.sent_bytes for end in ends if isinstance(end, Producer)]


def test_a_large_tail_in_memory_goes_by_the_disk(node: Node, monkeypatch: pytest.MonkeyPatch):
    """More than a slow reader may hold is flushed first and read from there; without a disk, memory has to do."""
    monkeypatch.setattr(feed, "MEMORY_SNAPSHOT_BYTES_MAX", 50_000)
    write(node, VB, [f"k{n}" for n in range(1000)], b"v" * 100)
    with Reader(node) as reader, Talk(node) as talk:
        reader.begin(VB)
        assert markers_until(reader, 1000) == {int(SnapshotFlag.DISK)}
        talk.ask(StopPersistence())
        write(node, VB, [f"k{n}" for n in range(1000)], b"w" * 100)
        assert all(flags & SnapshotFlag.MEMORY for flags in markers_until(reader, 2000))
        talk.ask(StartPersistence())


def markers_until(reader: Reader, seqno: int) -> set[int]:
    """The flags of the markers up to a change."""
    flags: set[int] = set()
    while not isinstance(message := reader.message(), ITEMS) or message.by_seqno < seqno:
        if isinstance(message, SnapshotMarker):
            flags.add(message.flags or 0)
    return flags


def test_closing_a_stream(node: Node):
    """Closed without a message, or with one where that was asked for; a second close finds nothing."""
    write(node, VB, ["k"])
    for told in ("false", "true"):
        with Reader(node, controls={"send_stream_end_on_client_close_stream": told}) as reader:
            reader.begin(VB)
            reader.items(1 if told == "false" else 2)
            assert reader.status(CloseStream(vbucket=VB)) == 0
            if told == "true":
                assert reader.message().reason == StreamEndReason.CLOSED  # type: ignore[attr-defined]
            assert reader.status(CloseStream(vbucket=VB)) == Status.KEY_NOT_FOUND
            write(node, VB, ["later"])
            assert reader.is_quiet()


def test_a_change_of_state_ends_streams(node: Node):
    """Reason 2, and the vbucket can be streamed in its new state."""
    write(node, VB, ["k"])
    with Reader(node) as reader, Talk(node) as talk:
        reader.begin(VB)
        reader.items(1)
        talk.ask(SetVBucket(vbucket=VB, state=State.REPLICA))
        assert reader.message() == StreamEnd(vbucket=VB, opaque=1003, reason=2)  # type: ignore[arg-type]
        reader.begin(VB)
        assert keys_of(reader.items(1)) == ["k"]


def test_a_name_opened_again_closes_the_older_connection(node: Node):
    """The newer one streams, and its own end leaves the name free."""
    with Reader(node, name="twice") as older, Reader(node, name="twice") as newer:
        assert older.ends()
        newer.begin(VB)
        with Talk(node) as talk:
            assert talk.stats(b"dcp")["eq_dcpq:twice:stream_3_state"] == "streaming"


@pytest.mark.parametrize("message", [AddStream(vbucket=VB), DcpNoop(), DcpFlush(), Open(name=b"again", flags=1)])
def test_what_is_not_for_a_producer_ends_the_connection(node: Node, message: object):
    """Without an answer, as the real server did (capture 03b_dcp_malformed)."""
    with Reader(node) as reader:
        reader.send(message)  # type: ignore[arg-type]
        assert reader.ends()


def test_before_open_there_are_no_streams(node: Node):
    """A stream request without OPEN ends the connection; the failover log is given to who asks, as gomemcached does."""
    with Talk(node) as talk:
        assert talk.status(GetFailoverLog(vbucket=VB)) == 0
        talk.send(StreamRequest(vbucket=VB))
        assert talk.ends()


def test_a_later_release_s_command_is_unknown(node: Node):
    """0x81, and the connection goes on."""
    with Reader(node) as reader:
        assert reader.status(SystemEvent(by_seqno=Seqno(1), event=0, version=0)) == Status.UNKNOWN_COMMAND
        assert reader.status(Noop()) == 0


def test_items_can_be_used_on_the_same_connection(node: Node):
    """Captures 03b q and r: SET and NOOP are served on a producer's connection."""
    with Reader(node) as reader:
        assert reader.status(Set(vbucket=VB, key=b"k", value=b"v")) == 0
        assert reader.status(Noop()) == 0


def test_noops_are_asked_and_must_be_answered(node: Node):
    """One an interval while a stream is open; no answer ends the connection."""
    with Reader(node, controls={"enable_noop": "true", "set_noop_interval": "1"}) as reader:
        reader.begin(VB)
        asked = reader.message()
        assert isinstance(asked, DcpNoop)
        reader.socket.sendall(bytes([0x81, 0x5C]) + bytes(10) + asked.opaque.to_bytes(4, "big") + bytes(8))
        assert isinstance(reader.message(), DcpNoop)
        began = time.monotonic()
        assert reader.ends()
        assert time.monotonic() - began < 5


def test_a_noop_answered_with_another_opaque(node: Node):
    """Ends the connection at once."""
    with Reader(node, controls={"enable_noop": "true", "set_noop_interval": "1"}) as reader:
        reader.begin(VB)
        assert isinstance(reader.message(), DcpNoop)
        reader.socket.sendall(bytes([0x81, 0x5C]) + bytes(22))
        assert reader.ends()


def test_upr_is_served_as_such(node: Node):
    """A request of 40 bytes makes the connection one of UPR: mutations have 30 bytes, and it is seen in the stats."""
    write(node, VB, ["k"])
    with Reader(node, name="old") as reader, Talk(node) as talk:
        talk.ask(Delete(vbucket=VB, key=b"k"))
        write(node, VB, ["j"])
        reader.begin_upr(3)
        assert isinstance(reader.message(), SnapshotMarker)
        deletion, mutation = reader.message(), reader.message()
        assert isinstance(deletion, Deletion)
        assert (type(mutation), mutation.layout) == (Mutation, "30 bytes")
        assert talk.stats(b"dcp")["eq_dcpq:old:dialect"] == Dialect.UPR
        # The other form is refused while there are streams of this one.
        assert reader.request(4).status == Status.INVALID
        talk.send(Flush())
        assert isinstance(reader.message(), DcpFlush)


def test_a_notifier_tells_that_there_is_something(node: Node):
    """Its streams show no changes: they end when there is one behind their start."""
    with Reader(node, flags=OpenFlag.NOTIFIER) as reader:
        reader.begin(VB)
        assert reader.is_quiet()
        write(node, VB, ["k"])
        assert reader.message().reason == StreamEndReason.OK  # type: ignore[attr-defined]


def test_a_control_that_is_wrong(node: Node):
    """Refused with 0x04, and the connection goes on."""
    with Reader(node) as reader:
        assert reader.status(Control(key=b"nonsense", value=b"1")) == Status.INVALID
        assert reader.status(Control(key=b"enable_noop", value=b"true")) == 0
