"""The encoding of a write's values, and the schema that is registered."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import WRITE
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.registry import encoding_of_schema
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.write.values import schema_to_send
from spark_mq_source.values.encodings import PRIMITIVES, Encoding, KeyValueEncoding
from spark_mq_source.values.primitives import primitive_type_of

STRUCT = pa.struct([("a", pa.int32())])


def options(**given: str) -> PulsarOptions:
    required = {"serviceUrl": "pulsar://b", "topic": "t"}
    return PulsarOptions.from_spark(required | given, WRITE)


def fitted(type_: pa.DataType, *, key: pa.DataType | None = None, **given: str) -> PulsarOptions:
    columns = {"value": type_} | ({} if key is None else {"key": key})
    return PulsarFormat().fit(options(**given), pa.schema(columns))


@pytest.mark.parametrize(
    ("given", "type_", "sentence"),
    [
        ({"schema": "STRING"}, pa.binary(), "column value is binary, but the option schema is STRING"),
        ({"schema": '{"type": "AVRO", "schema": {"type": "string"}}'}, pa.string(), "the option schema is AVRO"),
        ({"valueFormat": "json"}, pa.string(), "column value is string, expected a struct with valueFormat=json"),
        ({"valueFormat": "json"}, pa.struct([("a b", pa.int32())]), "value.a b is not an Avro name"),
        ({"valueFormat": "json", "schema": "BYTES"}, pa.struct([("a", pa.duration("us"))]), "there is no JSON for"),
        ({"valueFormat": "json", "schema": '{"type": "record", "name": "F", "fields": []}'}, STRUCT, "does not fit"),
    ],
)
def test_values_that_cannot_be_written_are_refused(given, type_, sentence):
    with pytest.raises(OptionError, match="format 'pulsar-native'") as caught:
        fitted(type_, **given)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("given", "type_", "kind", "definition"),
    [
        ({}, pa.binary(), None, None),
        ({"schema": "BYTES", "valueFormat": "json"}, pa.struct([("a b", pa.int32())]), None, None),
        ({"schema": "STRING"}, pa.string(), commands.SchemaType.STRING, b""),
        ({"schema": '{"type":"AVRO","schema":{"type":"string"}}'}, pa.binary(), 4, b'{"type":"string"}'),
        ({"valueFormat": "json"}, pa.struct([]), 2, b'{"type":"record","name":"Value","fields":[]}'),
        (
            {"valueFormat": "json", "schema": '{"type": "record", "name": "F", "fields": []}'},
            pa.struct([]),
            commands.SchemaType.JSON,
            b'{"type": "record", "name": "F", "fields": []}',
        ),
    ],
)
def test_the_registered_schema(given, type_, kind, definition):
    sent = schema_to_send(fitted(type_, **given))
    assert (sent and sent.type, sent and sent.schema_data) == (kind, definition)


def test_a_pair_has_both_schemas_as_the_java_client_registers_them():
    made = fitted(STRUCT, key=pa.string(), valueFormat="avro", keyFormat="string", keyValueEncoding="INLINE")
    sent = schema_to_send(made)
    assert sent is not None
    assert sent.type == commands.SchemaType.KEY_VALUE
    definition = b'{"type":"record","name":"Value","fields":[{"name":"a","type":["null","int"],"default":null}]}'
    assert sent.schema_data == b"\0\0\0\0" + len(definition).to_bytes(4, "big") + definition
    assert {one["key"]: one["value"] for one in sent.properties} == {
        "key.schema.name": "STRING",
        "key.schema.type": "STRING",
        "key.schema.properties": "{}",
        "value.schema.name": "AVRO",
        "value.schema.type": "AVRO",
        "value.schema.properties": "{}",
        "kv.encoding.type": "INLINE",
    }
    assert encoding_of_schema(sent) == KeyValueEncoding(
        Encoding("string"), Encoding("avro", definition.decode()), is_inline=True
    )


@pytest.mark.parametrize("kind", PRIMITIVES)
def test_each_primitive_has_its_schema(kind: str):
    sent = schema_to_send(fitted(primitive_type_of(kind), valueFormat=kind))
    assert sent is not None
    assert encoding_of_schema(sent) == Encoding(kind)


def test_a_pair_needs_a_key():
    with pytest.raises(OptionError, match="there is no column key"):
        fitted(STRUCT, valueFormat="avro", keyFormat="string")
