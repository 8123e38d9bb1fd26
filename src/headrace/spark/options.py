"""The options of the formats `dcp` and `tap`: one table, from which parsing, errors and the reference page come.

Spark hands options over as text and minds no case. A name that is not in the table, or a value that cannot be, is an
`OptionError` that says what would do. Options that Spark's Kafka source has are called as they are there.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from headrace.client import ChangeOptions, OptionError, Positions, PositionsError
from headrace.client.options import BUFFER_BYTES_MIN, OnRollback
from headrace.columns import BINARY_KEYS, TEXT_KEYS

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


class _WrongError(ValueError):
    """What an option's text should have been."""


def _text(text: str) -> str:
    if not text.strip():
        raise _WrongError("some text")
    return text.strip()


def _secret(text: str) -> str:
    return text


def _boolean(text: str) -> bool:
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise _WrongError("true or false")
    return found


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or not int(text):
        raise _WrongError("a whole number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text.strip()) or not float(text):
        raise _WrongError("a number of seconds, more than 0")
    return float(text)


_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([bkmg]?)b?", text.strip().lower())
    if found is None or not int(found[1]):
        raise _WrongError("a number of bytes, as 67108864 or 64m")
    return int(found[1]) * _SIZES[found[2]]


def _names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise _WrongError("names with commas between them")
    return found


def _choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        found = text.strip().lower()
        if found not in words:
            raise _WrongError(f"{', '.join(words[:-1])} or {words[-1]}")
        return found

    read.__name__ = " or ".join(words)
    return read


_OFFSETS = (
    'earliest, latest, or positions as JSON: {"0": 12} or {"0": {"vbuuid": 7, "seqno": 12}} or what a query saved'
)


def _offsets(text: str) -> str | dict[str, Any]:
    plain = text.strip()
    if plain.lower() in (EARLIEST, LATEST):
        return plain.lower()
    try:
        found = json.loads(plain)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _WrongError(_OFFSETS)
    return found


def _timestamp(text: str) -> float:
    plain = text.strip()
    if re.fullmatch(r"[0-9]{1,13}", plain):  # milliseconds, as Kafka's source has it
        return int(plain) / 1000
    try:
        found = datetime.fromisoformat(plain)
    except ValueError:
        raise _WrongError("milliseconds since 1970, or a time as 2026-01-31T12:00:00+00:00") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _vbuckets(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends is not None else (1, 0)
        if not first <= last <= 0xFFFF:  # noqa: PLR2004 - a vbucket has 16 bits
            raise _WrongError("a list as 0,7,100-199")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _buffer(text: str) -> int:
    found = _size(text)
    if found < BUFFER_BYTES_MIN:
        raise _WrongError(f"at least {BUFFER_BYTES_MIN} bytes")
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
    Option("tlsCa", _text, None, _DCP, "A file with the certificates to trust (PEM), on the driver and on each executor; the system's otherwise."),
    Option("timeout", _seconds, 10.0, _ALL, "How long a server may take to connect and to answer."),
    Option("giveUp", _seconds, 60.0, _DCP, "How long a vbucket may be unreachable before the job fails. Until then it is tried again, here and wherever the cluster says it went."),
    Option("mode", _choice(CHANGES, DOCUMENTS), CHANGES, _DCP, "`changes`: every change. `documents`: of each document the newest version, and nothing of those that are gone; in batch only. In a write: rows as this source gives them, or documents with a key; the columns tell without a word."),
    Option("scope", _text, None, _READ, "Only this scope: its default collection, or those in `collections` without a scope of their own."),
    Option("collections", _names, None, _READ, "Only these collections, as `scope.collection` or, with `scope`, by their name; `*` for all of them. Without it, what is in the default collection."),
    Option("vbuckets", _vbuckets, None, _READ, "Only these vbuckets."),
    Option("keys", _choice(TEXT_KEYS, BINARY_KEYS), TEXT_KEYS, (*_READ, Use.TAP), "`text`: the key is a string, and one that is not UTF-8 is an error. `binary`: it is bytes."),
    Option("noValue", _boolean, False, _READ, "Ask for changes without their values."),
    Option("xattrs", _boolean, False, _READ, "Ask for extended attributes."),
    Option("compression", _boolean, True, _READ, "Let the server send values compressed with snappy; they are inflated on the executor."),
    Option("startingOffsets", _offsets, EARLIEST, _READ, "Where to begin, when there is no checkpoint yet: earliest, latest, or positions as JSON."),
    Option("startingTimestamp", _timestamp, None, _READ, "Only changes that were made at this time or later, by the clock in their CAS. Everything is read and what is older is dropped on the executors."),
    Option("endingOffsets", _offsets, LATEST, (Use.BATCH,), "Where to end: latest, or positions as JSON."),
    Option("maxOffsetsPerTrigger", _whole, None, (Use.STREAM,), "How many seqnos a micro-batch may take, of all vbuckets together. Rows are at most as many."),
    Option("maxBytesPerTrigger", _size, None, (Use.STREAM,), "How many bytes of changes a micro-batch may take; a bound by the mean size of some changes of the backlog."),
    Option("minPartitions", _whole, None, _READ, "Have at least so many tasks, where there are so many vbuckets to read; without it, as many as the driver's machine has cores, and fewer for little work."),
    Option("failOnDataLoss", _boolean, True, _READ, "Whether to fail when changes cannot be had any more: deletions were purged, or the bucket is another one. Else such a vbucket is read as after a rollback."),
    Option("onRollback", _choice(*OnRollback), OnRollback.REBUILD.value, (Use.STREAM,), "After a failover that lost changes. `rebuild`: a `rollback` row with seqno 0, then the vbucket from its beginning. `event`: a `rollback` row with the last seqno that still holds, and on from there. `fail`: stop, and tell."),
    Option("rollbackMitigation", _boolean, False, (Use.STREAM,), "Read only what every copy of a vbucket has on disk."),
    Option("window", _size, 16 << 20, _READ, "How much a server may send ahead to one task."),
    Option("buffer", _buffer, 4 << 20, _READ, "How much a task receives before it decodes: the largest Arrow batch, but for a single larger change."),
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
"""Every option. `docs/reference/spark-options.md` is made of this."""

_BY_NAME = {option.name.lower(): option for option in OPTIONS}
_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname"})
"""What Spark itself may put among the options of a source or a sink."""


class Options:
    """Options that were read and checked: an attribute for each of the table, by its name in Python."""

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        self.use = use
        self._values: dict[str, Any] = {option.field: option.default for option in OPTIONS}
        self.given: set[str] = set()
        for name, text in given.items():
            option = _find(name, use)
            if option is not None:
                self.given.add(option.name)
                self._values[option.field] = _read(option, text)
        self._check()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        shown = {name: value for name, value in self._values.items() if name != "password"}
        return f"Options({self.use}, {shown})"

    def _check(self) -> None:
        ways = [name for name in ("password", "passwordEnv", "passwordFile") if name in self.given]
        if len(ways) > 1:
            raise OptionError(f"options {' and '.join(ways)} are two ways to tell one password: give one")
        if bool(ways) != ("username" in self.given):
            missing = "username" if ways else "password, passwordEnv or passwordFile"
            raise OptionError(f"a user name and a password go together: option {missing} is missing")
        if self.use is Use.STREAM and self.mode == DOCUMENTS:
            raise OptionError("option mode is documents, which is of spark.read: spark.readStream gives changes")
        if self.scope is not None and any("." in name for name in self.collections or ()):
            raise OptionError("option collections names scopes, and so does option scope: give one of them")
        if self.ttl is not None and self.ttl_column is not None:
            raise OptionError("options ttl and ttlColumn both say when documents end: give one")

    def change_options(self, **more: Any) -> ChangeOptions:
        """What a reader of `headrace.client` is told."""
        return ChangeOptions(
            connection=self.connection,
            bucket=self.bucket,
            username=self.username,
            password=self.secret(),
            tls_ca=self.tls_ca,
            timeout_s=self.timeout,
            give_up_s=self.give_up,
            name="headrace-spark",
            xattrs=self.xattrs,
            collections=self.qualified(),
            no_value=self.no_value,
            compression=self.compression,
            keys=self.keys,
            window_bytes=self.window,
            buffer_bytes=self.buffer,
            **more,
        )

    def qualified(self) -> tuple[str, ...] | None:
        """The collections with their scopes; an empty tuple for all, None where none was asked for."""
        if self.collections == ("*",) and self.scope is None:
            return ()
        if self.collections is None and self.scope is None:
            return None
        if self.collections == ("*",):
            raise OptionError("option collections is *, which is of all scopes: name the collections of the scope")
        names = self.collections or ("_default",)
        if self.scope is not None:
            return tuple(f"{self.scope}.{name}" for name in names)
        for name in names:
            if name.count(".") != 1:
                raise OptionError(f"option collections: {name!r} is no scope.collection, and option scope is not given")
        return tuple(names)

    def secret(self) -> str | None:
        """The password, from wherever it is told."""
        from headrace.spark.secrets import read_secret  # noqa: PLC0415 - it looks at the machine

        return read_secret(self.password, self.password_env, self.password_file)


def _find(name: str, use: Use) -> Option | None:
    option = _BY_NAME.get(name.lower())
    if option is not None and use in option.uses:
        return option
    if option is not None:
        told = " and ".join(_CALLED[each] for each in option.uses)
        raise OptionError(f"option {option.name} has no meaning in {_CALLED[use]}: it is of {told}")
    if name.lower() in _SPARKS_OWN:
        return None
    known = [each.name for each in OPTIONS if use in each.uses]
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    hint = f"did you mean {lower[near[0]]}?" if near else f"there are {', '.join(known)}"
    raise OptionError(f"there is no option {name}: {hint}")


_CALLED = {
    Use.BATCH: "spark.read",
    Use.STREAM: "spark.readStream",
    Use.WRITE: "a write",
    Use.TAP: 'spark.read.format("tap")',
}


def _read(option: Option, text: str) -> Any:
    try:
        return option.kind(text)
    except _WrongError as wrong:
        shown = "" if option.name == "password" else f", not {text!r}"
        raise OptionError(f"option {option.name} is {wrong}{shown}") from None


def positions_of(option: str, found: Mapping[str, Any], bucket: str) -> Mapping[str, Any]:
    """The vbuckets of offsets that were given as JSON, whichever of the three forms it is."""
    if "headrace_positions" in found:
        try:
            saved = Positions.from_json(json.dumps(found))
        except PositionsError as error:
            raise OptionError(f"option {option}: {error}") from None
        found = {"bucket": saved.bucket, "vbuckets": {str(vb): at.as_dict() for vb, at in saved.vbuckets.items()}}
    if "vbuckets" not in found:
        return found
    if found.get("bucket", bucket) != bucket:
        raise OptionError(f"option {option}: these positions are of bucket {found['bucket']}, not of {bucket}")
    rows = found["vbuckets"]
    if not isinstance(rows, dict):
        raise OptionError(f"option {option} is {_OFFSETS}")
    return rows


__all__ = [
    "CHANGES",
    "DOCUMENTS",
    "EARLIEST",
    "KINDS",
    "LATEST",
    "OPTIONS",
    "Option",
    "Options",
    "Use",
    "positions_of",
]
