"""The fixtures that are shipped, and what the tests of chaos look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.testing.fixtures import headrace_node, headrace_node_options  # noqa: F401 - fixtures by their names

if TYPE_CHECKING:
    from headrace.testing import LiveNode


@pytest.fixture
def node(headrace_node: LiveNode) -> LiveNode:  # noqa: F811 - the fixture
    """A node of its own for each test."""
    return headrace_node
