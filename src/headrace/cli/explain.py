"""`headrace explain`: what captured bytes mean, message by message."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from headrace.cli.output import (
    EXIT_OUTPUT,
    JsonOutput,
    Output,
    OutputError,
    OutputFormat,
    TextOutput,
    say,
    silence,
)
from headrace.explain import (
    STANDARD_INPUT,
    Comment,
    Explained,
    Fault,
    InputError,
    Note,
    OnRead,
    Shown,
    TextStyle,
    check_names,
    input_bytes,
    is_hex,
    read_inputs,
)
from headrace.explain import explain as explain_events
from headrace.wire import Dialect

EXIT_FINE, EXIT_PROBLEMS, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 0, 2, 130, 141
PROGRESS_BYTES_MIN = 50_000_000
"""A smaller input is done before a progress bar could be read."""

_MUTATION = (
    "805700051f000210000000290000121000000000000000000000000000000004 "
    "\\\n      00000000000000010000000000000000000000000000006865 6c6c6f 776f726c64"
)
_TAP_CONNECT = "80400005 04000000 00000009 00000000 0000000000000000 00000000 6e6f646531"
EXAMPLES = (
    f"headrace explain {_MUTATION}",
    f"headrace explain --picture {_TAP_CONNECT}",
    f"echo {_TAP_CONNECT} | \\\n      headrace explain --output json",
    f"echo {_MUTATION} | \\\n      xxd -r -p | headrace explain --dialect dcp -",
)
"""Commands that run as they stand; the messages are drawn in the protocol documents."""

EPILOG = (
    "\b\nExamples:\n"
    + "\n".join(f"  {example}" for example in EXAMPLES)
    + "\n  headrace explain --port 11210 --only mutation --limit 10 capture.pcap"
)


class DialectChoice(StrEnum):
    """What `--dialect` may be."""

    AUTO = "auto"
    TAP = "tap"
    UPR_DRAFT = "upr-draft"
    UPR = "upr"
    DCP = "dcp"


@dataclass(slots=True)
class _Tally:
    """What was shown, for the last line and the exit code."""

    messages: int = 0
    with_problems: int = 0
    faults: int = 0

    def summary(self) -> str:
        noun = "message" if self.messages == 1 else "messages"
        return f"{self.messages} {noun}, {self.with_problems} with problems"

    def exit_code(self) -> int:
        return EXIT_PROBLEMS if self.with_problems or self.faults else EXIT_FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What the user wants to see, and how it is to be read."""

    dialect: Dialect | None
    port: int | None
    only: list[str] | None
    limit: int | None


def explain(  # noqa: PLR0913 - each option is a parameter
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT",
            show_default=False,
            help="Hex (spaces, colons and 0x are fine), a file, or - for standard input, which is also what "
            "no argument means. A file may be pcap, pcapng, a JSON-lines capture, hex, a hex dump or binary; "
            "its content tells. Where a word is both hex and an existing file, it is the file.",
        ),
    ] = None,
    *,
    dialect: Annotated[
        DialectChoice, typer.Option(help="How to read opcodes 0x40-0x65; auto judges each connection.")
    ] = DialectChoice.AUTO,
    output: Annotated[
        OutputFormat, typer.Option(help="Tables for people, or one JSON object per line.")
    ] = OutputFormat.TEXT,
    picture: Annotated[bool, typer.Option("--picture", help="Draw the bytes above each table.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show long values whole.")] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The server's port in a packet capture; others are left out."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Show only messages of this name, e.g. mutation. Repeatable."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many messages.")] = None,
) -> None:
    """Explain captured bytes: every field of every message, its offset, value and meaning.

    Problems are lines with a "!" (text) or entries of "problems" (json). The exit code is 0 when every
    message shown is in order, and 2 when one has a problem, or the input cannot be read. Messages that --only,
    --limit or --port leave out do not count.
    """
    arguments = inputs or [STANDARD_INPUT]
    chosen = None if dialect is DialectChoice.AUTO else Dialect(dialect)
    style = TextStyle(picture=picture, full=full)
    try:
        shown_by = TextOutput(style) if output is OutputFormat.TEXT else JsonOutput()
        code = _explain(arguments, _Choice(dialect=chosen, port=port, only=only, limit=limit), shown_by)
    except BrokenPipeError:
        silence(sys.stdout)
        code = EXIT_BROKEN_PIPE
    except OutputError as error:
        silence(sys.stdout)
        say(f"headrace explain: {error}")
        code = EXIT_OUTPUT
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    raise typer.Exit(code)


def _explain(arguments: list[str], choice: _Choice, output: Output) -> int:
    """Show what the arguments hold; return the exit code."""
    tally = _Tally()
    try:
        wanted = check_names(choice.only) if choice.only else None
        if arguments == [STANDARD_INPUT] and _typed():
            output.say("Reading hex from the terminal; end it with Ctrl-D.")
        with _progress(arguments) as on_read:
            events = read_inputs(arguments, port=choice.port, on_read=on_read)
            shown: Iterable[Shown] = explain_events(events, choice.dialect)
            if all(map(is_hex, arguments)):  # a command line is short: all of it fits in memory
                shown = list(shown)
                if sum(isinstance(each, Explained) for each in shown) == 1:
                    output.omit_places()
            _show(shown, output, tally, wanted=wanted, limit=choice.limit)
        output.say(tally.summary())
    except InputError as error:
        output.say(f"headrace explain: {error}")
        return EXIT_PROBLEMS
    return tally.exit_code()


def _show(
    shown: Iterable[Shown], output: Output, tally: _Tally, *, wanted: frozenset[str] | None, limit: int | None
) -> None:
    for each in shown:
        if isinstance(each, Explained):
            if wanted is not None and each.message not in wanted:
                continue
            output.message(each)
            tally.messages += 1
            tally.with_problems += bool(each.problems)
            if tally.messages == limit:
                return
        elif isinstance(each, Comment):
            output.comment(each)
        elif isinstance(each, Note):
            output.say(f"note: {each.text}")
        else:
            assert isinstance(each, Fault)
            output.say(f"{each.origin}: {each.text}")
            tally.faults += 1


def _typed() -> bool:
    return _is_terminal(sys.stdin)


def _watched() -> bool:
    return _is_terminal(sys.stderr) and not _is_terminal(sys.stdout)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


@contextmanager
def _progress(arguments: list[str]) -> Iterator[OnRead | None]:
    """Show a bar for a large input, if somebody watches and the tables go elsewhere."""
    total = input_bytes(arguments) if _watched() else 0
    if total < PROGRESS_BYTES_MIN:
        yield None
        return
    columns = (BarColumn(), TaskProgressColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=total)
        yield lambda count: progress.advance(task, count)
