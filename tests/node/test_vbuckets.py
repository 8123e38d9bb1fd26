"""States, seqnos and items with a history from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.ids import Cas, Seqno, VBucketId, VbUuid
from headrace.node import Node
from headrace.wire import Malformed, decode
from headrace.wire.catalogue import (
    CompactDb,
    Delete,
    DeleteVBucket,
    DeleteWithMeta,
    Done,
    FailoverLog,
    Get,
    GetAllVBSeqnos,
    GetFailoverLog,
    GetMeta,
    GetReplica,
    GetVBucket,
    Item,
    Meta,
    Mutated,
    Observed,
    ObserveSeqno,
    SeqnoPersistence,
    Seqnos,
    Set,
    SetVBucket,
    SetWithMeta,
    SetWithMetaQ,
    StartPersistence,
    StopPersistence,
    Text,
    VBucketStateReply,
)
from headrace.wire.codes import Feature, Status, VBucketState, WithMetaOption
from headrace.wire.message import Request
from tests.node.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.fixture
def own() -> Iterator[Talk]:
    """A node for one test alone, and a connection that is told seqnos."""
    with Node(vbuckets=16) as node, Talk(node, Feature.MUTATION_SEQNO, Feature.XERROR) as talk:
        yield talk


def log_of(talk: Talk, vb: int) -> list[tuple[int, int]]:
    """The failover log of a vbucket, newest first."""
    entries = talk.get(GetFailoverLog(vbucket=VBucketId(vb)), FailoverLog).entries
    return [(entry.vbuuid, entry.seqno) for entry in entries]


def test_states_are_told_and_turn_clients_away(own: Talk):
    """Only an active vbucket serves its items; a replica gives them to those who ask a replica."""
    own.get(Set(vbucket=VBucketId(2), key=b"k", value=b"v"), Mutated)
    for state in (VBucketState.REPLICA, VBucketState.PENDING, VBucketState.DEAD):
        own.get(SetVBucket(vbucket=VBucketId(2), state=state), Done)
        assert own.get(GetVBucket(vbucket=VBucketId(2)), VBucketStateReply).state == state
        assert own.status(Get(vbucket=VBucketId(2), key=b"k")) == Status.NOT_MY_VBUCKET
        assert own.status(Set(vbucket=VBucketId(2), key=b"k", value=b"x")) == Status.NOT_MY_VBUCKET
        assert own.get(GetReplica(vbucket=VBucketId(2), key=b"k"), Item).value == b"v"
    own.get(SetVBucket(vbucket=VBucketId(2), state_byte=VBucketState.ACTIVE), Done)
    assert own.get(Get(vbucket=VBucketId(2), key=b"k"), Item).value == b"v"
    assert own.status(SetVBucket(vbucket=VBucketId(2), state=9)) == Status.INVALID
    assert own.status(SetVBucket(vbucket=VBucketId(16), state=1)) == Status.OUT_OF_RANGE
    assert own.status(GetVBucket(vbucket=VBucketId(16))) == Status.NOT_MY_VBUCKET


def test_a_promotion_branches_the_failover_log(own: Talk):
    """From replica, pending or dead to active: a new branch at the high seqno. Active to active: none."""
    own.get(Set(vbucket=VBucketId(3), key=b"k", value=b"v"), Mutated)
    before = log_of(own, 3)
    own.get(SetVBucket(vbucket=VBucketId(3), state=VBucketState.ACTIVE), Done)
    assert log_of(own, 3) == before
    for state in (VBucketState.REPLICA, VBucketState.PENDING, VBucketState.DEAD):
        own.get(SetVBucket(vbucket=VBucketId(3), state=state), Done)
        assert log_of(own, 3) == before
        own.get(SetVBucket(vbucket=VBucketId(3), state=VBucketState.ACTIVE), Done)
        after = log_of(own, 3)
        assert after[1:] == before
        assert after[0][1] == 1
        before = after


def test_a_vbucket_is_removed_when_it_is_dead_and_comes_back_empty(own: Talk):
    """As in capture 05: dead, removed, made anew with a history of its own."""
    own.get(Set(vbucket=VBucketId(5), key=b"k", value=b"v"), Mutated)
    before = log_of(own, 5)
    assert own.status(DeleteVBucket(vbucket=VBucketId(5))) == Status.NOT_MY_VBUCKET
    own.get(SetVBucket(vbucket=VBucketId(5), state=VBucketState.DEAD), Done)
    own.get(DeleteVBucket(vbucket=VBucketId(5)), Done)
    assert own.status(GetVBucket(vbucket=VBucketId(5))) == Status.NOT_MY_VBUCKET
    own.get(SetVBucket(vbucket=VBucketId(5), state=VBucketState.ACTIVE), Done)
    assert own.status(Get(vbucket=VBucketId(5), key=b"k")) == Status.KEY_NOT_FOUND
    (entry,) = log_of(own, 5)
    assert entry[0] != before[0][0]
    assert entry[1] == 0


def test_writes_tell_their_branch_and_seqno(own: Talk):
    """Each change of a vbucket has the next seqno; observe sees it in memory and then on disk."""
    first = own.get(Set(key=b"a", value=b"1"), Mutated)
    second = own.get(Set(key=b"b", value=b"2"), Mutated)
    assert (first.seqno, second.seqno, first.vbuuid) == (1, 2, second.vbuuid)
    assert own.get(Delete(key=b"a"), Mutated).seqno == 3
    own.get(SeqnoPersistence(seqno=Seqno(3)), Done)
    assert first.vbuuid is not None
    seen = own.get(ObserveSeqno(vbuuid=first.vbuuid), Observed)
    assert (seen.vbuuid, seen.persisted_seqno, seen.current_seqno) == (first.vbuuid, 3, 3)
    assert seen.last_seqno is None


def test_observe_tells_where_an_old_branch_ended(own: Talk):
    """After a promotion the old branch is answered in the other form; one never heard of is not found."""
    first = own.get(Set(key=b"a", value=b"1"), Mutated)
    own.get(SetVBucket(state=VBucketState.REPLICA), Done)
    own.get(SetVBucket(state=VBucketState.ACTIVE), Done)
    assert first.vbuuid is not None
    seen = own.get(ObserveSeqno(vbuuid=first.vbuuid), Observed)
    assert (seen.old_vbuuid, seen.last_seqno) == (first.vbuuid, 1)
    assert seen.vbuuid == log_of(own, 0)[0][0]
    assert own.status(ObserveSeqno(vbuuid=VbUuid(12345))) == Status.KEY_NOT_FOUND


def test_a_stopped_disk_is_seen_and_catches_up(own: Talk):
    """With persistence stopped the persisted seqno stays; started, it follows."""
    own.get(StopPersistence(), Text)
    first = own.get(Set(key=b"a", value=b"1"), Mutated)
    assert first.vbuuid is not None
    assert own.get(ObserveSeqno(vbuuid=first.vbuuid), Observed).persisted_seqno == 0
    assert own.stats()["ep_flusher_state"] == "paused"
    own.get(StartPersistence(), Text)
    own.get(SeqnoPersistence(seqno=Seqno(1)), Done)
    assert own.get(ObserveSeqno(vbuuid=first.vbuuid), Observed).persisted_seqno == 1


def test_all_seqnos_are_listed_by_state(own: Talk):
    """Without a state: all but the dead, by ascending id."""
    own.get(Set(vbucket=VBucketId(4), key=b"a", value=b"1"), Mutated)
    own.get(SetVBucket(vbucket=VBucketId(13), state=VBucketState.DEAD), Done)
    own.get(SetVBucket(vbucket=VBucketId(14), state=VBucketState.REPLICA), Done)
    listed = own.get(GetAllVBSeqnos(), Seqnos).seqnos
    assert [row.vbucket for row in listed] == [*range(13), 14, 15]
    assert listed[4].seqno == 1
    assert [row.vbucket for row in own.get(GetAllVBSeqnos(state=2), Seqnos).seqnos] == [14]
    assert [row.vbucket for row in own.get(GetAllVBSeqnos(state=4), Seqnos).seqnos] == [13]
    for wrong in (0, 9):
        assert own.status(GetAllVBSeqnos(state=wrong)) == Status.INVALID


def test_the_newer_version_of_an_item_wins(own: Talk):
    """By revision, then CAS, expiry and flags; whichever comes first, all nodes keep the same one."""

    def write(rev: int, cas: int, expiry: int = 0, flags: int = 0) -> int:
        value = b"%d/%d/%d/%d" % (rev, cas, expiry, flags)
        return own.status(SetWithMeta(key=b"m", value=value, rev_seqno=rev, item_cas=cas, expiry=expiry, flags=flags))

    later = 4_000_000_000
    assert write(5, 100) == Status.SUCCESS
    assert write(4, 999) == Status.KEY_EXISTS
    assert write(5, 100) == Status.KEY_EXISTS
    assert write(5, 101) == Status.SUCCESS
    assert write(5, 101, later) == Status.SUCCESS
    assert write(5, 101, later, 1) == Status.SUCCESS
    assert write(5, 101, later, 1) == Status.KEY_EXISTS
    meta = own.get(GetMeta(key=b"m", version=2), Meta)
    assert (meta.rev_seqno, meta.cas, meta.expiry, meta.flags, meta.deleted, meta.item_datatype) == (
        5, 101, later, 1, 0, 0,
    )  # fmt: skip
    assert own.status(DeleteWithMeta(key=b"m", rev_seqno=5, item_cas=50)) == Status.KEY_EXISTS
    assert own.status(DeleteWithMeta(key=b"m", rev_seqno=6, item_cas=50, expiry=1234)) == Status.SUCCESS
    meta = own.get(GetMeta(key=b"m"), Meta)
    assert (meta.deleted, meta.rev_seqno, meta.cas, meta.item_datatype) == (1, 6, 50, None)
    assert own.status(Get(key=b"m")) == Status.KEY_NOT_FOUND
    assert write(1, 1) == Status.KEY_EXISTS
    own.send(SetWithMetaQ(key=b"m", value=b"x", rev_seqno=1, item_cas=1))
    assert own.receive().status == Status.KEY_EXISTS


@pytest.mark.parametrize("skips", [WithMetaOption.SKIP_CONFLICT_RESOLUTION, WithMetaOption.FORCE], ids=str)
def test_conflicts_can_be_left_unsettled(own: Talk, skips: WithMetaOption):
    """To skip takes any version, by the bit of today and by that of old; to regenerate the CAS gives it one of ours."""
    own.get(Set(key=b"f", value=b"here"), Mutated)
    assert own.get(SetWithMeta(key=b"f", value=b"there", rev_seqno=1, item_cas=7, options=skips), Mutated).cas == 7
    assert own.get(DeleteWithMeta(key=b"f", rev_seqno=1, item_cas=6, options=skips), Mutated).cas == 6
    options = skips | WithMetaOption.REGENERATE_CAS
    fresh = SetWithMeta(key=b"f", value=b"there", rev_seqno=1, item_cas=7, options=options)
    assert own.get(fresh, Mutated).cas > 7
    assert own.status(SetWithMeta(key=b"f", rev_seqno=9, item_cas=0)) == Status.KEY_EXISTS
    assert own.status(SetWithMeta(key=b"f", rev_seqno=9, item_cas=9, cas=Cas(3))) == Status.KEY_EXISTS
    assert own.status(SetWithMeta(key=b"none", rev_seqno=9, item_cas=9, cas=Cas(3))) == Status.KEY_NOT_FOUND


def test_a_write_that_may_come_to_a_bucket_by_time_is_settled_all_the_same(own: Talk):
    """That a write is accepted whatever settles conflicts does not say that there are none."""
    accept = WithMetaOption.FORCE_ACCEPT
    own.get(SetWithMeta(key=b"a", value=b"here", rev_seqno=5, item_cas=7, options=accept), Mutated)
    older = SetWithMeta(key=b"a", value=b"there", rev_seqno=4, item_cas=8, options=accept)
    assert own.status(older) == Status.KEY_EXISTS
    assert own.get(Get(key=b"a"), Item).value == b"here"


def test_a_cas_from_elsewhere_moves_the_clock(own: Talk):
    """What is written after a change from elsewhere has a greater CAS than it."""
    ahead = own.get(Set(key=b"c", value=b"1"), Mutated).cas + 3_600_000_000_000
    own.get(SetWithMeta(key=b"c", value=b"2", rev_seqno=2, item_cas=ahead), Mutated)
    assert own.get(Set(key=b"d", value=b"3"), Mutated).cas > ahead


def test_tombstones_are_forgotten_by_compaction(own: Talk):
    """A compaction that drops deletes raises the purge seqno; items stay, and so does the newest change."""
    own.get(Set(key=b"a", value=b"1"), Mutated)
    own.get(Delete(key=b"a"), Mutated)
    own.get(Set(key=b"b", value=b"2"), Mutated)
    assert own.get(GetMeta(key=b"a"), Meta).deleted == 1
    own.get(CompactDb(drop_deletes=1), Done)
    assert own.status(GetMeta(key=b"a")) == Status.KEY_NOT_FOUND
    assert own.get(Get(key=b"b"), Item).value == b"2"
    told = own.stats(b"vbucket-seqno 0")
    assert (told["vb_0:purge_seqno"], told["vb_0:high_seqno"]) == ("2", "3")


@pytest.mark.parametrize("server", ["3.0.3", "4.1.2"])
def test_the_real_server_answered_the_same(own: Talk, server: str):
    """The captured workload gives the same answers here, but for the CAS of deletions before hello and the times."""
    pending: list[Request] = []
    compared = 0
    for line in (CAPTURES / server / "01_workload.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event.get("dir") == "c2s":
            message = decode(bytes.fromhex(event["hex"]))
            assert isinstance(message, Request)
            pending.append(message)
        elif event.get("dir") == "s2c":
            theirs = decode(bytes.fromhex(event["hex"]))
            assert not isinstance(theirs, Malformed)
            ours = own.ask(pending.pop(0))
            assert ours.status == theirs.status  # type: ignore[attr-defined]
            compared += 1
    assert compared >= 18
