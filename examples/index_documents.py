"""External indexing: a full-text index of Sphinx that is always up to date with a bucket.

Everything that is there is indexed, and then each change as it happens: searches find what the bucket has, and nothing
that it removed. The program can be ended at any moment, killed too, and goes on where the index is. It needs PyMySQL.

    headrace node & (mkdir -p build/search && cd build/search && searchd --config ../../examples/sphinx.conf)
    python examples/index_documents.py

Then `headrace set note::1 '{"text": "water in the headrace"}'`, and in another terminal
`python examples/index_documents.py --find headrace`. Ctrl-C ends it.

**Positions are in the index**, and written in the transaction that writes the documents up to there (sphinx_index.py).

**A rollback is undone.** A server that crashed may have lost changes that the index has. It says so; then all documents
of that vbucket are taken out and read anew. To take out the newer ones would not do: what they had replaced is missing,
too, and is not sent again by a stream that goes on from there.

TAP has no positions: from an old server (`tap://`), the index is made anew at each start.
"""

import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from common import Changes, add_source, key_of, parser_of, run
from sphinx_index import Document, SphinxIndex

from headrace.client import Address, Change, OnRollback, Positions, RolledBack

GROUP_MAX = 500
WAIT_S = 0.5
GONE = frozenset({"deletion", "expiration"})


def main() -> None:
    """Read the command line; index until Ctrl-C, or find."""
    parser = parser_of(__doc__)
    add_source(parser)
    parser.add_argument("--index", default="127.0.0.1:9306", metavar="HOST:PORT", help="searchd; %(default)s")
    parser.add_argument("--find", metavar="WORDS", help="print the keys of documents with these words, and end")
    args = parser.parse_args()
    run(lambda: find(args) if args.find is not None else follow(args))


def find(args: Namespace) -> None:
    """Search."""
    with SphinxIndex(Address.parse(args.index)) as index:
        for key in index.find(args.find):
            print(key)


def follow(args: Namespace) -> None:
    """Index what is there and what changes."""
    with SphinxIndex(Address.parse(args.index)) as index:
        is_tap = args.source.startswith("tap://")
        if is_tap:
            index.clear()
        start = "beginning" if is_tap else Positions(bucket=args.bucket, vbuckets=index.positions())
        with Changes(args, start=start, on_rollback=OnRollback.REBUILD) as changes:
            while True:
                take_group(index, changes)


def take_group(index: SphinxIndex, changes: Changes) -> None:
    """Take what is at hand, and write it at once: a transaction for each change would be slow."""
    group: dict[bytes, Document | None] = {}
    vbuckets = set()
    for _ in range(GROUP_MAX):  # of changes, not of keys: a few that change all the time must not keep all waiting
        found = changes.next(0.0 if group else WAIT_S)
        changes.check(found)
        if isinstance(found, Change) and (key := key_of(found)):
            group[key] = None if found.event in GONE else document_of(found)
            vbuckets.add(found.vbucket)
        elif isinstance(found, RolledBack):
            # What was gathered of this vbucket is of the lost history as well. Of others it comes first, as it came.
            kept = {key: each for key, each in group.items() if each is None or each.vbucket != found.vbucket}
            write(index, changes, kept, vbuckets - {found.vbucket})
            index.forget(found.vbucket, changes.positions.vbuckets[found.vbucket])
            print(f"vbucket {found.vbucket} was rolled back: its documents are read anew", flush=True)
            return
        elif isinstance(found, Change) and found.event == "flush":  # of a TAP server; others tell each deletion
            index.clear()
            return
        elif found is None:
            break
    write(index, changes, group, vbuckets)


def write(index: SphinxIndex, changes: Changes, group: dict[bytes, Document | None], vbuckets: set[int]) -> None:
    """Write a group, and how far it brings the index."""
    if group:
        known = {} if changes.by_tap else changes.positions.vbuckets
        index.write(group, {vbucket: known[vbucket] for vbucket in known if vbucket in vbuckets})
        print(f"wrote {len(group)} documents", flush=True)


def document_of(change: Change) -> Document:
    """Say what there is to find in a document: the words of its values, not the names of its fields."""
    text = (change.value or b"").decode(errors="replace")
    with suppress(ValueError, RecursionError):  # if it is no JSON, all of it is words
        text = " ".join(words_of(json.loads(text)))
    text = text.encode(errors="replace").decode()  # JSON may escape half a character, which no text has
    return Document(change.vbucket, key_of(change), text)


def words_of(value: Any) -> Iterator[str]:
    """Give the words in a JSON value."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from words_of(each)
    elif isinstance(value, str):
        yield value
    elif value is not None:
        yield json.dumps(value)


if __name__ == "__main__":
    main()
