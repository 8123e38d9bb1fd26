"""What a consumer may set for its connection (DCP_CONTROL), and how a producer answers.

One table says each key and what its value may be. What is not in it is refused with 0x04, as servers do (capture
06a_dcp_control); they also match keys by their beginning, which is not imitated.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from headrace.protocol.liveness import INTERVAL_S_DEFAULT
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NOOP_INTERVAL_S_MAX = 10_800
BUFFER_BYTES_MAX = 0xFFFF_FFFF
PRIORITIES = ("low", "medium", "high")


@dataclass(slots=True, kw_only=True)
class Settings:
    """What is set for a connection, with the values that hold until a consumer says otherwise."""

    noop: bool = False
    noop_interval_s: float = INTERVAL_S_DEFAULT
    buffer_bytes: int = 0
    priority: str = "medium"
    ext_metadata: bool = False
    expiry_opcode: bool = False
    stream_end_on_close: bool = False
    force_compression: bool = False
    cursor_dropping: bool = False
    backfill_order: str = "round-robin"


class Setting(NamedTuple):
    """One key: the attribute that it sets, how its value is read, and what it is for."""

    attribute: str
    read: Callable[[str], object]
    sentence: str


def _flag(text: str) -> bool:
    """Everything that is not `true` is false, as servers read it."""
    return text == "true"


def _strict_flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError(text)
    return text == "true"


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(text)
    return int(text)


def _buffer_bytes(text: str) -> int:
    size = _whole_number(text)
    if size > BUFFER_BYTES_MAX:
        raise ValueError(text)
    return size


def _interval_s(text: str) -> float:
    seconds = _whole_number(text)
    if not 1 <= seconds <= NOOP_INTERVAL_S_MAX:
        raise ValueError(text)
    return float(seconds)


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return read


CONTROLS: Mapping[str, Setting] = MappingProxyType(
    {
        "connection_buffer_size": Setting("buffer_bytes", _buffer_bytes, "the window in bytes; 0 for none"),
        "enable_noop": Setting("noop", _flag, "ask for a sign of life while a stream is open"),
        "set_noop_interval": Setting("noop_interval_s", _interval_s, "how often, in seconds"),
        "set_priority": Setting("priority", _one_of(*PRIORITIES), "low, medium or high: how large a turn is"),
        "enable_ext_metadata": Setting("ext_metadata", _flag, "append extended metadata to items"),
        "enable_expiry_opcode": Setting("expiry_opcode", _strict_flag, "tell expirations from deletions"),
        "send_stream_end_on_client_close_stream": Setting(
            "stream_end_on_close", _strict_flag, "end a stream that the consumer closes with a message"
        ),
        "force_value_compression": Setting(
            "force_compression", _strict_flag, "compress every value; hello must have agreed on snappy"
        ),
        "supports_cursor_dropping": Setting("cursor_dropping", _strict_flag, "accepted: a slow stream reads from disk"),
        "supports_cursor_dropping_vulcan": Setting("cursor_dropping", _strict_flag, "the same, by its later name"),
        "backfill_order": Setting("backfill_order", _one_of("round-robin", "sequential"), "accepted: always in turn"),
    }
)
"""Every key that a producer takes."""

_NOT_SUPPORTED = frozenset({"stream_buffer_size"})


def control(settings: Settings, key: bytes, value: bytes, *, snappy: bool) -> Status:
    """Set what a control message says, and give the status of its answer."""
    try:
        name, text = key.decode("ascii"), value.decode("ascii")
    except UnicodeDecodeError:
        return Status.INVALID
    if name in _NOT_SUPPORTED:
        return Status.NOT_SUPPORTED
    setting = CONTROLS.get(name)
    if setting is None or not text:
        return Status.INVALID
    try:
        wanted = setting.read(text)
    except ValueError:
        return Status.INVALID
    if setting.attribute == "force_compression" and wanted and not snappy:
        return Status.INVALID
    setattr(settings, setting.attribute, wanted)
    return Status.SUCCESS
