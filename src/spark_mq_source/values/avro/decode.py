"""Avro values as Arrow arrays: the columns of Spark's ``from_avro``, without a JVM or Python objects per record.

The loop is compiled (``_decode_native``) and executes the steps of `avro.steps`. It has no interpreted twin: without
it, a typed column is an error.
"""

from __future__ import annotations

import pyarrow as pa

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.implementation import require_compiled
from spark_mq_source.values.avro.resolution import MismatchError, resolve
from spark_mq_source.values.avro.schema import parse_finite
from spark_mq_source.values.avro.types import arrow_type
from spark_mq_source.values.decoder import ValueDecoder


def arrow_type_of(definition: str) -> pa.DataType:
    """Return the Arrow type of values written with an Avro schema, as Spark's ``from_avro`` represents them.

    * A union with null has the type of its other branch; a union of int and long is a ``bigint``, one of float and
      double a ``double``, and any other a struct of ``member0``, ``member1``, ..., of which one is not NULL.
    * An enum is a ``string``, a fixed ``binary``.
    * date, decimal, timestamp-millis, timestamp-micros and their local-timestamp counterparts are Spark's ``date``,
      ``decimal``, ``timestamp`` and ``timestamp_ntz``. A uuid is a ``string``. A time of day is the number that was
      written, because Spark has a type for times only from release 4.1 on.

    Every field is nullable.

    Raises:
        OptionError: the text is not an Avro schema, or the schema is recursive or has a type that Spark lacks.

    Example:
        >>> arrow_type_of('{"type": "record", "name": "F", "fields": [{"name": "a", "type": ["null", "int"]}]}')
        StructType(struct<a: int32>)
    """
    return arrow_type(parse_finite(definition))


def avro_decoder(writer: str, wanted: pa.DataType, reader: str | None = None) -> ValueDecoder:
    r"""Return a decoder of the values that were written with one schema.

    Bytes after a value in its payload are ignored, as in Java's client and fastavro. Fields that are not wanted are
    skipped without further checks: a text in them may be invalid UTF-8. If a map was written with equal keys, both
    entries are returned.

    Args:
        writer: the schema that wrote the values, as JSON.
        wanted: the type of the values: all or some fields of `arrow_type_of` for the reader's schema, at any depth and
            in any order. A field is found by its name, or by the only name that differs in case alone. An int may
            be a ``bigint`` or a ``double``, a float a ``double``, and a decimal may have more digits.
        reader: the schema to which the writer's is resolved by Avro's rules: missing fields get their defaults, numbers
            are promoted, aliases are followed. None for the writer's schema.

    Raises:
        OptionError: a text is no Avro schema, the schemas cannot be resolved, or `wanted` does not fit the reader's.
        UnsupportedFeatureError: the compiled loop cannot be loaded.

    Example:
        >>> fields = '[{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]'
        >>> schema = f'{{"type": "record", "name": "F", "fields": {fields}}}'
        >>> decoder = avro_decoder(schema, pa.struct([("b", pa.string())]))
        >>> decoded = decoder.decode(pa.array([b"\x02\x06abc", None, b"\x02\x06ab"], pa.binary()))
        >>> decoded.values.to_pylist(), decoded.reasons
        ([{'b': 'abc'}, None, None], {2: 'field b: the payload ends within it'})
    """
    written = parse_finite(writer, "the writer's schema")
    read = written if reader is None else parse_finite(reader, "the reader's schema")
    try:
        step = resolve(written, read, wanted)
    except MismatchError as error:
        raise OptionError(
            f"values of the writer's Avro schema {written!r} cannot be read with the reader's schema {read!r}: {error}"
        ) from None
    loop = require_compiled("Avro", "decode")
    decoder: ValueDecoder = loop.AvroDecoder(step, wanted)
    return decoder
