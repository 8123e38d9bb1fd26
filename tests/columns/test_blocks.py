"""The memory of a batch is used for a later one only when nobody has the first any more."""

from headrace.columns import Positions, Settings, decode_changes
from headrace.ids import Seqno, VBucketId
from headrace.spares import WORTH_BYTES
from headrace.wire import encode
from headrace.wire.catalogue import Mutation


def change(seqno: int, value: bytes) -> bytes:
    """A change whose batch is large enough for its memory to be kept."""
    return encode(Mutation(vbucket=VBucketId(1), key=b"key", by_seqno=Seqno(seqno), rev_seqno=1, value=value))


def test_a_batch_that_is_held_keeps_its_bytes():
    """Also when only a part of it is held, and many come after it."""
    positions = Positions()
    values = [bytes([number]) * (2 * WORTH_BYTES) for number in range(6)]
    held = []
    for number, value in enumerate(values):
        rows = decode_changes(change(number + 1, value), Settings(), positions).rows
        held.append(rows.column("value").slice(0, 1) if number % 2 else rows)
    for number, rows in enumerate(held):
        column = rows if number % 2 else rows.column("value")
        assert column[0].as_py() == values[number]


def test_memory_comes_again():
    """Batches that are let go of one after the other lie in the same place."""
    positions = Positions()
    places = set()
    for number in range(5):
        rows = decode_changes(change(number + 1, bytes(2 * WORTH_BYTES)), Settings(), positions).rows
        places.add(rows.column("value").buffers()[2].address)
        del rows
    assert len(places) == 1
