"""The node's libraries are an extra of the package: who lacks them is told what to install."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARIES = frozenset({"h11", "lmdb", "msgspec", "orjson", "prometheus_client", "starlette", "uvicorn", "uvloop"})
"""What the extra `node` of pyproject.toml brings, by the names under which it is imported."""


class ExtraMissingError(HeadraceError, ImportError):
    """A library of the extra `node` is not installed."""


@contextlib.contextmanager
def needs_extra() -> Iterator[None]:
    """Say in a sentence what to install, where an import inside fails over a library of the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in LIBRARIES:
            raise
        raise ExtraMissingError(
            f"a node needs {library}, which is not installed: pip install 'headrace[node]'", name=library
        ) from error
