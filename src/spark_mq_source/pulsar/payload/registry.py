"""Converts schemas of Pulsar's registry to encodings of a topic's messages, and encodings to schemas."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Final

from spark_mq_source.pulsar.protocol.commands import Schema, SchemaType, key_values
from spark_mq_source.values.encodings import PRIMITIVES, Encoding, KeyValueEncoding, TypedWrite
from spark_mq_source.values.protobuf.schema import FlatField, descriptor_of, flat_descriptors

_KEY_VALUE_TYPE: Final = "kv.encoding.type"
"""The property with the place of the key: INLINE or SEPARATED (`KeyValueSchemaInfo` of the Java client)."""

_PARSING_INFO: Final = "__PARSING_INFO__"
"""The property of a PROTOBUF schema with the fields of its message (`ProtobufSchema` of the Java client)."""

_GIVE_SCHEMA: Final = "set valueFormat=protobuf, valueSchema and valueMessage"


def encoding_of_schema(schema: Schema) -> Encoding | KeyValueEncoding | None:
    """Return the encoding of messages with this schema; None for bytes.

    Raises:
        ValueError: values of this type cannot be decoded; the message gives the reason.

    Example:
        >>> encoding_of_schema(Schema("t", b"", SchemaType.INT32))
        Encoding(name='int32', definition='', message='')
    """
    if schema.type == SchemaType.EXTERNAL:
        raise ValueError(
            "its schema is in an external registry (PIP-420), to which brokers have no access: set valueFormat and "
            "valueSchema; the column schema_id has the ids of messages"
        )
    try:
        kind = SchemaType(schema.type).name
    except ValueError:
        raise ValueError(f"the schema has the type {schema.type}, which is not known here") from None
    properties = {one["key"]: one["value"] for one in schema.properties}
    if kind != "KEY_VALUE":
        return _encoding(kind, schema.schema_data, properties)
    key, rest = _part(schema.schema_data)
    value, _ = _part(rest)
    return KeyValueEncoding(
        _encoding_of_part("key", key, properties),
        _encoding_of_part("value", value, properties),
        is_inline=properties.get(_KEY_VALUE_TYPE, "INLINE") == "INLINE",
    )


def _encoding_of_part(side: str, definition: bytes, properties: Mapping[str, str]) -> Encoding | None:
    own = json.loads(properties.get(f"{side}.schema.properties") or "{}")
    return _encoding(properties.get(f"{side}.schema.type", "BYTES"), definition, own)


def _encoding(kind: str, definition: bytes, properties: Mapping[str, str]) -> Encoding | None:
    name = kind.lower()
    if name in ("none", "bytes"):
        return None
    if name in PRIMITIVES or name == "boolean":
        return Encoding("bool" if name == "boolean" else name)
    if name in ("avro", "json"):
        return Encoding(name, definition.decode())
    if name == "protobuf_native":
        return _native_protobuf(definition)
    if name == "protobuf":
        return _class_protobuf(definition, properties)
    raise ValueError(f"a schema of type {kind} cannot be decoded")


def _native_protobuf(definition: bytes) -> Encoding:
    """Return the descriptors of a PROTOBUF_NATIVE schema (`ProtobufNativeSchemaData` of the Java client)."""
    try:
        document = json.loads(definition)
        return Encoding("protobuf", document["fileDescriptorSet"], document["rootMessageTypeName"])
    except (KeyError, TypeError, ValueError):
        raise ValueError("a schema of type PROTOBUF_NATIVE without descriptors") from None


def _class_protobuf(definition: bytes, properties: Mapping[str, str]) -> Encoding:
    """Return the descriptors of a PROTOBUF schema (`ProtobufSchema` of the Java client).

    Its definition is an Avro schema made of the class, and a property has the number and type of each field of the
    message, but nothing of the messages and enums in it.
    """
    try:
        record = json.loads(definition)
        fields = json.loads(properties[_PARSING_INFO])
        defaults = {field["name"]: field.get("default") for field in record["fields"]}
        message = record["name"]
        declared = [
            FlatField(
                number=field["number"],
                name=field["name"],
                kind=field["type"].lower(),
                label=field["label"].removeprefix("LABEL_").lower(),
                # Every field without a declared default has 0.
                default=defaults.get(field["name"]) or None,
            )
            for field in fields
        ]
        unknown = [field.name for field in declared if field.kind in ("message", "group", "enum")]
        descriptors = b"" if unknown else flat_descriptors(message, declared)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f"a schema of type PROTOBUF without the fields of its message; {_GIVE_SCHEMA}") from None
    if unknown:
        raise ValueError(
            f"a schema of type PROTOBUF does not define the messages and enums in its message ({', '.join(unknown)}), "
            f"which one of type PROTOBUF_NATIVE does; {_GIVE_SCHEMA}"
        )
    return Encoding("protobuf", base64.b64encode(descriptors).decode(), message)


def _part(data: bytes) -> tuple[bytes, bytes]:
    """Return the first of two definitions, each an int32 of bytes and the bytes, and the rest."""
    size = max(0, int.from_bytes(data[:4], "big", signed=True))
    return data[4 : 4 + size], data[4 + size :]


def schema_of_write(write: TypedWrite, properties: Sequence[tuple[str, str]] = ()) -> Schema | None:
    r"""Return the schema of such messages as the Java client registers it; None for JSON without a schema.

    Example:
        >>> schema_of_write(TypedWrite(Encoding("int32"))).type.name
        'INT32'
        >>> schema_of_write(TypedWrite(None, Encoding("string"))).schema_data
        b'\x00\x00\x00\x00\x00\x00\x00\x00'
    """
    value = _schema(write.value, properties)
    if not write.is_pair:
        return value if write.value is not None and write.value.has_schema else None
    parts = {"key": _schema(write.key), "value": value}
    described: dict[str, str] = {}
    for side, part in parts.items():
        described[f"{side}.schema.name"] = part.name
        described[f"{side}.schema.type"] = "BOOLEAN" if part.type == SchemaType.BOOL else part.name
        described[f"{side}.schema.properties"] = json.dumps({one["key"]: one["value"] for one in part.properties})
    described[_KEY_VALUE_TYPE] = "INLINE" if write.is_inline else "SEPARATED"
    return Schema(
        name="KEY_VALUE",
        schema_data=b"".join(len(x.schema_data).to_bytes(4, "big") + x.schema_data for x in parts.values()),
        type=SchemaType.KEY_VALUE,
        properties=key_values(described.items()),
    )


def _schema(encoding: Encoding | None, properties: Sequence[tuple[str, str]] = ()) -> Schema:
    if encoding is None or encoding.is_packed:
        return Schema("BYTES", b"", SchemaType.NONE)
    if encoding.name == "protobuf":
        return _schema_of_native_protobuf(encoding, properties)
    name = encoding.name.upper()
    return Schema(
        name=name,
        schema_data=encoding.definition.encode(),
        type=SchemaType[name],
        properties=key_values(properties),
    )


def _schema_of_native_protobuf(encoding: Encoding, properties: Sequence[tuple[str, str]]) -> Schema:
    """Return the schema as `ProtobufNativeSchemaUtils.serialize` of the Java client writes it."""
    message = descriptor_of(base64.b64decode(encoding.definition), encoding.message)
    document = {
        "fileDescriptorSet": encoding.definition,
        "rootMessageTypeName": message.full_name,
        "rootFileDescriptorName": message.file.name,
    }
    return Schema(
        name="PROTOBUF_NATIVE",
        schema_data=json.dumps(document, separators=(",", ":")).encode(),
        type=SchemaType.PROTOBUF_NATIVE,
        properties=key_values(properties),
    )
