from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hostile.witness import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Server


@pytest.fixture(scope="module")
def node() -> Iterator[Server]:
    """One node for all tests of a file: what one of them does to it, the next would notice."""
    with serving() as one:
        yield one
