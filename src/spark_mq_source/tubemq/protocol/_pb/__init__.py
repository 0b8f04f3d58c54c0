"""The message classes of `proto/tubemq.proto`, built when imported.

Built from the descriptor rather than by generated code, because generated code refuses a protobuf runtime older than
its compiler; and in a pool of our own, because `tubemq-client` and others register the same messages in the default
one. Works from protobuf 4.25 on. The types are in the stub beside this file.
"""

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from spark_mq_source.tubemq.protocol._pb._descriptor import DESCRIPTOR as _SERIALIZED

_POOL = DescriptorPool()
_POOL.AddSerializedFile(_SERIALIZED)
DESCRIPTOR = _POOL.FindFileByName("tubemq.proto")
globals().update({name: GetMessageClass(message) for name, message in DESCRIPTOR.message_types_by_name.items()})
