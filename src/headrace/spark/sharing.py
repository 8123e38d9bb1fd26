"""How the ranges of a batch are shared out to tasks: by node first, then by backlog.

A task reads from one node, so that its connection is straight to the owner. The tasks of a node get about the same
number of seqnos; a vbucket that has more than that is cut into pieces that several tasks read, so that one hot vbucket
does not hold a batch up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.client.ranges import Range
    from headrace.spark.offsets import RolledBackTo

TASK_SEQNOS_MIN = 20_000
"""Fewer are not worth a task of their own: that costs some tens of milliseconds."""

_SPLIT_FROM = 1.5
"""A vbucket with so many times the share of a task is cut."""


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads: rollback rows to give first, and ranges."""

    ranges: tuple[Range, ...]
    rollbacks: tuple[tuple[int, RolledBackTo], ...] = ()

    @property
    def seqnos(self) -> int:
        """How many seqnos there are to read."""
        return sum(each.end - each.start for each in self.ranges)


def tasks_for(seqnos: int, *, wanted: int | None, cores: int) -> int:
    """Say how many tasks a batch is worth."""
    by_work = min(math.ceil(seqnos / TASK_SEQNOS_MIN), cores)
    return max(by_work, wanted or 1, 1)


def share_out(
    ranges: Iterable[Range],
    nodes: Mapping[int, object],
    tasks: int,
    cuts: Callable[[Sequence[Range]], Sequence[Range]] | None = None,
) -> list[Share]:
    """Share ranges out to about so many tasks, at least one for each node that owns some of them.

    `nodes` says who owns a vbucket. `cuts` is given the pieces of vbuckets that would be cut, and gives back those that
    a server lets begin there; without it nothing is cut.
    """
    by_node: dict[object, list[Range]] = defaultdict(list)
    for each in ranges:
        by_node[nodes.get(each.vbucket)].append(each)
    total = sum(_size(each) for held in by_node.values() for each in held)
    shares: list[Share] = []
    for held in by_node.values():
        mine = max(1, round(tasks * sum(map(_size, held)) / total)) if total else 1
        shares += _balanced(_cut(held, mine, cuts), mine)
    return shares


def _size(each: Range) -> int:
    return each.end - each.start


def _cut(held: list[Range], tasks: int, cuts: Callable[[Sequence[Range]], Sequence[Range]] | None) -> list[Range]:
    target = math.ceil(sum(map(_size, held)) / tasks)
    if cuts is None or tasks == 1 or target < TASK_SEQNOS_MIN // 2:
        return held
    whole = [each for each in held if _size(each) <= _SPLIT_FROM * target]
    large = [each for each in held if _size(each) > _SPLIT_FROM * target]
    if not large:
        return held
    pieces = {each: _pieces(each, math.ceil(_size(each) / target)) for each in large}
    allowed = set(cuts([piece for made in pieces.values() for piece in made[1:]]))
    for each, made in pieces.items():
        whole += made if allowed.issuperset(made[1:]) else [each]
    return whole


def _pieces(each: Range, count: int) -> list[Range]:
    steps = [each.start + _size(each) * step // count for step in range(count + 1)]
    # Servers take the newest branch for a seqno before its beginning, too: the history up to there is its own.
    first = replace(each, end=steps[1])
    later = [replace(each, start=low, end=high, vbuuid=each.head, part=True) for low, high in pairwise(steps[1:])]
    return [first, *later]


def _balanced(ranges: list[Range], tasks: int) -> list[Share]:
    """The largest first, each to whom has least."""
    bins: list[list[Range]] = [[] for _ in range(min(tasks, len(ranges)))]
    loads = [0] * len(bins)
    for each in sorted(ranges, key=_size, reverse=True):
        least = loads.index(min(loads))
        bins[least].append(each)
        loads[least] += _size(each) + 1
    return [Share(tuple(sorted(held, key=lambda each: (each.vbucket, each.start)))) for held in bins if held]


__all__ = ["TASK_SEQNOS_MIN", "Share", "share_out", "tasks_for"]
