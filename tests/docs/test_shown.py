import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.shown import ROOT, anchors, links, markdown_files, programs, sessions

SESSION_S_MAX = 120  # a page that waits for what never comes fails, and says where
FILES = markdown_files()
PROGRAMS = [(path, code, shown) for path in FILES for code, shown in programs(path)]
SESSIONS = [(path, script, shown) for path in FILES for script, shown in sessions(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_resolve(path: Path):
    """A link within the project leads to a file or folder that is there, and to a heading of it."""
    for target in links(path):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, place = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{target}: nothing there"
        assert not place or place in anchors(there), f"{target}: no such heading"


def test_readme_has_a_program():
    """The first page shows how the package is used, and what that prints."""
    assert [shown for path, _, shown in PROGRAMS if path == ROOT / "README.md" and shown]


@pytest.mark.parametrize(("path", "code", "shown"), PROGRAMS, ids=[path.name for path, _, _ in PROGRAMS])
def test_programs_run(path: Path, code: str, shown: str | None):
    """A program on a page runs, and prints what the page says."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(path), "exec"), {"__name__": "__main__"})
    assert shown is None or printed.getvalue() == shown


@pytest.mark.parametrize(("path", "script", "shown"), SESSIONS, ids=[path.name for path, _, _ in SESSIONS])
def test_commands_print_what_is_shown(path: Path, script: str, shown: str, tmp_path: Path):
    """A command on a page prints what stands under it."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    # A program, not a function of the shell: what a page starts in the background, it ends by its process id.
    program = tmp_path / "headrace"
    program.write_text(f'#!{bash}\nexec "{sys.executable}" -m headrace "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [bash, "-c", f"exec 2>&1\n{script}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=SESSION_S_MAX
    )
    assert done.stdout == shown, path
