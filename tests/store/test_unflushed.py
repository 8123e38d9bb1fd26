from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.ids import VBucketId
from headrace.store import StoreError, Unflushed, unflushed

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 16
ALL = frozenset(range(COUNT))
MARKED = frozenset({3, 15})


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A kernel whose boot id a test can change."""
    file = tmp_path / "boot_id"
    file.write_bytes(b"11111111-2222-3333-4444-555555555555\n")
    monkeypatch.setattr(unflushed, "BOOT_ID_FILE", file)
    return file


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory."""
    return tmp_path / "data"


def left_behind(data: Path, *, clean: bool, marked: frozenset[int] = MARKED) -> None:
    """Use the marks and stop."""
    marks = Unflushed(data, COUNT)
    for number in range(COUNT):
        marks.mark(VBucketId(number))
        if number not in marked:
            marks.clear(VBucketId(number))
    marks.close(clean=clean)


def found(data: Path) -> frozenset[int]:
    """What the next opening finds, left as it was."""
    marks = Unflushed(data, COUNT)
    try:
        assert frozenset(number for number in range(COUNT) if marks.marks[number]) == marks.may_have_lost
        return frozenset(marks.may_have_lost)
    finally:
        marks.close(clean=False)


def test_a_new_directory_has_lost_nothing(data: Path) -> None:
    """Where no store is, nothing can be lost."""
    assert found(data) == frozenset()


def test_a_clean_close_loses_nothing(data: Path, kernel: Path) -> None:
    """After a clean close nothing is lost, whatever happened to the machine."""
    left_behind(data, clean=True, marked=frozenset())
    kernel.write_bytes(b"another")
    assert found(data) == frozenset()


def test_marks_left_at_a_clean_close_are_believed(data: Path, kernel: Path) -> None:
    """Who closes cleanly with something unflushed has said what that was, and the marks were synced."""
    left_behind(data, clean=True)
    kernel.write_bytes(b"another")
    assert found(data) == MARKED


def test_a_dead_process_leaves_its_marks(data: Path) -> None:
    """Under the same kernel, what was marked may have lost something, and nothing else."""
    left_behind(data, clean=False)
    assert found(data) == MARKED


def test_a_loss_that_nobody_dealt_with_is_found_again(data: Path) -> None:
    """Marks found at opening stay until they are cleared."""
    left_behind(data, clean=False)
    assert found(data) == MARKED
    assert found(data) == MARKED
    marks = Unflushed(data, COUNT)
    marks.marks[3] = 0
    marks.close(clean=False)
    assert found(data) == MARKED - {3}


@pytest.mark.parametrize("boot_id", [b"66666666-2222-3333-4444-555555555555\n", b"", None])
def test_after_the_machine_went_down_any_may_have_lost(data: Path, kernel: Path, boot_id: bytes | None) -> None:
    """Marks that were not synced before another boot, or one that cannot be told, say nothing."""
    left_behind(data, clean=False)
    if boot_id is None:
        kernel.unlink()
    else:
        kernel.write_bytes(boot_id)
    assert found(data) == ALL


def test_without_boot_ids_an_unclean_end_means_all(data: Path, kernel: Path) -> None:
    """Where the system has no boot id, two of none are not the same."""
    kernel.unlink()
    left_behind(data, clean=False)
    assert found(data) == ALL


@pytest.mark.parametrize("place", ["data.mdb", "bucket/data.mdb"])
def test_a_missing_file_beside_a_store_means_all(data: Path, place: str) -> None:
    """A store without marks may have lost anything."""
    (data / place).parent.mkdir(parents=True)
    (data / place).touch()
    assert found(data) == ALL


@pytest.mark.parametrize("at", [0, 11, 12, 20, 53])
def test_a_damaged_header_means_all(data: Path, at: int) -> None:
    """No byte of the header may be other than it was written."""
    left_behind(data, clean=True)
    file = data / unflushed.UNFLUSHED_FILE
    content = bytearray(file.read_bytes())
    content[at] ^= 0xFF
    file.write_bytes(content)
    assert found(data) == ALL


@pytest.mark.parametrize("size", [0, 10, 64, 64 + COUNT - 1, 64 + COUNT + 1])
def test_a_file_of_another_size_means_all(data: Path, size: int) -> None:
    """A file that was cut, or is of another number of vbuckets, says nothing."""
    left_behind(data, clean=True)
    os.truncate(data / unflushed.UNFLUSHED_FILE, size)
    assert found(data) == ALL


def test_another_number_of_vbuckets_means_all(data: Path) -> None:
    """Marks of 16 vbuckets are none of 32."""
    left_behind(data, clean=True)
    marks = Unflushed(data, 2 * COUNT)
    assert marks.may_have_lost == frozenset(range(2 * COUNT))
    marks.close()
    marks.close()


def test_marks_survive_kill_9(data: Path) -> None:
    """A byte stored is a byte kept, however the process ends."""
    code = (
        "import os, sys; from headrace.store import Unflushed, unflushed; from pathlib import Path;"
        "unflushed.BOOT_ID_FILE = Path(sys.argv[2]); m = Unflushed(sys.argv[1], 16);"
        "m.marks[3] = m.marks[15] = 1; os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, data, unflushed.BOOT_ID_FILE], check=False)
    assert done.returncode == -signal.SIGKILL
    assert found(data) == MARKED


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="unflushed"):
        Unflushed(tmp_path / "file", COUNT)
