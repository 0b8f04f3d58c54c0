"""Arrow arrays as Avro values: the inverse of `decode`.

The loop is compiled (``_encode_native``) and executes the steps of `avro.write_steps`. It has no interpreted twin.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from spark_mq_source.core.implementation import require_compiled
from spark_mq_source.values.avro.write_steps import plan_writing

_planned: Final = lru_cache(maxsize=64)(plan_writing)


def encode_avro(array: pa.Array, definition: str, *, column: str = "value") -> pa.BinaryArray:
    r"""Encode the values as Avro; NULL becomes NULL.

    The types are those that `avro.arrow_type_of` returns; integers may also be narrower, and a float a double. A schema
    field without a column is written as its default, or as null. Timestamps are truncated to the schema's milliseconds.
    Equal values always give equal bytes; exactly-once writes rely on it.

    Args:
        array: the values: for a record, structs whose fields are matched by name.
        definition: the schema, as JSON.
        column: the name of the column, for errors.

    Raises:
        OptionError: the definition is not a schema, or the array's type does not fit it.
        UnwritableRowError: a value does not fit the schema, such as a NULL, or a text that is not a symbol.
        UnsupportedFeatureError: the compiled loop cannot be loaded.

    Example:
        >>> schema = '{"type": "record", "name": "F", "fields": [{"name": "a", "type": ["null", "int"]}]}'
        >>> encode_avro(pa.array([{"a": 1}, {"a": None}, None], pa.struct([("a", pa.int32())])), schema).to_pylist()
        [b'\x02\x02', b'\x00', None]
    """
    step = _planned(array.type, definition, column)
    loop = require_compiled(
        "spark_mq_source.values.avro._encode_native",
        "typed columns of Avro",
        "encode them with Spark's to_avro and write binary",
    )
    encoded: pa.BinaryArray = loop.AvroEncoder(step, array).encode(array)
    return encoded
