"""Nodes for tests: real ones, on loopback, with their writer process and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node import Node
from tests.node.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node that the tests of a file share; each test uses keys of its own."""
    with Node(vbuckets=16) as running:
        yield running


@pytest.fixture
def talk(node: Node) -> Iterator[Talk]:
    """A connection that has said no hello, as memcached's clients do."""
    with Talk(node) as connection:
        yield connection
