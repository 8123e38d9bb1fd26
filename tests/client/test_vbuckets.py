import json
from typing import Any

import pytest

from headrace.client import ManyNodesError, ServerAnswerError, count_vbuckets, vbucket_of


@pytest.mark.parametrize(("key", "vbucket"), [(b"hello", 528), (b"", 0), (b"foo", 115)])
def test_known_keys(key: bytes, vbucket: int):
    """Keys lie in the vbuckets that Couchbase's clients and the protocol documents give them."""
    assert vbucket_of(key, 1024) == vbucket


@pytest.mark.parametrize("vbuckets", [1, 2, 64, 1024])
def test_all_vbuckets_are_used(vbuckets: int):
    """Keys spread over every vbucket that there is."""
    assert {vbucket_of(b"key%d" % number, vbuckets) for number in range(20_000)} == set(range(vbuckets))


def config(**fields: Any) -> bytes:
    """A cluster config with one node and four vbuckets."""
    found: dict[str, Any] = {"serverList": ["$HOST:11210"], "vBucketMap": [[0]] * 4} | fields
    return json.dumps({"rev": 1, "vBucketServerMap": found}).encode()


def test_count():
    """The number of vbuckets is the length of the map."""
    assert count_vbuckets(config(), source="here") == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"{", "not JSON"),
        (b"[]", "no vbucket map"),
        (b'{"rev": 1}', "memcached bucket"),
        (config(vBucketMap={}), "not readable"),
        (config(serverList=None), "not readable"),
        (config(vBucketMap=[]), "a map of 0 vbuckets; the bucket may not be ready"),
    ],
)
def test_wrong_configs(text: bytes, told: str):
    """A config without a usable map is an error that names the server."""
    with pytest.raises(ServerAnswerError, match=f"here: .*{told}"):
        count_vbuckets(text, source="here")


def test_many_nodes():
    """A bucket on several nodes is refused by naming them."""
    with pytest.raises(ManyNodesError, match=r"2 nodes \(a:11210, b:11210\)"):
        count_vbuckets(config(serverList=["a:11210", "b:11210"]), source="here")
