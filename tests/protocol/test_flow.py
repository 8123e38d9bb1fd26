"""The window of a connection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.flow import UNBOUNDED, Window


def test_no_limit_counts_nothing():
    """Without a limit there is always room, and nothing is owed."""
    window = Window()
    window.sent(1 << 40)
    assert window.room == UNBOUNDED
    assert window.unacked == 0


def test_the_captured_window():
    """The numbers of 06c_dcp_flow_control: a window of 300, its stall at 349, and what each acknowledgement frees."""
    window = Window()
    window.limit_bytes = 300
    for size in (44, 61, 61, 61, 61, 61):
        assert window.room > 0
        window.sent(size)
    assert (window.unacked, window.room) == (349, -49)
    window.acked(50)
    assert window.room == 1
    window.sent(80)
    assert window.unacked == 379
    window.acked(300)
    for _ in range(3):
        window.sent(80)
    assert window.unacked == 319
    window.acked(100_000)
    assert window.unacked == 0
    assert window.acked_total == 100_350


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=50), st.integers(1, 1000))
def test_never_below_zero(steps: list[tuple[bool, int]], limit: int):
    """Whatever is sent and acknowledged, what is owed is never negative, and room and debt make the limit."""
    window = Window()
    window.limit_bytes = limit
    for is_sent, size in steps:
        if is_sent:
            window.sent(size)
        else:
            window.acked(size)
        assert window.unacked >= 0
        assert window.room + window.unacked == limit
