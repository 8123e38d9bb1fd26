"""The compiled loops of a node, loaded beside the first requests. Until then plain Python does the same."""

from __future__ import annotations

import threading

from headrace.node import runs
from headrace.node.dcp import frames


def load() -> None:
    """Load all of them."""
    runs.load()
    frames.load()


def load_in_background() -> None:
    """Load them beside the first requests."""
    # No daemon: Python aborts when it ends while such a thread is inside LLVM or an import. It is waited for instead.
    threading.Thread(target=load, name="load-kernels").start()
