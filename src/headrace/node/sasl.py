"""The server's side of SASL, one per connection: PLAIN and SCRAM, without IO.

    idle --auth(PLAIN)--> Success | Failure, and idle again
    idle --auth(SCRAM…)--> Continue, awaiting the proof --step--> Success | Failure, and idle again

An `auth` at any time begins anew: clients authenticate again on a connection that they keep. What the caller does with
a Failure is to answer 0x20; with a Continue 0x21 and its bytes; with a Success 0x00 and its bytes.

Cost: `auth` with PLAIN derives keys by PBKDF2, some 10 ms of CPU at the default iterations and bounded by the users
file; hashlib releases the GIL, so a caller with other connections runs it in a thread (`is_costly` tells). All else
takes microseconds. A name that nobody has costs as much and is answered alike.

Nothing that a client sends is trusted to be UTF-8, or short: a challenge has at most 1 KiB. The nonces of Couchbase's
C++ clients hold spaces and are kept as the bytes that they are.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.node.users import NAME_BYTES_MAX, User, Users
from headrace.scram import HASHES, ScramError, Verifier, decode_base64, prepare, split_attributes, unescape

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = b"PLAIN"
MECHANISMS = b" ".join((*(name.encode() for name in HASHES), PLAIN))
"""What SASL_LIST_MECHS answers, best first."""

CHALLENGE_BYTES_MAX = 1024
_PLAIN_PARTS = 3


@dataclass(frozen=True, slots=True)
class Continue:
    """The client is to answer these bytes in a SASL_STEP."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Success:
    """The client is who it says it is; `data` shows it that the server is, too."""

    user: User
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """The client is not let in. The reason tells a client nothing about who exists; `name` is for the log."""

    reason: str
    name: str | None = None


Outcome = Continue | Success | Failure


@dataclass(frozen=True, slots=True, repr=False)
class _Talk:
    """A SCRAM exchange that waits for the client's proof."""

    mechanism: bytes
    name: str
    verifier: Verifier
    channel: bytes
    nonce: bytes
    transcript: bytes


def _draw_nonce() -> bytes:
    return secrets.token_urlsafe(24).encode()


class SaslServer:
    """Authenticates the client of one connection, as often as it asks to be.

    `nonce` gives a new server nonce, without commas, for each exchange.
    """

    def __init__(self, users: Users, *, nonce: Callable[[], bytes] = _draw_nonce) -> None:
        self._users = users
        self._nonce = nonce
        self._talk: _Talk | None = None

    @staticmethod
    def is_costly(mechanism: bytes) -> bool:
        """Tell if `auth` by this mechanism takes milliseconds, and so is better run in a thread."""
        return mechanism == PLAIN

    def auth(self, mechanism: bytes, challenge: bytes) -> Outcome:
        """Begin: the key and value of SASL_AUTH."""
        self._talk = None
        if len(challenge) > CHALLENGE_BYTES_MAX:
            return Failure(f"a challenge has at most {CHALLENGE_BYTES_MAX} bytes")
        try:
            if mechanism == PLAIN:
                return self._plain(challenge)
            if mechanism in MECHANISMS.split():
                return self._first(mechanism, challenge)
        except ScramError as error:
            return Failure(str(error))
        return Failure(f"no such mechanism; there are {MECHANISMS.decode()}")

    def step(self, mechanism: bytes, challenge: bytes) -> Outcome:
        """Go on: the key and value of SASL_STEP."""
        talk, self._talk = self._talk, None
        if talk is None:
            return Failure("a step, and no authentication that waits for it")
        if mechanism not in (talk.mechanism, b""):
            return Failure("a step of another mechanism than the one begun", talk.name)
        if len(challenge) > CHALLENGE_BYTES_MAX:
            return Failure(f"a challenge has at most {CHALLENGE_BYTES_MAX} bytes", talk.name)
        try:
            return self._final(talk, challenge)
        except ScramError as error:
            return Failure(str(error), talk.name)

    def _plain(self, challenge: bytes) -> Outcome:
        parts = challenge.split(b"\0")
        if len(parts) != _PLAIN_PARTS:
            return Failure("PLAIN is an authorization id, a name and a password, parted by NUL bytes")
        try:
            behalf, name, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            return Failure("the name or the password is not UTF-8")
        name = _checked_name(name)
        if behalf and prepare(behalf, what="authorization id") != name:
            return Failure("nobody may act for another user", name)
        mechanism = self._best_mechanism(name)
        fits = self._users.verifier(name, mechanism).fits(prepare(password, what="password").encode())
        user = self._users.get(name)
        if user is None or not fits:
            return _refused(name)
        return Success(user)

    def _best_mechanism(self, name: str) -> str:
        user = self._users.get(name)
        known = user.verifiers if user is not None else HASHES
        return next(mechanism for mechanism in HASHES if mechanism in known)

    def _first(self, mechanism: bytes, challenge: bytes) -> Outcome:
        channel, name, bare, client_nonce = _read_first(challenge)
        verifier = self._users.verifier(name, mechanism.decode())
        nonce = client_nonce + self._nonce()
        server_first = b"r=%b,s=%b,i=%d" % (nonce, base64.b64encode(verifier.salt), verifier.iterations)
        transcript = bare + b"," + server_first
        self._talk = _Talk(mechanism, name, verifier, channel, nonce, transcript)
        return Continue(server_first)

    def _final(self, talk: _Talk, challenge: bytes) -> Outcome:
        unproved, _, proof_text = challenge.rpartition(b",p=")
        attributes = split_attributes(unproved)
        if b"m" in attributes:
            return Failure("a mandatory extension that this server does not have", talk.name)
        if attributes.get(b"c") != base64.b64encode(talk.channel):
            return Failure("the channel binding is not the one of the first message", talk.name)
        if not hmac.compare_digest(attributes.get(b"r", b""), talk.nonce):
            return Failure("the nonce is not the one of this exchange", talk.name)
        proof = decode_base64(proof_text, what="the proof")
        transcript = talk.transcript + b"," + unproved
        proved = talk.verifier.accepts(proof, transcript)
        user = self._users.get(talk.name)
        if user is None or not proved:
            return _refused(talk.name)
        return Success(user, b"v=" + base64.b64encode(talk.verifier.sign(transcript)))


def _refused(name: str) -> Failure:
    return Failure("the name or the password is wrong", name)


def _checked_name(name: str) -> str:
    prepared = prepare(name, what="user name")
    if len(prepared.encode()) > NAME_BYTES_MAX:
        raise ScramError(f"a user name has at most {NAME_BYTES_MAX} bytes")
    return prepared


def _read_first(challenge: bytes) -> tuple[bytes, str, bytes, bytes]:
    """Part `n,,n=NAME,r=NONCE`: channel binding header, name, the part without that header, and the nonce."""
    binding, first_comma, rest = challenge.partition(b",")
    behalf, second_comma, bare = rest.partition(b",")
    if not (first_comma and second_comma):
        raise ScramError("the first SCRAM message has no header")
    if binding not in (b"n", b"y"):
        raise ScramError("channel binding is not supported")
    attributes = split_attributes(bare)
    if list(attributes)[:2] != [b"n", b"r"]:
        raise ScramError("the first SCRAM message is a name and a nonce, and no mandatory extension")
    name = _checked_name(unescape(attributes[b"n"]))
    if behalf and (behalf[:2] != b"a=" or prepare(unescape(behalf[2:]), what="authorization id") != name):
        raise ScramError("nobody may act for another user")
    nonce = attributes[b"r"]
    if not nonce:
        raise ScramError("the client's nonce is empty")
    return challenge[: len(challenge) - len(bare)], name, bare, nonce


__all__ = ["MECHANISMS", "Continue", "Failure", "Outcome", "SaslServer", "Success"]
