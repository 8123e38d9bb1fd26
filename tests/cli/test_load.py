import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from headrace.cli import rows
from headrace.cli.load import EXAMPLES
from tests.cli.tools import got, load, run, shell, start
from tests.client.servers import HOST, free_port, memcached, scripted
from tests.client.test_loading import Moody


def test_json_lines(server: str, tmp_path: Path):
    """Each line becomes the document that it is, byte for byte."""
    lines = [b'{"id": %d, "price":  1.10, "name": "\xc3\xa9"}' % number for number in range(3000)]
    (tmp_path / "f.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n\n".join(lines))
    done = load(server, tmp_path / "f.jsonl", "--key", "id")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("loaded 3000 documents in ")
    assert done.stderr.endswith(f"/s) into default at {server.removeprefix('couchbase://')}\n")
    assert run("get", "--connect", server, "2999").stdout_bytes == lines[2999]


def test_standard_input_and_templates(server: str):
    """`-` is JSON lines, and a key may be made of several columns."""
    data = b'{"type": "user", "id": 7}\n{"type": "user", "id": "x y"}\n{"type": true, "id": 1.5}\n'
    done = load(server, "-", "--key", "{type}::{{{id}}}", data=data)
    assert done.exit_code == 0, done.stderr
    assert got(server, "user::{7}") == {"type": "user", "id": 7}
    assert got(server, "user::{x y}")["id"] == "x y"
    assert got(server, "true::{1.5}")


def test_csv(server: str, tmp_path: Path):
    """Each row becomes an object of texts, whatever quotes and line ends it has within."""
    (tmp_path / "f.csv").write_bytes(b'id,name\r\n1,"A ""b"", \xc3\xa9\r\nnext line"\r\n\r\n2,\r\n')
    done = load(server, tmp_path / "f.csv", "--key", "csv::{id}")
    assert done.exit_code == 0, done.stderr
    assert got(server, "csv::1") == {"id": "1", "name": 'A "b", é\r\nnext line'}
    assert got(server, "csv::2") == {"id": "2", "name": ""}


def test_wrong_rows(server: str):
    """A row that cannot be a document is told with its line and reason; the others are loaded, and the code is 2."""
    wrong = {
        b'{"id": 1': "not JSON at column 9: Expecting ',' delimiter",
        b"[1]": "not a JSON object",
        b'{"no": 1}': "no 'id' to make its key of",
        b'{"id": null}': "no 'id' to make its key of",
        b'{"id": ""}': "'id' is empty",
        b'{"id": [1]}': "'id' is a list",
        b'{"id": {}}': "'id' is an object",
        b'{"id": "%b"}' % (b"k" * 251): "its key has 251 bytes; a key has 1 to 250",
        b'{"id": "\\ud800"}': "its key is not UTF-8",
        b'{"id": "x", "v": NaN}': "NaN is no JSON",
        b'{"id": "x", "v": "\xff"}': "not UTF-8 at byte 18",
        b"[" * 100_000: "nested too deeply",
        b'{"id": 1' + b"0" * 5000 + b"}": "not readable",
    }
    data = b'{"id": "good 1"}\n' + b"\n".join(wrong) + b'\n{"id": "good 2"}\n'
    done = load(server, "-", "--key", "id", data=data)
    told = done.stderr.splitlines()
    for number, reason in enumerate(wrong.values(), start=2):
        assert any(line.startswith(f"-: line {number}: {reason}") for line in told), (number, reason, told)
    assert told[-2].startswith("loaded 2 documents ")
    assert told[-1] == f"{len(wrong)} of {len(wrong) + 2} rows were not loaded"
    assert done.exit_code == 2
    assert got(server, "good 2")


def test_wrong_csv_rows(server: str, tmp_path: Path):
    """Rows of another width, of broken quotes or bytes are told, and reading goes on."""
    (tmp_path / "f.csv").write_bytes(b'id,name\n1\n2,b,c\n3,"x"y\n4,\xff\nok-csv,d\n')
    done = load(server, tmp_path / "f.csv", "--key", "id")
    assert done.exit_code == 2
    reasons = [line.partition(".csv: ")[2] for line in done.stderr.splitlines()[:4]]
    assert reasons == [
        "line 2: the first line names 2 fields, and it has 1",
        "line 3: the first line names 2 fields, and it has 3",
        "line 4: not CSV: ',' expected after '\"'",
        "line 5: not UTF-8",
    ]
    assert got(server, "ok-csv") == {"id": "ok-csv", "name": "d"}


def test_stop_on_error(server: str):
    """With --stop-on-error, the rows before the wrong one are loaded, and none after it."""
    data = b'{"id": "stop 1"}\n{"no": 2}\n{"id": "stop 3"}\n'
    done = load(server, "-", "--key", "id", "--stop-on-error", data=data)
    assert done.exit_code == 2
    assert "loaded 1 document in" in done.stderr
    assert run("get", "--connect", server, "stop 1").exit_code == 0
    assert run("get", "--connect", server, "stop 3").exit_code == 1


def test_limit_and_json(server: str):
    """A load may stop after some rows, and tell a program what it did."""
    data = b"".join(b'{"id": "limit %d"}\n' % number for number in range(10))
    done = load(server, "-", "--key", "id", "--limit", "4", "--output", "json", data=data)
    told = json.loads(done.stdout)
    assert told.keys() == {"loaded", "wrong", "unsettled", "seconds", "bucket", "address"}
    assert (told["loaded"], told["wrong"], told["unsettled"], told["bucket"]) == (4, 0, 0, "default")
    assert run("get", "--connect", server, "limit 4").exit_code == 1


def test_expiry(server: str):
    """Documents may end."""
    assert load(server, "-", "--key", "id", "--expiry", "1", data=b'{"id": "short"}\n').exit_code == 0
    end = time.monotonic() + 10
    while run("get", "--connect", server, "short").exit_code == 0:
        assert time.monotonic() < end
        time.sleep(0.2)


def test_refused_rows():
    """A row that memcached refuses is told, and the others are loaded; --stop-on-error stops there."""
    lines = [b'{"id": 1}', b'{"id": 2, "v": "%b"}' % (b"x" * (2 << 20)), b'{"id": 3}']
    with memcached("-I", "1m") as port:
        done = load(f"{HOST}:{port}", "-", "--key", "id", data=b"\n".join(lines))
        assert done.exit_code == 2
        assert "-: line 2: set 2: too big for this server, status 0x03" in done.stderr
        assert "loaded 2 documents" in done.stderr
        done = load(f"{HOST}:{port}", "-", "--key", "id", "--stop-on-error", data=b"\n".join(lines))
        assert done.exit_code == 2


def test_temporary_failures():
    """What the server cannot do now is loaded in the end."""
    moody = Moody(2)
    with scripted(moody.answer) as server:
        done = load(f"{HOST}:{server.port}", "-", "--key", "id", data=b'{"id": 1}\n{"id": 2}\n')
    assert (done.exit_code, len(moody.stored)) == (0, 2)


def test_many_wrong_rows(server: str):
    """Of very many wrong rows, the first are told, and all are counted."""
    done = load(server, "-", "--key", "id", data=b"{}\n" * 1000)
    told = done.stderr.splitlines()
    assert len(told) == 50 + 1 + 2
    assert told[50] == "-: and more, which are counted only"
    assert told[-1] == "1000 of 1000 rows were not loaded"


def test_long_lines(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A line past the bound is skipped without being kept, and a value past the bound is not sent."""
    monkeypatch.setattr(rows, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(rows, "VALUE_BYTES_MAX", 50)
    data = b'{"id": "%b"}\n{"id": "%b"}\n{"id": "fits"}' % (b"x" * 500, b"x" * 60)
    done = load(server, "-", "--key", "id", data=data)
    assert "line 1: it has more than 100 bytes" in done.stderr
    assert "line 2: its document has 70 bytes; a value has at most 50" in done.stderr
    assert "loaded 1 document " in done.stderr
    (tmp_path / "f.csv").write_bytes(b"id\n" + b"x" * 500)
    done = load(server, tmp_path / "f.csv", "--key", "id")
    assert (done.exit_code, "line 2 has more than 100 bytes: is this CSV?" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "content", "options", "told"),
    [
        ("f.txt", b"", [], ".txt tells no format"),
        ("f", b"", [], "no suffix tells no format"),
        ("none.csv", None, [], "cannot be read: No such file or directory"),
        ("f.parquet", b"not Parquet", [], "f.parquet: after row 0: "),
        ("none.parquet", None, [], "No such file"),
        ("f.csv", b"a,b\n1,2\n", [], "there is no column 'id'; there are 'a', 'b'"),
        ("f.csv", b"id,b,b\n1,2,3\n", [], "two columns are named 'b'"),
        ("f.csv", b'i"d,b\n"1"x', ["--key", "{"], "is no template"),
        ("f.csv", b'"id"x,b\n', [], "line 1: not CSV"),
        ("f.csv", b"", ["--key", "{id!r}"], "the name of a column, and nothing else"),
        ("f.csv", b"", ["--key", "{}"], "the name of a column, and nothing else"),
        ("f.csv", b"", ["--key", "{{x}}"], "names no column"),
    ],
)
def test_files_that_cannot_be_read(
    server: str, tmp_path: Path, name: str, content: bytes | None, options: list[str], told: str
):
    """A file or key that will not do ends the load with a sentence and exit code 2."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = load(server, tmp_path / name, *(options or ["--key", "id"]))
    assert done.exit_code == 2
    assert told in done.stderr


def test_empty_files(server: str, tmp_path: Path):
    """A file without rows is loaded at once."""
    for name in ("f.csv", "f.jsonl"):
        (tmp_path / name).write_bytes(b"")
        assert load(server, tmp_path / name, "--key", "id").exit_code == 0


def test_formats_are_told(server: str, tmp_path: Path):
    """--format outdoes the suffix; Parquet does not come through a pipe."""
    (tmp_path / "f.txt").write_bytes(b"id,a\nformat,1\n")
    assert load(server, tmp_path / "f.txt", "--key", "id", "--format", "csv").exit_code == 0
    assert got(server, "format") == {"id": "format", "a": "1"}
    done = load(server, "-", "--key", "id", "--format", "parquet", data=b"")
    assert (done.exit_code, "not from standard input" in done.stderr) == (2, True)


def test_no_server():
    """Where nobody listens, nothing is read."""
    done = load(f"{HOST}:{free_port()}", "-", "--key", "id", data=b"{}")
    assert done.exit_code == 69


def test_interrupted(server: str):
    """Ctrl-C tells how many documents are in, and so many are in."""
    process = start("load", "-", "--key", "id", "--connect", server)
    assert process.stdin is not None
    process.stdin.write(b"".join(b'{"id": "int %d", "v": "%b"}\n' % (number, b"x" * 1000) for number in range(1000)))
    process.stdin.flush()
    end = time.monotonic() + 30
    while run("get", "--connect", server, "int 200").exit_code:  # some blocks went out, and the rest waits for more
        assert time.monotonic() < end
    process.send_signal(signal.SIGINT)
    process.wait(30)
    _, told = process.communicate()
    assert process.returncode == 130
    words, count = told.decode().splitlines()[0], told.decode().splitlines()[1].split()[1]
    assert words == "interrupted"
    assert 200 < int(count) < 1000
    assert run("get", "--connect", server, f"int {int(count) - 1}").exit_code == 0
    assert run("get", "--connect", server, f"int {count}").exit_code == 1


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_examples_run(server: str, tmp_path: Path):
    """The examples of the help run as they stand, against a server at another address."""
    script = "\n".join(EXAMPLES).replace("headrace load", f"headrace load --connect {server}")
    done = shell(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert got(server, "user::7")["name"] == "Ann"
    assert got(server, "2") == {"id": "2", "name": "Bob"}
