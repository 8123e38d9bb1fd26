"""A real-time index of Sphinx that knows how far it is with each vbucket.

A row is a document, or the position of a vbucket. Both are written in one transaction, so that what the index says of
itself is true after a crash of anybody: no document is missed, at worst some are written again. Rows of positions have
no text, and no search finds them. Ids tell rows apart: a document's is a hash of its key (63 bits: of a hundred million
documents, two share one with a probability of 0.05 %), a position's is its vbucket.

Inside a transaction Sphinx removes first and stores then, whatever the order of the statements, so a group has one
statement for each document: its last.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

import pymysql
from pymysql.err import MySQLError

from headrace.errors import HeadraceError
from headrace.history import Position
from headrace.ids import VBucketId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.client import Address

DOCUMENT_BIT = 1 << 63
VBUCKETS_MAX = 1024
FOUND_MAX = 100
TEXT_CHARS_MAX = 1_000_000
"""How much of a document is indexed: Sphinx takes no statement beyond its `max_packet_size`."""
TIMEOUT_S = 30.0
_STORE = "REPLACE INTO documents (id, body, doc_key, vbucket, position) VALUES (%s, %s, %s, %s, %s)"


class SearchError(HeadraceError):
    """The search server is not there, or refuses."""


class Document(NamedTuple):
    """What is to be found, and by which words."""

    vbucket: int
    key: bytes
    text: str


def id_of(key: bytes) -> int:
    """Give the id of a document."""
    return DOCUMENT_BIT | int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())


class SphinxIndex:
    """The index `documents` of a search server; a context manager that closes the connection."""

    def __init__(self, address: Address) -> None:
        self._address = address
        with self._told():
            self._connection = pymysql.connect(
                host=address.host, port=address.port, autocommit=True, connect_timeout=10, read_timeout=TIMEOUT_S
            )
        self._cursor = self._connection.cursor()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def positions(self) -> dict[VBucketId, Position]:
        """Tell how far the index is with each vbucket."""
        asked = "SELECT vbucket, position FROM documents WHERE id <= %s LIMIT 0, %s OPTION max_matches = %s"
        with self._told():
            self._cursor.execute(asked, (VBUCKETS_MAX, VBUCKETS_MAX, VBUCKETS_MAX))
        return {VBucketId(vbucket): Position.from_dict(json.loads(text)) for vbucket, text in self._cursor.fetchall()}

    def write(self, documents: Mapping[bytes, Document | None], positions: Mapping[VBucketId, Position]) -> None:
        """Store and remove documents, and with them where that leaves the index; all of it or nothing."""
        with self._told(), self._transaction():
            for key, document in documents.items():
                if document is None:
                    self._cursor.execute("DELETE FROM documents WHERE id = %s", (id_of(key),))
                else:
                    shown = key.decode(errors="backslashreplace")
                    self._store(id_of(key), document.text[:TEXT_CHARS_MAX], shown, document.vbucket, "")
            self._place(positions)

    def forget(self, vbucket: VBucketId, position: Position) -> None:
        """Remove all documents of a vbucket, whose history is another one now."""
        with self._told(), self._transaction():
            self._cursor.execute("DELETE FROM documents WHERE vbucket = %s", (vbucket,))
            self._place({vbucket: position})

    def clear(self) -> None:
        """Remove everything."""
        with self._told():
            self._cursor.execute("TRUNCATE RTINDEX documents")

    def find(self, words: str) -> list[str]:
        """Search; give the keys of what was found, the best first."""
        asked = "SELECT doc_key FROM documents WHERE MATCH(%s) LIMIT 0, %s"
        with self._told():
            self._cursor.execute(asked, (words, FOUND_MAX))
        return [key for (key,) in self._cursor.fetchall()]

    def _place(self, positions: Mapping[VBucketId, Position]) -> None:
        for vbucket, position in positions.items():
            self._store(vbucket + 1, "", "", vbucket, json.dumps(position.as_dict()))

    def _store(self, *row: int | str) -> None:
        self._cursor.execute(_STORE, [each.replace("\0", " ") if isinstance(each, str) else each for each in row])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._cursor.execute("BEGIN")
        yield  # whatever breaks this off breaks the connection, too, and Sphinx forgets what was not committed
        self._cursor.execute("COMMIT")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except MySQLError as error:
            raise SearchError(f"the search server at {self._address}: {error.args[-1]}") from error
