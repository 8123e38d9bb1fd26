"""The parts of a reader, one by one: maps, positions, what waits, what is sifted."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.client import (
    Address,
    AddressError,
    ClusterMap,
    ConnectionLostError,
    Positions,
    PositionsError,
    RolledBack,
    ServerAnswerError,
    StreamEnded,
)
from headrace.client.events import Batch
from headrace.client.follower import RollbackError
from headrace.client.mitigation import Held, persisted_of
from headrace.client.options import addresses
from headrace.client.sifting import Mark, Streams
from headrace.columns import Positions as Inherited
from headrace.columns import Settings, decode_changes, schema
from headrace.columns.rollback import rollback_row
from headrace.errors import RemoteProtocolError
from headrace.history import FailoverLog, Position, Reason, SnapshotRange
from headrace.ids import Opaque, Seqno, VBucketId, VbUuid
from headrace.wire import encode
from headrace.wire.catalogue import Mutation, Observed, SnapshotMarker

HERE = Address(host="db.example.com", port=11210)


def config(**changes: Any) -> bytes:
    """A config of two nodes and three vbuckets."""
    document = {
        "rev": 5,
        "revEpoch": 2,
        "uuid": "u",
        "nodesExt": [
            {"services": {"kv": 11210, "kvSSL": 11207}, "thisNode": True},
            {"services": {"kv": 11310, "kvSSL": 11307}, "hostname": "other.example.com"},
        ],
        "vBucketServerMap": {
            "serverList": ["$HOST:11210", "other.example.com:11310"],
            "vBucketMap": [[0, 1], [1, -1], [-1]],
        },
        **changes,
    }
    return json.dumps({name: each for name, each in document.items() if each is not None}).encode()


def test_a_map_says_where_every_copy_is():
    """A node without a name is where the client dialled; -1 is nowhere."""
    found = ClusterMap.parse(config(), dialled=HERE)
    other = Address(host="other.example.com", port=11310)
    assert found.version == (2, 5)
    assert [found.node_of(vb) for vb in range(3)] == [HERE, other, None]
    assert [found.nodes_of(vb) for vb in range(3)] == [(HERE, other), (other,), ()]


def test_a_map_for_tls_has_the_ports_for_tls():
    """Who dialled TLS goes on with it."""
    found = ClusterMap.parse(config(), dialled=Address(host="db", port=11207, tls=True))
    assert found.nodes == (
        Address(host="db", port=11207, tls=True),
        Address(host="other.example.com", port=11307, tls=True),
    )


def test_an_old_map_has_a_list_of_servers():
    """Servers before `nodesExt` tell host and port in one text."""
    found = ClusterMap.parse(config(nodesExt=None), dialled=HERE)
    assert found.nodes == (HERE, Address(host="other.example.com", port=11310))
    with pytest.raises(ServerAnswerError, match="names no TLS port"):
        ClusterMap.parse(config(nodesExt=None), dialled=Address(host="db", port=11207, tls=True))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "is not JSON"),
        (b"[]", "cannot be read"),
        (config(vBucketServerMap=None), "has no vbucket map"),
        (config(vBucketServerMap={"serverList": ["a:1"], "vBucketMap": [[7]]}), "a node that is not listed"),
        (config(vBucketServerMap={"serverList": ["a:1"], "vBucketMap": ["x"]}), "cannot be read"),
        (config(nodesExt=[{}]), "cannot be read"),
        (b"[" * 200_000, "is not JSON"),
        (config(rev=float("inf")), "cannot be read"),
        (config(nodesExt=[{"services": {"kv": 99999999}}]), "cannot be read"),
        (config(nodesExt=[{"services": {"kv": 1}, "hostname": "a" * 80}]), "no name of a host"),
        (config(nodesExt=[{"services": {"kv": 1}, "hostname": "a\0b"}]), "no address"),
    ],
)
def test_a_map_that_is_none(text: bytes, words: str):
    """It is the server's fault, and named so."""
    with pytest.raises(ServerAnswerError, match=words) as told:
        ClusterMap.parse(text, dialled=HERE)
    assert "db.example.com:11210" in str(told.value)


def test_a_map_without_vbuckets_may_have_some_later():
    """A bucket that is being made is worth another try."""
    with pytest.raises(ConnectionLostError, match="may not be ready yet"):
        ClusterMap.parse(config(vBucketServerMap={"serverList": [], "vBucketMap": []}), dialled=HERE)


def test_a_connection_string_names_several():
    """Each may have its port; one scheme is for all."""
    assert [str(each) for each in addresses("couchbases://a, b:1,[::1]:2/")] == ["a:11207", "b:1", "[::1]:2"]
    assert all(each.tls for each in addresses("couchbases://a,b"))
    for wrong in ("couchbase://", ",", "http://a"):
        with pytest.raises(AddressError):
            addresses(wrong)


def position(seqno: int) -> Position:
    """A position between two snapshots."""
    return Position(vbuuid=VbUuid(2**63 + 7), seqno=Seqno(seqno), snapshot=SnapshotRange.at(Seqno(seqno)))


def test_positions_are_the_same_after_a_file(tmp_path: Path):
    """64 bits survive; the file is replaced as a whole."""
    saved = Positions(bucket="b", vbuckets={VBucketId(vb): position(vb + 1) for vb in range(1024)})
    file = tmp_path / "positions.json"
    file.write_text("old")
    saved.save(file)
    assert Positions.load(file) == saved
    assert [each.name for each in tmp_path.iterdir()] == ["positions.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "no headrace_positions"),
        ("[" * 200_000, "not JSON"),
        ('{"headrace_positions": 2}', "version 2"),
        ('{"headrace_positions": 1, "bucket": 1, "vbuckets": {}}', "without a bucket"),
        ('{"headrace_positions": 1, "bucket": "b", "vbuckets": {"x": {}}}', "vbucket 'x'"),
        ('{"headrace_positions": 1, "bucket": "b", "vbuckets": {"70000": {}}}', "vbucket '70000'"),
        ('{"headrace_positions": 1, "bucket": "b", "vbuckets": {"1": {}}}', "position of vbucket 1"),
    ],
)
def test_positions_that_are_none(text: str, words: str):
    """Nothing is guessed."""
    with pytest.raises(PositionsError, match=words):
        Positions.from_json(text)


def test_positions_that_cannot_be_written(tmp_path: Path):
    """The file is named, and what was there stays."""
    with pytest.raises(PositionsError, match="positions cannot be saved to"):
        Positions(bucket="b").save(tmp_path / "nowhere" / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PositionsError, match="cannot be saved"):
        Positions(bucket="b").save(tmp_path / "folder")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(PositionsError, match="cannot be read"):
        Positions.load(tmp_path / "folder")


def test_positions_replace_files_only(tmp_path: Path):
    """A link stays one, and what is no file stays what it is: nobody wants to lose /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for act in (Positions(bucket="b").save, Positions.check_path):
        with pytest.raises(PositionsError, match="it is no regular file"):
            act(tmp_path / "pipe")
    Positions.check_path(tmp_path / "link")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "pipe"]
    Positions(bucket="b").save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Positions.load(tmp_path / "file").bucket == "b"


def test_a_rollback_error_travels():
    """From a Spark executor to its driver, with what happened."""
    log = FailoverLog.new(VbUuid(1))
    event = RolledBack(
        vbucket=VBucketId(1), asked=position(9), to=Seqno(5), whole=Seqno(3), because=Reason.PAST_BRANCH, log=log
    )
    again = pickle.loads(pickle.dumps(RollbackError(event)))
    assert again.rolled_back == event
    assert str(again) == str(RollbackError(event))


def test_the_row_of_a_rollback():
    """It has the columns of a change, and 64 bits of them."""
    rows = rollback_row(VBucketId(3), VbUuid(2**64 - 1), Seqno(7), keys="binary")
    assert rows.schema == schema("binary")
    assert rows.to_pylist()[0]["vbuuid"] == -1


# -- sifting


def rows_of(*changes: tuple[int, int, int]) -> pa.RecordBatch:
    """Rows of vbucket, seqno and the end of the snapshot."""
    data = bytearray()
    for vbucket, seqno, end in changes:
        common: Any = {"vbucket": VBucketId(vbucket), "opaque": Opaque(1)}
        data += encode(SnapshotMarker(start_seqno=Seqno(0), end_seqno=Seqno(end), flags=1, **common))
        data += encode(Mutation(by_seqno=Seqno(seqno), rev_seqno=1, key=b"k%d" % seqno, nru=0, **common))
    return decode_changes(bytes(data), Settings(), Inherited()).rows


LOG = FailoverLog.new(VbUuid(0xA))


def streams(*vbuckets: int, stop: int = 2**64 - 1) -> Streams:
    """Streams that begin at nothing."""
    made = Streams(8)
    for each in vbuckets:
        made.begin(VBucketId(each), after=Seqno(0), stop=Seqno(stop), log=LOG)
    return made


def test_each_vbucket_is_told_apart():
    """However the rows of vbuckets are mixed, the last of each counts, and the places where it was whole."""
    sifted = streams(1, 2).sift(rows_of((1, 1, 2), (2, 5, 5), (1, 2, 2), (2, 7, 9), (1, 4, 4), (1, 6, 8)))
    assert sifted.marks == [
        Mark(VBucketId(1), Seqno(6), Seqno(8), Seqno(4), (Seqno(2),)),
        Mark(VBucketId(2), Seqno(7), Seqno(9), Seqno(5)),
    ]
    assert sifted.rows.num_rows == 6


def test_rows_that_nobody_asked_for_are_dropped():
    """Of a stream that was closed, some may still come, in whatever order."""
    made = streams(1, 2)
    made.end(VBucketId(2))
    sifted = made.sift(rows_of((1, 1, 1), (2, 5, 5), (2, 4, 5)))
    assert [mark.vbucket for mark in sifted.marks] == [1]
    assert sifted.rows.column("vbucket").to_pylist() == [1]


def test_a_cut_takes_the_snapshot_that_the_end_lies_in():
    """What is past the end goes; the mark says how far the stream came, and in which snapshot the end is."""
    sifted = streams(1, 2, stop=4).sift(rows_of((1, 2, 3), (2, 1, 1), (1, 3, 3), (1, 6, 9), (1, 9, 9)))
    assert sifted.marks[0] == Mark(VBucketId(1), Seqno(9), Seqno(9), Seqno(3))
    assert sifted.rows.column("seqno").to_pylist() == [2, 1, 3]


def test_rows_that_cannot_be():
    """A vbucket that the bucket does not have, a seqno twice, a change before its marker."""
    with pytest.raises(RemoteProtocolError, match="a change of vbucket 9; the bucket has 8"):
        streams(1).sift(rows_of((9, 1, 1)))
    with pytest.raises(RemoteProtocolError, match="vbucket 1: seqno 3 came after 3"):
        streams(1).sift(rows_of((1, 3, 3), (1, 3, 5)))
    bare = encode(Mutation(vbucket=VBucketId(1), by_seqno=Seqno(1), rev_seqno=1, key=b"k", nru=0))
    with pytest.raises(RemoteProtocolError, match="a change without a snapshot end"):
        streams(1).sift(decode_changes(bare, Settings(), Inherited()).rows)


def test_rows_of_several_branches():
    """Where the newest branch began after the stream's start, each row has the branch that it lies on."""
    log = FailoverLog.from_entries([(VbUuid(0xB), Seqno(4)), (VbUuid(0xA), Seqno(0))])
    made = Streams(8)
    for each in (1, 2):
        made.begin(VBucketId(each), after=Seqno(0), stop=Seqno(2**64 - 1), log=log)
    rows = made.sift(rows_of((1, 3, 9), (1, 4, 9), (1, 5, 9))).rows
    assert rows.column("vbuuid").to_pylist() == [0xA, 0xA, 0]  # the last is what the connection says of the newest
    again = made.sift(rows_of((1, 6, 9))).rows
    assert again.column("vbuuid").to_pylist() == [0]


def test_markers_are_passed_over():
    """Who wants none does not pay for reading them."""
    data = encode(SnapshotMarker(start_seqno=Seqno(0), end_seqno=Seqno(1), flags=1)) * 3
    controls: Any = decode_changes(data, Settings(), Inherited()).controls
    assert len(controls) == 3
    assert controls.without(0x56) == []
    assert len(controls.without(0x57)) == 3


# -- what waits


class Nobody:
    """A link that nobody hears of."""

    def worked_off(self, flow_bytes: int) -> None:
        """Nothing."""


def batch(*changes: tuple[int, int]) -> Batch:
    """A batch of whole snapshots of one change each."""
    rows = rows_of(*((vbucket, seqno, seqno) for vbucket, seqno in changes))
    last = dict(changes)
    marks = [Mark(VBucketId(vb), Seqno(seqno), Seqno(seqno), Seqno(seqno)) for vb, seqno in last.items()]
    return Batch(rows, marks, [], Nobody(), 100)  # type: ignore[arg-type]


def seqnos(events: list[Any]) -> list[tuple[int, int]]:
    """Vbucket and seqno of every row."""
    pairs = [
        zip(*(each.rows.column(name).to_pylist() for name in ("vbucket", "seqno")), strict=True) for each in events
    ]
    return [pair for each in pairs for pair in each]


def observed(vbuuid: int, persisted: int, **more: Any) -> Observed:
    """What a copy tells."""
    return Observed(
        opcode=0x91,
        opaque=Opaque(1),
        vbucket=1,
        vbuuid=VbUuid(vbuuid),
        persisted_seqno=Seqno(persisted),
        current_seqno=Seqno(persisted),
        **more,
    )


def test_what_a_copy_has_of_a_branch():
    """On another branch, only what both share counts (capture 11_seqnos)."""
    assert persisted_of(observed(7, 50), 7) == 50
    assert persisted_of(observed(8, 50, format=1, old_vbuuid=VbUuid(7), last_seqno=Seqno(20)), 7) == 20
    assert persisted_of(observed(8, 10, format=1, old_vbuuid=VbUuid(7), last_seqno=Seqno(20)), 7) == 10
    assert persisted_of(observed(8, 50), 7) == 0


def test_a_batch_is_parted_by_vbucket():
    """What is on disk goes, in order; the bytes count with the last part."""
    held = Held(8)
    assert list(held.add(batch((1, 1), (2, 1)))) == []
    assert list(held.add(batch((1, 2)))) == []
    held.observed(VBucketId(1), HERE, Seqno(1), (HERE,))
    (first,) = held.release()
    assert isinstance(first, Batch)
    assert (seqnos([first]), first.flow_bytes) == ([(1, 1)], 0)
    held.observed(VBucketId(1), HERE, Seqno(5), (HERE,))
    held.observed(VBucketId(2), HERE, Seqno(5), (HERE,))
    rest: list[Any] = list(held.release())
    assert seqnos(rest) == [(2, 1), (1, 2)]
    assert sum(each.flow_bytes for each in rest) == 200
    assert not held


def test_an_end_waits_for_the_changes_before_it():
    """The order of a vbucket stays; other vbuckets do not wait."""
    held = Held(8)
    ended = StreamEnded(vbucket=VBucketId(1), host="h", reason="ok", finished=True)
    other = StreamEnded(vbucket=VBucketId(2), host="h", reason="ok", finished=True)
    list(held.add(batch((1, 1))))
    assert list(held.add(ended)) == []
    assert list(held.add(other)) == [other]
    assert list(held.release()) == []
    held.observed(VBucketId(1), HERE, Seqno(1), (HERE,))
    assert [type(each) for each in held.release()] == [Batch, StreamEnded]


def test_all_copies_have_to_tell():
    """A copy that was not heard of counts as having nothing."""
    held = Held(8)
    list(held.add(batch((1, 4))))
    there = Address(host="there", port=1)
    held.observed(VBucketId(1), HERE, Seqno(9), (HERE, there))
    assert list(held.release()) == []
    held.observed(VBucketId(1), there, Seqno(3), (HERE, there))
    assert list(held.release()) == []
    held.observed(VBucketId(1), there, Seqno(4), (HERE, there))
    assert seqnos(list(held.release())) == [(1, 4)]


@pytest.mark.parametrize(("taken", "told"), [(4, False), (6, True)])
def test_a_rollback_drops_what_waits(taken: int, told: bool):
    """It is told only to who was given something that is gone; the others' changes stay."""
    held = Held(8)
    list(held.add(batch((1, 8), (2, 1))))
    list(held.add(batch((1, 9))))
    list(held.add(StreamEnded(vbucket=VBucketId(1), host="h", reason="ok", finished=True)))
    event = rollback(whole=4)
    given = list(held.rolled_back(event, Seqno(taken)))
    assert [each for each in given if isinstance(each, RolledBack)] == ([event] if told else [])
    assert seqnos([each for each in given if isinstance(each, Batch)]) == []
    held.observed(VBucketId(2), HERE, Seqno(20), (HERE,))
    assert seqnos(list(held.release())) == [(2, 1)]
    assert not held


def test_what_waits_below_a_rollback_stays():
    """It is of the history that both share."""
    held = Held(8)
    list(held.add(batch((1, 4))))
    list(held.add(batch((1, 9))))
    list(held.rolled_back(rollback(whole=4), Seqno(2)))
    assert held.vbuckets == (1,)
    held.observed(VBucketId(1), HERE, Seqno(20), (HERE,))
    assert seqnos(list(held.release())) == [(1, 4)]


def rollback(*, whole: int) -> RolledBack:
    """A rollback of vbucket 1."""
    return RolledBack(
        vbucket=VBucketId(1), asked=position(9), to=Seqno(5), whole=Seqno(whole), because=Reason.PAST_BRANCH, log=LOG
    )
