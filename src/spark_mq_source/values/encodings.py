"""Encodings of keys and values, and the table of their decoders."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_mq_source.core.columns import KEY, VALUE
from spark_mq_source.core.sql_types import arrow_type_of_ddl

if TYPE_CHECKING:
    from spark_mq_source.values.decoder import ValueDecoder
    from spark_mq_source.values.inlong.fields import StreamLayout


PRIMITIVES: Final = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "float",
    "double",
    "string",
    "date",
    "time",
    "timestamp",
    "instant",
    "local_date",
    "local_time",
    "local_date_time",
)
"""The encodings of single values, named as in Pulsar's registry."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of keys or values.

    Attributes:
        name: ``avro``, ``json``, ``protobuf``, ``inlong``, or one of `PRIMITIVES`.
        definition: the schema: Avro's JSON; with `json` also Spark's DDL; with `protobuf` a FileDescriptorSet in
            base64; with `inlong` Spark's DDL of the fields of a record; empty for a primitive.
        message: with `protobuf`, the full name of the message.
        has_schema: whether a definition exists, given or derived; False for JSON that is written without one.
        text_times: whether JSON is written with dates and times as texts, for readers without an Avro schema.
        layout: with `inlong`, the layout of the records.
    """

    name: str
    definition: str = ""
    message: str = ""
    has_schema: bool = field(default=True, repr=False)
    text_times: bool = field(default=False, repr=False)
    layout: StreamLayout | None = field(default=None, repr=False)

    @property
    def is_packed(self) -> bool:
        """True if a message has several records, each of which is a row."""
        return self.name == "inlong"


@dataclass(frozen=True, slots=True)
class KeyValueEncoding:
    """The encoding of pairs of a key and a value (KEY_VALUE in Pulsar).

    Attributes:
        key: the encoding of keys; None for bytes.
        value: the encoding of values; None for bytes.
        is_inline: whether the payload contains both; otherwise the key is the message's key.
    """

    key: Encoding | None
    value: Encoding | None
    is_inline: bool


@dataclass(frozen=True, slots=True)
class TypedRead:
    """The decoding of a read: created on the driver, and sent to the tasks with the options.

    Attributes:
        value: the encoding of values, which determines the type of the column; None for binary.
        key: the encoding of keys, likewise.
        is_inline: whether payloads contain the keys.
        by_version: whether each message's schema version determines its encoding.
    """

    value: Encoding | None = None
    key: Encoding | None = None
    is_inline: bool = False
    by_version: bool = False
    flatten: bool = False

    @property
    def is_packed(self) -> bool:
        """True if a message gives several rows."""
        return self.value is not None and self.value.is_packed

    @property
    def encodings(self) -> dict[str, Encoding | None]:
        """The encodings by column, for the columns whose types depend on them."""
        found = {KEY: self.key} if self.key is not None or self.is_inline else {}
        return found | ({VALUE: self.value} if self.value is not None or self.is_inline else {})


@dataclass(frozen=True, slots=True)
class TypedWrite:
    """The encoding of a write: created on the driver, and sent to the tasks with the options.

    Attributes:
        value: the encoding of values; None if they are sent unchanged.
        key: the encoding of keys; if set, key and value are a pair (KEY_VALUE in Pulsar).
        is_inline: whether the payload contains a pair; otherwise its key is the message's key.
    """

    value: Encoding | None = None
    key: Encoding | None = None
    is_inline: bool = False

    @property
    def is_pair(self) -> bool:
        """True if key and value share a schema."""
        return self.key is not None

    @property
    def encodings(self) -> dict[str, Encoding | None]:
        """The encodings by column."""
        return {KEY: self.key, VALUE: self.value}


# Modules are imported at first use, because a task needs at most one of them.


def type_of(encoding: Encoding | None) -> pa.DataType:
    """Return the Arrow type of keys or values in Spark; binary if they are not decoded.

    Raises:
        ValueError: the encoding's definition cannot be used.
    """
    match encoding:
        case None:
            return pa.binary()
        case Encoding("avro", definition):
            from spark_mq_source.values.avro import decode as avro  # noqa: PLC0415

            return avro.arrow_type_of(definition)
        case Encoding("json", definition):
            return _json_type(definition)
        case Encoding("protobuf", definition, message):
            from spark_mq_source.values.protobuf import decode as protobuf  # noqa: PLC0415

            return protobuf.arrow_type_of(base64.b64decode(definition), message)
        case Encoding("inlong"):
            from spark_mq_source.values.inlong import decode as inlong  # noqa: PLC0415

            return inlong.inlong_type(encoding)
        case Encoding(kind):
            from spark_mq_source.values import primitives  # noqa: PLC0415

            return primitives.primitive_type_of(kind)


def decoder_for(writer: Encoding, wanted: pa.DataType, reader: Encoding | None) -> ValueDecoder:
    """Return the decoder from the encoding `writer` to `wanted`, (part of) the type of the encoding `reader`.

    Avro and Protobuf resolve the schema of one encoding to that of the other. A JSON schema that is not the reader's
    may lack wanted fields: they are NULL.

    Raises:
        ValueError: the encodings do not fit; the message names the field.
    """
    match writer:
        case Encoding("avro", definition):
            from spark_mq_source.values.avro import decode as avro  # noqa: PLC0415

            is_avro = reader is not None and reader.name == "avro"
            return avro.avro_decoder(definition, wanted, reader.definition if reader is not None and is_avro else None)
        case Encoding("json", definition):
            return _json_decoder(definition, wanted, is_planned=writer == reader)
        case Encoding("protobuf", definition, message):
            from spark_mq_source.values.protobuf import decode as protobuf  # noqa: PLC0415

            planned = None
            if reader is not None and reader.name == "protobuf":
                planned = base64.b64decode(reader.definition), reader.message
            return protobuf.protobuf_decoder(base64.b64decode(definition), message, wanted, planned)
        case Encoding("inlong"):
            from spark_mq_source.values.inlong import decode as inlong  # noqa: PLC0415

            return inlong.InlongDecoder(writer, wanted)
        case Encoding(kind):
            from spark_mq_source.values import primitives  # noqa: PLC0415

            return primitives.primitive_decoder(kind, wanted)


def is_avro_definition(definition: str) -> bool:
    """Return whether a definition is Avro's JSON rather than Spark's DDL."""
    return definition.lstrip()[:1] in ("{", "[", '"')


def _json_type(definition: str) -> pa.DataType:
    from spark_mq_source.values.json.decode import arrow_type_of  # noqa: PLC0415

    if not definition:
        raise ValueError("JSON has no types of its own: set its schema (valueSchema, keySchema), or name the columns")
    return arrow_type_of(definition) if is_avro_definition(definition) else arrow_type_of_ddl(definition)


def _json_decoder(definition: str, wanted: pa.DataType, *, is_planned: bool) -> ValueDecoder:
    from spark_mq_source.values.json.decode import json_decoder  # noqa: PLC0415

    if is_avro_definition(definition):
        return json_decoder(wanted, definition, may_lack=not is_planned)
    unknown = list(_unknown_fields(wanted, arrow_type_of_ddl(definition), "value")) if definition else []
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not in the schema {definition}")
    return json_decoder(wanted)


def _unknown_fields(wanted: pa.DataType, known: pa.DataType, path: str) -> Iterator[str]:
    """Yield the wanted fields that are unknown: JSON without a schema does not list its fields."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(known):
        types = {field.name: field.type for field in known}
        for field in wanted:
            inside = f"{path}.{field.name}"
            if field.name in types:
                yield from _unknown_fields(field.type, types[field.name], inside)
            else:
                yield inside
    elif pa.types.is_list(wanted) and pa.types.is_list(known):
        yield from _unknown_fields(wanted.value_type, known.value_type, f"{path}[]")
    elif pa.types.is_map(wanted) and pa.types.is_map(known):
        yield from _unknown_fields(wanted.item_type, known.item_type, f"{path}{{}}")
