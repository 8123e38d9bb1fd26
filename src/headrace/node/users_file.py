"""The users file as a file: who may read and change it, how it is read and how it is replaced."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError

FILE_BYTES_MAX = 64 * 1024 * 1024


class UsersError(HeadraceError):
    """A users file, or a change to it, that cannot stand."""


class _DuplicateError(Exception):
    """One object has a name twice; of two users with one name, which one holds would be chance."""


def read_document(path: Path) -> tuple[Any, list[str]]:
    """Give what the file says as JSON, and what is to be told about it to whoever starts the node."""
    content, warnings = _read(path)
    try:
        return json.loads(content.decode(), object_pairs_hook=_no_duplicates), warnings
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, column {error.colno}: {error.msg}"
    except RecursionError:
        problem = "nested too deeply"
    except _DuplicateError as error:
        problem = str(error)
    raise UsersError(f"users file {path}: {problem}")


def _read(path: Path) -> tuple[bytes, list[str]]:
    warnings = []
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UsersError(f"users file {path} is not a file")
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise UsersError(f"users file {path} can be changed by others than its owner: chmod 600 {path}")
            if found.st_mode & stat.S_IROTH:
                warnings.append(f"users file {path} can be read by everyone: chmod 600 {path}")
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UsersError(f"there is no users file {path}; `headrace user add` makes one") from None
    except OSError as error:
        raise UsersError(f"users file {path} cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise UsersError(f"users file {path} has more than {FILE_BYTES_MAX} bytes")
    return content, warnings


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, content in pairs:
        if name in found:
            raise _DuplicateError(f"{name!r} stands twice in one object")
        found[name] = content
    return found


def write_document(path: Path, document: Any) -> None:
    """Write the file whole or not at all, readable by its owner alone."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        _write_atomically(Path(os.path.realpath(path)), text.encode())  # a link stays a link
    except OSError as error:
        raise UsersError(f"users file {path} cannot be written: {error.strerror}") from None


def _write_atomically(target: Path, content: bytes) -> None:
    # mkstemp gives mode 0600, so the keys are never readable by others, not for a moment.
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # or a crash may bring the old name back
    finally:
        os.close(folder)
