"""Typed columns by the protobuf schemas that the Java client registers, of classes that protobuf itself brings."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import any_pb2, source_context_pb2, timestamp_pb2, type_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from spark_mq_source.core.errors import OptionError
from spark_mq_source.pulsar.client.client import PulsarClient
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


def test_a_schema_made_of_a_class_with_messages_in_it_is_refused(
    java: JavaClient, pulsar: PulsarUnderTest, pulsar_format: PulsarFormat
) -> None:
    topic = pulsar.topic()
    enum = type_pb2.Enum(name="Color", enumvalue=[type_pb2.EnumValue(name="RED", number=5)])
    publish(java, pulsar, topic, "PROTOBUF", "Enum", enum.SerializeToString())
    with pytest.raises(OptionError) as caught:
        columns(pulsar, topic)
    assert (
        "a schema of type PROTOBUF does not define the messages and enums in its message (enumvalue, options, "
        "source_context, syntax), which one of type PROTOBUF_NATIVE does; set valueFormat=protobuf, valueSchema and "
        "valueMessage"
    ) in str(caught.value)
    # What the client registers has a place for the fields of messages in the message, and nothing is there (4.0.8).
    with PulsarClient(pulsar_format.options(topic)) as client:
        schema = client.schema_of(topic)
    assert schema is not None
    (fields,) = (json.loads(one["value"]) for one in schema.properties if one["key"] == "__PARSING_INFO__")
    assert [(field["number"], field["name"], field["definition"]) for field in fields][:2] == [
        (1, "name", None),
        (2, "enumvalue", None),
    ]
    assert not any("number" in field for field in _inner_fields(json.loads(schema.schema_data)))
    # With descriptors it is read.
    files = [module.DESCRIPTOR for module in (any_pb2, source_context_pb2, type_pb2)]
    descriptors = FileDescriptorSet(file=[FileDescriptorProto.FromString(one.serialized_pb) for one in files])
    given = {
        "valueFormat": "protobuf",
        "valueMessage": "google.protobuf.Enum",
        "valueSchema": base64.b64encode(descriptors.SerializeToString()).decode(),
    }
    ddl = "value struct<name:string,enumvalue:array<struct<name:string,number:int>>>"
    (row,) = pulsar_format.read(topic, ddl, **given).to_pylist()
    assert row["value"] == {"name": "Color", "enumvalue": [{"name": "RED", "number": 5}]}


def _inner_fields(definition: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of the records in a record, as its Avro schema describes them."""
    (values,) = (field["type"]["items"] for field in definition["fields"] if field["name"] == "enumvalue")
    fields: list[dict[str, Any]] = values["fields"]
    assert [field["name"] for field in fields] == ["name", "number", "options"]
    return fields
