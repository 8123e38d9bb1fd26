"""Every option of the formats `dcp` and `tap`: its name, how its text is read, its default, where it may stand.

`headrace.spark.options` reads options by this table, and `docs/reference/spark-options.md` is made of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headrace.client.options import BUFFER_BYTES, BUFFER_BYTES_MIN, WINDOW_BYTES, OnRollback
from headrace.columns import BINARY_KEYS, TEXT_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EARLIEST, LATEST = "earliest", "latest"
CHANGES, DOCUMENTS = "changes", "documents"


class Use(StrEnum):
    """Where an option may stand."""

    BATCH = "batch"
    STREAM = "stream"
    WRITE = "write"
    TAP = "tap"


_READ = (Use.BATCH, Use.STREAM)
_ALL = (Use.BATCH, Use.STREAM, Use.WRITE, Use.TAP)
_DCP = (Use.BATCH, Use.STREAM, Use.WRITE)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, how its text is read, what it is without a word, where it may stand, and a sentence."""

    name: str
    kind: Callable[[str], Any]
    default: Any
    uses: tuple[Use, ...]
    sentence: str

    @property
    def field(self) -> str:
        """Its name in Python."""
        return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", self.name)


class WrongTextError(ValueError):
    """What an option's text should have been."""


def _text(text: str) -> str:
    if not text.strip():
        raise WrongTextError("some text")
    return text.strip()


def _secret(text: str) -> str:
    return text


def _boolean(text: str) -> bool:
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise WrongTextError("true or false")
    return found


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or not int(text):
        raise WrongTextError("a whole number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text.strip()) or not float(text):
        raise WrongTextError("a number of seconds, more than 0")
    return float(text)


_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([bkmg]?)b?", text.strip().lower())
    if found is None or not int(found[1]):
        raise WrongTextError("a number of bytes, as 67108864 or 64m")
    return int(found[1]) * _SIZES[found[2]]


def _names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise WrongTextError("names with commas between them")
    return found


def _choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        found = text.strip().lower()
        if found not in words:
            raise WrongTextError(f"{', '.join(words[:-1])} or {words[-1]}")
        return found

    read.__name__ = " or ".join(words)
    return read


OFFSETS = 'earliest, latest, or positions as JSON: {"0": 12} or {"0": {"vbuuid": 7, "seqno": 12}} or what a query saved'


def _offsets(text: str) -> str | dict[str, Any]:
    plain = text.strip()
    if plain.lower() in (EARLIEST, LATEST):
        return plain.lower()
    try:
        found = json.loads(plain)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise WrongTextError(OFFSETS)
    return found


def _timestamp(text: str) -> float:
    plain = text.strip()
    if re.fullmatch(r"[0-9]{1,13}", plain):  # milliseconds, as Kafka's source has it
        return int(plain) / 1000
    try:
        found = datetime.fromisoformat(plain)
    except ValueError:
        raise WrongTextError("milliseconds since 1970, or a time as 2026-01-31T12:00:00+00:00") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _vbuckets(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends is not None else (1, 0)
        if not first <= last <= 0xFFFF:  # noqa: PLR2004 - a vbucket has 16 bits
            raise WrongTextError("a list as 0,7,100-199")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _buffer(text: str) -> int:
    found = _size(text)
    if found < BUFFER_BYTES_MIN:
        raise WrongTextError(f"at least {BUFFER_BYTES_MIN} bytes")
    return found


KINDS: Mapping[Callable[[str], Any], str] = {
    _text: "text",
    _secret: "text, hidden by Spark",
    _boolean: "true or false",
    _whole: "whole number",
    _seconds: "seconds",
    _size: "bytes, as 67108864 or 64m",
    _buffer: "bytes, as 67108864 or 64m",
    _names: "names with commas between them",
    _offsets: "earliest, latest or JSON",
    _timestamp: "milliseconds since 1970, or ISO 8601",
    _vbuckets: "a list as 0,7,100-199",
}
"""What each kind of value is called in the reference; a choice names its words."""

OPTIONS = (
    Option("connection", _text, "couchbase://127.0.0.1:11210", _ALL, "The servers to ask first: `couchbase://host1,host2:port`, or `couchbases://…` for TLS."),
    Option("bucket", _text, "default", _ALL, "The bucket."),
    Option("username", _text, None, _ALL, "The user; without one, nobody authenticates."),
    Option("password", _secret, None, _ALL, "The user's password. Spark hides it in plans and pages, and so does headrace everywhere else."),
    Option("passwordEnv", _text, None, _ALL, "In place of `password`: the environment variable that holds it, on the driver."),
    Option("passwordFile", _text, None, _ALL, "In place of `password`: the file whose first line it is, on the driver."),
    Option("tlsCa", _text, None, _ALL, "A file with the certificates to trust (PEM), on the driver and on each executor; the system's otherwise."),
    Option("timeout", _seconds, 10.0, _ALL, "How long a server may take to connect and to answer."),
    Option("giveUp", _seconds, 60.0, _READ, "How long a vbucket may be unreachable before the job fails. Until then it is tried again, here and wherever the cluster says it went."),
    Option("mode", _choice(CHANGES, DOCUMENTS), CHANGES, _DCP, "`changes`: every change. `documents`: of each document the newest version, and nothing of those that are gone; in batch only. In a write: rows as this source gives them, or documents with a key; the columns tell without a word."),
    Option("scope", _text, None, _READ, "Only this scope: its default collection, or those in `collections` without a scope of their own."),
    Option("collections", _names, None, _READ, "Only these collections, as `scope.collection` or, with `scope`, by their name; `*` for all of them. Without it, what is in the default collection."),
    Option("vbuckets", _vbuckets, None, (*_READ, Use.TAP), "Only these vbuckets."),
    Option("keys", _choice(TEXT_KEYS, BINARY_KEYS), TEXT_KEYS, (*_READ, Use.TAP), "`text`: the key is a string, and one that is not UTF-8 is an error. `binary`: it is bytes."),
    Option("noValue", _boolean, False, _READ, "Ask for changes without their values."),
    Option("xattrs", _boolean, False, _READ, "Ask for extended attributes."),
    Option("compression", _boolean, True, _READ, "Let the server send values compressed with snappy; they are inflated on the executor."),
    Option("startingOffsets", _offsets, EARLIEST, _READ, "Where to begin, when there is no checkpoint yet: earliest, latest, or positions as JSON."),
    Option("startingTimestamp", _timestamp, None, _READ, "Only changes that were made at this time or later, by the clock in their CAS. Everything is read and what is older is dropped on the executors."),
    Option("endingOffsets", _offsets, LATEST, (Use.BATCH,), "Where to end: latest, or positions as JSON."),
    Option("maxOffsetsPerTrigger", _whole, None, (Use.STREAM,), "How many seqnos a micro-batch may take, of all vbuckets together. Rows are at most as many."),
    Option("maxBytesPerTrigger", _size, None, (Use.STREAM,), "How many bytes of changes a micro-batch may take; a bound by the mean size of some changes of the backlog."),
    Option("minPartitions", _whole, None, (*_READ, Use.TAP), "Have at least so many tasks, where there are so many vbuckets to read; without it, as many as the driver's machine has cores, and fewer for little work."),
    Option("failOnDataLoss", _boolean, True, _READ, "Whether to fail when changes cannot be had any more: deletions were purged, or the bucket is another one. Else such a vbucket is read as after a rollback."),
    Option("onRollback", _choice(*OnRollback), OnRollback.REBUILD.value, (Use.STREAM,), "After a failover that lost changes. `rebuild`: a `rollback` row with seqno 0, then the vbucket from its beginning. `event`: a `rollback` row with the last seqno that still holds, and on from there. `fail`: stop, and tell."),
    Option("rollbackMitigation", _boolean, False, (Use.STREAM,), "Read only what every copy of a vbucket has on disk."),
    Option("window", _size, WINDOW_BYTES, _READ, "How much a server may send ahead to one task."),
    Option("buffer", _buffer, BUFFER_BYTES, _READ, "How much a task receives before it decodes: the largest Arrow batch, but for a single larger change."),
    Option("hashedKeys", _boolean, True, (Use.BATCH,), "Whether each key is in the vbucket of its hash, where Couchbase's clients put it: a filter on a key then reads one vbucket."),
    Option("keyColumn", _text, "key", (Use.WRITE,), "Of documents: the column that is the key."),
    Option("valueColumn", _text, None, (Use.WRITE,), "Of documents: the column that is the value, as text or bytes; without it, the other columns as a JSON object."),
    Option("ttl", _whole, None, (Use.WRITE,), "Of documents: after how many seconds they end."),
    Option("ttlColumn", _text, None, (Use.WRITE,), "Of documents: the column that says after how many seconds each ends; 0 or null for never."),
    Option("deleteColumn", _text, None, (Use.WRITE,), "Of documents: the boolean column that says which rows remove their document."),
    Option("revColumn", _text, None, (Use.WRITE,), "Of documents: the column with their revision. Of two writes of a key the larger wins, whichever comes first; without it, the last."),
    Option("conflicts", _choice("newest", "source"), "newest", (Use.WRITE,), "`newest`: what the bucket has stays where its revision is higher. `source`: what is written replaces it."),
    Option("deadLetterPath", _text, None, (Use.WRITE,), "A folder for the rows that cannot be written, as JSON lines with the reason. Without it, the first such row fails the job."),
    Option("retry", _seconds, 60.0, (Use.WRITE,), "How long a write is tried again while a server says that it cannot now, or is away."),
)  # fmt: skip
"""Every option."""

__all__ = [
    "CHANGES",
    "DOCUMENTS",
    "EARLIEST",
    "KINDS",
    "LATEST",
    "OFFSETS",
    "OPTIONS",
    "Option",
    "Use",
    "WrongTextError",
]
