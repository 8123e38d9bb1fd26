"""The command `headrace node`: its line, its signals, its exit codes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from headrace.client import KvConnection
from headrace.errors import HeadraceError
from tests.cli.tools import run

if TYPE_CHECKING:
    from pathlib import Path

HEADRACE = [sys.executable, "-m", "headrace"]
READY = re.compile(r"headrace node ready on (\S+):(\d+)\n")
PATIENCE_S = 30


def start(*arguments: str | Path) -> tuple[subprocess.Popen[str], str, int]:
    """A node that is ready, and the host and port of its line."""
    node = subprocess.Popen(
        [*HEADRACE, "node", "--port", "0", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    line = READY.fullmatch(node.stdout.readline())
    assert line, node.communicate()
    return node, line[1], int(line[2])


def end(node: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    """Send a signal; the exit code, and what stood on standard error."""
    node.send_signal(number)
    _, words = node.communicate(timeout=PATIENCE_S)
    return node.returncode, words


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_end_it_cleanly(number: signal.Signals, tmp_path: Path):
    """Each signal that asks for an end gives a clean one, with what was acknowledged on disk."""
    node, host, port = start("--data", tmp_path, "--vbuckets", "4")
    with KvConnection(host, port) as connection:
        connection.set(b"a", b"1")
    code, words = end(node, number)
    assert code == 0
    assert "the node serves" in words
    assert f"data={tmp_path} temporary=no buckets=default vbuckets=4 sync=behind users=no tls=no" in words
    assert "the node stopped clean=yes" in words
    node, host, port = start("--data", tmp_path)
    with KvConnection(host, port) as connection:
        assert connection.get(b"a").value == b"1"
    assert end(node)[0] == 0


def test_nohup_is_respected():
    """Started so that SIGHUP is ignored, a node outlives its terminal."""
    node = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *HEADRACE, "node", "--port", "0", "--vbuckets", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    assert READY.fullmatch(node.stdout.readline())
    node.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert node.poll() is None
    assert end(node)[0] == 0


def test_ipv6_stands_in_brackets():
    """The line has the address as every other program takes it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    node, host, port = start("--host", "::1", "--vbuckets", "2")
    assert host == "[::1]"
    again = subprocess.run(
        [*HEADRACE, "node", "--host", "::1", "--port", str(port)], capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert f"cannot listen on [::1]:{port}: " in again.stderr
    code, words = end(node)
    assert code == 0
    assert f"address=[::1]:{port}" in words


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(closed: str, tmp_path: Path):
    """A node whose shell closed its streams starts, writes and stops as any other."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*HEADRACE, "node", "--port", str(port), "--data", str(tmp_path / "data"), "--vbuckets", "2"]
    with (tmp_path / "words").open("wb") as words:
        node = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *command], stdin=subprocess.DEVNULL, stdout=words, stderr=words
        )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with KvConnection("127.0.0.1", port) as connection:
                connection.set(b"a", b"1")
            break
        except HeadraceError:
            assert time.monotonic() < deadline, (tmp_path / "words").read_text()
            time.sleep(0.05)
    node.terminate()
    assert node.wait(PATIENCE_S) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")  # noqa: PTH110 - one word
def test_a_line_that_nobody_can_read():
    """Where the line cannot be written nobody learns where the node is: it ends with 74."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [*HEADRACE, "node", "--port", "0", "--vbuckets", "2", "--log-level", "error"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 74
    assert done.stderr == "headrace node: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("after_s", [0.1, 0.2, 0.35, 0.5])
def test_an_early_interrupt_is_no_fault(after_s: float):
    """Ctrl-C before the node serves ends it without a traceback."""
    command = [*HEADRACE, "node", "--port", "0", "--vbuckets", "2", "--log-level", "error"]
    # What starts the tests may ignore the signal, and the node would inherit that.
    node = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - it calls nothing else
    )
    time.sleep(after_s)
    os.killpg(node.pid, signal.SIGINT)
    _, words = node.communicate(timeout=PATIENCE_S)
    if "site" in words:
        pytest.skip("the interpreter itself had not started yet")
    assert words == ""
    # 0 where it served by then. Python ends itself by the signal where that hit code of a string; shells call it 130.
    assert node.returncode in {0, 130, -signal.SIGINT}


def test_a_stray_error_is_not_taken_for_the_output():
    """An error of the system that no command foresaw is told as what it is."""
    program = (
        "import sys\nfrom headrace.cli import app as command, main\n"
        "def fail(): raise PermissionError(13, 'Permission denied', '/some/file')\n"
        "command.command('fail')(fail)\nsys.argv = ['headrace', 'fail']\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "headrace: [Errno 13] Permission denied: '/some/file'\n"


def test_what_cannot_be_is_a_sentence(tmp_path: Path):
    """A wrong option ends the command with 1 or 2 and one line."""
    for arguments, code, told in (
        (["--data", ""], 1, "headrace node: data has no name"),
        (["--data", str(tmp_path), "--vbuckets", "3"], 1, "headrace node: 3 vbuckets: a power of two"),
        (["--port", "70000"], 2, ""),
    ):
        done = run("node", *arguments)
        assert done.exit_code == code
        assert told in done.stderr


def test_without_the_extra_one_is_told_what_to_install():
    """The base package has the command, and the command says what it lacks."""
    program = "import sys\nsys.modules['uvloop'] = None\nfrom headrace.cli import main\nmain()\n"
    done = subprocess.run([sys.executable, "-c", program, "node"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "headrace node: a node needs uvloop, which is not installed: pip install 'headrace[node]'\n"


def test_a_low_limit_on_files_is_told():
    """A node that could not take as many connections as it says warns of it."""
    script = 'ulimit -n 500; exec "$@"'
    command = ["sh", "-c", script, "sh", *HEADRACE, "node", "--port", "0", "--vbuckets", "2"]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert node.stdout is not None
    assert READY.fullmatch(node.stdout.readline())
    code, words = end(node)
    assert code == 0
    assert "files_max=500 needed=10100" in words
