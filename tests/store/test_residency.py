from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.ids import VBucketId
from headrace.store import open_store, residency
from tests.store.builders import batch
from tests.store.consistency import assert_consistent

if TYPE_CHECKING:
    from pathlib import Path

VB = VBucketId(1)


def resident_of(file: Path) -> int:
    """How much of a mapped file counts as this process's memory, in KiB."""
    total = 0
    inside = False
    for line in residency.MAPS.with_name("smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(file))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(not residency.MAPS.exists(), reason="needs Linux's account of mapped pages")
def test_pages_that_were_seen_leave_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that is open goes on to read what it saw after the process let go of its pages."""
    writer, reader = open_store(tmp_path)
    writer.write([batch(VB, 1, 20_000)])
    with reader.snapshot() as snapshot:
        before = list(snapshot.records(VB))
        seen = resident_of(tmp_path / "data.mdb")
        residency.trim(tmp_path / "data.mdb")
        assert resident_of(tmp_path / "data.mdb") >= seen
        monkeypatch.setattr(residency, "MAPPED_BYTES_MAX", 0)
        residency.trim(tmp_path / "data.mdb")
        assert resident_of(tmp_path / "data.mdb") < seen / 4
        assert list(snapshot.records(VB)) == before
        writer.write([batch(VB, 20_001, 5_000)])
        assert b"".join(snapshot.records_joined(VB)) == b"".join(before)
    with reader.snapshot() as snapshot:
        assert_consistent(snapshot)
    reader.close()
    writer.close()


def test_without_an_account_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that does not tell is left alone."""
    monkeypatch.setattr(residency, "STATM", tmp_path / "nothing")
    residency.trim(tmp_path / "data.mdb")
