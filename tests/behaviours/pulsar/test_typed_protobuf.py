"""Typed columns by the protobuf schemas that the Java client registers, of classes that protobuf itself contains."""

from __future__ import annotations

import pytest
from google.protobuf import any_pb2, source_context_pb2, timestamp_pb2, type_pb2

from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.test_typed import columns
from tests.fix_brokers import PulsarUnderTest
from tests.formats.pulsar import PulsarFormat

OPTION = "struct<name:string,value:struct<type_url:string,value:binary>>"
ENUM = (
    f"struct<name:string,enumvalue:array<struct<name:string,number:int,options:array<{OPTION}>>>,options:array<{OPTION}>,"
    f"source_context:struct<file_name:string>,syntax:string,edition:string>"
)


def publish(java: JavaClient, broker: PulsarUnderTest, topic: str, kind: str, name: str, *messages: bytes) -> None:
    java.produce(broker, topic, messages, schema=kind, schemaClass=f"com.google.protobuf.{name}", batching=True)


def test_the_descriptors_of_a_native_schema(
    java: JavaClient, pulsar: PulsarUnderTest, pulsar_format: PulsarFormat
) -> None:
    topic = pulsar.topic()
    option = type_pb2.Option(name="o", value=any_pb2.Any(type_url="x/y", value=b"\x00"))
    values = [type_pb2.EnumValue(name="NONE"), type_pb2.EnumValue(name="RED", number=5, options=[option])]
    enum = type_pb2.Enum(
        name="Color",
        enumvalue=values,
        source_context=source_context_pb2.SourceContext(file_name="f.proto"),
        syntax=type_pb2.SYNTAX_PROTO3,
    )
    publish(java, pulsar, topic, "PROTOBUF_NATIVE", "Enum", enum.SerializeToString(), b"")
    assert columns(pulsar, topic).startswith(f"key binary, value {ENUM}, topic string")
    empty = dict.fromkeys(("name", "source_context", "syntax", "edition")) | {"enumvalue": [], "options": []}
    rows = pulsar_format.read(topic, f"value {ENUM}", valueFormat="auto").to_pylist()
    assert [row["value"] for row in rows] == [
        {
            "name": "Color",
            "enumvalue": [
                {"name": "NONE", "number": None, "options": []},
                {
                    "name": "RED",
                    "number": 5,
                    "options": [{"name": "o", "value": {"type_url": "x/y", "value": b"\x00"}}],
                },
            ],
            "options": [],
            "source_context": {"file_name": "f.proto"},
            "syntax": "SYNTAX_PROTO3",
            "edition": None,
        },
        empty,
    ]
    part = pulsar_format.read(
        topic, "value struct<syntax:int,enumvalue:array<struct<number:bigint>>>", valueFormat="auto"
    )
    assert [row["value"] for row in part.to_pylist()] == [
        {"syntax": 1, "enumvalue": [{"number": None}, {"number": 5}]},
        {"syntax": None, "enumvalue": []},
    ]


@pytest.mark.parametrize(
    ("name", "message", "ddl", "expected"),
    [
        (
            "Timestamp",
            timestamp_pb2.Timestamp(seconds=-5, nanos=7),
            "seconds:bigint,nanos:int",
            {"seconds": -5, "nanos": 7},
        ),
        ("SourceContext", source_context_pb2.SourceContext(file_name="f"), "file_name:string", {"file_name": "f"}),
    ],
)
def test_the_fields_of_a_schema_made_of_a_class(
    java: JavaClient, pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, name, message, ddl, expected
) -> None:
    topic = pulsar.topic()
    publish(java, pulsar, topic, "PROTOBUF", name, message.SerializeToString(), b"")
    assert columns(pulsar, topic).startswith(f"key binary, value struct<{ddl}>, topic string")
    rows = pulsar_format.read(topic, f"value struct<{ddl}>", valueFormat="auto").to_pylist()
    assert [row["value"] for row in rows] == [expected, dict.fromkeys(expected)]
