"""What two real servers answered to stream requests, against `decide`."""

import pytest

from headrace.history import OutOfRange, Reason, Resume, RollBack, decide
from headrace.wire import catalogue
from headrace.wire.codes import Status
from tests.history.exchanges import TOLD, Exchange, exchanges, lines, paths

SHOWN = {
    Reason.START_IS_ZERO: "03a_dcp_stream_req_errors:11",
    Reason.SHARED_HISTORY: "02_dcp_resume:8",
    Reason.NO_VBUUID: "03a_dcp_stream_req_errors:26",
    Reason.UNKNOWN_VBUUID: "03a_dcp_stream_req_errors:8",
    Reason.PAST_HIGH_SEQNO: "03a_dcp_stream_req_errors:29",
    Reason.PAST_BRANCH: "04_failover_log_crash_rollback:87",
    Reason.SNAPSHOT_CUT: "03a_dcp_stream_req_errors:40",
    Reason.START_PAST_END: "03a_dcp_stream_req_errors:50",
    Reason.START_OUTSIDE_SNAPSHOT: "03a_dcp_stream_req_errors:53",
}
"""For each reason an exchange of 4.1.2, by the line of its answer."""

NOT_SHOWN = {
    Reason.PURGED: "no capture has purged tombstones; kv_engine's failover-table.cc",
}
"""Reasons that no capture shows, with the source of their rule."""


@pytest.mark.parametrize("exchange", exchanges(), ids=lambda one: one.id)
def test_verdict_is_the_servers(exchange: Exchange):
    """A verdict gives the status, and the seqno of the rollback, that the server gave."""
    match decide(exchange.request, exchange.history):
        case Resume():
            assert exchange.answer.status == Status.SUCCESS
        case RollBack(to=seqno):
            assert isinstance(exchange.answer, catalogue.Rollback)
            assert exchange.answer.seqno == seqno
        case OutOfRange():
            assert exchange.answer.status == Status.OUT_OF_RANGE


def test_every_reason_is_shown_or_has_its_source():
    """Both servers show every reason but those that stand in a table with the source of their rule."""
    assert set(SHOWN) | set(NOT_SHOWN) == set(Reason)
    assert not set(SHOWN) & set(NOT_SHOWN)
    for server in ("3.0.3", "4.1.2"):
        shown = {decide(one.request, one.history).because for one in exchanges() if one.id.startswith(server)}
        assert shown == set(SHOWN)


@pytest.mark.parametrize(("because", "shown"), list(SHOWN.items()))
def test_reason_of_an_exchange(because: Reason, shown: str):
    """The exchange that stands for a reason has it."""
    exchange = next(one for one in exchanges() if one.id == f"4.1.2/{shown}")
    assert decide(exchange.request, exchange.history).because == because


def test_words_of_the_captures_are_found():
    """Each high seqno that is taken from a capture's words is in those words."""
    for scenario, phrase in TOLD:
        told = [path for path in paths() if path.stem == scenario and any(phrase in one.note for one in lines(path))]
        assert len(told) == 2, phrase
