"""Couchbase's own Python SDK works with our node as with a server of theirs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import HOST, Server, start_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("couchbase")

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.diagnostics import PingState, ServiceType
from couchbase.exceptions import (
    AuthenticationException,
    BucketNotFoundException,
    CasMismatchException,
    CouchbaseException,
    DeltaInvalidException,
    DocumentExistsException,
    DocumentLockedException,
    DocumentNotFoundException,
    DocumentNotLockedException,
)
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    DecrementOptions,
    DeltaValue,
    GetOptions,
    IncrementOptions,
    PingOptions,
    RemoveOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertOptions,
)
from couchbase.transcoder import RawBinaryTranscoder, RawStringTranscoder

USER, PASSWORD = "tester", "correct horse, battery = staple"
BUCKET = "default"
KV_S = 20
TRIED_FOR = timedelta(seconds=1)
SOON = timedelta(seconds=2)
PAST_IT_S = 3.2
VALUE_BYTES_MAX = 20 * 1024 * 1024
VALUE_TOO_LARGE = 104  # of the SDK's core; its Python side has no class for it
VBUCKETS = 1024


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A users file with one user, as its owner would make it."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    command = [sys.executable, "-m", "headrace", "user", "add", USER, "--users", str(path), "--role", "admin"]
    environment = {**os.environ, "TESTER_PASSWORD": PASSWORD}
    made = subprocess.run(
        [*command, "--password-env", "TESTER_PASSWORD"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return path


@pytest.fixture(scope="module")
def node(users: Path) -> Iterator[Server]:
    """A node that wants its clients to authenticate."""
    server = start_node("--users", str(users))
    yield server
    code, said = server.stop(), server.said
    server.close()
    assert code == 0, f"exit code {code}:\n{said}"


def connected(server: Server, password: str = PASSWORD) -> Any:
    """A cluster object; the SDK knocks for no longer than the tests can wait."""
    timeouts = ClusterTimeoutOptions(bootstrap_timeout=timedelta(seconds=KV_S), kv_timeout=timedelta(seconds=KV_S))
    options = ClusterOptions(PasswordAuthenticator(USER, password), timeout_options=timeouts)
    return Cluster.connect(f"couchbase://{HOST}:{server.port}", options)


@pytest.fixture(scope="module")
def cluster(node: Server) -> Iterator[Any]:
    """A connected cluster."""
    cluster = connected(node)
    yield cluster
    cluster.close()


@pytest.fixture
def collection(cluster: Any) -> Any:
    """The default collection of the bucket."""
    return cluster.bucket(BUCKET).default_collection()


def document(size_bytes: int) -> dict[str, Any]:
    """A JSON document of about this size that compresses as documents do."""
    rows = [{"number": number, "name": f"row {number}", "even": number % 2 == 0} for number in range(size_bytes // 50)]
    return {"title": "naïve 水", "rows": rows, "none": None, "float": 1.5}


def test_upsert_get_remove(collection: Any):
    """A document is written, read, written over, removed, and then is not found."""
    first = collection.upsert("plain", {"a": 1})
    read = collection.get("plain")
    assert (read.content_as[dict], read.cas) == ({"a": 1}, first.cas)
    second = collection.upsert("plain", {"a": 2})
    assert second.cas != first.cas
    assert collection.get("plain").content_as[dict] == {"a": 2}
    assert collection.exists("plain").exists
    removed = collection.remove("plain")
    assert removed.cas not in {0, second.cas}
    assert not collection.exists("plain").exists
    with pytest.raises(DocumentNotFoundException):
        collection.get("plain")
    with pytest.raises(DocumentNotFoundException):
        collection.remove("plain")


def test_insert_and_replace(collection: Any):
    """Insert wants no document, replace wants one."""
    with pytest.raises(DocumentNotFoundException):
        collection.replace("inserted", {"a": 0})
    collection.insert("inserted", {"a": 1})
    with pytest.raises(DocumentExistsException):
        collection.insert("inserted", {"a": 2})
    collection.replace("inserted", {"a": 3})
    assert collection.get("inserted").content_as[dict] == {"a": 3}


def test_cas(collection: Any):
    """A CAS is honoured by replace and remove, and a stale one is refused."""
    stale = collection.upsert("versioned", 1).cas
    fresh = collection.replace("versioned", 2, ReplaceOptions(cas=stale)).cas
    with pytest.raises(CasMismatchException):
        collection.replace("versioned", 3, ReplaceOptions(cas=stale))
    with pytest.raises(CasMismatchException):
        collection.remove("versioned", RemoveOptions(cas=stale))
    assert collection.get("versioned").content_as[int] == 2
    collection.remove("versioned", RemoveOptions(cas=fresh))
    with pytest.raises(DocumentNotFoundException):
        collection.replace("versioned", 4, ReplaceOptions(cas=fresh))


def test_mutation_tokens(collection: Any):
    """A write tells its place in its vbucket, and the next one of the same document a later place."""
    first = collection.upsert("placed", 1).mutation_token()
    second = collection.upsert("placed", 2).mutation_token()
    assert (first.bucket_name, first.partition_id) == (second.bucket_name, second.partition_id)
    assert first.bucket_name == BUCKET
    assert first.partition_uuid == second.partition_uuid != 0
    assert second.sequence_number == first.sequence_number + 1


def test_counters(collection: Any):
    """Counters start at the initial value, go up, down, not below 0, and only where there is a number."""
    binary = collection.binary()
    initial = SignedInt64(10)
    assert binary.increment("count", IncrementOptions(initial=initial, delta=DeltaValue(5))).content == 10
    assert binary.increment("count", IncrementOptions(delta=DeltaValue(5))).content == 15
    assert binary.decrement("count", DecrementOptions(delta=DeltaValue(4))).content == 11
    assert binary.decrement("count", DecrementOptions(delta=DeltaValue(100))).content == 0
    assert collection.get("count").content_as[int] == 0
    with pytest.raises(DocumentNotFoundException):
        binary.increment("no count", IncrementOptions(initial=SignedInt64(-1)))
    collection.upsert("no number", {"a": 1})
    with pytest.raises(DeltaInvalidException):
        binary.increment("no number")


def test_append_and_prepend(collection: Any):
    """Bytes go behind and in front of a raw value."""
    raw = RawStringTranscoder()
    collection.upsert("words", "middle", UpsertOptions(transcoder=raw))
    collection.binary().append("words", " end")
    collection.binary().prepend("words", "begin ")
    assert collection.get("words", GetOptions(transcoder=raw)).content_as[str] == "begin middle end"
    for extend in (collection.binary().append, collection.binary().prepend):
        with pytest.raises(DocumentNotFoundException):
            extend("no words", "x")


def test_raw_bytes(collection: Any):
    """A binary value comes back byte for byte, whether or not it can be compressed."""
    raw = RawBinaryTranscoder()
    for value in (b"", bytes(range(256)), bytes(100_000), random.Random(1).randbytes(1_000_000)):
        collection.upsert("raw", value, UpsertOptions(transcoder=raw))
        assert collection.get("raw", GetOptions(transcoder=raw)).content_as[bytes] == value


def test_locks(collection: Any):
    """Who locked a document may write it; all others are refused until it is unlocked or the time is over."""
    collection.upsert("locked", 1)
    locked = collection.get_and_lock("locked", timedelta(seconds=15))
    assert locked.content_as[int] == 1
    # The SDK tries again for as long as it may when a document is locked.
    with pytest.raises(DocumentLockedException):
        collection.upsert("locked", 2, timeout=TRIED_FOR)
    with pytest.raises(DocumentLockedException):
        collection.remove("locked", timeout=TRIED_FOR)
    with pytest.raises(DocumentLockedException):
        collection.touch("locked", timedelta(hours=1), timeout=TRIED_FOR)
    with pytest.raises(DocumentLockedException):
        collection.get_and_lock("locked", timedelta(seconds=15), timeout=TRIED_FOR)
    with pytest.raises(CasMismatchException):
        collection.unlock("locked", locked.cas + 1)
    assert collection.get("locked").content_as[int] == 1
    collection.unlock("locked", locked.cas)
    with pytest.raises(DocumentNotLockedException):
        collection.unlock("locked", locked.cas)
    collection.upsert("locked", 3)

    held = collection.get_and_lock("locked", timedelta(seconds=15))
    collection.replace("locked", 4, ReplaceOptions(cas=held.cas))
    collection.upsert("locked", 5)  # the write gave up the lock

    collection.get_and_lock("locked", timedelta(seconds=1))
    time.sleep(2.1)
    collection.upsert("locked", 6)
    assert collection.get("locked").content_as[int] == 6


def test_expiry(collection: Any):
    """Documents go when their time is over: the time of a write, of a touch, or the one that a write preserved."""
    soon = UpsertOptions(expiry=SOON)
    for key in ("short", "saved by touch", "saved by get", "overwritten", "preserved"):
        collection.upsert(key, key, soon)
    collection.upsert("touched away", 1)
    collection.upsert("touched away by get", 1)
    collection.touch("saved by touch", timedelta(hours=1))
    assert collection.get_and_touch("saved by get", timedelta(hours=1)).content_as[str] == "saved by get"
    collection.upsert("overwritten", "stays")
    collection.upsert("preserved", "newer", UpsertOptions(preserve_expiry=True))
    collection.touch("touched away", SOON)
    collection.get_and_touch("touched away by get", SOON)
    gone = ("short", "preserved", "touched away", "touched away by get")
    stay = ("saved by touch", "saved by get", "overwritten")
    assert all(collection.exists(key).exists for key in gone + stay)
    time.sleep(PAST_IT_S)
    assert [key for key in gone + stay if collection.exists(key).exists] == list(stay)
    for key in gone:
        with pytest.raises(DocumentNotFoundException):
            collection.get(key)
    with pytest.raises(DocumentNotFoundException):
        collection.touch("short", SOON)
    collection.insert("short", "the way is free")


@pytest.mark.parametrize("size_bytes", [100, 5_000, 500_000])
def test_documents_travel_compressed(collection: Any, size_bytes: int):
    """A document that the SDK compresses on the wire is equal when it comes back."""
    wanted = document(size_bytes)
    collection.upsert("document", wanted)
    assert collection.get("document").content_as[dict] == wanted


def test_every_vbucket(collection: Any):
    """Thousands of documents, written and read in groups, lie each in its vbucket, and in every one there are some."""
    wanted = {f"document {number}": {"number": number} for number in range(10 * VBUCKETS)}
    written = collection.upsert_multi(wanted)
    assert written.all_ok, written.exceptions
    places = {key: result.mutation_token().partition_id for key, result in written.results.items()}
    assert places == {key: (zlib.crc32(key.encode()) >> 16 & 0x7FFF) % VBUCKETS for key in wanted}
    assert set(places.values()) == set(range(VBUCKETS))
    read = collection.get_multi(list(wanted))
    assert read.all_ok, read.exceptions
    assert {key: result.content_as[dict] for key, result in read.results.items()} == wanted
    missing = collection.get_multi(["document 0", "no document"])
    assert not missing.all_ok
    assert set(missing.results) == {"document 0"}
    assert isinstance(missing.exceptions["no document"], DocumentNotFoundException)


@pytest.mark.parametrize("compressible", [True, False], ids=["compressible", "incompressible"])
def test_too_large(collection: Any, compressible: bool):
    """A value of 20 MiB is taken, one byte more is refused by its inflated size, and the connection lives on."""
    raw = UpsertOptions(transcoder=RawBinaryTranscoder(), timeout=timedelta(seconds=30))
    whole = bytes(VALUE_BYTES_MAX + 1) if compressible else random.Random(2).randbytes(VALUE_BYTES_MAX + 1)
    collection.upsert("large", whole[:-1], raw)
    read = collection.get("large", GetOptions(transcoder=RawBinaryTranscoder())).content_as[bytes]
    assert read == whole[:-1]
    with pytest.raises(CouchbaseException) as refused:
        collection.upsert("large", whole, raw)
    assert refused.value.error_code == VALUE_TOO_LARGE, refused.value
    assert len(collection.get("large", GetOptions(transcoder=RawBinaryTranscoder())).content_as[bytes]) == len(read)
    collection.remove("large")


def test_ping(cluster: Any, node: Server):
    """The SDK finds the one KV service where it is, and finds it well."""
    report = cluster.bucket(BUCKET).ping(PingOptions(service_types=[ServiceType.KeyValue]))
    (endpoint,) = report.endpoints[ServiceType.KeyValue]
    assert endpoint.state is PingState.OK
    assert str(endpoint.remote).endswith(f":{node.port}")


def test_wrong_password(node: Server):
    """A wrong password is an error of authentication, at once and not after a time-out."""
    began = time.monotonic()
    with pytest.raises(AuthenticationException):
        connected(node, password="wrong").close()
    assert time.monotonic() - began < KV_S / 2


def test_unknown_bucket(cluster: Any):
    """A bucket that is not there is an error of its own kind."""
    with pytest.raises(BucketNotFoundException):
        cluster.bucket("no such bucket").default_collection().get("key")
