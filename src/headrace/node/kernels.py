"""The compiled loops of a node, loaded beside the first requests. Until then plain Python does the same."""

from __future__ import annotations

import logging
import threading
from typing import Any

from headrace.node import runs
from headrace.node.dcp import frames
from headrace.store import pages

log = logging.getLogger("headrace.node.kernels")

_ENGINES: list[Any] = []
_LOADING = threading.Lock()


def load() -> None:
    """Load all of them."""
    runs.load()
    frames.load()
    load_pages()


def load_pages() -> None:
    """Load the loop that reads streams from disk, once a process."""
    from headrace.columns.machine import Program, load_program  # noqa: PLC0415 - not before the node serves

    with _LOADING:
        if _ENGINES:
            return
        try:
            (walk,), engine = load_program(Program("pages", "headrace.node.pages_kernel", ("walk",), _PAGES_MADE_OF))
        except Exception:
            log.exception("streams from disk are read without the compiled loop")
            return
        _ENGINES.append(engine)
        pages.use(walk)


_PAGES_MADE_OF = ("headrace.store.pages",)


def load_in_background() -> None:
    """Load them beside the first requests."""
    # No daemon: Python aborts when it ends while such a thread is inside LLVM or an import. It is waited for instead.
    threading.Thread(target=load, name="load-kernels").start()
