import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.spark import json_columns
from headrace.spark.values import ValuesError, infer_schema
from headrace.testing import LiveNode

CITY = "city STRING, population LONG"
VALUES = {
    "good": b'{"city": "Oslo", "population": 717710, "more": [1]}',
    "spaced": b' \n{"city": "Rome", "population": 2748109}',
    "partly": b'{"city": "Bonn", "population": "many"}',
    "broken": b'{"city": "Ur',
    "array": b'[{"city": "Bern", "population": 1}]',
    "number": b"12",
    "empty": b"",
    "bytes": b"\xff\xfe\x00",
    "quoted": b"{'city': 'Lima', 'population': 1}",
    "deleted": None,
}
READ = {"good": ("Oslo", 717710), "spaced": ("Rome", 2748109), "partly": ("Bonn", None)}
UNREAD = {key for key, value in VALUES.items() if value is not None} - {"good", "spaced"}


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """Values of all kinds, as bytes, beside a key."""
    return spark.createDataFrame(list(VALUES.items()), "key STRING, value BINARY")


def rows(frame: DataFrame) -> dict[str, dict[str, Any]]:
    """The rows by their key."""
    return {row["key"]: {name: row[name] for name in frame.columns if name != "key"} for row in frame.collect()}


def test_fields_become_columns(frame: DataFrame):
    """Fields of a schema are typed columns in place of the value; what cannot be read is null, and no error."""
    found = json_columns(frame, CITY)
    assert [(each.name, each.dataType.simpleString()) for each in found.schema] == [
        ("key", "string"),
        ("city", "string"),
        ("population", "bigint"),
    ]
    assert {key: tuple(row.values()) for key, row in rows(found).items()} == {
        key: READ.get(key, (None, None)) for key in VALUES
    }


def test_what_cannot_be_read_is_kept_where_asked(frame: DataFrame):
    """A column for what could not be read has exactly those texts, as UTF-8 that can be shown; a deletion has none."""
    found = rows(json_columns(frame, CITY, corrupt="_corrupt"))
    assert {key: row["_corrupt"] for key, row in found.items()} == {
        key: value.decode(errors="replace") if value is not None and key in UNREAD else None
        for key, value in VALUES.items()
    }
    assert found["partly"]["city"] == "Bonn"
    only = json_columns(frame, CITY, corrupt="_corrupt").where("_corrupt IS NOT NULL").select("key")
    assert {row["key"] for row in only.collect()} == UNREAD  # also where Spark may leave the other columns out


def test_a_schema_may_be_a_struct(frame: DataFrame):
    """A StructType does as DDL does, and the names may have a prefix."""
    schema = StructType([StructField("city", StringType()), StructField("population", LongType(), nullable=False)])
    found = json_columns(frame, schema, prefix="doc_", keep=True)
    assert found.columns == ["key", "value", "doc_city", "doc_population"]
    assert rows(found)["good"]["doc_city"] == "Oslo"
    assert rows(found)["good"]["value"] == VALUES["good"]


def test_fields_may_be_one_struct(frame: DataFrame):
    """With `into` the fields are one struct, which is null where there is no value."""
    found = rows(json_columns(frame, CITY, into="doc"))
    assert found["good"]["doc"].asDict() == {"city": "Oslo", "population": 717710}
    assert found["deleted"]["doc"] is None


def test_a_value_is_parsed_once(frame: DataFrame):
    """However many fields there are, Spark parses a value once."""
    plan = json_columns(frame, CITY, corrupt="_corrupt")._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json(") == 1


def test_a_value_may_be_a_variant(frame: DataFrame):
    """As VARIANT every JSON value is kept, objects or not, and fields are asked for later."""
    found = json_columns(frame, "variant", corrupt="_corrupt")
    assert found.schema["value"].dataType.simpleString() == "variant"
    city = found.select("key", sf.try_variant_get("value", "$.city", "string").alias("city"), "_corrupt")
    read = rows(city)
    assert {key: row["city"] for key, row in read.items() if row["city"]} == {
        "good": "Oslo",
        "spaced": "Rome",
        "partly": "Bonn",
    }
    unread = {key for key, row in read.items() if row["_corrupt"] is not None}
    assert unread == {"broken", "empty", "bytes", "quoted"}
    assert json_columns(frame, "variant", into="doc", keep=True).columns == ["key", "value", "doc"]


def test_a_schema_is_inferred(frame: DataFrame):
    """An inferred schema has the fields of the objects in the sample; what is no object says nothing."""
    assert infer_schema(frame.where("key = 'good'")).simpleString() == (
        "struct<city:string,more:array<bigint>,population:bigint>"
    )
    assert infer_schema(frame).names == ["city", "more", "population"]
    assert json_columns(frame, "infer").columns == ["key", "city", "more", "population"]
    sampled = json_columns(frame, "infer", sample=frame.where("key = 'spaced'"))
    assert sampled.columns == ["key", "city", "population"]


def test_a_document_that_names_a_field_twice_does_no_harm(spark: SparkSession):
    """A field that a document names twice is in the inferred schema once."""
    frame = spark.createDataFrame([("k", '{"a": 1, "a": 2}')], "key STRING, value STRING")
    assert infer_schema(frame).simpleString() == "struct<a:bigint>"
    assert rows(json_columns(frame, "infer"))["k"] == {"a": 2}


def test_a_sample_is_as_large_as_asked(spark: SparkSession):
    """A schema is inferred from the first values only."""
    texts = [json.dumps({"a": 1} if number < 5 else {"b": 1}) for number in range(10)]
    frame = spark.createDataFrame([(text,) for text in texts], "value STRING").coalesce(1)
    assert infer_schema(frame, sample=5).names == ["a"]
    assert infer_schema(frame, sample=6).names == ["a", "b"]


@pytest.mark.parametrize(
    ("schema", "given", "told"),
    [
        ("key STRING", {}, "there would be two columns called key: give a prefix"),
        ("Key STRING", {}, "two columns called key"),
        ("a STRING", {"into": "KEY"}, "two columns called key"),
        ("a STRING", {"corrupt": "a"}, "two columns called a"),
        ("variant", {"keep": True}, "two columns called value"),
        ("a STRING, A LONG", {}, "the schema has two fields called a"),
        ("a STRIN", {}, 'neither "infer" nor "variant" nor DDL: .*STRIN'),
        ("STRING", {}, "is a type: name the fields"),
        (StructType([]), {}, "has no fields"),
        ("a STRING", {"column": "document"}, "no column document to read JSON from: there are key, value"),
        ("a STRING", {"prefix": "x", "into": "y"}, "a prefix is for fields as columns of their own"),
        ("a STRING", {"sample": {}}, 'a sample is for schema "infer"'),
    ],
)
def test_what_cannot_be_is_told(frame: DataFrame, schema: str | StructType, given: Mapping[str, Any], told: str):
    """A schema or a name that cannot be is one sentence before any query starts."""
    with pytest.raises(ValuesError, match=told) as error:
        json_columns(frame, schema, **given)
    assert "\n" not in str(error.value)


def test_what_cannot_be_inferred_is_told(spark: SparkSession, frame: DataFrame):
    """A sample without objects, a stream without a sample and a column of numbers are told as they are."""
    with pytest.raises(ValuesError, match="none of the first 1000 values of value is a JSON object"):
        infer_schema(frame.where("key = 'number'"))
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ValuesError, match="column value is bigint"):
        json_columns(stream, "a STRING")
    texts = stream.select(sf.lit("{}").alias("value"))
    for ask in (lambda: json_columns(texts, "infer"), lambda: infer_schema(texts)):
        with pytest.raises(ValuesError, match="cannot be inferred from a stream: give a batch DataFrame"):
            ask()


@pytest.mark.slow
def test_a_stream_gets_the_schema_of_its_bucket(spark: SparkSession, tmp_path: Path):
    """A stream's columns are inferred by the options of its source; a deletion among its rows has null in them."""
    with LiveNode(vbuckets=4) as node:
        node.write({f"city::{name}": json.dumps({"name": name, "area": len(name)}).encode() for name in ("Oslo", "Ur")})
        options = {"connection": node.connection_string, "maxOffsetsPerTrigger": "100", "startingOffsets": "earliest"}
        changes = spark.readStream.format("dcp").options(**options).load()
        found = json_columns(changes, "infer", sample=options)
        node.delete("city::Ur")
        query = (
            found.select("event", "key", "name", "area")
            .writeStream.format("memory")
            .queryName("cities")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(180)
    got = {tuple(row) for row in spark.table("cities").collect()}
    assert ("mutation", "city::Oslo", "Oslo", 4) in got
    assert ("deletion", "city::Ur", None, None) in got
