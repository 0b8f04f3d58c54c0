"""JSON values as Arrow arrays, without a JVM or a Python object per value.

The compiled loop (``_decode_native``) and `explain` execute the same steps (`json.steps`, which states the rules).
`explain` finds the reason for each payload that the loop refuses, and decodes all payloads without a compiled loop.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from spark_mq_source.core.implementation import Implementation
from spark_mq_source.values.avro.schema import AvroType, parse_finite
from spark_mq_source.values.avro.types import arrow_type
from spark_mq_source.values.decoder import ValueDecoder
from spark_mq_source.values.json import explain
from spark_mq_source.values.json.steps import as_json, steps_of

_decoding: Final = Implementation(explain, compiled="spark_mq_source.values.json._decode_native")


def arrow_type_of(definition: str) -> pa.DataType:
    """Return the Arrow type of values with one of Pulsar's JSON schemas, which are Avro definitions.

    As `avro.decode.arrow_type_of`, except for a union of several types and for some of Java's types: see `json.steps`.

    Raises:
        OptionError: the text is not an Avro schema, or the schema is recursive or has a type that Spark lacks.

    Example:
        >>> arrow_type_of('{"type": "record", "name": "F", "fields": [{"name": "a", "type": ["int", "string"]}]}')
        StructType(struct<a: string>)
    """
    return arrow_type(_parsed(definition))


def json_decoder(
    wanted: pa.DataType, definition: str | None = None, implementation: str | None = None, *, may_lack: bool = True
) -> ValueDecoder:
    r"""Return a decoder of JSON payloads, in UTF-8.

    Args:
        wanted: the type of the values: structs, lists, maps with string keys, and Spark's types without inner ones.
            A field is found by its name; further members of a payload are ignored.
        definition: the Avro schema of a Pulsar JSON schema, as JSON; None without one. It determines the meaning of
            numbers for dates and times, and allows names that differ in case alone.
        implementation: ``native`` or ``python``; None for the implementation of this process.
        may_lack: whether the definition may lack wanted fields, as that of an older version may; they are NULL.

    Raises:
        OptionError: the definition is not an Avro schema, it lacks a field, its values cannot have the wanted type, or
            that type has no JSON form.

    Example:
        >>> decoder = json_decoder(pa.struct([("a", pa.int8()), ("b", pa.list_(pa.decimal128(4, 2)))]))
        >>> decoded = decoder.decode(pa.array([b'{"b": [1, "0.25"], "c": {}}', None, b'{"a": 200}'], pa.binary()))
        >>> decoded.values.to_pylist()[0], decoded.reasons
        ({'a': None, 'b': [Decimal('1.00'), Decimal('0.25')]}, {2: 'field a: 200 is not a valid tinyint'})
    """
    step = steps_of(wanted, None if definition is None else _parsed(definition), may_lack=may_lack)
    decoder: ValueDecoder = _decoding.load(implementation).JsonDecoder(step)
    return decoder


def _parsed(definition: str) -> AvroType:
    return as_json(parse_finite(definition, "the definition of the JSON schema"))
