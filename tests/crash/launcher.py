"""Starts nodes by forking one process that has imported everything: a start costs a tenth of what it costs otherwise.

A script of its own. It reads one JSON object a line and answers each with one: `start` gives a process id, `wait` an
exit code (negative for a signal) or null while the process runs. What it started ends with it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time

import uvloop  # noqa: F401 - imported for the children

import headrace.node.server  # noqa: F401 - the same
from headrace.cli import main

POLL_S = 0.002


def serve() -> None:
    """Answer until there is nothing more to read."""
    gc.freeze()
    running: set[int] = set()
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "start":
                answer: object = start(asked["arguments"], asked["output"])
                running.add(int(str(answer)))
            else:
                answer = wait(asked["pid"], asked["seconds"])
                if answer is not None:
                    running.discard(asked["pid"])
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)


def start(arguments: list[str], output: str) -> int:
    """Fork a node whose stdout and stderr are a file."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.argv = ["headrace", *arguments]
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    """Take an ended process off the system's table, and say how it ended."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(POLL_S)


if __name__ == "__main__":
    serve()
