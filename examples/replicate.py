"""Replication: one node is kept as a copy of another.

All data that is there is copied, and each change as it happens: values, deletions, expirations, with their CAS and
revisions. Where the copy stands is known at the copy, so the program can be ended and started again at any time.

    headrace node & headrace node --port 11310 &
    python examples/replicate.py

Then write to the first, as by `headrace set user::1 Ann`. Ctrl-C ends it, and tells how much was carried. Clients are
served by the first alone; if that is gone for good, `headrace failover` makes the copy serve.
"""

import sys

from common import add_login, parser_of, run, server_of, stopping

from headrace.pipelines.replicate import Event, Replication


def main() -> None:
    """Read the command line, and copy until Ctrl-C."""
    parser = parser_of(__doc__)
    parser.add_argument("source", nargs="?", default="127.0.0.1:11210", metavar="FROM", help="%(default)s by default")
    parser.add_argument("target", nargs="?", default="127.0.0.1:11310", metavar="TO", help="%(default)s by default")
    parser.add_argument("--once", action="store_true", help="end when the copy has what there was at the start")
    parser.add_argument("--force", action="store_true", help="copy also over changes that the second made by itself")
    add_login(parser)
    args = parser.parse_args()

    def tell(event: Event, text: str) -> None:
        print(f"{event}: {text}", flush=True)

    def work() -> None:
        job = Replication(server_of(args.source, args), server_of(args.target, args), force=args.force, tell=tell)
        with stopping() as stop:
            progress = job.run(stop, once=args.once)
        print(f"carried {progress.items} items of {progress.vbuckets} vbuckets")
        if progress.dropped:
            sys.exit(f"{len(progress.dropped)} vbuckets could not be copied any more")

    run(work)


if __name__ == "__main__":
    main()
