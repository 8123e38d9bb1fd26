import pickle
from pathlib import Path

import pytest

from headrace.client import OptionError
from headrace.spark.options import OPTIONS, Options, Use, positions_of


def test_defaults():
    """Nothing has to be said to read the bucket `default` of this machine."""
    options = Options({}, Use.STREAM)
    assert options.connection == "couchbase://127.0.0.1:11210"
    assert (options.bucket, options.mode, options.on_rollback) == ("default", "changes", "rebuild")
    made = options.change_options()
    assert (made.keys, made.collections, made.window_bytes) == ("text", None, 16 << 20)


def test_names_mind_no_case():
    """Spark's options do not, and lose it on their way."""
    options = Options({"MAXOFFSETSPERTRIGGER": " 12 ", "onrollback": "Event", "nOvAlUe": "TRUE"}, Use.STREAM)
    assert (options.max_offsets_per_trigger, options.on_rollback, options.no_value) == (12, "event", True)


@pytest.mark.parametrize(
    ("given", "use", "told"),
    [
        ({"colections": "x"}, Use.BATCH, "there is no option colections: did you mean collections?"),
        ({"qqqqq": "x"}, Use.BATCH, "there is no option qqqqq: there are connection, bucket"),
        ({"noValue": "yes"}, Use.BATCH, "option noValue is true or false, not 'yes'"),
        ({"minPartitions": "0"}, Use.BATCH, "option minPartitions is a whole number from 1 on, not '0'"),
        ({"maxBytesPerTrigger": "64q"}, Use.STREAM, "a number of bytes, as 67108864 or 64m"),
        ({"startingOffsets": "soon"}, Use.STREAM, "option startingOffsets is earliest, latest, or positions as JSON"),
        ({"startingOffsets": "[1]"}, Use.STREAM, "option startingOffsets is earliest, latest, or positions as JSON"),
        ({"startingTimestamp": "noon"}, Use.STREAM, "milliseconds since 1970"),
        ({"onRollback": "retry"}, Use.STREAM, "option onRollback is event, rebuild or fail, not 'retry'"),
        (
            {"endingOffsets": "latest"},
            Use.STREAM,
            "endingOffsets has no meaning in spark.readStream: it is of spark.read",
        ),
        ({"maxOffsetsPerTrigger": "5"}, Use.BATCH, "has no meaning in spark.read: it is of spark.readStream"),
        ({"keyColumn": "id"}, Use.BATCH, "it is of a write"),
        ({"mode": "documents"}, Use.STREAM, "spark.readStream gives changes"),
        ({"vbuckets": "5-2"}, Use.BATCH, "option vbuckets is a list as 0,7,100-199"),
        ({"buffer": "1"}, Use.BATCH, "option buffer is at least 4096 bytes"),
        ({"timeout": "0"}, Use.BATCH, "option timeout is a number of seconds, more than 0"),
        ({"bucket": " "}, Use.BATCH, "option bucket is some text"),
        ({"password": "hush"}, Use.BATCH, "option username is missing"),
        ({"username": "ann"}, Use.BATCH, "password, passwordEnv or passwordFile is missing"),
        ({"username": "ann", "password": "a", "passwordEnv": "B"}, Use.BATCH, "two ways to tell one password"),
        ({"scope": "s", "collections": "a.b"}, Use.BATCH, "give one of them"),
        ({"ttl": "5", "ttlColumn": "t"}, Use.WRITE, "options ttl and ttlColumn"),
    ],
)
def test_wrong_options(given: dict[str, str], use: Use, told: str):
    """A wrong option is one sentence that says what would do."""
    with pytest.raises(OptionError) as found:
        Options(given, use)
    assert told in str(found.value)
    assert "hush" not in str(found.value)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, None),
        ({"collections": "*"}, ()),
        ({"collections": "a.b, c.d"}, ("a.b", "c.d")),
        ({"scope": "s", "collections": "a,b"}, ("s.a", "s.b")),
        ({"scope": "s"}, ("s._default",)),
    ],
)
def test_collections(given: dict[str, str], wanted: tuple[str, ...] | None):
    """Collections are named with their scopes, or within one."""
    assert Options(given, Use.BATCH).qualified() == wanted


@pytest.mark.parametrize("given", [{"collections": "a"}, {"scope": "s", "collections": "*"}])
def test_collections_that_say_too_little(given: dict[str, str]):
    """A collection without a scope is an error, and so is everything of one scope."""
    with pytest.raises(OptionError, match="collections"):
        Options(given, Use.BATCH).qualified()


def test_passwords_from_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A variable or a file of the driver's machine may hold it; what is missing is named."""
    monkeypatch.setenv("SECRET_OF_ANN", "hush")
    (tmp_path / "secret").write_text("hush\nmore\n")
    for way in ({"passwordEnv": "SECRET_OF_ANN"}, {"passwordFile": str(tmp_path / "secret")}, {"password": "hush"}):
        options = Options({"username": "ann", **way}, Use.BATCH)
        assert options.change_options().password == "hush"
        assert "hush" not in repr(options)
        assert "hush" not in repr(options.change_options())
    with pytest.raises(OptionError, match="no environment variable NOBODY"):
        Options({"username": "ann", "passwordEnv": "NOBODY"}, Use.BATCH).secret()
    with pytest.raises(OptionError, match="cannot be read"):
        Options({"username": "ann", "passwordFile": str(tmp_path / "none")}, Use.BATCH).secret()


def test_sizes_and_times():
    """Sizes have suffixes; a time is milliseconds, or a date of ISO 8601, of UTC where it names no zone."""
    options = Options({"window": "64m", "buffer": "8192", "startingTimestamp": "2026-01-31T12:00:00"}, Use.STREAM)
    assert (options.window, options.buffer, options.starting_timestamp) == (64 << 20, 8192, 1769860800.0)
    assert Options({"startingTimestamp": "1769860800500"}, Use.STREAM).starting_timestamp == 1769860800.5
    assert Options({"vbuckets": "0, 7,100-102"}, Use.BATCH).vbuckets == (0, 7, 100, 101, 102)


def test_three_forms_of_positions():
    """Positions come by vbucket, as an offset of a query, or as `headrace tail --save` writes them."""
    row = {"vbuuid": 7, "seqno": 3, "snapshot_start": 3, "snapshot_end": 3}
    assert positions_of("startingOffsets", {"0": 3}, "b") == {"0": 3}
    saved = {"headrace_positions": 1, "bucket": "b", "vbuckets": {"0": row}}
    assert positions_of("startingOffsets", saved, "b") == {"0": row}
    for wrong in ({**saved, "bucket": "c"}, {**saved, "headrace_positions": 9}, {"vbuckets": 4}):
        with pytest.raises(OptionError, match="option startingOffsets"):
            positions_of("startingOffsets", wrong, "b")


def test_the_table_is_whole():
    """Names are one each, sentences are sentences, and options travel to executors."""
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    assert all(option.sentence.endswith(".") and option.uses for option in OPTIONS)
    again = pickle.loads(pickle.dumps(Options({"bucket": "travel"}, Use.STREAM)))
    assert (again.bucket, again.given) == ("travel", {"bucket"})


def test_sparks_own_options_pass():
    """What Spark puts among the options of a source is not ours to refuse."""
    Options({"path": "x", "checkpointLocation": "y"}, Use.STREAM)
