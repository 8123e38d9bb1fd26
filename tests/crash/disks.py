"""Disks that refuse: one that is full, one whose sync fails, and a writer that may not make its file larger."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.crash.nodes import children_of
from tests.processes import Server, start_node
from tests.store.test_faults import FAILING_DISK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DISK_BYTES = 8 << 20
BALLAST_BYTES = 3 << 20


class Refusing(Protocol):
    """A data directory on a disk that can be made to refuse writes."""

    data: Path
    causes: tuple[str, ...]
    """What an error says of it, one of these."""

    def start(self, *arguments: str) -> Server:
        """Start a node on it."""
        ...

    def refuse(self, node: Server) -> None:
        """Refuse from now on, or when a little more was written."""
        ...

    def relent(self, node: Server | None) -> None:
        """Take writes again."""
        ...


class SmallDisk:
    """A file system of a few MiB with a file on it that can be removed."""

    causes: tuple[str, ...] = ("No space left on device", "(the file system has 0 bytes free)")

    def __init__(self, mounted: Path) -> None:
        self.data = mounted / "data"
        self._ballast = mounted / "ballast"

    def start(self, *arguments: str) -> Server:
        """Start a node on it."""
        return start_node("--data", str(self.data), *arguments)

    def refuse(self, node: Server) -> None:
        """Take most of the room."""
        del node
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)

    def relent(self, node: Server | None) -> None:
        """Give it back."""
        del node
        self._ballast.unlink()


class SmallFile:
    """A writer whose files may not grow: what is left to a test that may not mount."""

    causes: tuple[str, ...] = ("File too large", "Input/output error")

    def __init__(self, scratch: Path) -> None:
        self.data = scratch / "data"

    def start(self, *arguments: str) -> Server:
        """Start a node that has no limit yet."""
        return start_node("--data", str(self.data), *arguments)

    def refuse(self, node: Server) -> None:
        """Let the file be a MiB longer and no more."""
        size = (self.data / "buckets" / "default" / "store" / "data.mdb").stat().st_size
        self._limit(node, size + (1 << 20))

    def relent(self, node: Server | None) -> None:
        """Lift the limit of a node that runs; a new one has none."""
        if node is not None:
            self._limit(node, resource.RLIM_INFINITY)

    def _limit(self, node: Server, size: int) -> None:
        (writer,) = children_of(node.pid)
        resource.prlimit(writer, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class FailingSync:
    """A disk that takes everything and then fails to sync it, while a file is there."""

    causes: tuple[str, ...] = ("Input/output error",)

    def __init__(self, scratch: Path, library: Path) -> None:
        self.data = scratch / "data"
        self._switches = scratch / "switches"
        self._switches.mkdir()
        self._library = library

    def start(self, *arguments: str) -> Server:
        """Start a node whose writer syncs through the library."""
        environment = {"LD_PRELOAD": str(self._library), "FAILING_DISK": str(self._switches)}
        return start_node("--data", str(self.data), *arguments, environment=environment)

    def refuse(self, node: Server) -> None:
        """Fail from now on."""
        del node
        (self._switches / "data").touch()

    def relent(self, node: Server | None) -> None:
        """Work again."""
        del node
        (self._switches / "data").unlink()


@contextmanager
def refusing(kind: str, scratch: Path) -> Iterator[Refusing]:
    """A disk of some kind, or a skip that says what it would take."""
    if kind == "full disk":
        with _mounted(scratch / "mounted") as mounted:
            yield SmallDisk(mounted)
    elif kind == "full file":
        yield SmallFile(scratch)
    else:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler to stand in for a failing disk")
        library, source = scratch / "failing.so", scratch / "failing.c"
        source.write_text(FAILING_DISK)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        yield FailingSync(scratch, library)


@contextmanager
def _mounted(place: Path) -> Iterator[Path]:
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "headrace-test", str(place)]
    tried = subprocess.run(command, capture_output=True, check=False, text=True) if os.geteuid() == 0 else None
    if tried is None or tried.returncode:
        pytest.skip(f"needs to mount a file system: {tried.stderr.strip() if tried else 'only root may'}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
