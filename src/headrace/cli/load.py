"""`headrace load`: the rows of a file as documents of a bucket, each row accounted for."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from headrace.cli.connect import CommandError, Target, connected, exit_code_of, exits, put
from headrace.cli.explain import EXIT_FINE, EXIT_INTERRUPTED, EXIT_PROBLEMS
from headrace.cli.items import STANDARD_INPUT, FormatOption, epilog
from headrace.cli.output import OutputFormat, say
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.cli.rows import Seen, WrongRow
    from headrace.client import KvConnection, LoadRow, StatusError

WRONG_SHOWN_MAX = 50
"""So many wrong rows are told one by one; the others are counted."""

PROGRESS_ROWS = 512
_THOUSAND = 1000

EXAMPLES = (
    'echo \'{"type": "user", "id": 7, "name": "Ann"}\' | headrace load - --key "{type}::{id}"',
    "printf 'id,name\\n1,Ann\\n2,Bob\\n' > people.csv && headrace load people.csv --key id --expiry 3600",
)
"""Commands that run as they stand, where a node listens at the default address."""

EPILOG = (
    epilog(EXAMPLES) + "\n  headrace load changes.parquet --key id --connect couchbases://db.example.com --username ann"
)


class RowFormat(StrEnum):
    """What `--format` may be."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


SUFFIXES = {
    ".jsonl": RowFormat.JSONL,
    ".ndjson": RowFormat.JSONL,
    ".json": RowFormat.JSONL,
    ".csv": RowFormat.CSV,
    ".parquet": RowFormat.PARQUET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is to be loaded, and how."""

    file: str
    format: RowFormat
    key: str
    expiry: int
    limit: int | None
    stop_on_error: bool


class _StopError(Exception):
    """A row went wrong, and the user wants no more after it: not what is read already, if the server refused it."""

    def __init__(self, *, refused: bool) -> None:
        super().__init__()
        self.refused = refused


@connected
def load(  # noqa: PLR0913 - each option is a parameter
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file, or - for JSON lines on standard input.")],
    *,
    key: Annotated[
        str, typer.Option("--key", metavar="COLUMN", help="The column that is the key, or a template: {type}::{id}.")
    ],
    format_: Annotated[
        RowFormat | None, typer.Option("--format", help="What the file holds; its suffix tells otherwise.")
    ] = None,
    expiry: Annotated[int, typer.Option(metavar="SECONDS", min=0, help="How long they live; 0 is for ever.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many rows.")] = None,
    stop_on_error: Annotated[
        bool, typer.Option("--stop-on-error", help="Stop at the first row that cannot be loaded.")
    ] = False,
    target: Target,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Load the rows of a file as JSON documents.

    A row that cannot be a document, or that the server refuses, is told with its line and reason, and the load goes on.
    What the server cannot do for the moment is tried again for a minute. The number at the end is of documents that the
    server has acknowledged.

    The exit code is 0 when every row is loaded, 2 when some are not or the file cannot be read, 1 when the server lets
    nobody in, 69 when it does not answer, and 130 after Ctrl-C, which also tells how many documents are in.
    """
    with exits("load"):
        job = _Job(
            file=file,
            format=_format_of(file, format_),
            key=key,
            expiry=expiry,
            limit=limit,
            stop_on_error=stop_on_error,
        )
        with target.open() as node:
            code = _Load(job, node).run(output)
    raise typer.Exit(code)


def _format_of(name: str, chosen: RowFormat | None) -> RowFormat:
    """Tell by its name what a file holds, unless it was told; standard input holds JSON lines."""
    if chosen is not None:
        return chosen
    if name == STANDARD_INPUT:
        return RowFormat.JSONL
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise CommandError(f"{name}: {suffix or 'no suffix'} tells no format ({', '.join(SUFFIXES)}); give --format")
    return SUFFIXES[suffix]


@dataclass(slots=True)
class _Tally:
    """What became of the rows, but for those that are loaded."""

    rows: int = 0
    wrong: int = 0
    started: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        return time.monotonic() - self.started


class _Load:
    """One run of the command."""

    def __init__(self, job: _Job, node: "KvConnection") -> None:
        from headrace.client import Loader, json_beside, wire_expiry  # noqa: PLC0415 - explain needs none of it

        self._job = job
        self._node = node
        self._tally = _Tally()
        self._interrupts = _Interrupts()
        flags, datatype = json_beside(node.features)
        ends = wire_expiry(job.expiry, now=time.time())
        self._loader = Loader(node, refused=self._refused, flags=flags, expiry=ends, datatype=datatype)

    def run(self, output: OutputFormat) -> int:
        """Load, tell what came of it, and give the exit code."""
        code = EXIT_FINE
        try:
            with self._interrupts:
                self._run()
        except _StopError:
            code = EXIT_PROBLEMS
        except KeyboardInterrupt:
            say("interrupted")
            code = EXIT_INTERRUPTED
        except HeadraceError as error:
            say(f"headrace load: {error}")
            code = exit_code_of(error)
        if self._tally.rows or code == EXIT_FINE or output is OutputFormat.JSON:  # else nothing was ever read
            self._tell(output)
        return code or (EXIT_PROBLEMS if self._tally.wrong else EXIT_FINE)

    def _run(self) -> None:
        from headrace.cli.rows import KeyTemplate, Seen  # noqa: PLC0415 - explain needs none of it

        template, seen = KeyTemplate(self._job.key), Seen()
        with _rows(self._job, template, seen) as rows, _bar(seen) as advance:
            try:
                self._read(rows, advance)
            except (_StopError, CommandError) as error:
                with self._interrupts.held:
                    if isinstance(error, _StopError) and error.refused:
                        self._loader.settle()
                    else:  # the rows before the wrong one are good
                        self._loader.finish()
                raise
            except KeyboardInterrupt:
                # What was sent is counted before anything is told; what cannot be counted is told as unsettled.
                with suppress(HeadraceError), self._interrupts.held:
                    self._loader.settle()
                raise

    def _read(self, rows: "Iterator[LoadRow | WrongRow]", advance: Any) -> None:
        from headrace.cli.rows import WrongRow  # noqa: PLC0415 - explain needs none of it

        held = self._interrupts.held
        for row in rows:
            self._tally.rows += 1
            if isinstance(row, WrongRow):
                self._wrong(row.place, row.reason)
            else:
                with held:
                    self._loader.add(row)
            if self._tally.rows % PROGRESS_ROWS == 0:
                advance(self._loader.acknowledged, self._tally)
            if self._tally.rows == self._job.limit:
                break
        with held:
            self._loader.finish()

    def _refused(self, row: "LoadRow", error: "StatusError") -> None:
        self._wrong(row.place, str(error), refused=True)

    def _wrong(self, place: str, reason: str, *, refused: bool = False) -> None:
        self._tally.wrong += 1
        if self._tally.wrong <= WRONG_SHOWN_MAX:
            say(f"{self._job.file}: {place}: {reason}")
        elif self._tally.wrong == WRONG_SHOWN_MAX + 1:
            say(f"{self._job.file}: and more, which are counted only")
        if self._job.stop_on_error:
            raise _StopError(refused=refused)

    def _tell(self, output: OutputFormat) -> None:
        loaded, seconds, unsettled = self._loader.acknowledged, self._tally.seconds(), self._loader.unsettled
        if output is OutputFormat.JSON:
            told = {
                "loaded": loaded,
                "wrong": self._tally.wrong,
                "unsettled": unsettled,
                "seconds": round(seconds, 3),
                "bucket": self._node.bucket,
                "address": str(self._node.address),
            }
            put(json.dumps(told).encode() + b"\n")
            return
        noun = "document" if loaded == 1 else "documents"
        say(
            f"loaded {loaded} {noun} in {seconds:.1f} s ({_rate(loaded, seconds)}) "
            f"into {self._node.bucket} at {self._node.address}"
        )
        if unsettled:
            say(f"of {unsettled} more, which were sent, nobody knows")
        if self._tally.wrong:
            say(f"{self._tally.wrong} of {self._tally.rows} rows were not loaded")


def _rate(count: int, seconds: float) -> str:
    rate = count / max(seconds, 0.001)
    return f"{rate / _THOUSAND:.0f} k/s" if rate >= _THOUSAND else f"{rate:.0f}/s"


@contextmanager
def _rows(job: _Job, key: Any, seen: "Seen") -> "Iterator[Iterator[LoadRow | WrongRow]]":
    from headrace.cli import rows  # noqa: PLC0415 - explain needs none of it

    if job.format is RowFormat.PARQUET:
        if job.file == STANDARD_INPUT:
            raise CommandError("Parquet is read from a file, not from standard input")
        from headrace.cli.parquet import parquet_rows  # noqa: PLC0415 - Arrow takes a tenth of a second

        yield parquet_rows(Path(job.file), key, seen)
        return
    read = rows.json_rows if job.format is RowFormat.JSONL else rows.csv_rows
    if job.file == STANDARD_INPUT:
        if sys.stdin is None:
            raise CommandError("standard input is closed")
        yield read(sys.stdin.buffer, key, seen)
        return
    try:
        with Path(job.file).open("rb") as file:
            seen.total = Path(job.file).stat().st_size or None
            yield read(file, key, seen)
    except OSError as error:
        raise CommandError(f"{job.file} cannot be read: {error.strerror}") from None


@contextmanager
def _bar(seen: "Seen") -> Iterator[Any]:
    """Show how far the load is, if somebody watches."""
    if not sys.stderr.isatty():
        yield lambda _loaded, _tally: None
        return
    columns = (
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[loaded]} documents, {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=None, loaded=0, rate="")

        def advance(loaded: int, tally: _Tally) -> None:
            rate = _rate(loaded, tally.seconds())
            progress.update(task, completed=seen.done, total=seen.total, loaded=loaded, rate=rate)

        yield advance


class _Held:
    """Keeps Ctrl-C until a block has been dealt with; a second one does not wait."""

    def __init__(self) -> None:
        self.inside = False
        self.wanted = False

    def __enter__(self) -> Self:
        self.inside = True
        return self

    def __exit__(self, *_: object) -> None:
        self.inside = False
        if self.wanted:
            self.wanted = False
            raise KeyboardInterrupt

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self.inside and not self.wanted:
            self.wanted = True
            return
        self.wanted = False
        raise KeyboardInterrupt


class _Interrupts:
    """Decides when Ctrl-C takes effect: at once while rows are read, between two blocks while they are sent.

    In the midst of a block, nobody could tell which of its rows the server has.
    """

    def __init__(self) -> None:
        self.held = _Held()
        self._before: Any = None

    def __enter__(self) -> Self:
        with suppress(ValueError):  # not in the main thread, where no signal comes
            self._before = signal.signal(signal.SIGINT, self.held.interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
