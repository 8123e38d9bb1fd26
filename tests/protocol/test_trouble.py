"""A rate that is kept, and a place where a connection is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ids import Opaque
from headrace.protocol.trouble import BURST_S, Cut, Throttle
from headrace.wire import encode
from headrace.wire.catalogue import Set

MESSAGE = encode(Set(key=b"key", value=b"value", opaque=Opaque(1)))
SIZE = len(MESSAGE)


def test_a_throttle_lets_a_burst_through_and_then_its_rate():
    """At first a tenth of a second's worth; then nothing until the time has passed, and never more than a burst."""
    throttle = Throttle(1000)
    throttle.advance(50.0)
    assert (throttle.room, throttle.deadline) == (100, None)
    throttle.sent(100)
    assert throttle.room == 0
    assert throttle.deadline == pytest.approx(50.0 + BURST_S)
    throttle.advance(50.0625)
    assert throttle.room == 62
    throttle.advance(1000.0)
    assert throttle.room == 100


def test_a_large_message_is_a_debt():
    """What passes the room is waited for before the next byte goes."""
    throttle = Throttle(1000)
    throttle.advance(0.0)
    throttle.sent(2100)
    assert throttle.deadline == pytest.approx(2.1)
    throttle.advance(1.9)
    assert throttle.room == 0
    throttle.advance(2.1)
    assert throttle.room == 100


def test_a_clock_that_goes_back_takes_nothing_away():
    """Time that goes back is no time."""
    throttle = Throttle(1000)
    throttle.advance(10.0)
    throttle.sent(100)
    throttle.advance(9.0)
    assert throttle.room == 0
    throttle.advance(10.125)
    assert throttle.room == 100


def test_a_throttle_knows_no_time_at_first():
    """Before it was told the time, there is a burst; what passes it is due at once after that."""
    throttle = Throttle(1)
    assert throttle.room == 1
    throttle.sent(5)
    assert throttle.deadline == 5.0


@given(st.integers(1, 10**6), st.lists(st.tuples(st.floats(0, 2), st.integers(0, 5000)), max_size=60))
def test_the_rate_is_kept_over_any_time(rate: int, steps: list[tuple[float, int]]):
    """Whatever is asked for when: no more goes out than the rate, one burst and one message."""
    throttle, now, sent = Throttle(rate), 0.0, 0
    throttle.advance(now)
    largest = 0
    for passed, size in steps:
        now += passed
        throttle.advance(now)
        if throttle.room and size:
            throttle.sent(size)
            sent += size
            largest = max(largest, size)
        assert throttle.deadline is None or throttle.deadline > now - 1e-6
    assert sent <= rate * now + max(1.0, rate * BURST_S) + largest + 1


@pytest.mark.parametrize(
    ("messages", "mid", "taken"),
    [
        (0, False, [0]),
        (1, False, [SIZE]),
        (2, False, [2 * SIZE]),
        (3, False, [None, SIZE]),
        (5, False, [None, None, SIZE]),
        (0, True, [SIZE // 2]),
        (1, True, [SIZE + SIZE // 2]),
        (2, True, [None, SIZE // 2]),
        (3, True, [None, SIZE + SIZE // 2]),
    ],
)
def test_a_cut_after_messages(messages: int, mid: bool, taken: list[int | None]):
    """Blocks of two messages each are cut behind so many messages, or in the middle of the next one."""
    cut = Cut(messages=messages, mid_message=mid)
    assert cut.is_now is (messages == 0 and not mid)
    assert [cut.take(MESSAGE * 2) for _ in taken] == taken


@given(st.integers(0, 500), st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_a_cut_after_bytes_is_exact(size: int, blocks: list[int]):
    """Whatever the blocks are, exactly so many bytes go out, or all of them."""
    cut, sent = Cut(size=size), 0
    assert cut.is_now is (size == 0)
    for count in blocks:
        block = memoryview(MESSAGE * count)
        taken = cut.take(block)
        sent += len(block) if taken is None else taken
        if taken is not None:
            assert sent == size
            return
    assert sent == SIZE * sum(blocks) < size


def test_bytes_and_messages_do_not_mix():
    """To ask for both is a mistake of the caller."""
    with pytest.raises(AssertionError):
        Cut(size=1, mid_message=True)
