"""The noops of a producer."""

from __future__ import annotations

import pytest

from headrace.protocol.liveness import FIRST_OPAQUE, Due, Liveness


@pytest.fixture
def liveness() -> Liveness:
    """Noops every ten seconds."""
    made = Liveness()
    made.enabled = True
    made.interval_s = 10.0
    return made


def test_nothing_is_asked_until_told():
    """A consumer that did not enable noops gets none."""
    liveness = Liveness()
    assert liveness.due(1e9, streams=1) is Due.NOTHING
    assert liveness.deadline(streams=1) is None


def test_nothing_is_asked_without_a_stream(liveness: Liveness):
    """A connection without a stream got no noop in 25 s (note of capture 06b_dcp_noop)."""
    assert liveness.due(0.0, streams=0) is Due.NOTHING
    assert liveness.due(1000.0, streams=0) is Due.NOTHING
    assert liveness.deadline(streams=0) is None


def test_asked_once_an_interval_and_answered(liveness: Liveness):
    """The first interval begins with the first stream; each noop has an opaque of its own."""
    assert liveness.deadline(streams=1) == 0.0
    assert liveness.due(5.0, streams=1) is Due.NOTHING
    assert liveness.deadline(streams=1) == 15.0
    assert liveness.due(14.9, streams=1) is Due.NOTHING
    assert liveness.due(15.0, streams=1) is Due.NOOP
    assert liveness.opaque == FIRST_OPAQUE + 1
    assert liveness.answered(FIRST_OPAQUE + 1)
    assert liveness.due(25.0, streams=1) is Due.NOOP
    assert liveness.opaque == FIRST_OPAQUE + 2


def test_no_answer_is_the_end(liveness: Liveness):
    """A noop that is not answered by the time of the next one: the consumer is dead, stream or not."""
    liveness.due(0.0, streams=1)
    assert liveness.due(10.0, streams=1) is Due.NOOP
    assert liveness.due(19.9, streams=0) is Due.NOTHING
    assert liveness.deadline(streams=0) == 20.0
    assert liveness.due(20.0, streams=0) is Due.DEAD


def test_an_answer_that_answers_nothing(liveness: Liveness):
    """An answer before the question, a second one, or one with another opaque is none."""
    assert not liveness.answered(FIRST_OPAQUE)
    liveness.due(0.0, streams=1)
    liveness.due(10.0, streams=1)
    assert not liveness.answered(liveness.opaque + 1)
    assert liveness.answered(liveness.opaque)
    assert not liveness.answered(liveness.opaque)


def test_an_opaque_turned_round_is_accepted(liveness: Liveness):
    """Servers of the captures' age send the bytes of an opaque the other way round."""
    liveness.due(0.0, streams=1)
    liveness.due(10.0, streams=1)
    assert liveness.answered(int.from_bytes(liveness.opaque.to_bytes(4, "big"), "little"))


def test_the_interval_begins_anew_with_the_next_stream(liveness: Liveness):
    """Time without streams does not count."""
    liveness.due(0.0, streams=1)
    liveness.due(5.0, streams=0)
    assert liveness.due(100.0, streams=1) is Due.NOTHING
    assert liveness.due(109.0, streams=1) is Due.NOTHING
    assert liveness.due(110.0, streams=1) is Due.NOOP
