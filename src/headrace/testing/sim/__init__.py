"""Whole nodes, their disks, managers, clients and readers in one thread, all decided by one seed.

    loop      virtual time            disk      a store that can crash          link      see testing.link
    node      the node's own parts    cluster   owners, failovers, takeovers    reader    follows vbuckets
    clients   change items            trouble   what goes wrong                 model     what really happened
    world     one run, and the checks

`python -m headrace.testing.sim --seed 7` runs one seed; `run(7)` does it from a test and raises `SeedError`.
"""

from headrace.testing.sim.runs import SeedError, run

__all__ = ["SeedError", "run"]
