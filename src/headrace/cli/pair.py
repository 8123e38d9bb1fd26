"""What the commands share that join two servers: their options, and how they are stopped.

An option holds for both servers, unless its form with `--to-` says something else for the second.
"""

import dataclasses
import functools
import inspect
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from headrace.cli.connect import (
    BucketOption,
    CommandError,
    PasswordEnvOption,
    PasswordFileOption,
    Target,
    TimeoutOption,
    TlsCaOption,
    UsernameOption,
    tap_connection,
)

if TYPE_CHECKING:
    from headrace.client import ChangeOptions
    from headrace.pipelines.servers import Server

EXIT_NOT_DONE = 75
"""The exit code for what may be tried again, and left everything as it was: EX_TEMPFAIL of sysexits.h."""

VBUCKETS_MAX = 1024

_WITH_TLS = ("couchbases://", "taps://")
_ADDRESS = "couchbase://host:port, couchbases://host:port for TLS, or host:port"
FromOption = Annotated[
    str, typer.Option("--from", metavar="ADDRESS", help=f"The server that has the changes: {_ADDRESS}.")
]
ToOption = Annotated[str, typer.Option("--to", metavar="ADDRESS", help="The server that gets them.")]
ToBucketOption = Annotated[
    str | None, typer.Option("--to-bucket", metavar="NAME", help="The bucket at the second server, if it has another.")
]
ToUsernameOption = Annotated[
    str | None, typer.Option("--to-username", metavar="NAME", help="The user at the second server, if it is another.")
]
ToPasswordEnvOption = Annotated[
    str | None, typer.Option("--to-password-env", metavar="VARIABLE", help="The variable that holds that password.")
]
ToPasswordFileOption = Annotated[
    Path | None, typer.Option("--to-password-file", metavar="FILE", help="The file whose first line is that password.")
]
ToTlsCaOption = Annotated[
    Path | None, typer.Option("--to-tls-ca", metavar="FILE", help="The certificates to trust at the second server.")
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two servers of a command. Each field is an option: see `joined`."""

    from_: FromOption
    to: ToOption
    bucket: BucketOption = "default"
    username: UsernameOption = None
    password_env: PasswordEnvOption = None
    password_file: PasswordFileOption = None
    tls_ca: TlsCaOption = None
    to_bucket: ToBucketOption = None
    to_username: ToUsernameOption = None
    to_password_env: ToPasswordEnvOption = None
    to_password_file: ToPasswordFileOption = None
    to_tls_ca: ToTlsCaOption = None
    timeout_s: TimeoutOption = 10.0

    def source(self) -> "Server":
        """The server that has the changes."""
        return server_of(self._source())

    def tap_source(self, vbuckets: list[int] | None = None) -> "ChangeOptions | None":
        """How the server is reached that has the changes, if that is by TAP, and which of its vbuckets are wanted."""
        connection = tap_connection(self.from_)
        if connection is None:
            return None
        return self._source().change_options(connection, vbuckets=None if vbuckets is None else tuple(vbuckets))

    def _source(self) -> Target:
        return Target(
            connect=self.from_,
            bucket=self.bucket,
            username=self.username,
            password_env=self.password_env,
            password_file=self.password_file,
            tls_ca=self.tls_ca if self._needs_ca(self.from_) else None,
            timeout_s=self.timeout_s,
        )

    def target(self) -> "Server":
        """The server that gets them."""
        told = self.to_password_env is not None or self.to_password_file is not None
        return server_of(
            Target(
                connect=self.to,
                bucket=self.to_bucket or self.bucket,
                username=self.to_username or self.username,
                password_env=self.to_password_env if told else self.password_env,
                password_file=self.to_password_file if told else self.password_file,
                tls_ca=self.to_tls_ca or (self.tls_ca if self._needs_ca(self.to) else None),
                timeout_s=self.timeout_s,
            )
        )

    def _needs_ca(self, address: str) -> bool:
        """Certificates that are given for both go to the one that has TLS; with none of both it is a mistake."""
        return address.startswith(_WITH_TLS) or not any(each.startswith(_WITH_TLS) for each in (self.from_, self.to))


def server_of(target: Target) -> "Server":
    """What the jobs take for a server."""
    from headrace.pipelines.servers import Server  # noqa: PLC0415 - `headrace explain` needs none of it

    address, password, tls = target.parts()
    return Server(
        address=address,
        bucket=target.bucket,
        username=target.username,
        password=password,
        tls=tls,
        timeout_s=target.timeout_s,
    )


def joined(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take one `pair: Pair`, and typer see in its place the options that it is made of."""
    options = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default,
            annotation=each.type,
        )
        for each in dataclasses.fields(Pair)
    ]
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        parameters.extend(options if parameter.name == "pair" else [parameter])

    @functools.wraps(command)
    def run(**given: Any) -> None:
        pair = Pair(**{option.name: given.pop(option.name) for option in options})
        command(pair=pair, **given)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def read_vbuckets(text: str) -> list[int]:
    """Read `0-15,20`.

    >>> read_vbuckets("20,0-3")
    [0, 1, 2, 3, 20]
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(each.isascii() and each.isdigit() and int(each[:6]) < VBUCKETS_MAX for each in ends):
            raise CommandError(f"{text!r}: vbuckets are numbers below {VBUCKETS_MAX} and ranges of them, as in 0-15,20")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    if not found:
        raise CommandError(f"{text!r} names no vbucket")
    return sorted(found)


class Stopping:
    """Ctrl-C and SIGTERM as a question that a job asks now and then; a second Ctrl-C does not wait for it."""

    def __init__(self) -> None:
        self.wanted: int | None = None
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether the job is to end."""
        return self.wanted is not None

    def __enter__(self) -> Self:
        with suppress(ValueError):  # not in the main thread, where no signal comes
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self.wanted is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = number


class StatusLine:
    """One line that is written over, where somebody watches."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._is_open = False

    def show(self, text: str) -> None:
        """Write the line anew."""
        if self._is_shown:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._is_open = True

    def clear(self) -> None:
        """Take the line away, so that words may follow."""
        if self._is_open:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_open = False
