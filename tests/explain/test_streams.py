import io
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import explain as explain_command
from headrace.cli.output import EXIT_OUTPUT, JsonOutput, OutputError, say
from tests.explain.packets import NOOP
from tests.explain.tools import run


@pytest.mark.parametrize(
    ("arguments", "redirection", "code", "words"),
    [
        (["explain"], "<&-", 2, "headrace explain: standard input is closed; give hex or a path\n"),
        (["explain", NOOP.hex()], ">&-", EXIT_OUTPUT, "headrace explain: standard output is closed\n"),
        (["explain", NOOP.hex()], "2>&-", 0, ""),
        (["explain", "zz"], "2>&-", 2, ""),
        (["explain", "--limit", "0"], "2>&-", 2, ""),
        (["explain", NOOP.hex()], "2>/dev/full", 0, ""),
        (["explain", NOOP.hex()], ">/dev/full", EXIT_OUTPUT, "headrace explain: standard output cannot be written: "),
        (["explain", "--output", "json", NOOP.hex()], ">/dev/full", EXIT_OUTPUT, "headrace explain: standard output "),
        (["explain", NOOP.hex()], ">/dev/full 2>&-", EXIT_OUTPUT, ""),
        (["--help"], ">/dev/full", EXIT_OUTPUT, "headrace: standard output cannot be written: "),
        (["explain"], "<&- >&- 2>&-", EXIT_OUTPUT, ""),
    ],
)
def test_streams_that_are_closed_or_full(arguments: list[str], redirection: str, code: int, words: str) -> None:
    """A closed or full stream ends the program with one line and its exit code, never with a traceback."""
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    script = f'"$@" {redirection}'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "headrace", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == code
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == (1 if words else 0)
    assert "Error:" not in done.stdout


def test_a_stream_that_fills_up_midway(tmp_path: Path) -> None:
    """Output that stops fitting while messages are still read ends with the same line and code."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    path = tmp_path / "messages"
    path.write_bytes(NOOP * 20_000)
    command = [sys.executable, "-m", "headrace", "explain", "--dialect", "dcp", str(path)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == EXIT_OUTPUT
    assert done.stderr == "headrace explain: standard output cannot be written: No space left on device\n"


def test_an_output_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system while writing becomes an OutputError for data, and is dropped for words."""

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "full")

    def fail(*_: object) -> int:
        raise OutputError("gone")

    with pytest.raises(OutputError, match="No space left"):
        JsonOutput(Full()).close()
    say("lost", Full())
    monkeypatch.setattr(explain_command, "_explain", fail)
    assert run(NOOP.hex()).exit_code == EXIT_OUTPUT
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="closed"):
        JsonOutput()
