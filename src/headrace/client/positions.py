"""Where a reader stands in every vbucket, as JSON that outlives it.

    {"headrace_positions": 1, "bucket": "default", "vbuckets": {"0": {"vbuuid": …, "seqno": …, "snapshot_start": …,
     "snapshot_end": …}}}

The number is the version of the form; a later one is refused rather than guessed at. A vbucket that is not listed is
one of which nothing was read.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from headrace.client.errors import ClientError
from headrace.errors import LocalProtocolError
from headrace.history import Position
from headrace.ids import VBucketId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSION = 1
_MARK = "headrace_positions"
_VBUCKET_MAX = 0xFFFF


class PositionsError(ClientError):
    """Positions cannot be read, or are of something else than what is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The positions of a bucket's vbuckets: a value; whoever reads on makes a new one.

    `Positions.from_json(text)` and `Positions.load(path)` read them again, and raise a `PositionsError` for what is not
    them.
    """

    bucket: str
    vbuckets: Mapping[VBucketId, Position] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write them as one line."""
        rows = {str(vbucket): position.as_dict() for vbucket, position in sorted(self.vbuckets.items())}
        return json.dumps({_MARK: VERSION, "bucket": self.bucket, "vbuckets": rows}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Positions:
        """Read them again, and refuse what is not them."""
        try:
            plain: Any = json.loads(text)
        except (ValueError, RecursionError):
            raise PositionsError("these are no saved positions: not JSON") from None
        if not isinstance(plain, dict) or _MARK not in plain:
            raise PositionsError(f"these are no saved positions: no {_MARK}")
        if plain[_MARK] != VERSION:
            raise PositionsError(f"saved positions of version {plain[_MARK]!r}; this headrace reads version {VERSION}")
        bucket, rows = plain.get("bucket"), plain.get("vbuckets")
        if not isinstance(bucket, str) or not isinstance(rows, dict):
            raise PositionsError("saved positions without a bucket or without vbuckets")
        found: dict[VBucketId, Position] = {}
        for name, row in rows.items():
            if not (name.isascii() and name.isdigit() and int(name) <= _VBUCKET_MAX):
                raise PositionsError(f"saved positions of a vbucket {name!r}")
            try:
                found[VBucketId(int(name))] = Position.from_dict(row)
            except LocalProtocolError as error:
                raise PositionsError(f"the saved position of vbucket {name}: {error}") from None
        return cls(bucket=bucket, vbuckets=found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file so that it holds, at every moment, either what it held or these.

        A link is followed. What is there and is no file, as a device, is refused: it would be replaced.
        """
        with _beside(path) as (file, name, target):
            file.write(self.to_json() + "\n")
            file.flush()
            os.fsync(file.fileno())
            name.replace(target)

    @staticmethod
    def check_path(path: str | os.PathLike[str]) -> None:
        """Raise now what the path would make `save` raise later; nothing is changed."""
        with _beside(path):
            pass

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Positions:
        """Read a file that `save` wrote."""
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise PositionsError(f"positions cannot be read from {path}: {error.strerror or error}") from None
        try:
            return cls.from_json(text)
        except PositionsError as error:
            raise PositionsError(f"{path}: {error}") from None


@contextmanager
def _beside(path: str | os.PathLike[str]) -> Iterator[tuple[TextIO, Path, Path]]:
    """Open a new file in the folder of another, whose place it may take; if it does not, it is removed."""
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            raise PositionsError(f"positions cannot be saved to {path}: it is no regular file")
        number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                yield file, Path(name), target
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise PositionsError(f"positions cannot be saved to {path}: {error.strerror or error}") from None


__all__ = ["VERSION", "Positions", "PositionsError"]
