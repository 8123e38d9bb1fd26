"""Servers for the examples: each test has its own, and ends them."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.examples.programs import start_searchd
from tests.processes import Server, start_memcached, start_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VBUCKETS = 4


def _ended(server: Server) -> None:
    if server.running:
        server.kill()
    else:
        with suppress(AssertionError):  # a test stopped it
            server.stop()
    server.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Starts nodes that keep their files over a restart."""
    servers: list[Server] = []

    def start() -> Server:
        data = str(tmp_path / f"node-{len(servers)}")
        servers.append(start_node("--data", data, "--vbuckets", str(VBUCKETS)))
        return servers[-1]

    yield start
    for server in servers:
        _ended(server)


@pytest.fixture
def node(start: Callable[[], Server]) -> Server:
    """A node."""
    return start()


@pytest.fixture
def memcached() -> Iterator[Server]:
    """A cache."""
    if shutil.which("memcached") is None:
        pytest.skip("memcached is not installed (Debian: apt-get install memcached)")
    server = start_memcached()
    yield server
    _ended(server)


@pytest.fixture
def searchd(tmp_path: Path) -> Iterator[Server]:
    """A search server."""
    folder = tmp_path / "search"
    folder.mkdir()
    server = start_searchd(folder)
    yield server
    _ended(server)
