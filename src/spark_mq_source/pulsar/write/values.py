"""Converts the column `value` for sending (unchanged, or a struct to JSON), and derives its schema."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_mq_source.core.columns import is_text, is_text_or_binary
from spark_mq_source.core.errors import OptionError
from spark_mq_source.pulsar.options import PulsarOptions, ValueFormat
from spark_mq_source.pulsar.payload.json_column import json_texts
from spark_mq_source.pulsar.payload.schema import (
    AVRO,
    BYTES,
    JSON,
    STRING,
    ValueSchema,
    check_nulls,
    check_struct,
    derive_schema,
)
from spark_mq_source.pulsar.protocol import commands

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_values(options: PulsarOptions, type_: pa.DataType) -> None:
    """Refuses a column `value` that cannot be written with these options, or not be read with its schema.

    Raises:
        OptionError: the message says why.
    """
    problem = next(_problems(options, type_), None)
    if problem is not None:
        raise OptionError(f"format {options.format_name!r}: {problem}")


def _problems(options: PulsarOptions, type_: pa.DataType) -> Iterator[str]:
    schema_type = BYTES if options.schema is None else options.schema.type
    if options.value_format is ValueFormat.RAW:
        if not is_text_or_binary(type_):
            yield f"column value is {type_}: set valueFormat=json to write a struct as JSON"
        elif schema_type == STRING and not is_text(type_):
            yield "column value is binary, but the option schema is STRING: cast it to string"
        elif schema_type == AVRO and is_text(type_):
            yield "column value is a string, but the option schema is AVRO: encode it to Avro's binary form"
        return
    if not pa.types.is_struct(type_):
        yield f"column value is {type_}, expected a struct with valueFormat=json, such as struct(*)"
        return
    try:
        json_texts(pa.array([], type_))
        schema_to_send(options, type_)
    except TypeError as error:
        yield f"column value cannot be written as JSON: {error}"
    except OptionError as error:
        yield str(error)


def with_schema(options: PulsarOptions, type_: pa.DataType) -> PulsarOptions:
    """The options with the schema of values of this type, so that tasks without rows can send it too.

    Raises:
        OptionError: as for `schema_to_send`.
    """
    schema = _schema_of(options, type_)
    return options if schema is None else replace(options, schema=schema)


def schema_to_send(options: PulsarOptions, type_: pa.DataType | None = None) -> commands.Schema | None:
    """The schema to send in PRODUCER for values of this type; None for a topic without a schema.

    Args:
        options: options of the write.
        type_: type of the values; None without values, to use only the options.

    Raises:
        OptionError: a struct that does not fit the option `schema`, or has no schema.
    """
    schema = _schema_of(options, type_)
    if schema is None:
        return None
    return commands.Schema(
        name=schema.type,
        schema_data=schema.definition.encode(),
        type=commands.SchemaType[schema.type],
        properties=tuple(commands.KeyValue(key=key, value=value) for key, value in schema.properties),
    )


def _schema_of(options: PulsarOptions, type_: pa.DataType | None) -> ValueSchema | None:
    schema = options.schema
    if options.value_format is ValueFormat.JSON:
        if schema is None:
            return None if type_ is None else derive_schema(type_)
        if schema.type != BYTES:
            schema = ValueSchema(JSON, schema.definition, schema.properties)
            if type_ is not None:
                check_struct(type_, schema)
    return None if schema is None or schema.type == BYTES else schema


def json_values(options: PulsarOptions, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the struct `value` converted to JSON; NULL, a tombstone, stays NULL.

    Raises:
        UnwritableRowError: a text is not UTF-8, or a field is NULL but not nullable in the schema.
    """
    values = batch.column("value")
    schema = _schema_of(options, values.type)
    if schema is not None:
        check_nulls(values, schema)
    columns = [
        json_texts(column) if name == "value" else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
