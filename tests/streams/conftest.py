"""Nodes for tests of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def node() -> Iterator[Node]:
    """A node of its own for each test, since tests look at seqnos."""
    with Node(vbuckets=8) as running:
        yield running
