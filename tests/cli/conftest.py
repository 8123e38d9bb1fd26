from collections.abc import Iterator

import pytest

from tests.client.servers import HOST, headrace_node, memcached


@pytest.fixture(scope="module", params=["memcached", "node"])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a foreign server, and of ours."""
    with memcached() if request.param == "memcached" else headrace_node() as port:
        yield f"couchbase://{HOST}:{port}"
