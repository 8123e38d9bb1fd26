"""What the examples share: where changes are read from, and how a program is begun and ended.

A bucket is named by an address. `couchbase://host:port` is followed by DCP: streams that break are resumed without a
gap. `tap://host:port` is for servers, and habits, that are older: TAP has no positions, so what was missed while a
connection was broken is missed for good. A program that must not miss anything ends then, and begins anew when it is
started again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.client import Address, Change, ChangeOptions, ChangeReader, StreamStarted
from headrace.errors import HeadraceError
from headrace.pipelines.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.client import Positions

TAP = "tap://"
BUCKET = "couchbase://127.0.0.1:11210"


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Make a parser that shows the program's own words."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_login(parser: argparse.ArgumentParser) -> None:
    """Let a program be told which bucket, and as whom."""
    parser.add_argument("--bucket", default="default", metavar="NAME", help="the bucket; %(default)s by default")
    parser.add_argument("--username", metavar="NAME", help="the user, where the server wants one")
    parser.add_argument("--password-env", metavar="VARIABLE", help="the environment variable that holds the password")


def add_source(parser: argparse.ArgumentParser) -> None:
    """Let a program be told where the changes are."""
    parser.add_argument(
        "source",
        nargs="?",
        default=BUCKET,
        metavar="ADDRESS",
        help=f"couchbase://HOST:PORT, or {TAP}HOST:PORT for an old server; %(default)s by default",
    )
    add_login(parser)


def password_of(args: argparse.Namespace) -> str | None:
    """Find the password where the command line says; it is never an argument, which other users can see."""
    if (args.username is None) != (args.password_env is None):
        sys.exit("--username and --password-env go together")
    if args.password_env is not None and args.password_env not in os.environ:
        sys.exit(f"there is no environment variable {args.password_env}")
    return None if args.password_env is None else os.environ[args.password_env]


def server_of(address: str, args: argparse.Namespace) -> Server:
    """Make what `headrace.pipelines` takes for a server."""
    return Server(
        address=Address.parse(address), bucket=args.bucket, username=args.username, password=password_of(args)
    )


class MissedError(HeadraceError):
    """A TAP connection broke, and nobody will tell what changed meanwhile."""


class Changes:
    """The changes of a bucket, and what happens to their streams; it says when all of them run."""

    def __init__(self, args: argparse.Namespace, *, start: str | Positions, **options: Any) -> None:
        self.address: str = args.source
        self.by_tap = self.address.startswith(TAP)
        told = ChangeOptions(
            connection="couchbase://" + self.address.removeprefix(TAP) if self.by_tap else self.address,
            bucket=args.bucket,
            username=args.username,
            password=password_of(args),
            keys="binary",
            give_up_s=0.0 if self.by_tap else 60.0,
            **options,
        )
        # The module is asked for its reader of TAP only by those who need one.
        reader = import_module("headrace.client").TapReader if self.by_tap else ChangeReader
        self._reader: Any = reader(told, start=start)
        self._started: set[int] = set()
        self._is_told = False

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def positions(self) -> Positions:
        """Where to go on after what was given; TAP has none."""
        found: Positions = self._reader.positions
        return found

    def next(self, wait_s: float) -> Any:
        """Give the next change, or what happened to a stream; None when there is none for so long."""
        found = self._reader.next_change(wait_s)
        if isinstance(found, StreamStarted):
            self._started.add(found.vbucket)
        if not self._is_told and (found is None if self.by_tap else self._all_run()):
            self._is_told = True
            print(f"following {self.address}", flush=True)
        return found

    def check(self, found: Any) -> None:
        """Raise where changes were missed: TAP tells of nothing else but changes and broken connections."""
        if self.by_tap and found is not None and not isinstance(found, Change):
            raise MissedError(f"{self.address}: the connection broke, and changes may be missed: start it again")

    def _all_run(self) -> bool:
        return 0 < len(self.positions.vbuckets) <= len(self._started)


def key_of(change: Change) -> bytes:
    """Give the key of a change: `Changes` asks for bytes, since a key need not be text."""
    assert change.key is None or isinstance(change.key, bytes)
    return change.key or b""


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C a question that a job asks now and then: whether it is to end."""
    seen: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: seen.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(work: Callable[[], None]) -> None:
    """Do the work until Ctrl-C; an error that has a sentence for people ends the program with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what `kill` sends is no other end than Ctrl-C
    try:
        work()
    except KeyboardInterrupt:
        print("stopped", flush=True)
    except BrokenPipeError:  # whoever read along, as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except HeadraceError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
