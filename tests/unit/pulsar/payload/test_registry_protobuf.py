import base64
import json

import pyarrow as pa
import pytest

from spark_mq_source.pulsar.payload.registry import encoding_of_schema
from spark_mq_source.pulsar.protocol.commands import Schema, SchemaType
from spark_mq_source.values.encodings import KeyValueEncoding, type_of
from spark_mq_source.values.protobuf.decode import protobuf_decoder
from tests.oracles.protobuf import schema

# Recorded from the Java client 4.0.8, with Schema.PROTOBUF(com.google.protobuf.Timestamp.class).
TIMESTAMP = (
    '{"type":"record","name":"Timestamp","namespace":"com.google.protobuf","fields":[{"name":"seconds","type":"long",'
    '"default":0},{"name":"nanos","type":"int","default":0}]}'
)
TIMESTAMP_FIELDS = (
    '[{"number":1,"name":"seconds","type":"INT64","label":"LABEL_OPTIONAL","definition":null},'
    '{"number":2,"name":"nanos","type":"INT32","label":"LABEL_OPTIONAL","definition":null}]'
)


def of_class(definition, fields):
    property_ = {"key": "__PARSING_INFO__", "value": fields}
    return Schema("t", definition.encode(), SchemaType.PROTOBUF, [property_])


def flat(*fields):
    """Return a schema of a class with fields (name, type, label, default), numbered from 1 on."""
    record = {"type": "record", "name": "M", "fields": []}
    info = []
    for number, (name, kind, label, default) in enumerate(fields, 1):
        record["fields"].append({"name": name} | ({} if default is None else {"default": default}))
        info.append({"number": number, "name": name, "type": kind, "label": f"LABEL_{label}", "definition": None})
    return of_class(json.dumps(record), json.dumps(info))


def test_the_fields_of_a_schema_of_a_class():
    found = encoding_of_schema(of_class(TIMESTAMP, TIMESTAMP_FIELDS))
    assert (found.name, found.message) == ("protobuf", "Timestamp")
    assert type_of(found) == pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])


def test_defaults_and_labels_of_a_schema_of_a_class():
    found = encoding_of_schema(
        flat(
            ("a", "UINT64", "OPTIONAL", -1),
            ("b", "FIXED32", "OPTIONAL", -1),
            ("c", "BOOL", "OPTIONAL", True),
            ("d", "BYTES", "OPTIONAL", "\xff\\a"),
            ("e", "STRING", "OPTIONAL", 'x"y'),
            ("f", "FLOAT", "OPTIONAL", 0.5),
            ("g", "SINT32", "OPTIONAL", 0),
            ("h", "INT32", "REPEATED", []),
            ("i", "STRING", "REQUIRED", None),
        )
    )
    decoder = protobuf_decoder(base64.b64decode(found.definition), found.message, type_of(found))
    decoded = decoder.decode(pa.array([bytes.fromhex("4a00"), b""], pa.binary()))
    assert decoded.values.to_pylist() == [
        {"a": -1, "b": -1, "c": True, "d": b"\xff\\a", "e": 'x"y', "f": 0.5, "g": None, "h": [], "i": ""},
        None,
    ]
    assert dict(decoded.reasons) == {1: "field i: it is required, and missing"}


def test_messages_and_enums_of_a_class_are_not_in_its_schema():
    with pytest.raises(
        ValueError, match=r"in its message \(b, c\), which one of type PROTOBUF_NATIVE does; set valueFormat"
    ):
        encoding_of_schema(
            flat(("a", "INT32", "OPTIONAL", 0), ("b", "MESSAGE", "REPEATED", None), ("c", "ENUM", "OPTIONAL", "X"))
        )


@pytest.mark.parametrize(
    "bad",
    [
        of_class("{}", TIMESTAMP_FIELDS),
        of_class(TIMESTAMP, "[{}]"),
        of_class(TIMESTAMP, "5"),
        of_class("", TIMESTAMP_FIELDS),
        of_class("[]", TIMESTAMP_FIELDS),
        of_class(TIMESTAMP, '[{"number": 1, "name": "a", "type": "INT", "label": "LABEL_OPTIONAL"}]'),
        of_class(TIMESTAMP, '[{"number": "1", "name": "a", "type": "INT32", "label": "LABEL_OPTIONAL"}]'),
        Schema("t", TIMESTAMP.encode(), SchemaType.PROTOBUF),
    ],
)
def test_a_schema_of_a_class_without_its_fields(bad):
    with pytest.raises(
        ValueError, match=r"^a schema of type PROTOBUF without the fields of its message; set valueFormat"
    ):
        encoding_of_schema(bad)


def test_a_schema_of_an_external_registry_is_refused():
    with pytest.raises(ValueError, match=r"external registry .*set valueFormat and valueSchema; the column schema_id"):
        encoding_of_schema(Schema("t", b"", 22))


def test_a_native_schema_has_descriptors_and_a_message():
    message = schema("M: at Timestamp 1")
    document = {
        "fileDescriptorSet": base64.b64encode(message.descriptors).decode(),
        "rootMessageTypeName": "p.M",
        "rootFileDescriptorName": "m.proto",
    }
    found = encoding_of_schema(Schema("t", json.dumps(document).encode(), SchemaType.PROTOBUF_NATIVE))
    assert type_of(found) == pa.struct([("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize("bad", [b"", b"[]", b"{}", b"\xff", b'{"fileDescriptorSet": ""}', b'{"fileDescriptorSet": 5}'])
def test_a_native_schema_without_descriptors(bad):
    with pytest.raises(ValueError, match=r"^a schema of type PROTOBUF_NATIVE without descriptors"):
        encoding_of_schema(Schema("t", bad, SchemaType.PROTOBUF_NATIVE))


def test_each_side_of_a_pair_has_separate_properties():
    sides = [b"", TIMESTAMP.encode()]
    pair = b"".join(len(side).to_bytes(4, "big") + side for side in sides)
    properties = {
        "key.schema.type": "STRING",
        "key.schema.properties": "{}",
        "value.schema.type": "PROTOBUF",
        "value.schema.properties": json.dumps({"__PARSING_INFO__": TIMESTAMP_FIELDS}),
    }
    found = encoding_of_schema(
        Schema("t", pair, SchemaType.KEY_VALUE, [{"key": key, "value": value} for key, value in properties.items()])
    )
    assert isinstance(found, KeyValueEncoding)
    assert (found.key.name, found.value.message) == ("string", "Timestamp")
