import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.offsets import Offset, OffsetError, Place, RolledBackTo, Root, VBucketOffset, with_place

U64 = st.integers(1, 2**64 - 1)


@st.composite
def rows(draw: st.DrawFn) -> VBucketOffset:
    """A position with some places below it."""
    seqno = draw(U64)
    places = sorted(draw(st.lists(st.integers(1, seqno), max_size=3, unique=True)))
    vbuuid = draw(U64)
    head = draw(st.sampled_from([vbuuid, draw(U64)]))
    root = draw(st.none() | st.builds(Root, U64, U64))
    known = tuple(Place(each, draw(st.integers(each, 2**64 - 1))) for each in places)
    return VBucketOffset(vbuuid, seqno, head, known, root)


@given(
    st.dictionaries(st.integers(0, 1023), rows()),
    st.dictionaries(st.integers(0, 1023), st.builds(RolledBackTo, U64, U64)),
)
def test_json_and_back(vbuckets: dict[int, VBucketOffset], rollbacks: dict[int, RolledBackTo]):
    """An offset is the same after it went through JSON as text, with all 64 bits."""
    made = Offset("travel", vbuckets, rollbacks)
    assert Offset.from_json(json.loads(json.dumps(made.to_json())), bucket="travel") == made


@pytest.mark.parametrize(
    ("plain", "told"),
    [
        ([], "no offset of the format dcp"),
        ({"offset": 3}, "no offset of the format dcp"),
        ({"headrace_offset": 2}, "version 2"),
        ({"headrace_offset": 1, "bucket": "other", "vbuckets": {}}, "of bucket other, and the query reads travel"),
        ({"headrace_offset": 1, "bucket": "travel"}, "cannot be read"),
        ({"headrace_offset": 1, "bucket": "travel", "vbuckets": {"x": [1, 2]}}, "cannot be read"),
        ({"headrace_offset": 1, "bucket": "travel", "vbuckets": {"0": [1]}}, "cannot be read"),
        ({"headrace_offset": 1, "bucket": "travel", "vbuckets": {"0": [1, -2]}}, "cannot be read"),
        ({"headrace_offset": 1, "bucket": "travel", "vbuckets": {"0": [1, 2, 3]}}, "cannot be read"),
        ({"headrace_offset": 1, "bucket": "travel", "vbuckets": {"0": [1, 2, 3, 4]}}, "cannot be read"),
        ({"headrace_offset": 1, "bucket": "travel", "vbuckets": {"0": [1, 2, 2, 1]}}, "cannot be read"),
        ({"headrace_offset": 1, "bucket": "travel", "vbuckets": {}, "rollbacks": {"0": [True, 2]}}, "cannot be read"),
    ],
)
def test_what_is_no_offset(plain: object, told: str):
    """What is not an offset, or is another bucket's, is refused with a sentence."""
    with pytest.raises(OffsetError, match=told):
        Offset.from_json(plain, bucket="travel")


def test_an_offset_is_small():
    """An offset of 1024 vbuckets with all their places is no more than 150 KB of JSON."""
    row = VBucketOffset(2**48 - 1, 10**7, 2**48 - 1, (Place(10**6, 10**6), Place(10**6, 10**6), Place(10**7, 10**7)))
    assert len(json.dumps(Offset("b", dict.fromkeys(range(1024), row)).to_json())) < 150_000


@given(st.lists(st.integers(1, 100), max_size=200))
def test_places_near_and_far(steps: list[int]):
    """However many places there were, a few are kept: the last two, and one that is older."""
    places: tuple[Place, ...] = ()
    seqno, made = 0, []
    for step in steps:
        seqno += step
        made.append(Place(seqno, seqno))
        places = with_place(places, made[-1])
        assert len(places) <= 3
        assert list(places) == sorted(places)
        assert set(made[-2:]) <= set(places)


def test_a_place_is_known_once():
    """A second look at a position takes the place of the first."""
    assert with_place((Place(5, 8), Place(9, 12)), Place(9, 20)) == (Place(5, 8), Place(9, 20))
