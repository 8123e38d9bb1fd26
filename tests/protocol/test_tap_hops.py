"""How far changes that came by TAP may go."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.tap_hops import RUNS_MAX, TTL_MAX, Hops


def test_own_changes_have_the_whole_way_before_them():
    """What did not come by TAP goes out with the highest TTL, beside and between what did."""
    hops = Hops()
    assert hops.left(3, 1) == TTL_MAX
    hops.note(3, 5, 200)
    hops.note(3, 7, 200)
    assert [hops.left(3, seqno) for seqno in (4, 5, 6, 7, 8)] == [TTL_MAX, 199, TTL_MAX, 199, TTL_MAX]
    assert hops.left(4, 5) == TTL_MAX


def test_the_last_hop_is_the_last():
    """A change that came with a TTL of 1 goes no further."""
    hops = Hops()
    hops.note(0, 1, 1)
    assert hops.left(0, 1) == 0


def test_a_vbucket_that_is_forgotten_is_as_new():
    """After `forget`, its seqnos are those of own changes."""
    hops = Hops()
    hops.note(0, 1, 9)
    hops.forget(0)
    hops.forget(1)
    assert hops.left(0, 1) == TTL_MAX


def test_the_oldest_runs_are_forgotten():
    """Memory is bounded however the TTLs alternate: the oldest go first, and count as own changes."""
    hops = Hops()
    for seqno in range(1, 3 * RUNS_MAX):
        hops.note(0, seqno, 100 + seqno % 2)
    assert hops.left(0, 1) == TTL_MAX
    assert hops.left(0, 3 * RUNS_MAX - 1) == 99 + (3 * RUNS_MAX - 1) % 2


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, TTL_MAX)), max_size=60))
def test_runs_say_what_was_noted(noted: list[tuple[int, int]]):
    """Every seqno has the TTL that was noted last, one less; a lower seqno after a higher one voids what lay behind."""
    hops = Hops()
    truth: dict[int, int] = {}
    for seqno, ttl in noted:
        truth = {one: each for one, each in truth.items() if one < seqno} | {seqno: ttl}
        hops.note(0, seqno, ttl)
    for seqno in range(42):
        assert hops.left(0, seqno) == truth.get(seqno, TTL_MAX + 1) - 1


def test_a_run_that_is_rolled_back_keeps_its_beginning():
    """What came one after the other with the same TTL is one run, and is cut where seqnos begin again."""
    hops = Hops()
    for seqno in (1, 2, 3):
        hops.note(0, seqno, 9)
    hops.note(0, 2, 5)
    assert [hops.left(0, seqno) for seqno in (1, 2, 3)] == [8, 4, TTL_MAX]
