from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.ranges import Range
from headrace.spark.reading import rounds
from headrace.spark.sharing import TASK_SEQNOS_MIN, share_out, tasks_for

SIZES = st.dictionaries(st.integers(0, 63), st.integers(1, 500_000), min_size=1)


def ranges(sizes: dict[int, int]) -> list[Range]:
    """One range of each size."""
    return [Range(vbucket=vb, start=5, end=5 + size, vbuuid=7, head=9) for vb, size in sizes.items()]


@given(SIZES, st.integers(1, 12), st.booleans())
def test_everything_is_read_once(sizes: dict[int, int], tasks: int, cuts: bool):
    """However work is shared out, each seqno of each vbucket is in one task, and a task has one node."""
    nodes = {vb: vb % 3 for vb in sizes}
    shares = share_out(ranges(sizes), nodes, tasks, list if cuts else None)
    seen: dict[int, list[tuple[int, int]]] = {}
    for share in shares:
        assert len({nodes[each.vbucket] for each in share.ranges}) == 1
        for each in share.ranges:
            seen.setdefault(each.vbucket, []).append((each.start, each.end))
    for vb, size in sizes.items():
        pieces = sorted(seen[vb])
        assert pieces[0][0] == 5
        assert pieces[-1][1] == 5 + size
        assert all(one[1] == two[0] for one, two in pairwise(pieces))


def test_a_hot_vbucket_is_cut():
    """One vbucket with all the work goes to all tasks in like parts; where no server allows it, to one."""
    hot = ranges({0: 1_000_000, 1: 10, 2: 10})
    shares = share_out(hot, {}, 4, list)
    assert len(shares) == 4
    assert max(share.seqnos for share in shares) < 300_000
    assert all(each.vbuuid == 9 for share in shares for each in share.ranges if each.start > 5)
    assert all(each.part == (each.start > 5) for share in shares for each in share.ranges)
    assert max(share.seqnos for share in share_out(hot, {}, 4, lambda _: [])) >= 1_000_000
    assert max(share.seqnos for share in share_out(hot, {}, 4)) >= 1_000_000


def test_both_nodes_get_tasks():
    """Each node that owns something has a task, and more where more waits."""
    nodes = {vb: "a" if vb < 8 else "b" for vb in range(16)}
    shares = share_out(ranges({vb: 30_000 if vb < 8 else 10_000 for vb in range(16)}), nodes, 4)
    assert Counter(nodes[share.ranges[0].vbucket] for share in shares) == {"a": 3, "b": 1}


def test_little_work_is_one_task():
    """A task is worth some work; a wish for more of them is granted."""
    assert tasks_for(10, wanted=None, cores=8) == 1
    assert tasks_for(3 * TASK_SEQNOS_MIN, wanted=None, cores=8) == 3
    assert tasks_for(10**9, wanted=None, cores=8) == 8
    assert tasks_for(10, wanted=5, cores=2) == 5
    assert tasks_for(0, wanted=None, cores=2) == 1


def test_pieces_of_one_vbucket_take_turns():
    """A reading has each vbucket once."""
    pieces = (
        Range(vbucket=1, start=0, end=5),
        Range(vbucket=2, start=0, end=5),
        Range(vbucket=1, start=5, end=9),
    )
    assert rounds(pieces) == [[pieces[0], pieces[1]], [pieces[2]]]
