"""Cache invalidation: a memcached in front of a bucket never keeps what the bucket changed or removed.

Only future changes are asked for. Whatever happens to a key, it is deleted from the cache; the next who wants it has a
miss, and reads the bucket.

    headrace node & memcached -p 11211 -l 127.0.0.1 &
    python examples/invalidate_cache.py

**Delete, not update.** A change is old when it arrives: the front end may have read and cached a newer value by then.
To store the change would put the old over the new, and the cache would be wrong until the next change. To delete is
right in any order and any number of times; too many deletions cost a miss. And what nobody asks for stays out.

**Begin, then empty.** What changed before the streams ran is not told, so the cache is emptied when they do, not
before. The same holds for a stream that was rolled back: what the cache took before is in doubt. By TAP, a connection
that breaks ends the program, and the next start empties the cache.

**What a front end has to do.** It reads the bucket, is held up, the value changes, the key is deleted from the cache,
and only then the front end stores what it read: stale, and nobody will tell. So it first reserves the key, by `add` of
an empty value with some seconds to live, and stores by `cas` over just that: after a deletion, this fails.
"""

from argparse import Namespace
from contextlib import suppress

from common import Changes, add_source, key_of, parser_of, run

from headrace.client import Address, Change, KvConnection, NotFoundError, SnapshotMarked
from headrace.wire.catalogue import Flush

WAIT_S = 0.5


def main() -> None:
    """Read the command line, and invalidate until Ctrl-C."""
    parser = parser_of(__doc__)
    add_source(parser)
    parser.add_argument("--cache", default="127.0.0.1:11211", metavar="HOST:PORT", help="memcached; %(default)s")
    args = parser.parse_args()
    run(lambda: invalidate(args, Address.parse(args.cache)))


def invalidate(args: Namespace, cache: Address) -> None:
    """Delete from the cache what changes in the bucket."""
    with KvConnection(cache.host, cache.port) as memcached, Changes(args, start="now", no_value=True) as changes:
        in_doubt = True
        while True:
            found = changes.next(WAIT_S)
            changes.check(found)
            if isinstance(found, SnapshotMarked):
                continue
            if found is not None and not (isinstance(found, Change) and key_of(found)):
                in_doubt = True  # a stream began, ended or was rolled back; or by TAP, the bucket was flushed
                continue
            if in_doubt:
                memcached.request(Flush())
                in_doubt = False
                print("emptied the cache: what it took before is in doubt", flush=True)
            if found is not None:
                with suppress(NotFoundError):
                    memcached.delete(key_of(found))
                print(f"{found.event:<10} {key_of(found).decode(errors='backslashreplace')}", flush=True)


if __name__ == "__main__":
    main()
