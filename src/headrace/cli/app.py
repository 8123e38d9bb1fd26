"""The program `headrace` and its commands."""

import os
import sys
from pathlib import Path
from traceback import walk_tb
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli.chaos import chaos
from headrace.cli.compare import EPILOG as COMPARE_EPILOG
from headrace.cli.compare import compare
from headrace.cli.demo import EPILOG as DEMO_EPILOG
from headrace.cli.demo import demo
from headrace.cli.explain import EPILOG, explain
from headrace.cli.failover import EPILOG as FAILOVER_EPILOG
from headrace.cli.failover import failover
from headrace.cli.items import DELETE_EXAMPLES, GET_EXAMPLES, SET_EXAMPLES, delete, epilog, get, set_
from headrace.cli.load import EPILOG as LOAD_EPILOG
from headrace.cli.load import load
from headrace.cli.move import EPILOG as MOVE_EPILOG
from headrace.cli.move import move
from headrace.cli.node import EPILOG as NODE_EPILOG
from headrace.cli.node import EXIT_INTERRUPTED, node
from headrace.cli.output import EXIT_OUTPUT, say, silence
from headrace.cli.replicate import EPILOG as REPLICATE_EPILOG
from headrace.cli.replicate import replicate
from headrace.cli.run import run
from headrace.cli.tail import EPILOG as TAIL_EPILOG
from headrace.cli.tail import tail
from headrace.cli.user import user

app = typer.Typer(
    name="headrace",
    help="Change streams of the memcached/Couchbase family: TAP, UPR and DCP.",
    no_args_is_help=True,
    rich_markup_mode=None,  # help is full of brackets and hex: no markup
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def headrace(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Change streams of the memcached/Couchbase family: TAP, UPR and DCP."""


app.command(epilog=EPILOG)(explain)
app.command(epilog=NODE_EPILOG)(node)
app.command("get", epilog=epilog(GET_EXAMPLES))(get)
app.command("set", epilog=epilog(SET_EXAMPLES))(set_)
app.command("delete", epilog=epilog(DELETE_EXAMPLES))(delete)
app.command(epilog=LOAD_EPILOG)(load)
app.command(epilog=TAIL_EPILOG)(tail)
app.command(epilog=REPLICATE_EPILOG)(replicate)
app.command(epilog=MOVE_EPILOG)(move)
app.command(epilog=FAILOVER_EPILOG)(failover)
app.command(epilog=COMPARE_EPILOG)(compare)
app.command(epilog=DEMO_EPILOG)(demo)
app.add_typer(run, name="run")
app.add_typer(user, name="user")
app.add_typer(chaos, name="chaos")


def _open_standard_streams() -> None:
    """Let what the shell closed (`>&-`) lead nowhere.

    Else the next file or socket gets the number 0, 1 or 2: libuv aborts over that, and what a library writes to its
    standard error would go among the data. Python keeps `sys.stdout` None, so that a command knows.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)


def _is_of_output(error: OSError) -> bool:
    """Whether it was raised where typer prints. The stream itself does not tell: it forgets what it could not write."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return frame.f_code.co_name == "echo" and frame.f_globals["__name__"].startswith(("typer.", "click."))


def main() -> None:
    """Run the program; the console script and `python -m headrace` both come here."""
    _open_standard_streams()
    if sys.stderr is None:  # closed by the shell (2>&-): words go nowhere, and never among the data
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open to the end
    try:
        app(prog_name="headrace")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except RuntimeError as error:  # Python wraps what hits it while it makes a class
        if isinstance(error.__cause__, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        raise
    except OSError as error:  # a command has a seam of its own: this is help or the version on a full disk
        if not _is_of_output(error):  # or a fault of ours
            say(f"headrace: {error}")
            sys.exit(1)
        silence(sys.stdout)
        say(f"headrace: standard output cannot be written: {os.strerror(error.errno or 0)}")
        sys.exit(EXIT_OUTPUT)
