"""Seeds that once failed, and what was wrong. A scenario changes when the simulation does; what it found must not."""

import pytest

from headrace.testing.sim import run

KEPT = {
    3: "flush removed the items of replicas too: a copy made history of its own",
    16: "a stream out of a replica went on while it took over another failover log: readers named a wrong branch",
    53: "a stream that was behind while tombstones were purged never told its consumer of the deletions",
}


@pytest.mark.parametrize("seed", KEPT)
def test_what_was_mended_stays_so(seed: int):
    """A seed that found something finds nothing any more."""
    run(seed)
