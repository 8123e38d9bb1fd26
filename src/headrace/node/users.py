"""Who may use a node, and for what: the users and the file that keeps them.

The file is JSON with a version. It holds no password and nothing that serves as one: per user and SCRAM mechanism the
salt, the iterations and the two keys of RFC 5802, from which PLAIN is verified, too.

    {"version": 1,
     "decoy_key": "…",
     "users": {"ann": {"roles": ["read", "write"], "buckets": ["default"],
                       "scram": {"SCRAM-SHA512": {"iterations": 15000, "salt": "…",
                                                  "stored_key": "…", "server_key": "…"}, …}}}}

Whoever may write the file is every user, so a file that others can write is refused. Whoever may read it can try
passwords against it at leisure, so a file that all can read is told about. `decoy_key` makes the salts that are shown
for names that nobody has; kept, so that a restart of the node does not give them away.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.node.users_file import UsersError, read_document, write_document
from headrace.scram import HASHES, ITERATIONS_MAX, SALT_BYTES_MAX, SALT_BYTES_MIN, ScramError, Verifier, prepare

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

VERSION = 1
NAME_BYTES_MAX = 128
PASSWORD_BYTES_MAX = 512
BUCKET_NAME = re.compile(r"[A-Za-z0-9_.%-]{1,100}")
"""Couchbase's rule for the names of buckets."""

ITERATIONS_MIN = 4096
"""RFC 5802's least."""

ITERATIONS_DEFAULT = 15_000
"""Ten milliseconds of a core for one guess, and for one PLAIN login; SCRAM leaves that work to the client."""

SALT_BYTES = 16
EVERY_BUCKET = "*"


class Role(StrEnum):
    """What a user may do. Each role stands for itself, but `admin`, which is all of them."""

    READ = "read"
    """Get items, ask for statistics and seqnos."""

    WRITE = "write"
    """Set, delete, touch and flush items."""

    STREAM = "stream"
    """Open DCP, UPR and TAP connections: every change of the bucket."""

    ADMIN = "admin"
    """Change vbuckets, buckets and persistence; and all that the other roles may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user: the roles, the buckets that they hold for, and what passwords are checked with."""

    name: str
    roles: frozenset[Role]
    buckets: frozenset[str] = frozenset({EVERY_BUCKET})
    verifiers: Mapping[str, Verifier] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.roles:
            raise UsersError(f"user {self.name!r} has no role; there are {', '.join(Role)}")
        if not self.buckets:
            raise UsersError(f"user {self.name!r} has no bucket; {EVERY_BUCKET!r} stands for every one")
        for bucket in self.buckets - {EVERY_BUCKET}:
            if not BUCKET_NAME.fullmatch(bucket):
                raise UsersError(
                    f"user {self.name!r}: {bucket!r} is no name of a bucket: 1 to 100 letters, digits and _ . % -"
                )

    @classmethod
    def create(
        cls,
        name: str,
        password: str,
        roles: Iterable[Role],
        buckets: Iterable[str] = (EVERY_BUCKET,),
        *,
        iterations: int = ITERATIONS_DEFAULT,
    ) -> User:
        """Make a user of a password, which is not kept; costs about 20 ms of CPU at the default iterations."""
        return cls(
            name=prepared_name(name),
            roles=frozenset(roles),
            buckets=frozenset(buckets),
            verifiers=make_verifiers(password, iterations=iterations),
        )

    def may(self, role: Role, bucket: str) -> bool:
        """Tell if the user has a role in a bucket; `"*"` asks for a role in every bucket, as of a node's admin."""
        here = bucket in self.buckets or EVERY_BUCKET in self.buckets
        return here and (role in self.roles or Role.ADMIN in self.roles)


def check_name(name: str) -> None:
    """Refuse a name that is not in its stored spelling."""
    if prepared_name(name) != name:
        raise UsersError(f"user name {name!r} is not in the spelling of SASLprep, {prepared_name(name)!r}")


def prepared_name(name: str) -> str:
    """Bring a name to its stored spelling."""
    try:
        prepared = prepare(name, what="user name", stored=True)
    except ScramError as error:
        raise UsersError(str(error)) from None
    if len(prepared.encode()) > NAME_BYTES_MAX:
        raise UsersError(f"a user name has at most {NAME_BYTES_MAX} bytes, not {len(prepared.encode())}")
    return prepared


def make_verifiers(password: str, *, iterations: int = ITERATIONS_DEFAULT) -> dict[str, Verifier]:
    """Make what is kept of a password, for each mechanism with a salt of its own."""
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise UsersError(f"iterations are of {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {iterations}")
    try:
        prepared = prepare(password, what="password", stored=True).encode()
    except ScramError as error:
        raise UsersError(str(error)) from None
    if len(prepared) > PASSWORD_BYTES_MAX:
        raise UsersError(f"a password has at most {PASSWORD_BYTES_MAX} bytes, not {len(prepared)}")
    return {
        mechanism: Verifier.derive(mechanism, prepared, salt=secrets.token_bytes(SALT_BYTES), iterations=iterations)
        for mechanism in HASHES
    }


class Users:
    """The users of a node. Changes are kept only by `save`.

    `warnings` are sentences about the file for whoever starts the node.
    """

    def __init__(
        self, users: Iterable[User] = (), *, decoy_key: bytes | None = None, warnings: Iterable[str] = ()
    ) -> None:
        self._users: dict[str, User] = {}
        self._shapes: dict[str, list[tuple[int, int]]] = {}
        self._decoy_key = secrets.token_bytes(32) if decoy_key is None else decoy_key
        self.warnings = tuple(warnings)
        for user in users:
            self.add(user)

    def __iter__(self) -> Iterator[User]:
        return iter(sorted(self._users.values(), key=lambda user: user.name))

    def __len__(self) -> int:
        return len(self._users)

    def get(self, name: str) -> User | None:
        """Find a user by the stored spelling of the name."""
        return self._users.get(name)

    def add(self, user: User) -> None:
        """Take in a user whose name is new."""
        if user.name in self._users:
            raise UsersError(f"there is a user {user.name!r} already")
        self._users[user.name] = user
        self._shapes.clear()

    def replace(self, user: User) -> None:
        """Put a user in the place of the one with that name."""
        self._found(user.name)
        self._users[user.name] = user
        self._shapes.clear()

    def remove(self, name: str) -> None:
        """Take a user out."""
        self._found(name)
        del self._users[name]
        self._shapes.clear()

    def _found(self, name: str) -> None:
        if name not in self._users:
            raise UsersError(f"there is no user {name!r}")

    def verifier(self, name: str, mechanism: str) -> Verifier:
        """Give what a password of that name is checked with.

        Nobody's name gets a decoy that no password fits, always the same one and of the shape of a real user's, so
        that an answer does not tell which names exist.
        """
        # Drawn for every name, needed or not: the time that an answer takes is an answer, too.
        decoy = self._decoy(name, mechanism)
        user = self._users.get(name)
        return decoy if user is None else user.verifiers.get(mechanism, decoy)

    def _decoy(self, name: str, mechanism: str) -> Verifier:
        drawn = hmac.digest(self._decoy_key, f"{mechanism}\0{name}".encode(), "sha512")
        shapes = self._shapes_of(mechanism)
        iterations, salt_bytes = shapes[int.from_bytes(drawn[:8]) % len(shapes)]
        return Verifier(
            mechanism=mechanism,
            iterations=iterations,
            salt=hashlib.shake_256(drawn).digest(salt_bytes),
            stored_key=_unknowable(mechanism),
            server_key=_unknowable(mechanism),
        )

    def _shapes_of(self, mechanism: str) -> list[tuple[int, int]]:
        """Iterations and salt length of each user, so that decoys have the same ones as often."""
        if mechanism not in self._shapes:
            known = (user.verifiers.get(mechanism) for user in self)
            shapes = [(verifier.iterations, len(verifier.salt)) for verifier in known if verifier is not None]
            self._shapes[mechanism] = shapes or [(ITERATIONS_DEFAULT, SALT_BYTES)]
        return self._shapes[mechanism]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Users:
        """Read a users file."""
        document, warnings = read_document(Path(path))
        try:
            return _parse(document, warnings)
        except UsersError as error:
            raise UsersError(f"users file {path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all, readable by its owner alone."""
        write_document(Path(path), self._document())

    def _document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "decoy_key": base64.b64encode(self._decoy_key).decode(),
            "users": {user.name: _user_document(user) for user in self},
        }


def _unknowable(mechanism: str) -> bytes:
    return secrets.token_bytes(hashlib.new(HASHES[mechanism]).digest_size)


def _parse(document: Any, warnings: list[str]) -> Users:
    _check_fields(document, "the file", {"version", "users"}, frozenset({"decoy_key"}))
    version = document["version"]
    if type(version) is not int or version < 1:
        raise UsersError("its version is not a number from 1")
    if version > VERSION:
        raise UsersError(f"its version is {version}; this headrace reads version {VERSION}: use a newer headrace")
    decoy_key = _octets(document, "decoy_key", "the file") if "decoy_key" in document else None
    users = _mapping(document["users"], '"users"')
    return Users((_parse_user(*named) for named in users.items()), decoy_key=decoy_key, warnings=warnings)


def _parse_user(name: str, document: object) -> User:
    what = f"user {name!r}"
    found = _check_fields(document, what, {"roles", "buckets", "scram"})
    for role in _texts(found["roles"], f"the roles of {what}"):
        if role not in set(Role):
            raise UsersError(f"{what} has an unknown role {role!r}; there are {', '.join(Role)}")
    scram = _mapping(found["scram"], f"the keys of {what}")
    if not scram:
        raise UsersError(f"{what} has no keys: set a password with `headrace user passwd`")
    return User(
        name=name,
        roles=frozenset(Role(role) for role in found["roles"]),
        buckets=frozenset(_texts(found["buckets"], f"the buckets of {what}")),
        verifiers={mechanism: _parse_verifier(what, mechanism, keys) for mechanism, keys in scram.items()},
    )


def _parse_verifier(what: str, mechanism: str, document: object) -> Verifier:
    if mechanism not in HASHES:
        raise UsersError(f"{what} has keys for an unknown mechanism {mechanism!r}; there are {', '.join(HASHES)}")
    what = f"{what}, {mechanism}"
    found = _check_fields(document, what, {"iterations", "salt", "stored_key", "server_key"})
    iterations = found["iterations"]
    if type(iterations) is not int or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise UsersError(f"{what}: the iterations are not of {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    salt, stored_key, server_key = (_octets(found, name, what) for name in ("salt", "stored_key", "server_key"))
    if not SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
        raise UsersError(f"{what}: the salt has {len(salt)} bytes, not {SALT_BYTES_MIN} to {SALT_BYTES_MAX}")
    key_bytes = hashlib.new(HASHES[mechanism]).digest_size
    if {len(stored_key), len(server_key)} != {key_bytes}:
        raise UsersError(f"{what}: both keys have {key_bytes} bytes")
    return Verifier(mechanism=mechanism, iterations=iterations, salt=salt, stored_key=stored_key, server_key=server_key)


def _user_document(user: User) -> dict[str, Any]:
    return {
        "roles": [role for role in Role if role in user.roles],
        "buckets": sorted(user.buckets),
        "scram": {
            mechanism: {
                "iterations": verifier.iterations,
                "salt": base64.b64encode(verifier.salt).decode(),
                "stored_key": base64.b64encode(verifier.stored_key).decode(),
                "server_key": base64.b64encode(verifier.server_key).decode(),
            }
            for mechanism, verifier in user.verifiers.items()
        },
    }


def _check_fields(
    document: object, what: str, needed: set[str], optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    found = _mapping(document, what)
    for name in sorted(needed - found.keys()):
        raise UsersError(f"{what} has no {name!r}")
    for name in sorted(found.keys() - needed - optional):
        raise UsersError(f"{what} has an unknown field {name!r}")
    return found


def _mapping(document: object, what: str) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise UsersError(f"{what} is not a JSON object")
    return document


def _texts(document: object, what: str) -> list[str]:
    if not isinstance(document, list) or not all(isinstance(each, str) for each in document):
        raise UsersError(f"{what} are not a list of texts")
    return document


def _octets(found: Mapping[str, Any], name: str, what: str) -> bytes:
    try:
        return base64.b64decode(found[name], validate=True)
    except (TypeError, ValueError):  # not a text, or not base64; never quoted, since it may be a key
        raise UsersError(f"{what}: {name!r} is not base64") from None


__all__ = ["EVERY_BUCKET", "Role", "User", "Users", "UsersError", "make_verifiers", "prepared_name"]
