"""Hundreds of nodes are killed under load. What they told to be on disk is there, and nothing that nobody wrote."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.crash.rounds import ENDS, VBUCKETS, rounds

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 50
SEEDS = (1, 2, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_node_keeps_what_it_said_it_has(tmp_path: Path, seed: int) -> None:
    """Whatever moment a node dies in, the disk holds a state that it had, at or behind what it told to be on disk."""
    with rounds(tmp_path, seed) as run:
        run.run(KILLS)
        sums = run.sums
        sys.stdout.write(f"seed {seed}: {', '.join(f'{name} {count}' for name, count in sorted(sums.items()))}\n")
        assert sums["kills"] >= KILLS
        assert all(sums[end] for end in ENDS), sums
        assert sums["changes lost"] > 0, "a crash test in which nothing is ever lost does not kill in time"
        assert sums["vbuckets branched"] >= sums["vbuckets that lost"]
        assert sums["vbuckets that could lose nothing"] > VBUCKETS
