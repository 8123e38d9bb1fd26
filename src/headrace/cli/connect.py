"""What the commands share that talk to a server: options, passwords, exit codes.

`headrace.client` is imported when a command runs, not when the program starts: `headrace explain` needs none of it.
A password comes from a variable, a file or the keyboard; never from the command line, which others can see.
"""

import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.explain import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_PROBLEMS
from headrace.cli.output import EXIT_OUTPUT, OutputError, say, silence
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    import ssl

    from headrace.client import Address, ChangeOptions, KvConnection

EXIT_REFUSED = 1
"""The exit code for what the server does not have, or does not do."""

EXIT_UNREACHABLE = 69
"""The exit code for a server that does not answer: EX_UNAVAILABLE of sysexits.h."""

PASSWORD_FILE_BYTES_MAX = 4096

ConnectOption = Annotated[
    str,
    typer.Option(
        "--connect",
        metavar="ADDRESS",
        help="The server: couchbase://host:port, couchbases://host:port for TLS, or host:port.",
    ),
]
BucketOption = Annotated[str, typer.Option("--bucket", metavar="NAME", help="The bucket.")]
UsernameOption = Annotated[
    str | None, typer.Option("--username", metavar="NAME", help="The user; without one, nobody authenticates.")
]
PasswordEnvOption = Annotated[
    str | None,
    typer.Option("--password-env", metavar="VARIABLE", help="The environment variable that holds the password."),
]
PasswordFileOption = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="The file whose first line is the password.")
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="The certificates to trust (PEM), in place of the system's."),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait for a silent server.")
]


class CommandError(HeadraceError):
    """What the user asked for cannot be done as it was asked."""


_TAP = {"tap://": "couchbase://", "taps://": "couchbases://"}


def tap_connection(address: str) -> str | None:
    """Read `tap://host:port`, or `taps://` for TLS, as a connection string; None for what is no address of TAP.

    >>> tap_connection("tap://old-host:11210")
    'couchbase://old-host:11210'
    """
    for scheme, plain in _TAP.items():
        if address == scheme:
            raise CommandError(f"{address!r}: no host; an address of TAP is tap://host:port")
        if address.startswith(scheme):
            return plain + address.removeprefix(scheme)
    return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server and bucket that a command works on, and as whom. Each field is an option: see `connected`."""

    connect: ConnectOption = "couchbase://127.0.0.1:11210"
    bucket: BucketOption = "default"
    username: UsernameOption = None
    password_env: PasswordEnvOption = None
    password_file: PasswordFileOption = None
    tls_ca: TlsCaOption = None
    timeout_s: TimeoutOption = 10.0

    def parts(self) -> "tuple[Address, str | None, ssl.SSLContext | None]":
        """The address, the password and what TLS needs; the password is read only here."""
        from headrace.client import Address  # noqa: PLC0415 - see the top of the file

        address = Address.parse(self.connect)
        if self.tls_ca is not None and not address.tls:
            raise CommandError("--tls-ca needs a couchbases:// address")
        password = self.password()
        tls = None
        if address.tls:
            import ssl  # noqa: PLC0415 - 15 ms that an open connection need not wait

            try:
                tls = ssl.create_default_context(cafile=self.tls_ca)
            except OSError as error:
                raise CommandError(f"{self.tls_ca}: no certificates to trust: {error.strerror or error}") from None
        return address, password, tls

    def open(self) -> "KvConnection":
        """Connect."""
        from headrace.client import KvConnection  # noqa: PLC0415 - see the top of the file

        address, password, tls = self.parts()
        return KvConnection(
            address.host,
            address.port,
            username=self.username,
            password=password,
            bucket=self.bucket,
            tls=tls,
            timeout_s=self.timeout_s,
        )

    def change_options(self, connection: str, **more: Any) -> "ChangeOptions":
        """What readers of changes take, for a connection string; keys need not be text."""
        from headrace.client import ChangeOptions  # noqa: PLC0415 - see the top of the file

        if self.tls_ca is not None and not connection.startswith("couchbases://"):
            raise CommandError("--tls-ca needs a couchbases:// address")
        return ChangeOptions(
            connection=connection,
            bucket=self.bucket,
            username=self.username,
            password=self.password(),
            tls_ca=None if self.tls_ca is None else str(self.tls_ca),
            timeout_s=self.timeout_s,
            keys="binary",
            **more,
        )

    def password(self) -> str | None:
        """Read the password from where the options say; None without a user."""
        if self.username is not None:
            return read_password(self.password_env, self.password_file)
        if self.password_env is not None or self.password_file is not None:
            raise CommandError("a password needs --username")
        return None


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take one `target: Target`, and typer see in its place the options that it is made of."""
    options = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in dataclasses.fields(Target)
    ]
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        parameters.extend(options if parameter.name == "target" else [parameter])

    @functools.wraps(command)
    def run(**given: Any) -> None:
        target = Target(**{option.name: given.pop(option.name) for option in options})
        command(target=target, **given)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def read_password(variable: str | None, file: Path | None, *, twice: bool = False) -> str:
    """Read a password from where the options say, else from the keyboard."""
    if variable is not None and file is not None:
        raise CommandError("--password-env or --password-file, not both")
    if variable is not None:
        if variable not in os.environ:
            raise CommandError(f"there is no environment variable {variable}")
        return os.environ[variable]
    if file is not None:
        return _password_in(file)
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandError("no password: give --password-env or --password-file, or run it in a terminal")
    typed: str = typer.prompt("Password", hide_input=True, confirmation_prompt=twice, err=True)
    return typed


def _password_in(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            line = opened.readline(PASSWORD_FILE_BYTES_MAX)
    except OSError as error:
        raise CommandError(f"password file {file} cannot be read: {error.strerror}") from None
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise CommandError(f"password file {file} is not UTF-8") from None


def put(data: bytes) -> None:
    """Write data to standard output, and nothing else."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {os.strerror(error.errno or 0)}") from None


class LateOutput:
    """Standard output for work that must not stop in the middle: what could not be written is told when it is done."""

    def __init__(self) -> None:
        self._failure: BrokenPipeError | OutputError | None = None

    def put(self, data: bytes) -> None:
        """Write, unless writing has failed before."""
        if self._failure is None:
            try:
                put(data)
            except (BrokenPipeError, OutputError) as error:
                self._failure = error

    def check(self) -> None:
        """Raise what writing failed with."""
        if self._failure is not None:
            raise self._failure


@contextmanager
def exits(command: str) -> Iterator[None]:
    """Turn what a command could not do into a sentence on standard error and an exit code."""
    try:
        yield
    except BrokenPipeError:
        silence(sys.stdout)
        code = EXIT_BROKEN_PIPE
    except OutputError as error:
        silence(sys.stdout)
        say(f"headrace {command}: {error}")
        code = EXIT_OUTPUT
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except HeadraceError as error:
        say(f"headrace {command}: {error}")
        code = exit_code_of(error)
    else:
        return
    raise typer.Exit(code)


def exit_code_of(error: HeadraceError) -> int:
    """Tell by the exit code whose fault it is: the server's no, no server, or the command line's."""
    from headrace.client import ConnectionLostError, StatusError  # noqa: PLC0415 - see the top of the file

    if isinstance(error, StatusError):
        return EXIT_REFUSED
    return EXIT_UNREACHABLE if isinstance(error, ConnectionLostError) else EXIT_PROBLEMS
