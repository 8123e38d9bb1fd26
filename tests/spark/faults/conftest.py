"""Nodes as processes of their own, which can be killed, and queries on them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.processes import Server, start_node
from tests.spark.faults.buckets import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VBUCKETS = 16


def _end(server: Server) -> None:
    if server.running:
        server.kill()
    server.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[int], list[Server]]]:
    """Start so many nodes that share the vbuckets of one bucket, and end them."""
    with ExitStack() as ends:

        def start(count: int = 1) -> list[Server]:
            servers = []
            for place in range(count):
                data = tmp_path / f"node-{place}"
                servers.append(start_node("--data", str(data), "--vbuckets", str(VBUCKETS)))
                ends.callback(_end, servers[-1])
            with Bucket(*servers) as bucket:
                bucket.share()
            return servers

        yield start
