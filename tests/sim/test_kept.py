"""Seeds that once failed, and what was wrong.

What a seed does changes with the simulation and with the node. The first ones are those that fail first when the mended
line is broken again; the last three found theirs once, by a rarer way: tests of their own hold these too.
"""

import pytest

from headrace.testing.sim import run

KEPT = {
    14: "flush removed the items of replicas too: a copy made history of its own",
    17: "a replica told what it had of half a snapshot as persisted; a crash and a promotion took it away",
    18: "a stream out of a replica went on while it took over another failover log: readers named a wrong branch",
    29: "a stream that was behind while tombstones were purged never told its consumer of the deletions",
    56: "a copy made after a purge did not know of it, and once promoted let readers go on that missed deletions",
    998: "a replica with nothing of an announced snapshot took the next one for its part, and waited for its end",
    1389: "a vbucket was rolled back on disk that the disk still had as active: killed, it gave seqnos a second time",
    2458: "a consumer resumed inside a snapshot was told an earlier end of it: whole, without what had been replaced",
}


@pytest.mark.parametrize("seed", KEPT)
def test_what_was_mended_stays_so(seed: int):
    """A seed that found something finds nothing any more."""
    run(seed)
