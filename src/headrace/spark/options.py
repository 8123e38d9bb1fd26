"""Options of a source or sink, read and checked by the one table in `headrace.spark.option_table`.

Spark hands options over as text and minds no case. A name that is not in the table, or a value that cannot be, is an
`OptionError` that says what would do. Options that Spark's Kafka source has are called as they are there.
"""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

from headrace.client import ChangeOptions, OptionError, Positions, PositionsError
from headrace.spark.option_table import (
    CHANGES,
    DOCUMENTS,
    EARLIEST,
    KINDS,
    LATEST,
    OFFSETS,
    OPTIONS,
    Option,
    Use,
    WrongTextError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    except WrongTextError as wrong:
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
        raise OptionError(f"option {option} is {OFFSETS}")
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
