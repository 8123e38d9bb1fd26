"""What is shipped for those who test things that speak TAP, UPR or DCP, ourselves among them.

    link    joins two ends of a stream connection in memory: pieces, delays, cuts
    sim     whole nodes, their disks and their consumers in one thread, decided by one seed
"""
