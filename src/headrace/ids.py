"""The kinds of number that travel through headrace, so that a seqno is never taken for a CAS.

Each is an unsigned integer of the width named here. They are plain ints at run time; a type checker keeps
them apart. Signed 64-bit views of them exist only where Arrow and Spark want longs.
"""

from typing import NewType

VBucketId = NewType("VBucketId", int)
"""16 bits: one of the up to 1024 slices of a bucket."""

VbUuid = NewType("VbUuid", int)
"""64 bits: names one branch of a vbucket's history."""

Seqno = NewType("Seqno", int)
"""64 bits: the place of a change within its vbucket."""

Cas = NewType("Cas", int)
"""64 bits: the version of an item; on today's servers a hybrid logical clock in nanoseconds."""

Opaque = NewType("Opaque", int)
"""32 bits: chosen by who asks, echoed by who answers, and carried by every message of a stream."""

CollectionId = NewType("CollectionId", int)
"""32 bits: sent in front of a key as unsigned LEB128 where collections were agreed on."""

__all__ = ["Cas", "CollectionId", "Opaque", "Seqno", "VBucketId", "VbUuid"]
