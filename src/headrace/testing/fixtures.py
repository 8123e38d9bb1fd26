"""Fixtures for pytest: a node in a fresh directory for each test.

In a `conftest.py`:

    pytest_plugins = ["headrace.testing.fixtures"]

and in a test:

    def test_my_consumer_survives_a_failover(headrace_node):
        headrace_node.write(100)
        headrace_node.chaos.failover("all", lost=2)

They are not registered by themselves: whoever does not name them has none of this loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.testing.live import LiveNode


@pytest.fixture
def headrace_node_options() -> dict[str, Any]:
    """How `headrace_node` is started; a test or a conftest.py may have a fixture of this name of its own."""
    return {"vbuckets": 16}


@pytest.fixture
def headrace_node(tmp_path: Path, headrace_node_options: dict[str, Any]) -> Iterator[LiveNode]:
    """A node in a fresh directory, with helpers to write, delete and count, and with `chaos`."""
    from headrace.testing.live import LiveNode  # noqa: PLC0415 - loaded for the test that wants a node

    with LiveNode(**{"data": tmp_path / "headrace", **headrace_node_options}) as node:
        yield node
