"""JSON values as columns: by a schema that is given, one that is inferred from a sample, or as VARIANT.

A value that is no JSON, or no object, or does not fit, never fails a query: what cannot be read is null, and the text
is in a column of its own where one is asked for. A deletion has no value, and null in every column. Reading is Spark's
own `from_json` and `try_parse_json`; this module decides names, and says what is wrong before a query starts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from headrace.errors import HeadraceError
from headrace.spark.options import DOCUMENTS, OPTIONS, Use

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, SparkSession

INFER, VARIANT = "infer", "variant"
SAMPLE = 1000
"""How many values a schema is inferred from."""
_PARSED = "__headrace_parsed"
_NOT_SAMPLED = frozenset({"startingOffsets", "startingTimestamp", "endingOffsets", "noValue", "mode"})
"""Options of a stream that say where it stands: a sample is of what the bucket has now."""


class ValuesError(HeadraceError):
    """Values cannot become the columns that were asked for."""


def json_columns(  # noqa: PLR0913 - each is a choice of its own, and named
    frame: DataFrame,
    schema: str | StructType,
    *,
    column: str = "value",
    prefix: str = "",
    into: str | None = None,
    corrupt: str | None = None,
    keep: bool = False,
    sample: DataFrame | Mapping[str, Any] | None = None,
) -> DataFrame:
    """Put the fields of JSON values into columns, in place of the values; called on the driver, for batch and stream.

    `schema` is DDL (`"city STRING, population LONG"`), a `StructType`, `"infer"` or `"variant"`. The fields come after
    the columns that are there, as `prefix` and their name; with `into`, as one struct of that name. `variant` gives one
    column of type VARIANT, called `into`, or as the values were. A name that is there already is an error.

    `corrupt` names a column for the text of values that could not be read wholly; `keep` leaves the values in place.
    To infer for a stream, `sample` is a batch DataFrame with such values, or the options of the source to read one.

    >>> json_columns(spark.readStream.format("dcp").load(), "city STRING", corrupt="_corrupt")  # doctest: +SKIP
    """
    if prefix and (into is not None or schema == VARIANT):
        raise ValuesError("a prefix is for fields as columns of their own: give it, or one column for all of them")
    if sample is not None and schema != INFER:
        raise ValuesError('a sample is for schema "infer": another schema was given')
    text = _text(frame, column)
    if schema == VARIANT:
        parsed, made = _variant(text, into or column)
    else:
        fields = _struct(frame, schema, column, sample)
        parsed, made = _typed(text, fields, prefix, into, has_corrupt=corrupt is not None)
    others = [name for name in frame.columns if keep or name != column]
    if twice := _twice([*others, *made, *([] if corrupt is None else [corrupt])]):
        raise ValuesError(f"there would be two columns called {twice}: give a prefix for the fields, or another into")
    if corrupt is not None:
        unread = sf.col(_PARSED).getField(_PARSED) if schema != VARIANT else sf.lit(None)
        # Spark takes an empty text for none at all, and gives null without a word.
        made[corrupt] = sf.make_valid_utf8(sf.when(sf.col(_PARSED).isNull(), text).otherwise(unread))
    new = [value.alias(name) for name, value in made.items()]
    return frame.withColumn(_PARSED, parsed).select(*map(_column, others), *new)


def infer_schema(frame: DataFrame, *, column: str = "value", sample: int = SAMPLE) -> StructType:
    """Infer the schema of JSON values from the first `sample` of them; called on the driver, and runs a job.

    A field that only ever was null is a string, as is one of several types. Values that are no JSON objects say
    nothing. Of a bucket, the first are of its first vbuckets, among which keys are spread by their hash.
    """
    if frame.isStreaming:
        raise ValuesError("a schema cannot be inferred from a stream: give a batch DataFrame of such values as sample")
    texts = frame.select(_text(frame, column).alias("value")).where(sf.col("value").isNotNull()).limit(sample)
    objects = texts.where(sf.col("value").rlike(r"^\s*\{"))
    found = frame.sparkSession.read.json(objects, mode="DROPMALFORMED", allowSingleQuotes=False).schema
    if not found.fields:
        raise ValuesError(f"no schema can be inferred: none of the first {sample} values of {column} is a JSON object")
    return StructType(list({field.name: field for field in found.fields}.values()))  # a document may name a field twice


def _text(frame: DataFrame, column: str) -> Column:
    if column not in frame.columns:
        raise ValuesError(f"there is no column {column} to read JSON from: there are {', '.join(frame.columns)}")
    kind = frame.schema[column].dataType
    if not isinstance(kind, BinaryType | StringType):
        raise ValuesError(f"column {column} is {kind.simpleString()}: JSON is read from strings and from bytes")
    return _column(column).cast("string")


def _struct(
    frame: DataFrame, schema: str | StructType, column: str, sample: DataFrame | Mapping[str, Any] | None
) -> StructType:
    if isinstance(schema, StructType):
        found = schema
    elif schema == INFER:
        found = infer_schema(_sample(frame, sample), column=column)
    else:
        try:
            parsed = StructType.fromDDL(schema)
        except ParseException as error:
            said = " ".join((error.getMessage() or "").split("== SQL")[0].split())
            raise ValuesError(f'schema {schema!r} is neither "infer" nor "variant" nor DDL: {said}') from None
        if not isinstance(parsed, StructType):
            raise ValuesError(f"schema {schema!r} is a type: name the fields of an object, as city STRING")
        found = parsed
    if not found.fields:
        raise ValuesError("the schema has no fields")
    if twice := _twice(found.names):
        raise ValuesError(f"the schema has two fields called {twice}: Spark minds no case, so give one of them")
    return found


def _sample(frame: DataFrame, sample: DataFrame | Mapping[str, Any] | None) -> DataFrame:
    if sample is None:
        if frame.isStreaming:
            raise ValuesError(
                "a schema cannot be inferred from a stream: give a batch DataFrame of such values as sample, "
                "or the options of the source to read some"
            )
        return frame
    return sample if isinstance(sample, DataFrame) else _read_sample(frame.sparkSession, sample)


def _read_sample(spark: SparkSession, options: Mapping[str, Any]) -> DataFrame:
    """Documents of the source, by those of its options that a batch read has a use for."""
    useless = {option.name.lower() for option in OPTIONS if Use.BATCH not in option.uses or option.name in _NOT_SAMPLED}
    kept = {name: value for name, value in options.items() if name.lower() not in useless}
    return spark.read.format("dcp").options(**kept).option("mode", DOCUMENTS).load()


def _twice(names: list[str]) -> str:
    """Names that stand there twice; Spark minds no case in names, and finds out only when one of them is asked for."""
    return ", ".join(sorted(name for name, count in Counter(map(str.lower, names)).items() if count > 1))


def _typed(
    text: Column, fields: StructType, prefix: str, into: str | None, *, has_corrupt: bool
) -> tuple[Column, dict[str, Column]]:
    """How a text is parsed, and the columns that come of it."""
    options = {"allowSingleQuotes": "false", "mode": "PERMISSIVE"}
    wanted = fields
    if has_corrupt:
        wanted = StructType([*fields.fields, StructField(_PARSED, StringType())])
        options["columnNameOfCorruptRecord"] = _PARSED
    parsed = sf.from_json(text, wanted, options)
    read = {name: sf.col(_PARSED).getField(name) for name in fields.names}
    if into is None:
        return parsed, {f"{prefix}{name}": value for name, value in read.items()}
    one = sf.struct(*(value.alias(name) for name, value in read.items()))
    return parsed, {into: sf.when(sf.col(_PARSED).isNotNull(), one)}


def _variant(text: Column, name: str) -> tuple[Column, dict[str, Column]]:
    return sf.try_parse_json(text), {name: sf.col(_PARSED)}


def _column(name: str) -> Column:
    return sf.col("`" + name.replace("`", "``") + "`")


__all__ = ["INFER", "SAMPLE", "VARIANT", "ValuesError", "infer_schema", "json_columns"]
