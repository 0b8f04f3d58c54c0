"""Arrow arrays as Avro values: the other way of `avro`.

The loop is compiled (``_encode_native``) and follows the steps of `avro.write_steps`. It has no interpreted twin.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from spark_mq_source.core.implementation import require_compiled
from spark_mq_source.values.avro.write_steps import plan_writing

_planned: Final = lru_cache(maxsize=64)(plan_writing)


def encode_avro(array: pa.Array, definition: str, *, column: str = "value") -> pa.BinaryArray:
    r"""The values as Avro writes them; NULL where a value is NULL.

    A column becomes what `avro.arrow_type_of` makes it from; beyond that, integers may be narrower, and a float a
    double. A field of the schema without a column is written as its default, or as null. Timestamps are cut to the
    schema's milliseconds. The same value is always the same bytes, which exactly-once writes rely on.

    Args:
        array: the values: for a record, structs whose fields are found by name.
        definition: the schema, as JSON.
        column: the name of the column, for errors.

    Raises:
        OptionError: it is no schema, or the array's type does not fit it.
        UnwritableRowError: a value does not fit it: a NULL, a text that is no symbol.
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
    encoded: pa.BinaryArray = loop.encode(step, array)
    return encoded
