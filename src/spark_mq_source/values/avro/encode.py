"""Arrow arrays as Avro values: the inverse of `decode`.

The loop is compiled (``_encode_native``) and executes the steps of `avro.write_steps`. It has no interpreted twin.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_mq_source.core.implementation import require_compiled
from spark_mq_source.values.avro.write_steps import plan_writing


def avro_encoder(type_: pa.DataType, definition: str, column: str = "value") -> Callable[[pa.Array], pa.BinaryArray]:
    r"""Return a function that encodes values of a type as Avro; NULL becomes NULL.

    It raises UnwritableRowError for a value that does not fit the schema, such as a NULL, or a text that is no symbol.

    The types are those that `avro.arrow_type_of` returns; integers may also be narrower, and a float a double. A schema
    field without a column is written as its default, or as null. Timestamps are truncated to the schema's milliseconds.
    Equal values always give equal bytes; exactly-once writes rely on it.

    Args:
        type_: the type of the values: for a record, of structs whose fields are matched by name.
        definition: the schema, as JSON.
        column: the name of the column, for errors.

    Raises:
        OptionError: the definition is not a schema, or the type does not fit it.
        UnsupportedFeatureError: the compiled loop cannot be loaded.

    Example:
        >>> schema = '{"type": "record", "name": "F", "fields": [{"name": "a", "type": ["null", "int"]}]}'
        >>> values = pa.array([{"a": 1}, {"a": None}, None], pa.struct([("a", pa.int32())]))
        >>> avro_encoder(values.type, schema)(values).to_pylist()
        [b'\x02\x02', b'\x00', None]
    """
    step = plan_writing(type_, definition, column)
    loop = require_compiled("Avro", "encode")
    return lambda values: loop.AvroEncoder(step, values).encode(values)
