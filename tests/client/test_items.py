from headrace.client import CommonFlags, beside, json_beside, wire_expiry
from headrace.wire.codes import Datatype, Feature


def test_beside():
    """A value is marked as what it is where the marks are understood, and nowhere else."""
    features = frozenset({Feature.JSON})
    assert beside(b'{"a": 1}', features) == (CommonFlags.JSON, Datatype.JSON) == json_beside(features)
    assert beside(b"hello", features) == (CommonFlags.TEXT, 0)
    assert beside(b"\xff", features) == (CommonFlags.BINARY, 0)
    assert beside(b'{"a": 1}', frozenset()) == json_beside(frozenset()) == (0, 0)


def test_expiry():
    """Up to thirty days an expiry counts from now, beyond from the epoch."""
    month = 30 * 86400
    assert [wire_expiry(seconds, now=1e9) for seconds in (0, 60, month)] == [0, 60, month]
    assert wire_expiry(month + 1, now=1e9) == 1_000_000_000 + month + 1
    assert wire_expiry(1 << 40, now=1e9) == 0xFFFF_FFFF
