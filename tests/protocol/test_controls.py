"""What a consumer may set, judged by the server's own answers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.protocol.controls import BUFFER_BYTES_MAX, CONTROLS, NOOP_INTERVAL_S_MAX, Settings, control
from headrace.wire import decode
from headrace.wire.catalogue import Control
from headrace.wire.codes import Status

CAPTURE = Path(__file__).parents[1] / "captures" / "4.1.2" / "06a_dcp_control.jsonl"
OURS = {b"supports_cursor_dropping": Status.SUCCESS, b"con": Status.INVALID, b"e": Status.INVALID}
"""Where we differ: a later release's key is known, and keys are not matched by their beginning."""


def captured() -> list[tuple[bytes, bytes, int]]:
    """Key, value and status of each control that a producer answered."""
    frames = [json.loads(line) for line in CAPTURE.read_text().splitlines()[1:]]
    told = [(one["dir"], decode(bytes.fromhex(one["hex"]))) for one in frames if one.get("hex")]
    return [
        (asked.key, asked.value, answer.status)  # type: ignore[attr-defined]
        for (_, asked), (way, answer) in pairwise(told)
        if isinstance(asked, Control) and way == "s2c"
    ]


@pytest.mark.parametrize(("key", "value", "status"), captured(), ids=str)
def test_as_the_server_answered(key: bytes, value: bytes, status: int):
    """Each control of the capture gets the status that the real server gave, but for the listed ones."""
    assert control(Settings(), key, value, snappy=False) == OURS.get(key, status)


def test_the_capture_was_read():
    """There is something to compare with."""
    assert len(captured()) > 15


@pytest.mark.parametrize(
    ("key", "value", "attribute", "expected"),
    [
        ("connection_buffer_size", "1024", "buffer_bytes", 1024),
        ("connection_buffer_size", str(BUFFER_BYTES_MAX), "buffer_bytes", BUFFER_BYTES_MAX),
        ("enable_noop", "true", "noop", True),
        ("enable_noop", "xyz", "noop", False),
        ("set_noop_interval", "120", "noop_interval_s", 120.0),
        ("set_priority", "low", "priority", "low"),
        ("enable_ext_metadata", "true", "ext_metadata", True),
        ("enable_expiry_opcode", "true", "expiry_opcode", True),
        ("send_stream_end_on_client_close_stream", "true", "stream_end_on_close", True),
        ("force_value_compression", "true", "force_compression", True),
        ("supports_cursor_dropping_vulcan", "true", "cursor_dropping", True),
        ("backfill_order", "sequential", "backfill_order", "sequential"),
    ],
)
def test_what_is_set(key: str, value: str, attribute: str, expected: object):
    """A control that is accepted changes the one setting that it names."""
    settings = Settings()
    assert control(settings, key.encode(), value.encode(), snappy=True) is Status.SUCCESS
    assert getattr(settings, attribute) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"connection_buffer_size", str(BUFFER_BYTES_MAX + 1).encode()),
        (b"connection_buffer_size", "\u0663".encode()),
        (b"set_noop_interval", b"0"),
        (b"set_noop_interval", str(NOOP_INTERVAL_S_MAX + 1).encode()),
        (b"enable_expiry_opcode", b"yes"),
        (b"backfill_order", b"random"),
        (b"\xff", b"true"),
        (b"enable_noop", b""),
        (b"enable_out_of_order_snapshots", b"true"),
    ],
)
def test_what_is_refused_changes_nothing(key: bytes, value: bytes):
    """A wrong key or value is refused with 0x04, and all is as before."""
    settings = Settings()
    assert control(settings, key, value, snappy=True) is Status.INVALID
    assert settings == Settings()


def test_compression_is_forced_only_where_snappy_was_agreed_on():
    """Without hello's snappy nobody could read the values."""
    assert control(Settings(), b"force_value_compression", b"true", snappy=False) is Status.INVALID
    assert control(Settings(), b"force_value_compression", b"false", snappy=False) is Status.SUCCESS


def test_every_setting_exists():
    """The table names attributes that are there."""
    assert {setting.attribute for setting in CONTROLS.values()} <= set(Settings.__slots__)
