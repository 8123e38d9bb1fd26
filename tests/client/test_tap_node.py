"""What is asked of an old server before its dump: who one is, what it holds, what is on disk, who dumps what."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.client import AuthFailedError, ChangeOptions, ConnectionLostError, OptionError
from headrace.client import tap_node as node_module
from headrace.client.tap_dump import tap_parts
from headrace.client.tap_node import NotOnDiskError
from headrace.wire.catalogue import SaslAuth, SelectBucket
from tests.client.servers import HOST, free_port, tls_server
from tests.client.tap_server import TapServer, bytes_of, details, dump, item, options, playing, whole

# -- what a server tells of itself


def test_an_empty_vbucket_is_not_asked_for():
    """Where statistics say that there is nothing, no dump is asked for."""
    with playing(TapServer(statistics=lambda: details({0: 0, 1: 0}))) as server:
        assert dump(server) == []
        assert server.connects == []


def test_a_vbucket_that_was_left_out():
    """A dump without a vbucket that has items is not whole, even if everything else was closed."""
    with (
        playing(TapServer(whole(item(b"a")), statistics=lambda: details({0: 1, 5: 3}))) as server,
        pytest.raises(ConnectionLostError, match="vbucket 5 is not sent, and not empty"),
    ):
        dump(server)


def test_items_without_a_backfill():
    """Items of a server that opens and closes nothing cannot be told from a part of them."""
    with playing(TapServer(bytes_of(item(b"a")))) as server, pytest.raises(ConnectionLostError, match="never said"):
        dump(server)


def test_a_vbucket_that_went():
    """A vbucket that is not active at its node any more is an error before anything is dumped."""
    told = {**details({0: 1}), **details({1: 1}, "dead")}
    with playing(TapServer(statistics=lambda: told)) as server:
        for vbuckets, named in (((0, 1), "vbucket 1 is"), ((1, 7), "vbuckets 1, 7 are")):
            with pytest.raises(ConnectionLostError, match=f"{named} not active here"):
                dump(server, vbuckets)
        assert server.connects == []


def looks(*told: Mapping[str, str]) -> Callable[[], Mapping[str, str]]:
    """Statistics that change with each look, up to the last."""
    left = list(told)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_what_is_in_memory_alone_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """A dump begins when everything is on disk that was there at the first look, whatever came since."""
    monkeypatch.setattr(node_module, "PAUSE_S", 0.001)
    asked = looks(
        details({0: 9}, queue_size=4, queue_fill=9, queue_drain=5),
        details({0: 12}, queue_size=6, queue_fill=14, queue_drain=8),
        details({0: 12}, queue_size=5, queue_fill=14, queue_drain=9),
        {},
    )
    with playing(TapServer(whole(item(b"a")), statistics=asked)) as server:
        assert len(dump(server)) == 1
    assert len([each for each in server.requests if type(each).__name__ == "Stat"]) == 3


def test_a_server_that_writes_nothing(monkeypatch: pytest.MonkeyPatch):
    """A server that does not write what it holds would leave it out: that is an error, in time."""
    monkeypatch.setattr(node_module, "PAUSE_S", 0.001)
    monkeypatch.setattr(node_module, "SILENCE_S_MAX", 0.05)
    told = details({0: 9}, queue_size=4, queue_fill=9, queue_drain=5)
    with playing(TapServer(statistics=lambda: told)) as server, pytest.raises(NotOnDiskError, match="vbucket 0 is not"):
        dump(server)
    assert server.connects == []


# -- who one is


def test_no_password_in_the_clear():
    """A password is not sent by PLAIN without TLS; the error says so, and the way out."""
    with playing(TapServer(mechanisms=b"CRAM-MD5 PLAIN")) as server:
        with pytest.raises(AuthFailedError, match=r"needs TLS: connect by couchbases://.* needs no user") as caught:
            dump(server, bucket="travel", username="travel", password="pencil case")
        assert not any(isinstance(each, SaslAuth) for each in server.requests)
    assert "pencil" not in str(caught.value)


def test_the_bucket_of_a_user(tmp_path: Path):
    """Before 5.0 a user is a bucket: one authenticates inside TLS and has it, without a command that selects it."""
    context, trusted = tls_server(tmp_path)
    with playing(TapServer(whole(item(b"a")), mechanisms=b"CRAM-MD5 PLAIN", tls=context)) as server:
        told: dict[str, Any] = {"username": "travel", "password": "p", "tls_ca": str(trusted)}
        assert [row["key"] for row in dump(server, bucket="travel", **told)] == ["a"]
        assert not any(isinstance(each, SelectBucket) for each in server.requests)
        with pytest.raises(OptionError, match="here that is travel, not default"):
            dump(server, **told)
    with playing(TapServer(whole())) as server, pytest.raises(OptionError, match="here that is default, not travel"):
        dump(server, bucket="travel")


# -- the plan


def cluster(*ports: int, owners: Sequence[int]) -> bytes:
    """A cluster config: the place of the owner of each vbucket among the nodes."""
    servers = [f"{HOST}:{port}" for port in ports]
    return json.dumps(
        {"vBucketServerMap": {"serverList": servers, "vBucketMap": [[place] for place in owners]}}
    ).encode()


def test_parts_of_two_nodes():
    """Each node of the map dumps its own vbuckets, shared out to as many connections as asked."""
    with playing(TapServer()) as one, playing(TapServer()) as other:
        one.config = other.config = cluster(one.port, other.port, owners=[0, 0, 0, 1, 1])
        one.statistics = lambda: {**details({0: 1, 1: 1, 2: 0}), **details({3: 1, 4: 1}, "replica")}
        other.statistics = lambda: {**details({3: 1, 4: 1}), **details({0: 1, 1: 1, 2: 1}, "replica")}
        found = tap_parts(options(one), 4)
        assert [(part.node.port, part.vbuckets) for part in found] == [
            (one.port, (0, 2)),
            (one.port, (1,)),
            (other.port, (3,)),
            (other.port, (4,)),
        ]
        assert [part.vbuckets for part in tap_parts(options(one))] == [(0, 1, 2), (3, 4)]
        assert [part.vbuckets for part in tap_parts(options(one, vbuckets=(2, 4)), 9)] == [(2,), (4,)]
        with pytest.raises(OptionError, match="has 5 vbuckets, and no vbucket 9"):
            tap_parts(options(one, vbuckets=(1, 9)))
        other.statistics = lambda: details({3: 1, 4: 1}, "pending")
        with pytest.raises(ConnectionLostError, match="vbuckets 3, 4 are active nowhere"):
            tap_parts(options(one))


def test_parts_of_servers_that_tell_little():
    """Without a map the servers of the connection string are dumped; without statistics, each of them as a whole."""
    with playing(TapServer()) as one, playing(TapServer()) as other:
        away = free_port()
        connection = f"couchbase://{HOST}:{away},{HOST}:{one.port}"
        with pytest.raises(ConnectionLostError, match=str(away)):
            tap_parts(ChangeOptions(connection=f"couchbase://{HOST}:{away}"))
        with pytest.raises(ConnectionLostError, match=str(away)):  # what it holds would be missing
            tap_parts(ChangeOptions(connection=connection))
        connection = f"couchbase://{HOST}:{one.port},{HOST}:{other.port}"
        told = ChangeOptions(connection=connection)
        assert [(part.node.port, part.vbuckets) for part in tap_parts(told)] == [(one.port, None), (other.port, None)]
        one.statistics = lambda: details({0: 1, 1: 1})
        other.statistics = lambda: details({1: 1, 2: 1})
        assert [part.vbuckets for part in tap_parts(told, 8)] == [(0,), (1,), (2,)]


def test_a_seed_that_is_away():
    """A map is asked for at the next server when the first does not answer."""
    with playing(TapServer()) as server:
        server.config = cluster(server.port, owners=[0, 0])
        server.statistics = lambda: details({0: 1, 1: 1})
        connection = f"couchbase://{HOST}:{free_port()},{HOST}:{server.port}"
        assert [part.vbuckets for part in tap_parts(ChangeOptions(connection=connection))] == [(0, 1)]
