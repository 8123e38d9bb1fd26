"""The follower against a model of nodes, in memory: every loss, refusal, move and rollback, without waiting."""

import json
from functools import partial
from typing import Any

import pytest

from headrace.client import (
    AuthFailedError,
    ConnectionLostError,
    NoAccessError,
    OptionError,
    Positions,
    RollbackError,
    RolledBack,
    ServerAnswerError,
    StreamEnded,
)
from headrace.client.events import Batch
from headrace.client.link import LinkState
from headrace.errors import HeadraceError
from headrace.history import Reason
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.wire import Message
from headrace.wire import catalogue as w
from headrace.wire.codes import Status, StreamEndReason, StreamFlag
from tests.client.fake_dcp import FakeCluster, Shell


def filled(vbuckets: int = 4, nodes: int = 1, items: int = 10) -> FakeCluster:
    """A cluster with some items in every vbucket, spread over its nodes."""
    cluster = FakeCluster(vbuckets, nodes)
    for number, vb in enumerate(cluster.vbuckets):
        vb.node = number % nodes
        vb.log = [(0xA0 + number, 0)]
        vb.add(*(f"{number}-{item}" for item in range(items)))
        vb.delete(f"{number}-gone")
    return cluster


def whole(cluster: FakeCluster) -> list[tuple[int, int, bytes, bytes | None]]:
    """Every change of a cluster, vbucket by vbucket."""
    return [(number, *change) for number, vb in enumerate(cluster.vbuckets) for change in vb.changes]


def _has(shell: Shell, count: int) -> bool:
    return len(shell.rows) >= count


def test_everything_until_now():
    """All changes of all vbuckets come, each once and in the order of its vbucket, and that is the end."""
    cluster = filled()
    shell = Shell(cluster, until="now")
    shell.run()
    assert shell.follower.is_done
    assert sorted(shell.rows) == whole(cluster)
    for number, vb in enumerate(cluster.vbuckets):
        assert shell.of(number) == vb.changes
        position = shell.follower.positions.vbuckets[VBucketId(number)]
        assert (position.vbuuid, position.seqno) == (0xA0 + number, vb.high)


def test_a_position_taken_anywhere_goes_on_there():
    """Stopped after any batch, read on from the saved text: nothing is missing, nothing comes twice."""
    cluster = filled(vbuckets=2)
    total = len(whole(cluster))
    for stop in range(0, total + 1, 3):
        shell = Shell(cluster, until="now", window_bytes=100)
        shell.run(until=partial(_has, shell, stop))
        saved = Positions.from_json(shell.follower.positions.to_json())
        again = Shell(cluster, start=saved, until="now")
        again.run()
        assert sorted(shell.rows + again.rows) == whole(cluster)
        assert not [event for event in again.events if isinstance(event, RolledBack)]


def test_from_now_shows_what_comes_after():
    """Nothing of before is sent, and everything of after is."""
    cluster = filled()
    shell = Shell(cluster, start="now")
    shell.run(until=lambda: all(each.streams for each in cluster.connections) and len(cluster.connections) == 1)
    cluster.vbuckets[2].add("new")
    cluster.pump()
    shell.run(until=lambda: bool(shell.rows))
    assert shell.rows == [(2, 12, b"new", b"value of new")]
    asked = cluster.asked(w.StreamRequest)
    assert {(each.start_seqno, each.vbuuid) for each in asked} == {(11, 0xA0 + n) for n in range(4)}


def test_an_end_cuts_the_snapshot_and_closes_the_stream():
    """The server sends past the end; the reader drops it, says that it wants no more, and can go on from its end."""
    cluster = filled(vbuckets=2, items=20)
    cluster.vbuckets[0].snapshot_size = 21
    shell = Shell(cluster, until={0: 12, 1: 21})
    shell.piece_bytes = 200
    shell.run()
    assert [row[0] for row in shell.of(0)] == list(range(1, 13))
    assert [each.vbucket for each in cluster.asked(w.CloseStream)] == [0]
    position = shell.follower.positions.vbuckets[VBucketId(0)]
    assert (position.seqno, position.snapshot.start, position.snapshot.end) == (12, 0, 21)
    again = Shell(cluster, start=shell.follower.positions, until="now")
    again.run()
    assert [row[:2] for row in again.rows] == [(0, seqno) for seqno in range(13, 22)]


def test_an_end_that_lies_in_a_gap():
    """A change at the end that a later one replaced is not waited for: the later one proves that nothing is there."""
    cluster = FakeCluster(1)
    cluster.vbuckets[0].changes = [(1, b"a", b"1"), (3, b"b", b"2"), (9, b"c", b"3")]
    shell = Shell(cluster, until={0: 5})
    shell.run()
    assert [row[1] for row in shell.rows] == [1, 3]
    assert shell.follower.positions.vbuckets[VBucketId(0)].seqno == 5


@pytest.mark.parametrize("piece", [1, 7, 24, 100])
def test_bytes_may_come_in_any_pieces(piece: int):
    """Messages are put together again, however they were cut."""
    cluster = filled(vbuckets=2, items=4)
    shell = Shell(cluster, until="now", buffer_bytes=4096)
    shell.piece_bytes = piece
    shell.run()
    assert sorted(shell.rows) == whole(cluster)


def test_a_message_larger_than_the_buffer():
    """It gets room for itself, and the buffer is as small as it was afterwards."""
    cluster = filled(vbuckets=1, items=2)
    vb = cluster.vbuckets[0]
    vb.changes.append((vb.high + 1, b"large", b"x" * 50_000))
    vb.add("after")
    shell = Shell(cluster, until="now", buffer_bytes=4096)
    shell.run()
    assert sorted(shell.rows) == whole(cluster)


def session_bytes(cluster: FakeCluster) -> int:
    """How many bytes a whole session receives."""
    shell = Shell(cluster, until="now")
    received = 0
    take = shell.follower.received

    def counted(link: Any, count: int, now: float) -> None:
        nonlocal received
        received += count
        take(link, count, now)

    shell.follower.received = counted  # type: ignore[method-assign]
    shell.run()
    return received


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_connection_cut_after_any_byte(part: int):
    """Opening, answers, markers, in the middle of an item: whatever was cut, each change comes exactly once."""
    cluster = filled(vbuckets=1, items=3)
    length = session_bytes(cluster)
    assert length > 500
    for cut in range(1 + part, length, 4):
        shell = Shell(cluster, until="now")
        shell.cuts = [cut]
        # A server that breaks before it told its map was never there: the next seed is, here the same one.
        shell.follower.nodes._untried *= 2
        shell.run()
        assert shell.follower.failure is None
        assert sorted(shell.rows) == whole(cluster), f"cut after {cut} bytes"


def test_many_cuts_in_a_row():
    """A line that breaks again and again still brings everything, as long as it brings something."""
    cluster = filled(vbuckets=2, items=30)
    shell = Shell(cluster, until="now")
    shell.follower.nodes._untried *= 100
    shell.cuts = [900 + 10 * n for n in range(40)]
    shell.run()
    assert sorted(shell.rows) == whole(cluster)
    assert all(shell.of(number) == vb.changes for number, vb in enumerate(cluster.vbuckets))


def test_two_nodes_share_the_vbuckets():
    """There is one connection to each, and each is asked for what the map says it has."""
    cluster = filled(vbuckets=6, nodes=2)
    shell = Shell(cluster, until="now")
    shell.run()
    assert sorted(shell.rows) == whole(cluster)
    asked = {(node, each.vbucket) for node, each in cluster.requests if isinstance(each, w.StreamRequest)}
    assert asked == {(n % 2, n) for n in range(6)}
    assert len(cluster.asked(w.Open)) == 2


def test_a_vbucket_moves_to_another_node():
    """Its stream ends for a change of state, a newer map is asked for, and the rest comes from the other node."""
    cluster = filled(vbuckets=4, nodes=2)
    shell = Shell(cluster)
    shell.run(until=lambda: len(shell.rows) == len(whole(cluster)))
    cluster.move(0, 1)
    cluster.vbuckets[0].add("moved")
    shell.run(until=lambda: len(shell.rows) == len(whole(cluster)))
    assert sorted(shell.rows) == whole(cluster)
    last = cluster.asked(w.StreamRequest)[-1]
    assert (last.vbucket, last.start_seqno) == (0, 11)
    assert last.flags == StreamFlag.ACTIVE_ONLY
    ended = [each for each in shell.events if isinstance(each, StreamEnded)]
    assert [(each.vbucket, each.reason, each.finished) for each in ended] == [(0, "state changed", False)]


def test_the_last_vbucket_leaves_a_node_that_is_slow_to_tell():
    """Its map is not waited for once nothing is left to read there."""
    cluster = filled(vbuckets=2, nodes=2)
    shell = Shell(cluster)
    shell.run(until=lambda: _has(shell, 22))
    cluster.answers = {w.GetClusterConfig: lambda connection, _request: [] if connection.node == 0 else None}
    cluster.move(0, 1)
    cluster.vbuckets[0].add("after")
    shell.run(until=lambda: _has(shell, 23), seconds=5)


def test_a_node_that_owns_everything_goes_away():
    """The other seed is asked, stays connected, and tells who owns it now."""
    cluster = filled(vbuckets=1, nodes=2)
    shell = Shell(cluster, connection=f"couchbase://{cluster.nodes[0]},{cluster.nodes[1]}")
    shell.run(until=lambda: _has(shell, 11))
    cluster.down.add(0)
    shell.lose(next(iter(shell.peers)), "the connection broke")
    shell.run(until=lambda: shell.now > 10)
    assert len(cluster.asked(w.Open)) == 2
    cluster.move(0, 1)
    cluster.vbuckets[0].add("after")
    shell.run(until=lambda: _has(shell, 12), seconds=20)


def test_only_the_owner_says_where_now_is():
    """A copy that thinks that it is active shortens nothing."""
    cluster = filled(vbuckets=1, nodes=2)
    cluster.vbuckets[0].replicas = (1,)
    refused: list[Message] = []

    def seqnos(connection: Any, request: Any) -> list[Message] | None:
        rows = (w.VBucketSeqno(0, Seqno(4)), w.VBucketSeqno(9, Seqno(4)))
        return [connection._reply(request, w.Seqnos, seqnos=rows)] if connection.node else None

    def stream(connection: Any, request: Any) -> list[Message] | None:
        if refused:
            return None
        refused.append(request)
        return [connection.refuse(request, Status.TEMPORARY_FAILURE)]

    cluster.answers = {w.GetAllVBSeqnos: seqnos, w.StreamRequest: stream}
    shell = Shell(cluster, until="now", mitigate_rollbacks=True)
    shell.run()
    assert shell.of(0) == cluster.vbuckets[0].changes


def test_a_node_that_still_streams_what_it_gave_away():
    """Servers before the flag for it stream dead vbuckets; so a newer map is read before a stream is asked for."""
    cluster = filled(vbuckets=1, nodes=2)
    shell = Shell(cluster, connection=f"couchbase://{cluster.nodes[0]},{cluster.nodes[1]}")
    shell.run(until=lambda: len(shell.rows) == 11)
    cluster.move(0, 1)
    cluster.serves_dead = True
    cluster.vbuckets[0].add("moved")
    shell.run(until=lambda: len(shell.rows) == 12)
    asked = [node for node, each in cluster.requests if isinstance(each, w.StreamRequest)]
    assert asked == [0, 1]


def test_a_marker_of_an_earlier_stream_proves_nothing():
    """A stream that begins anew and ends at once has not shown the snapshot that the one before announced."""
    cluster = filled(vbuckets=1)
    cluster.vbuckets[0].snapshot_size = 11
    shell = Shell(cluster, until={0: 8}, window_bytes=200)
    shell.takes = False
    shell.run(until=lambda: any(each.streams for each in cluster.connections))
    for _ in range(10):
        shell.step()
    (connection,) = cluster.connections
    connection.end(0, StreamEndReason.TOO_SLOW)
    ended = iter([True])

    def at_once(connection: Any, request: Any) -> list[Message] | None:
        if not next(ended, False):
            return None
        log = connection._reply(request, w.FailoverLog, entries=connection._log(0))
        return [log, w.StreamEnd(opaque=request.opaque, vbucket=request.vbucket, reason=0)]

    cluster.answers = {w.StreamRequest: at_once}
    shell.takes = True
    shell.run()
    assert [row[1] for row in shell.rows] == list(range(1, 9))


def test_not_my_vbucket_brings_a_newer_map():
    """A map that was old when it was read is replaced; the answer itself may carry the new one."""
    for body in (False, True):
        cluster = filled(vbuckets=2, nodes=2)
        cluster.vbuckets[0].node = 1
        cluster.vbuckets[1].node = 1
        told = cluster.config()

        def moved(connection: Any, request: Message, told: bytes = told, body: bool = body) -> list[Message] | None:
            if connection.node == 0:
                return [connection.refuse(request, Status.NOT_MY_VBUCKET, told if body else b"")]
            return None

        old = json.loads(told)
        old["rev"] = 0
        old["vBucketServerMap"]["vBucketMap"] = [[0], [0]]
        first = [json.dumps(old).encode()]

        def config(connection: Any, request: Message, first: list[bytes] = first) -> list[Message] | None:
            if not first:
                return None
            return [connection._reply(request, w.Text, value=first.pop())]

        cluster.answers = {w.StreamRequest: moved, w.GetClusterConfig: config}
        shell = Shell(cluster)
        shell.run(until=partial(_has, shell, len(whole(cluster))))
        assert sorted(shell.rows) == whole(cluster)


def test_nodes_that_are_no_cluster_are_laid_together():
    """Each knows its own vbuckets alone; what one gave up is found at the other seed."""
    cluster = filled(vbuckets=4, nodes=2)

    def alone(connection: Any, request: Message) -> list[Message]:
        place = connection.node
        document = {
            "rev": 1 + place,
            "uuid": f"bucket {place}",
            "nodesExt": [{"services": {"kv": cluster.nodes[place].port}, "thisNode": True}],
            "vBucketServerMap": {
                "serverList": [f"$HOST:{cluster.nodes[place].port}"],
                "vBucketMap": [[0] if vb.node == place else [-1] for vb in cluster.vbuckets],
            },
        }
        return [connection._reply(request, w.Text, value=json.dumps(document).encode())]

    cluster.answers = {w.GetClusterConfig: alone}
    shell = Shell(cluster, connection=f"couchbase://{cluster.nodes[0]},{cluster.nodes[1]}")
    shell.run(until=lambda: len(shell.rows) == len(whole(cluster)))
    cluster.move(0, 1)
    cluster.vbuckets[0].add("moved")
    shell.run(until=lambda: len(shell.rows) == len(whole(cluster)))
    assert sorted(shell.rows) == whole(cluster)


def test_a_server_without_a_map_is_a_cluster_of_one():
    """Its vbuckets are those whose seqnos it tells."""
    cluster = filled()
    cluster.has_map = False
    shell = Shell(cluster, until="now")
    shell.run()
    assert sorted(shell.rows) == whole(cluster)


def test_a_node_that_restarts():
    """Connections are refused for a while; the reader comes back by itself, and goes on where it stood."""
    cluster = filled(nodes=2)
    shell = Shell(cluster)
    shell.run(until=lambda: len(shell.rows) == len(whole(cluster)))
    cluster.down = {0}
    for link in list(shell.peers):
        if link.address == cluster.nodes[0]:
            shell.lose(link, "the connection broke")
    shell.run(until=lambda: shell.now > 20)
    cluster.down = set()
    cluster.vbuckets[0].add("after the restart")
    shell.run(until=lambda: len(shell.rows) == len(whole(cluster)), seconds=60)
    assert sorted(shell.rows) == whole(cluster)


def test_a_node_that_stays_away():
    """After `give_up_s` the reader raises, and names vbucket, seqno and the last reason."""
    cluster = filled(nodes=2)
    shell = Shell(cluster, give_up_s=30.0)
    shell.run(until=lambda: len(shell.rows) == len(whole(cluster)))
    cluster.down = {1}
    for link in list(shell.peers):
        if link.address == cluster.nodes[1]:
            shell.lose(link, "the connection broke")
    shell.run()
    failure = shell.follower.failure
    assert isinstance(failure, ConnectionLostError)
    assert "2 vbuckets cannot be read for 30 s now, the first is vbucket 1 after seqno 11" in str(failure)
    assert "127.0.0.1:10001: cannot connect" in str(failure)
    assert 30 < shell.now < 45


def test_no_server_at_all():
    """Every seed is tried once; the error is that of the last."""
    cluster = filled(nodes=2)
    cluster.down = {0, 1}
    shell = Shell(cluster, connection=f"couchbase://{cluster.nodes[0]},{cluster.nodes[1]}")
    shell.run()
    assert "127.0.0.1:10001: cannot connect" in str(shell.follower.failure)


def test_the_second_seed_serves():
    """A first seed that is away is no matter."""
    cluster = filled(nodes=2)
    cluster.down = {0}
    for vb in cluster.vbuckets:
        vb.node = 1
    shell = Shell(cluster, connection=f"couchbase://{cluster.nodes[0]},{cluster.nodes[1]}", until="now")
    shell.run()
    assert sorted(shell.rows) == whole(cluster)


def crash(shell: Shell, vbucket: int, *, after: int) -> None:
    """A node loses what was not on disk."""
    shell.cluster.vbuckets[vbucket].lose(after, 0xBEEF)
    shell.lose(next(iter(shell.peers)), "the connection broke")


def test_a_rollback_is_told_and_the_stream_goes_on():
    """Everything after the last whole snapshot that both have is given up, and comes anew from the new branch."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster)
    shell.run(until=lambda: len(shell.rows) == 11)
    crash(shell, 0, after=8)
    cluster.vbuckets[0].add("new", "newer", "newest", "newest of all")
    before = len(shell.events)
    shell.run(until=lambda: any(isinstance(each, RolledBack) for each in shell.events))
    assert shell.follower.positions.vbuckets[VBucketId(0)].seqno == 6
    shell.run(until=lambda: shell.rows[-1:] != [] and shell.rows[-1][2] == b"newest of all")
    (event,) = [each for each in shell.events if isinstance(each, RolledBack)]
    # Snapshots of three: 1-3, 4-6, 7-9. The server would keep 8, but the reader was whole at 6.
    assert (event.vbucket, event.to, event.whole, event.because) == (0, 8, 6, Reason.PAST_BRANCH)
    assert event.asked.seqno == 11
    after = [row for each in shell.events[before:] if isinstance(each, Batch) for row in each.rows.to_pylist()]
    assert [row["seqno"] for row in after] == [7, 8, 9, 10, 11, 12]
    # Each row is of the branch that it lies on, though one stream brought them.
    assert [row["vbuuid"] for row in after] == [0xA0, 0xA0, 0xBEEF, 0xBEEF, 0xBEEF, 0xBEEF]
    assert shell.follower.positions.vbuckets[VBucketId(0)].vbuuid == 0xBEEF


def test_a_rollback_that_rebuilds():
    """The vbucket is read from its beginning."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster, on_rollback="rebuild")
    shell.run(until=lambda: len(shell.rows) == 11)
    crash(shell, 0, after=8)
    shell.run(until=lambda: len(shell.rows) == 11 + 8)
    (event,) = [each for each in shell.events if isinstance(each, RolledBack)]
    assert (event.to, event.whole) == (8, 0)


def test_a_rollback_that_fails():
    """The reader stops, with vbucket, seqno, reason and the way out."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster, on_rollback="fail")
    shell.run(until=lambda: len(shell.rows) == 11)
    crash(shell, 0, after=8)
    shell.run()
    failure = shell.follower.failure
    assert isinstance(failure, RollbackError)
    assert failure.rolled_back.to == 8
    assert "vbucket 0: the changes after seqno 6" in str(failure)
    assert "on_rollback 'event'" in str(failure)


def test_until_now_does_not_wait_for_what_a_crash_took():
    """The end that was planned is gone; what is left of the vbucket is read, and that is the end."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster, until="now", window_bytes=100)
    shell.takes = False
    shell.run(until=lambda: any(each.streams for each in cluster.connections), seconds=5)
    crash(shell, 0, after=3)
    shell.takes = True
    shell.run()
    assert shell.follower.is_done
    assert shell.follower.positions.vbuckets[VBucketId(0)].seqno == 3


def test_the_window_bounds_what_is_sent_ahead():
    """What nobody takes is not acknowledged, and a server stops at the window; acks come at half of it."""
    cluster = filled(vbuckets=1, items=200)
    shell = Shell(cluster, window_bytes=1000)
    shell.takes = False
    shell.run(until=lambda: bool(cluster.connections and cluster.connections[0].unacked >= 1000))
    for _ in range(50):
        shell.step()
    sent = cluster.connections[0].unacked
    assert sent < 1200
    assert not cluster.asked(w.BufferAck)
    shell.takes = True
    shell.run(until=lambda: len(shell.rows) == 201)
    acks = [each.bytes_acked for each in cluster.asked(w.BufferAck)]
    assert all(each >= 500 for each in acks)


def test_noops_are_answered():
    """A server's sign of life is given back with its opaque."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster)
    shell.run(until=lambda: len(shell.rows) == 11)
    cluster.connections[0].send(w.DcpNoop(opaque=Opaque(10_000_001)))
    shell.run(until=lambda: isinstance(cluster.requests[-1][1], w.Done))
    answer: Any = cluster.requests[-1][1]
    assert (answer.opaque, answer.opcode) == (10_000_001, 0x5C)


def test_a_silent_server_is_asked_and_then_given_up():
    """After `idle_s` a noop goes out; without an answer in `timeout_s` the connection is made anew."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster, idle_s=30.0, timeout_s=10.0)
    shell.run(until=lambda: len(shell.rows) == 11)
    quiet = shell.now
    shell.run(until=lambda: bool(cluster.asked(w.Noop)))
    assert quiet + 30 <= shell.now < quiet + 31
    shell.run(until=lambda: shell.now > quiet + 100)
    assert len(cluster.asked(w.Open)) == 1
    cluster.answers = {w.Noop: lambda _connection, _request: []}
    cluster.vbuckets[0].add("late")
    shell.run(until=lambda: len(shell.rows) == 12)
    heard = shell.now
    shell.run(until=lambda: len(cluster.asked(w.Open)) == 2)
    assert heard + 40 <= shell.now < heard + 42


def test_a_server_that_owes_the_answer_to_a_stream_request():
    """Signs of life do not make up for it: the connection is made anew, and at last the reader gives up."""
    cluster = filled(vbuckets=1)
    cluster.answers = {w.StreamRequest: lambda _connection, _request: []}
    shell = Shell(cluster, give_up_s=60.0, timeout_s=10.0)
    shell.run(until=lambda: len(cluster.asked(w.Open)) == 2)
    assert shell.now == pytest.approx(10.0, abs=0.5)
    shell.run()
    assert "cannot be read for 60 s" in str(shell.follower.failure)
    assert "no answer within 10 s to a request" in str(shell.follower.failure)


def test_a_server_that_owes_the_failover_log_of_a_rollback():
    """It is asked anew, and answers then."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster, timeout_s=10.0)
    shell.run(until=lambda: _has(shell, 11))
    cluster.answers = {w.GetFailoverLog: lambda *_: [] if len(cluster.asked(w.GetFailoverLog)) == 1 else None}
    crash(shell, 0, after=6)
    shell.run(until=lambda: any(isinstance(each, RolledBack) for each in shell.events))
    assert shell.now < 20


def test_an_answer_that_waits_behind_changes():
    """A user who takes his time keeps the connection: what counts is whether a later answer came before."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster, timeout_s=10.0)
    shell.piece_bytes = 20
    shell.run(until=lambda: bool(cluster.asked(w.StreamRequest)))
    shell.now += 60
    shell.run(until=lambda: _has(shell, 11))
    assert len(cluster.asked(w.Open)) == 1


def test_a_server_that_takes_too_long_to_open():
    """An opening that stands still ends after `timeout_s`."""
    cluster = filled(vbuckets=1)
    cluster.answers = {w.Open: lambda _connection, _request: []}
    shell = Shell(cluster, timeout_s=3.0)
    shell.run()
    assert "no answer within 3 s to open" in str(shell.follower.failure)
    assert shell.now == pytest.approx(3.0, abs=0.01)


def test_controls_that_a_server_does_not_know_are_done_without():
    """Old servers refuse some; without a window nothing is acknowledged."""
    cluster = filled(vbuckets=1, items=50)
    cluster.answers = {w.Control: lambda connection, request: [connection.refuse(request, Status.INVALID)]}
    shell = Shell(cluster, until="now", window_bytes=100)
    shell.run()
    assert sorted(shell.rows) == whole(cluster)
    assert not cluster.asked(w.BufferAck)


def test_what_is_asked_for_is_asked_for():
    """Options come to the server as hello features, open flags and controls."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster, until="now", xattrs=True, no_value=True, priority="high", noop_interval_s=20, name="me")
    shell.run()
    hello = cluster.asked(w.Hello)[-1]
    assert set(hello.features) == {0x06, 0x08, 0x0A, 0x0B}
    (opened,) = cluster.asked(w.Open)
    assert opened.flags == 0x01 | 0x04 | 0x08 | 0x20
    assert opened.name.startswith(b"me-")
    controls = {each.key: each.value for each in cluster.asked(w.Control)}
    assert controls[b"set_noop_interval"] == b"20"
    assert controls[b"set_priority"] == b"high"
    assert controls[b"enable_noop"] == controls[b"enable_expiry_opcode"] == b"true"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.NO_ACCESS, NoAccessError),
        (Status.OUT_OF_RANGE, HeadraceError),
        (Status.AUTH_ERROR, AuthFailedError),
    ],
)
def test_a_stream_that_is_refused_for_good(status: int, kind: type[HeadraceError]):
    """The error names host, vbucket and seqno, and nothing is tried again."""
    cluster = filled(vbuckets=1)
    cluster.answers = {w.StreamRequest: lambda connection, request: [connection.refuse(request, status)]}
    shell = Shell(cluster)
    shell.run()
    assert isinstance(shell.follower.failure, kind)
    assert "127.0.0.1:10000: vbucket 0 from seqno 0" in str(shell.follower.failure)
    assert len(cluster.asked(w.StreamRequest)) == 1


@pytest.mark.parametrize("status", [Status.TEMPORARY_FAILURE, Status.BUSY, Status.KEY_EXISTS])
def test_a_stream_that_is_refused_for_now(status: int):
    """It is asked for again, on a new connection where the old one has another stream of it."""
    cluster = filled(vbuckets=1)
    times = iter([status] * 3)

    def busy(connection: Any, request: Any) -> list[Message] | None:
        found = next(times, None)
        return None if found is None else [connection.refuse(request, found)]

    cluster.answers = {w.StreamRequest: busy}
    shell = Shell(cluster, until="now")
    shell.run()
    assert sorted(shell.rows) == whole(cluster)
    assert len(cluster.asked(w.Open)) == (4 if status == Status.KEY_EXISTS else 1)


def test_a_stream_that_ends_early():
    """An end that says all is well before the range was seen is no end."""
    cluster = filled(vbuckets=1)
    shell = Shell(cluster, until="now", window_bytes=100)
    shell.takes = False
    shell.run(until=lambda: any(each.streams for each in cluster.connections))
    cluster.connections[0].end(0, StreamEndReason.OK)
    shell.takes = True
    shell.run()
    assert sorted(shell.rows) == whole(cluster)
    assert len(cluster.asked(w.StreamRequest)) == 2


def test_changes_out_of_order_are_refused():
    """A seqno that does not grow is no change stream; nothing is guessed."""
    cluster = filled(vbuckets=1)
    cluster.vbuckets[0].changes.insert(5, (3, b"again", b"3"))
    shell = Shell(cluster)
    cluster.vbuckets[0].changes = [(1, b"a", b""), (2, b"b", b"")]
    shell.run(until=lambda: len(shell.rows) == 2)
    stream = cluster.connections[0].streams[0]
    item = w.Mutation(
        opaque=Opaque(stream.opaque), vbucket=VBucketId(0), by_seqno=Seqno(2), rev_seqno=1, key=b"b", nru=0
    )
    cluster.connections[0].send(item)
    shell.run()
    assert isinstance(shell.follower.failure, ServerAnswerError)
    assert "127.0.0.1:10000: vbucket 0: seqno 2 came after 2" in str(shell.follower.failure)


def test_a_seqno_past_what_columns_hold():
    """It is the server's fault, and no crash."""
    cluster = filled(vbuckets=1)
    row = w.VBucketSeqno(0, Seqno(2**63))
    cluster.answers = {
        w.GetAllVBSeqnos: lambda connection, request: [connection._reply(request, w.Seqnos, seqnos=(row,))],
        w.StreamRequest: lambda connection, request: [
            connection._reply(request, w.FailoverLog, entries=connection._log(0))
        ],
    }
    shell = Shell(cluster, start="now")
    shell.run()
    assert "past what columns hold" in str(shell.follower.failure)


def test_messages_that_no_reader_is_sent():
    """An unknown or misplaced message ends it with what came: it might be a change that is lost otherwise."""
    for message in (w.SetVBucketState(state=1), w.Done(opcode=0x0A, opaque=Opaque(0x1234))):
        cluster = filled(vbuckets=1)
        shell = Shell(cluster)
        shell.run(until=partial(_has, shell, 11))
        cluster.connections[0].send(message)
        shell.run()
        assert isinstance(shell.follower.failure, ServerAnswerError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vbuckets": (0, 9)}, "there is no vbucket 9: bucket default has 0 to 3"),
        ({"until": {0: 5}}, "no end was given for vbucket 1"),
        ({"start": Positions(bucket="other")}, "the positions are of bucket other"),
    ],
)
def test_a_plan_that_does_not_fit_the_bucket(options: dict[str, Any], words: str):
    """It is told once the bucket is known, and nothing is tried again."""
    shell = Shell(filled(), **options)
    shell.run()
    assert isinstance(shell.follower.failure, OptionError)
    assert words in str(shell.follower.failure)


def test_some_vbuckets_only():
    """Nothing is asked about the others."""
    cluster = filled()
    shell = Shell(cluster, vbuckets=(1, 3), until="now")
    shell.run()
    assert {row[0] for row in shell.rows} == {1, 3}
    assert {each.vbucket for each in cluster.asked(w.StreamRequest)} == {1, 3}


def test_a_bucket_that_was_made_anew_with_other_vbuckets():
    """It is another bucket, and its changes are no continuation."""
    cluster = filled()
    shell = Shell(cluster)
    shell.run(until=lambda: len(shell.rows) == len(whole(cluster)))
    cluster.vbuckets = cluster.vbuckets[:2]
    shell.lose(next(iter(shell.peers)), "the connection broke")
    shell.run()
    assert "it is another bucket" in str(shell.follower.failure)


# -- held back until on disk everywhere


def test_changes_wait_until_they_are_on_disk():
    """What is in memory alone is not handed on, vbucket by vbucket; the rest is."""
    cluster = filled(vbuckets=2)
    cluster.vbuckets[0].persisted = 0
    shell = Shell(cluster, mitigate_rollbacks=True)
    shell.run(until=lambda: len(shell.of(1)) == 11)
    shell.run(until=lambda: shell.now > 2)
    assert shell.of(0) == []
    assert shell.follower.positions.vbuckets[VBucketId(0)].seqno == 0
    cluster.vbuckets[0].persisted = None
    shell.run(until=lambda: len(shell.of(0)) == 11)
    assert shell.of(0) == cluster.vbuckets[0].changes


def test_every_copy_has_to_have_them():
    """The replica is asked at its node; while it says nothing, nothing is handed on."""
    cluster = filled(vbuckets=2, nodes=3)
    cluster.vbuckets[0].replicas = (2,)
    replica_has = [0]

    def observed(connection: Any, request: Any) -> list[Message] | None:
        if connection.node != 2:
            return None
        vb = cluster.vbuckets[request.vbucket]
        fields = {"vbuuid": vb.log[0][0], "persisted_seqno": replica_has[0], "current_seqno": vb.high}
        return [connection._reply(request, w.Observed, format=0, vbucket=request.vbucket, **fields)]

    cluster.answers = {w.ObserveSeqno: observed}
    shell = Shell(cluster, mitigate_rollbacks=True, until="now")
    shell.run(until=lambda: shell.now > 2)
    assert shell.of(0) == []
    assert shell.of(1) == cluster.vbuckets[1].changes
    replica_has[0] = 11
    shell.run()
    assert shell.follower.is_done
    assert sorted(shell.rows) == whole(cluster)


def test_a_copy_that_stays_away():
    """What waits for it is not waited for in silence."""
    cluster = filled(vbuckets=1, nodes=2)
    cluster.vbuckets[0].replicas = (1,)
    cluster.down.add(1)
    shell = Shell(cluster, mitigate_rollbacks=True, until="now", give_up_s=60.0)
    shell.run()
    assert f"vbucket 0 has waited 60 s for its copy at {cluster.nodes[1]}" in str(shell.follower.failure)
    assert shell.of(0) == []
    assert 60 <= shell.now < 70


def test_what_was_never_handed_on_is_not_rolled_back():
    """A crash takes away what waited; the reader's user sees the history that holds, and no rollback."""
    cluster = filled(vbuckets=1)
    cluster.vbuckets[0].persisted = 6
    shell = Shell(cluster, mitigate_rollbacks=True)
    shell.piece_bytes = 120
    shell.run(until=lambda: shell.now > 2)
    handed = len(shell.of(0))
    assert 0 < handed <= 6
    crash(shell, 0, after=6)
    cluster.vbuckets[0].persisted = None
    cluster.vbuckets[0].add("instead")
    shell.run(until=lambda: bool(shell.of(0)) and shell.of(0)[-1][1] == b"instead")
    assert shell.of(0) == cluster.vbuckets[0].changes
    assert not [each for each in shell.events if isinstance(each, RolledBack)]


def test_what_was_handed_on_and_not_taken_is_rolled_back():
    """A user who is busy has got changes that a crash takes away: the rollback comes behind them."""
    cluster = filled(vbuckets=1, items=2)
    cluster.vbuckets[0].snapshot_size = 1
    shell = Shell(cluster, mitigate_rollbacks=True)
    shell.run(until=lambda: _has(shell, 3))
    shell.takes = False
    cluster.vbuckets[0].add("x", "y")
    shell.run(until=lambda: any(isinstance(each, Batch) and each.rows.num_rows for each in shell.follower.events))
    crash(shell, 0, after=3)
    cluster.vbuckets[0].add("instead")
    shell.run(until=lambda: len(cluster.asked(w.StreamRequest)) == 3)
    shell.takes = True
    shell.run(until=lambda: shell.of(0)[-1][1] == b"instead")
    assert [each[0] for each in shell.of(0)] == [1, 2, 3, 4, 5, 4]
    (rolled_back,) = [each for each in shell.events if isinstance(each, RolledBack)]
    assert rolled_back.whole == 3
    assert shell.follower.positions.vbuckets[VBucketId(0)].seqno == 4


def test_what_waits_is_bounded_by_the_window():
    """Nothing is acknowledged while it waits."""
    cluster = filled(vbuckets=1, items=100)
    cluster.vbuckets[0].persisted = 0
    shell = Shell(cluster, mitigate_rollbacks=True, window_bytes=1000)
    shell.run(until=lambda: shell.now > 2)
    assert cluster.connections[0].unacked < 1200
    assert not cluster.asked(w.BufferAck)
    cluster.vbuckets[0].persisted = None
    shell.run(until=lambda: len(shell.rows) == 101)


# -- collections

MANIFEST = {
    "uid": "1f",
    "scopes": [
        {"uid": "0", "name": "_default", "collections": [{"uid": "0", "name": "_default"}]},
        {"uid": "8", "name": "shop", "collections": [{"uid": "a", "name": "beer"}]},
    ],
}


def with_collections(manifest: dict[str, Any] = MANIFEST) -> FakeCluster:
    """A cluster whose keys begin with the ids of their collections."""
    cluster = FakeCluster(1)
    for seqno, key in enumerate((b"\x00plain", b"\x0aale", b"\x0bnew"), 1):
        cluster.vbuckets[0].changes.append((seqno, key, b"1"))
    told = lambda connection, request: [connection._reply(request, w.Text, value=json.dumps(manifest).encode())]  # noqa: E731
    cluster.answers = {w.GetCollectionsManifest: told}
    return cluster


def test_collections_are_named():
    """A key loses the id in front of it, and the row says where it belongs; an id that nobody named stays one."""
    cluster = with_collections()
    shell = Shell(cluster, until="now", collections=())
    shell.run()
    rows = [row for event in shell.events if isinstance(event, Batch) for row in event.rows.to_pylist()]
    assert [(row["scope"], row["collection"], row["key"]) for row in rows] == [
        ("_default", "_default", b"plain"),
        ("shop", "beer", b"ale"),
        (None, "0xb", b"new"),
    ]
    assert [json.loads(each.filter) for each in cluster.asked(w.StreamRequest)] == [{"uid": "1f"}]


def test_some_collections_are_asked_for_by_their_ids():
    """The request names them; one that is not there is refused, with those that are."""
    cluster = with_collections()
    Shell(cluster, until="now", collections=("shop.beer",)).run()
    assert json.loads(cluster.asked(w.StreamRequest)[0].filter) == {"uid": "1f", "collections": ["a"]}
    shell = Shell(with_collections(), collections=("shop.wine",))
    shell.run()
    assert "collection shop.wine at 127.0.0.1:10000" in str(shell.follower.failure)
    assert "there are _default._default, shop.beer" in str(shell.follower.failure)


def test_a_collection_that_comes_later_gets_its_name():
    """A system event has the names asked for again."""
    cluster = with_collections()
    shell = Shell(cluster, collections=())
    shell.run(until=lambda: len(shell.rows) == 3)
    grown = json.loads(json.dumps(MANIFEST))
    grown["scopes"][1]["collections"].append({"uid": "b", "name": "wine"})
    told = json.dumps(grown).encode()
    cluster.answers = {
        w.GetCollectionsManifest: lambda connection, request: [connection._reply(request, w.Text, value=told)]
    }
    stream = cluster.connections[0].streams[0]
    common: Any = {"opaque": Opaque(stream.opaque), "vbucket": VBucketId(0)}
    cluster.connections[0].send(
        w.SnapshotMarker(start_seqno=Seqno(4), end_seqno=Seqno(4), flags=1, **common),
        w.SystemEvent(by_seqno=Seqno(4), event=0, version=0, key=b"wine", value=b"x", **common),
    )
    shell.run(until=lambda: len(cluster.asked(w.GetCollectionsManifest)) == 2)
    stream.after = stream.snapshot_end = 4
    cluster.vbuckets[0].changes += [(4, b"", b""), (5, b"\x0bred", b"1")]
    shell.run(until=lambda: len(shell.rows) == 5)
    last = [row for event in shell.events if isinstance(event, Batch) for row in event.rows.to_pylist()][-1]
    assert (last["scope"], last["collection"], last["key"]) == ("shop", "wine", b"red")


def test_a_server_without_collections():
    """All is in the default one; who wants others is told that there are none."""
    cluster = filled(vbuckets=1)
    few = lambda connection, request: [connection._reply(request, w.HelloReply, features=(0x08,))]  # noqa: E731
    cluster.answers = {w.Hello: few}
    shell = Shell(cluster, until="now", collections=())
    shell.run()
    assert sorted(shell.rows) == whole(cluster)
    shell = Shell(cluster, collections=("shop.beer",))
    shell.run()
    assert "collections at 127.0.0.1:10000" in str(shell.follower.failure)


def test_a_manifest_that_cannot_be_read():
    """It is the server's fault."""
    shell = Shell(with_collections({"uid": 1}), collections=())
    shell.run()
    assert "its collections manifest cannot be read" in str(shell.follower.failure)


def test_no_secret_is_shown():
    """Neither options, nor logins, nor readers show a password."""
    shell = Shell(filled(), username="ann", password="pencil case")
    shown = f"{shell.options!r} {shell.options.login(shell.cluster.nodes[0])!r}"
    assert "pencil" not in shown
    assert "ann" in shown


def test_links_close_when_nothing_is_left_to_read():
    """A node that holds nothing more of what is wanted is left alone."""
    cluster = filled(vbuckets=2, nodes=2)
    shell = Shell(cluster, until="now")
    shell.run()
    shell.step()
    assert not shell.follower.nodes.links
    assert all(link.state is LinkState.CLOSED for link in shell.peers)
