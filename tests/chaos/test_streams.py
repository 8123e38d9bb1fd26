"""Slow, cut, frozen, ended and refused streams: what a consumer sees of each, byte by byte where it matters."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from headrace.client import InvalidError, NotFoundError
from headrace.node.dcp.producer import Producer
from headrace.wire import encode
from headrace.wire.catalogue import (
    Control,
    DcpNoop,
    Done,
    FailoverLog,
    Mutation,
    Noop,
    Rollback,
    SnapshotMarker,
    StreamEnd,
)
from headrace.wire.codes import Status, StreamEndReason
from headrace.wire.header import Header
from headrace.wire.limits import HEADER_BYTES
from tests.chaos.seen import begun, end_of, fill, keys_of
from tests.node.talk import on_loop
from tests.streams.reader import Reader, size_of

if TYPE_CHECKING:
    from headrace.testing import LiveNode


def drained(reader: Reader) -> bytes:
    """All bytes until the node closes the connection; some may have come with the answer to a request."""
    frames = reader._reader
    blocks = [bytes(frames._buffer[frames._start :])]
    while True:
        try:
            block = reader.socket.recv(1 << 20)
        except ConnectionResetError:
            block = b""
        if not block:
            return b"".join(blocks)
        blocks.append(block)


def lengths(data: bytes) -> list[int]:
    """The lengths of the messages in some bytes; the last one may be a part of a message."""
    found, at = [], 0
    while at < len(data):
        body = Header.parse(data, at).body_length if len(data) - at >= HEADER_BYTES else 0
        size = min(HEADER_BYTES + body, len(data) - at)
        found.append(size)
        at += size
    return found


# ---------------------------------------------------------------------------------------------------------------- slow


def test_a_slowed_stream_comes_at_its_rate(node: LiveNode):
    """A stream of 60 KB at 30 KB a second takes about two seconds, whole and in order; calm, it comes at once."""
    keys = fill(node, 0, 60)
    node.write(dict.fromkeys(keys, bytes(1000)))
    node.chaos.slow(30_000, name="slow-*")
    with Reader(node, name="fast-1") as fast, Reader(node, name="slow-1") as slow:
        took, size = timed(fast)
        assert took < 1
        slowly, same = timed(slow)
        assert same == size > 60_000
        assert 0.6 * size / 30_000 < slowly < 2 * size / 30_000
        node.chaos.calm()
        assert timed(slow)[0] < 1
        assert node.chaos.show()[1:] == [
            {"connection": "fast-1", "is": "free", "streams": 0},
            {"connection": "slow-1", "is": "free", "streams": 0},
        ]


def timed(reader: Reader) -> tuple[float, int]:
    """How long the whole stream of a vbucket takes, and how many bytes it has."""
    began = time.monotonic()
    reader.begin(0, end=120)
    size = sum(map(size_of, reader.until_end()))
    return time.monotonic() - began, size


def test_an_open_connection_is_slowed_and_a_large_message_passes_whole(node: LiveNode):
    """A message that is larger than what may be sent at once goes out, and what follows waits for it."""
    with Reader(node) as reader:
        fill(node, 0, 1)
        begun(reader, 0, 1)
        node.chaos.slow(20_000)
        assert [effect["is"] for effect in node.chaos.show() if "connection" in effect] == ["slow"]
        began = time.monotonic()
        _, *keys = list(itertools.islice(keys_of(0, 16), 4))
        node.write(dict.fromkeys(keys, bytes(10_000)))
        assert [item.by_seqno for item in reader.items(3)] == [2, 3, 4]
        assert 0.6 < time.monotonic() - began < 5


# ----------------------------------------------------------------------------------------------------------------- cut


def test_a_connection_is_cut_now(node: LiveNode):
    """The connection is closed between two messages; others, by their name, are not."""
    with Reader(node, name="a-1") as cut, Reader(node, name="b-1") as left:
        fill(node, 0, 3)
        begun(cut, 0, 3)
        begun(left, 0, 3)
        assert node.chaos.cut(name="a-*") == ["a-1"]
        assert drained(cut) == b""
        fill(node, 0, 4)
        assert left.items(4)[-1].by_seqno == 7
    with pytest.raises(NotFoundError, match="no DCP or TAP connection is open whose name is a-1"):
        node.chaos.cut(name="a-1")


@pytest.mark.parametrize("mid_message", [False, True])
def test_a_connection_is_cut_after_some_messages(node: LiveNode, mid_message: bool):
    """So many messages come whole, then the end of the connection, or half of one more and then the end."""
    fill(node, 0, 10)
    with Reader(node) as reader:
        node.chaos.cut(after_messages=4, mid_message=mid_message)
        reader.begin(0)
        rest = lengths(drained(reader))
        marker, items = rest[0], rest[1:]
        assert marker == HEADER_BYTES + 20
        assert len(items) == (3 if mid_message else 2)
        assert items[:2] == [items[0]] * 2
        if mid_message:
            assert items[2] == items[0] // 2


def test_half_a_message_comes_of_a_live_change(node: LiveNode):
    """A cut in the middle of the next message waits for that message."""
    fill(node, 0, 2)
    with Reader(node) as reader:
        begun(reader, 0, 2)
        node.chaos.cut(mid_message=True)
        assert reader.is_quiet()
        fill(node, 0, 1)
        assert lengths(drained(reader)) == [(HEADER_BYTES + 20) // 2]


@pytest.mark.parametrize("size", [1, 24, 100, 44 + 3 * 70 + 11])
def test_a_connection_is_cut_after_some_bytes(node: LiveNode, size: int):
    """Exactly so many bytes come, wherever that falls."""
    fill(node, 0, 10)
    with Reader(node) as reader:
        begun(reader, 0, 10)
        node.chaos.cut(after_bytes=size)
        fill(node, 0, 10)
        assert len(drained(reader)) == size


def test_connections_that_come_are_cut_again(node: LiveNode):
    """Each new connection gets so far and no farther, until calm."""
    fill(node, 0, 10)
    assert node.chaos.cut(name="w*", after_messages=3, again=True) == []
    for _ in range(3):
        with Reader(node, name="worker") as reader:
            reader.begin(0)
            assert len(lengths(drained(reader))) == 2
    node.chaos.calm()
    with Reader(node, name="worker") as reader:
        begun(reader, 0, 10)
    for wrong in ({"again": True}, {"after_bytes": 3, "mid_message": True}, {"after_bytes": 3, "after_messages": 3}):
        with pytest.raises(InvalidError):
            node.chaos.cut(**wrong)


# ----------------------------------------------------------------------------------------------------------------- end


@pytest.mark.parametrize(
    ("reason", "number"), [("too_slow", StreamEndReason.TOO_SLOW), (1, StreamEndReason.CLOSED), ("77", 77)]
)
def test_streams_end_with_a_reason(node: LiveNode, reason: int | str, number: int):
    """The chosen stream ends with the chosen reason, the others and the connection go on."""
    fill(node, 0, 3)
    fill(node, 1, 3)
    with Reader(node) as reader:
        vbuuid = begun(reader, 0, 3)
        begun(reader, 1, 3)
        assert node.chaos.end(0, reason=reason) == 1
        assert end_of(reader) == number
        fill(node, 1, 1)
        assert reader.items(1)[0].vbucket == 1
        reader.begin(0, 3, vbuuid=vbuuid)
        with pytest.raises(NotFoundError, match=r"no connection whose name is . has such a stream"):
            node.chaos.end(2)
    with pytest.raises(NotFoundError):
        node.chaos.end(0)


# -------------------------------------------------------------------------------------------------------------- refuse


def test_stream_requests_are_refused_so_often(node: LiveNode):
    """The next ones are answered with the status, on connections that are open and on new ones; then all is well."""
    fill(node, 0, 1)
    with Reader(node) as reader:
        node.chaos.refuse(count=2)
        assert reader.request(0).status == Status.TEMPORARY_FAILURE
        with Reader(node) as other:
            assert other.request(0).status == Status.TEMPORARY_FAILURE
        assert isinstance(reader.request(0), FailoverLog)
        assert not [effect for effect in node.chaos.show() if "rule" in effect]


def test_the_status_of_a_refusal_is_chosen(node: LiveNode):
    """Not my vbucket has no body, rollback has the seqno; only the named vbuckets and connections are refused."""
    fill(node, 0, 9)
    with Reader(node, name="chosen") as chosen, Reader(node, name="other") as other:
        node.chaos.refuse("not-my-vbucket", vbuckets=[0, 1], name="chosen")
        assert isinstance(other.request(0), FailoverLog)
        assert isinstance(chosen.request(2), FailoverLog)
        reply = chosen.request(1)
        assert (reply.status, size_of(reply)) == (Status.NOT_MY_VBUCKET, HEADER_BYTES)
        node.chaos.refuse(0x23, seqno=4, vbuckets="0")
        back = chosen.request(0, 9)
        assert isinstance(back, Rollback)
        assert back.seqno == 4
        node.chaos.refuse("0x7e")
        assert chosen.request(0).status == 0x7E
        node.chaos.refuse("temporary_failure", count=100)
        node.chaos.calm()
        assert isinstance(chosen.request(0), FailoverLog)


# -------------------------------------------------------------------------------------------------------------- freeze


def test_a_frozen_connection_is_silent_and_loses_nothing(node: LiveNode):
    """Nothing comes, no change, no answer and no noop; thawed, all of it comes, in order."""
    fill(node, 0, 2)
    with Reader(node, controls={"enable_noop": "true", "set_noop_interval": "1"}) as reader:
        begun(reader, 0, 2)
        (name,) = node.chaos.freeze()
        fill(node, 0, 3)
        reader.socket.sendall(encode(Control(key=b"enable_noop", value=b"true")))
        assert reader.is_quiet(2.5)
        assert node.chaos.thaw() == [name]
        assert node.chaos.thaw() == []
        came = [type(reader.message()) for _ in range(6)]
        assert [one for one in came if one is not DcpNoop][:5] == [Done, SnapshotMarker, *[Mutation] * 3]


def test_what_was_held_back_comes_after_a_thaw(node: LiveNode):
    """The end of a stream that ended while frozen comes with the thaw; the connection is as good as before."""
    fill(node, 0, 2)
    with Reader(node) as reader:
        begun(reader, 0, 2)
        node.chaos.freeze()
        node.chaos.end(0)
        assert reader.is_quiet()
        node.chaos.calm()
        last = reader.message()
        assert isinstance(last, StreamEnd)
        assert last.reason == StreamEndReason.STATE_CHANGED
        assert reader.status(Noop()) == 0
        begun(reader, 0, 2)


# ---------------------------------------------------------------------------------------------------------------- none


def test_a_node_without_chaos_has_none(node: LiveNode):
    """Nothing stands between a producer and its line where nobody asked for trouble."""
    fill(node, 0, 2)
    with Reader(node) as reader:
        begun(reader, 0, 2)
        opened = node.running.services.buckets.get("default")
        assert opened is not None
        assert opened.chaos is None

        def producers() -> list[Producer]:
            return [one.end for one in opened.ends.values() if isinstance(one.end, Producer)]

        (producer,) = on_loop(node, producers)
        assert producer.trouble is None
        node.chaos.show()
        assert producer.trouble is None


def test_a_closed_connection_leaves_no_trouble_behind(node: LiveNode):
    """A troubled producer that is gone watches nothing any more."""
    opened = node.running.services.buckets.get("default")
    assert opened is not None
    node.chaos.slow(1000)
    with Reader(node) as reader:
        fill(node, 0, 2)
        begun(reader, 0, 2)
        assert len(opened.bucket.change_watchers) == 1
    for _ in range(500):
        if not opened.ends:
            break
        time.sleep(0.01)
    assert not opened.bucket.change_watchers
    assert not opened.bucket.state_watchers
