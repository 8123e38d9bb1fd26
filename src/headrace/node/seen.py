"""How many slots a bucket has to remember, by the hash of its key, what may be on disk.

A set of a new key need not ask the disk for an older version: 2 us saved of 4. With far more keys than slots it asks.
"""

SEEN_SLOTS = 1 << 24
SEEN_MASK = SEEN_SLOTS - 1
