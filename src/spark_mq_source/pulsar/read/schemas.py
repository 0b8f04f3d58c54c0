"""Encodings of a read with `valueFormat=auto`: by the schemas of its topics, and by those that its messages name."""

from __future__ import annotations

import pyarrow as pa

from spark_mq_source.core.columns import VALUE
from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.sql_types import matches
from spark_mq_source.pulsar.client.client import PulsarClient, connected
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.registry import encoding_of_schema
from spark_mq_source.pulsar.read.planner import topics_of
from spark_mq_source.values.encodings import Encoding, KeyValueEncoding, TypedRead, type_of
from spark_mq_source.values.options import RAW, key_encoding_of


def registered_read(options: PulsarOptions) -> TypedRead:
    """Return the encodings by the latest schema of the topics, which must be equal.

    Raises:
        OptionError: the schema cannot be decoded, or the topics differ in it.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    found: dict[str, Encoding | KeyValueEncoding | None] = {}
    with connected(options, "pulsar-native: planning valueFormat=auto") as client:
        for topic in topics_of(client, options):
            schema = client.schema_of(topic)
            try:
                found[topic] = None if schema is None else encoding_of_schema(schema)
            except ValueError as error:
                raise OptionError(f"{topic}: {error}") from error
    reads = {topic: _read_of(options, encoding) for topic, encoding in found.items()}
    first = next(iter(reads), None)
    if first is None:
        return TypedRead(flatten=options.flatten)
    for topic, read in reads.items():
        if _shape(read) != _shape(reads[first]):
            raise OptionError(
                f"pulsar-native: the schemas of {first} and {topic} differ: read these topics apart, or set "
                f"valueFormat and valueSchema for both"
            )
    return reads[first]


def check_needs_no_schema(options: PulsarOptions, columns: pa.Schema) -> None:
    """Check the columns of a read with `valueFormat=auto` whose topics have no schema, so that values are not decoded.

    Raises:
        OptionError: the type of `value` is neither bytes nor text, or there are columns for its fields.
    """
    is_raw = VALUE not in columns.names or any(
        matches(columns.field(VALUE).type, type_) for type_ in COLUMNS.readable[VALUE]
    )
    if is_raw and not options.flatten:
        return
    topics = ", ".join(options.topic_names)
    which = f"{topics} has no schema" if topics else f"no topic of topicsPattern {options.topics_pattern} has a schema"
    raise OptionError(
        f"format 'pulsar-native': {which}, so valueFormat=auto cannot decode its values"
        f"{' and flatten=true has no fields' if options.flatten else ''}: set valueFormat to their format (json, avro "
        f"or protobuf, with valueSchema where it needs one), or read column value as binary or string"
    )


def _read_of(options: PulsarOptions, encoding: Encoding | KeyValueEncoding | None) -> TypedRead:
    if not isinstance(encoding, KeyValueEncoding):
        key = key_encoding_of(options)
        return TypedRead(encoding, key, by_version=encoding is not None, flatten=options.flatten)
    if options.key_format != RAW:
        raise OptionError("pulsar-native: keyFormat: the topic's KEY_VALUE schema says how keys are encoded: remove it")
    return TypedRead(
        encoding.value, encoding.key, is_inline=encoding.is_inline, by_version=True, flatten=options.flatten
    )


def _shape(read: TypedRead) -> tuple[object, ...]:
    """Return what determines the columns and the place of the key."""
    try:
        return read.is_inline, *((name, one and one.name, type_of(one)) for name, one in read.encodings.items())
    except ValueError as error:
        raise OptionError(f"pulsar-native: valueFormat=auto: {error}") from error


def fetch_version(options: PulsarOptions, topic: str, version: bytes) -> Encoding | KeyValueEncoding | None:
    """Return the encoding of messages of a topic with this schema version; None if there is no such version.

    Raises:
        ValueError: they cannot be decoded.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    with PulsarClient(options) as client:
        schema = client.schema_of(topic, version)
        client.hand_over()
    if schema is None:
        return None
    encoding = encoding_of_schema(schema)
    if encoding is None:
        raise ValueError("its values are bytes")
    return encoding
