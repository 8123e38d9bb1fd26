"""A thousand seeds of the simulation, in chunks, so that they are shared among workers. A failure prints its seed."""

import pytest

from headrace.testing.sim import run

SEEDS = 1000
CHUNK = 25


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_is_broken_whatever_goes_wrong(first: int):
    """Copies equal their owners, nothing durable is lost, seqnos grow, and nobody applies half a snapshot."""
    for seed in range(first, first + CHUNK):
        run(seed)
