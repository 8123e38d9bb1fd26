"""Ways to run commands in tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from headrace.cli import app


def run(*arguments: str | Path | bytes, data: bytes | None = None, **variables: str) -> Result:
    """Run `headrace` in this process."""
    words = [os.fsdecode(each) for each in arguments]
    return CliRunner().invoke(app, words, input=data, env=variables)


def start(*arguments: str | Path) -> "subprocess.Popen[bytes]":
    """Run `headrace` in a process of its own."""
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def shell(script: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run commands as a reader of the help would."""
    command = f'headrace() {{ "{sys.executable}" -m headrace "$@"; }}\nset -eu -o pipefail\n{script}'
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)


def load(server: str, *arguments: str | Path, data: bytes | None = None) -> Result:
    """Run `headrace load`."""
    return run("load", "--connect", server, *arguments, data=data)


def got(server: str, key: str) -> Any:
    """The document of a key."""
    done = run("get", "--connect", server, key)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)
