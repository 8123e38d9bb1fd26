"""`headrace compare`: whether two places hold the same items."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import (
    EXIT_REFUSED,
    BucketOption,
    CommandError,
    PasswordEnvOption,
    PasswordFileOption,
    Target,
    TimeoutOption,
    TlsCaOption,
    UsernameOption,
    exits,
    put,
)
from headrace.cli.explain import EXIT_FINE
from headrace.cli.items import FormatOption, epilog
from headrace.cli.output import OutputFormat
from headrace.cli.pair import (
    StatusLine,
    ToPasswordEnvOption,
    ToPasswordFileOption,
    ToTlsCaOption,
    ToUsernameOption,
)

if TYPE_CHECKING:
    from headrace.pipelines.compare import Comparison, Found, Progress
    from headrace.pipelines.sides import Side

EXAMPLES = (
    "headrace compare couchbase://127.0.0.1:11210/default delta:./travel",
    "headrace compare couchbase://127.0.0.1:11210/default couchbase://127.0.0.1:11210/default --output json",
)

EPILOG = epilog(EXAMPLES)
EXIT_DIFFERENT = EXIT_REFUSED
TELL_S = 0.5
_VALUE_SHOWN = 60

SideArgument = "couchbase://host:port/bucket, couchbases:// for TLS, delta:PATH or parquet:PATH."


def compare(  # noqa: PLR0913 - each option is a parameter
    first: Annotated[str, typer.Argument(metavar="A", help=f"What should be: {SideArgument}")],
    second: Annotated[str, typer.Argument(metavar="B", help="What is compared with it, likewise.")],
    *,
    bucket: BucketOption = "default",
    username: UsernameOption = None,
    password_env: PasswordEnvOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    to_username: ToUsernameOption = None,
    to_password_env: ToPasswordEnvOption = None,
    to_password_file: ToPasswordFileOption = None,
    to_tls_ca: ToTlsCaOption = None,
    timeout_s: TimeoutOption = 10.0,
    collection: Annotated[
        list[str] | None,
        typer.Option(
            "--collection",
            metavar="SCOPE.NAME",
            help="Of buckets, these collections; may be given again; * for all. Without it, what is in none of them.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="COLUMN", help="Do not compare this: value, cas, rev, flags, expiry, datatype."
        ),
    ] = None,
    examples: Annotated[int, typer.Option(min=0, metavar="N", help="Show so many of each kind of difference.")] = 5,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Say whether two places hold the same items: buckets, tables, logs of changes.

    An item is missing where only the first has it, extra where only the second has it, and stale where both have it
    with another value, CAS, revision, flags, expiry or datatype. A bucket is read by DCP, vbucket by vbucket, up to
    where it is at that moment; while somebody writes to it, what was written in between shows as a difference. A log of
    changes is compared by the items that it leaves.

    An option for users holds for both, unless its form with --to- says something else for the second.

    The exit code is 0 when both are equal, 1 when they are not, 2 for a wrong option or path or when a server refuses,
    69 when no server answers, and 130 after Ctrl-C.
    """
    with exits("compare"), _refusals():
        wanted = _Wanted(collection, bucket, timeout_s)
        told = to_password_env is not None or to_password_file is not None
        one = wanted.side(first, username, (password_env, password_file), tls_ca)
        two = wanted.side(
            second,
            to_username or username,
            (to_password_env, to_password_file) if told else (password_env, password_file),
            to_tls_ca or tls_ca,
        )
        found = _compared(one, two, ignore or [], examples)
        put((_as_json(found) if output is OutputFormat.JSON else _as_text(found)).encode())
    raise typer.Exit(EXIT_FINE if found.is_equal else EXIT_DIFFERENT)


@contextmanager
def _refusals() -> Iterator[None]:
    """Let a server's no have another exit code than a difference."""
    from headrace.client import StatusError  # noqa: PLC0415 - explain needs none of it

    try:
        yield
    except StatusError as error:
        raise CommandError(str(error)) from None


class _Wanted:
    """What the places are opened with."""

    def __init__(self, collection: list[str] | None, bucket: str, timeout_s: float) -> None:
        self._collections = () if collection == ["*"] else tuple(collection) if collection else None
        self._bucket = bucket
        self._timeout_s = timeout_s

    def side(self, text: str, username: str | None, password: tuple[Any, Any], tls_ca: Any) -> "Side":
        """Open what a text names."""
        from headrace.client import ChangeOptions  # noqa: PLC0415 - explain needs none of it
        from headrace.pipelines.sides import BucketSide, DeltaSide, LogSide  # noqa: PLC0415
        from headrace.pipelines.tables import Kind, Place  # noqa: PLC0415

        if not text.startswith(("couchbase://", "couchbases://")):
            if not text.startswith(("delta:", "parquet:")):
                raise CommandError(f"{text!r} is no place: {SideArgument}")
            place = Place.parse(text)
            return DeltaSide(place.path) if place.kind is Kind.DELTA else LogSide(place.path)
        scheme, _, rest = text.partition("://")
        hosts, _, bucket = rest.partition("/")
        target = Target(
            connect=f"{scheme}://{hosts}",
            bucket=bucket or self._bucket,
            username=username,
            password_env=password[0],
            password_file=password[1],
        )
        return BucketSide(
            ChangeOptions(
                connection=target.connect,
                bucket=target.bucket,
                username=username,
                password=target.password(),
                tls_ca=str(tls_ca) if tls_ca is not None and scheme == "couchbases" else None,
                timeout_s=self._timeout_s,
                collections=self._collections,
            )
        )


def _compared(one: "Side", two: "Side", ignored: list[str], examples: int) -> "Comparison":
    from headrace.pipelines.compare import compare as compare_sides  # noqa: PLC0415 - explain needs none of it
    from headrace.pipelines.sides import COMPARED  # noqa: PLC0415

    for name in ignored:
        if name not in COMPARED:
            raise CommandError(f"--ignore is one of {', '.join(COMPARED)}, not {name!r}")
    line = StatusLine()
    told_at = time.monotonic()

    def tell(progress: "Progress") -> None:
        nonlocal told_at
        if time.monotonic() >= told_at + TELL_S:
            told_at = time.monotonic()
            line.show(f"{progress.rows} rows, {progress.done} of {progress.groups} groups of vbuckets compared")

    try:
        return compare_sides(one, two, examples=examples, ignored=ignored, tell=tell)
    finally:
        line.clear()


def _as_text(found: "Comparison") -> str:
    if found.is_equal:
        return f"equal: {found.equal} items in {found.first} and in {found.second}\n"
    lines = [
        f"different: {found.first_items} items in {found.first}, {found.second_items} in {found.second}",
        f"equal: {found.equal}",
    ]
    for name, kind, what in (
        ("missing", found.missing, f"not in {found.second}"),
        ("extra", found.extra, f"not in {found.first}"),
        ("stale", found.stale, "not the same: " + ", ".join(f"{name} in {n}" for name, n in found.differing.items())),
    ):
        if kind.count:
            lines.append(f"{name}: {kind.count} {what}")
            lines += [f"  {_example(each)}" for each in kind.examples]
    return "\n".join(lines) + "\n"


def _example(told: dict[str, Any]) -> str:
    key = _printable(told["key"], 1000)
    where = "" if told["collection"] == "_default" else f"{told['scope']}.{told['collection']} "
    differing = [
        f"{name} {_shown(first)} / {_shown(second)}" for name, (first, second) in told.get("differing", {}).items()
    ]
    return f"{where}{key}" + (": " + ", ".join(differing) if differing else "")


def _shown(value: Any) -> str:
    return _printable(value, _VALUE_SHOWN) if isinstance(value, bytes) else str(value)


def _printable(data: bytes, characters_max: int) -> str:
    text = data[: 4 * characters_max].decode(errors="backslashreplace")
    cut = text[:characters_max] + "…" if len(text) > characters_max else text
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in cut)  # it goes to terminals


def _as_json(found: "Comparison") -> str:
    def kind(each: "Found") -> dict[str, Any]:
        return {"count": each.count, "examples": [_plain_example(one) for one in each.examples]}

    told = {
        "equal": found.is_equal,
        "first": {"place": found.first, "items": found.first_items},
        "second": {"place": found.second, "items": found.second_items},
        "same": found.equal,
        "missing": kind(found.missing),
        "extra": kind(found.extra),
        "stale": {**kind(found.stale), "differing": found.differing},
    }
    return json.dumps(told) + "\n"


def _plain_example(told: dict[str, Any]) -> dict[str, Any]:
    plain = {"scope": told["scope"], "collection": told["collection"], **_bytes_told("key", told["key"])}
    if "differing" in told:
        plain["differing"] = {
            name: [_plain_value(first), _plain_value(second)] for name, (first, second) in told["differing"].items()
        }
    return plain


def _plain_value(value: Any) -> Any:
    return _bytes_told("text", value) if isinstance(value, bytes) else value


def _bytes_told(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


__all__ = ["EPILOG", "EXAMPLES", "compare"]
