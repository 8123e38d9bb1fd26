"""The ways by which Couchbase's Python SDK comes to a node: an open one, and one that speaks TLS."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.certificates import certificate
from tests.processes import HOST, start_node

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("couchbase")

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions, ClusterTimeoutOptions

from headrace.node.services import OPEN_PASSWORD, OPEN_USER

TIMEOUTS = ClusterTimeoutOptions(bootstrap_timeout=timedelta(seconds=20), kv_timeout=timedelta(seconds=20))


def test_an_open_node_has_a_name_and_password_for_those_who_insist():
    """Without users, the SDK logs in by SCRAM as the guide says."""
    server = start_node("--vbuckets", "64")
    try:
        who = PasswordAuthenticator(OPEN_USER, OPEN_PASSWORD)
        cluster = Cluster.connect(f"couchbase://{HOST}:{server.port}", ClusterOptions(who, timeout_options=TIMEOUTS))
        collection = cluster.bucket("default").default_collection()
        collection.upsert("open", {"a": 1})
        assert collection.get("open").content_as[dict] == {"a": 1}
        cluster.close()
    finally:
        server.stop()
        server.close()


def test_tls_with_a_certificate_that_is_verified(tmp_path: Path):
    """`couchbases://` and the node's certificate: the SDK checks it and works as without."""
    cert, key = certificate(tmp_path)
    server = start_node("--vbuckets", "64", "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        who = PasswordAuthenticator(OPEN_USER, OPEN_PASSWORD, cert_path=str(cert))
        cluster = Cluster.connect(f"couchbases://{HOST}:{server.port}", ClusterOptions(who, timeout_options=TIMEOUTS))
        collection = cluster.bucket("default").default_collection()
        collection.upsert("secret", {"a": 1})
        assert collection.get("secret").content_as[dict] == {"a": 1}
        cluster.close()
    finally:
        server.stop()
        server.close()
