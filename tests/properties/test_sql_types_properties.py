"""Spark's types converted to DDL and back, and invalid DDL."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.sql_types import arrow_type_of_ddl, ddl_of, ddl_of_schema, matches

simple = st.sampled_from(
    [
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
        pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(1, 0), pa.decimal128(38, 38),
    ]
)  # fmt: skip
names = st.text(min_size=1, max_size=5) | st.sampled_from(["a", "select", "`", "a b", "1", "struct"])
types = st.recursive(
    simple,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.tuples(inner, inner).map(lambda pair: pa.map_(*pair)),
        st.lists(st.tuples(names, inner), max_size=3).map(pa.struct),
    ),
    max_leaves=6,
)


@given(types)
def test_a_type_survives_ddl(type_: pa.DataType) -> None:
    assert arrow_type_of_ddl(ddl_of(type_)) == type_
    assert matches(type_, ddl_of(type_))


@given(st.lists(st.tuples(names, types), min_size=1, max_size=3).map(pa.schema))
def test_columns_survive_ddl(schema: pa.Schema) -> None:
    assert pa.schema(list(arrow_type_of_ddl(ddl_of_schema(schema)))) == schema


@given(st.text(st.sampled_from("ab<>(),:` 1'") | st.characters(), max_size=30))
def test_any_text_is_a_type_or_an_error(text: str) -> None:
    try:
        arrow_type_of_ddl(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either will do


@pytest.mark.parametrize(
    ("text", "ddl"),
    [
        ("a INT NOT NULL COMMENT 'it''s', `b c` Long", "struct<a:int,`b c`:bigint>"),
        ("struct<a: byte, b short>", "struct<a:tinyint,b:smallint>"),
        ("dec", "decimal(10,0)"),
        ("numeric(5)", "decimal(5,0)"),
        ("array< map <string , real> >", "array<map<string,float>>"),
        ("t timestamp_ltz, n timestamp_ntz", "struct<t:timestamp,n:timestamp_ntz>"),
    ],
)
def test_spellings_of_types(text: str, ddl: str) -> None:
    assert ddl_of(arrow_type_of_ddl(text)) == ddl


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "ends where a type is missing"),
        ("a", "'a' is not a type that a value can have"),
        ("a int,", "ends where a name is missing"),
        ("a int b int", "has ',' after 'a int', not 'b'"),
        ("array<int", "has '>' after 'array < int', but it ends"),
        ("decimal(39, 2)", "precision is 1 to 38"),
        ("decimal(x)", "expected a number"),
        ("a int; b int", "is not valid in a Spark schema"),
        ("1a int", "write `1a`"),
        ("array<" * 200 + "int" + ">" * 200, "more than 100 types"),
    ],
)
def test_errors_of_invalid_ddl(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(").replace("`", "`")):
        arrow_type_of_ddl(text)


def test_types_that_spark_does_not_have() -> None:
    for type_ in (pa.uint8(), pa.time64("us"), pa.large_string(), pa.timestamp("ns"), pa.decimal256(40, 2)):
        with pytest.raises(ValueError, match="Spark has no type for"):
            ddl_of(type_)
