"""`headrace run materialize` as a process that is killed, and beside a node that is."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.cli.run import EXAMPLES
from headrace.client import ClientError, KvConnection
from headrace.pipelines.tables.delta import DeltaSink
from headrace.spark import java
from headrace.testing import Chaos, LiveNode
from tests.cli.tools import run
from tests.client.servers import free_port
from tests.processes import Server, start_node
from tests.spark.conftest import spark_home
from tests.spark.faults.jobs import executors_of
from tests.spark.faults.test_secrets import PASSWORD, USER, files_of, search, start_closed_node

WAIT_S = 180.0
SMALL = ("--master", "local[2]", "--conf", "spark.driver.memory=1g")


class Command:
    """`headrace run materialize` in a process, with its lines."""

    def __init__(self, server: str, to: str, *options: str, cwd: Path, **variables: str) -> None:
        command = [sys.executable, "-m", "headrace", "run", "materialize", "--from", server, "--to", to]
        self._words = cwd / f"words-{time.monotonic_ns()}"
        with self._words.open("wb") as words:
            self.process = subprocess.Popen(
                [*command, "--output", "json", *SMALL, *options],
                stdout=subprocess.PIPE,
                stderr=words,
                cwd=cwd,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        self.told: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(json.loads(line))

    @property
    def words(self) -> str:
        """What it wrote to standard error, but for what Java itself says when it starts."""
        lines = self._words.read_text().splitlines()
        return "\n".join(line for line in lines if not line.startswith("WARNING: Using incubator modules"))

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for a line."""
        end = time.monotonic() + WAIT_S
        while not any(holds(each) for each in self.told):
            assert self.process.poll() is None, self.words
            assert time.monotonic() < end, self.told
            time.sleep(0.05)

    def end(self, number: int | None = None) -> int:
        """Send a signal, wait, and give the exit code."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def materialize(server: str, to: str, *options: str, cwd: Path, **variables: str) -> Iterator[Command]:
    """Run the command for as long as a `with` lasts."""
    command = Command(server, to, *options, cwd=cwd, **variables)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.process.kill()
        command.end()


def once(server: str, to: str, cwd: Path) -> dict[str, Any]:
    """Run the command to its end; what it says last."""
    with materialize(server, to, "--once", cwd=cwd) as command:
        code = command.end()
        assert (code, command.words) == (0, "")
        return command.told[-1]


def check_equal(server: str, to: str, cwd: Path) -> int:
    """Have `headrace compare` say that they are equal; give how many items there are."""
    place = f"{to.partition(':')[0]}:{cwd / to.partition(':')[2]}"
    done = run("compare", f"{server}/default", place, "--output", "json")
    assert done.exit_code == 0, done.stdout + done.stderr
    return int(json.loads(done.stdout)["same"])


class Writer(threading.Thread):
    """Writes and removes items as long as it lasts, also over a node that comes and goes."""

    def __init__(self, port: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._stop_wanted = threading.Event()
        self.start()

    def run(self) -> None:
        """Write."""
        number = 0
        while not self._stop_wanted.is_set():
            with suppress(ClientError, OSError), KvConnection("127.0.0.1", self._port()) as items:
                while not self._stop_wanted.is_set():
                    number += 1
                    items.set(b"w-%d" % (number % 500), b'{"n": %d}' % number)
                    if number % 7 == 0:
                        with suppress(ClientError):
                            items.delete(b"w-%d" % ((number * 3) % 500))
                    time.sleep(0.002)
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop."""
        self._stop_wanted.set()
        self.join(WAIT_S)


@pytest.mark.slow
@pytest.mark.usefixtures("java_home")
def test_sigterm_ends_it_between_two_commits(tmp_path: Path):
    """It goes on as long as it is let, ends with 143 and a last word, and the next run goes on where it was.

    A run whose table is gone ends with one sentence, though Spark and its Python side have a page to say.
    """
    with LiveNode(vbuckets=16) as node:
        node.write(300)
        writer = Writer(lambda: node.port)
        with materialize(node.connection_string, "delta:t", "--every", "200ms", cwd=tmp_path) as command:
            command.until(lambda told: told["rows"] > 300 and told["commits"] > 2)
            assert command.end(signal.SIGTERM) == 143
            assert command.told[-1]["event"] == "ended"
            assert command.words == ""
        writer.stop()
        last = once(node.connection_string, "delta:t", tmp_path)
        assert last["lag"] == 0
        assert check_equal(node.connection_string, "delta:t", tmp_path) >= 300
        shutil.rmtree(tmp_path / "t")
        node.write({"new": 1})
        with materialize(node.connection_string, "delta:t", "--once", cwd=tmp_path) as command:
            assert command.end() == 2
            assert command.words.startswith("headrace run materialize: ")
            assert "the table knows nothing of it" in command.words
            assert len(command.words.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("java_home")
@pytest.mark.parametrize("to", ["delta:t", "parquet:l"])
def test_a_kill_of_the_driver_loses_and_doubles_nothing(tmp_path: Path, to: str):
    """Killed at any moment and started again, it ends with what the bucket holds."""
    with LiveNode(vbuckets=16) as node:
        node.write(500)
        writer = Writer(lambda: node.port)
        for more in (0, 0.4):
            with materialize(
                node.connection_string, to, "--every", "100ms", "--max-changes", "100", cwd=tmp_path
            ) as command:
                command.until(lambda told: told["batches"] > 3)
                time.sleep(more)
                assert command.end(signal.SIGKILL) == -signal.SIGKILL
        writer.stop()
        once(node.connection_string, to, tmp_path)
        assert check_equal(node.connection_string, to, tmp_path) >= 500


@pytest.mark.slow
@pytest.mark.usefixtures("java_home")
def test_a_killed_executor_loses_and_doubles_nothing(tmp_path: Path):
    """Of two executors one is killed while there is much to read; the run goes on by itself, and ends equal."""
    cluster = ("--master", "local-cluster[2,1,512]", "--conf", "spark.executor.memory=512m")
    home = str(spark_home(tmp_path))
    with LiveNode(vbuckets=16) as node:
        node.write(2000)
        writer = Writer(lambda: node.port)
        options = (*cluster, "--every", "100ms", "--max-changes", "200")
        with materialize(node.connection_string, "delta:t", *options, cwd=tmp_path, SPARK_HOME=home) as command:
            driver = command.process.pid
            command.until(lambda told: told["batches"] > 0 and len(executors_of(driver)) == 2)
            first = executors_of(driver)
            os.kill(first[0], signal.SIGKILL)
            command.until(lambda _: len(set(executors_of(driver)) - {first[0]}) == 2)
            batches = command.told[-1]["batches"]
            command.until(lambda told: told["batches"] > batches + 1)
            assert command.end(signal.SIGTERM) == 143
        writer.stop()
        assert once(node.connection_string, "delta:t", tmp_path)["rollbacks"] == 0
        assert check_equal(node.connection_string, "delta:t", tmp_path) >= 2000


def _lose(node: Server, server: str, table: Path) -> None:
    """Kill a node that has written changes to nobody's disk, when a table has some of them."""
    chaos = Chaos(server)
    chaos.pause()
    with KvConnection(node.host, node.port) as items:
        for number in range(300):
            items.set(b"lost-%d" % number, b"x")
    end = time.monotonic() + WAIT_S
    while "lost-0" not in DeltaTable(table).to_pyarrow_table(columns=["key"])["key"].to_pylist():
        assert time.monotonic() < end
        time.sleep(0.1)
    node.kill()
    time.sleep(0.5)
    node.start()


@pytest.mark.slow
@pytest.mark.usefixtures("java_home")
def test_a_node_that_is_killed_with_lost_changes(tmp_path: Path):
    """The table had changes that the node has not any more: they are gone from it when the node is back."""
    node = start_node("--data", str(tmp_path / "data"), "--vbuckets", "16")
    server = f"couchbase://127.0.0.1:{node.port}"
    writer = None
    try:
        with KvConnection(node.host, node.port) as items:
            for number in range(300):
                items.set(b"key-%d" % number, b'{"n": 1}')
        with materialize(server, "delta:t", "--every", "200ms", cwd=tmp_path) as command:
            command.until(lambda told: told["rows"] >= 300)
            writer = Writer(lambda: node.port)
            _lose(node, server, tmp_path / "t")
            command.until(lambda told: told["rollbacks"] > 0)
            writer.stop()
            assert command.end(signal.SIGTERM) == 143
        once(server, "delta:t", tmp_path)
        assert check_equal(server, "delta:t", tmp_path) >= 300
    finally:
        if writer is not None:
            writer.stop()
        if node.running:
            node.kill()
        node.close()


@pytest.mark.slow
@pytest.mark.usefixtures("java_home")
def test_a_terminal_shows_how_far_it_is(tmp_path: Path):
    """One line is written over: changes, commits, rate and lag; Ctrl-C ends it with 130 and a last line."""
    ours, theirs = pty.openpty()
    with LiveNode(vbuckets=16) as node:
        node.write(300)
        command = [sys.executable, "-m", "headrace", "run", "materialize", "--from", node.connection_string]
        watched = subprocess.Popen([*command, "--to", "delta:t", *SMALL], stderr=theirs, cwd=tmp_path)
        try:
            os.close(theirs)
            seen = b""
            end = time.monotonic() + WAIT_S
            while b"\r\x1b[K300 changes in 1 commits, 0/s, 0 behind" not in seen:
                assert time.monotonic() < end, seen
                seen += os.read(ours, 1000)
            watched.send_signal(signal.SIGINT)
            with suppress(OSError):  # the terminal closes
                while more := os.read(ours, 1000):
                    seen += more
            assert watched.wait(WAIT_S) == 130
            assert b"delta:t: 300 changes in 1 commits in " in seen
        finally:
            watched.kill()
            watched.wait()
            os.close(ours)


@pytest.mark.slow
@pytest.mark.usefixtures("java_home")
def test_a_password_is_nowhere(tmp_path: Path):
    """Given by a variable, and with Spark telling all it does, it is in no line, no checkpoint and no table."""
    server = start_closed_node(tmp_path)
    at = f"couchbase://127.0.0.1:{server.port}"
    known = ("--username", USER, "--password-env", "ANN", "--spark-log", "info")
    folder = tmp_path / "run"
    folder.mkdir()
    try:
        with materialize(at, "delta:t", "--once", *known, cwd=folder, ANN=PASSWORD) as command:
            assert command.end() == 0, command.words
            assert command.told[-1]["rows"] == 100
    finally:
        server.kill()
        said = server.said
        server.close()
    assert " INFO " in command.words
    assert any((folder / "t.checkpoint" / "offsets").iterdir())
    search(files_of(folder) | {"told": json.dumps(command.told).encode(), "node": said.encode()})


# ---------------------------------------------------------------------------------------------------------------------
# What goes wrong before Spark starts
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with an item."""
    with LiveNode(vbuckets=4) as found:
        found.write(1)
        yield found


def refused(*arguments: str, **variables: Any) -> tuple[int, str]:
    """Run the command, which is to say one sentence and nothing else; the exit code and the sentence."""
    done = run("run", "materialize", *arguments, **variables)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("headrace run materialize: ")
    return done.exit_code, done.stderr.removeprefix("headrace run materialize: ").strip()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--to", "delta"], "a table is delta:PATH or parquet:PATH, not 'delta'"),
        (["--to", "csv:x"], "a table is delta:PATH or parquet:PATH, not 'csv:x'"),
        (["--to", "delta:t", "--every", "soon"], "--every is a time as 500ms, 10s, 5m or 1h, not 'soon'"),
        (["--to", "delta:t", "--history", "x"], "--history is a time as 500ms, 10s, 5m or 1h, not 'x'"),
        (["--to", "delta:t", "--max-bytes", "much"], "--max-bytes is a size as 64m or 1g, not 'much'"),
        (["--to", "delta:t", "--keys", "odd"], "--keys is text or binary, not 'odd'"),
        (["--to", "delta:t", "--spark-log", "loud"], "--spark-log is off, error, warn, info or debug, not 'loud'"),
        (["--to", "delta:t", "--conf", "memory=1g"], "--conf is spark.NAME=VALUE, not 'memory=1g'"),
        (["--to", "delta:t", "--tls-ca", "ca.pem"], "--tls-ca needs a couchbases:// address"),
        (["--to", "delta:t", "--password-env", "X"], "a password needs --username"),
        (["--to", "delta:t", "--collection", "odd"], "a collection is scope.collection, not 'odd'"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
):
    """It says what would do, with exit code 2, and makes nothing."""
    monkeypatch.chdir(tmp_path)
    assert refused("--from", "couchbase://127.0.0.1", *options) == (2, sentence)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_away(tmp_path: Path):
    """It is told at once, with exit code 69, and no table is made."""
    code, sentence = refused("--from", f"couchbase://127.0.0.1:{free_port()}", "--to", f"delta:{tmp_path / 't'}")
    assert code == 69
    assert "cannot connect" in sentence
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_is_not_there(node: LiveNode, tmp_path: Path):
    """The server's word, with exit code 1."""
    at = ("--from", node.connection_string, "--to", f"delta:{tmp_path / 't'}")
    code, sentence = refused(*at, "--bucket", "nowhere")
    assert code == 1
    assert "there is no bucket nowhere" in sentence


def test_a_wrong_password(tmp_path: Path):
    """It is exit code 1, and the password is shown nowhere."""
    users = tmp_path / "users.json"
    added = run("user", "add", "ann", "--users", users, "--role", "stream", "--password-env", "ANN", ANN="right-horse")
    assert added.exit_code == 0, added.stderr
    server = start_node("--users", str(users), "--vbuckets", "4")
    try:
        code, sentence = refused(
            *("--from", f"couchbase://127.0.0.1:{server.port}", "--to", f"delta:{tmp_path / 't'}"),
            *("--username", "ann", "--password-env", "ANN"),
            ANN="wrong-horse",
        )
    finally:
        server.stop()
        server.close()
    assert code == 1
    assert "not authenticated" in sentence
    assert "horse" not in sentence


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_path_that_holds_something_else(node: LiveNode, tmp_path: Path, kind: str):
    """It is told before Spark starts, and left as it is."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine.txt").write_text("mine")
    code, sentence = refused("--from", node.connection_string, "--to", f"{kind}:{tmp_path / 't'}")
    assert code == 2
    assert "not empty: give another path" in sentence


def test_a_path_that_cannot_be_written(node: LiveNode, tmp_path: Path):
    """The system's reason is in the sentence."""
    (tmp_path / "file").write_text("")
    code, sentence = refused("--from", node.connection_string, "--to", f"delta:{tmp_path / 'file' / 't'}")
    assert code == 2
    assert "a table cannot be made there: Not a directory" in sentence


def test_without_deltalake_its_extra_is_named(node: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One sentence says what to install."""
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, "headrace.pipelines.tables.delta", raising=False)
    code, sentence = refused("--from", node.connection_string, "--to", f"delta:{tmp_path / 't'}")
    assert (code, sentence) == (2, "a Delta table needs the package deltalake: pip install 'headrace[delta]'")


def test_without_java_it_says_what_to_install(node: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One sentence, before anything is started."""

    def none() -> None:
        raise java.JavaError("Spark needs Java 17 or later, and there is none here: install one")

    monkeypatch.setattr("headrace.spark.sessions.find_java", none)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    code, sentence = refused("--from", node.connection_string, "--to", f"delta:{tmp_path / 't'}")
    assert (code, sentence) == (2, "Spark needs Java 17 or later, and there is none here: install one")


def test_a_checkpoint_that_cannot_be_kept(node: LiveNode, tmp_path: Path):
    """A file in its place is told."""
    DeltaSink(tmp_path / "t")
    (tmp_path / "c").write_text("mine")
    at = ("--from", node.connection_string, "--to", f"delta:{tmp_path / 't'}", "--checkpoint", str(tmp_path / "c"))
    code, sentence = refused(*at)
    assert code == 2
    assert "a checkpoint cannot be kept there" in sentence


def test_the_other_commands_need_no_spark(tmp_path: Path):
    """`headrace explain` loads neither pyspark nor Arrow, and `compare` of tables no pyspark."""
    script = (
        "import sys\nfrom headrace.cli import app\nfrom typer.testing import CliRunner\n"
        "done = CliRunner().invoke(app, sys.argv[1:])\n"
        "print(done.exit_code, *sorted({'pyspark', 'pyarrow', 'deltalake'} & set(sys.modules)))"
    )

    def loaded(*arguments: str) -> str:
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout.strip()

    DeltaSink(tmp_path / "t")
    assert loaded("explain", "800a00000000000000000000000000070000000000000000") == "0"
    assert loaded("compare", f"delta:{tmp_path / 't'}", f"delta:{tmp_path / 't'}") == "0 deltalake pyarrow"


def test_the_examples_name_commands_that_are(node: LiveNode):
    """They are parsed as they stand."""
    for example in EXAMPLES:
        words = example.split()[1:]
        assert run(*words, "--help").exit_code == 0
    assert node.port
