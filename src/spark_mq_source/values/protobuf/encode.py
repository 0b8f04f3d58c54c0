"""Arrow structs as protobuf messages: the other way of `protobuf`.

The loop is compiled (``_encode_native``) and follows the steps of `protobuf.write_steps`. It has no
interpreted twin: without it, writing typed columns is an error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from spark_mq_source.core.implementation import require_compiled
from spark_mq_source.values.protobuf.write_steps import plan_writing

_planned: Final = lru_cache(maxsize=64)(plan_writing)


def encode_protobuf(array: pa.StructArray, descriptors: bytes, message: str, column: str = "value") -> pa.BinaryArray:
    r"""The structs as protobuf messages; NULL where a struct is NULL.

    A column becomes the field from which `protobuf.arrow_type_of` makes it, or one that can be wanted as it: an enum's
    number, a bigint for a uint32, a decimal(20,0) for a uint64; beyond that, integers may be narrower, and a float a
    double. NULL, and a field without a column, is left out, and so is zero where protobuf does not tell it from that.
    Fields are written in the order of their numbers, as protobuf's runtimes do, and the entries of maps in theirs.

    Args:
        array: the values.
        descriptors: a serialized FileDescriptorSet with all its imports.
        message: the name of the message.
        column: what they are, for errors.

    Raises:
        OptionError: the descriptors or the name are wrong, or the array's type does not fit the message; all problems
            in one sentence.
        UnsupportedFeatureError: there is no compiled loop.
        UnwritableRowError: a value does not fit: a NULL in an array, a text that is no name of an enum, two fields of a
            oneof.

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
    encoded: pa.BinaryArray = loop.encode(_planned(array.type, descriptors, message, column), array)
    return encoded
