"""Foreign DCP clients as processes, each a small program around an official library, and a book of what was written.

A witness takes commands on stdin and says on stdout what its library delivered, as JSON, a line a thing; the commands
are told at the top of `java/Witness.java`. One process serves many tests: a client has a name, and lines carry it.
The libraries come from where everybody has them, Maven Central and Go's module proxy, into `build/`; they are no part
of this tree.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.client import KvConnection
from headrace.ids import Seqno, VBucketId
from headrace.wire.catalogue import Hello, SeqnoPersistence, StartPersistence, StopPersistence
from headrace.wire.codes import Datatype, Feature
from headrace.wire.snappy import deflate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.wire.catalogue import Mutated
    from tests.processes import Server

HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build" / "foreign"
FETCH_S = 600
ANSWER_S = 180  # a step of a witness gives up by itself after 60
DELIVERED_S = 120  # a machine may be busy
PIECE_BYTES = 1 << 16
QUIET = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
FAR = 4_000_000_000
PASSWORD = "correct-horse-battery"
CHANGES = frozenset({"mutation", "deletion", "expiration"})

Event = dict[str, Any]


# -- building


def java_program() -> list[str]:
    """Fetch the DCP client of Couchbase, compile the witness, and give the command that runs it."""
    return _java_program("java", "Witness")


def tap_program() -> list[str]:
    """Fetch spymemcached, compile its witness, and give the command that runs it."""
    return _java_program("java_tap", "TapWitness")


def _java_program(folder: str, name: str) -> list[str]:
    with _built(folder, "pom.xml", f"{name}.java") as (sources, build):
        if build is not None:
            jars = build / "jars"
            fetch = ["mvn", "-B", "-ntp", "-q", "-f", str(sources / "pom.xml"), "dependency:copy-dependencies"]
            _run([*fetch, f"-DoutputDirectory={jars}", "-DincludeScope=runtime"])
            compiled = ["javac", "-Xlint:all", "-Werror", "-d", str(build / "classes"), "-cp", f"{jars}/*"]
            _run([*compiled, str(sources / f"{name}.java")])
    place = BUILD / folder
    return ["java", "-Xmx512m", *QUIET, "-cp", f"{place}/classes:{place}/jars/*", name]


def go_program() -> list[str]:
    """Fetch gocbcore, compile the witness, and give the command that runs it."""
    with _built("go", "go.mod", "go.sum", "witness.go") as (sources, build):
        if build is not None:
            _run(["go", "build", "-o", str(build / "witness"), "."], cwd=sources)
    return [str(BUILD / "go" / "witness")]


@contextlib.contextmanager
def _built(language: str, *names: str) -> Iterator[tuple[Path, Path | None]]:
    """Give the sources, and an empty directory to build into where what is there was built from others.

    Two processes may want it at once: the second waits. What was half built is never seen.
    """
    sources, place = HERE / language, BUILD / language
    digest = hashlib.sha256(b"".join((sources / name).read_bytes() for name in names)).hexdigest()
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{language}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (place / digest).exists():
            yield sources, None
            return
        shutil.rmtree(place, ignore_errors=True)
        fresh = BUILD / f"{language}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        yield sources, fresh
        (fresh / digest).touch()
        fresh.rename(place)


def _run(command: Sequence[str], **options: Any) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_S, check=False, **options
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"


# -- running


class Witness:
    """A running program. It is asked by one thread; another one takes what it says."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  closed in `close`
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        self._clients: dict[str, Client] = {}
        self._names = itertools.count()
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def client(self) -> Client:
        """Give a new client, that is not connected yet."""
        client = Client(self, f"client-{next(self._names)}")
        self._clients[client.name] = client
        return client

    def ask(self, client: Client, do: str, **fields: Any) -> Event:
        """Have something done, and give the answer."""
        assert self._process.stdin is not None
        seen = len(client.events)
        line = json.dumps({"do": do, "client": client.name, **fields})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

        def answer() -> Event | None:
            return next((event for event in client.events[seen:] if event["event"] in {do, "failed"}), None)

        self.wait(lambda: answer() is not None, what=f"an answer to {do}", seconds=ANSWER_S)
        found = answer()
        assert found is not None
        return found

    def wait(self, enough: Callable[[], bool], *, what: str, seconds: float = DELIVERED_S) -> None:
        """Wait until something is so; it is looked at whenever the witness said more."""
        with self._news:
            self._news.wait_for(lambda: self._ended or enough(), seconds)
        assert enough(), f"{what} is missing; the witness logged:\n{self.log}"

    @property
    def log(self) -> str:
        """What the program wrote to stderr, its end."""
        self._log.flush()
        return Path(f"/proc/self/fd/{self._log.fileno()}").read_text(errors="replace")[-5_000:]

    def close(self) -> None:
        """End the process: with its stdin."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._reader.join()
            self._process.stdout.close()
            self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while piece := os.read(self._process.stdout.fileno(), PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            with self._news:
                for line in lines:
                    event = json.loads(line)
                    self._clients[event["client"]].take(event)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class Client:
    """One client of a witness; a context manager that closes it, connected or not."""

    def __init__(self, witness: Witness, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.changes: list[Event] = []
        self.reached: dict[int, int] = {}
        """The last seqno that was delivered, by vbucket."""
        self._witness = witness
        self._connected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, event: Event) -> None:
        """Keep a line that the witness said for this client."""
        self.events.append(event)
        if event["event"] in CHANGES:
            self.changes.append(event)
            self.reached[event["vbucket"]] = event["seqno"]

    def of(self, *kinds: str) -> list[Event]:
        """What was delivered of some kinds, in order."""
        return [event for event in self.events if event["event"] in kinds]

    def connect(self, server: Server, **options: Any) -> Event:
        """Connect to a server that lets it in."""
        answer = self.do("connect", host=server.host, port=server.port, **options)
        self._connected = True
        return answer

    def ask(self, do: str, **fields: Any) -> Event:
        """Have something done for this client, and give the answer."""
        return self._witness.ask(self, do, **fields)

    def do(self, what: str, **fields: Any) -> Event:
        """The same, where it must not fail."""
        answer = self.ask(what, **fields)
        assert answer["event"] == what, answer
        return answer

    def wait(self, enough: Callable[[], bool], what: str) -> None:
        """Wait until this client was told enough."""
        try:
            self._witness.wait(enough, what=what)
        except AssertionError as error:
            error.add_note(f"delivered: {Counter(event['event'] for event in self.events)}, up to {self.reached}")
            raise

    def wait_for(self, high: dict[int, int]) -> None:
        """Wait until each of these vbuckets was delivered up to its seqno."""
        self.wait(
            lambda: all(self.reached.get(vb, 0) >= seqno for vb, seqno in high.items()),
            f"up to {high}",
        )

    def close(self) -> None:
        """Disconnect."""
        if self._connected:
            self._connected = False
            self.do("close")


def newest(changes: Sequence[Event]) -> dict[str, Event]:
    """The newest of what was delivered of each key, when it came as a stream must.

    Seqnos of a vbucket ascend, and each lies within the snapshot that was announced before it.
    """
    reached: dict[int, int] = {}
    by_key: dict[str, Event] = {}
    for change in changes:
        vbucket, seqno = change["vbucket"], change["seqno"]
        assert seqno > reached.get(vbucket, 0), f"behind {reached[vbucket]}: {change}"
        assert change["snapshot_start"] <= seqno <= change["snapshot_end"], change
        reached[vbucket] = seqno
        by_key[change["key"]] = change
    return by_key


def still_there(events: Sequence[Event]) -> dict[str, Event]:
    """What an application has that takes every change, and takes back what a rollback tells it to."""
    history: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["event"] == "rollback":
            kept = [change for change in history[event["vbucket"]] if change["seqno"] <= event["seqno"]]
            history[event["vbucket"]] = kept
        elif event["event"] in CHANGES:
            history[event["vbucket"]].append(event)
    return {change["key"]: change for changes in history.values() for change in changes}


# -- writing


class Book:
    """Writes to a server, and keeps what a stream must deliver of it: the newest of each key."""

    def __init__(self, server: Server, *, username: str | None = None, password: str | None = None) -> None:
        self.newest: dict[str, Event] = {}
        self.high: dict[int, int] = {}
        self._server = server
        self._login = username, password
        self._kv = self._connected()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kv.close()

    def reconnect(self) -> None:
        """Connect again to a server that was restarted."""
        self._kv.close()
        self._kv = self._connected()

    def set(self, key: str, value: bytes, *, flags: int = 0, expiry: int = 0) -> None:
        """Store an item. `expiry` is a time of the epoch, or 0: what is sent back is not what is asked otherwise."""
        done = self._kv.set(key.encode(), value, flags=flags, expiry=expiry)
        self._note_set(key, value, done, flags=flags, expiry=expiry)

    @staticmethod
    def in_a_second() -> int:
        """An expiry that is soon."""
        return int(time.time()) + 1

    def set_compressed(self, key: str, value: bytes) -> None:
        """Store an item as a client does that compresses what it sends."""
        features = (Feature.MUTATION_SEQNO, Feature.SELECT_BUCKET, Feature.SNAPPY, Feature.JSON)
        self._kv.request(Hello(agent=b"compressing", features=features))
        done = self._kv.set(key.encode(), deflate(value), datatype=Datatype.SNAPPY)
        self._note_set(key, value, done)

    def delete(self, key: str) -> None:
        """Remove an item."""
        self._note(key, {"event": "deletion", "bytes": 0}, self._kv.delete(key.encode()))

    def write_some(self, *, keys: int = 500, seed: int = 1) -> None:
        """Items of all sizes; some written again, some removed, some removed and written again."""
        drawn = random.Random(seed)
        names = [f"key-{seed}-{number}" for number in range(keys)]
        for name in names:
            self.set(name, drawn.randbytes(drawn.choice((0, 1, 10, 1000))), flags=drawn.getrandbits(32))
        for name in drawn.sample(names, keys // 4):
            self.set(name, b'{"again": true}', expiry=FAR)
        for name in drawn.sample(names, keys // 4):
            self.delete(name)
        for name in drawn.sample(names, keys // 8):
            self.set(name, b"back")

    def stop_persistence(self) -> None:
        """From now on nothing that is written reaches the disk."""
        self._kv.request(StopPersistence())

    def start_persistence(self) -> None:
        """Let it reach the disk again."""
        self._kv.request(StartPersistence())

    def persist(self) -> None:
        """Wait until all that was written is on disk."""
        for vbucket, seqno in self.high.items():
            self._kv.request(SeqnoPersistence(vbucket=VBucketId(vbucket), seqno=Seqno(seqno)))

    def copy(self) -> tuple[dict[str, Event], dict[int, int]]:
        """What was written up to now."""
        return dict(self.newest), dict(self.high)

    def check(self, changes: Sequence[Event]) -> None:
        """Hold what was delivered against what was written, key by key: neither more nor less nor other."""
        delivered = newest(changes)
        assert self._same_fields(delivered) == self.newest
        assert delivered.keys() == self.newest.keys()

    def agrees_with(self, delivered: dict[str, Event]) -> bool:
        """Whether this is what was written, neither more nor less nor other."""
        return delivered.keys() == self.newest.keys() and self._same_fields(delivered) == self.newest

    def _connected(self) -> KvConnection:
        username, password = self._login
        host, port = self._server.host, self._server.port
        return KvConnection(host, port, username=username, password=password, timeout_s=60)

    def _same_fields(self, delivered: dict[str, Event]) -> dict[str, Event]:
        known = ((key, entry) for key, entry in self.newest.items() if key in delivered)
        return {key: {name: delivered[key].get(name) for name in entry} for key, entry in known}

    def _note_set(self, key: str, value: bytes, done: Mutated, *, flags: int = 0, expiry: int = 0) -> None:
        what = {"event": "mutation", "bytes": len(value), "crc32": zlib.crc32(value), "flags": flags, "expiry": expiry}
        self._note(key, what, done)

    def _note(self, key: str, what: Event, done: Mutated) -> None:
        assert done.seqno is not None
        vbucket = self._kv.vbucket_of(key.encode())
        self.newest[key] = what | {"vbucket": vbucket, "seqno": done.seqno, "cas": str(done.cas)}
        self.high[vbucket] = done.seqno


def users_file(directory: Path, **roles: str) -> Path:
    """A users file as its owner would make it, each user with the same password."""
    path = directory / "users.json"
    for name, role in roles.items():
        command = [sys.executable, "-m", "headrace", "user", "add", name, "--users", str(path), "--role", role]
        subprocess.run([*command, "--password-env", "SECRET"], env={**os.environ, "SECRET": PASSWORD}, check=True)
    return path
