import pickle

import pytest

from headrace.client import ClientError, NotMyVBucketError, TemporaryFailureError, UnknownCommandError, error_of
from headrace.wire.codes import Status
from tests.client.servers import MAP


@pytest.mark.parametrize("status", sorted(Status))
def test_errors_travel(status: Status):
    """An error is found by its code, names what was asked, and comes whole out of a pickle."""
    error = error_of("get x", status, b"text\x1b[31m of the server\0")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.asked, again.status, again.text, str(again)) == (error.asked, error.status, error.text, str(error))
    assert isinstance(error, ClientError)
    assert str(error).startswith("get x: ")
    assert f"0x{status:02x}" in str(error)
    assert "\x1b" not in str(error)


def test_which_errors_may_be_retried():
    """What may be served later is told from what may not."""
    retriable = {status for status in Status if error_of("", status).retriable}
    assert {Status.TEMPORARY_FAILURE, Status.BUSY, Status.LOCKED} <= retriable
    assert not retriable & {Status.KEY_NOT_FOUND, Status.TOO_BIG, Status.NO_ACCESS, Status.NOT_MY_VBUCKET}
    assert isinstance(error_of("", Status.TEMPORARY_FAILURE), TemporaryFailureError)
    assert isinstance(error_of("", Status.UNKNOWN_COMMAND), UnknownCommandError)
    moved = error_of("", Status.NOT_MY_VBUCKET, MAP)
    assert isinstance(moved, NotMyVBucketError)
    assert moved.text == ""
