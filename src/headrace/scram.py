"""SCRAM (RFC 5802, 7677) as Couchbase speaks it: the arithmetic, and the client's half of the talk. Pure.

The server's half is `headrace.node.sasl`, since it needs users. Both are written on hashlib: the library scramp refuses
the nonces of Couchbase's C++ clients, which hold spaces, and the 4000 iterations that Couchbase Server draws its keys
with. The tests let scramp judge both halves where it can.

Nothing here shows a password, a key or a proof: not in a repr, not in an error.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from dataclasses import dataclass

from headrace.errors import HeadraceError

HASHES = {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
"""The mechanisms, best first, spelled as Couchbase spells them (RFC 7677 has a hyphen more), and their hashes."""

ITERATIONS_MAX = 1_000_000
"""The most rounds of PBKDF2 that a peer or a file may ask for: two thirds of a second of one core."""

PEER_ITERATIONS_MIN = 1000
"""The fewest that a server may ask of us; Couchbase Server asks for 4000 unless it is told otherwise."""

SALT_BYTES_MIN, SALT_BYTES_MAX = 8, 256

GS2_HEADER = b"n,,"
"""No channel binding, and no authorization id."""


class ScramError(HeadraceError):
    """The peer's SCRAM message is wrong, or a text cannot be a name or password; the error never quotes it."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verifier:
    """What a server keeps in place of a password. It proves nothing to another server, unlike the password."""

    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def derive(cls, mechanism: str, password: bytes, *, salt: bytes, iterations: int) -> Verifier:
        """Make one from a prepared password; costs `iterations` rounds of PBKDF2, with the GIL released."""
        hash_name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)
        return cls(
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            stored_key=hashlib.new(hash_name, hmac.digest(salted, b"Client Key", hash_name)).digest(),
            server_key=hmac.digest(salted, b"Server Key", hash_name),
        )

    def fits(self, password: bytes) -> bool:
        """Tell if this was made from that prepared password; costs as much as to make it."""
        again = Verifier.derive(self.mechanism, password, salt=self.salt, iterations=self.iterations)
        return hmac.compare_digest(again.stored_key, self.stored_key)

    def accepts(self, proof: bytes, transcript: bytes) -> bool:
        """Tell if a client's proof shows that it knows the password; the transcript is RFC 5802's AuthMessage."""
        hash_name = HASHES[self.mechanism]
        if len(proof) != len(self.stored_key):
            return False
        client_key = _xor(proof, hmac.digest(self.stored_key, transcript, hash_name))
        return hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), self.stored_key)

    def sign(self, transcript: bytes) -> bytes:
        """Show the client that this server knows the keys, too."""
        return hmac.digest(self.server_key, transcript, HASHES[self.mechanism])

    def __repr__(self) -> str:
        return f"Verifier({self.mechanism}, {self.iterations} iterations)"


class ScramClient:
    """The client's half: `first()`, then `final()` of what the server answers, then `check()` of its last word.

    `nonce` must be new for each talk, and hold no comma.
    """

    def __init__(self, mechanism: str, *, username: str, password: str, nonce: bytes) -> None:
        self._mechanism = mechanism
        self._password = prepare(password, what="password").encode()
        self._nonce = nonce
        self._bare = b"n=" + escape(prepare(username, what="user name")) + b",r=" + nonce
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """Give the challenge of SASL_AUTH."""
        return GS2_HEADER + self._bare

    def final(self, server_first: bytes) -> bytes:
        """Give the challenge of SASL_STEP; costs the rounds of PBKDF2 that the server asks for."""
        attributes = split_attributes(server_first)
        nonce, salt, iterations = (attributes.get(name, b"") for name in (b"r", b"s", b"i"))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramError("the server's nonce does not go on from the client's")
        if not iterations.isdigit() or not PEER_ITERATIONS_MIN <= int(iterations[:10]) <= ITERATIONS_MAX:
            raise ScramError(f"the server's iterations are not of {PEER_ITERATIONS_MIN} to {ITERATIONS_MAX}")
        salt = decode_base64(salt, what="the server's salt")
        if not SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
            raise ScramError(f"the server's salt has {len(salt)} bytes")
        hash_name = HASHES[self._mechanism]
        salted = hashlib.pbkdf2_hmac(hash_name, self._password, salt, int(iterations))
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        stored_key = hashlib.new(hash_name, client_key).digest()
        unproved = b"c=" + base64.b64encode(GS2_HEADER) + b",r=" + nonce
        transcript = b",".join((self._bare, server_first, unproved))
        proof = _xor(client_key, hmac.digest(stored_key, transcript, hash_name))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), transcript, hash_name)
        return unproved + b",p=" + base64.b64encode(proof)

    def check(self, server_final: bytes) -> None:
        """Refuse a server that cannot show that it knows the user's keys."""
        shown = decode_base64(split_attributes(server_final).get(b"v", b""), what="the server's signature")
        if self._signature is None or not hmac.compare_digest(shown, self._signature):
            raise ScramError("the server does not know this user's password: it may not be the one it says it is")


def split_attributes(message: bytes) -> dict[bytes, bytes]:
    """Part `a=b,c=d`; what stands in a value is the reader's business, and a letter may come once."""
    attributes: dict[bytes, bytes] = {}
    for part in message.split(b","):
        name, equals, content = part.partition(b"=")
        if not equals or len(name) != 1 or name in attributes:
            raise ScramError("a SCRAM message is a list of single letters, each with = and a value")
        attributes[name] = content
    return attributes


def decode_base64(text: bytes, *, what: str) -> bytes:
    """Read base64 in its one canonical spelling, so that no other bytes mean the same."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError(f"{what} is not base64") from None
    if base64.b64encode(content) != text:
        raise ScramError(f"{what} is not base64 as RFC 4648 spells it")
    return content


def escape(name: str) -> bytes:
    """Write a name as SCRAM's messages hold it."""
    return name.replace("=", "=3D").replace(",", "=2C").encode()


def unescape(name: bytes) -> str:
    """Read a name from a SCRAM message."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise ScramError("the user name is not UTF-8") from None
    if text.count("=") != text.count("=2C") + text.count("=3D"):
        raise ScramError("the user name has a = that is neither =2C nor =3D")
    return text.replace("=2C", ",").replace("=3D", "=")


def prepare(text: str, *, what: str, stored: bool = False) -> str:
    """Bring a name or password to the one spelling that is compared: SASLprep, RFC 4013.

    Code points that Unicode 3.2 had not yet assigned are allowed in what is asked, and refused in what is stored.
    """
    if not (text.isascii() and text.isprintable()):  # printable ASCII comes out as it goes in
        text = "".join(" " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c))
        text = unicodedata.ucd_3_2_0.normalize("NFKC", text)
        _refuse_prohibited(text, what=what, stored=stored)
    if not text:
        raise ScramError(f"the {what} is empty")
    return text


_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def _refuse_prohibited(text: str, *, what: str, stored: bool) -> None:
    for c in text:
        if any(prohibited(c) for prohibited in _PROHIBITED):
            raise ScramError(f"the {what} has a control, private or otherwise prohibited character")
        if stored and stringprep.in_table_a1(c):
            raise ScramError(f"the {what} has a character that SASLprep does not know (Unicode 3.2)")
    if any(map(stringprep.in_table_d1, text)):
        whole = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
        if not whole or any(map(stringprep.in_table_d2, text)):
            raise ScramError(f"the {what} mixes left-to-right and right-to-left characters")


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))


__all__ = [
    "GS2_HEADER",
    "HASHES",
    "ITERATIONS_MAX",
    "PEER_ITERATIONS_MIN",
    "ScramClient",
    "ScramError",
    "Verifier",
    "decode_base64",
    "escape",
    "prepare",
    "split_attributes",
    "unescape",
]
