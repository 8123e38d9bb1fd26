"""The compiled kernel is kept on disk, and only a file of ours is believed."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.columns import machine

if TYPE_CHECKING:
    from pathlib import Path

KEPT = ({"scan": "one", "fill": "two"}, b"\x7fELF code")

FRESH = """
import sys
from headrace.columns import Positions, Settings, decode_changes
from headrace.wire import catalogue, encode
data = encode(catalogue.Mutation(by_seqno=1, rev_seqno=1, key=b"k", value=b"v"))
assert decode_changes(data, Settings(), Positions()).rows.num_rows == 1
print("numba" in sys.modules)
"""


def test_new_process_loads_the_kernel_without_numba():
    """With the kernel on disk, a new process decodes without importing the compiler."""
    machine.kernel()
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_is_kept_comes_back(tmp_path: Path):
    """A kernel is read as it was written, in a directory that is made for it."""
    path = tmp_path / "cache" / "kernel.o"
    machine.keep(path, KEPT)
    assert machine.read_kept(path) == KEPT
    assert path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "damage", [b"", b"headrace kernel 1\n", b"headrace kernel 1\n[]\ncode", b"headrace kernel 1\n{}\n"]
)
def test_damaged_file_is_not_used(tmp_path: Path, damage: bytes):
    """A file that is empty, cut or of another kind counts as absent."""
    path = tmp_path / "kernel.o"
    path.write_bytes(damage)
    assert machine.read_kept(path) is None


def test_cut_file_is_not_used(tmp_path: Path):
    """A file that lost its end counts as absent."""
    path = tmp_path / "kernel.o"
    machine.keep(path, KEPT)
    path.write_bytes(path.read_bytes()[:-1])
    assert machine.read_kept(path) is None
    assert machine.read_kept(tmp_path / "absent.o") is None


@pytest.mark.parametrize("open_one", ["directory", "file"])
def test_code_that_others_can_write_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture, open_one: str):
    """Machine code from a place where others can write is never loaded, and that is said."""
    path = tmp_path / "cache" / "kernel.o"
    machine.keep(path, KEPT)
    (path.parent if open_one == "directory" else path).chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert machine.read_kept(path) is None
    assert "can be written by others" in caplog.text


def test_place_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Where the kernel cannot be kept, work goes on, and the cost is said."""
    (tmp_path / "file").write_text("in the way")
    machine.keep(tmp_path / "file" / "kernel.o", KEPT)
    assert "cannot be kept" in caplog.text


def test_cache_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The variable names the directory; else it lies in the user's cache."""
    monkeypatch.setenv(machine.CACHE_VARIABLE, str(tmp_path))
    assert machine.cache_directory() == tmp_path
    monkeypatch.delenv(machine.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_directory() == tmp_path / "headrace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    found = machine.cache_directory()
    assert found is not None
    assert found.parts[-2:] == (".cache", "headrace")


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch):
    """A user without name and home decodes all the same."""

    def homeless() -> Path:
        raise RuntimeError

    for variable in (machine.CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pathlib.Path.home", homeless)
    assert machine.cache_directory() is None
    monkeypatch.setattr(machine, "_compile", lambda *_: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        machine.load.__wrapped__()


def test_fingerprint_follows_the_sources(monkeypatch: pytest.MonkeyPatch):
    """Another version of the compiler makes another file."""
    before = machine.fingerprint()
    assert machine.fingerprint() == before
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0")
    assert machine.fingerprint() != before


def test_kernel_compiles_anew_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An empty cache is filled by one compilation."""
    monkeypatch.setenv(machine.CACHE_VARIABLE, str(tmp_path / "new"))
    machine.load.__wrapped__()
    (kept,) = (tmp_path / "new").iterdir()
    assert machine.read_kept(kept) is not None
