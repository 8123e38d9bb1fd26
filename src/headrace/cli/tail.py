"""`headrace tail`: the changes of a bucket as they happen."""

import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import CommandError, Target, connected, exits, put, tap_connection
from headrace.cli.explain import EXIT_FINE, EXIT_INTERRUPTED
from headrace.cli.items import FormatOption, epilog
from headrace.cli.output import OutputFormat, say
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client import Change, ChangeReader, TapReader

EXIT_TERMINATED = 143
"""The exit code after SIGTERM, as shells give it."""

EVENTS = ("mutation", "deletion", "expiration", "flush", "system", "rollback", "seqno_advanced")
NOW, START = "now", "start"

EXAMPLES = (
    "headrace tail --from start --until-now",
    "headrace tail --from start --until-now --key-prefix user:: --output json --limit 5",
    "headrace tail --from start --until-now --save positions.json && headrace tail --save positions.json --until-now",
)
"""Commands that run as they stand, where a node listens at the default address."""

EPILOG = (
    epilog(EXAMPLES)
    + "\n  headrace tail --connect couchbases://db1.example.com,db2.example.com --bucket orders --username ann"
    + "\n  headrace tail tap://old.example.com:11210"
)

WAIT_S = 0.25
"""How long a signal may wait to be seen."""

SAVE_S, RATE_S = 5.0, 1.0
"""How often positions are saved, and the rate is shown."""

WRITE_BYTES = 64 * 1024
_VBUCKET_MAX = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which changes are shown."""

    prefix: bytes
    pattern: "re.Pattern[bytes] | None"
    events: frozenset[str]

    def shows(self, change: "Change") -> bool:
        if self.events and change.event not in self.events:
            return False
        if not self.prefix and self.pattern is None:
            return True
        key = change.key
        if not isinstance(key, bytes):
            return False
        return key.startswith(self.prefix) and (self.pattern is None or self.pattern.search(key) is not None)


@connected
def tail(  # noqa: PLR0913 - each option is a parameter
    *,
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="[ADDRESS]",
            help="The server, in place of --connect; tap://host:port reads an old one by TAP.",
            show_default=False,
        ),
    ] = None,
    target: Target,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="now|start|FILE",
            help="Where to begin; a file is one that --save wrote. By default the file of --save if it is there, "
            "else now.",
            show_default=False,
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep in this file where to go on, for --from.")
    ] = None,
    until_now: Annotated[
        bool, typer.Option("--until-now", help="Stop when what was there at the beginning is shown.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many changes.")] = None,
    vbuckets: Annotated[
        str | None, typer.Option("--vbuckets", metavar="LIST", help="Only these, as in 0,7,100-199.")
    ] = None,
    key_prefix: Annotated[str, typer.Option("--key-prefix", metavar="TEXT", help="Only keys that begin so.")] = "",
    key: Annotated[str | None, typer.Option("--key", metavar="REGEX", help="Only keys in which this is found.")] = None,
    event: Annotated[
        list[str] | None,
        typer.Option("--event", metavar="NAME", help=f"Only these; may be given again: {', '.join(EVENTS)}."),
    ] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option(
            "--collection",
            metavar="SCOPE.NAME",
            help="Only these collections; may be given again; * for all. Without it, what is in none of them.",
        ),
    ] = None,
    no_value: Annotated[bool, typer.Option("--no-value", help="Ask for changes without their values.")] = False,
    xattrs: Annotated[bool, typer.Option("--xattrs", help="Ask for extended attributes.")] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Print the changes of a bucket as they happen, from all its nodes.

    A line tells the time of the change, what happened, vbucket and seqno, the key and the value. A rollback is a line
    as well: the server's history goes on from its seqno, and what was printed of that vbucket after it is gone. With
    --output json, each line is an object that tells everything; a key or value that is not UTF-8 stands in key_base64
    or value_base64. What a filter leaves out counts as seen for --save.

    Connections that break are made again, and nothing is printed twice because of it. The file of --save is written
    every few seconds and at the end, after what it speaks of was printed.

    A server that is older than DCP is read by TAP, with tap://host:port, or taps:// for TLS. TAP has no seqnos and no
    positions: after a connection broke, all is printed again with --from start; from now on, changes may be missing,
    and that is said.

    The exit code is 0 at the end of --until-now or --limit, 1 when the server refuses, 2 for a wrong option or file, 69
    when no server answers, 130 after Ctrl-C and 143 after SIGTERM.
    """
    with exits("tail"):
        wanted = _Wanted(
            prefix=key_prefix.encode(errors="surrogateescape"), pattern=_pattern(key), events=_events(event or [])
        )
        asked: dict[str, Any] = {"no_value": no_value, "xattrs": xattrs, "vbuckets": _numbers(vbuckets)}
        asked["collections"] = () if collection == ["*"] else tuple(collection) if collection else None
        target = _addressed(target, address)
        tap = tap_connection(target.connect)
        reader: ChangeReader | TapReader
        if tap is None:
            reader = _reader(target, start, save, until_now=until_now, asked=asked)
        else:
            reader = _tap_reader(target, tap, start, save, until_now=until_now, asked=asked)
        code = _Tail(reader, wanted, limit, save, output).run()
    raise typer.Exit(code)


def _addressed(target: Target, address: str | None) -> Target:
    """Take the address from where it was given: it may stand alone."""
    if address is None:
        return target
    if target.connect not in {Target().connect, address}:
        raise CommandError("give the server once: as the address or as --connect")
    return replace(target, connect=address)


def _tap_reader(
    target: Target, connection: str, start: str | None, save: Path | None, *, until_now: bool, asked: dict[str, Any]
) -> "TapReader":
    from headrace.client import TapReader  # noqa: PLC0415 - explain needs none of it

    if save is not None or start not in {None, NOW, START}:
        raise CommandError("TAP has no positions: --save and --from FILE are for servers that are read by DCP")
    if asked["xattrs"] or asked["collections"] is not None:
        raise CommandError("TAP knows no collections and no extended attributes: leave --collection and --xattrs out")
    options = target.change_options(connection, name="headrace-tail", **asked)
    return TapReader(options, start="beginning" if start == START else NOW, until=NOW if until_now else None)


def _reader(
    target: Target, start: str | None, save: Path | None, *, until_now: bool, asked: dict[str, Any]
) -> "ChangeReader":
    from headrace.client import ChangeReader, Positions  # noqa: PLC0415 - explain needs none of it

    options = target.change_options(target.connect, name="headrace-tail", **asked)
    if start is None:
        start = str(save) if save is not None and save.exists() else NOW
    begin: str | Positions = "beginning" if start == START else NOW if start == NOW else Positions.load(start)
    return ChangeReader(options, start=begin, until=NOW if until_now else None)


class _Tail:
    """One run of the command."""

    def __init__(
        self,
        reader: "ChangeReader | TapReader",
        wanted: _Wanted,
        limit: int | None,
        save: Path | None,
        output: OutputFormat,
    ) -> None:
        from headrace.cli.change_lines import json_line, text_line  # noqa: PLC0415 - explain needs none of it

        self._reader = reader
        self._wanted = wanted
        self._limit = limit
        self._save = save
        self._line = json_line if output is OutputFormat.JSON else text_line
        self._lines: list[bytes] = []
        self._bytes = 0
        self._shown = 0
        self._saved_at = self._told_at = time.monotonic()
        self._told = 0
        self._torn = False
        """Whether lines were given to standard output that may not have gone out."""
        self._status = _Status()

    def run(self) -> int:
        """Print until there is an end to it; give the exit code."""
        code = EXIT_FINE
        self._check_save()
        with self._reader as reader, _signals() as signals:
            try:
                while not reader.is_done:
                    if signals:
                        code = EXIT_TERMINATED if signals[-1] == signal.SIGTERM else EXIT_INTERRUPTED
                        break
                    if self._shown == self._limit:
                        break
                    # Lines wait for each other while there are more at hand, and for nothing else.
                    found = reader.next_change(0.0 if self._lines else WAIT_S)
                    if found is not None:
                        self._take(found)
                    if found is None or self._bytes >= WRITE_BYTES:
                        self._write()
                    self._now_and_then()
            finally:
                self._status.clear()
                failed = sys.exc_info()[0]
                # What was taken and not printed must be shown again: only the reader's own errors leave nothing so.
                if not self._torn and (failed is None or issubclass(failed, HeadraceError)):
                    self._write()
                    self._keep()
        return code

    def _take(self, found: Any) -> None:
        from headrace.client import Change, RolledBack, StreamEnded, TapInterrupted  # noqa: PLC0415 - as above

        if isinstance(found, Change):
            if not self._wanted.shows(found):
                return
        elif isinstance(found, RolledBack):
            if self._wanted.events and "rollback" not in self._wanted.events:
                return
        else:
            if isinstance(found, StreamEnded) and not found.finished:
                self._status.clear()
                say(f"headrace tail: {found.host}: vbucket {found.vbucket}: the stream ended ({found.reason})")
            elif isinstance(found, TapInterrupted):
                self._status.clear()
                follows = (
                    ": changes may be missing here" if found.misses else ": all comes again" if found.repeats else ""
                )
                say(f"headrace tail: {found.reason}{follows}")
            return
        self._shown += 1
        line = self._line(found)
        self._lines.append(line)
        self._bytes += len(line)

    def _write(self) -> None:
        if self._lines:
            self._status.clear()
            lines, self._lines, self._bytes = self._lines, [], 0
            self._torn = True
            put(b"".join(lines))
            self._torn = False

    def _now_and_then(self) -> None:
        now = time.monotonic()
        if self._save is not None and now >= self._saved_at + SAVE_S:
            self._saved_at = now
            self._write()
            self._keep()
        if now >= self._told_at + RATE_S:
            rate = (self._shown - self._told) / (now - self._told_at)
            self._told_at, self._told = now, self._shown
            self._status.show(f"{self._shown} changes, {rate:.0f}/s")

    def _check_save(self) -> None:
        from headrace.client import ChangeReader  # noqa: PLC0415 - explain needs none of it

        if self._save is not None and isinstance(self._reader, ChangeReader):
            self._reader.positions.check_path(self._save)

    def _keep(self) -> None:
        from headrace.client import ChangeReader  # noqa: PLC0415 - explain needs none of it

        if self._save is None or not isinstance(self._reader, ChangeReader):
            return
        # Without a vbucket, no server told yet what there is: such a file would mean the beginning, not now.
        positions = self._reader.positions
        if positions.vbuckets:
            positions.save(self._save)


class _Status:
    """A line at the bottom of a terminal, rewritten in place; nothing where nobody watches."""

    def __init__(self) -> None:
        self._watched = sys.stderr.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        """Write it."""
        if self._watched:
            self._put(f"\r\x1b[K{text}")
            self._shown = True

    def clear(self) -> None:
        """Take it away, so that lines have the terminal for themselves."""
        if self._shown:
            self._put("\r\x1b[K")
            self._shown = False

    @staticmethod
    def _put(text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Note Ctrl-C and SIGTERM, to be seen between two changes; a second one does not wait."""
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread, where no signal comes
        for each in (signal.SIGINT, signal.SIGTERM):
            before[each] = signal.signal(each, note)
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pattern(text: str | None) -> "re.Pattern[bytes] | None":
    if text is None:
        return None
    try:
        return re.compile(text.encode(errors="surrogateescape"))
    except re.error as error:
        raise CommandError(f"--key is no regular expression: {error}") from None


def _events(names: list[str]) -> frozenset[str]:
    for name in names:
        if name not in EVENTS:
            raise CommandError(f"--event is one of {', '.join(EVENTS)}, not {name!r}")
    return frozenset(names)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        range_of = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        first, last = (int(range_of[1]), int(range_of[2] or range_of[1])) if range_of is not None else (1, 0)
        if not first <= last <= _VBUCKET_MAX:
            raise CommandError(f"--vbuckets is a list as in 0,7,100-199, not {text!r}")
        found.extend(range(first, last + 1))
    return tuple(found)
