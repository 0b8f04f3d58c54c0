"""Avro values as Arrow arrays: the columns that Spark's ``from_avro`` gives, without a JVM and without Python a record.

The loops are in two implementations, compiled (``_avro_native``) and interpreted (``_avro_python``), which follow the
same steps (`avro_steps`); `core.implementation` says which one runs.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.implementation import Implementation
from spark_mq_source.core.values import _avro_python
from spark_mq_source.core.values.avro_resolution import MisfitError, resolve
from spark_mq_source.core.values.avro_schema import AvroType, check_finite, parse_avro
from spark_mq_source.core.values.avro_types import arrow_type
from spark_mq_source.core.values.decoder import ValueDecoder

_decoding: Final = Implementation(_avro_python)


def arrow_type_of(definition: str) -> pa.DataType:
    """The Arrow type of values that were written with an Avro schema, as Spark's ``from_avro`` has it.

    * A union with null is the type of its other branch; one of int and long is a ``bigint``, one of float and double a
      ``double``, and any other a struct with the fields ``member0``, ``member1``, ..., of which one is not NULL.
    * An enum is a ``string``, a fixed ``binary``.
    * date, decimal, timestamp-millis, timestamp-micros and their local-timestamp counterparts are Spark's ``date``,
      ``decimal``, ``timestamp`` and ``timestamp_ntz``. A uuid is a ``string``. A time of day is the number that was
      written: Spark has a type for some from release 4.1 on.

    Every field is nullable.

    Args:
        definition: the schema, as JSON.

    Raises:
        OptionError: it is no Avro schema, is recursive, or has a type that Spark does not have.

    Example:
        >>> arrow_type_of('{"type": "record", "name": "F", "fields": [{"name": "a", "type": ["null", "int"]}]}')
        StructType(struct<a: int32>)
    """
    return arrow_type(_parsed(definition))


def avro_decoder(
    writer: str, wanted: pa.DataType, reader: str | None = None, implementation: str | None = None
) -> ValueDecoder:
    r"""A decoder of the values that were written with one schema.

    What follows a value in its payload is ignored, as by Java's client and fastavro. What is not wanted is skipped, and
    looked at no closer than that needs: a text in it may be no UTF-8. A map that was written with a key twice has both.

    Args:
        writer: the schema that wrote the values, as JSON.
        wanted: the type of the values: of what `arrow_type_of` says of the reader's schema, all or some of the fields,
            at any depth and in any order. A field is found by its name, and without regard to case if no name is the
            same and one differs in case alone. An int may be a ``bigint`` or a ``double``, a float a ``double``, and a
            decimal may have more digits.
        reader: the schema to which the writer's is resolved by Avro's rules: fields that were not written get their
            defaults, numbers are promoted, aliases are followed. None for the writer's.
        implementation: ``native`` or ``python``; None for what runs in this process.

    Raises:
        OptionError: a schema is no Avro schema, they cannot be resolved, or `wanted` does not fit the reader's.

    Example:
        >>> fields = '[{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]'
        >>> schema = f'{{"type": "record", "name": "F", "fields": {fields}}}'
        >>> decoder = avro_decoder(schema, pa.struct([("b", pa.string())]))
        >>> decoded = decoder.decode(pa.array([b"\x02\x06abc", None, b"\x02\x06ab"], pa.binary()))
        >>> decoded.values.to_pylist(), decoded.reasons
        ([{'b': 'abc'}, None, None], {2: 'field b: the payload ends within it'})
    """
    written = _parsed(writer, "the writer's schema")
    read = written if reader is None else _parsed(reader, "the reader's schema")
    try:
        step = resolve(written, read, wanted)
    except MisfitError as misfit:
        raise OptionError(
            f"values of the writer's Avro schema {written!r} cannot be read with the reader's schema {read!r}: {misfit}"
        ) from None
    chosen = _decoding if implementation is None else Implementation(_avro_python, implementation)
    chosen.warn_of_fallback()
    decoder: ValueDecoder = chosen.module.AvroDecoder(step, wanted)
    return decoder


def _parsed(definition: str, what: str = "the schema") -> AvroType:
    try:
        parsed = parse_avro(definition)
        check_finite(parsed)
    except ValueError as error:
        raise OptionError(f"{what} is no Avro schema that can be columns: {error}") from None
    return parsed
