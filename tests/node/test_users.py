import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.node.users import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MIN,
    Role,
    User,
    Users,
    UsersError,
    make_verifiers,
    prepared_name,
)
from headrace.scram import HASHES, ScramError, prepare

PASSWORD = "correct horse battery staple"


def user(name: str = "ann", *roles: Role, buckets: tuple[str, ...] = ("*",), password: str = PASSWORD) -> User:
    """A user with cheap keys."""
    return User.create(name, password, roles or (Role.READ,), buckets, iterations=ITERATIONS_MIN)


@pytest.fixture
def path(tmp_path: Path):
    """A users file with one user, as `save` writes it."""
    found = tmp_path / "users.json"
    Users([user()]).save(found)
    return found


def changed(path: Path, **fields: Any) -> Path:
    """Change top-level fields of a users file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return path


def changed_user(path: Path, **fields: Any) -> Path:
    """Change fields of its one user."""
    [found] = json.loads(path.read_text())["users"].values()
    return changed(path, users={"ann": found | fields})


def changed_keys(path: Path, **fields: Any) -> Path:
    """Change fields of its user's SCRAM-SHA512 keys."""
    [found] = json.loads(path.read_text())["users"].values()
    return changed_user(path, scram={"SCRAM-SHA512": found["scram"]["SCRAM-SHA512"] | fields})


def test_save_and_load(tmp_path: Path):
    """What is saved is loaded: names, roles, buckets and keys, also of a name that is not ASCII."""
    users = Users([user("ann", Role.READ, Role.WRITE, buckets=("default", "beer-sample")), user("Jürgen", Role.ADMIN)])
    users.save(tmp_path / "u")
    again = Users.load(tmp_path / "u")
    assert list(again) == list(users)
    assert len(again) == 2
    assert again.warnings == ()


def test_file_holds_no_password(path: Path):
    """The file is the owner's alone, and neither it nor a repr has the password or a key in it."""
    text = path.read_text()
    assert PASSWORD not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = Users.load(path).get("ann")
    assert found is not None
    keys = [part for verifier in found.verifiers.values() for part in (verifier.stored_key, verifier.server_key)]
    assert len(keys) == 2 * len(HASHES)
    shown = f"{found!r} {list(found.verifiers.values())!r}"
    assert not any(repr(key)[2:-1] in shown or key.hex() in shown for key in keys)


def test_verifiers_fit_their_password_only():
    """Keys of every mechanism fit the password they were made of, in any spelling that SASLprep makes the same."""
    for verifier in make_verifiers("pass\u00adword \u2168", iterations=ITERATIONS_MIN).values():
        assert verifier.fits(b"password IX")
        assert not verifier.fits(b"password I")
        assert not verifier.fits(b"")


@pytest.mark.parametrize(
    ("roles", "buckets", "asked", "bucket", "allowed"),
    [
        ([Role.READ], ["*"], Role.READ, "default", True),
        ([Role.READ], ["*"], Role.WRITE, "default", False),
        ([Role.READ], ["*"], Role.STREAM, "default", False),
        ([Role.WRITE], ["*"], Role.READ, "default", False),
        ([Role.READ, Role.STREAM], ["beer"], Role.STREAM, "beer", True),
        ([Role.READ, Role.STREAM], ["beer"], Role.STREAM, "default", False),
        ([Role.ADMIN], ["beer"], Role.WRITE, "beer", True),
        ([Role.ADMIN], ["beer"], Role.ADMIN, "default", False),
        ([Role.ADMIN], ["beer"], Role.ADMIN, "*", False),
        ([Role.ADMIN], ["*"], Role.ADMIN, "*", True),
    ],
)
def test_may(roles: list[Role], buckets: list[str], asked: Role, bucket: str, allowed: bool):
    """A role holds in the buckets named, admin is every role, and only `*` is every bucket."""
    who = User(name="ann", roles=frozenset(roles), buckets=frozenset(buckets))
    assert who.may(asked, bucket) is allowed


def test_add_replace_remove():
    """A name is added once, and only what is there is replaced or removed."""
    users = Users([user("ann")])
    with pytest.raises(UsersError, match="there is a user 'ann' already"):
        users.add(user("ann"))
    users.replace(user("ann", Role.ADMIN))
    found = users.get("ann")
    assert found is not None
    assert found.roles == {Role.ADMIN}
    users.remove("ann")
    assert users.get("ann") is None
    with pytest.raises(UsersError, match="there is no user 'ann'"):
        users.remove("ann")
    with pytest.raises(UsersError, match="there is no user 'ann'"):
        users.replace(user("ann"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "empty"),
        ("a\nb", "control"),
        ("a\0", "control"),
        ("x" * 129, "at most 128 bytes, not 129"),
        ("é" * 65, "at most 128 bytes, not 130"),
        ("a\u0627b", "left-to-right"),
        ("\U0001f600", "does not know"),
    ],
)
def test_wrong_names(name: str, told: str):
    """A name that no client could send in one spelling is refused."""
    with pytest.raises(UsersError, match=told):
        user(name)


def test_names_are_kept_in_one_spelling():
    """A name is stored as SASLprep spells it, and a user of another spelling cannot be made by hand."""
    assert user("\u212bngstrom").name == "\u00c5ngstrom"
    with pytest.raises(UsersError, match="SASLprep"):
        User(name="\u212bngstrom", roles=frozenset({Role.READ}))


@given(st.text())
def test_prepared_names_stay(name: str):
    """A stored spelling is its own stored spelling, whatever was typed."""
    try:
        prepared = prepared_name(name)
    except UsersError:
        return
    assert prepared_name(prepared) == prepared


@pytest.mark.parametrize(
    ("source", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX"), ("a\u00a0b", "a b")],
)
def test_saslprep(source: str, prepared: str):
    """The examples of RFC 4013 come out as it says."""
    assert prepare(source, what="password", stored=True) == prepared


@pytest.mark.parametrize("source", ["\u0007", "\u06271", ""])
def test_saslprep_refuses(source: str):
    """What RFC 4013 prohibits is refused, without being quoted."""
    with pytest.raises(ScramError) as caught:
        prepare(source, what="password")
    assert not source or source not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"iterations": 4095}, "iterations are of 4096 to 1000000, not 4095"),
        ({"iterations": 1_000_001}, "not 1000001"),
        ({"password": ""}, "password is empty"),
        ({"password": "x" * 513}, "at most 512 bytes"),
        ({"password": "sec\x07ret"}, "control"),
        ({"password": "sec\U0001f600ret"}, "does not know"),
        ({"roles": ()}, "no role"),
        ({"buckets": ()}, "no bucket"),
        ({"buckets": ("a b",)}, "'a b' is no name of a bucket"),
    ],
)
def test_wrong_users(fields: dict[str, Any], told: str):
    """A user that cannot stand is refused; a password is not quoted."""
    with pytest.raises(UsersError, match=told) as caught:
        User.create(**({"name": "ann", "password": PASSWORD, "roles": [Role.READ]} | fields))
    assert PASSWORD not in str(caught.value)
    assert "ret" not in str(caught.value).replace("secret", "")


def test_missing_file(tmp_path: Path):
    """Where there is no file, the error names the command that makes one."""
    with pytest.raises(UsersError, match=r"there is no users file .*`headrace user add` makes one"):
        Users.load(tmp_path / "none.json")


def test_unreadable_files(tmp_path: Path):
    """A folder is no users file, nor is what is not UTF-8."""
    with pytest.raises(UsersError, match="cannot be read"):
        Users.load(tmp_path)
    (tmp_path / "latin").write_bytes(b'{"\xe9": 1}')
    (tmp_path / "latin").chmod(0o600)
    with pytest.raises(UsersError, match="not UTF-8 at byte 2"):
        Users.load(tmp_path / "latin")


def test_bad_json_names_its_line(path: Path):
    """A syntax error is told with line and column."""
    path.write_text('{"version": 1,\n "users": {,}}')
    with pytest.raises(UsersError, match="line 2, column 12"):
        Users.load(path)


def test_deep_json(path: Path):
    """Nesting without end is an error like any other."""
    path.write_text("[" * 100_000)
    with pytest.raises(UsersError, match="too deeply"):
        Users.load(path)


def test_duplicate_names(path: Path):
    """Two users of one name are refused, not merged."""
    path.write_text('{"version": 1, "users": {"ann": {}, "ann": {}}}')
    with pytest.raises(UsersError, match="'ann' stands twice"):
        Users.load(path)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"version": 2}, "version is 2; this headrace reads version 1: use a newer headrace"),
        ({"version": "1"}, "not a number"),
        ({"users": []}, '"users" is not a JSON object'),
        ({"more": 1}, "the file has an unknown field 'more'"),
        ({"decoy_key": 7}, "'decoy_key' is not base64"),
        ({"users": {"ann": {}}}, "user 'ann' has no 'buckets'"),
        ({"users": {"ann": 7}}, "user 'ann' is not a JSON object"),
    ],
)
def test_wrong_documents(path: Path, fields: dict[str, Any], told: str):
    """A file of another shape is refused with the place."""
    with pytest.raises(UsersError, match=told) as caught:
        Users.load(changed(path, **fields))
    assert str(caught.value).startswith(f"users file {path}: ")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"roles": ["reed"]}, "unknown role 'reed'; there are read, write, stream, admin"),
        ({"roles": "read"}, "the roles of user 'ann' are not a list of texts"),
        ({"buckets": [1]}, "the buckets of user 'ann' are not a list of texts"),
        ({"scram": {}}, "has no keys"),
        ({"scram": {"SCRAM-MD5": {}}}, "unknown mechanism 'SCRAM-MD5'"),
        ({"password": "x"}, "unknown field 'password'"),
    ],
)
def test_wrong_users_in_files(path: Path, fields: dict[str, Any], told: str):
    """A user of another shape is refused by name."""
    with pytest.raises(UsersError, match=told):
        Users.load(changed_user(path, **fields))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"iterations": 4095}, "iterations"),
        ({"iterations": 10**9}, "iterations"),
        ({"iterations": True}, "iterations"),
        ({"salt": "AAAA"}, "the salt has 3 bytes"),
        ({"stored_key": "AAAA"}, "both keys have 64 bytes"),
        ({"server_key": "se?cret"}, "'server_key' is not base64"),
        ({"server_key": None}, "'server_key' is not base64"),
    ],
)
def test_wrong_keys_in_files(path: Path, fields: dict[str, Any], told: str):
    """Keys that cannot be are refused, and never quoted."""
    with pytest.raises(UsersError, match=told) as caught:
        Users.load(changed_keys(path, **fields))
    assert "cret" not in str(caught.value)


def test_few_mechanisms_do(path: Path):
    """A user may have keys for some of the mechanisms only."""
    users = Users.load(changed_keys(path))
    found = users.get("ann")
    assert found is not None
    assert list(found.verifiers) == ["SCRAM-SHA512"]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_files_of_others_are_refused(path: Path, mode: int):
    """Whoever can write the file could be anybody: it is not read."""
    path.chmod(mode)
    with pytest.raises(UsersError, match="can be changed by others than its owner: chmod 600"):
        Users.load(path)


@pytest.mark.parametrize(("mode", "count"), [(0o600, 0), (0o640, 0), (0o644, 1)])
def test_readable_files_are_told_about(path: Path, mode: int, count: int):
    """A file that everyone reads is loaded with a warning."""
    path.chmod(mode)
    warnings = Users.load(path).warnings
    assert len(warnings) == count
    assert all("can be read by everyone" in warning for warning in warnings)


def test_save_replaces_whole(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A save that fails leaves the old file, and no other."""
    before = path.read_bytes()

    def fail(_number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UsersError, match="cannot be written: No space left on device"):
        Users([user("bob")]).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_save_follows_a_link(path: Path, tmp_path: Path):
    """A link to a users file stays one."""
    link = tmp_path / "link"
    link.symlink_to(path)
    Users([user("bob")]).save(link)
    assert link.is_symlink()
    assert [each.name for each in Users.load(path)] == ["bob"]


def test_decoys_look_like_users(tmp_path: Path):
    """A name that nobody has is shown one salt for ever, also after a restart, in the shape of a real user's."""
    Users([user("ann")]).save(tmp_path / "u")
    first, second = Users.load(tmp_path / "u"), Users.load(tmp_path / "u")
    for mechanism in HASHES:
        decoy, again, real = (
            first.verifier("nobody", mechanism),
            second.verifier("nobody", mechanism),
            first.verifier("ann", mechanism),
        )
        assert decoy.salt == again.salt
        assert (len(decoy.salt), decoy.iterations) == (len(real.salt), real.iterations)
        assert (len(decoy.stored_key), len(decoy.server_key)) == (len(real.stored_key), len(real.server_key))
        assert decoy.salt not in (real.salt, first.verifier("somebody", mechanism).salt)
        assert decoy.stored_key != first.verifier("nobody", mechanism).stored_key
    assert first.verifier("nobody", "SCRAM-SHA1").salt != first.verifier("nobody", "SCRAM-SHA256").salt


def test_decoys_without_users():
    """With no user at all, names are shown the default iterations."""
    assert Users().verifier("nobody", "SCRAM-SHA512").iterations == ITERATIONS_DEFAULT
