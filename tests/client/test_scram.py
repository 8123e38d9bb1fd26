import base64

import pytest
from scramp import ScramException, ScramMechanism

from headrace.scram import HASHES, ScramClient, ScramError

FOREIGN = {"SCRAM-SHA512": "SCRAM-SHA-512", "SCRAM-SHA256": "SCRAM-SHA-256", "SCRAM-SHA1": "SCRAM-SHA-1"}
NONCE = b"clientnonce"
SALT = base64.b64encode(bytes(16))


def client(mechanism: str = "SCRAM-SHA1", *, username: str = "user", password: str = "pencil") -> ScramClient:
    """A client with a known nonce."""
    return ScramClient(mechanism, username=username, password=password, nonce=NONCE)


@pytest.mark.parametrize("username", ["user", "a,b=c", "Jürgen"])
@pytest.mark.parametrize("mechanism", HASHES)
def test_foreign_server(mechanism: str, username: str):
    """The server of the library scramp lets our client in, and our client trusts its signature."""
    foreign = ScramMechanism(FOREIGN[mechanism])
    keys = foreign.make_auth_info("pencil", iteration_count=4096)
    asked: list[str] = []

    def keys_of(name: str) -> tuple[bytes, bytes, bytes, int]:
        asked.append(name)
        return keys  # type: ignore[no-any-return]

    server = foreign.make_server(keys_of)
    ours = client(mechanism, username=username)
    server.set_client_first(ours.first().decode())
    server.set_client_final(ours.final(server.get_server_first().encode()).decode())
    ours.check(server.get_server_final().encode())
    assert asked == [username]


@pytest.mark.parametrize("mechanism", HASHES)
def test_foreign_server_refuses(mechanism: str):
    """The server of the library scramp refuses a wrong password, and our client trusts no other signature."""
    foreign = ScramMechanism(FOREIGN[mechanism])
    keys = foreign.make_auth_info("pencil", iteration_count=4096)
    server = foreign.make_server(lambda _: keys)
    ours = client(mechanism, password="pencils")
    server.set_client_first(ours.first().decode())
    final = ours.final(server.get_server_first().encode())
    with pytest.raises(ScramException):
        server.set_client_final(final.decode())
    for wrong in (b"v=" + base64.b64encode(bytes(64)), b"v=", b"e=other-error", b"x"):
        with pytest.raises(ScramError):
            ours.check(wrong)


def test_iterations_of_couchbase():
    """The 4000 iterations that Couchbase Server asks for are served; scramp's client would refuse them."""
    assert client().final(b"r=%bserver,s=%b,i=4000" % (NONCE, SALT)).startswith(b"c=biws,r=clientnonceserver,p=")


@pytest.mark.parametrize(
    "server_first",
    [
        b"",
        b"e=unknown-user",
        b"r=%b,s=%b,i=4096" % (NONCE, SALT),
        b"r=other,s=%b,i=4096" % SALT,
        b"r=%bx,s=%b" % (NONCE, SALT),
        b"r=%bx,s=%b,i=999" % (NONCE, SALT),
        b"r=%bx,s=%b,i=1000001" % (NONCE, SALT),
        b"r=%bx,s=%b,i=10000000000000" % (NONCE, SALT),
        b"r=%bx,s=%b,i=-1" % (NONCE, SALT),
        b"r=%bx,s=%b,i=4e3" % (NONCE, SALT),
        b"r=%bx,s=AAAA,i=4096" % NONCE,
        b"r=%bx,s=!,i=4096" % NONCE,
        b"r=%bx,i=4096,s=%b" % (NONCE, base64.b64encode(bytes(257))),
        b"r=%bx,r=%by,s=%b,i=4096" % (NONCE, NONCE, SALT),
    ],
)
def test_wrong_first_answers(server_first: bytes):
    """A server that answers something else, or asks for hours of work, is not answered."""
    with pytest.raises(ScramError):
        client().final(server_first)


def test_signature_before_proof():
    """A server that signs before it was asked is not trusted."""
    with pytest.raises(ScramError, match="may not be the one it says it is"):
        client().check(b"v=" + base64.b64encode(bytes(20)))


def test_nothing_is_shown():
    """Neither the client nor its errors show the password."""
    ours = client(password="open sesame")
    assert "sesame" not in repr(ours)
    with pytest.raises(ScramError) as caught:
        client(password="open\x07sesame")
    assert "sesame" not in str(caught.value)
