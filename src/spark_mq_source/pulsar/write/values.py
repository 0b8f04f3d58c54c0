"""Encodings of the columns of a write, and their schema for the broker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_mq_source.core.columns import is_text
from spark_mq_source.core.errors import MQSourceError, OptionError
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.options import KeyValueEncodingType
from spark_mq_source.pulsar.payload.registry import schema_of_write
from spark_mq_source.pulsar.payload.schema import AVRO, BYTES, STRING
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.values.encodings import TypedWrite
from spark_mq_source.values.options import RAW, typed_write_of

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.pulsar.options import PulsarOptions


def write_of(options: PulsarOptions) -> TypedWrite | None:
    """Return the encodings of the options; None if key and value are sent unencoded.

    Raises:
        ValueError: a definition is not a string.
    """
    write = typed_write_of(options, registers=True)
    if write is None:
        return None
    is_inline = write.is_pair and options.key_value_encoding is KeyValueEncodingType.INLINE
    value = write.value
    if value is not None and options.schema is not None:
        has_schema = options.schema.type != BYTES
        value = replace(value, definition=options.schema.definition, has_schema=has_schema, text_times=not has_schema)
    return replace(write, value=value, is_inline=is_inline)


def check_topic_partitions(options: PulsarOptions) -> None:
    """Check, before a task starts, that the topic has `topicPartitions`; create it if it is missing.

    Raises:
        OptionError: it has another number of partitions.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    if options.topic_partitions is None or options.topic is None:
        return
    with PulsarClient(options) as client:
        try:
            client.fetch_partitions([options.topic], create=options.create_topic)
            client.hand_over()
        except MQSourceError as error:
            raise error.within("pulsar-native: planning a write") from error


def check_raw_values(options: PulsarOptions, type_: pa.DataType) -> None:
    """Refuse an unencoded column `value` that contradicts the option `schema`.

    Raises:
        OptionError: the message gives the reason.
    """
    schema_type = BYTES if options.schema is None else options.schema.type
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
    return commands.Schema(
        name=schema.type,
        schema_data=schema.definition.encode(),
        type=commands.SchemaType[schema.type],
        properties=tuple(commands.KeyValue(key=key, value=value) for key, value in properties),
    )
