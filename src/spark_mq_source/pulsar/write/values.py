"""Encodings of the columns of a write, and their schema for the broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_mq_source.core.columns import VALUE, is_text
from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.sql_types import matches
from spark_mq_source.pulsar.client.client import connected
from spark_mq_source.pulsar.options import KeyValueEncodingType
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.registry import encoding_of_schema, schema_of_write
from spark_mq_source.pulsar.payload.schema import AVRO, BYTES, STRING
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.values.encodings import Encoding, KeyValueEncoding, TypedWrite
from spark_mq_source.values.options import AUTO, RAW, typed_write_of

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.pulsar.options import PulsarOptions


def write_of(options: PulsarOptions) -> TypedWrite | None:
    """Return the encodings of the options; None if key and value are sent unencoded.

    Raises:
        ValueError: a definition is not a string.
    """
    if options.value_format == AUTO:
        return options.encoded
    write = typed_write_of(options, registers=True)
    if write is None:
        return None
    is_inline = write.is_pair and options.key_value_encoding is KeyValueEncodingType.INLINE
    value = write.value
    if value is not None and options.schema is not None:
        has_schema = options.schema.type != BYTES
        value = replace(value, definition=options.schema.definition, has_schema=has_schema, text_times=not has_schema)
    return replace(write, value=value, is_inline=is_inline)


def with_registered(options: PulsarOptions, columns: Sequence[str]) -> PulsarOptions:
    """Return the options of a write with `valueFormat=auto`, with the encodings of the topic's newest schema.

    Raises:
        OptionError: the rows have topics of their own, or rows cannot be encoded by this schema.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    if options.topic is None or "topic" in columns:
        raise OptionError(
            "valueFormat=auto encodes all rows by the schema of one topic: set the option topic, and drop column topic"
        )
    with connected(options, "pulsar-native: planning valueFormat=auto") as client:
        schema = client.schema_of(options.topic)
    try:
        encoding = None if schema is None else encoding_of_schema(schema)
    except ValueError as error:
        raise OptionError(f"{options.topic}: {error}") from error
    if schema is None or encoding is None:
        return replace(options, encoded=None)
    if isinstance(encoding, KeyValueEncoding):
        write = TypedWrite(encoding.value, encoding.key, is_inline=encoding.is_inline)
    else:
        write = TypedWrite(encoding)
    registered = schema_of_write(write)
    # Another definition of the same type would be a new version, which the topic need not accept.
    if registered is None or (registered.type, registered.schema_data) != (schema.type, schema.schema_data):
        raise OptionError(
            f"{options.topic}: rows cannot be written with its schema, as another client made it: set valueFormat to "
            f"their encoding instead of auto"
        )
    return replace(options, encoded=write)


def check_topic_partitions(options: PulsarOptions) -> None:
    """Check, before a task starts, that the topic has `topicPartitions`; create it if it is missing.

    Raises:
        OptionError: it has another number of partitions.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    if options.topic_partitions is None or options.topic is None:
        return
    with connected(options, "pulsar-native: planning a write") as client:
        client.fetch_partitions([options.topic], create=options.create_topic)


def check_raw_values(options: PulsarOptions, type_: pa.DataType) -> None:
    """Refuse an unencoded column `value` that contradicts the option `schema`.

    Raises:
        OptionError: the message gives the reason.
    """
    schema_type = BYTES if options.schema is None else options.schema.type
    is_raw = any(matches(type_, one) for one in COLUMNS.writable[VALUE])
    if options.value_format == AUTO and options.encoded is None and not is_raw:
        raise OptionError(
            f"column value is {type_}, but {options.topic} has no schema for valueFormat=auto: set valueFormat to the "
            f"encoding, which registers one, or write binary or a string"
        )
    if options.value_format != RAW:
        return
    if schema_type == STRING and not is_text(type_):
        raise OptionError("column value is binary, but the option schema is STRING: cast it to string")
    if schema_type == AVRO and is_text(type_):
        raise OptionError(
            "column value is a string, but the option schema is AVRO: encode it to Avro's binary form, or write a "
            "struct with valueFormat=avro"
        )


def schema_to_send(options: PulsarOptions) -> commands.Schema | None:
    """Return the schema to send in PRODUCER; None for a topic without a schema.

    Args:
        options: options of the write, with its encodings (see `format.PulsarFormat.fit`).
    """
    schema = options.schema
    properties = () if schema is None else schema.properties
    if options.encoded is not None:
        return schema_of_write(options.encoded, properties)
    if schema is None or schema.type == BYTES:
        return None
    return schema_of_write(TypedWrite(Encoding(schema.type.lower(), schema.definition)), properties)
