"""Blocks that are used again: only when nobody has them."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.spares import KEPT, WASTE_MAX, WORTH_BYTES, Spares


def test_a_block_that_was_let_go_comes_again():
    """The same memory, for a little more or less."""
    spares = Spares(bytearray)
    first = spares.take(WORTH_BYTES)
    place = id(first)
    del first
    again = spares.take(WORTH_BYTES + 1)
    assert id(again) == place
    assert len(again) > WORTH_BYTES


@pytest.mark.parametrize(
    "hold",
    [
        lambda block: block,
        lambda block: memoryview(block)[10:20],
        lambda block: np.frombuffer(block, np.uint8)[5:].view(np.int8),
        lambda block: pa.py_buffer(block).slice(1, 2),
        lambda block: pa.Array.from_buffers(pa.uint8(), 4, [None, pa.py_buffer(block)]).slice(1).to_numpy(),
    ],
)
def test_what_somebody_has_is_given_to_nobody(hold: Callable[[bytearray], Any]):
    """Whatever lies over a block keeps it, and its bytes, until it is gone."""
    spares = Spares(bytearray)
    block = spares.take(WORTH_BYTES)
    block[:] = bytes(len(block))
    place = id(block)
    held = hold(block)
    del block
    others = [spares.take(WORTH_BYTES) for _ in range(KEPT - 1)]
    for each in others:
        each[:] = b"x" * len(each)
        assert id(each) != place
    assert not any(memoryview(held).cast("B"))
    del held, others, each
    gc.collect()
    assert place in {id(spares.take(WORTH_BYTES)) for _ in range(KEPT)}


def test_no_more_is_kept_than_told():
    """Blocks that all are held are forgotten by who gave them, the oldest first."""
    spares = Spares(bytearray)
    held = [spares.take(WORTH_BYTES) for _ in range(5)]
    first = id(held.pop(0))
    gc.collect()
    held.append(spares.take(WORTH_BYTES))
    assert len(spares._blocks) == KEPT
    assert first not in {id(each) for each in spares._blocks}
    assert len({id(each) for each in held}) == 5


def test_a_large_block_is_not_given_for_little():
    """What is wanted is not less than a quarter of what is given."""
    spares = Spares(bytearray)
    size = len(spares.take(8 * WORTH_BYTES))
    assert len(spares.take(size // WASTE_MAX - 1)) < size


def test_what_is_small_is_not_kept():
    """Nor does it have a large one forgotten."""
    spares = Spares(bytearray)
    large = id(spares.take(WORTH_BYTES))
    small = [spares.take(WORTH_BYTES - 1) for _ in range(2 * KEPT)]
    assert {len(each) for each in small} == {WORTH_BYTES - 1}
    assert id(spares.take(WORTH_BYTES)) == large
