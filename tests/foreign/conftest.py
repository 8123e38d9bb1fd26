"""Servers for the tests with foreign clients: one of each kind for a file of tests."""

import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.foreign.witness import Client, Witness
from tests.processes import Server, start_memcached, start_node

VBUCKETS = 16


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


@pytest.fixture
def client(witness: Witness) -> Iterator[Client]:
    """A client; it is closed before its server is stopped."""
    with witness.client() as client:
        yield client


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts nodes, and stops them at the end."""
    servers: list[Server] = []

    def start(*arguments: str, vbuckets: int = VBUCKETS) -> Server:
        servers.append(start_node("--vbuckets", str(vbuckets), *arguments))
        return servers[-1]

    yield start
    for server in servers:
        code = server.stop()
        said = server.said
        server.close()
        assert code == 0, f"exit code {code}:\n{said}"


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    """A node with few vbuckets."""
    return start()
