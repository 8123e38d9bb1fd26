import json
import shutil
from pathlib import Path

import pytest

from headrace.cli.items import DELETE_EXAMPLES, GET_EXAMPLES, SET_EXAMPLES
from headrace.node.users import ITERATIONS_MIN, Role, User, Users
from tests.cli.tools import run, shell, start
from tests.client.servers import HOST, couchbase, free_port, headrace_node, scripted, tls_server

PASSWORD = "pencil case"


def test_set_get_delete(server: str):
    """A value goes in and comes out byte for byte; words go elsewhere."""
    done = run("set", "--connect", server, "item", '{"a": 1}')
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("stored item, cas 0x")
    done = run("get", "--connect", server, "item")
    assert (done.exit_code, done.stdout_bytes, done.stderr) == (0, b'{"a": 1}', "")
    done = run("delete", "--connect", server, "item")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("removed item")
    for command in ("get", "delete"):
        done = run(command, "--connect", server, "item")
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"headrace {command}: {command} item at 127.0.0.1:" in done.stderr
        assert "not found" in done.stderr


def test_values_from_elsewhere(server: str, tmp_path: Path):
    """A value may be any bytes, from a file or standard input, and empty."""
    octets = bytes(range(256)) + b"\r\n"
    (tmp_path / "file").write_bytes(octets)
    assert run("set", "--connect", server, "b", "--file", tmp_path / "file").exit_code == 0
    assert run("get", "--connect", server, "b").stdout_bytes == octets
    assert run("set", "--connect", server, "b", "-", data=octets[::-1]).exit_code == 0
    assert run("get", "--connect", server, "b").stdout_bytes == octets[::-1]
    assert run("set", "--connect", server, "b", "").exit_code == 0
    assert run("get", "--connect", server, "b").stdout_bytes == b""


def test_json(server: str):
    """For programs, every command gives one object; what is not UTF-8 is base64."""
    stored = json.loads(run("set", "--connect", server, "--output", "json", "j", "text").stdout)
    assert stored.keys() == {"key", "cas", "vbucket", "vbuuid", "seqno"}
    found = json.loads(run("get", "--connect", server, "--output", "json", "j").stdout)
    assert found.keys() == {"key", "value", "cas", "flags", "datatype", "vbucket"}
    assert (found["key"], found["value"], found["cas"]) == ("j", "text", stored["cas"])
    run("set", "--connect", server, "j", "-", data=b"\xff\0")
    assert json.loads(run("get", "--connect", server, "--output", "json", "j").stdout)["value_base64"] == "/wA="
    assert json.loads(run("delete", "--connect", server, "--output", "json", "j").stdout)["key"] == "j"


def test_cas(server: str):
    """With --cas, only that version is changed; it may be written as hex."""
    run("set", "--connect", server, "c", "1")
    cas = json.loads(run("get", "--connect", server, "--output", "json", "c").stdout)["cas"]
    assert run("set", "--connect", server, "--cas", hex(cas), "c", "2").exit_code == 0
    late = run("set", "--connect", server, "--cas", str(cas), "c", "3")
    assert late.exit_code == 1
    assert "changed since" in late.stderr
    assert run("delete", "--connect", server, "--cas", str(cas), "c").exit_code == 1
    assert run("get", "--connect", server, "c").stdout_bytes == b"2"


def test_expiry(server: str):
    """An item with an expiry in the past of the epoch's count is gone, and one with a later one is there."""
    assert run("set", "--connect", server, "--expiry", "100", "e", "1").exit_code == 0
    assert run("get", "--connect", server, "e").exit_code == 0
    assert run("set", "--connect", server, "--expiry", str(60 * 86400), "e", "1").exit_code == 0
    assert run("get", "--connect", server, "e").exit_code == 0


def test_odd_keys(server: str):
    """A key may hold any bytes but be too long."""
    key = "ключ,=\x7f"
    assert run("set", "--connect", server, key, "v").exit_code == 0
    assert run("get", "--connect", server, key).stdout_bytes == b"v"
    long = run("get", "--connect", server, "k" * 251)
    assert long.exit_code == 2
    assert "a key has 1 to 250 bytes, not 251" in long.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["set", "k"], "give a value"),
        (["set", "k", "v", "--file", "x"], "give a value"),
        (["set", "k", "--file", "no/such/file"], "cannot be read: No such file or directory"),
        (["set", "k", "v", "--cas", "zero"], "--cas is a number"),
        (["set", "k", "v", "--cas", "0"], "--cas is a number"),
        (["get", "k", "--connect", "http://x"], "the scheme is couchbase://"),
        (["get", "k", "--connect", "couchbase://a:secret@x"], "no user name and no password"),
        (["get", "k", "--password-env", "X"], "a password needs --username"),
        (["get", "k", "--username", "a", "--password-env", "X", "--password-file", "y"], "not both"),
        (["get", "k", "--username", "a", "--password-env", "NO_SUCH_VARIABLE"], "no environment variable"),
        (["get", "k", "--username", "a", "--password-file", "no/such/file"], "cannot be read"),
        (["get", "k", "--username", "a"], "no password: give --password-env or --password-file"),
        (["get", "k", "--tls-ca", "x"], "--tls-ca needs a couchbases:// address"),
        (["get", "k", "--connect", "couchbases://x", "--tls-ca", "no/such/file"], "no certificates to trust"),
    ],
)
def test_wrong_command_lines(arguments: list[str], told: str):
    """What cannot be done as it was asked ends with a sentence and exit code 2, before anything is sent."""
    done = run(*arguments)
    assert done.exit_code == 2
    assert told in done.stderr
    assert "secret" not in done.stderr
    assert done.stdout == ""


def test_value_too_long(tmp_path: Path):
    """A value that no server takes is not sent."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate((20 << 20) + 1)
    done = run("set", "k", "--file", tmp_path / "big", "--connect", f"{HOST}:{free_port()}")
    assert (done.exit_code, "at most 20971520 bytes" in done.stderr) == (2, True)


def test_no_server():
    """Where nobody listens, the exit code is that of an unavailable service."""
    for command in (["get", "k"], ["set", "k", "v"], ["delete", "k"]):
        done = run(*command, "--connect", f"{HOST}:{free_port()}")
        assert done.exit_code == 69
        assert "Connection refused" in done.stderr


def test_reader_that_leaves(server: str):
    """Whoever closes the pipe ends the command quietly."""
    run("set", "--connect", server, "left", "x")
    with start("get", "--connect", server, "left") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


def test_full_disk(server: str):
    """A value that cannot be written is an error of its own."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    run("set", "--connect", server, "f", "x")
    done = shell(f"headrace get --connect {server} f > /dev/full", Path.cwd())
    assert done.returncode == 74
    assert "standard output cannot be written" in done.stderr


def test_users(tmp_path: Path):
    """Names and passwords go to a node with users; roles hold; no password is ever shown."""
    path, secret = tmp_path / "users.json", tmp_path / "secret"
    Users(
        [
            User.create("ann", PASSWORD, [Role.READ, Role.WRITE], iterations=ITERATIONS_MIN),
            User.create("eve", PASSWORD, [Role.READ], iterations=ITERATIONS_MIN),
        ]
    ).save(path)
    secret.write_text(f"{PASSWORD}\nnot this\n")
    with headrace_node("--users", path) as port:
        to = ["--connect", f"{HOST}:{port}", "--username"]
        assert run("set", *to, "ann", "--password-file", secret, "k", "v").exit_code == 0
        done = run("get", *to, "eve", "--password-env", "PW", "k", PW=PASSWORD)
        assert (done.exit_code, done.stdout) == (0, "v")
        for name, password, command in (("eve", PASSWORD, ["set", "k", "w"]), ("ann", "pencil", ["get", "k"])):
            done = run(*command, *to, name, "--password-env", "PW", PW=password)
            assert done.exit_code == 1
            assert "pencil" not in done.stderr


def test_tls(tmp_path: Path):
    """`couchbases://` is TLS, and only with a certificate that is trusted."""
    context, cert = tls_server(tmp_path)
    with scripted(couchbase, context) as server:
        address = f"couchbases://{HOST}:{server.port}"
        refused = run("delete", "k", "--connect", address)
        assert refused.exit_code == 69
        assert "certificate verify failed" in refused.stderr
        assert run("delete", "k", "--connect", address, "--tls-ca", cert).exit_code == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_examples_run(server: str, tmp_path: Path):
    """The examples of the help run as they stand, against a server at another address."""
    (tmp_path / "README.md").write_text("read me")
    examples = [SET_EXAMPLES[0], *GET_EXAMPLES, *SET_EXAMPLES[1:], *DELETE_EXAMPLES]
    script = "\n".join(examples).replace("couchbase://127.0.0.1:11210", server)
    script = script.replace("headrace get user", f"headrace get --connect {server} user")
    script = script.replace("headrace set user", f"headrace set --connect {server} user")
    script = script.replace("headrace set --expiry", f"headrace set --connect {server} --expiry")
    script = script.replace("headrace delete user", f"headrace delete --connect {server} user")
    done = shell(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert '{"name": "Ann"}' in done.stdout


@pytest.mark.parametrize("command", ["get", "set", "delete", "load"])
def test_help(command: str):
    """The help has examples, and says where a password comes from: there is no option for one."""
    shown = run(command, "--help").stdout
    assert "Examples:" in shown
    assert "--password-env" in shown
    assert "--password " not in shown
