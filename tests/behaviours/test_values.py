"""Typed reads of every format: values are decoded by the schema of an option, and bad ones follow `onCorrupt`."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from spark_mq_source.core.errors import CorruptMessageError, OptionError
from tests.formats import Format

AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "n", "type": "long"}, {"name": "tags", "type": {"type": "array", "items": "string"}}],
}


def _descriptors() -> descriptor_pb2.FileDescriptorSet:
    field = descriptor_pb2.FieldDescriptorProto
    flight = descriptor_pb2.DescriptorProto(
        name="Flight",
        field=[
            field(name="n", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL),
            field(name="tags", number=2, type=field.TYPE_STRING, label=field.LABEL_REPEATED),
        ],
    )
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="f", syntax="proto3", message_type=[flight])
    return descriptor_pb2.FileDescriptorSet(file=[file])


def _avro(row: dict[str, Any]) -> bytes:
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, AVRO, row)
    return encoded.getvalue()


def _protobuf(row: dict[str, Any]) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_descriptors().file[0])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("f.Flight"))(**row).SerializeToString()


ENCODINGS = {
    "avro": (_avro, {"valueFormat": "avro", "valueSchema": json.dumps(AVRO)}),
    "json": (
        lambda row: json.dumps(row).encode(),
        {"valueFormat": "json", "valueSchema": "n bigint, tags array<string>"},
    ),
    "protobuf": (
        _protobuf,
        {
            "valueFormat": "protobuf",
            "valueMessage": "f.Flight",
            "valueSchema": base64.b64encode(_descriptors().SerializeToString()).decode(),
        },
    ),
}
Case = tuple[Callable[[dict[str, Any]], bytes], dict[str, str]]
DDL = "value struct<n:bigint,tags:array<string>>"
ROWS = [{"n": n, "tags": ["é"] * (n % 3)} for n in range(1, 500)]


@pytest.fixture(params=ENCODINGS)
def case(request: pytest.FixtureRequest) -> Case:
    """Return the encoder of a row and the options that decode it."""
    return ENCODINGS[request.param]


def by_number(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["n"])


def test_values_are_decoded(mq: Format, case: Case) -> None:
    encode, options = case
    topic = mq.new_topic()
    mq.publish(topic, [encode(row) for row in ROWS])
    found = mq.read(topic, f"{DDL}, topic string", maxBatchRows=100, **options).to_pylist()
    assert by_number([row["value"] for row in found]) == ROWS
    assert {row["topic"] for row in found} == {topic}


def test_fields_are_columns_and_unselected_ones_are_left_out(mq: Format, case: Case) -> None:
    encode, options = case
    topic = mq.new_topic()
    mq.publish(topic, [encode(row) for row in ROWS])
    found = mq.read(topic, f"n bigint, {mq.position_columns}", flatten=True, **options).to_pylist()
    assert sorted(row["n"] for row in found) == [row["n"] for row in ROWS]
    mq.assert_each_once(found)


def test_undecodable_values_follow_the_option(mq: Format, case: Case) -> None:
    encode, options = case
    topic, bad = mq.new_topic(), b"\xff\xff"
    messages = [encode(ROWS[0]), bad, encode(ROWS[1])]

    def rows(ddl: str, **more: Any) -> list[dict[str, Any]]:
        if not mq.rows_stay or not published:
            mq.publish(topic, messages)
            published.append(True)
        return mq.read(topic, ddl, **(options | more | ({} if mq.rows_stay else {"maxRows": 3}))).to_pylist()

    published: list[bool] = []
    assert by_number([row["value"] for row in rows(DDL, onCorrupt="skip")]) == ROWS[:2]
    found = rows(f"{DDL}, _error string, _corrupt binary", onCorrupt="null")
    assert sorted((row["value"] is None, row["_corrupt"]) for row in found if row["_error"]) == [(True, bad)]
    assert by_number([row["value"] for row in found if not row["_error"]]) == ROWS[:2]
    with pytest.raises(CorruptMessageError) as caught:
        rows(DDL)
    assert str(caught.value).startswith(f"{mq.name}: reading ")
    assert "; correct the producer, or set onCorrupt=skip, null or deadLetter" in str(caught.value)


def test_raw_values_have_no_errors(mq: Format) -> None:
    topic = mq.new_topic()
    mq.publish(topic, [b"x"])
    assert mq.read(topic, "value binary, _error string, _corrupt binary").to_pylist() == [
        {"value": b"x", "_error": None, "_corrupt": None}
    ]


def test_columns_missing_from_the_schema_are_refused(mq: Format, case: Case) -> None:
    with pytest.raises(OptionError, match="gate"):
        mq.read(mq.new_topic(), "value struct<gate:string>", **case[1])
