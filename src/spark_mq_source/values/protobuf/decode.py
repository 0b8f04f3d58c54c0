"""Protobuf messages as Spark columns, with the descriptors of a schema registry or a file.

`protobuf.schema` contains the mapping of types. The loop is compiled (``_decode_native``) and has no interpreted twin:
without it, a typed column is an error.
"""

from __future__ import annotations

import pyarrow as pa

from spark_mq_source.core.implementation import require_compiled
from spark_mq_source.values.decoder import ValueDecoder
from spark_mq_source.values.protobuf.schema import arrow_type_of, plan_of

__all__ = ["arrow_type_of", "protobuf_decoder"]


def protobuf_decoder(
    descriptors: bytes, message: str, wanted: pa.DataType, reader: tuple[bytes, str] | None = None
) -> ValueDecoder:
    """Return a decoder of messages into a struct of the wanted columns, which skips their other fields unread.

    Args:
        descriptors: a serialized FileDescriptorSet with all its imports, with which the messages were written.
        message: the name of the message.
        wanted: a struct of some columns of `arrow_type_of` for the reader's descriptors, in any order and at any depth,
            or with wider types that `protobuf.schema` allows.
        reader: the descriptors and the message of another version of the schema, to which the columns belong. Its
            fields are found by their numbers, as Protobuf identifies them; one that the writer lacks is absent from all
            messages. None for those of the writer.

    Raises:
        OptionError: the descriptors, the name or the wanted columns are wrong; all problems in one sentence.
        UnsupportedFeatureError: the compiled loop cannot be loaded.

    Example:
        >>> from google.protobuf import any_pb2, source_context_pb2, type_pb2
        >>> from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
        >>> modules = (any_pb2, source_context_pb2, type_pb2)
        >>> files = FileDescriptorSet(
        ...     file=[FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in modules]
        ... )
        >>> wanted = pa.struct([("enumvalue", pa.list_(pa.struct([("name", pa.string())])))])
        >>> decoder = protobuf_decoder(files.SerializeToString(), "google.protobuf.Enum", wanted)
        >>> enum = type_pb2.Enum(name="Color", enumvalue=[type_pb2.EnumValue(name="RED", number=3)])
        >>> decoder.decode(pa.array([enum.SerializeToString(), None])).values.to_pylist()
        [{'enumvalue': [{'name': 'RED'}]}, None]
    """
    plan = plan_of(descriptors, message, wanted, reader)
    loop = require_compiled("protobuf", "decode")
    decoder: ValueDecoder = loop.ProtobufDecoder(plan, wanted)
    return decoder
