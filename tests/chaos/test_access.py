"""Who may make trouble: admins, and everyone on a node without users; and who may take a whole node down."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from headrace.client import NoAccessError, NotSupportedError
from headrace.node import Node
from headrace.node.users import Role, User, Users
from headrace.protocol.faults import FAULTS
from headrace.testing import Chaos
from headrace.wire.catalogue import SetParam
from headrace.wire.codes import Status
from tests.certificates import certificate
from tests.cli.tools import run
from tests.node.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.testing import LiveNode

PASSWORD = "correct horse"


def user(name: str, *roles: Role, buckets: tuple[str, ...] = ("*",)) -> User:
    """A user whose password is cheap to check."""
    return User.create(name, PASSWORD, set(roles), buckets, iterations=4096)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that asks who one is, over TLS."""
    directory = tmp_path_factory.mktemp("guarded")
    cert, key = certificate(directory)
    users = [
        user("reader", Role.READ),
        user("all-but-admin", Role.READ, Role.WRITE, Role.STREAM),
        user("boss", Role.ADMIN),
        user("boss-of-one", Role.ADMIN, buckets=("default",)),
    ]
    Users(users).save(directory / "users.json")
    with Node(vbuckets=4, users=directory / "users.json", tls_cert=cert, tls_key=key) as running:
        yield running


def trust(node: Node) -> ssl.SSLContext:
    """A context that knows the node's certificate."""
    assert node.options.tls_cert is not None
    return ssl.create_default_context(cafile=node.options.tls_cert)


@pytest.mark.parametrize("name", ["reader", "all-but-admin"])
@pytest.mark.parametrize("fault", FAULTS)
def test_nobody_without_the_role_makes_trouble(guarded: Node, name: str, fault: str):
    """Every fault is refused to who is no admin, whatever else they may do, and whatever the arguments are."""
    chaos = Chaos(guarded, username=name, password=PASSWORD, tls=trust(guarded))
    arguments = {"failover": {"vbuckets": 0}, "rollback": {"vbuckets": 0, "to": 0}, "slow": {"bytes_per_second": 1}}
    with pytest.raises(NoAccessError):
        chaos.make(fault, **arguments.get(fault, {}))


def test_admins_make_trouble_over_tls(guarded: Node):
    """An admin is let; an admin of one bucket too, but not to take the node away from the others."""
    boss = Chaos(guarded, username="boss", password=PASSWORD, tls=trust(guarded))
    assert boss.failover(0)[0].now == 0
    one = Chaos(guarded, username="boss-of-one", password=PASSWORD, tls=trust(guarded))
    assert one.failover(0)[0].now == 0
    with pytest.raises(NoAccessError, match="every bucket"):
        one.crash()


def test_the_command_works_over_tls_with_a_user(guarded: Node):
    """`headrace chaos` takes the options of every command that connects."""
    options = ["--connect", guarded.connection_string, "--tls-ca", str(guarded.options.tls_cert)]
    done = run("chaos", "show", *options, "--username", "boss", "--password-env", "PW", PW=PASSWORD)
    assert (done.exit_code, done.stdout) == (0, "bucket default: persistence on\n")
    refused = run("chaos", "show", *options, "--username", "reader", "--password-env", "PW", PW=PASSWORD)
    assert refused.exit_code == 1
    assert "no access" in refused.stderr


def test_who_did_not_say_who_they_are_is_refused(tmp_path: Path):
    """Before a login nothing is served."""
    Users([user("boss", Role.ADMIN)]).save(tmp_path / "users.json")
    with Node(vbuckets=1, users=tmp_path / "users.json") as node, Talk(node) as talk:
        message = SetParam(kind=4, key=b"chaos_pause", value=b"{}")
        assert talk.status(message) == Status.AUTH_ERROR
        talk.log_in("boss", PASSWORD)
        assert talk.status(message) == Status.SUCCESS


def test_a_node_inside_a_program_does_not_kill_it(node: LiveNode):
    """A crash would take the program with it: it is refused, and the node serves on."""
    with pytest.raises(NotSupportedError, match="inside another program"):
        node.chaos.crash()
    assert node.count() == 0


def test_another_server_refuses():
    """Plain memcached, which never answers such a command, is not asked; the error says so."""
    from tests.client.servers import HOST, memcached  # noqa: PLC0415

    with memcached() as port, pytest.raises(NotSupportedError, match="no node of ours"):
        Chaos(f"{HOST}:{port}").show()
