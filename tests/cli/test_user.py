import fcntl
import json
import shutil
import stat
import sys
from pathlib import Path

import pytest
import typer

from headrace.cli import connect
from headrace.cli.user import ADD_EXAMPLES, LIST_EXAMPLES, PASSWD_EXAMPLES, REMOVE_EXAMPLES, ROLES
from headrace.node.sasl import SaslServer, Success
from headrace.node.users import Role, Users
from tests.cli.tools import run, shell, start

PASSWORD = "correct horse"


@pytest.fixture
def file(tmp_path: Path):
    """The name of a users file that is not there yet."""
    return tmp_path / "users.json"


def add(file: Path, name: str = "ann", *options: str, password: str = PASSWORD):
    """Add a user."""
    roles = options or ("--role", "read")
    return run("user", "add", name, "--users", file, *roles, "--password-env", "PW", PW=password)


def lets_in(file: Path, name: str, password: str) -> bool:
    """Tell if a node with this file lets somebody in."""
    outcome = SaslServer(Users.load(file)).auth(b"PLAIN", f"\0{name}\0{password}".encode())
    return isinstance(outcome, Success)


def test_roles_are_those_of_the_node():
    """The command offers the roles that there are."""
    assert tuple(Role) == ROLES


def test_add(file: Path):
    """A user is added to a new file that nobody else reads, and lets in with that password."""
    done = add(file, "ann", "--role", "read", "--role", "stream", "--bucket", "default", "--bucket", "beer")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "added ann\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert PASSWORD not in file.read_text()
    assert lets_in(file, "ann", PASSWORD)
    assert not lets_in(file, "ann", "other")
    found = Users.load(file).get("ann")
    assert found is not None
    assert found.roles == {Role.READ, Role.STREAM}
    assert found.buckets == {"default", "beer"}
    again = add(file)
    assert (again.exit_code, again.stderr) == (2, "headrace user add: there is a user 'ann' already\n")


def test_list(file: Path):
    """Users are listed for people, and for programs."""
    add(file, "ann", "--role", "write", "--role", "read")
    add(file, "bob", "--role", "admin", "--bucket", "beer")
    assert run("user", "list", "--users", file).stdout == "ann  read,write  *\nbob  admin       beer\n"
    lines = run("user", "list", "--users", file, "--output", "json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"name": "ann", "roles": ["read", "write"], "buckets": ["*"]},
        {"name": "bob", "roles": ["admin"], "buckets": ["beer"]},
    ]


def test_passwd(file: Path, tmp_path: Path):
    """A password is changed, and nothing else."""
    add(file, "ann", "--role", "write", "--bucket", "beer")
    (tmp_path / "new").write_text("new one\n")
    done = run("user", "passwd", "ann", "--users", file, "--password-file", tmp_path / "new")
    assert (done.exit_code, done.stderr) == (0, "changed the password of ann\n")
    assert lets_in(file, "ann", "new one")
    assert not lets_in(file, "ann", PASSWORD)
    assert run("user", "list", "--users", file).stdout == "ann  write  beer\n"
    assert run("user", "passwd", "bob", "--users", file, "--password-env", "PW", PW="x").exit_code == 2


def test_remove(file: Path):
    """A user is removed once."""
    add(file)
    assert run("user", "remove", "ann", "--users", file).stderr == "removed ann\n"
    assert run("user", "list", "--users", file).stdout == ""
    done = run("user", "remove", "ann", "--users", file)
    assert (done.exit_code, done.stderr) == (2, "headrace user remove: there is no user 'ann'\n")


def test_prompt(monkeypatch: pytest.MonkeyPatch):
    """At a terminal the password is asked for twice, and not shown."""

    def prompt(text: str, *, hide_input: bool, confirmation_prompt: bool, err: bool) -> str:
        assert (text, hide_input, confirmation_prompt, err) == ("Password", True, True, True)
        return PASSWORD

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(typer, "prompt", prompt)
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert connect.read_password(None, None, twice=True) == PASSWORD


@pytest.mark.parametrize(
    ("name", "options", "password", "told"),
    [
        ("ann", ("--role", "reed"), PASSWORD, "'reed' is no role; there are read, write, stream, admin"),
        ("a\nb", ("--role", "read"), PASSWORD, "control"),
        ("ann", ("--role", "read", "--bucket", "a b"), PASSWORD, "no name of a bucket"),
        ("ann", ("--role", "read"), "", "password is empty"),
        ("ann", ("--role", "read"), "p" * 513, "at most 512 bytes"),
    ],
)
def test_wrong_users(file: Path, name: str, options: tuple[str, ...], password: str, told: str):
    """A user that cannot be is refused, and no file is made."""
    done = add(file, name, *options, password=password)
    assert done.exit_code == 2
    assert told in done.stderr
    assert not file.exists()


def test_wrong_files(file: Path):
    """A file that is not there, damaged or open to others is told; a readable one is warned about."""
    assert "there is no users file" in run("user", "list", "--users", file).stderr
    add(file)
    file.chmod(0o644)
    done = run("user", "list", "--users", file)
    assert done.exit_code == 0
    assert "warning: users file" in done.stderr
    file.chmod(0o622)
    done = run("user", "list", "--users", file)
    assert (done.exit_code, "chmod 600" in done.stderr) == (2, True)
    file.chmod(0o600)
    file.write_text("{")
    done = add(file, "bob")
    assert (done.exit_code, "line 1, column 2" in done.stderr) == (2, True)
    assert file.read_text() == "{"


def test_changes_at_once(file: Path):
    """Of users that are added at the same time, none is lost."""
    names = [f"user{number}" for number in range(6)]
    (file.parent / "password").write_text(PASSWORD)
    options = ("--users", file, "--role", "read", "--password-file", file.parent / "password")
    running = [start("user", "add", name, *options) for name in names]
    for process in running:
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
    assert [each.name for each in Users.load(file)] == names


def test_changes_while_a_password_is_typed(file: Path, monkeypatch: pytest.MonkeyPatch):
    """What others change until the password is there stays changed, and they need not wait for it."""
    add(file, "ann")
    add(file, "bob")

    def typed(*_: object, twice: bool) -> str:
        assert twice
        found = Users.load(file)
        if found.get("bob"):
            assert run("user", "remove", "bob", "--users", file).exit_code == 0
        return "typed"

    monkeypatch.setattr("headrace.cli.user.read_password", typed)
    assert run("user", "add", "eve", "--users", file, "--role", "read").exit_code == 0
    assert [each.name for each in Users.load(file)] == ["ann", "eve"]
    monkeypatch.undo()
    add(file, "bob")
    monkeypatch.setattr("headrace.cli.user.read_password", typed)
    done = run("user", "passwd", "bob", "--users", file)
    assert (done.exit_code, done.stderr) == (2, "headrace user passwd: there is no user 'bob'\n")
    assert run("user", "passwd", "ann", "--users", file).exit_code == 0
    assert [each.name for each in Users.load(file)] == ["ann", "eve"]
    assert lets_in(file, "ann", "typed")


def test_lock(file: Path, monkeypatch: pytest.MonkeyPatch):
    """A file that another holds is waited for, not without end; listing needs no lock, and a link has the file's."""
    add(file)
    link = file.with_name("link.json")
    link.symlink_to(file)
    monkeypatch.setattr("headrace.cli.user.LOCK_WAIT_S", 0.05)
    lock = file.with_name(".users.json.lock")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for name in (file, link):
            done = run("user", "remove", "ann", "--users", name)
            assert (done.exit_code, "is being changed by another; try again" in done.stderr) == (2, True)
        assert run("user", "list", "--users", file).exit_code == 0
    assert run("user", "remove", "ann", "--users", link).exit_code == 0


def test_no_lock(file: Path):
    """Where no lock can be had, nothing is changed and a sentence says so; where there is no file, none is made."""
    done = add(file.parent / "none" / "users.json")
    assert (done.exit_code, "cannot be locked: No such file or directory" in done.stderr) == (2, True)
    assert run("user", "remove", "ann", "--users", file).exit_code == 2
    assert list(file.parent.iterdir()) == []
    file.with_name(".users.json.lock").symlink_to("elsewhere")
    assert add(file).exit_code == 2
    assert not file.exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_examples_run(tmp_path: Path):
    """The examples of the help run as they stand."""
    done = shell("\n".join([*ADD_EXAMPLES, *LIST_EXAMPLES, *PASSWD_EXAMPLES, *REMOVE_EXAMPLES]), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ann    read,write  *\nspark  stream      default\n"
    assert [each.name for each in Users.load(tmp_path / "users.json")] == ["spark"]
