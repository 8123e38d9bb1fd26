"""Nodes for tests of TAP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node import NodeLimits
from headrace.testing import LiveNode

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node of its own for each test, that asks for acks often and does not leave refused clients alone for long."""
    with LiveNode(vbuckets=8, limits=NodeLimits(tap_ack_interval=5, tap_ack_window=3, tap_pause_s=0.05)) as running:
        yield running
