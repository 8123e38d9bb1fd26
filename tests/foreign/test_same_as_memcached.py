"""Foreign clients see no difference between our node and memcached, whatever they do."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.foreign import scripts
from tests.processes import Server


def with_binary_memcached(server: Server) -> list[str]:
    """Run the script of python-binary-memcached."""
    bmemcached = pytest.importorskip("bmemcached")
    address = f"{server.host}:{server.port}"
    client = bmemcached.Client([address], socket_timeout=30)
    try:
        return scripts.of_binary_memcached(client, address)
    finally:
        client.disconnect_all()


def with_pylibmc(server: Server) -> list[str]:
    """Run the script of pylibmc."""
    pylibmc = pytest.importorskip("pylibmc")
    address = f"{server.host}:{server.port}"
    behaviors = {"cas": True, "tcp_nodelay": True, "_poll_timeout": scripts.POLL_TIMEOUT_MS}
    client = pylibmc.Client([address], binary=True, behaviors=behaviors)
    try:
        return scripts.of_pylibmc(client, address)
    finally:
        client.disconnect_all()


@pytest.mark.parametrize(
    ("library", "run"),
    [("bmemcached", with_binary_memcached), ("pylibmc", with_pylibmc)],
    ids=["bmemcached", "pylibmc"],
)
def test_the_same_line_by_line(memcached: Server, node: Server, library: str, run: Callable[[Server], Any]):
    """One script, run against both servers at the same time, leaves the same record."""
    pytest.importorskip(library)
    with ThreadPoolExecutor(2) as threads:
        theirs, ours = threads.map(run, (memcached, node))
    assert len(theirs) > 150
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []
