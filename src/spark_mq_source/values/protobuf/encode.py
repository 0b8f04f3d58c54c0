"""Arrow structs as protobuf messages: the inverse of `decode`.

The loop is compiled (``_encode_native``) and executes the steps of `protobuf.write_steps`. It has no interpreted twin:
without it, writing typed columns is an error.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_mq_source.core.implementation import require_compiled
from spark_mq_source.values.protobuf.write_steps import plan_writing


def protobuf_encoder(
    type_: pa.DataType, descriptors: bytes, message: str, column: str = "value"
) -> Callable[[pa.StructArray], pa.BinaryArray]:
    r"""Return a function that encodes structs of a type as protobuf messages; NULL becomes NULL.

    It raises UnwritableRowError for a value that does not fit, such as a NULL in an array, a text that is not a name of
    the enum, or two fields of a oneof.

    A column becomes the field that `protobuf.arrow_type_of` maps to it, or one that can be read as it: an enum's
    number, a bigint for a uint32, a decimal(20,0) for a uint64. Integers may also be narrower, and a float a double.
    NULL, and a field without a column, is left out; so is zero if protobuf does not distinguish it from an absent
    field. Fields are written in the order of their numbers, as protobuf's runtimes do, and the entries of maps in
    their own order.

    Raises:
        OptionError: the descriptors or the name are wrong, or the type does not fit the message; all problems in one
            sentence.
        UnsupportedFeatureError: the compiled loop cannot be loaded.

    Example:
        >>> from google.protobuf import duration_pb2
        >>> from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
        >>> file = FileDescriptorProto.FromString(duration_pb2.DESCRIPTOR.serialized_pb)
        >>> array = pa.array([{"nanos": 1, "seconds": 5}, {"nanos": 0, "seconds": None}, None])
        >>> array = array.cast(pa.struct([("nanos", pa.int32()), ("seconds", pa.int64())]))
        >>> descriptors = FileDescriptorSet(file=[file]).SerializeToString()
        >>> protobuf_encoder(array.type, descriptors, "google.protobuf.Duration")(array).to_pylist()
        [b'\x08\x05\x10\x01', b'', None]
    """
    loop = require_compiled("protobuf", "encode")
    step = plan_writing(type_, descriptors, message, column)
    return lambda values: loop.ProtobufEncoder(step, values).encode(values)
