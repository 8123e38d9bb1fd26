"""Streams in the UPR draft: the document's own bytes, every message of it, and what is refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from headrace.history import State
from headrace.ids import Opaque, Seqno, VBucketId, VbUuid
from headrace.node import Node
from headrace.node.users import Role, User, Users
from headrace.testing import Chaos
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import (
    AddStream,
    Control,
    DcpFlush,
    Delete,
    Deletion,
    Done,
    ErrorReply,
    Expiration,
    Flush,
    Get,
    GetFailoverLog,
    Mutation,
    Noop,
    Open,
    Rollback,
    SelectBucket,
    Set,
    SetVBucket,
    SetVBucketState,
    SetWithMeta,
    SnapshotEnd,
    SnapshotStart,
    StreamEnd,
    StreamRequest,
    StreamStart,
)
from headrace.wire.codes import Datatype, Feature, OpenFlag, Status, StreamFlag
from tests.node.talk import Talk, on_loop
from tests.replication.nodes import eventually
from tests.streams.draft_client import DRAFT, DraftTalk, Place
from tests.streams.reader import Reader, write
from tests.streams.test_forms import SMALL, XATTRS
from tests.wire.vectors import documents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VB = 3
DRAWN = {vector.id: vector.wire for vector in documents()}
REQUEST, LOG_REQUEST = DRAWN["draft-154"], DRAWN["draft-342"]
ITEM_AT = 40
"""Where CAS, seqno and revision end, which no two nodes have in common."""


@pytest.fixture
def sixteen() -> Iterator[Node]:
    """A node with the vbucket of the document's examples, which is 12."""
    with Node(vbuckets=16) as running:
        yield running


def raw(talk: Talk) -> bytes:
    """The next frame as it came."""
    return talk.receive_raw().pack()


def send_slowly(talk: Talk, data: bytes) -> None:
    """Send a message one byte at a time."""
    for at in range(len(data)):
        talk.socket.sendall(data[at : at + 1])


def stat(talk: Talk, name: str) -> str:
    """What the node tells of this connection."""
    host, port = talk.socket.getsockname()
    return talk.stats(b"dcp")[f"eq_dcpq:upr-draft:{host}:{port}:{name}"]


# -- the document's own bytes


def test_the_request_that_the_document_draws(sixteen: Node):
    """Sent byte by byte, it is answered as drawn, and the stream is as drawn but for CAS, seqno and revision."""
    write(sixteen, 12, ["mykey"], b"myvalue")
    with DraftTalk(sixteen) as talk:
        send_slowly(talk, REQUEST)
        assert raw(talk) == DRAWN["draft-233"]
        assert raw(talk) == DRAWN["draft-434"]
        assert raw(talk) == DRAWN["draft-468"]
        item, drawn = raw(talk), DRAWN["draft-534"]
        assert (item[:16], item[ITEM_AT:]) == (drawn[:16], drawn[ITEM_AT:])
        assert raw(talk) == DRAWN["draft-500"]
        assert stat(talk, "stream_12_group") == "replication_12"
        assert stat(talk, "dialect") == "upr-draft"


def test_the_failover_log_that_the_document_draws(sixteen: Node):
    """Sent byte by byte as a first message, it is answered with the branches, though byte 5 is 2."""
    with DraftTalk(sixteen) as talk:
        send_slowly(talk, LOG_REQUEST)
        answer, drawn = talk.receive_raw(), DRAWN["draft-376"]
        assert (answer.pack()[:8], answer.header.opaque) == (drawn[:8], 0x2D)
        assert len(answer.body) == 16
        assert talk.failover_log(12) == [(int.from_bytes(answer.body[:8]), 0)]


def test_removals_and_the_flush_that_the_document_draws(sixteen: Node):
    """A deletion, an expiration and a flush are as drawn; an item that came to its end is told apart."""
    with DraftTalk(sixteen) as talk:
        for key, expiry in ((b"other", 1), (b"mykey", 0)):
            assert talk.status(Set(vbucket=VBucketId(12), key=key, value=b"v", flags=7, expiry=expiry)) == 0
        assert talk.status(Delete(vbucket=VBucketId(12), key=b"mykey")) == 0
        end = time.monotonic() + 20
        while talk.status(Get(vbucket=VBucketId(12), key=b"other")) != Status.KEY_NOT_FOUND:
            assert time.monotonic() < end
        talk.socket.sendall(REQUEST)
        frames = [raw(talk) for _ in range(6)]
        for frame, name in ((frames[3], "draft-593"), (frames[4], "draft-649")):
            drawn = DRAWN[name]
            assert (frame[:16], frame[ITEM_AT:52], len(frame)) == (drawn[:16], drawn[ITEM_AT:52], len(drawn))
        assert [frame[52:] for frame in frames[3:5]] == [b"mykey", b"other"]
        assert talk.status(Set(vbucket=VBucketId(12), key=b"again", value=b"v")) == 0
        assert [raw(talk)[1] for _ in range(3)] == [0x54, 0x56, 0x55]
    with DraftTalk(sixteen) as talk, Talk(sixteen) as other:
        talk.begin(12, group=b"")
        kinds = [SnapshotStart, Deletion, Expiration, Mutation, SnapshotEnd]
        assert [type(talk.message()) for _ in range(5)] == kinds
        assert other.status(Flush()) == 0
        flush = talk.expect(DcpFlush)
        assert encode(flush, DRAFT)[:12] == DRAWN["draft-705"][:12]
        assert [type(talk.message()) for _ in range(3)] == [SnapshotStart, Deletion, SnapshotEnd]


def test_the_answers_that_the_document_draws(sixteen: Node):
    """Not my vbucket has no body and status 7; a rollback has its seqno as the body; ends have their reasons."""
    with DraftTalk(sixteen) as talk:
        beyond = bytearray(REQUEST)
        beyond[7] = 99
        talk.socket.sendall(beyond)
        drawn = bytearray(DRAWN["draft-265"])
        drawn[7] = Status.NOT_MY_VBUCKET
        assert raw(talk) == drawn
        write(sixteen, 12, ["a", "b"])
        ahead = StreamRequest(
            vbucket=VBucketId(12), opaque=Opaque(0x2D), start_seqno=Seqno(9), high_seqno=Seqno(0), group=b"g",
            vbuuid=VbUuid(talk.failover_log(12)[0][0]),
        )  # fmt: skip
        talk.say(ahead)
        answer = raw(talk)
        assert (answer[:24], answer[24:]) == (DRAWN["draft-297"][:24], (2).to_bytes(8))
        bounded = bytearray(REQUEST)
        bounded[40:48] = (2).to_bytes(8)
        talk.socket.sendall(bounded)
        frames = [raw(talk) for _ in range(7)]
        assert frames[6] == DRAWN["draft-748"]
        talk.socket.sendall(REQUEST)
        for _ in range(6):
            raw(talk)
        with Talk(sixteen) as other:
            assert other.status(SetVBucket(vbucket=VBucketId(12), state=State.DEAD)) == 0
        changed = bytearray(DRAWN["draft-783"])
        changed[5] = 0
        assert raw(talk) == changed


# -- how a connection is known to be of the draft


def test_what_is_no_stream_decides_nothing(node: Node):
    """Plain commands before and after leave a connection what it is, and are served in the draft as anywhere."""
    with DraftTalk(node, Feature.JSON) as talk:
        assert talk.status(Set(vbucket=VBucketId(VB), key=b"k", value=b"v")) == 0
        talk.begin(VB)
        assert [type(talk.message()) for _ in range(3)] == [SnapshotStart, Mutation, SnapshotEnd]
        assert talk.status(Noop()) == 0
        assert talk.status(Set(vbucket=VBucketId(VB), key=b"k2", value=b"v")) == 0
        assert [type(talk.message()) for _ in range(3)] == [SnapshotStart, Mutation, SnapshotEnd]


def test_the_first_stream_message_decides(node: Node):
    """After an open, or a question of DCP, 0x51 without extras is no failover log."""
    with Talk(node) as talk:
        talk.get(Open(name=b"dcp", flags=OpenFlag.PRODUCER), Done)
        talk.socket.sendall(LOG_REQUEST)
        assert talk.receive().status == Status.INVALID
    with Talk(node) as talk:
        assert talk.status(GetFailoverLog(vbucket=VBucketId(VB))) == 0
        talk.socket.sendall(LOG_REQUEST)
        assert talk.receive().status == Status.INVALID
    with Talk(node) as talk:
        talk.socket.sendall(DRAWN["draft-018"])
        assert talk.receive().status == Status.INVALID
        talk.get(Open(name=b"dcp", flags=OpenFlag.PRODUCER), Done)


def test_both_at_once(node: Node):
    """A connection of DCP and one of the draft get the same changes of one node, each in its own form."""
    with Reader(node) as dcp, Reader(node) as upr, DraftTalk(node) as talk:
        dcp.begin(VB)
        upr.begin_upr(VB)
        talk.begin(VB)
        for number in range(3):
            write(node, VB, [f"key{number}"], b"%d" % number)
            (one,), (two,) = dcp.items(1), upr.items(1)
            talk.expect(SnapshotStart)
            three = talk.expect(Mutation)
            talk.expect(SnapshotEnd)
            seen = {(item.key, item.value, item.cas, item.by_seqno, item.rev_seqno) for item in (one, two, three)}
            assert len(seen) == 1
            assert [item.layout for item in (one, two, three)] == ["31 bytes", "30 bytes", "28 bytes"]


ONLY_ITS_OWN: dict[str, dict[Dialect, int]] = {
    "dcp": {Dialect.DCP: 0, Dialect.UPR: Status.INVALID, Dialect.UPR_DRAFT: Status.INVALID},
    "upr": {Dialect.DCP: 0, Dialect.UPR: 0, Dialect.UPR_DRAFT: Status.INVALID},
    "upr-draft": {Dialect.DCP: Status.INVALID, Dialect.UPR: Status.INVALID, Dialect.UPR_DRAFT: 0},
    "auto": dict.fromkeys((Dialect.DCP, Dialect.UPR, Dialect.UPR_DRAFT), 0),
}


@pytest.mark.parametrize("forced", ONLY_ITS_OWN)
def test_a_forced_dialect(forced: Any):
    """A node that is told what to speak refuses what the others alone have, and goes on serving items."""
    with Node(vbuckets=8, dialect=forced) as node:
        for dialect, status in ONLY_ITS_OWN[forced].items():
            with Talk(node) as talk:
                assert talk.status(Set(vbucket=VBucketId(VB), key=b"k", value=b"v")) == 0
                assert _asked_in(talk, dialect) == status, dialect
                assert talk.status(Noop()) == 0


def _asked_in(talk: Talk, dialect: Dialect) -> int:
    """Ask for a stream of nothing in a dialect; gives the first status that is none of success."""
    places = {"high_seqno": Seqno(0)} if dialect is not Dialect.DCP else {"snapshot_start": 0, "snapshot_end": 0}
    asked = StreamRequest(vbucket=VBucketId(7), opaque=Opaque(9), end_seqno=Seqno(0), **places)
    if dialect is not DRAFT and (status := talk.status(Open(name=b"n", flags=OpenFlag.PRODUCER))):
        return status
    talk.socket.sendall(encode(asked, dialect))
    status = talk.receive().status
    ends = 0 if status else 1 + (dialect is DRAFT)
    for _ in range(ends):
        talk.receive_raw()
    return status


def test_upr_forced_is_upr_s_items():
    """Also after a request in the form with a snapshot, since that is UPR's too."""
    with Node(vbuckets=8, dialect="upr") as node:
        write(node, VB, ["a"])
        with Reader(node) as reader:
            reader.begin(VB)
            reader.dialect = Dialect.UPR
            assert reader.items(1)[0].layout == "30 bytes"


# -- streams


def test_several_streams_and_their_ends(node: Node):
    """Each stream ends at the end of the snapshot that has its end seqno, and goes on from any seqno behind it."""
    for vb in (1, 2):
        write(node, vb, [f"{vb}-{n}" for n in range(10)])
    with DraftTalk(node) as talk:
        for vb in (1, 2):
            talk.say(_request(vb, end_seqno=Seqno(4)))
        found = [talk.message() for _ in range(2 * 15)]
        for vb in (1, 2):
            own = [one for one in found if one.opaque == 1000 + vb]
            items = [int(one.by_seqno) for one in own if isinstance(one, Mutation)]
            assert items == list(range(1, 11)), "the end does not cut a snapshot"
            assert [type(one) for one in own[1:3]] == [StreamStart, SnapshotStart]
            assert [type(one) for one in own[-2:]] == [SnapshotEnd, StreamEnd]
        ((vbuuid, high),) = talk.failover_log(1)
        talk.begin(1, Place(vbuuid, high, 7))
        assert [one.key for one in (talk.message() for _ in range(5)) if isinstance(one, Mutation)] == [
            b"1-7", b"1-8", b"1-9",
        ]  # fmt: skip
        again = talk.request(1)
        assert (type(again), again.status) == (ErrorReply, Status.KEY_EXISTS)


def _request(vb: int, **fields: Any) -> StreamRequest:
    usual: dict[str, Any] = {"vbucket": VBucketId(vb), "opaque": Opaque(1000 + vb), "high_seqno": Seqno(0)}
    return StreamRequest(**(usual | fields))


def test_where_to_go_back(node: Node):
    """An unknown branch goes back to nothing; one that lost changes, to where it was left."""
    write(node, VB, [f"k{n}" for n in range(10)])
    with DraftTalk(node) as talk:
        ((vbuuid, high),) = talk.failover_log(VB)
        unknown = talk.request(VB, Place(vbuuid + 1, 0, 5))
        assert isinstance(unknown, Rollback)
        assert unknown.seqno == 0
        (lost,) = Chaos(node).failover(VB, lost=4)
        assert len(talk.failover_log(VB)) == 2
        back = talk.request(VB, Place(vbuuid, high, 10))
        assert isinstance(back, Rollback)
        assert back.seqno == lost.now == 6
        talk.begin(VB, Place(vbuuid, high, 6))


def test_values_are_plain(node: Node):
    """What the draft has no words for is not sent: values are inflated, without xattrs and datatype."""
    with Talk(node, Feature.SNAPPY, Feature.XATTR, Feature.JSON) as talk:
        for number, (value, datatype) in enumerate(((SMALL, Datatype.SNAPPY), (XATTRS, Datatype.XATTR))):
            written = SetWithMeta(
                vbucket=VBucketId(VB), key=b"k%d" % number, value=value, datatype=datatype, item_cas=5, rev_seqno=1
            )
            assert talk.status(written) == 0
    with DraftTalk(node) as talk:
        talk.begin(VB)
        talk.expect(SnapshotStart)
        items = [talk.expect(Mutation) for _ in range(2)]
        assert [(one.datatype, one.value[:5]) for one in items] == [(0, b'{"val'), (0, b'{"b":')]


def test_from_disk(node: Node):
    """What is no longer in memory comes from disk, in one snapshot, in order."""
    for start in range(0, 3000, 500):
        write(node, VB, [f"k{n}" for n in range(start, start + 500)], b"v" * 2000)
    with DraftTalk(node) as talk:
        talk.begin(VB, end=3000)
        found = talk.until_end()
    assert [int(one.by_seqno) for one in found if isinstance(one, Mutation)] == list(range(1, 3001))
    assert [type(found[0]), type(found[-2])] == [SnapshotStart, SnapshotEnd]


def test_who_does_not_read_holds_little(node: Node):
    """What waits for a reader that reads nothing is bounded by its connection, whatever there is to stream."""
    for vb in range(8):
        write(node, vb, [f"{vb}-{n}" for n in range(400)], b"v" * 20_000)
    with DraftTalk(node) as talk:
        for vb in range(8):
            talk.say(_request(vb))
        time.sleep(1)
        (connection,) = [one for one in node.running.services.connections if one.session.end is not None]
        assert on_loop(node, connection._transport.get_write_buffer_size) < 5 << 20
        items = 0
        while items < 8 * 400:
            items += isinstance(talk.message(), Mutation)


def test_a_refusal_ends_a_stream(node: Node):
    """The draft has no close: who answers a message of a stream with an error gets no more of it, and may ask again."""
    with DraftTalk(node) as talk:
        talk.begin(VB)
        talk.say(ErrorReply(opcode=0x56, opaque=Opaque(1000 + VB), status=Status.KEY_NOT_FOUND))
        talk.say(ErrorReply(opcode=0x56, opaque=Opaque(77), status=Status.KEY_NOT_FOUND))
        write(node, VB, ["a"])
        talk.begin(VB, end=1)
        assert [type(one) for one in talk.until_end()] == [SnapshotStart, Mutation, SnapshotEnd, StreamEnd]


def test_taken_over(node: Node):
    """In a takeover the consumer is told to be pending, gets the rest, is told to be active; each step is answered."""
    write(node, VB, ["a", "b"])
    with DraftTalk(node) as talk:
        talk.begin(VB, flags=StreamFlag.TAKEOVER)
        assert [type(talk.message()) for _ in range(4)] == [SnapshotStart, Mutation, Mutation, SnapshotEnd]
        pending = talk.expect(SetVBucketState)
        assert pending.state == State.PENDING
        write(node, VB, ["c"])
        done = Done(opcode=0x5A, opaque=pending.opaque)
        talk.say(done)
        assert [type(talk.message()) for _ in range(3)] == [SnapshotStart, Mutation, SnapshotEnd]
        active = talk.expect(SetVBucketState)
        assert talk.status(Set(vbucket=VBucketId(VB), key=b"d", value=b"v")) == Status.NOT_MY_VBUCKET
        expected = bytearray(DRAWN["draft-830"])
        expected[7], expected[14:16] = VB, (1000 + VB).to_bytes(2)
        assert encode(active, DRAFT) == expected
        talk.say(done)
        assert talk.expect(StreamEnd).reason == 0


def test_a_takeover_that_is_refused(node: Node):
    """Whoever refuses a step leaves the vbucket where it was."""
    with DraftTalk(node) as talk:
        talk.begin(VB, flags=StreamFlag.TAKEOVER)
        talk.expect(SetVBucketState)
        talk.say(ErrorReply(opcode=0x5A, opaque=Opaque(1000 + VB), status=Status.INVALID))
        assert talk.expect(StreamEnd).reason == 1
        assert talk.status(Set(vbucket=VBucketId(VB), key=b"d", value=b"v")) == 0


def test_the_last_step_is_refused_behind_another_message(node: Node):
    """A change refused once "be active" was sent ends nothing: what is said to that decides who is the owner."""
    write(node, VB, ["a"])
    with DraftTalk(node) as talk:
        talk.begin(VB, flags=StreamFlag.TAKEOVER)
        assert [type(talk.message()) for _ in range(3)] == [SnapshotStart, Mutation, SnapshotEnd]
        step = talk.expect(SetVBucketState)
        talk.say(Done(opcode=0x5A, opaque=step.opaque))
        assert talk.expect(SetVBucketState).state == State.ACTIVE
        for opcode in (0x56, 0x59, 0x5A):
            talk.say(ErrorReply(opcode=opcode, opaque=step.opaque, status=Status.KEY_NOT_FOUND))
        assert talk.expect(StreamEnd).reason == 1
        assert talk.status(Set(vbucket=VBucketId(VB), key=b"d", value=b"v")) == 0


def test_faults_on_purpose(node: Node):
    """What `headrace chaos` does to streams, it does to those of the draft, in their own words."""
    chaos = Chaos(node)
    chaos.refuse("rollback", seqno=5)
    with DraftTalk(node) as talk:
        refused = talk.request(VB)
        assert isinstance(refused, Rollback)
        assert refused.seqno == 5
        talk.begin(VB)
        assert chaos.end(VB, reason="too_slow") == 1
        assert talk.expect(StreamEnd).reason == 1
        chaos.cut()
        assert talk.ends()


# -- what is refused


MALFORMED = {
    "a stream request with 39 bytes of extras": bytes.fromhex("80500000270000030000002700000001") + bytes(8 + 39),
    "a stream request with a value": bytearray(REQUEST[:8]) + (56).to_bytes(4) + REQUEST[12:] + b"xx",
    "a bare stream request": DRAWN["draft-018"],
    "a failover log request with extras": bytes.fromhex("80510000040000030000000400000001") + bytes(8 + 4),
    "a group of 251 bytes": encode(_request(VB, group=b"g" * 251), DRAFT),
    "a start behind its end": encode(_request(VB, start_seqno=Seqno(5), end_seqno=Seqno(4)), DRAFT),
}


@pytest.mark.parametrize("wrong", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed(sixteen: Node, wrong: bytes):
    """What is wrong is refused by an answer, and the connection goes on."""
    with DraftTalk(sixteen) as talk:
        talk.failover_log(VB)
        talk.socket.sendall(wrong)
        answer = talk.expect(ErrorReply)
        assert answer.status in {Status.INVALID, Status.OUT_OF_RANGE}
        talk.begin(VB)


NOT_FOR_A_PRODUCER = (
    StreamStart(),
    StreamEnd(reason=0),
    SnapshotStart(),
    SnapshotEnd(),
    DcpFlush(),
    Mutation(by_seqno=Seqno(1), rev_seqno=1, key=b"k"),
    SetVBucketState(state=1),
)


@pytest.mark.parametrize("message", NOT_FOR_A_PRODUCER, ids=lambda one: one.spec.name)
@pytest.mark.parametrize("is_begun", [True, False])
def test_what_is_not_for_a_producer(node: Node, message: Any, is_begun: bool):
    """A message that only a producer sends ends the connection without an answer, with a stream or before one."""
    with DraftTalk(node) as talk:
        talk.failover_log(VB)
        if is_begun:
            talk.begin(VB)
        talk.say(message)
        assert talk.ends()


def test_an_answer_to_what_was_not_asked(node: Node):
    """It ends the connection, as in DCP."""
    with DraftTalk(node) as talk:
        talk.begin(VB)
        talk.say(Done(opcode=0x50))
        assert talk.ends()


def test_what_the_draft_has_not(node: Node):
    """Controls and streams that are added are not known to it."""
    with DraftTalk(node) as talk:
        talk.begin(VB)
        talk.socket.sendall(encode(Control(key=b"enable_noop", value=b"true")))
        assert talk.receive_raw().header.specific == Status.UNKNOWN_COMMAND
        talk.socket.sendall(encode(AddStream()))
        assert talk.expect(ErrorReply).status == Status.INVALID


def test_roles(tmp_path: Path):
    """A stream takes the role of streams, a takeover that of an admin, and both take a name and a bucket."""
    path = tmp_path / "users.json"
    users = (("streams", {Role.STREAM}), ("reads", {Role.READ}), ("boss", {Role.ADMIN}))
    Users([User.create(name, "secret-1", roles, iterations=4096) for name, roles in users]).save(path)
    with Node(vbuckets=8, users=path) as node:
        with DraftTalk(node) as talk:
            assert talk.request(VB).status == Status.AUTH_ERROR
        for name, stream, takeover in (
            ("streams", 0, Status.NO_ACCESS),
            ("reads", Status.NO_ACCESS, Status.NO_ACCESS),
            ("boss", 0, 0),
        ):
            for flags, status in ((0, stream), (StreamFlag.TAKEOVER, takeover)):
                with DraftTalk(node) as talk:
                    assert talk.log_in(name, "secret-1").status == 0
                    assert talk.status(SelectBucket(name=b"default")) == 0
                    assert talk.request(VB, flags=flags).status == status, (name, flags)


def test_a_connection_is_forgotten(node: Node):
    """Nothing of it stays when it is gone."""
    with DraftTalk(node) as talk:
        talk.begin(VB)
        opened = node.running.services.buckets.get("default")
        assert opened is not None
        assert len(opened.ends) == 1
    eventually(lambda: not opened.ends and not opened.bucket.change_watchers, "the end is forgotten")
