"""`headrace demo`: a bucket, a table that is kept equal to it by Spark, and a crash in the middle.

Everything that it runs is a command that a user can run; it says which. The node and the job are processes of their
own, since one of them is killed.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import CommandError, exits
from headrace.cli.demo_data import Airline
from headrace.cli.explain import EXIT_FINE, EXIT_PROBLEMS
from headrace.cli.items import epilog
from headrace.cli.pair import StatusLine

if TYPE_CHECKING:
    from headrace.client import KvConnection, LoadRow

EXAMPLES = ("headrace demo --exit",)
"""Commands that run as they stand, where there is a Java."""

EPILOG = epilog((*EXAMPLES, "headrace demo --documents 200000 --folder ./demo"))

HOST = "127.0.0.1"
WRITES_PER_S = 400
READY_S = 60.0
CATCH_UP_S = 90.0
STOP_S = 30.0


def demo(
    *,
    exit_: Annotated[
        bool,
        typer.Option("--exit", help="End when it is shown, and leave nothing behind; so it does without a terminal."),
    ] = False,
    documents: Annotated[int, typer.Option(metavar="N", min=100, help="How many bookings there are.")] = 20_000,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where node and table are kept; a temporary one otherwise.")
    ] = None,
) -> None:
    """Show a table that stays equal to its bucket through a crash that loses changes.

    A node is started and filled with the documents of a small airline. `headrace run materialize` keeps a Delta table
    equal to it on a local Spark, while writers go on. In the middle the node is killed with changes in memory that are
    not on disk; it comes back without them, and the table gives them up. At the end `headrace compare` says whether
    both are equal. Java 17 or later has to be installed.

    The exit code is 0 when they are equal.
    """
    with exits("demo"), ExitStack() as stack:
        place = folder if folder is not None else Path(stack.enter_context(_scratch()))
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise CommandError(f"{place} is not empty: --folder names a new folder")
        code = _Demo(place, documents, stack).run(stay=not exit_ and sys.stdin is not None and sys.stdin.isatty())
    raise typer.Exit(code)


@contextmanager
def _scratch() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as made:
        yield made


class _Demo:
    """One run of the command."""

    def __init__(self, folder: Path, documents: int, stack: ExitStack) -> None:
        self._began = time.monotonic()
        self._stack = stack
        self._airline = Airline(documents)
        self._node = _NodeProcess(folder / "node", stack)
        self._table = f"delta:{folder / 'table'}"
        self._folder = folder

    def run(self, *, stay: bool) -> int:
        """Show everything; give the exit code."""
        _find_java()
        self._say(f"1. A node: headrace node --data {self._folder / 'node'}")
        self._node.start()
        self._say(f"   It serves on {HOST}:{self._node.port}. A small airline moves in.")
        count = self._fill()
        self._say(f"   {count:,} documents are in. They are on disk.")
        self._say(f"2. A table: headrace run materialize --from {self._node.address} --to {self._table}")
        job = _Job(self._node.address, self._table, self._stack)
        job.wait_for(lambda: job.rows >= count, "the first load")
        self._say(f"   Spark has loaded it: {job.rows:,} rows. From here on it is one commit for each micro-batch.")
        writers = _Writers(self._node.port, self._airline, self._stack)
        self._say(f"3. A day goes by: bookings, changes, cancellations, {WRITES_PER_S} a second.")
        job.watch(5.0, lambda: writers.done)
        lost = self._lose(job, writers)
        self._say(f"5. The node is back, without {lost:,} changes that the table has. The day goes on.")
        job.watch(5.0, lambda: writers.done)
        writers.stop()
        self._say(f"6. The writers stop after {writers.done:,} changes. The table catches up.")
        changes = self._node.seqnos()
        job.wait_for(lambda: job.seqnos >= changes, "the table to catch up")
        job.stop()
        self._say(f"   {job.rows:,} rows came in {job.commits} commits; {job.rollbacks} vbuckets were rolled back.")
        code = self._compare()
        if stay and code == EXIT_FINE:
            self._stay()
        return code

    def _fill(self) -> int:
        from headrace.client import Loader, LoadRow, json_beside  # noqa: PLC0415 - explain needs none of it

        def refused(row: "LoadRow", error: Exception) -> None:
            raise CommandError(f"{row.key!r} was refused: {error}")

        with self._node.connect() as node:
            flags, datatype = json_beside(node.features)
            loader = Loader(node, refused=refused, flags=flags, datatype=datatype)
            for key, value in self._airline.documents():
                loader.add(LoadRow("", key, value))
            loader.finish()
            acknowledged = loader.acknowledged
        self._node.wait_until_on_disk()
        return acknowledged

    def _lose(self, job: "_Job", writers: "_Writers") -> int:
        """Let changes be in memory only, and in the table; then kill the node."""
        self._say("4. Trouble: the disk stalls (headrace chaos pause). Writes are acknowledged from memory.")
        self._node.chaos("pause")
        job.watch(4.0, lambda: writers.done)
        with writers.held():
            before = self._node.seqnos()
            job.wait_for(lambda: job.seqnos >= before, "the table to have what is in memory")
            self._say("   The table has what is on no disk. Now kill -9 of the node.")
            self._node.kill()
        self._node.start()
        return before - self._node.seqnos()

    def _compare(self) -> int:
        bucket = f"{self._node.address}/default"
        self._say(f"7. headrace compare {bucket} {self._table}")
        command = [*_HEADRACE, "compare", bucket, self._table]
        done = subprocess.run(command, check=False)  # noqa: S603 - our own program
        if done.returncode == EXIT_FINE:
            self._say(f"   Equal, after {time.monotonic() - self._began:.0f} s.")
            return EXIT_FINE
        self._say("   They are not equal: that is a fault of headrace. Please tell us, with what is above.")
        return EXIT_PROBLEMS

    def _stay(self) -> None:
        self._say("   The node goes on until Ctrl-C. Try, in another terminal:")
        address = f"--connect {self._node.address}"
        for line in (
            f"headrace get {address} airport::007",
            f"headrace tail {address}",
            f"headrace run materialize --from {self._node.address} --to {self._table} --once",
        ):
            typer.echo(f"      {line}")
        with suppress(KeyboardInterrupt):
            self._node.wait()

    def _say(self, text: str) -> None:
        typer.echo(f"[{time.monotonic() - self._began:5.1f} s] {text}")


_HEADRACE = (sys.executable, "-m", "headrace")


def _find_java() -> None:
    """Say at once when there is no Java, not after the node was filled."""
    from headrace.spark.java import find_java  # noqa: PLC0415 - explain needs none of it

    find_java()


class _NodeProcess:
    """The node, as a process that can be killed and started again on its port."""

    def __init__(self, data: Path, stack: ExitStack) -> None:
        self.port = 0
        self._data = data
        self._process: subprocess.Popen[str] | None = None
        stack.callback(self._end)

    @property
    def address(self) -> str:
        """How clients find it."""
        return f"couchbase://{HOST}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        command = [*_HEADRACE, "node", "--host", HOST, "--port", str(self.port), "--data", str(self._data)]
        command += ["--vbuckets", "64"]
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,  # Ctrl-C is for the demo, which ends it
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r":(\d+)$", line.strip())
        if found is None:
            raise CommandError(f"the node did not start: {line.strip() or 'it ended at once'}")
        self.port = int(found[1])

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._close()

    def wait(self) -> None:
        """Wait for its end."""
        assert self._process is not None
        self._process.wait()

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def connect(self) -> "KvConnection":
        """Open a connection for items."""
        from headrace.client import KvConnection  # noqa: PLC0415 - explain needs none of it

        return KvConnection(HOST, self.port)

    def seqnos(self) -> int:
        """The sum of the high seqnos of all vbuckets: how many changes there were."""
        from headrace.client import ChangeOptions  # noqa: PLC0415 - explain needs none of it
        from headrace.client.scout import Scout  # noqa: PLC0415

        with Scout(ChangeOptions(connection=self.address)) as scout:
            return sum(each.high for each in scout.await_sightings().values())

    def wait_until_on_disk(self) -> None:
        """Wait until nothing is in memory only."""
        from headrace.client import ChangeOptions  # noqa: PLC0415 - explain needs none of it
        from headrace.client.scout import Scout  # noqa: PLC0415

        end = time.monotonic() + READY_S
        with Scout(ChangeOptions(connection=self.address)) as scout:
            highs = {vb: each.high for vb, each in scout.await_sightings().items()}
            branches = {vb: log.latest.vbuuid for vb, log in scout.logs(highs).items()}
            while any(seqno < highs[vb] for vb, seqno in scout.persisted(branches).items()):
                if time.monotonic() > end:
                    raise CommandError(f"the documents are not on disk after {READY_S:.0f} s")
                time.sleep(0.1)

    def chaos(self, fault: str) -> None:
        """Make trouble."""
        from headrace.client.chaos import make_trouble  # noqa: PLC0415 - explain needs none of it

        with self.connect() as node:
            make_trouble(node, fault, {})


class _Job:
    """`headrace run materialize` as a process, and what it tells."""

    def __init__(self, address: str, table: str, stack: ExitStack) -> None:
        self.rows = self.commits = self.rollbacks = self.seqnos = 0
        self.lag: int | None = None
        self._line = StatusLine()
        self._errors = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 - the stack closes it
        command = [*_HEADRACE, "run", "materialize", "--from", address, "--to", table, "--every", "500ms"]
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [*command, "--output", "json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, start_new_session=True,
        )  # fmt: skip
        stack.callback(self.stop)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):
                told: dict[str, Any] = json.loads(line)
                self.rows, self.commits = told["rows"], told["commits"]
                self.rollbacks, self.seqnos, self.lag = told["rollbacks"], told["seqnos"], told["lag"]

    def wait_for(self, holds: Any, what: str) -> None:
        """Wait until something holds, and show how far it is."""
        end = time.monotonic() + CATCH_UP_S
        while not holds():
            self._check()
            if time.monotonic() > end:
                raise CommandError(f"{what} took more than {CATCH_UP_S:.0f} s")
            self._show("")
            time.sleep(0.1)
        self._line.clear()

    def watch(self, seconds: float, written: Any) -> None:
        """Look on for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._check()
            self._show(f"{written():,} written, ")
            time.sleep(0.1)
        self._line.clear()

    def _show(self, before: str) -> None:
        lag = "" if self.lag is None else f", {self.lag:,} behind"
        self._line.show(f"          {before}{self.rows:,} rows in {self.commits} commits{lag}")

    def _check(self) -> None:
        if self._process.poll() is not None:
            self._line.clear()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            raise CommandError(f"materialize ended by itself: {said[-1] if said else 'without a word'}")

    def stop(self) -> None:
        """Let it end cleanly."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._reading.join(STOP_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


class _Writers:
    """Somebody who writes all day, also through a crash of the node."""

    def __init__(self, port: int, airline: Airline, stack: ExitStack) -> None:
        self.done = 0
        self._port = port
        self._airline = airline
        self._stopped = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        stack.callback(self.stop)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let nobody write for a while."""
        with self._turn:
            yield

    def stop(self) -> None:
        """Write no more."""
        self._stopped.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        from headrace.client import ClientError, KvConnection  # noqa: PLC0415 - explain needs none of it

        while not self._stopped.is_set():
            with suppress(ClientError), KvConnection(HOST, self._port) as node:
                while not self._stopped.wait(0.05):
                    with self._turn:
                        for _ in range(WRITES_PER_S // 20):
                            self._write(node)
            self._stopped.wait(0.1)

    def _write(self, node: "KvConnection") -> None:
        from headrace.client import NotFoundError, json_beside  # noqa: PLC0415 - explain needs none of it

        key, value = self._airline.change()
        if value is None:
            with suppress(NotFoundError):
                node.delete(key)
        else:
            flags, datatype = json_beside(node.features)
            node.set(key, value, flags=flags, datatype=datatype)
        self.done += 1


__all__ = ["EPILOG", "EXAMPLES", "demo"]
