"""`TapReader` on our own node: what it is sent, and where a registered one goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headrace.client import Change, ChangeOptions, TapReader
from headrace.testing import LiveNode

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 30.0
FIRST = {f"first-{number}" for number in range(50)}
SECOND = {f"second-{number}" for number in range(20)}


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with items."""
    with LiveNode(vbuckets=4) as started:
        started.write({key: key for key in FIRST})
        yield started


def options(node: LiveNode) -> ChangeOptions:
    """Where the node is."""
    return ChangeOptions(connection=f"couchbase://{node.host}:{node.port}")


def take(reader: TapReader, keys: set[str]) -> list[str]:
    """The keys of changes until all of these came, and of what comes in a moment after."""
    found: list[str] = []
    end = time.monotonic() + WAIT_S
    while not keys <= set(found):
        assert time.monotonic() < end, f"{len(keys - set(found))} did not come"
        change = reader.next_change(0.2)
        if isinstance(change, Change):
            found.append(str(change.key))
    while isinstance(change := reader.next_change(0.3), Change):
        found.append(str(change.key))
    return found


def test_a_dump_is_the_bucket(node: LiveNode):
    """Everything comes once, and that is the end."""
    with TapReader(options(node), until="now") as reader:
        found = [str(change.key) for change in reader if isinstance(change, Change)]
    assert sorted(found) == sorted(FIRST)


def test_what_is_to_come(node: LiveNode):
    """From now on: nothing of what was there."""
    with TapReader(options(node), start="now") as reader:
        assert reader.next_change(0.5) is None
        node.write({key: key for key in SECOND})
        assert sorted(take(reader, SECOND)) == sorted(SECOND)


@pytest.mark.parametrize("start", ["beginning", "now"])
def test_a_registered_reader_goes_on(node: LiveNode, start: str):
    """What was written while it was away comes when it is back, and nothing that it had acknowledged."""
    with TapReader(options(node), name="stable", registered=True) as reader:
        assert sorted(take(reader, FIRST)) == sorted(FIRST)
    node.write({key: key for key in SECOND})
    with TapReader(options(node), start=start, name="stable", registered=True) as reader:
        assert sorted(take(reader, SECOND)) == sorted(SECOND)
        reader.deregister()
    with TapReader(options(node), name="stable", registered=True) as reader:
        assert sorted(take(reader, FIRST | SECOND)) == sorted(FIRST | SECOND)
        reader.deregister()
