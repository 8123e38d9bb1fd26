"""Rows that could not be written, put aside: a file of JSON lines for each task that had some.

A line has `reason`, `key` (text, or `{"base64": ...}` where it is not UTF-8), where the row tells it `vbucket`, and
`row`: all its columns, in the form that `sink_json` gives them. A file has its name when it is whole, and not before; a
task that fails leaves none, since all its rows will be tried again.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pyspark import TaskContext

from headrace.client import ClientError, OptionError
from headrace.errors import LocalProtocolError
from headrace.spark.sink_json import json_text, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

_FILE = "file:"


class DeadLetterError(ClientError):
    """The folder for rows that cannot be written cannot be written to."""


def folder_of(option: str) -> str:
    """Read the option `deadLetterPath`: a folder of the machine, or one that is mounted there."""
    path = option
    if path.startswith(_FILE):
        path = "/" + path.removeprefix(_FILE).lstrip("/")
    elif "://" in path:
        raise OptionError(f"option deadLetterPath is a folder that each executor has, not {option!r}")
    return path


class DeadLetters:
    """The rows of one task that could not be written."""

    def __init__(self, folder: str) -> None:
        self.count = 0
        self._folder = Path(folder)
        context = TaskContext.get()
        task = f"{context.partitionId():05d}-{context.taskAttemptId()}" if context is not None else "driver"
        self._name = f"part-{task}-{secrets.token_hex(4)}.jsonl"
        self._file: IO[bytes] | None = None

    @property
    def _temporary(self) -> Path:
        return self._folder / f".{self._name}.tmp"

    def add(self, batch: pa.RecordBatch, place: int, key: bytes | None, reason: str) -> None:
        """Put a row aside."""
        row = rows_of(batch.slice(place, 1))[0]
        letter: dict[str, Any] = {"reason": reason, "key": _shown(key)}
        if isinstance(row.get("vbucket"), int):
            letter["vbucket"] = row["vbucket"]
        try:
            letter["row"] = json.loads(json_text(row))
        except LocalProtocolError:  # a column that no document could have
            letter["row"] = {name: str(content) for name, content in row.items()}
        try:
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = self._temporary.open("wb")
            self._file.write(json.dumps(letter, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise self._failed(error) from None
        self.count += 1

    def finish(self) -> str | None:
        """Give the file its name, and tell that; None where nothing was put aside."""
        if self._file is None:
            return None
        whole = self._folder / self._name
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.rename(whole)
        except OSError as error:
            raise self._failed(error) from None
        self._file = None
        return str(whole)

    def discard(self) -> None:
        """Leave nothing; after `finish` that changes nothing."""
        if self._file is not None:
            self._file.close()
            self._temporary.unlink(missing_ok=True)
            self._file = None

    def _failed(self, error: OSError) -> DeadLetterError:
        return DeadLetterError(f"option deadLetterPath: {self._folder} cannot be written to: {error.strerror or error}")


def _shown(key: bytes | None) -> Any:
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(key).decode()}


__all__ = ["DeadLetterError", "DeadLetters", "folder_of"]
