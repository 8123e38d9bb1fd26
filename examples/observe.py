"""Observation: what is changing in a bucket, from now on.

Only future changes are asked for. Each is a line; once a second, and at the end, there are counts of events by the
prefix of their keys (`user` of `user::17`).

    headrace node
    python examples/observe.py

Then change something, as by `headrace set user::1 Ann`. Ctrl-C ends it.
"""

import time
from argparse import Namespace
from collections import Counter

from common import Changes, add_source, key_of, parser_of, run

from headrace.client import Change, RolledBack

EVERY_S = 1.0


def main() -> None:
    """Read the command line, and observe."""
    parser = parser_of(__doc__)
    add_source(parser)
    parser.add_argument("--separator", default="::", metavar="TEXT", help="what ends a prefix; %(default)s by default")
    parser.add_argument("--counts", action="store_true", help="print counts only, not each change")
    args = parser.parse_args()
    run(lambda: observe(args))


def observe(args: Namespace) -> None:
    """Print what changes, until Ctrl-C."""
    total: Counter[tuple[str, str]] = Counter()
    lately: Counter[tuple[str, str]] = Counter()
    # Values are not needed for counting: a server that can leaves them away.
    with Changes(args, start="now", no_value=args.counts) as changes:
        told_at = time.monotonic()
        try:
            while True:
                found = changes.next(max(0.0, told_at + EVERY_S - time.monotonic()))
                if isinstance(found, Change):
                    lately[prefix_of(found, args.separator), found.event] += 1
                    if not args.counts:
                        print(line_of(found))
                elif isinstance(found, RolledBack):
                    print(f"rollback   vbucket {found.vbucket}: what came after seqno {found.whole} is gone")
                elif changes.by_tap and found is not None:
                    print("interrupted: by TAP, what changed until the connection was there again is missed")
                if time.monotonic() >= told_at + EVERY_S:
                    told_at = time.monotonic()
                    tell("last second", lately)
                    total += lately
                    lately.clear()
        finally:
            tell("in all", total + lately)


def prefix_of(change: Change, separator: str) -> str:
    """Give the kind of item, by the habit of naming keys; what has no prefix is counted together."""
    prefix, found, _ = key_of(change).partition(separator.encode())
    return prefix.decode(errors="backslashreplace") if found else "(no prefix)"


def line_of(change: Change) -> str:
    """Show one change."""
    key = key_of(change).decode(errors="backslashreplace")
    size = "" if change.value is None else f"  {len(change.value)} bytes"
    return f"{change.event:<10} {key}{size}"


def tell(when: str, counts: Counter[tuple[str, str]]) -> None:
    """Print counts, if there is anything to count."""
    if counts:
        told = ", ".join(f"{prefix} {event} {count}" for (prefix, event), count in sorted(counts.items()))
        print(f"-- {when}: {told}", flush=True)


if __name__ == "__main__":
    main()
