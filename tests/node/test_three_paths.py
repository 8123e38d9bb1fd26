"""The compiled loop, the hot loop and the dispatch by the catalogue give the same answers and leave the same items."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ids import Cas, Opaque, VBucketId, VbUuid
from headrace.node import runs
from headrace.node.dispatch import dispatch
from headrace.node.hot import serve
from headrace.node.seen import SEEN_SLOTS
from headrace.node.server import AsyncNode, NodeOptions
from headrace.node.session import Session
from headrace.wire import encode
from headrace.wire.catalogue import (
    Add,
    Delete,
    Get,
    GetK,
    GetKQ,
    GetLocked,
    GetQ,
    Noop,
    Replace,
    Set,
    SetQ,
    Touch,
)
from headrace.wire.codes import Feature
from headrace.wire.header import whole_frame
from headrace.wire.limits import BODY_BYTES_MAX

if TYPE_CHECKING:
    from headrace.wire.message import Request

NOW_NS = 1_700_000_000_000_000_000
FEATURES: tuple[frozenset[int], ...] = (
    frozenset(),
    frozenset({Feature.MUTATION_SEQNO, Feature.JSON}),
    frozenset({Feature.MUTATION_SEQNO, Feature.JSON, Feature.SNAPPY, Feature.XERROR}),
)

keys = st.sampled_from([b"a", b"b", b"ccc", b"k" * 250, b"k" * 251])
vbuckets = st.sampled_from([0, 1, 2, 200]).map(VBucketId)
values = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"", b"{}", b'{"a":1}', b"[1,2", b"17", b" 1", b"true", b"\x00"])
)
expiries = st.sampled_from([0, 0, 0, 1, 100, 2_592_001, 4_000_000_000])
datatypes = st.sampled_from([0, 0, 0, 1, 2])


def requests() -> st.SearchStrategy[Request]:
    """A request on a small space of keys; the CAS is 0, wrong, or one that may be right."""
    common: dict[str, Any] = {"vbucket": vbuckets, "key": keys, "cas": st.sampled_from([0, 0, 0, 1, 2, 3]).map(Cas)}
    storing = {**common, "value": values, "flags": st.integers(0, 2**32 - 1), "expiry": expiries, "datatype": datatypes}
    return st.one_of(
        *(st.builds(cls, **storing) for cls in (Set, SetQ, SetQ, SetQ, Add, Replace)),
        *(st.builds(cls, vbucket=vbuckets, key=keys) for cls in (Get, GetQ, GetK, GetKQ)),
        st.builds(Delete, **common),
        st.builds(Touch, vbucket=vbuckets, key=keys, expiry=expiries),
        st.builds(GetLocked, vbucket=vbuckets, key=keys),
        st.builds(Noop),
    )


class NoRuns:
    """In the place of the compiled loop: takes nothing."""

    def take(self, data: bytes, at: int, json_too: int) -> tuple[int, int]:
        """Leave every request to the loop in Python."""
        assert at <= len(data), json_too
        return at, 0


def session_on(node: AsyncNode, name: str, features: frozenset[int]) -> Session:
    """A client of a bucket that is empty and whose clock stands still."""
    session = Session(node.services)
    session.agree(features, "tests")
    session.select(node.services.buckets.get(name))
    bucket = session.bucket
    assert bucket is not None
    if name == "hot":
        bucket._runs = NoRuns()  # type: ignore[assignment]
    bucket.clock.last, bucket.clock.seconds = NOW_NS, NOW_NS // 1_000_000_000
    bucket.locks.clear()
    bucket.seen = bytearray(SEEN_SLOTS)
    for vb in bucket.vbuckets:
        assert vb is not None
        vb.items, vb.dirty, vb.flushing = {}, {}, {}
        vb.high_seqno = vb.live_items = 0
        vb.vbuuid = VbUuid(77)
    return session


def answers_of(session: Session) -> bytes:
    """What was answered since the last look."""
    told = b"".join(session.out)
    session.out.clear()
    session.out_bytes = 0
    return told


def held_by(session: Session) -> list[Any]:
    """All that a bucket holds, in the order of its changes."""
    assert session.bucket is not None
    return [(list(vb.dirty.items()), vb.high_seqno, vb.live_items) for vb in session.bucket.vbuckets if vb is not None]


def run_plainly(session: Session, sequence: list[Request]) -> tuple[list[bytes], list[bytes]]:
    """Serve a sequence by the catalogue alone; gives the requests, each with a CAS that may be right, and answers."""
    frames, answers = [], []
    assert session.bucket is not None
    for index, request in enumerate(sequence):
        cas = Cas(session.bucket.clock.last - 1 + request.cas) if request.cas else Cas(0)
        frames.append(encode(type(request)(**{**_fields(request), "cas": cas, "opaque": Opaque(index)})))
        dispatch(session, whole_frame(frames[-1], body_bytes_max=BODY_BYTES_MAX))
        answers.append(answers_of(session))
    return frames, answers


def serve_all(session: Session, block: bytes) -> bytes:
    """Serve a block by the hot loop, as often as it has to be asked."""
    at, told = 0, b""
    while at < len(block):
        at = serve(session, block, at)
        told += answers_of(session)
    return told


async def _compare(sequences: list[tuple[frozenset[int], list[Request]]]) -> None:
    runs.load()
    names = ("hot", "runs", "plain")
    async with AsyncNode(NodeOptions(port=0, vbuckets=4, buckets=names)) as node:
        for opened in node.services.buckets:
            opened.flusher.stop_persistence()
        for features, sequence in sequences:
            plain = session_on(node, "plain", features)
            frames, answers = run_plainly(plain, sequence)
            for name in ("hot", "runs"):
                session = session_on(node, name, features)
                assert [serve_all(session, frame) for frame in frames] == answers, name
                assert held_by(session) == held_by(plain), name
                session = session_on(node, name, features)
                assert serve_all(session, b"".join(frames)) == b"".join(answers), name
                assert held_by(session) == held_by(plain), name
        for opened in node.services.buckets:  # what was made up here is not for the disk
            for vb in opened.bucket.vbuckets:
                assert vb is not None
                vb.dirty = {}
            opened.bucket.dirty_vbuckets.clear()


def _fields(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in (*request.spec.fields, "vbucket", "datatype")}


@settings(max_examples=10)
@given(
    st.lists(
        st.tuples(st.sampled_from(FEATURES), st.lists(requests(), min_size=1, max_size=40)), min_size=1, max_size=10
    )
)
def test_all_paths_do_the_same(sequences: list[tuple[frozenset[int], list[Request]]]):
    """Whatever is sent, at once or one by one, all three answer with the same bytes and keep the same records."""
    asyncio.run(_compare(sequences))


def test_a_run_of_quiet_sets_is_taken_at_once():
    """The compiled loop serves them all, and stops where something else comes."""

    async def take() -> tuple[tuple[int, int], int]:
        runs.load()
        async with AsyncNode(NodeOptions(port=0, vbuckets=4)) as node:
            session = session_on(node, "default", frozenset())
            sets = b"".join(encode(SetQ(key=b"k%d" % index, value=b"\x00v")) for index in range(100))
            assert session.bucket is not None
            taken = session.bucket.runs
            assert taken is not None
            return taken.take(sets + encode(Noop()) + sets, 0), len(sets)

    taken, bytes_of_sets = asyncio.run(take())
    assert taken == (bytes_of_sets, 100)
