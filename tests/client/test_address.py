import pytest

from headrace.client import Address, AddressError


@pytest.mark.parametrize(
    ("text", "host", "port", "tls"),
    [
        ("couchbase://db.example.com", "db.example.com", 11210, False),
        ("couchbase://db.example.com/", "db.example.com", 11210, False),
        ("couchbase://127.0.0.1:12000", "127.0.0.1", 12000, False),
        ("couchbases://db.example.com", "db.example.com", 11207, True),
        ("couchbases://db.example.com:443", "db.example.com", 443, True),
        ("localhost", "localhost", 11210, False),
        ("localhost:11211", "localhost", 11211, False),
        ("[::1]:11211", "::1", 11211, False),
        ("[::1]", "::1", 11210, False),
        ("couchbase://[fe80::1%eth0]:1", "fe80::1%eth0", 1, False),
        ("db_1:65535", "db_1", 65535, False),
    ],
)
def test_addresses(text: str, host: str, port: int, tls: bool):
    """Addresses as people write them are read, with Couchbase's ports where none is written."""
    found = Address.parse(text)
    assert found == Address(host=host, port=port, tls=tls)
    assert Address.parse(str(found)) == Address(host=host, port=port)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no host"),
        ("couchbase://", "no host"),
        (":11210", "no host"),
        ("http://host", "the scheme is couchbase:// or couchbases://, not http://"),
        ("host:", "the port is a number from 1 to 65535, not ''"),
        ("host:0", "not '0'"),
        ("host:65536", "not '65536'"),
        ("host:99999999999", "the port"),
        ("host:eleven", "not 'eleven'"),
        ("host:٣", "the port"),
        ("::1", r"an IPv6 address stands in brackets, as in \[::1\]:11210"),
        ("::1:11210", "brackets"),
        ("[::1", "brackets"),
        ("[host]:1", "no host"),
        ("a,b", "one server at a time"),
        ("couchbase://a?network=external", "no parameters"),
        ("ho st", "no host"),
        ("host/bucket", "no host"),
    ],
)
def test_wrong_addresses(text: str, told: str):
    """What is no address is refused with the reason."""
    with pytest.raises(AddressError, match=told):
        Address.parse(text)


@pytest.mark.parametrize("text", ["couchbase://ann:secret@host", "ann:secret@host:1", "secret@host"])
def test_passwords_are_not_quoted(text: str):
    """An address with a password in it is refused, and the error does not show it."""
    with pytest.raises(AddressError, match="no user name and no password") as caught:
        Address.parse(text)
    assert "secret" not in str(caught.value)
