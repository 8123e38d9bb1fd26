"""Vbucket transition: a vbucket gets another owner while clients write to it.

The items go first, then the changes since; at last the first server gives the vbucket up, and only when its disk has
that, the second serves it. There is never more than one owner. If anything fails, the program finds out who owns the
vbucket and makes sure that one does; to run it again is always right.

    headrace node --vbuckets 4 & headrace node --vbuckets 4 --port 11310 &
    python examples/move_vbucket.py --vbucket 1 --writers 2

Writers show what a client has to do meanwhile: refused by one server ("not my vbucket"), it asks the other.
"""

import sys
import threading
import time
from contextlib import suppress

from common import add_login, parser_of, run, server_of, stopping

from headrace.client import ClientError, KvConnection, NotFoundError, NotMyVBucketError
from headrace.ids import VBucketId
from headrace.pipelines.move import Move, Step
from headrace.pipelines.servers import Server
from headrace.wire.catalogue import Get, Item, Set

VBUCKETS_MAX = 1024


def main() -> None:
    """Read the command line, and move."""
    parser = parser_of(__doc__)
    parser.add_argument("source", nargs="?", default="127.0.0.1:11210", metavar="FROM", help="%(default)s by default")
    parser.add_argument("target", nargs="?", default="127.0.0.1:11310", metavar="TO", help="%(default)s by default")
    parser.add_argument("--vbucket", type=int, default=0, metavar="NUMBER", help="which one; %(default)s by default")
    parser.add_argument("--writers", type=int, default=0, metavar="COUNT", help="clients that write meanwhile")
    add_login(parser)
    args = parser.parse_args()
    if not 0 <= args.vbucket < VBUCKETS_MAX:
        parser.error(f"--vbucket is a number from 0 to {VBUCKETS_MAX - 1}, not {args.vbucket}")

    def tell(step: Step, text: str) -> None:
        print(f"{step}: {text}", flush=True)

    def work() -> None:
        source, target = server_of(args.source, args), server_of(args.target, args)
        writers = [Writer([source, target], args.vbucket, number) for number in range(args.writers)]
        with stopping() as stop:
            for writer in writers:
                writer.begin()
            try:
                moved = Move(source, target, args.vbucket, tell=tell).run(stop)
            finally:
                for writer in writers:
                    writer.end()
        print(f"carried {moved.items} items; {target} owns vbucket {moved.vbucket} at seqno {moved.seqno}")
        for writer in writers:
            print(writer.check(target), flush=True)

    run(work)


class Writer(threading.Thread):
    """A client that counts up one key of the vbucket, at whichever server owns it."""

    def __init__(self, servers: list[Server], vbucket: int, number: int) -> None:
        super().__init__(daemon=True)
        self.key = b"writer-%d" % number
        self.written = 0
        self.refused = 0
        self.failure: ClientError | None = None
        self._vbucket = VBucketId(vbucket)
        self._connections = [server.connect() for server in servers]
        self._wrote = threading.Event()
        self._ended = threading.Event()

    def begin(self) -> None:
        """Start, and wait for the first write, so that something is going on."""
        self.start()
        self._wrote.wait(timeout=10.0)

    def end(self) -> None:
        """Stop when the write under way is done: what was written is what was acknowledged."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Write."""
        at = 0
        while not self._ended.is_set():
            try:
                value = b"%d" % (self.written + 1)
                self._connections[at].request(Set(key=self.key, value=value, vbucket=self._vbucket))
                self.written += 1
                self._wrote.set()
            except NotMyVBucketError:
                self.refused += 1
                at = 1 - at
                time.sleep(0.001)
            except ClientError as error:  # of this write, nobody knows whether it was done
                self.failure = error
                break
        self._wrote.set()
        for connection in self._connections:
            connection.close()

    def check(self, owner: Server) -> str:
        """Hold what the owner has against what was acknowledged."""
        with owner.connect() as connection:
            found = number_in(connection, self.key, self._vbucket)
        if self.failure is not None and found in {self.written, self.written + 1}:
            return f"{self.key.decode()}: {self.written} writes, none lost; then {self.failure}"
        if found != self.written:
            sys.exit(f"{self.key.decode()}: {self.written} was acknowledged, and {found} is there")
        return f"{self.key.decode()}: {self.written} writes, {self.refused} refused meanwhile, none lost"


def number_in(connection: KvConnection, key: bytes, vbucket: VBucketId) -> int:
    """Read a number; 0 where there is none."""
    with suppress(NotFoundError):
        item = connection.request(Get(key=key, vbucket=vbucket))
        assert isinstance(item, Item)
        return int(item.value)
    return 0


if __name__ == "__main__":
    main()
