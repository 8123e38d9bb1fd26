"""A client for tests of the HTTP port: one question, one answer."""

import base64
import http.client
import json
from typing import Any

from headrace.node import Node

PASSWORD = "correct horse"
TIMEOUT_S = 20


class Asked:
    """One answer."""

    def __init__(self, node: Node, path: str, *, method: str = "GET", **headers: str) -> None:
        assert node.http_port is not None
        connection = http.client.HTTPConnection(node.host, node.http_port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            self.status, self.headers, self.body = response.status, response.headers, response.read()
        finally:
            connection.close()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def basic(name: str, password: str = PASSWORD) -> str:
    """The value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
