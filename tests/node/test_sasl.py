import base64
import hashlib
import hmac
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient as ForeignClient
from scramp import ScramException

from headrace.node.sasl import CHALLENGE_BYTES_MAX, MECHANISMS, Continue, Failure, SaslServer, Success
from headrace.node.users import ITERATIONS_MIN, Role, User, Users, make_verifiers
from headrace.scram import HASHES, ScramClient, Verifier

PASSWORD = "pencil"
SCRAM = sorted(name.encode() for name in HASHES)
FOREIGN = {b"SCRAM-SHA512": "SCRAM-SHA-512", b"SCRAM-SHA256": "SCRAM-SHA-256", b"SCRAM-SHA1": "SCRAM-SHA-1"}
VERIFIERS = make_verifiers(PASSWORD, iterations=ITERATIONS_MIN)
OTHERS = make_verifiers("other", iterations=ITERATIONS_MIN)
NAMES = ("user", "a,b=c", "Jürgen", "=2C")
USERS = Users(
    [User(name=name, roles=frozenset({Role.READ}), verifiers=VERIFIERS) for name in NAMES]
    + [User(name="eve", roles=frozenset({Role.ADMIN}), verifiers=OTHERS)]
)
REFUSED = "the name or the password is wrong"


@pytest.fixture
def server():
    """The server's side of a connection."""
    return SaslServer(USERS)


def talk(server: SaslServer, mechanism: bytes, *, name: str = "user", password: str = PASSWORD) -> Success | Failure:
    """Authenticate with our own client."""
    client = ScramClient(mechanism.decode(), username=name, password=password, nonce=b"a client's nonce")
    answer = server.auth(mechanism, client.first())
    assert isinstance(answer, Continue)
    last = server.step(mechanism, client.final(answer.data))
    if isinstance(last, Success):
        client.check(last.data)
    assert not isinstance(last, Continue)
    return last


def first_of(server: SaslServer, mechanism: bytes, *, name: str = "user") -> tuple[ScramClient, bytes]:
    """Go up to the server's first message."""
    client = ScramClient(mechanism.decode(), username=name, password=PASSWORD, nonce=b"nonce")
    answer = server.auth(mechanism, client.first())
    assert isinstance(answer, Continue)
    return client, answer.data


def test_mechanisms():
    """The list is spelled and ordered as Couchbase's clients expect it."""
    assert MECHANISMS == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"


@pytest.mark.parametrize(
    ("mechanism", "client_nonce", "server_nonce", "salt", "proof", "signature"),
    [
        (
            "SCRAM-SHA1",
            b"fyko+d2lbbFgONRv9qkxdawL",
            b"3rfcNHYJY1ZVvWVs7j",
            b"QSXCR+Q6sek8bf92",
            b"v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            b"rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        ),
        (
            "SCRAM-SHA256",
            b"rOprNGfwEbeRWgbNEkqO",
            b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            b"W22ZaJ0SNY7soEsUEjb6gQ==",
            b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        ),
    ],
    ids=["RFC 5802", "RFC 7677"],
)
def test_vectors_of_the_documents(
    mechanism: str, client_nonce: bytes, server_nonce: bytes, salt: bytes, proof: bytes, signature: bytes
):
    """Both sides say, byte for byte, what the examples of the RFCs say."""
    keys = Verifier.derive(mechanism, b"pencil", salt=base64.b64decode(salt), iterations=4096)
    users = Users([User(name="user", roles=frozenset({Role.READ}), verifiers={mechanism: keys})])
    server = SaslServer(users, nonce=lambda: server_nonce)
    client = ScramClient(mechanism, username="user", password="pencil", nonce=client_nonce)
    assert client.first() == b"n,,n=user,r=" + client_nonce
    answer = server.auth(mechanism.encode(), client.first())
    assert answer == Continue(b"r=%b,s=%b,i=4096" % (client_nonce + server_nonce, salt))
    final = client.final(answer.data)
    assert final == b"c=biws,r=%b,p=%b" % (client_nonce + server_nonce, proof)
    last = server.step(mechanism.encode(), final)
    assert last == Success(next(iter(users)), b"v=" + signature)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mechanism", SCRAM)
def test_foreign_client(server: SaslServer, mechanism: bytes, name: str):
    """The client of the library scramp gets in, and is content with the server's signature."""
    client = ForeignClient([FOREIGN[mechanism]], name, PASSWORD)
    answer = server.auth(mechanism, client.get_client_first().encode())
    assert isinstance(answer, Continue)
    client.set_server_first(answer.data.decode())
    last = server.step(mechanism, client.get_client_final().encode())
    assert isinstance(last, Success)
    assert last.user.name == name
    client.set_server_final(last.data.decode())


@pytest.mark.parametrize("mechanism", SCRAM)
def test_foreign_client_with_a_wrong_password(server: SaslServer, mechanism: bytes):
    """The client of the library scramp does not get in with another password."""
    client = ForeignClient([FOREIGN[mechanism]], "user", "pencils")
    answer = server.auth(mechanism, client.get_client_first().encode())
    assert isinstance(answer, Continue)
    client.set_server_first(answer.data.decode())
    assert server.step(mechanism, client.get_client_final().encode()) == Failure(REFUSED, "user")
    with pytest.raises(ScramException):
        client.set_server_final("v=AAAA")


@pytest.mark.parametrize("mechanism", SCRAM)
def test_nonce_of_the_cxx_sdk(server: SaslServer, mechanism: bytes):
    """The nonce of Couchbase's C++ core, with spaces, is taken as it is, and so is one of odd bytes."""
    for nonce in (b"0xffffff9b 0x54 0xffffffd1 0x7", b"\xff\xfe=\t\x00r=p="):
        client = ScramClient(mechanism.decode(), username="user", password=PASSWORD, nonce=nonce)
        answer = server.auth(mechanism, client.first())
        assert isinstance(answer, Continue)
        assert answer.data.startswith(b"r=" + nonce)
        assert isinstance(server.step(mechanism, client.final(answer.data)), Success)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_every_changed_byte_of_the_last_message_fails(server: SaslServer, mechanism: bytes):
    """No byte of the client's last message may differ: not of the proof, the nonce, or the channel."""
    client, first = first_of(server, mechanism)
    final = client.final(first)
    for place, bit in itertools.product(range(len(final)), (0x01, 0x10, 0x20)):
        changed = bytearray(final)
        changed[place] ^= bit
        server = SaslServer(USERS, nonce=lambda: first[len(b"r=nonce") : first.index(b",")])
        _, again = first_of(server, mechanism)
        assert again == first
        assert isinstance(server.step(mechanism, bytes(changed)), Failure), (place, bit)
    _, again = first_of(server, mechanism)
    assert isinstance(server.step(mechanism, final), Success)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_cut_and_grown_proofs_fail(server: SaslServer, mechanism: bytes):
    """A proof of any other length fails."""
    length = len(VERIFIERS[mechanism.decode()].stored_key)
    for wrong in (0, 1, length - 1, length + 1):
        client, first = first_of(server, mechanism)
        unproved, _, _ = client.final(first).rpartition(b",p=")
        outcome = server.step(mechanism, unproved + b",p=" + base64.b64encode(bytes(wrong)))
        assert outcome == Failure(REFUSED, "user")


def test_replayed_proof_fails(server: SaslServer):
    """A whole exchange that was overheard does not let another in: the server's nonce is new each time."""
    mechanism = b"SCRAM-SHA256"
    client, first = first_of(server, mechanism)
    final = client.final(first)
    assert isinstance(server.step(mechanism, final), Success)
    first_of(server, mechanism)
    assert server.step(mechanism, final) == Failure("the nonce is not the one of this exchange", "user")


@pytest.mark.parametrize("mechanism", [*SCRAM, b"PLAIN"])
def test_authenticating_again(server: SaslServer, mechanism: bytes):
    """A connection may become another user, and after a failure try again."""
    again = talk(server, b"SCRAM-SHA512")
    assert isinstance(again, Success)
    if mechanism == b"PLAIN":
        assert isinstance(server.auth(mechanism, b"\0eve\0wrong"), Failure)
        last = server.auth(mechanism, b"\0eve\0other")
    else:
        assert isinstance(talk(server, mechanism, name="eve"), Failure)
        last = talk(server, mechanism, name="eve", password="other")
    assert isinstance(last, Success)
    assert last.user.name == "eve"


def test_steps_out_of_place(server: SaslServer):
    """A step needs an exchange that waits for it: not none, not a finished or failed one, not another mechanism."""
    mechanism = b"SCRAM-SHA1"
    assert isinstance(server.step(mechanism, b"c=biws,r=x,p=AAAA"), Failure)
    client, first = first_of(server, mechanism)
    final = client.final(first)
    assert isinstance(server.step(b"SCRAM-SHA256", final), Failure)
    assert isinstance(server.step(mechanism, final), Failure)
    client, first = first_of(server, mechanism)
    server.auth(b"PLAIN", b"\0user\0wrong")
    assert isinstance(server.step(mechanism, client.final(first)), Failure)
    client, first = first_of(server, mechanism)
    final = client.final(first)
    assert isinstance(server.step(b"", final), Success)
    assert isinstance(server.step(mechanism, final), Failure)


@pytest.mark.parametrize("mechanism", [b"", b"scram-sha512", b"SCRAM-SHA-512", b"EXTERNAL", b"SCRAM-SHA512 ", b"\xff"])
def test_unknown_mechanisms(server: SaslServer, mechanism: bytes):
    """A mechanism that is not in the list is refused with the list."""
    outcome = server.auth(mechanism, b"n,,n=user,r=x")
    assert isinstance(outcome, Failure)
    assert "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN" in outcome.reason


@pytest.mark.parametrize(
    ("challenge", "name"),
    [
        (b"\0user\0pencil", "user"),
        (b"user\0user\0pencil", "user"),
        ("\0Jürgen\0pencil".encode(), "Jürgen"),
        ("\0Ju\u0308rgen\0pen\u00adcil".encode(), "Jürgen"),
        (b"\0a,b=c\0pencil", "a,b=c"),
    ],
)
def test_plain(server: SaslServer, challenge: bytes, name: str):
    """PLAIN lets in with an empty authorization id or the user's own, in any spelling that SASLprep makes one."""
    outcome = server.auth(b"PLAIN", challenge)
    assert isinstance(outcome, Success)
    assert (outcome.user.name, outcome.data) == (name, b"")


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"user",
        b"user\0pencil",
        b"\0user\0pencil\0",
        b"\0user\0",
        b"\0\0pencil",
        b"\0user\0pencils",
        b"\0user\0Pencil",
        b"eve\0user\0pencil",
        b"\0us\xffer\0pencil",
        b"\0user\0pencil\x07",
        b"\0nobody\0pencil",
        b"\0" + b"u" * 129 + b"\0pencil",
        b"\0user\0" + b"p" * CHALLENGE_BYTES_MAX,
    ],
)
def test_plain_refuses(server: SaslServer, challenge: bytes):
    """PLAIN of another shape, for another user, or with another password does not let in."""
    outcome = server.auth(b"PLAIN", challenge)
    assert isinstance(outcome, Failure)
    assert "pencil" not in repr(outcome)


def test_plain_by_the_keys_that_there_are():
    """A user with keys for one mechanism only still gets in by PLAIN."""
    only = {"SCRAM-SHA1": VERIFIERS["SCRAM-SHA1"]}
    server = SaslServer(Users([User(name="old", roles=frozenset({Role.READ}), verifiers=only)]))
    assert isinstance(server.auth(b"PLAIN", b"\0old\0pencil"), Success)
    assert isinstance(server.auth(b"PLAIN", b"\0old\0pencils"), Failure)
    assert isinstance(talk(server, b"SCRAM-SHA1", name="old"), Success)
    assert talk(server, b"SCRAM-SHA512", name="old") == Failure(REFUSED, "old")


@pytest.mark.parametrize("mechanism", SCRAM)
def test_unknown_users_look_like_known_ones(server: SaslServer, mechanism: bytes):
    """A name that nobody has gets a salt of its own that stays, and is refused as a wrong password is."""
    shapes = []
    for name in ("eve", "nobody"):
        salts = set()
        for _ in range(2):
            client, first = first_of(server, mechanism, name=name)
            nonce, salt, iterations = first.split(b",")
            salts.add(salt)
            shapes.append((len(nonce), len(salt), iterations))
            outcome = server.step(mechanism, client.final(first))
            assert outcome == Failure(REFUSED, name)
        assert len(salts) == 1
    assert len(set(shapes)) == 1


def test_unknown_users_cost_as_much(server: SaslServer, monkeypatch: pytest.MonkeyPatch):
    """PLAIN for a name that nobody has derives keys, too."""
    derived = []
    derive = Verifier.derive

    def counted(mechanism: str, password: bytes, *, salt: bytes, iterations: int) -> Verifier:
        derived.append((mechanism, iterations))
        return derive(mechanism, password, salt=salt, iterations=iterations)

    monkeypatch.setattr(Verifier, "derive", counted)
    outcomes = [server.auth(b"PLAIN", b"\0%b\0wrong" % name) for name in (b"eve", b"nobody")]
    assert outcomes == [Failure(REFUSED, "eve"), Failure(REFUSED, "nobody")]
    assert derived == [("SCRAM-SHA512", ITERATIONS_MIN)] * 2


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"n",
        b"n,",
        b"n,,",
        b"n,,n=user",
        b"n,,r=x,n=user",
        b"n,,n=user,r=",
        b"n,,n=,r=x",
        b"n,,m=ext,n=user,r=x",
        b"n,,n=us=er,r=x",
        b"n,,n=us=2cer,r=x",
        b"n,,n=\xff,r=x",
        b"n,,n=user,n=user,r=x",
        b"n,a=eve,n=user,r=x",
        b"n,user,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"q,,n=user,r=x",
        b"n,,n=user,r=x,",
        b"n,,n=" + b"u" * 129 + b",r=x",
        b"n,,n=user,r=" + b"x" * CHALLENGE_BYTES_MAX,
    ],
)
def test_wrong_first_messages(server: SaslServer, challenge: bytes):
    """A first message of another shape is refused, and no step may follow."""
    assert isinstance(server.auth(b"SCRAM-SHA512", challenge), Failure)
    assert isinstance(server.step(b"SCRAM-SHA512", b"c=biws,r=x,p=AAAA"), Failure)


@pytest.mark.parametrize("header", [b"y,,", b"n,a=user,", b"y,a=user,"])
def test_headers_are_bound(server: SaslServer, header: bytes):
    """A client that would bind channels, or names itself twice, gets in, and only with that header in its proof."""
    nonce = b"nonce"
    for channel, wanted in ((header, Success), (b"n,,", Failure)):
        answer = server.auth(b"SCRAM-SHA1", header + b"n=user,r=" + nonce)
        assert isinstance(answer, Continue)
        final = b"c=%b,%b" % (base64.b64encode(channel), answer.data.split(b",")[0])
        transcript = b"n=user,r=" + nonce + b"," + answer.data + b"," + final
        proof = _prove(VERIFIERS["SCRAM-SHA1"], transcript)
        assert isinstance(server.step(b"SCRAM-SHA1", final + b",p=" + base64.b64encode(proof)), wanted)


def _prove(verifier: Verifier, transcript: bytes) -> bytes:
    salted = hashlib.pbkdf2_hmac("sha1", PASSWORD.encode(), verifier.salt, verifier.iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha1")
    signature = hmac.digest(verifier.stored_key, transcript, "sha1")
    return bytes(one ^ other for one, other in zip(client_key, signature, strict=True))


def test_mandatory_extensions_are_refused(server: SaslServer):
    """A last message that demands an extension is refused."""
    _, first = first_of(server, b"SCRAM-SHA1")
    outcome = server.step(b"SCRAM-SHA1", b"c=biws,%b,m=ext,p=AAAA" % first.split(b",")[0])
    assert isinstance(outcome, Failure)
    assert "extension" in outcome.reason


def test_long_last_message(server: SaslServer):
    """A last message beyond the bound is refused unread."""
    first_of(server, b"SCRAM-SHA1")
    assert isinstance(server.step(b"SCRAM-SHA1", b"x" * (CHALLENGE_BYTES_MAX + 1)), Failure)


def challenges() -> Iterator[st.SearchStrategy[bytes]]:
    """Bytes near and far of what clients send."""
    yield st.binary(max_size=64)
    yield st.lists(
        st.sampled_from([b"n", b"y", b",", b"=", b"n=user", b"r=x", b"a=user", b"p=AAAA", b"\0", b"m="])
    ).map(b"".join)


@given(st.sampled_from([*SCRAM, b"PLAIN"]), st.one_of(*challenges()), st.one_of(*challenges()))
def test_any_bytes(mechanism: bytes, first: bytes, second: bytes):
    """Whatever bytes come, an outcome goes, and nobody gets in by chance."""
    server = SaslServer(USERS)
    assert isinstance(server.auth(mechanism, first), Continue | Failure)
    assert isinstance(server.step(mechanism, second), Failure)


def test_cost_is_told(server: SaslServer):
    """Only PLAIN is worth a thread."""
    assert [name for name in MECHANISMS.split() if server.is_costly(name)] == [b"PLAIN"]
