"""Servers for the tests with foreign clients: one of each kind for a file of tests."""

import shutil
from collections.abc import Iterator

import pytest

from tests.processes import Server, start_memcached, start_node


def _served(server: Server) -> Iterator[Server]:
    yield server
    code = server.stop()
    said = server.said
    server.close()
    assert code == 0, f"exit code {code}:\n{said}"


@pytest.fixture(scope="module")
def memcached() -> Iterator[Server]:
    """Debian's memcached."""
    if shutil.which("memcached") is None:
        pytest.skip("memcached is not installed")
    yield from _served(start_memcached())


@pytest.fixture(scope="module")
def node() -> Iterator[Server]:
    """A node of ours that serves the bucket `default` openly."""
    yield from _served(start_node())
