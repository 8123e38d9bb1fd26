"""libmemcached's own test of a server, memccapable, passes on our node as it does on memcached."""

import re
import shutil
import subprocess

import pytest

from tests.processes import Server

pytestmark = pytest.mark.skipif(shutil.which("memccapable") is None, reason="memccapable is not installed")

RESULT = re.compile(r"^binary (\w+) +\[(\w+)\]$")
TESTS = [
    *("noop", "quit", "quitq", "set", "setq", "flush", "flushq", "add", "addq", "replace", "replaceq", "delete"),
    *("deleteq", "get", "getq", "getk", "getkq", "incr", "incrq", "decr", "decrq", "version", "append", "appendq"),
    *("prepend", "prependq", "stat"),
]


def results(server: Server) -> tuple[list[tuple[str, str]], str]:
    """The name and the verdict of each test in the order they ran, and the last line; it empties the server."""
    command = ["memccapable", "-h", server.host, "-p", str(server.port), "-b", "-t", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    *tests, last = done.stdout.splitlines() or [""]
    found = [RESULT.match(line) for line in tests]
    assert all(found), f"not understood:\n{done.stdout}{done.stderr}"
    return [(match[1], match[2]) for match in found if match], last


def test_memcached_passes(memcached: Server):
    """The control: Debian's memcached passes all 27 binary tests, so each of them is a fair demand."""
    assert results(memcached) == ([(name, "pass") for name in TESTS], "All tests passed")


def test_the_node_passes(node: Server):
    """The node passes all 27 binary tests."""
    assert len(TESTS) == 27
    assert results(node) == ([(name, "pass") for name in TESTS], "All tests passed")
