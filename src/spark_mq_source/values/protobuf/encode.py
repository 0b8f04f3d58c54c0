"""Arrow structs as protobuf messages: the inverse of `decode`.

The loop is compiled (``_encode_native``) and executes the steps of `protobuf.write_steps`. It has no interpreted twin:
without it, writing typed columns is an error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from spark_mq_source.core.implementation import require_compiled
from spark_mq_source.values.protobuf.write_steps import plan_writing

_planned: Final = lru_cache(maxsize=64)(plan_writing)


def encode_protobuf(
    array: pa.StructArray, descriptors: bytes, message: str, *, column: str = "value"
) -> pa.BinaryArray:
    r"""Encode structs as protobuf messages; NULL becomes NULL.

    A column becomes the field that `protobuf.arrow_type_of` maps to it, or one that can be read as it: an enum's
    number, a bigint for a uint32, a decimal(20,0) for a uint64. Integers may also be narrower, and a float a double.
    NULL, and a field without a column, is left out; so is zero if protobuf does not distinguish it from an absent
    field. Fields are written in the order of their numbers, as protobuf's runtimes do, and the entries of maps in
    their own order.

    Raises:
        OptionError: the descriptors or the name are wrong, or the array's type does not fit the message; all problems
            in one sentence.
        UnsupportedFeatureError: the compiled loop cannot be loaded.
        UnwritableRowError: a value does not fit, such as a NULL in an array, a text that is not a name of the enum, or
            two fields of a oneof.

    Example:
        >>> from google.protobuf import duration_pb2
        >>> from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
        >>> file = FileDescriptorProto.FromString(duration_pb2.DESCRIPTOR.serialized_pb)
        >>> array = pa.array([{"nanos": 1, "seconds": 5}, {"nanos": 0, "seconds": None}, None])
        >>> array = array.cast(pa.struct([("nanos", pa.int32()), ("seconds", pa.int64())]))
        >>> descriptors = FileDescriptorSet(file=[file]).SerializeToString()
        >>> encode_protobuf(array, descriptors, "google.protobuf.Duration").to_pylist()
        [b'\x08\x05\x10\x01', b'', None]
    """
    loop = require_compiled(
        "spark_mq_source.values.protobuf._encode_native",
        "typed columns of protobuf",
        "encode them with Spark's to_protobuf and write binary",
    )
    step = _planned(array.type, descriptors, message, column)
    encoded: pa.BinaryArray = loop.ProtobufEncoder(step, array).encode(array)
    return encoded
