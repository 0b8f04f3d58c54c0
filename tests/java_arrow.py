"""Arrow arrays with the buffers of Spark's JVM: Java's Arrow writes no offsets for an array of no values."""

from __future__ import annotations

import pyarrow as pa

from spark_mq_source.core.columns import struct_array

_NO_BYTES = pa.py_buffer(b"")


def as_java_writes(array: pa.Array) -> pa.Array:
    """Return an equal array that begins at 0, in which each array of no values has buffers of 0 bytes."""
    array = pa.concat_arrays([array])
    type_ = array.type
    rows = len(array)
    buffers, children = array.buffers(), []
    if pa.types.is_struct(type_):
        buffers, children = buffers[:1], [array.field(at) for at in range(type_.num_fields)]
    elif pa.types.is_list(type_):
        buffers, children = buffers[:2], [array.values]
    elif pa.types.is_map(type_):
        buffers, children = buffers[:2], [struct_array(type_.field(0).type, [array.keys, array.items])]
    if not rows:
        buffers = [None, *[_NO_BYTES] * (len(buffers) - 1)]
    return pa.Array.from_buffers(type_, rows, buffers, children=[as_java_writes(child) for child in children])
