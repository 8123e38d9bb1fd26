"""`headrace user`: who may use a node that is started with `--users FILE`.

A change reads the whole file and writes it anew, so two at once would keep the later one only. Each takes a lock from
before it reads until after it has written, never while it waits for a password to be typed. The lock is a flock on a
file beside the users file, which stays: the users file itself is another one after each change.
"""

import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.connect import CommandError, PasswordEnvOption, PasswordFileOption, exits, put, read_password
from headrace.cli.items import epilog
from headrace.cli.output import OutputFormat, say

if TYPE_CHECKING:
    from headrace.node.users import User, Users

ADD_EXAMPLES = (
    "export ANN=correct-horse-battery",
    "headrace user add ann --users users.json --role read --role write --password-env ANN",
    "headrace user add spark --users users.json --role stream --bucket default --password-env ANN",
)
LIST_EXAMPLES = ("headrace user list --users users.json",)
PASSWD_EXAMPLES = ("headrace user passwd ann --users users.json --password-env ANN",)
REMOVE_EXAMPLES = ("headrace user remove ann --users users.json",)
"""Commands that run as they stand, in this order and in one shell."""

ROLES = ("read", "write", "stream", "admin")

LOCK_WAIT_S = 10.0
LOCK_POLL_S = 0.01

user = typer.Typer(
    help="Keep the users of a node in a file. It holds no password, and nothing that serves as one.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
UsersOption = Annotated[
    Path, typer.Option("--users", metavar="FILE", help="The users file, readable by its owner alone.")
]
RoleOption = Annotated[
    list[str],
    typer.Option(
        "--role",
        metavar="ROLE",
        help="What the user may do: read (items, statistics), write (items), stream (DCP, UPR, TAP), "
        "admin (vbuckets, buckets, persistence, and all of these). Repeatable.",
    ),
]
BucketsOption = Annotated[
    list[str] | None,
    typer.Option("--bucket", metavar="NAME", help="Where; every bucket if none is named. Repeatable."),
]


@user.command(epilog=epilog(ADD_EXAMPLES))
def add(
    name: NameArgument,
    *,
    users: UsersOption,
    role: RoleOption,
    bucket: BucketsOption = None,
    password_env: PasswordEnvOption = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Add a user; the file is made if there is none.

    The password is asked for twice, unless a variable or a file holds it.
    """
    with exits("user add"):
        from headrace.node.users import EVERY_BUCKET, Role, User  # noqa: PLC0415 - explain needs none of it

        unknown = [each for each in role if each not in ROLES]
        if unknown:
            raise CommandError(f"{unknown[0]!r} is no role; there are {', '.join(ROLES)}")
        if _exists(users):
            _load(users)
        password = read_password(password_env, password_file, twice=True)
        added = User.create(name, password, map(Role, role), bucket or [EVERY_BUCKET])
        with _changed(users) as found:
            found.add(added)
        say(f"added {added.name}")


@user.command("list", epilog=epilog(LIST_EXAMPLES))
def list_(
    *,
    users: UsersOption,
    output: Annotated[OutputFormat, typer.Option(help="For people, or one JSON object per line.")] = OutputFormat.TEXT,
) -> None:
    """List the users with their roles and buckets."""
    with exits("user list"):
        rows = [(each.name, sorted(each.roles, key=ROLES.index), sorted(each.buckets)) for each in _load(users)]
        if output is OutputFormat.JSON:
            lines = [json.dumps({"name": name, "roles": roles, "buckets": buckets}) for name, roles, buckets in rows]
        else:
            width = max((len(name) for name, _, _ in rows), default=0)
            wide = max((len(",".join(roles)) for _, roles, _ in rows), default=0)
            lines = [f"{name:{width}}  {','.join(roles):{wide}}  {','.join(buckets)}" for name, roles, buckets in rows]
        put("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))


@user.command(epilog=epilog(PASSWD_EXAMPLES))
def passwd(
    name: NameArgument,
    *,
    users: UsersOption,
    password_env: PasswordEnvOption = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Give a user another password; roles and buckets stay."""
    with exits("user passwd"):
        from headrace.node.users import make_verifiers, prepared_name  # noqa: PLC0415 - explain needs none of it

        stored = prepared_name(name)
        _user(_load(users), stored)
        verifiers = make_verifiers(read_password(password_env, password_file, twice=True))
        with _changed(users) as found:
            found.replace(dataclasses.replace(_user(found, stored), verifiers=verifiers))
        say(f"changed the password of {stored}")


@user.command(epilog=epilog(REMOVE_EXAMPLES))
def remove(name: NameArgument, *, users: UsersOption) -> None:
    """Remove a user. Connections that are open stay open."""
    with exits("user remove"):
        from headrace.node.users import prepared_name  # noqa: PLC0415 - explain needs none of it

        stored = prepared_name(name)
        _load(users)
        with _changed(users) as found:
            found.remove(stored)
        say(f"removed {stored}")


def _user(users: "Users", name: str) -> "User":
    found = users.get(name)
    if found is None:
        raise CommandError(f"there is no user {name!r}")
    return found


def _load(path: Path) -> "Users":
    """Read the file, and say what is to be said about it: once, and before a password is asked for."""
    from headrace.node.users import Users  # noqa: PLC0415 - explain needs none of it

    found = Users.load(path)
    for warning in found.warnings:
        say(f"warning: {warning}")
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # it lies where one may not look
        raise CommandError(f"users file {path} cannot be read: {error.strerror}") from None


@contextmanager
def _changed(path: Path) -> "Iterator[Users]":
    """Give the users as they are now, alone, and keep what has become of them."""
    from headrace.node.users import Users  # noqa: PLC0415 - explain needs none of it

    with _locked(path):
        found = Users.load(path) if _exists(path) else Users()
        yield found
        found.save(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    file = Path(os.path.realpath(path))  # by whatever link it is named, it has one lock
    try:
        fd = os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandError(f"users file {path} cannot be locked: {error.strerror}") from None
    try:
        _lock(fd, path)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise CommandError(f"users file {path} is being changed by another; try again") from None
            time.sleep(LOCK_POLL_S)
        except OSError as error:
            raise CommandError(f"users file {path} cannot be locked: {error.strerror}") from None
        else:
            return
